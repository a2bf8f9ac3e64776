"""Pictures of a sweep (extra `plot`): the front of two objectives, and what moves the answer most."""

import io
from typing import TYPE_CHECKING, Any

from epsim.sweep.analysis import Objective, Sensitivity, pareto_front
from epsim.sweep.table import Table, as_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOW, HIGH, GREY = "#4477aa", "#ee6677", "#bbbbbb"
"""Two of a colour-blind safe set, and what stays behind."""

MAX_LABELS = 12
MAX_BARS = 20


def pareto_plot(table: Table, first: Objective, second: Objective, suffix: str) -> bytes:
    """Draw all points over two objectives, and the ones that no other beats.

    Args:
      table: of the sweep.
      first: objective of the x axis.
      second: objective of the y axis.
      suffix: png, svg or pdf.

    Returns:
      the file; equal tables give equal bytes for png and svg.

    Raises:
      ImportError: matplotlib is not installed.
      InputError: a column holds words.
    """
    from matplotlib.ticker import EngFormatter

    figure, axes = _figure(6)
    x, y = table.numbers(first.column), table.numbers(second.column)
    front = pareto_front(table, (first, second))
    axes.scatter(x, y, s=14, color=GREY, label=f"all {len(x)} points")
    axes.plot(x[front], y[front], "o-", color=LOW, markersize=5, label=f"not beaten: {len(front)}")
    for row in front[:: max(1, -(-len(front) // MAX_LABELS))]:
        axes.annotate(
            _point_text(table, row), (x[row], y[row]), xytext=(5, 5), textcoords="offset points", fontsize=7
        )
    for axis, objective in ((axes.xaxis, first), (axes.yaxis, second)):
        axis.set_label_text(_title(objective))
        if unit := _unit(table, objective):
            axis.set_major_formatter(EngFormatter(unit))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _bytes(figure, suffix)


def sensitivity_plot(found: Sensitivity, suffix: str) -> bytes:
    """Draw one bar per axis, from the smallest to the largest mean answer: the widest moves it most.

    Args:
      found: effects, the largest first; at most `MAX_BARS` are drawn.
      suffix: png, svg or pdf.

    Returns:
      the file; equal effects give equal bytes for png and svg.

    Raises:
      ImportError: matplotlib is not installed.
    """
    effects = [effect for effect in found.effects if not effect.note][:MAX_BARS]
    figure, axes = _figure(1.6 + 0.5 * max(2, len(effects)))
    for place, effect in enumerate(effects):
        known = [
            (mean, level) for mean, level in zip(effect.means, effect.levels, strict=True) if mean == mean
        ]
        (low, low_level), (high, high_level) = min(known), max(known)
        axes.barh(place, found.mean - low, left=low, color=LOW, height=0.6)
        axes.barh(place, high - found.mean, left=found.mean, color=HIGH, height=0.6)
        axes.annotate(low_level, (low, place), (-3, 0), textcoords="offset points", **_label("right"))
        axes.annotate(high_level, (high, place), (3, 0), textcoords="offset points", **_label("left"))
    axes.axvline(found.mean, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(effects)), [effect.name for effect in effects])
    axes.invert_yaxis()
    axes.use_sticky_edges = False  # else the margin, where the labels stand, would end at the widest bar
    axes.margins(x=0.15)
    how = "average" if found.is_average else "fit"
    axes.set_xlabel(f"{found.column}: {how} over {found.num_used} of {found.num_points} points")
    axes.grid(axis="x", alpha=0.3)
    return _bytes(figure, suffix)


def _label(side: str) -> dict[str, Any]:
    return {"fontsize": 7, "ha": side, "va": "center"}


def _title(objective: Objective) -> str:
    return f"{objective.column} ({'less' if objective.sense == 'min' else 'more'} is better)"


def _unit(table: Table, objective: Objective) -> str:
    """Return the unit of an axis whose values are texts such as 4TB/s; "" elsewhere, as names say theirs."""
    return as_quantity(next(iter(table.column(objective.column))))[1]


def _point_text(table: Table, row: int) -> str:
    """Name a point by the axes that vary."""
    plan = table.plan
    varied = {
        name: value for name, value in plan.values(plan.point_ids[row]).items() if len(plan.axes[name]) > 1
    }
    return " ".join(str(value) for value in varied.values())


def _figure(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _bytes(figure: "Figure", suffix: str) -> bytes:
    import matplotlib as mpl

    out = io.BytesIO()
    # Without a fixed salt and date, SVG ids and metadata would differ between runs.
    with mpl.rc_context({"svg.hashsalt": "epsim"}):
        figure.savefig(out, format=suffix, dpi=130, metadata={"Date": None} if suffix == "svg" else None)
    return out.getvalue()
