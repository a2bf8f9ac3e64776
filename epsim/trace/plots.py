"""A timeline as PNG or SVG (extra `plot`): what each resource did, and how full each link was."""

import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from epsim.errors import InputError
from epsim.trace.colours import phase_colours, phase_order
from epsim.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 96
"""Rows that stay readable on one picture."""
_AIV = re.compile(r"AIV \d+")  # the tracks of which a group has many
_NUM_COLUMNS = 1600  # about the pixels of a picture: what is closer than that is joined
_UNITS = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps"))


def gantt_plot(trace: Trace, suffix: str, *, tracks: Sequence[int] | None = None) -> bytes:
    """Draw a row per resource, a colour per phase, over time; it says how much is left out.

    Args:
      trace: with at least one span.
      suffix: png or svg.
      tracks: those to show, the topmost first, as positions in `trace.tracks`; None = all.

    Returns:
      the file; equal traces give equal bytes.

    Raises:
      InputError: a track is unknown, nothing or more than MOST_ROWS rows are left, or another suffix.
      ImportError: matplotlib is not installed.
    """
    from matplotlib.patches import Patch

    tracks = _checked(trace, range(len(trace.tracks)) if tracks is None else tracks)
    figure = _figure(1.6 + 0.2 * len(tracks), suffix)
    axes = figure.subplots()
    size, unit = _unit(trace.last_end_ps)
    colours, order = phase_colours(trace), phase_order(trace)
    joined = _joined(trace, tracks)
    for phase in order:
        for row, phase_spans in enumerate(joined):
            if bars := phase_spans.get(phase):
                scaled = [(start / size, (end - start) / size) for start, end in bars]
                axes.broken_barh(scaled, (row - 0.4, 0.8), color=colours[phase], linewidth=0)
    axes.set_yticks(range(len(tracks)), [" ".join(trace.tracks[track]) for track in tracks], fontsize=7)
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    _finish(figure, axes, trace, f"time, {unit}", trace.last_end_ps / size)
    if len(tracks) < len(trace.tracks):
        axes.set_title(_left_out(trace, tracks), fontsize=8, loc="left")
    patches = [Patch(color=colours[phase], label=trace.names[phase]) for phase in order]
    figure.legend(handles=patches, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return _bytes(figure, suffix)


def links_plot(trace: Trace, suffix: str, *, labels: tuple[str, ...] | None = None) -> bytes:
    """Draw the utilisation of each link over time.

    Args:
      trace: with the load of its links.
      suffix: png or svg.
      labels: links to show, as in `trace.links.labels`; None = all.

    Returns:
      the file; equal traces give equal bytes.

    Raises:
      InputError: the trace has no load of links, a label is unknown, none or more than MOST_ROWS of them
        are left, or another suffix.
      ImportError: matplotlib is not installed.
    """
    links = trace.links
    if links is None:
        raise InputError("links", None, "must be known to draw them")
    shown = links.labels if labels is None else labels
    for label in shown:
        if label not in links.labels:
            raise InputError("links", label, "must be a link of the trace")
    if not 0 < len(shown) <= MOST_ROWS:
        rule = f"must be 1..{MOST_ROWS} to be readable; see the HTML page"
        raise InputError("links", len(shown), rule)
    used = links.utilisation[[links.labels.index(label) for label in shown]]
    figure = _figure(1.9 + 0.2 * len(shown), suffix)
    axes = figure.subplots()
    size, unit = _unit(int(links.edges_ps[-1]))
    rows = np.arange(len(shown) + 1) - 0.5
    edges = links.edges_ps / size
    mesh = axes.pcolormesh(edges, rows, used, cmap="cividis", vmin=0, vmax=1, rasterized=True)
    axes.set_yticks(range(len(shown)), shown, fontsize=7)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    _finish(figure, axes, trace, f"time, {unit}", float(edges[-1]))
    figure.colorbar(mesh, ax=axes, label="share of capacity", pad=0.01)
    return _bytes(figure, suffix)


def readable_links(trace: Trace) -> tuple[str, ...]:
    """Return the links that fit one picture, in their order: the fullest ones over the whole time."""
    links = trace.links
    if links is None:
        return ()
    share = links.carried_bytes.sum(axis=1) / links.capacity_bytes_per_s
    fullest = np.sort(np.argsort(-share, kind="stable")[:MOST_ROWS])
    return tuple(links.labels[idx] for idx in fullest.tolist())


def readable_tracks(trace: Trace, groups: Iterable[str]) -> tuple[int, ...]:
    """Choose the tracks that fit one picture.

    As many groups as have room for all that is no AIV and for one AIV; in what is left, each group shows its
    AIVs that end last.

    Args:
      trace: the timeline.
      groups: the most interesting first.

    Returns:
      positions in `trace.tracks`, group by group, in the order of `groups`.
    """
    ends = np.zeros(len(trace.tracks), np.int64)
    np.maximum.at(ends, trace.track, trace.end_ps)
    mine: dict[str, tuple[list[int], list[int]]] = {group: ([], []) for group in groups}
    for track, (group, name) in enumerate(trace.tracks):
        if group in mine:
            mine[group][_AIV.fullmatch(name) is not None].append(track)
    least = max((len(others) + bool(aivs) for others, aivs in mine.values()), default=1)
    shown = list(mine.values())[: max(1, MOST_ROWS // max(1, least))]
    room = MOST_ROWS // max(1, len(shown))
    found: list[int] = []
    for others, aivs in shown:
        slowest = sorted(aivs, key=lambda track: (-ends[track], track))[: max(0, room - len(others))]
        found += sorted(slowest) + others[:room]
    return tuple(found)


def _left_out(trace: Trace, tracks: Sequence[int]) -> str:
    """Say how much of a timeline is on the picture."""
    shown, every = {trace.tracks[track][0] for track in tracks}, trace.groups
    word = "ranks" if all(group.startswith("rank ") for group in every) else "groups"
    return (
        f"shown: {len(shown)} of {len(every)} {word}, {len(tracks)} of {len(trace.tracks)} rows; the others "
        "are left out (a timeline in HTML has all)"
    )


def _checked(trace: Trace, tracks: Sequence[int]) -> list[int]:
    for track in tracks:
        if not 0 <= track < len(trace.tracks):
            raise InputError("tracks", track, f"the trace has tracks 0..{len(trace.tracks) - 1}")
    if not 0 < len(tracks) <= MOST_ROWS:
        raise InputError("rows", len(tracks), f"must be 1..{MOST_ROWS} to be readable; choose tracks")
    if not trace.num_spans:
        raise InputError("trace", "no span", "must hold at least one span to be drawn")
    return list(tracks)


def _joined(trace: Trace, tracks: list[int]) -> list[dict[int, list[tuple[int, int]]]]:
    """Return per track and phase its (start, end), those closer than a column of the picture joined."""
    gap = trace.last_end_ps // _NUM_COLUMNS
    found = []
    for track in tracks:
        low, high = np.searchsorted(trace.track, [track, track + 1]).tolist()
        phases: dict[int, list[tuple[int, int]]] = {}
        columns = (trace.name, trace.start_ps, trace.end_ps)
        for phase, start, end in zip(*(column[low:high].tolist() for column in columns), strict=True):
            bars = phases.setdefault(phase, [])
            if bars and start - bars[-1][1] <= gap:
                bars[-1] = (bars[-1][0], max(bars[-1][1], end))
            else:
                bars.append((start, end))
        found.append(phases)
    return found


def _unit(last_ps: int) -> tuple[int, str]:
    return next(((size, name) for size, name in _UNITS if last_ps >= 2 * size), _UNITS[-1])


def _figure(height: float, suffix: str) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if suffix not in ("png", "svg"):
        raise InputError("suffix", suffix, "must be png or svg")
    figure = Figure(figsize=(12, max(height, 2.4)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(figure: "Figure", axes: "Axes", trace: Trace, label: str, last: float) -> None:
    axes.set_xlim(0, max(last, 1e-12))
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # A dollar sign would start a formula.
    figure.suptitle(trace.title.replace("$", r"\$"), fontsize=11)


def _bytes(figure: "Figure", suffix: str) -> bytes:
    import matplotlib as mpl

    out = io.BytesIO()
    # Without a fixed salt and date, SVG ids and metadata would differ between runs.
    with mpl.rc_context({"svg.hashsalt": "epsim"}):
        figure.savefig(out, format=suffix, dpi=130, metadata={"Date": None} if suffix == "svg" else None)
    return out.getvalue()
