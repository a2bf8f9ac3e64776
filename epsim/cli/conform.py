"""`epsim conform`: does a backend do what the reference says?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.routing import JsonFlag, print_json
from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.conform.outcome import Outcome
    from epsim.conform.program import Program
    from native.backends.protocol import Backend


def conform(
    *,
    backend: Annotated[
        Literal["twin", "gloo", "npu", "npu-deep-ep", "cuda", "gloo-nvidia", "reference", "reference-nvidia"],
        Parameter(
            help="twin: our kernels on the simulated machine. npu: our kernels on 950s, under torchrun. "
            "gloo: epsim.deep_ep in processes. npu-deep-ep, cuda: an installed deep_ep. reference: the "
            "suite's self test"
        ),
    ],
    profile: Annotated[
        Literal["quick", "full", "soak"] | None,
        Parameter(
            help="how much is tried; without: quick. On the twin: 1,000 runs, 2,700 larger ones, 105,000"
        ),
    ] = None,
    seed: Annotated[int, Whole, Parameter(help="of programs and data")] = 0,
    schedule_seed: Annotated[int, Whole, Parameter(help="of the first schedule of each program")] = 0,
    strategy: Annotated[
        str, Parameter(help="of the schedule, with --example; without: the backend's first")
    ] = "",
    example: Annotated[str | None, Parameter(help="run this one program, as a failure prints it")] = None,
    trace: Annotated[
        Path | None,
        Parameter(help="with --example on the twin, also write its operations: .html, or .json for Perfetto"),
    ] = None,
    junit: Annotated[Path | None, Parameter(help="also write JUnit XML to this file")] = None,
    json: JsonFlag = False,
) -> int:
    """Judge a backend by the reference: every property, on generated programs that shrink to the smallest.

    Programs are dispatches, cached dispatches and combines on one buffer: routings of all kinds, both dtypes,
    layouts, biases, several live handles. What a backend lacks is a row with the reason. Exit code 0 if all
    holds and was really tested; 1 if a property is broken or proved nothing; 3 if it cannot run here; after
    an interrupt, which prints what the cells so far have found, 130 (143 of SIGTERM).

    - `epsim conform --backend gloo`
    - `epsim conform --backend twin --profile full --junit conform.xml`
    - `epsim conform --backend twin --schedule-seed 7 --strategy pct --example '{...}' --trace run.html`
    """
    import os
    import sys
    from contextlib import nullcontext, redirect_stdout
    from io import StringIO

    from epsim.cli.interrupts import exit_code, sigterm_interrupts

    # Under torchrun all processes make the same calls and know the same results: the first one tells them.
    is_first = backend != "npu" or os.environ.get("RANK", "0") == "0"
    asked = _Asked(
        backend=backend, profile=profile or "quick", seed=seed, schedule_seed=schedule_seed,
        strategy=strategy, trace=trace, junit=junit if is_first else None, json=json,
    )  # fmt: skip
    program = _checked(asked, example, has_profile=profile is not None)
    try:
        with sigterm_interrupts(), nullcontext() if is_first else redirect_stdout(StringIO()):
            return _judge(asked, program)
    except KeyboardInterrupt as stop:
        print("epsim: interrupted", file=sys.stderr)
        return exit_code(stop)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options."""

    backend: str
    profile: str
    seed: int
    schedule_seed: int
    strategy: str
    trace: Path | None
    junit: Path | None
    json: bool


def _judge(asked: _Asked, program: "Program | None") -> int:
    """Start the backend, search or run the one program, and end the backend."""
    import os

    from epsim.conform.backends.registry import find_backend
    from native.settings import settings_from

    judged = find_backend(asked.backend, settings_from(os.environ))
    try:
        return _search(judged, asked) if program is None else _rerun(judged, asked, program)
    finally:
        judged.shutdown()


def _checked(asked: _Asked, example: str | None, *, has_profile: bool) -> "Program | None":
    """Refuse options before any work; return the example's program."""
    from epsim.conform.admission import MAX_SEED, check_size
    from epsim.conform.program import read_program
    from epsim.errors import InputError
    from epsim.files import check_outputs

    for name, value in (("seed", asked.seed), ("schedule_seed", asked.schedule_seed)):
        if not 0 <= value <= MAX_SEED:
            raise InputError(name, value, f"must be 0 to {MAX_SEED}")
    if asked.trace is not None:
        _check_trace(asked.trace, asked.backend, example)
    check_outputs([asked.junit, asked.trace])
    if example is None:
        if asked.strategy:
            raise InputError("strategy", asked.strategy, "goes with --example; a search tries all strategies")
        return None
    if has_profile:
        raise InputError("profile", asked.profile, "goes without --example, which is one program")
    program = read_program(example)
    check_size(program)
    return program


def _search(backend: "Backend", asked: _Asked) -> int:
    """Search; what cells have found is in the file when they end, and printed also after an interrupt."""
    import sys

    from epsim.cli.interrupts import exit_code
    from epsim.cli.progress import progress
    from epsim.conform.admission import check_schedule_seed
    from epsim.conform.junit import junit_xml
    from epsim.conform.search import SearchStopped, run_conformance
    from epsim.files import write_atomically
    from epsim.report.conform import outcome_text

    def keep(outcome: "Outcome") -> None:
        if asked.junit is not None:
            write_atomically(asked.junit, junit_xml(outcome))

    check_schedule_seed(backend.capabilities(), asked.schedule_seed)
    try:
        with progress("cells", has_lines=True) as tell:
            outcome = run_conformance(
                backend, asked.profile, seed=asked.seed, schedule_seed=asked.schedule_seed,
                tell=tell, keep=keep,
            )  # fmt: skip
        code = int(not outcome.is_passed)
    except SearchStopped as stopped:
        outcome, code = stopped.outcome, exit_code(stopped)
        keep(outcome)
        print(f"epsim: {outcome.stopped_text}", file=sys.stderr)
    if asked.json:
        print_json(outcome.to_dict())
    else:
        print(outcome_text(outcome))
    return code


def _check_trace(trace: Path, backend: str, example: str | None) -> None:
    """Refuse a timeline that nobody could write."""
    from epsim.errors import InputError

    if example is None:
        raise InputError("trace", str(trace), "goes with --example: a search makes thousands of runs")
    if backend != "twin":
        raise InputError("trace", str(trace), "goes with --backend twin")
    if trace.suffix not in (".html", ".json"):
        raise InputError("trace", str(trace), "must end in .html or .json")


def _rerun(backend: "Backend", asked: _Asked, program: "Program") -> int:
    """Run one program; print and write what it shows."""
    from tempfile import TemporaryDirectory

    from epsim.conform.admission import check_program, choose_schedule
    from epsim.conform.junit import junit_xml
    from epsim.conform.search import try_program
    from epsim.errors import InputError
    from native.backends.protocol import UnsupportedCellError

    can = backend.capabilities()
    check_program(program, can)
    schedule = choose_schedule(can, asked.strategy, asked.schedule_seed)
    with TemporaryDirectory() as folder:
        operations = Path(folder) / "operations"
        try:
            outcome = try_program(
                _traced(backend, asked, operations), program, seed=asked.seed, schedule=schedule
            )
        except UnsupportedCellError as reason:
            raise InputError("backend", backend.name, f"cannot run the example: {reason}") from None
        files: list[tuple[Path, str]] = []
        if asked.junit is not None:
            files.append((asked.junit, junit_xml(outcome)))
        told = {} if asked.trace is None else _drawn(asked.trace, operations, program, outcome, files)
    _tell_example(outcome, asked, told, files, len(program.steps))
    return int(not outcome.is_passed)


def _traced(backend: "Backend", asked: _Asked, operations: Path) -> "Backend":
    """Return the backend that keeps its operations, if a timeline is asked for."""
    from dataclasses import replace

    from native.backends.twin import TwinBackend

    if asked.trace is not None and isinstance(backend, TwinBackend):
        return replace(backend, trace=operations)
    return backend


def _drawn(
    trace: Path, operations: Path, program: "Program", outcome: "Outcome", files: list[tuple[Path, str]]
) -> "dict[str, list[str]]":
    """Add the timeline of a run on the twin to the files; return how the order of a whole one differs."""
    from epsim.cli.timeline import timeline
    from epsim.conform.twinschedule import program_differences
    from epsim.trace.twin import read_twin_events, twin_trace

    events = read_twin_events(operations)
    title = f"{len(program.steps)} calls of {program.num_ranks} ranks on the twin"
    files.append((trace, timeline(twin_trace(events, title), trace)))
    if outcome.is_passed and program.multiple_reduction:
        return {"schedule_differences": list(program_differences(program, events))}
    return {}


def _tell_example(
    outcome: "Outcome",
    asked: _Asked,
    told: "dict[str, list[str]]",
    files: list[tuple[Path, str]],
    num_calls: int,
) -> None:
    from epsim.files import write_files

    write_files(files)
    if asked.json:
        print_json(outcome.to_dict() | told)
        return
    failure = next(iter(outcome.failures), None)
    print(
        f"holds: all {num_calls} calls" if failure is None else f"broken: {failure.property}: {failure.text}"
    )
    for differences in told.values():
        print("\n".join(differences) if differences else "schedule: as the event simulator's")
    for path, _ in files:
        print(f"wrote {path}")
