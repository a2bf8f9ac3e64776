"""Pictures of timelines: the same bytes for the same trace, other bytes for a lost span, and refusals."""

import re

import pytest

from epsim.errors import InputError
from epsim.trace import TraceBuilder
from epsim.trace.colours import phase_colours
from epsim.trace.plots import MOST_ROWS, gantt_plot, links_plot
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


def test_only_the_groups_that_were_asked_for():
    drawn = gantt_plot(small_trace(), "svg", groups=("rank 1",)).decode()
    assert "rank 1 AIV 0" in drawn
    assert "rank 0 AIV 0" not in drawn


def test_a_title_is_text_and_no_formula():
    builder = TraceBuilder()
    builder.span(builder.track("rank 0", "AIV 0"), "p", 0, 5)
    drawn = gantt_plot(builder.build(title=r"costs $\frac{1}$", meta={}), "svg")
    assert drawn.startswith(STARTS["svg"])


@pytest.mark.parametrize(
    ("trace", "options", "match"),
    [
        (small_trace(), {"groups": ("rank 7",)}, "groups is 'rank 7'"),
        (small_trace(), {"groups": ()}, "rows is 0"),
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
