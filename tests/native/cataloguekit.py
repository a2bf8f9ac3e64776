"""Runs entries of the bug catalogue: a wrong and a repaired form of each, over seeds and strategies.

A run ends with the rule of the twin that it broke, with `COMPARISON` when what it delivered was not what
was expected, or with "".
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from native.errors import TwinViolation
from native.settings import JitSettings
from native.sources import FOLDERS
from native.twin import Twin, TwinMachine, build_twin
from tests.native.jitkit import STRICT
from tests.native.urmakit import STRATEGIES, Fabric, build_script_twin

COMPARISON = "comparison"
SEEDS = range(10)
AREA_BYTES = 8192
"""Of each of `in`, `out` and `words`."""
MOST_RANKS = 4
"""Room of the arguments."""


@dataclass(frozen=True)
class Entry:
    """Where a bug is from, how it is rebuilt and by what each wrong run must be stopped, if it is at all."""

    id: str
    symptom: str
    rebuilt: str
    rules: frozenset[str]


@dataclass(frozen=True)
class KernelEntry(Entry):
    """A pair of kernels `<name>_bad` and `<name>_good` (catalogue/*.cpp).

    Attributes:
      ranks, blocks: of the machine; AIVs are as many as blocks.
      lives: launches of the kernel per rank, in one run.
      num_bytes: argument of that name.
      big_bytes: of the buffer `big`, for the wrong and the repaired form.
      result: the first int32 words of `result` of each rank, () if it is not compared.
    """

    name: str
    ranks: int = 2
    blocks: int = 1
    lives: int = 1
    num_bytes: int = 0
    big_bytes: tuple[int, int] = (0, 0)
    result: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class UrmaEntry(Entry):
    """Requests that `build(fabric, is_good)` writes into the scripts of a fabric of two ranks."""

    build: Callable[[Fabric, bool], None]
    aivs: int = 1
    sq_depth: int = 64


@dataclass(frozen=True)
class HostEntry(Entry):
    """Calls on the host, without a schedule; `right` is what they must return."""

    wrong: Callable[[], object]
    repaired: Callable[[], object]
    right: object


@functools.cache
def kernel_twin(cache: Path) -> Twin:
    """Compile the twin with the kernels of the catalogue, or load it."""
    folders = {**FOLDERS, "kernels": Path(__file__).parent / "catalogue"}
    return Twin(build_twin(JitSettings(cache_dirs=(cache,)), folders, STRICT))


@functools.cache
def script_twin(cache: Path) -> Twin:
    """Compile the twin with the script kernel, or load it."""
    return build_script_twin(cache)


def schedules(seeds: Sequence[int] = SEEDS) -> Iterator[tuple[str, int]]:
    """All strategies with all seeds, strategies in turn."""
    return ((strategy, seed) for seed in seeds for strategy in STRATEGIES)


def prepare(machine: TwinMachine, entry: KernelEntry, *, is_good: bool) -> list[int]:
    """Allocate, write arguments, enqueue; return the address of `result` of each rank."""
    ranks = range(entry.ranks)
    areas = np.zeros((3, MOST_RANKS), np.uint64)
    for k, name in enumerate(("in", "out", "words")):
        areas[k, : entry.ranks] = [machine.alloc(r, AREA_BYTES, name, is_zeroed=k == 2) for r in ranks]
    results = [machine.alloc(r, 4096, "result", is_zeroed=True) for r in ranks]
    for rank in ranks:
        machine.write(int(areas[0, rank]), np.arange(AREA_BYTES // 4, dtype=np.int32))
        size = entry.big_bytes[is_good]
        big = machine.alloc(rank, size, "big", is_zeroed=True) if size else 0
        for life in range(1, entry.lives + 1):
            head = [rank, entry.ranks, life, entry.num_bytes, big, results[rank]]
            args = machine.alloc(rank, 8 * (len(head) + areas.size), f"args {life}")
            machine.write(args, np.concatenate([np.array(head, np.uint64), areas.ravel()]))
            machine.enqueue(rank, f"{entry.name}_{'good' if is_good else 'bad'}", args, entry.blocks)
    return results


def run_kernel(
    twin: Twin, entry: KernelEntry, strategy: str, seed: int, *, is_good: bool
) -> TwinViolation | str:
    """Run once; return the violation, `COMPARISON` or ""."""
    params = {"ranks": entry.ranks, "aivs": entry.blocks, "strategy": strategy, "seed": seed}
    with TwinMachine(twin, params) as machine:
        results = prepare(machine, entry, is_good=is_good)
        try:
            machine.run()
        except TwinViolation as violation:
            return violation
        for address, expected in zip(results, entry.result, strict=False):
            if machine.read(address, len(expected), np.int32).tolist() != list(expected):
                return COMPARISON
    return ""


def end_of(cache: Path, entry: Entry, strategy: str, seed: int, *, is_good: bool) -> str:
    """Run a form of an entry once and return how it ended."""
    if isinstance(entry, KernelEntry):
        found = run_kernel(kernel_twin(cache), entry, strategy, seed, is_good=is_good)
        rule = found.rule if isinstance(found, TwinViolation) else found
        return COMPARISON if rule == "kernel_trap" else rule
    if isinstance(entry, UrmaEntry):
        fabric = Fabric(script_twin(cache), seed, strategy, aivs=entry.aivs, sq_depth=entry.sq_depth)
        entry.build(fabric, is_good)
        return fabric.rule()
    assert isinstance(entry, HostEntry)
    made = entry.repaired() if is_good else entry.wrong()
    return "" if made == entry.right else COMPARISON


def ends(cache: Path, entry: Entry, *, is_good: bool) -> list[str]:
    """Return how each schedule ended; calls on the host have one."""
    tried = [("host", 0)] if isinstance(entry, HostEntry) else [*schedules()]
    return [end_of(cache, entry, strategy, seed, is_good=is_good) for strategy, seed in tried]
