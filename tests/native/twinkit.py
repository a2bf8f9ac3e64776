"""Small kernels on the twin: two ranks of two AIVs, four kilobytes of each kind of memory."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from native.errors import TwinViolation
from native.settings import JitSettings
from native.sources import FOLDERS
from native.twin import Twin, TwinMachine, build_twin

KERNELS = Path(__file__).parent / "twin_kernels"
STRATEGIES = ("random", "pct", "delay_pipe", "late")
"""Strategies with checks; "inorder" is the one without."""


def build_case_twin(cache: Path) -> Twin:
    """Compile the twin with the kernels of the tests, all warnings being errors."""
    folders = {**FOLDERS, "kernels": KERNELS}
    return Twin(build_twin(JitSettings(cache_dirs=(cache,)), folders, ("-Wall", "-Wextra", "-Werror")))


def make_machine(twin: Twin, kernel: str, params: Mapping[str, int | str]) -> TwinMachine:
    """Make a machine with one launch of a kernel per rank; twin_kernels/cases.hpp says what it gets."""
    machine = TwinMachine(twin, {"ranks": 2, "aivs": 2, **params})
    names = ("in", "out", "words")
    buffers = [
        [machine.alloc(rank, 4096, name, is_zeroed=name == "words") for name in names] for rank in range(2)
    ]
    for rank, (source, out, words) in enumerate(buffers):
        machine.write(source, np.arange(1024, dtype=np.int32))
        args = machine.alloc(rank, 48, "args")
        peer = buffers[1 - rank]
        machine.write(args, np.array([source, out, words, peer[2], peer[1], rank], np.uint64))
        machine.enqueue(rank, kernel, args, 2)
    return machine


def run_case(twin: Twin, kernel: str, params: Mapping[str, int | str]) -> TwinViolation | None:
    """Run a kernel and return its violation, None if there is none."""
    with make_machine(twin, kernel, params) as machine:
        try:
            machine.run()
        except TwinViolation as violation:
            return violation
    return None
