"""Pictures of predictions (extra `plot`)."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epsim.model.closedform import TERMS
from epsim.prediction import Prediction
from epsim.report.prediction import TERM_TITLES, PublishedRanges

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "wire": "#4477aa",
    "fanout": "#66ccee",
    "scaleout": "#0b3c5d",
    "fetch": "#228833",
    "reduction": "#ccbb44",
    "issue": "#ee6677",
    "staging": "#aa3377",
    "fixed": "#bbbbbb",
    "imbalance": "#555555",
}
"""A colour-blind safe set, one per term."""

SERIES = ("#4477aa", "#ee6677", "#228833")


def predictions_plot(
    items: Sequence[Prediction], suffix: str, published: PublishedRanges | None = None
) -> bytes:
    """Draw bandwidth over group size with ranges, and the time split below.

    Args:
      items: predictions.
      suffix: png, svg or pdf.
      published: ranges to draw as bars beside the predictions.

    Returns:
      the file; equal inputs give equal bytes for png and svg.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_bandwidth(top, items, published)
    _draw_times(bottom, items)
    first = items[0]
    figure.suptitle(
        f"{first.system}, {first.hardware} with {first.software}\n{first.tokens_per_rank:,} tokens per rank, "
        f"hidden {first.hidden}, top-{first.num_topk} of {first.num_experts}",
        fontsize=11,
    )
    evidence = ", ".join(dict.fromkeys(item.confidence for item in items))
    routings = ", ".join(dict.fromkeys(item.routing for item in items))
    figure.supxlabel(f"{evidence}; routing {routings}", fontsize=8)
    out = io.BytesIO()
    # Without a fixed salt and date, SVG ids and metadata would differ between runs.
    with mpl.rc_context({"svg.hashsalt": "epsim"}):
        figure.savefig(out, format=suffix, dpi=130, metadata={"Date": None} if suffix == "svg" else None)
    return out.getvalue()


def _draw_bandwidth(axes: "Axes", items: Sequence[Prediction], published: PublishedRanges | None) -> None:
    sizes = sorted({item.ep_size for item in items})
    place = {size: index for index, size in enumerate(sizes)}
    for number, operation in enumerate(dict.fromkeys(item.operation for item in items)):
        mine = sorted((item for item in items if item.operation == operation), key=lambda item: item.ep_size)
        x = [place[item.ep_size] + 0.06 * number for item in mine]
        mean = [item.gb_per_s_mean for item in mine]
        low = [item.gb_per_s_mean - item.gb_per_s_min for item in mine]
        high = [item.gb_per_s_max - item.gb_per_s_mean for item in mine]
        colour = SERIES[number % len(SERIES)]
        label = f"{operation} {mine[0].dtype.upper()}, predicted min..max over ranks"
        axes.errorbar(x, mean, yerr=[low, high], fmt="o-", capsize=4, color=colour, label=label)
        _draw_published(axes, published, operation, place, colour)
    axes.axhline(items[0].payload_limit_gb_per_s, color="#888888", linestyle=":", linewidth=1)
    axes.annotate(
        "payload limit of the ports (a logical figure counts the own rank too, and may pass it)",
        (0.99, items[0].payload_limit_gb_per_s),
        xycoords=("axes fraction", "data"),
        fontsize=8,
        color="#555555",
        va="bottom",
        ha="right",
    )
    axes.set_xticks(range(len(sizes)), [f"EP{size}" for size in sizes])
    axes.set_ylabel("logical GB/s per rank")
    axes.set_ylim(0, 1.08 * max(axes.get_ylim()[1], items[0].payload_limit_gb_per_s))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")


def _draw_published(
    axes: "Axes", published: PublishedRanges | None, operation: str, place: dict[int, int], colour: str
) -> None:
    known = [
        (place[size], r) for (op, size), r in (published or {}).items() if op == operation and size in place
    ]
    for index, (x, measured) in enumerate(known):
        low = measured.gb_per_s_min
        height = max(measured.gb_per_s_max - low, 0.5)
        label = f"{operation}, published range" if index == 0 else None
        axes.bar(x - 0.12, height, 0.12, bottom=low, color=colour, alpha=0.45, label=label)


def _draw_times(axes: "Axes", items: Sequence[Prediction]) -> None:
    labels = [f"{item.operation}\nEP{item.ep_size}" for item in items]
    base = [0.0] * len(items)
    for name in TERMS:
        values = [item.terms_us[name] / 1000 for item in items]
        if any(value >= 1e-4 for value in values):
            axes.bar(labels, values, 0.7, bottom=base, color=COLOURS[name], label=TERM_TITLES[name])
            base = [b + v for b, v in zip(base, values, strict=True)]
    axes.set_ylabel("time, ms")
    axes.tick_params(axis="x", labelsize=7)
    axes.legend(fontsize=8, ncols=4)
    axes.grid(axis="y", alpha=0.3)
