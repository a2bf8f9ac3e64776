"""The timeline type: order, checks, digest; the same bytes whatever the order of building."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.trace import LinkLoad, TraceBuilder
from tests.epsim.traces import small_links, small_trace, span_rows, trace_of


def test_the_whole_small_trace():
    trace = small_trace()
    assert trace.groups == ("rank 0", "rank 1")
    assert trace.tracks[:3] == (("rank 0", "AIV 0"), ("rank 0", "URMA engine"), ("rank 0", "port in"))
    assert trace.names == ("metadata", "routing", "wait", "wire")
    rank_0 = [(trace.tracks[t][1], trace.names[n], s, e) for t, n, s, e in zip(
        trace.track[:5], trace.name[:5], trace.start_ps[:5], trace.end_ps[:5], strict=True)]  # fmt: skip
    assert rank_0 == [
        ("AIV 0", "routing", 0, 600_001),
        ("AIV 0", "metadata", 600_001, 1_000_000),
        ("URMA engine", "wire", 1_000_000, 2_500_000),
        ("URMA engine", "wait", 1_200_000, 1_300_003),
        ("URMA engine", "wire", 1_200_000, 2_700_000),
    ]


def test_ranks_are_in_the_order_of_their_numbers():
    trace = trace_of([(rank, "AIV 0", "p", 0, 1, 0, -1) for rank in (10, 9, 2, 0)])
    assert trace.groups == ("rank 0", "rank 2", "rank 9", "rank 10")


@given(span_rows(), st.randoms(use_true_random=False))
def test_order_of_building_does_not_show(rows, shuffler):
    other = list(rows)
    shuffler.shuffle(other)
    assert trace_of(rows).digest() == trace_of(other).digest()


@given(span_rows())
def test_spans_at_once_equal_spans_one_by_one(rows):
    builder = TraceBuilder()
    tracks = [builder.track(f"rank {row[0]}", row[1]) for row in rows]
    starts = np.array([row[3] for row in rows], dtype=np.int64)
    lengths = np.array([row[4] for row in rows], dtype=np.int64)
    sizes, peers = [row[5] for row in rows], [row[6] for row in rows]
    builder.spans(tracks, [row[2] for row in rows], starts, starts + lengths, sizes, peers)
    assert builder.build(title="drawn", meta={"seed": "1"}).digest() == trace_of(rows).digest()


ROW = (3, "AIV 2", "wire", 10, 5, 7, 2)


@pytest.mark.parametrize("column", range(len(ROW)))
def test_any_other_value_is_another_digest(column):
    changed = list(ROW)
    changed[column] = "other" if isinstance(ROW[column], str) else ROW[column] + 1
    assert trace_of([ROW]).digest() != trace_of([changed]).digest()


def test_title_meta_links_and_a_lost_span_are_in_the_digest():
    digests = {
        trace_of([ROW]).digest(),
        trace_of([ROW], title="other").digest(),
        trace_of([ROW], meta={"seed": "2"}).digest(),
        trace_of([ROW, ROW]).digest(),
        small_trace().digest(),
        small_trace(links=False).digest(),
    }
    assert len(digests) == 6


def test_meta_order_and_hash_seed_do_not_show():
    code = "from tests.epsim.traces import small_trace; import sys; sys.stderr.write(small_trace().digest())"
    env = os.environ | {"PYTHONHASHSEED": "1"}  # this process has another one
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == small_trace().digest()
    meta = {str(key): "x" for key in range(20)}
    items = random.Random(1).sample(sorted(meta.items()), 20)
    assert trace_of([ROW], meta=meta).digest() == trace_of([ROW], meta=dict(items)).digest()


def test_the_digest_is_the_same_on_every_platform():
    """Pinned: other word size, byte order or numpy must not change it."""
    assert small_trace().digest().startswith("7f2e3037ece95fbb")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"track": 1}, "track"),
        ({"track": -1}, "track"),
        ({"start_ps": -1}, "start_ps"),
        ({"end_ps": 9}, "end_ps"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"peer": -2}, "peer"),
        ({"peer": 2**31}, "peer"),
        ({"start_ps": 0.5}, "span"),
        ({"end_ps": 2**64}, "span"),
    ],
)
def test_a_wrong_span_is_refused(values, field):
    builder = TraceBuilder()
    row = {"track": builder.track("rank 0", "AIV 0"), "name": "p", "start_ps": 10, "end_ps": 11} | values
    builder.span(**row)
    with pytest.raises(InputError) as caught:
        builder.build(title="wrong", meta={})
    assert caught.value.field == field


def test_columns_of_two_lengths_and_fractions_are_refused():
    builder = TraceBuilder()
    track = builder.track("rank 0", "AIV 0")
    with pytest.raises(InputError, match="one length"):
        builder.spans(track, "p", [0, 1], [2, 3, 4])
    with pytest.raises(InputError, match="integers"):
        builder.spans(track, "p", [0.5], [2])
    with pytest.raises(InputError, match="texts"):
        builder.build(title="wrong", meta={"seed": 7})


def test_utilisation_is_bytes_over_capacity_times_bin():
    """4e8 B/s for 1 us are 400 B: 100 B fill a quarter, 400 B all of it."""
    assert small_links().utilisation.tolist() == [[0.25, 1.0, 0.0], [0.0, 0.5, 100.5 / 400]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("edges_ps", [0, 5, 5]),
        ("edges_ps", [-1, 5, 6]),
        ("edges_ps", [3]),
        ("carried_bytes", [[1.0, 2.0], [1.0, 2.0]]),
        ("carried_bytes", [[1.0, np.nan]]),
        ("carried_bytes", [[1.0, -1.0]]),
        ("capacity_bytes_per_s", [0.0]),
        ("capacity_bytes_per_s", [1.0, 1.0]),
    ],
)
def test_a_wrong_link_load_is_refused(field, value):
    good = {
        "labels": ("a",),
        "carried_bytes": [[1.0, 2.0]],
        "edges_ps": [0, 1, 2],
        "capacity_bytes_per_s": [1.0],
    }
    LinkLoad(**good)
    with pytest.raises(InputError, match=field):
        LinkLoad(**good | {field: value})


def test_arrays_are_read_only():
    trace = small_trace()
    for array in (trace.start_ps, trace.track_group, trace.links.carried_bytes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
