"""Pictures of timelines: the same bytes for the same trace, other bytes for a lost span, and refusals."""

import re

import pytest

from epsim.errors import InputError
from epsim.trace import TraceBuilder
from epsim.trace.colours import phase_colours
from epsim.trace.plots import MOST_ROWS, gantt_plot, links_plot, readable_tracks
from tests.epsim.traces import small_trace, trace_of

pytest.importorskip("matplotlib", reason="pictures need the extra plot")
STARTS = {"png": b"\x89PNG\r\n", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", STARTS)
@pytest.mark.parametrize("plot", [gantt_plot, links_plot])
def test_equal_traces_give_equal_files(plot, suffix):
    first = plot(small_trace(), suffix)
    assert first.startswith(STARTS[suffix])
    assert first == plot(small_trace(), suffix)


def test_rows_phases_and_links_are_named_and_coloured():
    drawn = gantt_plot(small_trace(), "svg").decode()
    for text in ("rank 0 AIV 0", "rank 1 URMA engine", "routing", "wait"):
        assert f"<!-- {text} -->" in drawn
    assert {colour for colour in phase_colours(small_trace()) if colour not in drawn} == set()
    assert "<!-- plane 0 -&gt; rank 1 -->" in links_plot(small_trace(), "svg").decode()


def num_bars(trace):
    """Return how many bars the rows of a picture have."""
    drawn = gantt_plot(trace, "svg").decode()
    rows = re.findall(r'<g id="[^"]*PolyCollection[^"]*">(.*?)</g>', drawn, re.DOTALL)
    return sum(len(re.findall(r"<path [^>]*?d=.M", row)) for row in rows)


def test_a_lost_span_is_missing_from_the_picture():
    rows = [(0, "AIV 0", name, 1000 * n, 500, 0, -1) for n, name in enumerate(("routing", "wire", "routing"))]
    assert num_bars(trace_of(rows)) == 3
    assert num_bars(trace_of(rows[1:])) == 2


def test_only_the_tracks_that_were_asked_for_and_it_is_said():
    trace = small_trace()
    tracks = readable_tracks(trace, ["rank 1"])
    drawn = gantt_plot(trace, "svg", tracks=tracks).decode()
    assert "rank 1 AIV 0" in drawn
    assert "rank 0 AIV 0" not in drawn
    assert f"shown: 1 of 2 ranks, {len(tracks)} of {len(trace.tracks)} rows" in drawn
    assert "shown:" not in gantt_plot(trace, "svg").decode()


def many(num_ranks, num_aivs):
    """Return a trace in which AIV n of rank r ends at 10 + 3 n + r, and kernel and memory at 1."""
    rows = []
    for rank in range(num_ranks):
        for aiv in range(num_aivs):
            rows.append((rank, f"AIV {aiv}", "p", 0, 10 + 3 * aiv + rank, 0, -1))
        rows += [(rank, name, "p", 0, 1, 0, -1) for name in ("kernel", "memory")]
    return trace_of(rows)


def test_all_ranks_are_shown_with_their_slowest_cores_and_no_more_rows_than_fit():
    trace = many(8, 64)
    order = [f"rank {rank}" for rank in (5, 1, 0, 2, 3, 4, 6, 7)]
    names = [trace.tracks[track] for track in readable_tracks(trace, order)]
    assert list(dict.fromkeys(group for group, _ in names)) == order
    assert len(names) == MOST_ROWS == 8 * 12
    assert {name for group, name in names if group == "rank 5"} == {
        "kernel", "memory", *(f"AIV {aiv}" for aiv in range(54, 64))
    }  # fmt: skip


def test_of_many_ranks_the_first_named_are_shown():
    trace = many(128, 2)
    order = [f"rank {rank}" for rank in reversed(range(128))]
    names = [trace.tracks[track] for track in readable_tracks(trace, order)]
    groups = list(dict.fromkeys(group for group, _ in names))
    assert groups == order[: MOST_ROWS // 3]
    assert {name for _, name in names} == {"kernel", "memory", "AIV 1"}


def test_a_title_is_text_and_no_formula():
    builder = TraceBuilder()
    builder.span(builder.track("rank 0", "AIV 0"), "p", 0, 5)
    drawn = gantt_plot(builder.build(title=r"costs $\frac{1}$", meta={}), "svg")
    assert drawn.startswith(STARTS["svg"])


@pytest.mark.parametrize(
    ("trace", "options", "match"),
    [
        (small_trace(), {"tracks": (99,)}, "tracks is 99"),
        (small_trace(), {"tracks": ()}, "rows is 0"),
        (
            trace_of([(n, "AIV 0", "p", 0, 1, 0, -1) for n in range(MOST_ROWS + 1)]),
            {},
            f"rows is {MOST_ROWS + 1}",
        ),
        (small_trace(), {"suffix": "pdf"}, "suffix is 'pdf'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(trace, options, match):
    with pytest.raises(InputError, match=match):
        gantt_plot(trace, **{"suffix": "png"} | options)


def test_a_trace_without_links_or_spans_is_refused():
    with pytest.raises(InputError, match="links is None"):
        links_plot(small_trace(links=False), "png")
    builder = TraceBuilder()
    builder.track("rank 0", "AIV 0")
    with pytest.raises(InputError, match="at least one span"):
        gantt_plot(builder.build(title="", meta={}), "png")
