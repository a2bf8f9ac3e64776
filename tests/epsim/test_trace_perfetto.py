"""Perfetto JSON: exact there and back, readable names, files of others, refusals, planted losses."""

import json
from decimal import Decimal

import pytest
from hypothesis import given

from epsim.errors import InputError
from epsim.trace.perfetto import parse_perfetto, perfetto_json, read_perfetto, write_perfetto
from tests.epsim.traces import small_trace, span_rows, trace_of


@given(span_rows())
def test_there_and_back_is_the_same_trace(rows):
    trace = trace_of(rows)
    assert parse_perfetto(perfetto_json(trace).encode(), "t.json").digest() == trace.digest()


def test_file_with_links_comes_back_whole(tmp_path):
    write_perfetto(small_trace(), tmp_path / "t.json")
    assert read_perfetto(tmp_path / "t.json").digest() == small_trace().digest()


def events_of(trace, kind):
    return [event for event in json.loads(perfetto_json(trace))["traceEvents"] if event["ph"] == kind]


def digest_of(document):
    return parse_perfetto(json.dumps(document, default=float).encode(), "t.json").digest()


@pytest.mark.parametrize("spoil", ["lost", "shorter by 1 ps", "other peer", "other thread"])
def test_a_spoiled_export_is_found(spoil):
    """The round trip sees a span that is lost or changed on the way out."""
    document = json.loads(perfetto_json(small_trace()), parse_float=Decimal)
    assert digest_of(document) == small_trace().digest()
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    if spoil == "lost":
        document["traceEvents"].remove(spans[3])
    elif spoil == "shorter by 1 ps":
        spans[0]["args"]["end_ps"] -= 1
    elif spoil == "other peer":
        spans[3]["args"]["peer"] = 5
    else:
        spans[3]["tid"] = spans[0]["tid"]
    assert digest_of(document) != small_trace().digest()


def test_processes_are_ranks_and_threads_resources_in_order():
    named = {(e["name"], e["pid"], e.get("tid")): e["args"] for e in events_of(small_trace(), "M")}
    pids = sorted({pid for _, pid, _ in named})
    assert [named["process_name", pid, None]["name"] for pid in pids] == ["rank 0", "rank 1", "links"]
    assert [named["process_sort_index", pid, None]["sort_index"] for pid in pids] == [0, 1, 2]
    threads = [
        args["name"] for (what, pid, _), args in named.items() if (what, pid) == ("thread_name", pids[0])
    ]
    assert threads == ["AIV 0", "URMA engine", "URMA engine", "port in"]  # two wires overlap without nesting


def test_a_complete_event_has_microseconds_and_arguments():
    wire = next(event for event in events_of(small_trace(), "X") if event["name"] == "wire")
    assert (wire["ts"], wire["dur"], wire["args"]) == (1.0, 1.5, {"bytes": 7168, "peer": 1})
    # 600.001 to 1000 ns
    assert '"ts":0.600,"dur":0.400,"args":{"start_ps":600001,"end_ps":1000000}}' in perfetto_json(
        small_trace()
    )
    assert json.loads(perfetto_json(small_trace()))["displayTimeUnit"] == "ns"


def misplaced(text):
    """Return events that neither nest in nor follow those before them on their thread; times are whole ns."""
    stacks, found = {}, []
    for event in json.loads(text, parse_float=Decimal)["traceEvents"]:
        if event["ph"] == "X":
            start, length = event["ts"] * 1000, event["dur"] * 1000
            assert start == int(start)
            assert length == int(length)
            stack = stacks.setdefault(event["tid"], [])
            while stack and stack[-1] <= start:
                stack.pop()
            if stack and start + length > stack[-1]:
                found.append(event)
            stack.append(start + length)
    return found


@given(span_rows())
def test_spans_of_a_thread_nest_or_follow(rows):
    """Perfetto misplaces those that do not; an outer span stands before those in it."""
    assert misplaced(perfetto_json(trace_of(rows))) == []


def test_spans_that_would_be_misplaced_are_found():
    """Both wires of a rank on one thread."""
    text = perfetto_json(small_trace())
    tids = [event["tid"] for event in events_of(small_trace(), "X") if event["name"] == "wire"]
    assert len(set(tids)) == 4
    assert len(misplaced(text.replace(f'"tid":{tids[1]},', f'"tid":{tids[0]},'))) == 1


def test_counters_show_utilisation_in_percent():
    counters = [e for e in events_of(small_trace(), "C") if e["name"] == "rank 0 -> plane 0"]
    assert [(e["ts"], e["args"]["%"]) for e in counters] == [(0, 25), (1, 100), (2, 0), (3, 0)]


OTHERS = [
    {"ph": "B", "pid": 7, "tid": 1, "ts": 1_700_000_000_000_000.5, "name": "outer"},
    {"ph": "B", "pid": 7, "tid": 1, "ts": 1_700_000_000_000_001, "name": "inner", "args": {"bytes": 12}},
    {"ph": "E", "pid": 7, "tid": 1, "ts": 1_700_000_000_000_002},
    {"ph": "E", "pid": 7, "tid": 1, "ts": 1_700_000_000_000_003, "args": {"peer": 4}},
    {"ph": "E", "pid": 7, "tid": 2, "ts": 1_700_000_000_000_003},
    {"ph": "B", "pid": 7, "tid": 2, "ts": 1_700_000_000_000_004, "name": "cut"},
    {"ph": "i", "pid": 7, "tid": 2, "ts": 1_700_000_000_000_004, "name": "instant"},
    {
        "ph": "X",
        "pid": "GPU",
        "ts": "1700000000000009",
        "dur": 0.25,
        "name": "kernel",
        "args": {"bytes": "12 MB"},
    },
]


def test_begin_end_pairs_and_missing_names_of_other_programs():
    trace = parse_perfetto(json.dumps(OTHERS).encode(), "others.json")
    rows = zip(
        trace.track, trace.name, trace.start_ps, trace.end_ps, trace.size_bytes, trace.peer, strict=True
    )
    assert [(trace.tracks[t], trace.names[n], *map(int, rest)) for t, n, *rest in rows] == [
        (("pid 7", "tid 1"), "outer", 0, 2_500_000, 0, 4),
        (("pid 7", "tid 1"), "inner", 500_000, 1_500_000, 12, -1),
        (("pid GPU", "tid 0"), "kernel", 8_500_000, 8_750_000, 0, -1),
    ]
    assert trace.meta["left out"] == "1 x begins without an end, 1 x ends without a begin, 1 x kind i"
    assert "1700000000000000.500000 us" in trace.meta["zero"]


def test_processes_of_one_name_stay_apart():
    names = [{"ph": "M", "pid": p, "name": "process_name", "args": {"name": "python"}} for p in (1, 2)]
    spans = [{"ph": "X", "pid": p, "tid": 3, "ts": 0, "dur": 1, "name": "k"} for p in (1, 2)]
    assert parse_perfetto(json.dumps(names + spans).encode(), "o.json").groups == (
        "python (pid 1)",
        "python (pid 2)",
    )


OURS = '{"otherData":{"format":"epsim trace 1"},'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "must be JSON"),
        ("[NaN]", "NaN is no JSON number"),
        ("[" * 100_000, "must be JSON"),
        ("{}", "must be an array of events"),
        ("[3]", "event 0 is 'int': must be an object"),
        ('[{"ph":"X","ts":0,"name":"k"}]', "event 0, dur is None: must be a decimal number"),
        ('[{"ph":"X","ts":1e99999999,"dur":1}]', "event 0, ts is .*: must be a decimal number"),
        ('[{"ph":"X","ts":0,"dur":-1}]', "end_ps is -1000000: must not lie before"),
        ('[{"ph":"X","ts":0,"dur":1},{"ph":"X","ts":1e15,"dur":1}]', "within 106 days"),
        ('[{"ph":"X","ts":0,"dur":1,"pid":[1]}]', "event 0, pid is .*: must be a whole number or a text"),
        (
            OURS + '"traceEvents":[{"ph":"X","ts":0.002,"dur":1,"args":{"start_ps":1}}]}',
            "start_ps is 1: must be",
        ),
        (OURS + '"epsimLinks":{},"traceEvents":[]}', "arrays of a LinkLoad"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(text, match):
    with pytest.raises(InputError, match=match):
        parse_perfetto(text.encode(), "bad.json")
