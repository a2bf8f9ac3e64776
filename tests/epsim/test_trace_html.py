"""The HTML page, in a real browser: ranks, phases, tooltips, filters, moving about; and broken pages."""

import base64
import json
import re

import numpy as np
import pytest
from hypothesis import given

from epsim.trace import TraceBuilder
from epsim.trace.colours import IDLE, PALETTE, ink_on, phase_colours
from epsim.trace.html import html_page, write_html
from tests.epsim import browser as chromium
from tests.epsim.traces import large_trace, small_links, small_trace, span_rows, trace_of

DURATIONS = {
    *((600_001, "600.001 ns"), (399_999, "399.999 ns"), (400_006, "400.006 ns")),
    *((1_500_000, "1.5 µs"), (100_003, "100.003 ns")),
}


def data_of(page):
    """Return the JSON within a page."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


def column(data, name):
    """One packed column."""
    kind, text = data[name]
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}").astype(np.int64).tolist()


@given(span_rows())
def test_the_page_holds_every_span(rows):
    trace = trace_of(rows)
    data = data_of(html_page(trace))
    assert [data["groups"][group] for group, _ in data["tracks"]] == [group for group, _ in trace.tracks]
    assert column(data, "cuts") == np.searchsorted(trace.track, np.arange(len(trace.tracks) + 1)).tolist()
    assert column(data, "start_ps") == trace.start_ps.tolist()
    assert column(data, "length_ps") == (trace.end_ps - trace.start_ps).tolist()
    for name in ("name", "size_bytes", "peer"):
        assert column(data, name) == getattr(trace, name).tolist()


def test_equal_traces_give_equal_pages_that_need_no_network():
    page = html_page(small_trace())
    assert page == html_page(small_trace())
    assert re.findall(r"https?:|//[a-z]+\.", page) == []
    assert "default-src 'none'" in page
    assert "{{" not in page


def test_each_phase_has_its_own_colour_and_waits_are_grey():
    trace = trace_of([(0, "AIV 0", f"phase {n}", n, 1, 0, -1) for n in range(30)])
    assert len(set(phase_colours(trace))) == 30
    assert phase_colours(small_trace()) == (PALETTE[1], PALETTE[0], IDLE[0], PALETTE[2])
    assert (ink_on("#ffffff"), ink_on("#0b3c5d")) == ("#000000", "#ffffff")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = chromium.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def open_page(browser, folder, page):
    browser.get_log("browser")  # of the page before
    (folder / "page.html").write_text(page, encoding="utf-8")
    browser.get(f"file://{folder / 'page.html'}")


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())", selector
    )


def place_of(browser, span):
    return browser.execute_script("return epsim.place(arguments[0])", span)


def colour_at(browser, place):
    """Colour of the timeline's canvas left of a place, where no crosshair is, as #rrggbb."""
    # Copied first: Chromium warns when a canvas that is drawn on is read again and again.
    red, green, blue, _ = browser.execute_script(
        "const c = document.querySelector('#gantt canvas'), b = c.getBoundingClientRect(); epsim.drawNow();"
        "const copy = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
        "copy.drawImage(c, b.left - arguments[0], b.top - arguments[1]);"
        "return [...copy.getImageData(0, 0, 1, 1).data]",
        place["x"] + 9,
        place["y"] + 5,
    )
    return f"#{red:02x}{green:02x}{blue:02x}"


def expected_tip(trace, span):
    """Return what the tooltip of a span of the small trace must say, in order."""
    group, resource = trace.tracks[trace.track[span]]
    length = int(trace.end_ps[span] - trace.start_ps[span])
    said = [trace.names[trace.name[span]], group, resource, dict(DURATIONS)[length]]
    if trace.size_bytes[span]:
        said += [f"{trace.size_bytes[span]:,} B", f"rank {trace.peer[span]}"]
    return said


def faults_of(browser, folder, page, trace):
    """Open a page and return what is wrong with it: texts, bars, tooltips, console."""
    open_page(browser, folder, page)
    faults = [f"console: {entry['message']}" for entry in browser.get_log("browser")]
    if faults:
        return faults
    faults += [f"phase {name}" for name in trace.names if name not in texts(browser, "#phases button")]
    shown = " ".join(texts(browser, "#gantt canvas"))
    faults += [f"rank {group}" for group in trace.groups if group not in shown]
    colours = phase_colours(trace)
    for span in range(trace.num_spans):
        place = place_of(browser, span)
        if place is None or colour_at(browser, place) != colours[trace.name[span]]:
            faults.append(f"bar of span {span}")
            continue
        chromium.hover(browser, place)
        said = browser.find_element("id", "tip").text
        if not re.search(r"\s(.*\s)?".join(map(re.escape, expected_tip(trace, span))), said, re.DOTALL):
            faults.append(f"tooltip of span {span}: {said!r}")
    return faults


@chromium.NEEDS_BROWSER
def test_every_bar_is_shown_and_tells_about_itself(browser, tmp_path):
    write_html(small_trace(), tmp_path / "small.html")
    page = (tmp_path / "small.html").read_text(encoding="utf-8")
    assert faults_of(browser, tmp_path, page, small_trace()) == []
    assert texts(browser, "h1") == ["two ranks"]
    assert browser.find_element("id", "status").text.startswith("6 of 6 resources of 2 of 2 ranks")


def without_span(trace):
    """Return the same trace less one span."""
    builder = TraceBuilder()
    for group, name in trace.tracks:
        builder.track(group, name)
    for span in range(trace.num_spans):
        if span != 3:
            track = builder.track(*trace.tracks[trace.track[span]])
            name, start, end = trace.names[trace.name[span]], trace.start_ps[span], trace.end_ps[span]
            builder.span(track, name, start, end, size_bytes=trace.size_bytes[span], peer=trace.peer[span])
    return builder.build(title=trace.title, meta=trace.meta)


@chromium.NEEDS_BROWSER
@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda page: page.replace("{ hover(event); return; }", "return;"), "tooltip of span 0"),
        (
            lambda page: page.replace("['duration', time(lengths[span])]", "['duration', '']"),
            "tooltip of span 0",
        ),
        (lambda page: page.replace("drawTrack(paper, row, top)", "null"), "bar of span 0"),
        (lambda page: page.replace("$('phases').append", "String"), "phase metadata"),
        (lambda page: page.replace("const numSpans", "const numSpan"), "console: "),
        (lambda page: page.replace("numTracks = data.tracks.length", "numTracks = 1"), "rank rank 1"),
        (lambda _: html_page(without_span(small_trace())), "span 3"),
        (lambda page: page + '<script src="https://example.invalid/x.js"></script>', "console: "),
    ],
)
def test_a_broken_page_is_found(browser, tmp_path, spoil, fault):
    page = html_page(small_trace())
    assert spoil(page) != page
    faults = faults_of(browser, tmp_path, spoil(page), small_trace())
    assert any(fault in found for found in faults), faults


@chromium.NEEDS_BROWSER
def test_filters_of_ranks_resources_and_phases(browser, tmp_path):
    open_page(browser, tmp_path, html_page(small_trace()))
    assert place_of(browser, 0) is not None
    browser.find_element("id", "ranks").send_keys("1")
    assert place_of(browser, 0) is None  # of rank 0
    wire = place_of(browser, 7)  # of rank 1
    assert texts(browser, "#table tbody td:first-child") == ["wire", "routing", "metadata", "wait"]
    assert texts(browser, "#table tbody tr:first-child td")[1] == "2"
    browser.find_element("xpath", "//*[@id='phases']/button[contains(., 'wire')]").click()
    assert place_of(browser, 7) is None
    assert colour_at(browser, wire) not in phase_colours(small_trace())
    browser.find_element("xpath", "//*[@id='resources']/button[contains(., 'URMA')]").click()
    browser.find_element("id", "ranks").clear()
    browser.find_element("id", "ranks").send_keys("0-1")
    assert texts(browser, "#table tbody td:first-child") == ["routing", "metadata"]
    assert " ".join(texts(browser, "#gantt canvas")) == "rank 0: AIV 0, port in; rank 1: AIV 0, port in"


@chromium.NEEDS_BROWSER
def test_zoom_and_pan_by_keys_wheel_and_drag(browser, tmp_path):
    open_page(browser, tmp_path, html_page(small_trace()))
    view = lambda: browser.execute_script("return [epsim.view.low, epsim.view.high]")  # noqa: E731
    whole = view()
    gantt = browser.find_element("id", "gantt")
    gantt.send_keys("+")
    low, high = view()
    assert whole[0] < low < high < whole[1]
    gantt.send_keys("d")
    assert view()[0] > low
    chromium.drag(browser, place_of(browser, 2), 80)
    assert view()[0] < low + 0.2 * (high - low)  # a drag to the right shows earlier times
    before = view()
    browser.execute_script(
        "document.querySelector('#gantt canvas').dispatchEvent(new WheelEvent('wheel',"
        "{deltaY: -200, ctrlKey: true, bubbles: true, cancelable: true, clientX: 600, clientY: 400}))"
    )
    assert view()[1] - view()[0] < before[1] - before[0]
    gantt.send_keys("0")
    assert view() == whole


@chromium.NEEDS_BROWSER
def test_spans_can_be_read_out_by_keyboard(browser, tmp_path):
    open_page(browser, tmp_path, html_page(small_trace()))
    browser.find_element("id", "gantt").send_keys("nn")
    assert "metadata" in browser.find_element("id", "tip").text
    assert "duration 399.999 ns" in browser.find_element("id", "status").text


@chromium.NEEDS_BROWSER
def test_heat_map_tells_how_full_a_link_was(browser, tmp_path):
    open_page(browser, tmp_path, html_page(small_trace()))
    heat = browser.find_element("css selector", "#heat canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", heat)
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", heat)
    middle = {"x": box["left"] + 176 + (box["width"] - 176) / 2, "y": box["top"] + 28 + 7}
    chromium.hover(browser, middle)
    said = browser.find_element("id", "tip").text
    assert re.search(
        r"rank 0 -> plane 0\s.*100 % of 0\.4 GB/s|rank 0 -> plane 0\s.*100\.0 % of 0\.4", said, re.DOTALL
    )
    assert browser.get_log("browser") == []


@chromium.NEEDS_BROWSER
def test_both_pictures_have_one_time_axis(browser, tmp_path):
    """A scroll bar beside one of them must not make it narrower."""
    rows = [(rank, f"AIV {n}", "routing", 0, 5, 0, -1) for rank in range(12) for n in range(12)]
    builder = TraceBuilder()
    for rank, name, phase, start, end, *_ in rows:
        builder.span(builder.track(f"rank {rank}", name), phase, start, end)
    open_page(browser, tmp_path, html_page(builder.build(title="tall", meta={}, links=small_links())))
    widths = browser.execute_script(
        "return [...document.querySelectorAll('canvas')].map((c) => c.clientWidth)"
    )
    assert len(widths) == 2
    assert widths[0] == widths[1]


@chromium.NEEDS_BROWSER
def test_texts_are_never_markup(browser, tmp_path):
    evil = "</script><img src=x onerror=\"document.title='owned'\"><!--"
    builder = TraceBuilder()
    builder.span(builder.track(evil, evil), evil, 0, 5)
    open_page(browser, tmp_path, html_page(builder.build(title=evil, meta={evil: evil})))
    assert (browser.title, texts(browser, "h1"), texts(browser, "#phases button")) == (evil, [evil], [evil])
    assert browser.get_log("browser") == []


@chromium.NEEDS_BROWSER
def test_dark_and_light_follow_the_system(browser, tmp_path):
    backs = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        open_page(browser, tmp_path, html_page(small_trace()))
        backs.append(colour_at(browser, {"x": 40, "y": place_of(browser, 0)["y"]}))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert int(backs[0][1:3], 16) > 128 > int(backs[1][1:3], 16)


@chromium.NEEDS_BROWSER
def test_spans_narrower_than_a_pixel_still_show(browser, tmp_path):
    """20,000 spans without gaps on some 1,000 pixels: all of them have the phase's colour."""
    builder = TraceBuilder()
    start = np.arange(20_000) * 1000
    builder.spans(builder.track("rank 0", "AIV 0"), "wire", start, start + 1000)
    open_page(browser, tmp_path, html_page(builder.build(title="dense", meta={})))
    middle = place_of(browser, 10_000)
    left = place_of(browser, 0)["x"]
    seen = {
        colour_at(browser, {"x": x, "y": middle["y"]}) for x in np.linspace(left, middle["x"], 40).tolist()
    }
    assert seen == {PALETTE[0]}
    chromium.hover(browser, middle)
    assert re.search(r"here too\s[1-9].* more, zoom in", browser.find_element("id", "tip").text, re.DOTALL)


@chromium.NEEDS_BROWSER
def test_a_span_among_many_tells_about_itself_after_zooming(browser, tmp_path):
    trace = large_trace(64_000)
    open_page(browser, tmp_path, html_page(trace))
    span = 500
    browser.execute_script(f"epsim.show({trace.start_ps[span] - 10**6}, {trace.end_ps[span] + 10**6})")
    chromium.hover(browser, place_of(browser, span))
    assert trace.names[trace.name[span]] in browser.find_element("id", "tip").text
    assert browser.get_log("browser") == []
