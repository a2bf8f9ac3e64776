"""Timelines as Chrome/Perfetto JSON, written and read; https://ui.perfetto.dev opens the file.

Format: "Trace Event Format" of the Chromium project. A group is a process, a track a thread, a span a
complete event. Perfetto rounds what is finer than a nanosecond, start and length each for itself; neighbours
may then overlap, and are misplaced. So start and end are cut to whole nanoseconds here, which keeps order and
nesting, and the exact picoseconds stand in the arguments: reading back is exact. Where spans of one track
overlap without nesting, which a thread cannot, the track gets further threads of the same name; reading puts
them back together.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.files import write_atomically
from epsim.trace.reading import UNITS_PS, from_zero, parse_json, read_file, time_ps, whole
from epsim.trace.trace import NO_PEER, LinkLoad, Trace, TraceBuilder

FORMAT = "epsim trace 1"
_PS_PER_NS = 1000
_FIRST_ID = 10_001
"""Perfetto shows a process's number behind its name: "rank 3 4" would mislead, "rank 3 10004" does not."""


def write_perfetto(trace: Trace, path: str | Path) -> None:
    """Write a trace for Perfetto or chrome://tracing.

    Raises:
      InputError: the file cannot be written.
    """
    write_atomically(path, perfetto_json(trace))


def perfetto_json(trace: Trace) -> str:
    """Return the file's text; equal traces give equal texts."""
    head = {"format": FORMAT, "title": trace.title, "meta": dict(trace.meta)}
    parts = ['{"displayTimeUnit":"ns"', f'"otherData":{_text(head)}']
    if trace.links is not None:
        links = {name: np.asarray(getattr(trace.links, name)).tolist() for name in _LINK_FIELDS}
        parts.append(f'"epsimLinks":{_text(links)}')
    parts.append('"traceEvents":[\n' + ",\n".join(_events(trace)) + "\n]}\n")
    return ",\n".join(parts)


_LINK_FIELDS = ("labels", "carried_bytes", "edges_ps", "capacity_bytes_per_s")


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _us(time_ns: int) -> str:
    """Microseconds with all digits."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _events(trace: Trace) -> Iterator[str]:
    """Yield one JSON object per event."""
    for idx, group in enumerate(trace.groups):
        yield from _named("process", group, idx, f'"pid":{_FIRST_ID + idx}')
    order, lanes, lane_track = _lanes(trace)
    # Threads are numbered after processes: Chrome takes a thread with its process's number for the main one.
    first_tid = _FIRST_ID + len(trace.groups) + 1
    places = [
        f'"pid":{_FIRST_ID + trace.track_group[track]},"tid":{first_tid + lane}'
        for lane, track in enumerate(lane_track)
    ]
    for lane, track in enumerate(lane_track):
        yield from _named("thread", trace.track_names[track], lane, places[lane])
    names = [_text(name) for name in trace.names]
    columns = (trace.name, trace.start_ps, trace.end_ps, trace.size_bytes, trace.peer)
    rows = zip(lanes, *(column[order].tolist() for column in columns), strict=True)
    for lane, name, start, end, size, peer in rows:
        told = f'"bytes":{size}' if size else ""
        if peer != NO_PEER:
            told += f'{"," if told else ""}"peer":{peer}'
        if start % _PS_PER_NS or end % _PS_PER_NS:
            told += f'{"," if told else ""}"start_ps":{start},"end_ps":{end}'
        ts = start // _PS_PER_NS
        dur = end // _PS_PER_NS - ts
        yield (
            f'{{"ph":"X","name":{names[name]},{places[lane]},"ts":{_us(ts)},"dur":{_us(dur)},"args":{{{told}}}}}'
        )
    if trace.links is not None:
        yield from _counters(trace.links, len(trace.groups))


def _named(kind: str, name: str, order: int, place: str) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{kind}_name",{place},"args":{{"name":{_text(name)}}}}}'
    yield f'{{"ph":"M","name":"{kind}_sort_index",{place},"args":{{"sort_index":{order}}}}}'


def _counters(links: LinkLoad, order: int) -> Iterator[str]:
    """One counter per link, in percent of its capacity; for the eye only, reading ignores it."""
    place = f'"pid":{_FIRST_ID + order}'
    yield from _named("process", "links", order, place)
    for label, row in zip(links.labels, links.utilisation.tolist(), strict=True):
        for time, value in zip(links.edges_ps.tolist(), [*row, 0.0], strict=True):
            told = f'"args":{{"%":{_text(100 * value)}}}'
            yield f'{{"ph":"C","name":{_text(label)},{place},"ts":{_us(time // _PS_PER_NS)},{told}}}'


def _lanes(trace: Trace) -> tuple[npt.NDArray[np.intp], list[int], list[int]]:
    """Place spans in lanes: those of one lane are of one track, and nest or follow each other.

    Returns:
      [S] spans by track and start, an outer one before those in it; their lanes; [lanes] track of each lane.
    """
    start, end = trace.start_ps, trace.end_ps
    order = np.lexsort((-end, start, trace.track))
    cuts = np.searchsorted(trace.track[order], np.arange(len(trace.track_names) + 1))
    lanes: list[int] = []
    lane_track: list[int] = []
    for track, (low, high) in enumerate(pairwise(cuts.tolist())):
        found, num_lanes = _nest(start[order[low:high]].tolist(), end[order[low:high]].tolist())
        lanes += [len(lane_track) + lane for lane in found]
        lane_track += [track] * num_lanes
    return order, lanes, lane_track


def _nest(starts: Sequence[int], ends: Sequence[int]) -> tuple[list[int], int]:
    """Return the lane of each span of one track, and how many lanes; of equal starts the longest is first."""
    open_ends: list[list[int]] = [[]]  # per lane, ends of the spans that are open, the innermost last
    found = []
    for start, end in zip(starts, ends, strict=True):
        fits = (lane for lane, stack in enumerate(open_ends) if _fits(stack, start, end))
        lane = next(fits, len(open_ends))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end)
        found.append(lane)
    return found, len(open_ends)


def _fits(stack: list[int], start: int, end: int) -> bool:
    """Close what has ended by `start`, and tell whether a span lies within what is still open."""
    while stack and stack[-1] <= start:
        stack.pop()
    return not stack or end <= stack[-1]


def read_perfetto(path: str | Path) -> Trace:
    """Read a trace that `write_perfetto` wrote, or one by another program.

    Of files by others, complete events and pairs of begin and end become spans; processes and threads without
    a name get their number; the earliest start becomes zero. `meta` says what was left out.

    Raises:
      InputError: the file cannot be read, is no such JSON, or an event breaks a rule.
    """
    return parse_perfetto(read_file(path), Path(path).name)


def parse_perfetto(data: bytes, name: str) -> Trace:
    """Read the bytes of a file, as `read_perfetto`.

    Args:
      data: JSON, an object with "traceEvents" or the array alone.
      name: of the file, for error messages.
    """
    document = parse_json(data, name)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(
            name, type(document).__name__, 'must be an array of events, or hold one as "traceEvents"'
        )
    other = document.get("otherData") if isinstance(document, dict) else None
    other = other if isinstance(other, dict) else {}
    is_ours = other.get("format") == FORMAT
    found = _Found(name=name, is_ours=is_ours)
    for number, event in enumerate(events):
        found.take(number, event)
    found.pair_up()
    builder = TraceBuilder()
    found.fill(builder)
    if not is_ours:
        return builder.build(title=name, meta=_texts(other) | found.told())
    links = document.get("epsimLinks") if isinstance(document, dict) else None
    return builder.build(
        title=str(other.get("title")),
        meta=_texts(other.get("meta")),
        links=None if links is None else _links(links, name),
    )


def _texts(value: object) -> dict[str, str]:
    """Entries of a JSON object whose values are texts."""
    return (
        {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}
    )


def _links(value: dict[str, Any], name: str) -> LinkLoad:
    try:
        return LinkLoad(
            labels=tuple(str(label) for label in value["labels"]),
            carried_bytes=np.array(value["carried_bytes"], dtype=np.float64),
            edges_ps=np.array(value["edges_ps"], dtype=np.int64),
            capacity_bytes_per_s=np.array(value["capacity_bytes_per_s"], dtype=np.float64),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{name}, epsimLinks", type(value).__name__, "must hold the arrays of a LinkLoad"
        ) from None


_Place = tuple[int | str, int | str]


@dataclass
class _Found:
    """What the events of a file say.

    Args:
      name: of the file.
      is_ours: whether epsim wrote it.
      processes: names by pid.
      threads: names by (pid, tid).
      spans: place, name, start and end in ps on the file's clock, bytes, peer.
      halves: per place, begins and ends in the file's order: time, whether it begins, name, arguments.
      left_out: kinds of events that are no spans, counted.
    """

    name: str
    is_ours: bool
    processes: dict[int | str, str] = field(default_factory=dict)
    threads: dict[_Place, str] = field(default_factory=dict)
    spans: list[tuple[_Place, str, int, int, int, int]] = field(default_factory=list)
    halves: dict[_Place, list[tuple[int, bool, str, Any]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def take(self, number: int, event: object) -> None:
        """Sort in one event."""
        where = f"{self.name} event {number}"
        if not isinstance(event, dict):
            raise InputError(where, type(event).__name__, "must be an object")
        kind = event.get("ph")
        if kind not in ("X", "B", "E", "M"):
            self.left_out[f"kind {kind}"] += 1
            return
        place = (_number(where, event, "pid"), _number(where, event, "tid"))
        arguments = event.get("args")
        if kind == "M":
            self._name(event, place, arguments if isinstance(arguments, dict) else {})
            return
        start = time_ps(f"{where}, ts", event.get("ts"), UNITS_PS["us"])
        text = str(event.get("name", ""))
        if kind == "X":
            end = start + time_ps(f"{where}, dur", event.get("dur"), UNITS_PS["us"])
            if self.is_ours and isinstance(arguments, dict) and "start_ps" in arguments:
                start, end = _exact(where, arguments, start, end)
            self.spans.append((place, text, start, end, *_told(arguments)))
        else:
            self.halves.setdefault(place, []).append((start, kind == "B", text, arguments))

    def _name(self, event: dict[str, Any], place: _Place, arguments: dict[str, Any]) -> None:
        text = str(arguments.get("name", ""))
        if event.get("name") == "process_name" and text:
            self.processes[place[0]] = text
        if event.get("name") == "thread_name" and text:
            self.threads[place] = text

    def pair_up(self) -> None:
        """Turn begins and ends into spans; an end closes the latest begin of its thread."""
        for place, halves in self.halves.items():
            stack: list[tuple[int, str, Any]] = []
            for time, begins, text, arguments in sorted(halves, key=lambda half: half[0]):
                if begins:
                    stack.append((time, text, arguments))
                elif stack:
                    start, name, told = stack.pop()
                    self.spans.append((place, name, start, time, *_told(told, arguments)))
                else:
                    self.left_out["ends without a begin"] += 1
            if stack:
                self.left_out["begins without an end"] += len(stack)

    def zero_ps(self) -> int:
        """Earliest start on the file's clock."""
        return min((span[2] for span in self.spans), default=0)

    def told(self) -> dict[str, str]:
        """Return what a reader of a foreign file should know."""
        lost = ", ".join(f"{count} x {what}" for what, count in sorted(self.left_out.items()))
        zero = f"the earliest start, {Decimal(self.zero_ps()).scaleb(-6):f} us on the file's clock"
        return {"read from": self.name, "zero": zero} | ({"left out": lost} if lost else {})

    def fill(self, builder: TraceBuilder) -> None:
        """Add tracks and spans to a builder."""
        zero = 0 if self.is_ours else self.zero_ps()
        groups = _distinct({place[0] for place in [*self.threads, *self._places()]}, self.processes, "pid")
        by_process: dict[int | str, set[int | str]] = {}
        for pid, tid in [*self.threads, *self._places()]:
            by_process.setdefault(pid, set()).add(tid)
        tracks = {}
        for pid, tids in by_process.items():
            named = {tid: self.threads[pid, tid] for tid in tids if (pid, tid) in self.threads}
            # Several threads of one name are one track in our files, and different ones in those of others.
            texts = named if self.is_ours else _distinct(tids, named, "tid")
            for tid in tids:
                tracks[pid, tid] = builder.track(groups[pid], texts.get(tid, f"tid {tid}"))
        for place, text, start, end, size, peer in self.spans:
            low = from_zero(f"{self.name}, ts", start, zero)
            builder.span(tracks[place], text, low, low + end - start, size_bytes=size, peer=peer)

    def _places(self) -> set[_Place]:
        return {span[0] for span in self.spans}


def _distinct(keys: set[int | str], names: Mapping[int | str, str], word: str) -> dict[int | str, str]:
    """Return a name for each key; keys of one name get their number too."""
    count = Counter(names[key] for key in keys if key in names)
    return {
        key: f"{word} {key}"
        if key not in names
        else names[key]
        if count[names[key]] == 1
        else f"{names[key]} ({word} {key})"
        for key in keys
    }


def _number(where: str, event: dict[str, Any], key: str) -> int | str:
    """Process or thread number; some programs write texts."""
    value = event.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{where}, {key}", value, "must be a whole number or a text")
    return value


def _exact(where: str, arguments: dict[str, Any], start: int, end: int) -> tuple[int, int]:
    """Return start and end in ps from the arguments, which must agree with those of the event."""
    exact = []
    for key, cut in (("start_ps", start), ("end_ps", end)):
        exact.append(whole(f"{where}, {key}", arguments.get(key), 0))
        if exact[-1] // _PS_PER_NS * _PS_PER_NS != cut:
            raise InputError(
                f"{where}, {key}",
                exact[-1],
                f"must be the event's own time, {cut} ps, or less than 1 ns more",
            )
    return exact[0], exact[1]


def _told(*arguments: object) -> tuple[int, int]:
    """Bytes and peer of a span's arguments, where they are numbers as ours."""
    told: dict[str, object] = {}
    for each in arguments:
        told |= each if isinstance(each, dict) else {}
    return _or_default(told.get("bytes"), 2**63, 0), _or_default(told.get("peer"), 2**31, NO_PEER)


def _or_default(value: object, bound: int, default: int) -> int:
    is_good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < bound
    return value if is_good and isinstance(value, int) else default
