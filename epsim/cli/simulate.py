"""`epsim simulate`: the same question on the real links, as fluid or as discrete events."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from epsim.simulation import Simulation

Flag = Parameter(negative="")


def simulate(
    *,
    level: Annotated[
        Literal["flow", "events"],
        Parameter(help="flow: links shared fairly; events: cores, jetties, ports and switches in time"),
    ] = "events",
    system: Annotated[
        str, Parameter(help="preset (ubl128, clos:1024), cluster .toml, HCCL .json")
    ] = "ubl128",
    model: Annotated[str, Parameter(help="shape: benchmark, v3, v4-flash, v4-pro, v4.1-flash")] = "benchmark",
    ep: Annotated[str, Parameter(help="group sizes, separated by commas")] = "8",
    tokens: Annotated[int | None, Parameter(help="tokens per rank; without: 16384, or a file's own")] = None,
    stepped: Annotated[
        bool, Flag, Parameter(help="rank r sends r tokens fewer, as the published tests do")
    ] = False,
    op: Annotated[
        str, Parameter(help="dispatch, cached-dispatch, combine, separated by commas")
    ] = "dispatch,combine",
    dtype: Annotated[Literal["fp8", "bf16"], Parameter(help="of dispatch; combine is always bf16")] = "fp8",
    hidden: Annotated[int | None, Parameter(help="elements of a token, instead of the model's")] = None,
    experts: Annotated[int | None, Parameter(help="physical experts, instead of the model's")] = None,
    topk: Annotated[int | None, Parameter(help="choices of a token, instead of the model's")] = None,
    routing: Annotated[str, Parameter(help="uniform, zipf:1.1, lognormal:0.5, ..., or a file")] = "uniform",
    seed: Annotated[int, Parameter(help="of sampled routing and of the flow hash")] = 0,
    masked_ratio: Annotated[float, Parameter(help="chance that a choice is masked")] = 0.0,
    policy: Annotated[
        Literal["spray", "flow-hash", "pinned"], Parameter(help="path choice: per packet, per flow, per peer")
    ] = "spray",
    no_slope: Annotated[
        bool, Flag, Parameter(help="without the software's fitted fan-out loss: mechanism alone")
    ] = False,
    grain: Annotated[
        str, Parameter(help="events: packet, sqe (one descriptor), chunk (chosen), chunk:N descriptors")
    ] = "chunk",
    check_grain: Annotated[
        bool, Flag, Parameter(help="events: run once more with half the chunk and say what it changes")
    ] = False,
    exit_barrier: Annotated[
        Literal["exit", "epilogue"],
        Parameter(help="events: where the exit barrier is; the published figures have it at the exit"),
    ] = "exit",
    mode: Annotated[
        Literal["exact", "bounded"], Parameter(help="flow: exact, or faster with a bounded error")
    ] = "exact",
    epsilon: Annotated[float, Parameter(help="flow, bounded: step as a part of the elapsed time")] = 0.01,
    hardware: Annotated[str | None, Parameter(help="profile name or .toml file")] = None,
    software: Annotated[str | None, Parameter(help="profile name or .toml file")] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None,
    port_rate: Annotated[str | None, Parameter(help="rate of one port, for HCCL files")] = None,
    trace: Annotated[
        Path | None, Parameter(help="write the timeline: .json opens in Perfetto, .html in a browser")
    ] = None,
    plot: Annotated[Path | None, Parameter(help="write the timeline as a picture, .png or .svg")] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Simulate dispatch and combine on the real links.

    - `epsim simulate --ep 32 --op dispatch --routing zipf:0.8`
    - `epsim simulate --level flow --system clos:1024 --ep 256 --experts 1024 --op dispatch`
    - `epsim simulate --ep 8 --tokens 128 --trace decode.html`
    - `epsim simulate --ep 64 --no-slope --grain chunk:8`
    """
    from epsim.cli.predict import parse_numbers, parse_settings
    from epsim.schedule.grain import Grain
    from epsim.sim.run import EventOptions
    from epsim.simulate import FlowOptions
    from epsim.simulate import simulate as library_simulate

    _check(level, trace, plot, grain, check_grain, exit_barrier, mode)
    sizes, operations = parse_numbers("ep", ep), tuple(word.strip() for word in op.split(","))
    _check_one_trace(trace or plot, sizes, operations)
    chosen = Grain.parse(grain)

    def run(cut: Grain) -> "list[Simulation]":
        return library_simulate(
            system, level=level, model=model, ep=sizes, tokens=tokens,
            token_counts="stepped" if stepped else "equal",
            operations=operations,  # type: ignore[arg-type]  # the library checks them
            dtype=dtype, hidden=hidden, num_experts=experts, num_topk=topk, routing=routing, seed=seed,
            masked_ratio=masked_ratio, policy=policy, with_slope=not no_slope, hardware=hardware,
            software=software, settings=parse_settings(settings), port_rate=port_rate,
            flow=FlowOptions(mode=mode, epsilon=epsilon),
            events=EventOptions(grain=cut, exit_barrier=exit_barrier, with_trace=bool(trace or plot)),
        )  # fmt: skip

    result = run(chosen)
    _write(result[0], trace, plot)
    if json:
        from epsim.report_simulation import simulations_json

        print(simulations_json(result))
        return
    from epsim.report_simulation import simulations_text

    print(simulations_text(result))
    if check_grain:
        for item in result:
            half = Grain(kind="chunk", num_sqes=max(1, (item.num_sqes or 1) // 2))
            print(_grain_text(item, run(half)))
    for path in (trace, plot):
        if path is not None:
            print(f"wrote {path}")


def _check(
    level: str,
    trace: Path | None,
    plot: Path | None,
    grain: str,
    check_grain: bool,
    exit_barrier: str,
    mode: str,
) -> None:
    """Refuse options that would be ignored, and files of unknown kind, before any work."""
    from epsim.errors import InputError

    of_events: dict[str, object] = {"trace": trace, "plot": plot, "check-grain": check_grain or None}
    if level == "flow":
        of_events["grain"] = None if grain == "chunk" else grain
        of_events["exit-barrier"] = None if exit_barrier == "exit" else exit_barrier
        for name, value in of_events.items():
            if value is not None:
                raise InputError(name, str(value), "belongs to --level events")
    elif mode != "exact":
        raise InputError("mode", mode, "belongs to --level flow")
    for field, path, suffixes in (("trace", trace, (".json", ".html")), ("plot", plot, (".png", ".svg"))):
        if path is not None and path.suffix not in suffixes:
            raise InputError(field, str(path), f"must end in {' or '.join(suffixes)}")


def _check_one_trace(path: Path | None, sizes: tuple[int, ...], operations: tuple[str, ...]) -> None:
    from epsim.errors import InputError

    if path is not None and len(sizes) * len(operations) != 1:
        rule = "a timeline shows one run; name one group size and one operation"
        raise InputError("trace", str(path), rule)


def _write(item: "Simulation", trace: Path | None, plot: Path | None) -> None:
    """Write the timeline in the forms that were asked for, all files or none."""
    from epsim.errors import MissingExtraError
    from epsim.files import write_files

    files: list[tuple[str | Path, bytes | str]] = []
    if item.trace is not None and trace is not None:
        from epsim.trace.html import html_page
        from epsim.trace.perfetto import perfetto_json

        files.append((trace, html_page(item.trace) if trace.suffix == ".html" else perfetto_json(item.trace)))
    if item.trace is not None and plot is not None:
        try:
            from epsim.trace.plots import gantt_plot

            files.append((plot, gantt_plot(item.trace, plot.suffix.removeprefix("."))))
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
