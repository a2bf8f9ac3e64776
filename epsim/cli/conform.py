"""`epsim conform`: does a backend do what the reference says?"""

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
    profile: Annotated[Literal["quick", "full", "soak"], Parameter(help="how much is tried")] = "quick",
    seed: Annotated[int, Whole, Parameter(help="of programs and data")] = 0,
    schedule_seed: Annotated[int, Whole, Parameter(help="of the first schedule of each program")] = 0,
    strategy: Annotated[str, Parameter(help="of the schedule, with --example")] = "",
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
    from contextlib import nullcontext, redirect_stdout
    from io import StringIO

    from epsim.cli.interrupts import sigterm_interrupts
    from epsim.conform.backends.registry import find_backend
    from epsim.errors import InputError
    from native.settings import settings_from

    if junit is not None and not junit.parent.is_dir():
        raise InputError("junit", str(junit), "must be in a folder that exists")
    if trace is not None:
        _check_trace(trace, backend, example)
    if example is None and strategy:
        raise InputError("strategy", strategy, "goes with --example; a search tries all strategies")
    for name, value in (("seed", seed), ("schedule_seed", schedule_seed)):
        if value < 0:
            raise InputError(name, value, "must not be negative")
    judged = find_backend(backend, settings_from(os.environ))
    # Under torchrun all processes make the same calls and know the same results: the first one tells them.
    is_first = backend != "npu" or os.environ.get("RANK", "0") == "0"
    try:
        with sigterm_interrupts(), nullcontext() if is_first else redirect_stdout(StringIO()):
            if example is not None:
                return _rerun(judged, example, seed, schedule_seed, strategy, trace)
            return _search(judged, profile, seed, schedule_seed, junit if is_first else None, json)
    finally:
        judged.shutdown()


def _search(
    backend: "Backend", profile: str, seed: int, schedule_seed: int, junit: Path | None, json: bool
) -> int:
    """Search; what cells have found is in the file when they end, and printed also after an interrupt."""
    import sys

    from epsim.cli.interrupts import exit_code
    from epsim.cli.progress import progress
    from epsim.conform.junit import junit_xml
    from epsim.conform.search import SearchStopped, run_conformance
    from epsim.files import write_atomically
    from epsim.report.conform import outcome_text

    def keep(outcome: "Outcome") -> None:
        if junit is not None:
            write_atomically(junit, junit_xml(outcome))

    try:
        with progress("cells", has_lines=True) as tell:
            outcome = run_conformance(
                backend, profile, seed=seed, schedule_seed=schedule_seed, tell=tell, keep=keep
            )
        code = int(not outcome.is_passed)
    except SearchStopped as stopped:
        outcome, code = stopped.outcome, exit_code(stopped)
        keep(outcome)
        print(f"epsim: {outcome.stopped_text}", file=sys.stderr)
    if json:
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
    if not trace.parent.is_dir():
        raise InputError("trace", str(trace), "must be in a folder that exists")


def _rerun(
    backend: "Backend", example: str, seed: int, schedule_seed: int, strategy: str, trace: Path | None
) -> int:
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from epsim.conform.program import read_program
    from epsim.conform.search import rerun
    from native.backends.protocol import Schedule, UnsupportedCellError
    from native.backends.twin import TwinBackend

    program = read_program(example)
    schedule = Schedule(strategy=strategy, seed=schedule_seed)
    with TemporaryDirectory() as folder:
        operations = Path(folder) / "operations"
        if trace is not None and isinstance(backend, TwinBackend):
            backend = replace(backend, trace=operations)
        try:
            broken = rerun(backend, program, seed=seed, schedule=schedule)
        except UnsupportedCellError as reason:
            print(f"unsupported: {reason}")
            return 1
        print(f"holds: all {len(program.steps)} calls" if broken is None else f"broken: {broken}")
        if trace is not None:
            _write_trace(trace, operations, program, is_whole=broken is None)
    return int(broken is not None)


def _write_trace(trace: Path, operations: Path, program: "Program", *, is_whole: bool) -> None:
    """Write the timeline of a run on the twin, and say how the order of a whole one differs."""
    from epsim.cli.timeline import timeline
    from epsim.conform.twinschedule import program_differences
    from epsim.files import write_files
    from epsim.trace.twin import read_twin_events, twin_trace

    events = read_twin_events(operations)
    if is_whole and program.multiple_reduction:
        found = program_differences(program, events)
        print("\n".join(found) if found else "schedule: as the event simulator's")
    drawn = twin_trace(events, f"{len(program.steps)} calls of {program.num_ranks} ranks on the twin")
    write_files([(trace, timeline(drawn, trace))])
    print(f"wrote {trace}")
