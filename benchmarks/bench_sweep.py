"""Sweeps: what a grid costs beside the predictions in it, and what an engine costs to start."""

import itertools
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.bench_predict import fresh, timed
from epsim.predict import predict
from epsim.sweep import Sweep, make_plan, run_sweep
from epsim.sweep.journal import Journal, Record
from epsim.sweep.plan import MAX_POINTS

TOKENS = range(100, 20_100, 100)
SIZES = (8, 16, 32, 64, 128)
GRID = {"tokens": list(TOKENS), "ep": list(SIZES), "operations": "combine"}


def one_by_one():
    """Predict the points of the grid in a loop."""
    for tokens, ep in itertools.product(TOKENS, SIZES):
        predict(ep=ep, tokens=tokens, operations=("combine",))


def swept(folder, grid, **options):
    """Run one sweep into a folder, plan included."""
    return run_sweep(make_plan(Sweep(grid=grid)), Path(folder) / "t.csv", **options)


def resumed(folder, num_points):
    """Write the journal of a finished sweep, and return the seconds from there to the table."""
    grid = {"tokens": f"1..{num_points // 8}/+1", "ep": "1..8/+1", "operations": "combine"}
    plan = make_plan(Sweep(grid=grid))
    cells = [1.0 / 3 if kind == "float" else None for kind in plan.target.columns.values()]
    with Journal(Path(folder) / "t.csv", plan) as journal:
        journal.append(
            [
                Record(point=point, digest=plan.point_digest(point), status="ok", cells=cells, message="")
                for point in plan.point_ids
            ]
        )
    return timed(lambda: run_sweep(plan, Path(folder) / "t.csv"))[0]


def run():
    """Yield (name, value, target) rows."""
    predict(ep=8)
    with tempfile.TemporaryDirectory() as folder:
        yield "1,000 predictions in a loop (s)", timed(one_by_one)[0], ""
        yield (
            "sweep of the same 1,000 points, one process (s)",
            timed(lambda: swept(folder, GRID, jobs=1))[0],
            "",
        )
        yield (
            "the same, two processes, their start included (s)",
            timed(lambda: swept(folder, GRID, jobs=2))[0],
            "",
        )
        if find_spec("ray"):
            seconds, _ = timed(lambda: swept(folder, GRID, jobs=2, engine="ray"))
            yield "the same on Ray, the start of its cluster included (s)", seconds, ""
        words = ("-m", "epsim", "sweep", "--grid", "ep=8,16,32", "--out", f"{folder}/cold.csv")
        yield "epsim sweep of six points, cold (s)", fresh(*words), ""
        yield f"{MAX_POINTS:,} finished points, journal to table (s)", resumed(folder, MAX_POINTS), ""
