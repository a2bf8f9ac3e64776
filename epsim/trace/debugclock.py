"""Captures of the device's system counter, as the public DeepEP-Ascend fork writes them.

One folder per launch and rank holds `capture.json` and `trace.bin`. The latter has a row of little-endian
64-bit words per AIV: magic, version 1, marks, dropped marks, block, sub-block, 0, committed = 1, and then
`capacity` pairs of mark number and counter. A mark's number is the 32-bit FNV-1a hash of its path, with a NUL
after each part.

Source: Kirrito-k423/DeepEP-Ascend docs/ep64_debugclock.md at c981d6c (marks and intervals), and
Kirrito-k423/ascend-kernel-lab include/akl/trace/{recorder,capture}.h at 65b16d4 and 198a3ab (schema
akl.semantic.v1). Both are secondary: the official kernels write no such files.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from epsim.errors import InputError
from epsim.trace.measured import MeasuredSpan, measured_trace
from epsim.trace.reading import parse_json, read_file, whole
from epsim.trace.trace import Trace

SYSTEM_COUNTER_HZ = {"950": 1_000_000_000, "a2": 50_000_000, "a3": 50_000_000}
"""Ticks of `GetSystemCycle` per second (spec: ascend.md 1.1, from the Ascend C API documentation)."""

MAGIC = 0x414B4C5452433031
SCHEMA = "akl.semantic.v1"
_HEAD_WORDS = 8
_PS_PER_S = 10**12

# kernel -> (first mark, last mark, phase, whether of the SIMT worker, which runs beside the scalar unit).
_INTERVALS = {
    "dispatch": (
        ("entry", "soc-ready", "SoC init", False),
        ("barrier-begin", "barrier-end", "entry barrier", False),
        ("simt-issued", "simt-done", "SIMT routing and SQEs", True),
        ("metadata-begin", "metadata-ready", "metadata staging", False),
        ("metadata-ready", "local-slots-ready", "wait for local slots", False),
        ("local-slots-ready", "local-copy-done", "local copy", False),
        ("simt-done", "doorbell-issued", "doorbell", False),
        ("doorbell-issued", "pipes-drained", "drain before the capture is written", False),
    ),
    "dispatch-epilogue": (
        ("entry", "soc-ready", "epilogue SoC init", False),
        ("remote-wait-begin", "remote-wait-end", "exit barrier", False),
        ("histogram-begin", "layout-ready", "layout", False),
        ("cumsum-wait-begin", "cumsum-wait-end", "wait for prefix sums", False),
        ("expand-begin", "expand-issued", "expand", False),
        ("expand-issued", "padding-issued", "padding", False),
        ("padding-issued", "pipes-drained", "epilogue drain", False),
    ),
}


def mark_number(path: Sequence[str]) -> int:
    """Return the number that a mark of this path has in a capture: FNV-1a, 32 bits."""
    value = 2166136261
    for part in path:
        for byte in part.encode() + b"\0":
            value = (value ^ byte) * 16777619 % 2**32
    return value


def _known_marks() -> dict[int, tuple[str, ...]]:
    paths = {(kernel, mark) for kernel, rows in _INTERVALS.items() for row in rows for mark in row[:2]} | {
        ("dispatch", "pipes-drained")
    }  # the epilogue's last mark bears the name of dispatch
    return {mark_number(path): path for path in sorted(paths)}


@dataclass(frozen=True, kw_only=True)
class _Capture:
    """One launch on one rank: per AIV its marks in order, as (path, ticks)."""

    where: str
    rank: int
    marks: tuple[tuple[tuple[tuple[str, ...], int], ...], ...]
    num_dropped: int


def read_captures(
    folder: str | Path,
    *,
    clock_hz: int,
    align_at: str | None = None,
    paths: Sequence[Sequence[str]] = (),
) -> Trace:
    """Read all captures below a folder.

    Zero points of the counters differ between cards, so each rank is on its own zero unless the ranks are
    aligned at an event; AIVs of one card are taken to share its counter. `meta` says both. Marks of kernels
    that are not known become one span from each mark to the next of the same AIV.

    Args:
      folder: with `capture.json` and `trace.bin` in it or below.
      clock_hz: of the counter, see SYSTEM_COUNTER_HZ.
      align_at: phase at whose first end all ranks are set equal, e.g. "entry barrier".
      paths: paths of further marks, outermost part first.

    Raises:
      InputError: there is no capture, one is damaged, or a mark is not known.
    """
    if clock_hz < 1:
        raise InputError("clock_hz", clock_hz, "must be at least 1")
    known = _known_marks() | {mark_number(path): tuple(path) for path in paths}
    found = [_read(file.parent, known) for file in sorted(Path(folder).rglob("capture.json"))]
    if not found:
        raise InputError("captures", str(folder), "must hold a capture.json somewhere below")
    spans = [span for capture in found for span in _spans(capture, clock_hz)]
    if not spans:
        raise InputError("captures", str(folder), "must hold at least two marks of one AIV")
    meta = {
        "read from": Path(folder).name,
        "clock": f"system counter, {clock_hz} ticks per second",
        "cores": "AIVs of a card are taken to share one counter, which the captures call unverified",
    }
    dropped = [f"{capture.where}: {capture.num_dropped}" for capture in found if capture.num_dropped]
    if dropped:
        meta["dropped marks"] = ", ".join(dropped)
    return measured_trace(spans, title=Path(folder).name, meta=meta, zero="rank", align_at=align_at)


def _read(folder: Path, known: dict[int, tuple[str, ...]]) -> _Capture:
    where = folder.name
    head = parse_json(read_file(folder / "capture.json"), f"{where}/capture.json")
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        schema = head.get("schema") if isinstance(head, dict) else head
        raise InputError(f"{where}/capture.json, schema", schema, f"must be {SCHEMA}")
    size = {key: whole(f"{where}/capture.json, {key}", head.get(key), 1) for key in ("capacity", "blocks")}
    num_words = _HEAD_WORDS + 2 * size["capacity"]
    raw = read_file(folder / "trace.bin")
    if len(raw) != size["blocks"] * num_words * 8:
        wanted = f"must hold {size['blocks']} rows of {num_words} words"
        raise InputError(f"{where}/trace.bin", f"{len(raw)} bytes", wanted)
    rows = list(struct.iter_unpack(f"<{num_words}Q", raw))
    return _Capture(
        where=where,
        rank=whole(f"{where}/capture.json, rank", head.get("rank"), 0),
        marks=tuple(_marks(f"{where}/trace.bin block {n}", row, n, known) for n, row in enumerate(rows)),
        num_dropped=sum(row[3] for row in rows),
    )


def _marks(
    where: str, row: tuple[int, ...], block: int, known: dict[int, tuple[str, ...]]
) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Return (path, ticks) of one AIV's row."""
    magic, version, count, _, told_block, _, _, committed = row[:_HEAD_WORDS]
    if (magic, version, told_block, committed) != (MAGIC, 1, block, 1) or count > len(
        row
    ) // 2 - _HEAD_WORDS // 2:
        raise InputError(
            where, list(row[:_HEAD_WORDS]), "must be the head of a row that the AIV finished writing"
        )
    found: list[tuple[tuple[str, ...], int]] = []
    last = 0
    for number, ticks in zip(row[_HEAD_WORDS::2], row[_HEAD_WORDS + 1 :: 2], strict=True):
        if len(found) == count:
            break
        if number not in known:
            raise InputError(f"{where}, mark", number, "must be the hash of a known path; name it in `paths`")
        if ticks < last:
            raise InputError(f"{where}, ticks", ticks, f"must not run backwards, and {last} came before")
        last = ticks
        found.append((known[number], ticks))
    return tuple(found)


def _spans(capture: _Capture, clock_hz: int) -> Iterator[MeasuredSpan]:
    for block, marks in enumerate(capture.marks):
        if not marks:
            continue
        kernel = marks[0][0][0]
        for first, last, phase, is_simt in _named(kernel, marks):
            yield MeasuredSpan(
                where=f"{capture.where} block {block}",
                rank=capture.rank,
                resource=f"AIV {block} SIMT" if is_simt else f"AIV {block}",
                name=phase,
                start_ps=first * _PS_PER_S // clock_hz,
                end_ps=last * _PS_PER_S // clock_hz,
            )


def _named(
    kernel: str, marks: tuple[tuple[tuple[str, ...], int], ...]
) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (ticks, ticks, phase, whether it is SIMT) of one AIV."""
    if kernel not in _INTERVALS:
        for (path, start), (next_path, end) in pairwise(marks):
            yield start, end, f"{'/'.join(path)} to {next_path[-1]}", False
        return
    begun: dict[str, int] = {}  # phase -> ticks
    for path, ticks in marks:
        for first, last, phase, is_simt in _INTERVALS[kernel]:
            if last == path[-1] and phase in begun:
                yield begun.pop(phase), ticks, phase, is_simt
            if first == path[-1]:
                begun[phase] = ticks
