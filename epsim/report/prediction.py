"""Results as tables for people: plain text and HTML. The only formatter of predictions."""

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epsim.model.closedform import TERMS
from epsim.prediction import Prediction

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published range to stand beside a prediction.

    Args:
      gb_per_s_min: lower end.
      gb_per_s_max: upper end.
      source: document.
    """

    gb_per_s_min: float
    gb_per_s_max: float
    source: str

    def verdict(self, item: Prediction) -> str:
        """Say whether the predicted mean lies inside, else how far it is from the nearer end."""
        mean = item.gb_per_s_mean
        if self.gb_per_s_min <= mean <= self.gb_per_s_max:
            return "inside"
        end = self.gb_per_s_min if mean < self.gb_per_s_min else self.gb_per_s_max
        return f"{mean / end - 1:+.1%}"


PublishedRanges = Mapping[tuple[str, int], Published]
"""(operation, ep_size) -> range."""

TERM_TITLES = {
    "wire": "wire",
    "fanout": "fan-out",
    "scaleout": "scale-out",
    "fetch": "HBM fetch",
    "reduction": "sums",
    "issue": "posting",
    "staging": "staging",
    "fixed": "fixed",
    "imbalance": "imbalance",
}

SKEW_WORTH_SAYING = 1.05
"""Peak over mean above which the table says so; uniform routing of thousands of tokens stays below 1.02."""


def predictions_text(items: Sequence[Prediction], published: PublishedRanges | None = None) -> str:
    """Return the bandwidth table, the time split and what they rest on, as plain text.

    Args:
      items: predictions.
      published: ranges to print beside them.
    """
    if not items:
        return "no predictions"
    parts = [_header(items), render_table(_bandwidths(items, published)), render_table(_times(items))]
    return "\n".join([*parts, *_notes(items, published)])


def predictions_html(items: Sequence[Prediction]) -> str:
    """Return the bandwidth table as HTML, for a notebook."""
    table = _bandwidths(items, None)
    head = "".join(f"<th>{html.escape(str(column.header))}</th>" for column in table.columns)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*cells, strict=True)
    )
    title = html.escape(_header(items))
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in _notes(items, None))
    return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def _header(items: Sequence[Prediction]) -> str:
    first = items[0]
    routings = list(dict.fromkeys(item.routing for item in items))
    routing = routings[0] if len(routings) == 1 else f"routing {routings[0].split(' ')[0]}, see below"
    tokens = " or ".join(f"{count:,}" for count in sorted({item.tokens_per_rank for item in items}))
    return (
        f"{first.system}, {first.hardware} with {first.software}: {tokens} tokens per rank, "
        f"hidden {first.hidden}, top-{first.num_topk} of {first.num_experts}, {routing}"
    )


def _bandwidths(items: Sequence[Prediction], published: PublishedRanges | None) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title="logical GB/s per rank, own rank included",
        title_justify="left",
    )
    table.add_column("limited\nby", no_wrap=True)
    table.add_column("operation", no_wrap=True)
    for title in ("EP", "min", "mean", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    if published is not None:
        table.add_column("published\nrange", justify="right", no_wrap=True)
        table.add_column("mean\nis", no_wrap=True)
    table.add_column("time\nus", justify="right", no_wrap=True)
    table.add_column("wire\nGB/s", justify="right", no_wrap=True)
    table.add_column("of\nlimit", justify="right", no_wrap=True)
    table.add_column("binding", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    for item in items:
        table.add_row(*_bandwidth_cells(item, published))
    return table


def _bandwidth_cells(item: Prediction, published: PublishedRanges | None) -> list[str]:
    band = "" if item.error_band is None else f" ±{item.error_band:.0%}"
    cells = [
        item.bound.removesuffix("-limited"),
        f"{item.operation} {item.dtype.upper()}",
        str(item.ep_size),
        *(f"{value:.4g}" if value < 100 else f"{value:.1f}" for value in _triple(item)),
    ]
    if published is not None:
        known = published.get((item.operation, item.ep_size))
        cells += (
            ["-", "-"]
            if known is None
            else [f"{known.gb_per_s_min:g}-{known.gb_per_s_max:g}", known.verdict(item)]
        )
    share = "-" if item.payload_share is None else f"{item.payload_share:.1%}"
    return [
        *cells,
        f"{item.time_us:,.1f}",
        f"{item.wire_gb_per_s:.1f}",
        share,
        item.binding,
        item.confidence + band,
    ]


def _triple(item: Prediction) -> tuple[float, float, float]:
    return item.gb_per_s_min, item.gb_per_s_mean, item.gb_per_s_max


def _times(items: Sequence[Prediction]) -> "Table":
    from rich import box
    from rich.table import Table

    shown = [name for name in TERMS if any(abs(item.terms_us[name]) >= 0.05 for item in items)]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title="time split, us",
        title_justify="left",
    )
    table.add_column("operation", no_wrap=True)
    table.add_column("EP", justify="right")
    for name in shown:
        table.add_column(TERM_TITLES[name], justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    table.add_column("epilogue*", justify="right", no_wrap=True)
    for item in items:
        split = (f"{item.terms_us[name]:,.1f}" for name in shown)
        table.add_row(
            item.operation, str(item.ep_size), *split, f"{item.time_us:,.1f}", f"{item.epilogue_us:,.0f}"
        )
    return table


def _notes(items: Sequence[Prediction], published: PublishedRanges | None) -> list[str]:
    """Say validity, assumptions, limits and sources, each once."""
    limit = items[0].payload_limit_gb_per_s
    lines = [f"payload limit of the scale-up ports: {limit:.1f} GB/s per card and direction"]
    lines.append("* after the exit barrier, memory traffic alone, outside the metric, not calibrated")
    scaleouts = [
        f"EP{i.ep_size} {i.operation} {i.scaleout_gb_per_s:.1f}" for i in items if i.scaleout_gb_per_s
    ]
    if scaleouts:
        counted = "distinct (token, supernode) rows, the own supernode's included"
        lines.append(f"scale-out metric, GB/s of {counted}: {', '.join(scaleouts)}")
    routings = dict.fromkeys((item.ep_size, item.routing) for item in items)
    if len({routing for _, routing in routings}) > 1:
        lines.append("routing: " + ", ".join(f"EP{size} {routing}" for size, routing in routings))
    skewed = {item.ep_size: item.peak_over_mean for item in items if item.peak_over_mean > SKEW_WORTH_SAYING}
    if skewed:
        peaks = ", ".join(f"EP{size} {peak:.2f}x" for size, peak in skewed.items())
        lines.append(f"busiest rank receives, of the mean: {peaks}; it sets the time of all")
    for text in dict.fromkeys(item.validity for item in items):
        lines.append(f"evidence: {text}")
    for text in dict.fromkeys(text for item in items for text in item.assumptions):
        lines.append(f"assumes: {text}")
    for item in items:
        for hit in item.limits:
            lines.append(f"{hit.severity}, EP{item.ep_size}: {hit.field} {hit.value:,} {hit.rule}")
    buffers = {item.ep_size: item.buffer_bytes for item in items if item.buffer_bytes}
    if buffers:
        needs = ", ".join(f"EP{size} {num_bytes / 1e9:.2f}" for size, num_bytes in buffers.items())
        lines.append(f"buffer needed per card, GB: {needs}")
    if published is not None and not published:
        lines.append("published: no measurement of this system, shape, dtype and token count")
    if published:
        for source in dict.fromkeys(known.source for known in published.values()):
            lines.append(f"published: {source}")
    return list(dict.fromkeys(lines))


def render_table(table: "Table", width: int = 240) -> str:
    """Render without colour codes, so that text in files and pipes is plain.

    A table takes only the width that it needs; the limit is for columns that wrap.
    """
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n")) + "\n"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 160) -> str:
    """Return a table of texts; the last column may wrap."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, overflow="fold")
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    return render_table(table, width)
