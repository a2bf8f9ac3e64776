"""`epsim simulate`: the same question on the real links, as fluid or as discrete events."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.caseoptions import CaseOptions, Flag, check_one_trace, check_pictures, trace_file

if TYPE_CHECKING:
    from epsim.schedule.grain import Grain
    from epsim.simulation import Simulation


def simulate(
    *,
    case: Annotated[CaseOptions | None, Parameter(help="case")] = None,
    check_grain: Annotated[
        bool, Flag, Parameter(help="events: run once more with half the chunk and say what it changes")
    ] = False,
    exit_barrier: Annotated[
        Literal["exit", "epilogue"],
        Parameter(help="events: where the exit barrier is; the published figures have it at the exit"),
    ] = "exit",
    trace: Annotated[
        Path | None, Parameter(help="write the timeline: .json opens in Perfetto, .html in a browser")
    ] = None,
    plot: Annotated[
        Path | None,
        Parameter(help="picture of the first ranks' timeline, .png or .svg; --trace .html has all"),
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Simulate dispatch and combine on the real links.

    - `epsim simulate --ep 32 --op dispatch --routing zipf:0.8`
    - `epsim simulate --level flow --system clos:1024 --ep 256 --experts 1024 --op dispatch`
    - `epsim simulate --ep 8 --tokens 128 --trace decode.html`
    - `epsim simulate --ep 64 --no-slope --grain chunk:8`
    """
    from epsim.schedule.grain import Grain
    from epsim.simulate import simulate as library_simulate

    options = case or CaseOptions()
    _check(options, trace, plot, check_grain, exit_barrier, json)

    def run(cut: "Grain | None" = None) -> "list[Simulation]":
        with_trace = bool(trace or plot)
        return library_simulate(
            **options.arguments(grain=cut, exit_barrier=exit_barrier, with_trace=with_trace)
        )

    result = run()
    _write(result[0], trace, plot)
    if json:
        from epsim.report.simulation import simulations_json

        print(simulations_json(result))
        return
    from epsim.report.simulation import simulations_text

    print(simulations_text(result))
    if check_grain:
        for item in result:
            half = Grain(kind="chunk", num_sqes=max(1, (item.num_sqes or 1) // 2))
            print(_grain_text(item, run(half)))
    for path in (trace, plot):
        if path is not None:
            print(f"wrote {path}")


def _check(
    options: CaseOptions,
    trace: Path | None,
    plot: Path | None,
    check_grain: bool,
    exit_barrier: str,
    json: bool,
) -> None:
    """Refuse options that would be ignored, and files of unknown kind, before any work."""
    from epsim.errors import InputError

    options.check()
    check_pictures(options.level, trace=(trace, (".json", ".html")), plot=(plot, (".png", ".svg")))
    of_events = {"check-grain": ("yes", check_grain), "exit-barrier": (exit_barrier, exit_barrier != "exit")}
    for name, (value, is_given) in of_events.items():
        if options.level == "flow" and is_given:
            raise InputError(name, value, "belongs to --level events")
    if check_grain and json:
        raise InputError("check-grain", "with --json", "is a sentence for people; run --grain chunk:N twice")
    check_one_trace(options, trace=trace, plot=plot)


def _write(item: "Simulation", trace: Path | None, plot: Path | None) -> None:
    """Write the timeline in the forms that were asked for, all files or none."""
    from epsim.errors import MissingExtraError
    from epsim.files import write_files

    files: list[tuple[str | Path, bytes | str]] = []
    if item.trace is not None and trace is not None:
        files.append(trace_file(item, trace))
    if item.trace is not None and plot is not None:
        try:
            from epsim.trace.plots import gantt_plot, readable_groups

            groups = readable_groups(item.trace)
            files.append((plot, gantt_plot(item.trace, plot.suffix.removeprefix("."), groups=groups)))
        except ImportError as error:
            raise MissingExtraError(f"--plot needs matplotlib: pip install 'epsim[plot]' ({error})") from None
    write_files(files)


def _grain_text(item: "Simulation", finer: "list[Simulation]") -> str:
    other = next(f for f in finer if (f.ep_size, f.operation) == (item.ep_size, item.operation))
    change = other.time_us / item.time_us - 1
    return (
        f"grain, {item.operation} EP{item.ep_size}: half the chunk ({other.method}) gives "
        f"{other.time_us:,.1f} us, {change:+.2%}"
    )
