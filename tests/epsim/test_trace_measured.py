"""Measured runs: CSV, JSON, clocks of several ranks, refusals; statistics of repeated samples."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.trace import TraceBuilder
from epsim.trace.measured import read_measured
from epsim.trace.perfetto import write_perfetto
from epsim.trace.summary import sample_statistics, summary
from tests.epsim.traces import small_trace

CSV = """rank,resource,name,start_us,end_ns,bytes,peer
0,AIV 0,barrier,100.000001,102000,,
0,AIV 0,copy,102,103000.5,7168,1
1,AIV 0,barrier,7100,7101000,,
1,AIV 0,copy,7101,7103000,7168,0
"""


def read_text(folder, text, name="run.csv", **options):
    (folder / name).write_text(text)
    return read_measured(folder / name, **options)


def rows_of(trace):
    columns = (trace.start_ps, trace.end_ps, trace.size_bytes, trace.peer)
    return [
        (trace.tracks[track][0], trace.names[name], *values)
        for track, name, *values in zip(trace.track, trace.name, *(c.tolist() for c in columns), strict=True)
    ]


def test_csv_on_one_clock_starts_at_its_earliest_start(tmp_path):
    trace = read_text(tmp_path, CSV)
    assert rows_of(trace)[:2] == [
        ("rank 0", "barrier", 0, 1_999_999, 0, -1),
        ("rank 0", "copy", 1_999_999, 3_000_499, 7168, 1),
    ]
    assert rows_of(trace)[2][2] == 7_100_000_000 - 100_000_001
    assert trace.meta["zero"] == "the earliest start, 100000001 ps on the file's clock"


def test_each_rank_on_its_own_zero(tmp_path):
    trace = read_text(tmp_path, CSV, zero="rank")
    assert [row[:4] for row in rows_of(trace) if row[1] == "barrier"] == [
        ("rank 0", "barrier", 0, 1_999_999),
        ("rank 1", "barrier", 0, 1_000_000),
    ]
    assert "must not be compared" in trace.meta["zero"]


def test_ranks_aligned_at_the_exit_of_the_barrier(tmp_path):
    trace = read_text(tmp_path, CSV, align_at="barrier")
    assert [row[2:4] for row in rows_of(trace)] == [
        (0, 1_999_999),
        (1_999_999, 3_000_499),
        (999_999, 1_999_999),
        (1_999_999, 3_999_999),
    ]
    assert "'barrier'" in trace.meta["zero"]


def test_json_rows_equal_csv_rows(tmp_path):
    head, *lines = [line.split(",") for line in CSV.splitlines()]
    items = [dict(zip(head, cells, strict=True)) for cells in lines]
    for item in items:
        item["rank"] = int(item["rank"])
    trace = read_text(tmp_path, json.dumps(items), "run.json")
    assert rows_of(trace) == rows_of(read_text(tmp_path, CSV))


def test_perfetto_json_is_known_by_itself(tmp_path):
    write_perfetto(small_trace(), tmp_path / "t.json")
    assert read_measured(tmp_path / "t.json").digest() == small_trace().digest()
    with pytest.raises(InputError, match="one clock"):
        read_measured(tmp_path / "t.json", align_at="barrier")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("start_us", "begin", "line 1, column is 'begin': must be one of rank"),
        ("start_us", "end_us", "must have one of start_us"),
        ("peer", "bytes", "must occur once"),
        ("resource", "start_ns", "must have the column resource"),
        ("0,AIV 0,copy", "x,AIV 0,copy", "line 3, rank is 'x': must be a whole number"),
        ("0,AIV 0,copy", "-1,AIV 0,copy", "line 3, rank is -1: must be a whole number of at least 0"),
        ("AIV 0,copy", ",copy", "line 3, resource is ''"),
        ("7101000", "7099000", "line 4, end is '7099000000 ps': must not lie before the start"),
        ("7101000", "nan", "line 4, end_ns is 'nan': must be a decimal number"),
        ("7168,0", "7168,0,9", "line 5 is '8 cells': must have 7"),
        ("7168,0", "-7,0", "line 5, bytes is -7"),
        ("7100,", "1e30,", "line 4, end is"),
        ("7103000", "1e20", "within 106 days"),
        ("7168,1", '"7168,1', "must be CSV"),
    ],
)
def test_bad_csv_is_refused_with_line_and_rule(tmp_path, old, new, match):
    with pytest.raises(InputError, match=match):
        read_text(tmp_path, CSV.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "text", "options", "match"),
    [
        ("run.txt", CSV, {}, "must be a .csv or .json file"),
        ("run.csv", CSV.splitlines()[0], {}, "at least one span"),
        ("run.csv", CSV, {"align_at": "copies"}, "rank 0 has none"),
        ("run.csv", CSV, {"zero": "none"}, "must be file or rank"),
        ("run.json", "{}", {}, "must be a list of spans"),
        ("run.json", "[1]", {}, "span 0 is 'int'"),
        ("run.json", '[{"rank":0}]', {}, "must have the column resource"),
        ("run.json", '[{"rank":0,"resource":1,"name":"n","start_ps":0,"end_ps":1}]', {}, "resource is 1"),
    ],
)
def test_bad_files_and_options_are_refused(tmp_path, name, text, options, match):
    with pytest.raises(InputError, match=match):
        read_text(tmp_path, text, name, **options)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_measured(tmp_path / "none.csv")


def test_summary_of_the_small_trace():
    """URMA engine: two wires of 1.5 us, 0.2 us apart, and a wait inside: busy for 1.7 of 2.7 us."""
    found = summary(small_trace())
    assert [(row.name, row.num_spans, row.total_ps) for row in found.phases] == [
        ("wire", 4, 6_000_000),
        ("routing", 2, 1_200_002),
        ("metadata", 2, 2 * 399_999 + 7),
        ("wait", 2, 200_006),
    ]
    assert sum(row.share for row in found.phases) == pytest.approx(1, abs=4 * np.finfo(float).eps)
    assert (found.critical.group, found.critical.name) == ("rank 0", "URMA engine")
    assert (found.critical.busy_ps, found.critical.utilisation) == (1_700_000, 1_700_000 / 2_700_000)
    assert [row.first_start_ps for row in found.resources] == [0, 1_000_000] * 2


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20))
def test_busy_time_counts_each_instant_once(pairs):
    builder = TraceBuilder()
    track = builder.track("rank 0", "HBM")
    for start, length in pairs:
        builder.span(track, "p", start, start + length)
    busy = len({tick for start, length in pairs for tick in range(start, start + length)})
    assert summary(builder.build(title="", meta={})).resources[0].busy_ps == busy


def test_waiting_is_not_being_busy():
    builder = TraceBuilder()
    track = builder.track("rank 0", "AIV 0")
    builder.span(track, "routing", 0, 10)
    builder.span(track, "wait for drain", 10, 90)
    builder.span(track, "waitress", 95, 100)
    (row,) = summary(builder.build(title="", meta={})).resources
    assert (row.busy_ps, row.first_start_ps, row.last_end_ps, row.utilisation) == (15, 0, 100, 0.15)


def test_an_empty_trace_has_no_critical_resource():
    found = summary(TraceBuilder().build(title="", meta={}))
    assert (found.phases, found.resources, found.critical) == ((), (), None)


def test_g53_one_outlier_does_not_become_the_answer():
    """G53: 99 samples of 700 us and one of 378,000 us: median 700, mean 4,473, and a note."""
    found = sample_statistics([700.0] * 99 + [378_000.0])
    assert (found.median, found.mean, found.num_samples) == (700, 4473, 100)
    assert dict(found.percentiles)[95] == 700
    assert "6.4 medians" in found.note


def test_g53_warm_up_is_left_out_and_a_calm_series_has_no_note():
    found = sample_statistics([378_000.0, *[700.0] * 99], num_warmup=1)
    assert (found.median, found.mean, found.num_samples, found.note) == (700, 700, 99, "")
    assert sample_statistics([1.0, 1.0, 4.0]).note == ""  # mean 2 is not above 2 medians


@pytest.mark.parametrize(
    ("samples", "num_warmup"), [([], 0), ([1.0], 1), ([1.0], -1), ([np.nan], 0), ([[1.0]], 0)]
)
def test_samples_that_say_nothing_are_refused(samples, num_warmup):
    with pytest.raises(InputError):
        sample_statistics(samples, num_warmup=num_warmup)
