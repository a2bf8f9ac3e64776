"""`epsim simulate`: the same question on the real links, as fluid or as discrete events."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import Parameter

from epsim.cli.caseoptions import CaseOptions, Flag, check_one_trace, check_pictures, trace_file
from epsim.cli.progress import progress

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
        Parameter(help="picture of the slowest ranks' timeline, .png or .svg; --trace .html has all"),
    ] = None,
    plot_links: Annotated[
        Path | None,
        Parameter(help="picture of how full the busiest links are over time, .png or .svg"),
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Simulate dispatch and combine on the real links, for one group of up to 4,096 ranks.

    For many groups at once, or one exchange among up to 262,144 cards, see `epsim cluster`.

    - `epsim simulate --ep 32 --op dispatch --routing zipf:0.8`
    - `epsim simulate --level flow --system clos:1024 --ep 256 --experts 1024 --op dispatch`
    - `epsim simulate --ep 8 --tokens 128 --trace decode.html`
    - `epsim simulate --ep 8 --op dispatch --plot ranks.png --plot-links links.png`
    - `epsim simulate --ep 16 --npus 0:128:8 --op combine`
    - `epsim simulate --ep 64 --no-slope --grain chunk:8`
    """
    from epsim.schedule.grain import Grain
    from epsim.simulate import simulate as library_simulate

    options, files = case or CaseOptions(), _Files(trace, plot, plot_links)
    _check(options, files, check_grain, exit_barrier, json)

    def run(cut: "Grain | None" = None) -> "list[Simulation]":
        arguments = options.arguments(grain=cut, exit_barrier=exit_barrier, with_trace=bool(files.paths))
        with progress(_counted(options), is_share=True, is_quiet=json) as on_progress:
            return library_simulate(on_progress=on_progress, **arguments)

    result = run()
    _write(result[0], files)
    if json:
        from epsim.report.simulation import simulations_json

        print(simulations_json(result))
        return
    from epsim.report.simulation import simulations_text

    print(simulations_text(result))
    if check_grain:
        for item in result:
            half = Grain(kind="chunk", num_sqes=max(1, (item.num_descriptors_per_chunk or 1) // 2))
            print(_grain_text(item, run(half)))
    for path in files.paths:
        print(f"wrote {path}")


def _counted(options: CaseOptions) -> str:
    """Name what progress counts, with a hint where it will take long."""
    if options.level == "events":
        return "bytes"
    # All pairs of 257 ranks are more than the flows that mode auto solves exactly.
    is_long = options.mode == "exact" and max(options.sizes) > 256
    return "flows (--mode bounded takes seconds)" if is_long else "flows"


class _Files(NamedTuple):
    """Files to write, None = not asked for."""

    trace: Path | None
    plot: Path | None
    plot_links: Path | None

    @property
    def paths(self) -> list[Path]:
        """Those asked for."""
        return [path for path in self if path is not None]


def _check(options: CaseOptions, files: _Files, check_grain: bool, exit_barrier: str, json: bool) -> None:
    """Refuse options that would be ignored, and files that cannot be, before any work."""
    from importlib.util import find_spec

    from epsim.errors import InputError, MissingExtraError

    options.check()
    pictures = (".png", ".svg")
    check_pictures(
        options.level,
        trace=(files.trace, (".json", ".html")),
        plot=(files.plot, pictures),
        plot_links=(files.plot_links, pictures),
    )
    of_events = {"check-grain": ("yes", check_grain), "exit-barrier": (exit_barrier, exit_barrier != "exit")}
    for name, (value, is_given) in of_events.items():
        if options.level == "flow" and is_given:
            raise InputError(name, value, "belongs to --level events")
    if check_grain and json:
        raise InputError("check-grain", "with --json", "is a sentence for people; run --grain chunk:N twice")
    check_one_trace(options, **files._asdict())
    if (files.plot or files.plot_links) and find_spec("matplotlib") is None:
        raise MissingExtraError("a picture needs matplotlib: pip install 'epsim[plot]'")


def _write(item: "Simulation", wanted: _Files) -> None:
    """Write the timeline in the forms that were asked for, all files or none."""
    from epsim.files import write_files

    files: list[tuple[str | Path, bytes | str]] = []
    if item.trace is not None and wanted.trace is not None:
        files.append(trace_file(item, wanted.trace))
    if item.trace is not None and wanted.plot is not None:
        from epsim.trace.plots import gantt_plot, readable_tracks

        slowest = (-item.ranks.finish_us).argsort(kind="stable").tolist()
        suffix = wanted.plot.suffix.removeprefix(".")
        tracks = readable_tracks(item.trace, [f"rank {rank}" for rank in slowest])
        files.append((wanted.plot, gantt_plot(item.trace, suffix, tracks=tracks)))
    if item.trace is not None and wanted.plot_links is not None:
        from epsim.trace.plots import links_plot, readable_links

        suffix, labels = wanted.plot_links.suffix.removeprefix("."), readable_links(item.trace)
        files.append((wanted.plot_links, links_plot(item.trace, suffix, labels=labels)))
    write_files(files)


def _grain_text(item: "Simulation", finer: "list[Simulation]") -> str:
    other = next(f for f in finer if (f.ep_size, f.operation) == (item.ep_size, item.operation))
    change = other.time_us / item.time_us - 1
    return (
        f"grain, {item.operation} EP{item.ep_size}: half the chunk ({other.method}) gives "
        f"{other.time_us:,.1f} us, {change:+.2%}"
    )
