"""Measured runs as timelines: CSV, JSON, and Perfetto JSON of other tools.

Columns (CSV) or keys (JSON, a list of objects): rank, resource, name, one of start_us|start_ns|start_ps, one
of end_us|end_ns|end_ps, and if known bytes and peer. `epsim.trace.debugclock` reads captures of counters.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epsim.errors import InputError
from epsim.trace.perfetto import parse_perfetto
from epsim.trace.reading import UNITS_PS, from_zero, parse_json, read_file, time_ps, whole
from epsim.trace.trace import NO_PEER, Trace, TraceBuilder

Zero = Literal["file", "rank"]
"""Whose earliest start is time 0: that of the whole file, or of each rank for itself."""

_TEXTS = ("rank", "resource", "name")
_OPTIONAL = ("bytes", "peer")
_STARTS = tuple(f"start_{unit}" for unit in UNITS_PS)
_ENDS = tuple(f"end_{unit}" for unit in UNITS_PS)
_ALL = (*_TEXTS, *_STARTS, *_ENDS, *_OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class MeasuredSpan:
    """One interval on the clock of its rank.

    Args:
      where: file and line, for error messages.
      rank: at least 0.
      resource: name of the track.
      name: phase.
      start_ps: on the rank's clock, any sign.
      end_ps: the same, not before the start.
      size_bytes: payload, 0 = none or unknown.
      peer: rank at the other end, -1 = none or unknown.
    """

    where: str
    rank: int
    resource: str
    name: str
    start_ps: int
    end_ps: int
    size_bytes: int = 0
    peer: int = NO_PEER


def read_measured(path: str | Path, *, zero: Zero = "file", align_at: str | None = None) -> Trace:
    """Read a measured run from .csv or .json (own layout, or Perfetto's, which keeps its own clock).

    Args:
      path: of the file.
      zero: "file" when all ranks share one clock, "rank" when they do not.
      align_at: name of a phase, e.g. a barrier, at whose first end the clocks of all ranks are set equal.

    Raises:
      InputError: the file cannot be read or breaks a rule; with line, column, value and rule.
    """
    name, data = Path(path).name, read_file(path)
    kind = Path(path).suffix.lower()
    if kind == ".csv":
        spans = [_span(where, cells) for where, cells in _csv_rows(data, name)]
    elif kind == ".json":
        document = parse_json(data, name)
        if _is_perfetto(document):
            if zero != "file" or align_at is not None:
                raise InputError(
                    "align_at", align_at, "must not be given for Perfetto JSON, which has one clock"
                )
            return parse_perfetto(data, name)
        spans = [_span(where, cells) for where, cells in _json_rows(document, name)]
    else:
        raise InputError("trace", name, "must be a .csv or .json file")
    if not spans:
        raise InputError(name, "no row", "must hold at least one span")
    return measured_trace(spans, title=name, meta={"read from": name}, zero=zero, align_at=align_at)


def measured_trace(
    spans: Sequence[MeasuredSpan],
    *,
    title: str,
    meta: Mapping[str, str],
    zero: Zero = "file",
    align_at: str | None = None,
) -> Trace:
    """Put measured spans on one time axis; `meta` says how.

    Args:
      spans: at least one.
      title: of the trace.
      meta: further facts.
      zero: as of `read_measured`.
      align_at: as of `read_measured`.

    Raises:
      InputError: a rank has no span of the name to align at, or times lie more than 106 days apart.
    """
    zeros, told = _zeros(spans, zero, align_at)
    builder = TraceBuilder()
    for span in spans:
        start = from_zero(span.where, span.start_ps, zeros[span.rank])
        end = from_zero(span.where, span.end_ps, zeros[span.rank])
        track = builder.track(f"rank {span.rank}", span.resource)
        builder.span(track, span.name, start, end, size_bytes=span.size_bytes, peer=span.peer)
    return builder.build(title=title, meta={"kind": "measured", "zero": told} | dict(meta))


def _zeros(spans: Sequence[MeasuredSpan], zero: Zero, align_at: str | None) -> tuple[dict[int, int], str]:
    """Return each rank's time 0 on its own clock, and a sentence about it."""
    starts: dict[int, int] = {}
    marks: dict[int, int] = {}
    for span in spans:
        starts[span.rank] = min(span.start_ps, starts.get(span.rank, span.start_ps))
        if span.name == align_at:
            marks[span.rank] = min(span.end_ps, marks.get(span.rank, span.end_ps))
    if align_at is not None:
        missing = sorted(starts.keys() - marks.keys())
        if missing:
            raise InputError(
                "align_at", align_at, f"must be a phase of every rank, and rank {missing[0]} has none"
            )
        before = max(marks[rank] - starts[rank] for rank in starts)
        told = (
            f"clocks of the ranks set equal at the first end of {align_at!r}; other differences between ranks"
        )
        return {rank: mark - before for rank, mark in marks.items()}, f"{told} rest on that"
    if zero == "rank":
        return (
            starts,
            "each rank on its own zero, its earliest start: times of two ranks must not be compared",
        )
    if zero != "file":
        raise InputError("zero", zero, "must be file or rank")
    least = min(starts.values())
    return dict.fromkeys(starts, least), f"the earliest start, {least} ps on the file's clock"


def _is_perfetto(document: object) -> bool:
    if isinstance(document, dict):
        return "traceEvents" in document
    return isinstance(document, list) and any(
        isinstance(item, dict) and "ph" in item for item in document[:1]
    )


def _json_rows(document: object, name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(document, list):
        raise InputError(name, type(document).__name__, "must be a list of spans, or Perfetto JSON")
    for number, item in enumerate(document):
        where = f"{name} span {number}"
        if not isinstance(item, dict):
            raise InputError(where, type(item).__name__, "must be an object")
        _check_columns(where, list(item))
        yield where, item


def _csv_rows(data: bytes, name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "must be CSV in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_columns(f"{name} line 1", header)
        for line in reader:
            where = f"{name} line {reader.line_num}"
            if line and len(line) != len(header):
                raise InputError(where, f"{len(line)} cells", f"must have {len(header)}, as the header has")
            if line:
                yield where, dict(zip(header, (cell.strip() for cell in line), strict=True))
    except csv.Error as error:
        raise InputError(f"{name} line {reader.line_num}", "text", f"must be CSV: {error}") from None


def _check_columns(where: str, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in _ALL:
            raise InputError(f"{where}, column", column, f"must be one of {', '.join(_ALL)}")
        if columns.count(column) > 1:
            raise InputError(f"{where}, column", column, "must occur once")
    for column in _TEXTS:
        if column not in columns:
            raise InputError(f"{where}, columns", ",".join(columns), f"must have the column {column}")
    for choices in (_STARTS, _ENDS):
        if len(set(choices) & set(columns)) != 1:
            raise InputError(f"{where}, columns", ",".join(columns), f"must have one of {', '.join(choices)}")


def _span(where: str, cells: Mapping[str, object]) -> MeasuredSpan:
    for column in ("resource", "name"):
        if not isinstance(cells[column], str) or not cells[column]:
            raise InputError(f"{where}, {column}", cells[column], "must be a text that is not empty")
    times = []
    for choices in (_STARTS, _ENDS):
        column = next(choice for choice in choices if choice in cells)
        times.append(time_ps(f"{where}, {column}", cells[column], UNITS_PS[column[-2:]]))
    if times[1] < times[0]:
        raise InputError(f"{where}, end", f"{times[1]} ps", f"must not lie before the start, {times[0]} ps")
    size, peer = cells.get("bytes", ""), cells.get("peer", "")
    return MeasuredSpan(
        where=where,
        rank=whole(f"{where}, rank", cells["rank"], 0),
        resource=str(cells["resource"]),
        name=str(cells["name"]),
        start_ps=times[0],
        end_ps=times[1],
        size_bytes=0 if size == "" else whole(f"{where}, bytes", size, 0),
        peer=NO_PEER if peer == "" else whole(f"{where}, peer", peer, NO_PEER),
    )
