"""A timeline as one HTML file that needs nothing else: no server, no network."""

import base64
import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.files import write_atomically
from epsim.trace.colours import ink_on, phase_colours, phase_order
from epsim.trace.summary import ResourceSummary, summary
from epsim.trace.trace import LinkLoad, Trace

_SCRIPTS = ("viewer-data.js", "viewer-draw.js", "viewer-page.js")
_NUM_BUSIEST = 12
_WIDTHS = (("u1", 2**8), ("u2", 2**16), ("u4", 2**32), ("f8", 2**53))
_UNITS = (("s", 10**12), ("ms", 10**9), ("\u00b5s", 10**6), ("ns", 10**3))


def write_html(trace: Trace, path: str | Path) -> None:
    """Write the viewer with a trace in it.

    Raises:
      InputError: the file cannot be written.
    """
    write_atomically(path, html_page(trace))


def html_page(trace: Trace) -> str:
    """Return the page; equal traces give equal texts."""
    folder = resources.files("epsim.trace")
    text = json.dumps(_data(trace), separators=(",", ":"), allow_nan=False)
    values = {
        "title": html.escape(trace.title),
        # "</script>" or "<!--" in a label would end the block.
        "data": text.replace("<", "\\u003c"),
        "script": "\n".join(folder.joinpath(name).read_text("utf-8") for name in _SCRIPTS),
    }
    parts = folder.joinpath("viewer.html").read_text("utf-8").split("{{")
    # Each value goes in once, and is not itself searched for places to fill.
    filled = [values[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:])]
    return parts[0] + "".join(filled)


def _data(trace: Trace) -> dict[str, Any]:
    """Return what the scripts read; viewer-data.js names the same fields."""
    found = summary(trace)
    colours = phase_colours(trace)
    busiest = sorted(found.resources, key=lambda row: -row.busy_ps)[:_NUM_BUSIEST]
    place = {group: idx for idx, group in enumerate(trace.groups)}
    cuts = np.searchsorted(trace.track, np.arange(len(trace.track_names) + 1))
    return {
        "title": trace.title,
        "told": trace.meta.get("zero", ""),
        "facts": _facts(trace, found.critical),
        "meta": [*trace.meta.items(), ("digest", trace.digest())],
        "groups": trace.groups,
        "group_word": _group_word(trace),
        "tracks": [(place[group], name) for group, name in trace.tracks],
        "names": trace.names,
        "colours": colours,
        "inks": [ink_on(colour) for colour in colours],
        "phase_order": phase_order(trace),
        "last_end_ps": trace.last_end_ps,
        "busiest": [(f"{row.group}, {row.name}", row.busy_ps, row.utilisation) for row in busiest],
        "cuts": _packed(cuts),
        "name": _packed(trace.name),
        "start_ps": _packed(trace.start_ps),
        "length_ps": _packed(trace.end_ps - trace.start_ps),
        "size_bytes": _packed(trace.size_bytes),
        "peer": _encoded("i4", trace.peer),
        "links": None if trace.links is None else _links(trace.links),
    }


def _group_word(trace: Trace) -> str:
    return "ranks" if all(group.startswith("rank ") for group in trace.groups) else "groups"


def _facts(trace: Trace, critical: ResourceSummary | None) -> list[tuple[str, str]]:
    facts = [
        ("end of the last span", _time(trace.last_end_ps)),
        (_group_word(trace), f"{len(trace.groups):,}"),
        ("resources", f"{len(trace.tracks):,}"),
        ("spans", f"{trace.num_spans:,}"),
    ]
    if critical is not None:
        share = f"busiest resource, {100 * critical.utilisation:.1f} % of the time"
        facts.append((share, f"{critical.group}, {critical.name}"))
    return facts


def _time(time_ps: int) -> str:
    for unit, size in _UNITS:
        if time_ps >= size:
            return (
                f"{time_ps / size:.4g} {unit}" if time_ps < 1000 * size else f"{time_ps / size:,.0f} {unit}"
            )
    return f"{time_ps} ps"


def _links(links: LinkLoad) -> dict[str, Any]:
    whole = links.capacity_bytes_per_s * float(links.edges_ps[-1] - links.edges_ps[0]) / 1e12
    return {
        "labels": links.labels,
        "edges_ps": links.edges_ps.tolist(),
        "capacity": links.capacity_bytes_per_s.tolist(),
        "mean": (links.carried_bytes.sum(axis=1) / whole).tolist(),
        "utilisation": _encoded("f4", links.utilisation),
    }


def _packed(values: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> tuple[str, str]:
    """Return non-negative integers in the narrowest type that holds them; beyond 2^53 a double rounds."""
    most = int(values.max(initial=0))
    return _encoded(next((kind for kind, bound in _WIDTHS if most < bound), "f8"), values)


def _encoded(kind: str, values: npt.NDArray[Any]) -> tuple[str, str]:
    """Return (type, base64 of little-endian values)."""
    return kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()
