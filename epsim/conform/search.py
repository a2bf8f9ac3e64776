"""The search for a program that breaks a property: hypothesis draws and shrinks, cell by cell."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from epsim.conform.coverage import traits
from epsim.conform.evidence import PROPERTIES, Evidence, Ledger, PropertyBroken, PropertyName
from epsim.conform.generate import Cell, Sizes, cells, programs
from epsim.conform.outcome import PROFILES, CellRow, Failure, Outcome, Profile, PropertyRow
from epsim.conform.program import Program, program_text
from epsim.conform.runner import ProgramRun
from epsim.errors import InputError
from epsim.testing.extra import load_hypothesis
from native.backends.protocol import Backend, Capabilities, Schedule, UnsupportedCellError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Programs = Callable[[Cell, Capabilities, Sizes], "SearchStrategy[Program]"]
MOST_EXAMPLES = {"wide": 2, "many": 8}
"""Programs of a cell whose programs cost as much as many small ones: rows of 7168 elements, 30 tokens."""


class SearchStopped(KeyboardInterrupt):
    """The search was interrupted; `outcome` has the cells that are done, and the failure of one under way."""

    def __init__(self, outcome: Outcome) -> None:
        """Carry what was found so far."""
        self.outcome = outcome
        super().__init__(outcome.stopped_text)


def run_conformance(
    backend: Backend,
    profile: str | Profile = "quick",
    *,
    seed: int = 0,
    schedule_seed: int = 0,
    make_programs: Programs = programs,
    only: Callable[[Cell], bool] = lambda _: True,
    stop_at_failure: bool = False,
    tell: Callable[[int, int], Any] | None = None,
    keep: Callable[[Outcome], Any] | None = None,
) -> Outcome:
    """Try every cell of a backend.

    A failed cell is shrunk; the others run on. The same arguments try the same programs.

    Args:
      backend: what to judge; it is not shut down.
      profile: how much is tried, a name of `PROFILES` or one's own.
      seed: of programs and data.
      schedule_seed: of the first schedule of each program; the next ones count up.
      make_programs: strategy of a cell's programs.
      only: cells to try; the others are left out of the outcome.
      stop_at_failure: leave out the cells behind the first that fails.
      tell: called with (done, all) cells, before each program.
      keep: called after each cell with the outcome so far.

    Returns:
      Outcome; it passed only if every property held and was really tested.

    Raises:
      InputError: no such profile, or a negative seed.
      MissingExtraError: no hypothesis.
      SearchStopped: by KeyboardInterrupt; it has the outcome so far.
    """
    load_hypothesis()
    for name, value in (("seed", seed), ("schedule_seed", schedule_seed)):
        if value < 0:
            raise InputError(name, value, "must not be negative")
    chosen = find_profile(profile)
    todo = [cell for cell in cells(wide=chosen.wide, many=chosen.many) if only(cell)]
    search = _Search(
        backend=backend, profile=chosen, seed=seed, schedule_seed=schedule_seed, make=make_programs,
        num_cells=len(todo), tell=tell,
    )  # fmt: skip
    try:
        for cell in todo:
            search.rows.append(search.run_cell(cell))
            if keep:
                keep(search.outcome())
            if stop_at_failure and search.rows[-1].failure:
                search.num_cells = len(search.rows)
                break
    except KeyboardInterrupt as stop:
        raise SearchStopped(search.outcome()) from stop
    return search.outcome()


def find_profile(profile: str | Profile) -> Profile:
    """Return a profile by its name.

    Raises:
      InputError: no such profile.
    """
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise InputError("profile", profile, f"must be one of {', '.join(PROFILES)}")
    return PROFILES[profile]


def rerun(backend: Backend, program: Program, *, seed: int, schedule: Schedule) -> PropertyBroken | None:
    """Run one program again; return what breaks, None = all holds.

    Raises:
      UnsupportedCellError: the backend cannot run it.
    """
    try:
        ProgramRun(backend=backend, program=program, seed=seed, schedule=schedule).run()
    except PropertyBroken as broken:
        return broken
    return None


def try_program(backend: Backend, program: Program, *, seed: int, schedule: Schedule) -> Outcome:
    """Run one program; return an outcome with one cell, "example", and without verdicts on properties.

    Raises:
      UnsupportedCellError: the backend cannot run it.
    """
    start = time.perf_counter()
    broken = rerun(backend, program, seed=seed, schedule=schedule)
    seconds = time.perf_counter() - start
    failure = None
    if broken is not None:
        line = rerun_line(backend.name, program, seed, schedule)
        failure = Failure(
            cell="example", property=broken.property, text=broken.text, program=program, seed=seed,
            schedule=schedule, rerun=line, seconds=0.0,
        )  # fmt: skip
    row = CellRow(
        cell="example", num_examples=1, num_runs=1, unsupported=None, seconds=seconds, failure=failure
    )
    return Outcome(
        backend=backend.name, profile="example", seed=seed, schedule_seed=schedule.seed, properties=(),
        cells=(row,), num_cells=1, traits=Counter(() if failure else traits(program)), seconds=seconds,
    )  # fmt: skip


def rerun_line(backend: str, program: Program, seed: int, schedule: Schedule) -> str:
    """Return the command that shows a failure again."""
    strategy = f" --strategy {schedule.strategy}" if schedule.strategy else ""
    return (
        f"epsim conform --backend {backend} --seed {seed} --schedule-seed {schedule.seed}{strategy}"
        f" --example {shlex.quote(program_text(program))}"
    )


@dataclass(kw_only=True)
class _Search:
    """State of one run."""

    backend: Backend
    profile: Profile
    seed: int
    schedule_seed: int
    make: Programs
    num_cells: int
    tell: Callable[[int, int], Any] | None
    start: float = field(default_factory=time.perf_counter)
    rows: list[CellRow] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    traits: Counter[str] = field(default_factory=Counter)

    def outcome(self) -> Outcome:
        """Return what was found so far; what comes later does not change it."""
        return Outcome(
            backend=self.backend.name,
            profile=self.profile.name,
            seed=self.seed,
            schedule_seed=self.schedule_seed,
            properties=tuple(self._property_rows()),
            cells=tuple(self.rows),
            num_cells=self.num_cells,
            traits=self.traits.copy(),
            seconds=time.perf_counter() - self.start,
        )

    def tick(self) -> None:
        """Tell how far the search is."""
        if self.tell:
            self.tell(len(self.rows), self.num_cells)

    def run_cell(self, cell: Cell) -> CellRow:
        """Draw programs of a cell until one breaks or there are enough."""
        capabilities = self.backend.capabilities()
        reason = cell.why_not(capabilities)
        if reason:
            return CellRow(cell=str(cell), num_examples=0, num_runs=0, unsupported=reason, seconds=0.0)
        start = time.perf_counter()
        trial = _Trial(search=self, schedules=self._schedules(capabilities))
        strategy = self.make(cell, capabilities, self._sizes())
        most = self.profile.examples_per_cell
        count = min(most, MOST_EXAMPLES.get(cell.scenario, most))
        try:
            self._explore(strategy, trial, count)
        except KeyboardInterrupt:
            if trial.broken:
                self.rows.append(trial.row(str(cell), start))
            raise
        return trial.row(str(cell), start)

    def _explore(self, strategy: "SearchStrategy[Program]", trial: "_Trial", count: int) -> None:
        hypothesis = load_hypothesis()
        settings = hypothesis.settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            verbosity=hypothesis.Verbosity.quiet,
        )

        def explore(program: Program) -> None:
            trial.run(program)

        search: Callable[[], None] = settings(hypothesis.seed(self.seed)(hypothesis.given(strategy)(explore)))
        try:
            search()
        except (PropertyBroken, hypothesis.errors.Flaky):
            # A machine without a seed of its own may not show it again; what was seen was seen.
            if trial.smallest is None:
                raise

    def _property_rows(self) -> Iterator[PropertyRow]:
        num_unsupported = sum(row.verdict == "unsupported" for row in self.rows)
        broken = [row.failure.property for row in self.rows if row.failure]
        capabilities = self.backend.capabilities()
        # What a broken or interrupted run has not come to proves nothing for that reason alone.
        is_early = bool(broken) or len(self.rows) < self.num_cells
        for name in PROPERTIES:
            if not _applies(name, capabilities):
                continue
            evidence = replace(self.ledger.by_property.get(name, Evidence()))
            yield PropertyRow(
                name=name,
                evidence=evidence,
                num_failures=broken.count(name),
                num_unsupported=num_unsupported,
                vacuous=None if is_early else evidence.vacuous(self.profile.least_crossed),
            )

    def _sizes(self) -> Sizes:
        return Sizes(
            max_ranks=self.profile.max_ranks,
            max_tokens=self.profile.max_tokens,
            max_hidden=self.profile.max_hidden,
            max_experts_per_rank=self.profile.max_experts_per_rank,
            max_steps=self.profile.max_steps,
        )

    def _schedules(self, capabilities: Capabilities) -> list[Schedule]:
        names = capabilities.strategies
        if not names:
            return [Schedule(seed=self.schedule_seed)]
        return [
            Schedule(strategy=names[number % len(names)], seed=self.schedule_seed + number)
            for number in range(self.profile.schedules)
        ]


@dataclass(kw_only=True)
class _Trial:
    """Runs the programs that hypothesis draws for one cell, and remembers the smallest that breaks."""

    search: _Search
    schedules: list[Schedule]
    num_examples: int = 0
    num_runs: int = 0
    unsupported: str | None = None
    broken: PropertyBroken | None = None
    smallest: Program | None = None
    schedule: Schedule | None = None
    first_seen: float = 0.0
    last_seen: float = 0.0

    def run(self, program: Program) -> None:
        """Run a program on all schedules, the one that failed last first.

        Raises:
          PropertyBroken: a property breaks: hypothesis then looks for a smaller program.
        """
        self.search.tick()
        is_shrinking = self.broken is not None
        order = sorted(self.schedules, key=lambda schedule: schedule != self.schedule)
        for number, schedule in enumerate(order):
            run = ProgramRun(
                backend=self.search.backend, program=program, seed=self.search.seed, schedule=schedule
            )
            try:
                run.run()
            except UnsupportedCellError as reason:
                self.unsupported = str(reason)
                return
            except PropertyBroken as broken:
                self._found(program, schedule, broken)
                raise
            finally:
                if not is_shrinking:
                    self.num_runs += 1
                    self.search.ledger.add(run.seen, first=number == 0)
        if not is_shrinking:
            self.num_examples += 1
            self.search.traits.update(traits(program))

    def _found(self, program: Program, schedule: Schedule, broken: PropertyBroken) -> None:
        now = time.perf_counter()
        self.first_seen = self.first_seen or now
        self.last_seen = now
        if self.broken is None:
            self.num_examples += 1
        # The last one that hypothesis runs is the smallest: it replays its best at the end.
        self.broken, self.smallest, self.schedule = broken, program, schedule

    def row(self, cell: str, start: float) -> CellRow:
        """Return the row of the cell that was begun at `start`."""
        return CellRow(
            cell=cell,
            num_examples=self.num_examples,
            num_runs=self.num_runs,
            unsupported=self.unsupported,
            seconds=time.perf_counter() - start,
            failure=self.failure(cell),
        )

    def failure(self, cell: str) -> Failure | None:
        """Return what was found, None = nothing."""
        if self.broken is None or self.smallest is None or self.schedule is None:
            return None
        search = self.search
        return Failure(
            cell=cell,
            property=self.broken.property,
            text=self.broken.text,
            program=self.smallest,
            seed=search.seed,
            schedule=self.schedule,
            rerun=rerun_line(search.backend.name, self.smallest, search.seed, self.schedule),
            seconds=self.last_seen - self.first_seen,
        )


def _applies(name: PropertyName, capabilities: Capabilities) -> bool:
    """Whether a backend has what a property is about."""
    needs: dict[str, tuple[str, ...]] = {
        "scales": ("fp8",),
        "weights": ("weights",),
        "combined_weights": ("weights",),
        "local_ids": ("deduplicated",),
        "row_slots": ("expanded",),
        "padding": ("expanded",),
        "stats": ("stats",),
        "cached_places": ("cached",),
    }
    if name == "gather_pairs" and capabilities.edition != "ascend":
        return False
    return not set(needs.get(name, ())) & set(capabilities.unsupported)
