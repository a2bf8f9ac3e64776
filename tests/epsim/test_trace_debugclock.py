"""Captures of the system counter, written here by the published layout; damaged ones are refused."""

import json
import struct

import pytest

from epsim.errors import InputError
from epsim.trace.debugclock import MAGIC, SYSTEM_COUNTER_HZ, mark_number, read_captures
from epsim.trace.summary import summary

CAPACITY = 16
DISPATCH = (
    ("entry", 0),
    ("soc-ready", 1900),
    ("barrier-begin", 2000),
    ("barrier-end", 6000),
    ("simt-issued", 6100),
    ("metadata-begin", 6200),
    ("metadata-ready", 9000),
    ("local-slots-ready", 12_000),
    ("local-copy-done", 15_000),
    ("simt-done", 16_000),
    ("doorbell-issued", 16_400),
    ("pipes-drained", 16_500),
)
HZ = SYSTEM_COUNTER_HZ["950"]


def row_of(block, kernel, marks, zero, dropped=0):
    """Words of one AIV."""
    pairs = [word for name, ticks in marks for word in (mark_number((kernel, name)), zero + ticks)]
    head = [MAGIC, 1, len(marks), dropped, block, 0, 0, 1]
    return head + pairs + [0] * (2 * CAPACITY - len(pairs))


def write_capture(folder, rank, rows, /, **changes):
    """One launch on one rank."""
    place = folder / "raw" / "dispatch" / f"rank{rank}-pid{100 + rank}-launch0"
    place.mkdir(parents=True)
    head = {
        "schema": "akl.semantic.v1",
        "capacity": CAPACITY,
        "blocks": len(rows),
        "rank": rank,
        "device": rank,
    }
    (place / "capture.json").write_text(json.dumps(head | {"alignment": "unverified"} | changes))
    words = [word for row in rows for word in row]
    (place / "trace.bin").write_bytes(struct.pack(f"<{len(words)}Q", *words))


def write_two_ranks(folder):
    """Rank 1 has another zero, and waits 1 us longer in the barrier's beginning."""
    for rank, zero in ((0, 5_000_000), (1, 9_123_456_789_000)):
        marks = [(name, ticks - 1000 * rank if ticks < 3000 else ticks) for name, ticks in DISPATCH]
        marks = [(name, max(ticks, 0) if rank else ticks) for name, ticks in marks]
        write_capture(folder, rank, [row_of(block, "dispatch", marks, zero + block) for block in range(2)])


def test_natural_intervals_in_ps_on_each_rank_s_own_zero(tmp_path):
    write_two_ranks(tmp_path)
    trace = read_captures(tmp_path, clock_hz=HZ)
    assert trace.tracks[:4] == tuple(
        ("rank 0", name) for name in ("AIV 0", "AIV 0 SIMT", "AIV 1", "AIV 1 SIMT")
    )
    first = {trace.names[n]: (int(s), int(e)) for t, n, s, e in zip(
        trace.track, trace.name, trace.start_ps, trace.end_ps, strict=True) if t < 2}  # fmt: skip
    assert first["entry barrier"] == (2_000_000, 6_000_000)
    assert first["SIMT routing and SQEs"] == (6_100_000, 16_000_000)
    assert first["doorbell"] == (16_000_000, 16_400_000)
    assert len(first) == 8
    assert "must not be compared" in trace.meta["zero"]
    assert "unverified" in trace.meta["cores"]


def test_ranks_meet_at_the_end_of_the_entry_barrier(tmp_path):
    write_two_ranks(tmp_path)
    trace = read_captures(tmp_path, clock_hz=HZ, align_at="entry barrier")
    barrier = trace.names.index("entry barrier")
    ends = {
        trace.tracks[t]: e
        for t, n, e in zip(trace.track, trace.name, trace.end_ps, strict=True)
        if n == barrier
    }
    assert ends["rank 0", "AIV 0"] == ends["rank 1", "AIV 0"] == 6_000_000
    assert "'entry barrier'" in trace.meta["zero"]


def test_the_counter_of_a3_ticks_every_20_ns(tmp_path):
    write_capture(tmp_path, 0, [row_of(0, "dispatch", [("entry", 0), ("soc-ready", 95)], 7)])
    assert read_captures(tmp_path, clock_hz=SYSTEM_COUNTER_HZ["a3"]).last_end_ps == 95 * 20_000


def test_epilogue_has_its_own_phases(tmp_path):
    names = (
        "entry",
        "soc-ready",
        "remote-wait-begin",
        "remote-wait-end",
        "histogram-begin",
        "cumsum-wait-begin",
    )
    names += ("cumsum-wait-end", "layout-ready", "expand-begin", "expand-issued", "padding-issued")
    row = row_of(0, "dispatch-epilogue", [(name, 10 * n) for n, name in enumerate(names)], 3)
    row[2] += 1  # its last mark bears the name of the other kernel
    row[8 + 2 * len(names) : 10 + 2 * len(names)] = [mark_number(("dispatch", "pipes-drained")), 500]
    write_capture(tmp_path, 0, [row])
    phases = {phase.name: phase.total_ps for phase in summary(read_captures(tmp_path, clock_hz=HZ)).phases}
    assert (phases["exit barrier"], phases["layout"], phases["wait for prefix sums"]) == (
        10_000,
        30_000,
        10_000,
    )
    assert phases["epilogue drain"] == (500 - 3 - 100) * 1000


def test_marks_of_another_kernel_become_spans_from_mark_to_mark(tmp_path):
    write_capture(tmp_path, 0, [row_of(0, "mine", [("a", 0), ("b", 5), ("a", 7)], 3, dropped=2)])
    trace = read_captures(tmp_path, clock_hz=HZ, paths=[("mine", "a"), ("mine", "b")])
    assert trace.names == ("mine/a to b", "mine/b to a")
    assert trace.meta["dropped marks"] == "rank0-pid100-launch0: 2"


def test_the_hash_is_fnv_1a():
    """Published vectors of the empty input and of one zero byte: draft-eastlake-fnv."""
    assert mark_number(()) == 0x811C9DC5
    assert mark_number(("",)) == 0x050C5D1F
    assert mark_number(("ab", "c")) != mark_number(("a", "bc"))


GOOD = [("entry", 0), ("soc-ready", 95)]


@pytest.mark.parametrize(
    ("word", "value", "changes", "match"),
    [
        (0, 1, {}, "block 0 is .*: must be the head"),
        (7, 0, {}, "must be the head"),
        (4, 3, {}, "must be the head"),
        (2, CAPACITY + 1, {}, "must be the head"),
        (8, 12345, {}, "mark is 12345: must be the hash"),
        (9, 10**6, {}, "ticks is 102: must not run backwards"),
        (2, 1, {}, "at least two marks"),
        (0, MAGIC, {"schema": "akl.semantic.v9"}, "must be akl.semantic.v1"),
        (0, MAGIC, {"capacity": 8}, "must hold 1 rows of 24 words"),
        (0, MAGIC, {"blocks": 0}, "blocks is 0"),
        (0, MAGIC, {"rank": -1}, "rank is -1"),
    ],
)
def test_a_damaged_capture_is_refused(tmp_path, word, value, changes, match):
    row = row_of(0, "dispatch", GOOD, 7)
    row[word] = value
    write_capture(tmp_path, 0, [row], **changes)
    with pytest.raises(InputError, match=match):
        read_captures(tmp_path, clock_hz=HZ)


def test_an_empty_folder_and_a_clock_that_stands_still_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"capture\.json somewhere"):
        read_captures(tmp_path, clock_hz=HZ)
    with pytest.raises(InputError, match="clock_hz"):
        read_captures(tmp_path, clock_hz=0)
