"""`epsim sweep`: one question over a grid of parameters, into one file, resumable."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.progress import progress
from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.sweep import Plan, Sweep, Table
    from epsim.sweep.analysis import Objective

Flag = Parameter(negative="")
Several = Parameter(negative="")

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def sweep(
    plan: Annotated[Path | None, Parameter(help=".toml file with tables grid, zip, sample, seed")] = None,
    /,
    *,
    out: Annotated[Path, Parameter(help="table to write, .csv or .parquet (needs epsim[parquet])")],
    grid: Annotated[
        list[str] | None, Several, Parameter(help="NAME=VALUES, one axis; repeat for more; beats the file's")
    ] = None,
    together: Annotated[
        list[str] | None, Parameter(name="--zip", negative="", help="A+B, axes that walk together")
    ] = None,
    target: Annotated[
        Literal["predict", "simulate"] | None,
        Parameter(help="what is evaluated; without: predict, or what the file says"),
    ] = None,
    sample: Annotated[int | None, Whole, Parameter(help="draw so many points of the grid")] = None,
    seed: Annotated[int | None, Whole, Parameter(help="of the draw, with --sample; without: 0")] = None,
    engine: Annotated[
        Literal["local", "ray"], Parameter(help="processes here, or Ray (needs epsim[cluster])")
    ] = "local",
    jobs: Annotated[int | None, Whole, Parameter(help="processes; without: one per core")] = None,
    address: Annotated[
        str | None, Parameter(help="of a running Ray cluster, as auto; without: one here for this sweep")
    ] = None,
    objective: Annotated[
        list[str] | None,
        Several,
        Parameter(help="COLUMN, min:COLUMN or max:COLUMN; the first one ranks; without: time_us"),
    ] = None,
    plot_pareto: Annotated[
        Path | None, Parameter(help="picture of two objectives (.png, .svg, .pdf); needs epsim[plot]")
    ] = None,
    plot_sensitivity: Annotated[
        Path | None, Parameter(help="picture of what moves the first objective most")
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print the summary as JSON for programs")] = False,
) -> int:
    """Evaluate every point of a grid, write one table, and say which parameter moves the answer most.

    An axis is a parameter of the target, `set.NAME` for a number of a profile, or `topology.KEY` for a key of
    the system's cluster file. Both targets take system, model, ep, tokens, token_counts, operations, dtype,
    hidden, num_experts, num_topk, routing, seed, masked_ratio, hardware, software, workload, port_rate, npus.
    Only `predict`: expert_alignment, expert_map, draws, ranks_per_supernode, two_layer, num_buffer_bytes.
    Only `simulate`: level, policy, with_slope, grain, mode, fault.

    VALUES are separated by commas; ranges: `128..16384/x2` multiplies, `0..0.2/+0.05` adds,
    `1TB/s..4TB/s/lin4` and `8..128/log5` give so many values. One value fixes a parameter; group sizes and
    operations that are not said are those of `epsim predict` or `epsim simulate`.

    - `epsim sweep --grid ep=8,16,32 --grid set.hbm_rate=1.6TB/s,4TB/s --out hbm.csv`
    - `epsim sweep --grid tokens=128..16384/x2 --grid routing=uniform,zipf:0.8 --grid ep=64 --out t.csv`
    - `epsim sweep --grid topology.port_rate=200Gbps,400Gbps --grid model=v3 --out ports.parquet`
    - `epsim sweep plan.toml --sample 500 --jobs 2 --plot-sensitivity what.svg --out s.parquet`
    - `epsim sweep plan.toml --objective time_us --objective min:set.hbm_rate --plot-pareto f.png --out p.csv`
    - `epsim sweep --target simulate --grid level=flow --grid fault=plane-lost:2,rank-slow:3@0.5 --out f.csv`
    - `epsim sweep plan.toml --engine ray --address auto --out s.parquet`

    Finished points are kept in OUT.journal.jsonl, so the same command goes on after a kill or a full disk.
    Points that cannot be (16 experts on 32 ranks) are rows with status refused. Exit code 1 when all are, or
    when epsim fails on a point. docs/sweep.md has a worked example.
    """
    from epsim.files import check_outputs
    from epsim.report.sweep import sweep_json, sweep_text
    from epsim.sweep import make_plan, run_sweep
    from epsim.sweep.engines import SweepError
    from epsim.sweep.runner import check_output

    points = make_plan(_asked(plan, grid, together, target, sample, seed))
    objectives = _objectives(points, objective)
    pictures = _pictures(objectives, plot_pareto, plot_sensitivity)
    check_output(out)
    check_outputs([out, plot_pareto, plot_sensitivity])
    # Ray reads this one when it starts; nothing of a user's run is reported anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with progress("points", has_lines=True) as on_progress:
            table = run_sweep(
                points, out, engine=engine, jobs=jobs, address=address, on_progress=on_progress,
                more_files=pictures,
            )  # fmt: skip
    except SweepError as error:
        print(f"epsim: {error}\nepsim: finished points are saved; the same command goes on", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("epsim: interrupted; finished points are saved, the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(sweep_json(table, objectives) if json else sweep_text(table, objectives))
    has_answers = "ok" in table.column("status")
    if not json:
        for path in (out, plot_pareto, plot_sensitivity) if has_answers else (out,):
            if path is not None:
                print(f"wrote {path}")
    return 0 if has_answers else EXIT_FAILED


def _asked(
    path: Path | None,
    grid: list[str] | None,
    together: list[str] | None,
    target: str | None,
    sample: int | None,
    seed: int | None,
) -> "Sweep":
    """Return the sweep of the file with what the flags say instead."""
    from msgspec.structs import replace

    from epsim.cli.predict import parse_settings
    from epsim.errors import InputError
    from epsim.sweep import Sweep, read_sweep
    from epsim.sweep.plan import SEED_RULE, flat_grid
    from epsim.sweep.ranges import read_words

    asked = Sweep() if path is None else read_sweep(path)
    try:
        words = parse_settings(grid)
    except InputError as error:
        raise InputError("grid", error.value, error.rule.replace("VALUE", "VALUES")) from None
    if seed is not None and sample is None and asked.sample is None:
        raise InputError("seed", seed, SEED_RULE)
    axes = flat_grid(asked.grid) | {name: read_words(name, text) for name, text in words.items()}
    groups = [[name.strip() for name in group.split("+")] for group in together or []]
    return replace(
        asked,
        grid=axes,
        zip=groups or asked.zip,
        target=asked.target if target is None else target,
        sample=asked.sample if sample is None else sample,
        seed=asked.seed if seed is None else seed,
    )


def _objectives(points: "Plan", words: list[str] | None) -> "list[Objective]":
    """Read the objectives, and refuse before any work what the table will not have."""
    from epsim.sweep.analysis import check_objective, parse_objective

    found = [parse_objective(word) for word in words or ["time_us"]]
    for objective in found:
        check_objective(points, objective)
    return found


def _pictures(
    objectives: "list[Objective]", pareto: Path | None, tornado: Path | None
) -> "Callable[[Table], Sequence[tuple[str | Path, bytes | str]]]":
    """Check pictures before any work, and return what draws them."""
    from importlib.util import find_spec

    from epsim.errors import InputError, MissingExtraError

    suffixes = _suffix("plot-pareto", pareto), _suffix("plot-sensitivity", tornado)
    if pareto is not None and len(objectives) != 2:
        text = ", ".join(objective.text for objective in objectives)
        raise InputError("plot-pareto", str(pareto), f"needs two --objective, and there is {text}")
    if any(suffixes) and find_spec("matplotlib") is None:
        raise MissingExtraError("a picture needs matplotlib: pip install 'epsim[plot]'")

    def draw(table: "Table") -> "list[tuple[str | Path, bytes | str]]":
        from epsim.sweep.analysis import sensitivity
        from epsim.sweep.plots import pareto_plot, sensitivity_plot

        files: list[tuple[str | Path, bytes | str]] = []
        if "ok" not in table.column("status"):
            return files  # there is nothing to draw
        if pareto is not None:
            files.append((pareto, pareto_plot(table, objectives[0], objectives[1], suffixes[0])))
        if tornado is not None:
            files.append((tornado, sensitivity_plot(sensitivity(table, objectives[0].column), suffixes[1])))
        return files

    return draw


def _suffix(field: str, path: Path | None) -> str:
    from epsim.errors import InputError

    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(field, str(path), "must end in .png, .svg or .pdf")
    return "" if path is None else path.suffix.removeprefix(".")
