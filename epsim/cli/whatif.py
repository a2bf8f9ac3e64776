"""`epsim whatif`: what does a fault cost, and which single fault hurts most?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from epsim.cli.caseoptions import CaseOptions, Flag, check_one_trace, check_pictures, trace_file
from epsim.cli.progress import progress
from epsim.cli.routing import print_json

if TYPE_CHECKING:
    from epsim.whatif import Change


def whatif(
    *,
    fault: Annotated[
        list[str] | None, Parameter(negative="", help="KIND:WHERE@AMOUNT, as below; several add up")
    ] = None,
    each: Annotated[
        str | None, Parameter(help="KIND@AMOUNT: try it at every place of the group, the worst first")
    ] = None,
    case: Annotated[CaseOptions | None, Parameter(help="case")] = None,
    trace: Annotated[
        Path | None, Parameter(help="events: write the timeline of the faulty run, .json or .html")
    ] = None,
    plot: Annotated[
        Path | None, Parameter(help="write the last byte of every rank, before and after, .png or .svg")
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Compare the healthy system with a faulty one: same rows, same seed.

    Faults: `link-down:npu3/plane2`, `link-slow:npu3/plane2@0.5`, `plane-lost:2`, `switch-slow:sw3@0.5`,
    `rank-slow:5@0.8`, `rank-late:5@100us`, `lossy:npu3/plane2@1e-4` (chance that a packet is lost),
    `miscabled:npu3/plane2<->npu4/plane5` (far ends swapped); with events also `jitter@0.02`, and two
    that end in a report of who waits for what: `rank-dead:5`, `receiver-stuck:5`. A cable may be named by
    its ends, too: `link-down:sw0-sw9`.

    - `epsim whatif --fault plane-lost:2 --fault rank-late:5@100us --ep 32`
    - `epsim whatif --fault link-slow:npu3/plane2@0.5 --level flow --ep 128 --op dispatch`
    - `epsim whatif --fault lossy:npu3/plane2@1e-3 --ep 8 --op dispatch --trace lossy.html`
    - `epsim whatif --each rank-slow@0.8 --level flow --ep 32 --routing zipf:0.8`
    """
    options = case or CaseOptions()
    _check(options, fault, each, trace, plot)
    if each is not None:
        _print_each(options, each, json)
        return
    from epsim.files import write_files
    from epsim.report.whatif import changes_text
    from epsim.whatif import whatif as library_whatif

    changes = library_whatif(fault or [], **options.arguments(with_trace=trace is not None))
    files: list[tuple[str | Path, bytes | str]] = []
    if trace is not None:
        files.append(trace_file(changes[0].after, trace))
    if plot is not None:
        files.append((plot, _picture(changes, plot)))
    write_files(files)
    if json:
        print_json([dict(change.to_dict()) for change in changes])
        return
    print(changes_text(changes))
    for path, _ in files:
        print(f"wrote {path}")


def _check(
    options: CaseOptions, fault: list[str] | None, each: str | None, trace: Path | None, plot: Path | None
) -> None:
    from epsim.errors import InputError
    from epsim.files import check_outputs

    options.check(has_jitter=any(one.startswith("jitter") for one in fault or []))
    if (fault is None) == (each is None):
        given = "both" if fault else "neither"
        raise InputError("fault and each", given, "must be one of them, as --fault plane-lost:2")
    for name, path in (("trace", trace), ("plot", plot)):
        if each is not None and path is not None:
            raise InputError(name, str(path), "belongs to --fault")
    check_pictures(options.level, trace=(trace, (".json", ".html")))
    check_pictures("events", plot=(plot, (".png", ".svg")))
    check_outputs((trace, plot))
    check_one_trace(options, trace=trace)


def _print_each(options: CaseOptions, each: str, json: bool) -> None:
    from epsim.report.whatif import damages_text
    from epsim.whatif import whatif_each

    with progress("faults", has_lines=True) as on_progress:
        damages = whatif_each(each, on_progress=on_progress, **options.arguments())
    if not json:
        print(damages_text(damages))
        return
    print_json(
        [
            {
                "fault": str(damage.fault),
                "refusal": damage.refusal,
                "changes": [dict(change.to_dict()) for change in damage.changes],
            }
            for damage in damages
        ]
    )


def _picture(changes: "list[Change]", path: Path) -> bytes:
    from epsim.errors import MissingExtraError
    from epsim.report.whatif import ranks_plot

    try:
        return ranks_plot(changes, path.suffix.removeprefix("."))
    except ImportError as error:
        raise MissingExtraError(f"--plot needs matplotlib: pip install 'epsim[plot]' ({error})") from None
