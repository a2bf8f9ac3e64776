"""Judges mutants: each is built, and the conformance suite has to fail on it.

Every mutant is judged in a process of its own: a changed kernel may never end.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV
from threading import Lock

import msgspec
from hypothesis.strategies import SearchStrategy

from epsim.conform import Outcome, run_conformance
from epsim.conform.generate import Cell, Sizes, programs
from epsim.conform.outcome import PROFILES, Profile
from epsim.conform.program import Program
from native.backends.protocol import Capabilities
from native.backends.twin import TwinBackend
from native.settings import JitSettings
from native.twin import Twin, build_twin
from tests.mutants.mutant import Mutant
from tests.native.jitkit import ROOT, STRICT

QUICK = PROFILES["quick"]
CRASHES = {int(name): name for name in (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL)}
"""Signals with which a changed kernel may end the process that judges it."""
MAX_SECS = 300
"""A judgement that takes longer is given up."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How the suite runs.

    Args:
      profile: how much is tried.
      repeats: how often each program does its steps.
      machine: parameters of the twin.
      switches: fields of RuntimeConfig.
    """

    profile: Profile = QUICK
    repeats: int = 1
    machine: Mapping[str, int | str] = field(default_factory=dict)
    switches: Mapping[str, int] = field(default_factory=dict)

    def programs(self, cell: Cell, can: Capabilities, sizes: Sizes) -> SearchStrategy[Program]:
        """Return the strategy of a cell's programs."""

        def repeated(program: Program) -> Program:
            return msgspec.structs.replace(program, steps=program.steps * self.repeats)

        return programs(cell, can, sizes).map(repeated)


VARIANTS: Mapping[str, Variant] = {
    "": Variant(),
    # 32 blocks are the least ring in which every call of this size fits; ten calls are more than a lap.
    "short queue": Variant(
        profile=dataclasses.replace(QUICK, max_ranks=2, max_tokens=2, many=False),
        repeats=10,
        machine={"sq_depth": 32, "cq_depth": 4},
        switches={"sq_depth": 32},
    ),
    # More local records than flags, and more rows of one token than two halves of UB take.
    "many tokens": Variant(
        profile=dataclasses.replace(QUICK, max_ranks=2, max_tokens=30, max_hidden=32, max_experts_per_rank=8)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the suite said of a mutant.

    Args:
      killed_by: the property, or of a run that was stopped the rule of the twin; "" = nothing.
      num_runs: programs times schedules up to the first failure.
      ranks, tokens: of the program after shrinking, the tokens of all ranks together.
      seconds: of this process, for search and shrinking.
      shrink_secs: of it, between the first failure and the smallest.
      rerun: the line of the suite that shows it again.
    """

    killed_by: str
    num_runs: int
    ranks: int = 0
    tokens: int = 0
    seconds: float = 0.0
    shrink_secs: float = 0.0
    rerun: str = ""

    @property
    def is_small(self) -> bool:
        """Whether at most two ranks and two tokens are left, found within ten seconds."""
        return bool(self.killed_by) and max(self.ranks, self.tokens) <= 2 and self.seconds <= 10


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a mutant, on the twin and on empty stubs (None = not asked for)."""

    mutant: Mutant
    twin: Verdict
    stubs: Verdict | None


def build(mutant: Mutant | None, cache_dirs: Sequence[Path]) -> Path:
    """Compile the twin with a mutant, None = our kernels; return its library.

    Args:
      mutant: which.
      cache_dirs: the first takes what is new; objects of unchanged sources come from any.
    """
    settings = JitSettings(cache_dirs=tuple(cache_dirs))
    if mutant is None:
        return build_twin(settings, flags=STRICT)
    with tempfile.TemporaryDirectory() as folder:
        return build_twin(settings, mutant.write(Path(folder)), flags=STRICT)


class AnyAivs(TwinBackend):
    """The backend with one AIV too: a bug within an AIV then needs fewer tokens to show."""

    def capabilities(self) -> Capabilities:
        """Say the same but for that."""
        can = super().capabilities()
        return dataclasses.replace(can, num_aivs=(1, *can.num_aivs))


def backend(library: Path, variant: Variant, *, has_checks: bool = True) -> TwinBackend:
    """Return the backend of a library; without checks it is what a twin of empty stubs would be."""
    strategy = {} if has_checks else {"strategy": "inorder"}
    return AnyAivs(Twin(library), variant.switches, {**variant.machine, **strategy})


def judge(mutant: Mutant | None, library: Path, variant: Variant, *, has_checks: bool) -> Verdict:
    """Run the suite up to its first failure, and shrink it. In this process.

    Without checks all schedules are equal but for the call that overlaps, so the one that has it is enough.
    """
    start = time.process_time()
    outcome = run_conformance(
        backend(library, variant, has_checks=has_checks),
        variant.profile if has_checks else dataclasses.replace(variant.profile, schedules=1),
        schedule_seed=0 if has_checks else 1,
        make_programs=variant.programs,
        only=lambda cell: mutant is None or mutant.concerns(cell.scenario),
        stop_at_failure=True,
    )
    return _verdict(outcome, time.process_time() - start)


def _verdict(outcome: Outcome, seconds: float) -> Verdict:
    num_runs = sum(row.num_runs for row in outcome.cells)
    if not outcome.failures:
        return Verdict(killed_by="", num_runs=num_runs, seconds=seconds)
    (failure,) = outcome.failures
    rule = failure.text.partition(":")[0]
    return Verdict(
        killed_by=rule if failure.property == "runs" else failure.property,
        num_runs=num_runs,
        ranks=failure.program.num_ranks,
        tokens=failure.program.most_tokens,
        seconds=seconds,
        shrink_secs=failure.seconds,
        rerun=failure.rerun,
    )


def judge_apart(name: str, library: Path, *, has_checks: bool) -> Verdict:
    """Do the same in a process of its own; one that crashes or never ends counts as killed by that."""
    asked = ["--judge", name, str(library), *(["checks"] if has_checks else [])]
    command = [sys.executable, "-m", "tests.mutants", *asked]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=MAX_SECS, check=True
        )
    except subprocess.TimeoutExpired:
        return Verdict(killed_by="no end", num_runs=0, seconds=MAX_SECS)
    except subprocess.CalledProcessError as error:
        if -error.returncode not in CRASHES:
            raise  # a mistake of this program, or somebody ended it: that says nothing of the mutant
        return Verdict(killed_by=f"crash, {CRASHES[-error.returncode].name}", num_runs=0)
    return Verdict(**json.loads(done.stdout))


def rows(
    mutants: Sequence[Mutant], cache_dirs: Sequence[Path], *, has_stubs: bool, num_jobs: int
) -> Iterator[Row]:
    """Judge mutants, on empty stubs too if asked for; yield them in order.

    Args:
      mutants: which.
      cache_dirs: of compilation.
      has_stubs: also judge on empty stubs.
      num_jobs: mutants at once; one compiles at a time.
    """
    build(None, cache_dirs)
    compiling = Lock()
    with tempfile.TemporaryDirectory() as fresh, ThreadPoolExecutor(num_jobs) as jobs:

        def row(mutant: Mutant) -> Row:
            with compiling:
                library = build(mutant, [Path(fresh), *cache_dirs])
            twin = judge_apart(mutant.name, library, has_checks=True)
            stubs = judge_apart(mutant.name, library, has_checks=False) if has_stubs else None
            return Row(mutant=mutant, twin=twin, stubs=stubs)

        yield from jobs.map(row, mutants)
