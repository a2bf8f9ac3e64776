"""The claims of docs/fan-out.md on the quick part of the study, and what the study added to the events."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.sim.clock import Clock
from epsim.sim.contexts import Contexts
from epsim.sim.fabric import Fabric, Piece, Port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fan-out.md"


@pytest.fixture(scope="module")
def fan_out():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import fan_out
    finally:
        sys.path.pop(0)
    return fan_out


@pytest.fixture(scope="module")
def figures(fan_out):
    return fan_out.study(fan_out.QUICK)


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_without_a_mechanism_ep64_is_above_its_published_range(fan_out, figures, operation):
    found = figures["none", operation, 64]
    assert found.gb_per_s > fan_out.published()[operation, 64].high + 0.5


def test_without_a_mechanism_combine_keeps_its_range_at_ep8(fan_out, figures):
    assert figures["none", "combine", 8].place(fan_out.published()["combine", 8]) == "inside"


def test_contexts_that_fit_cost_nothing(figures):
    found = figures["contexts", "combine", 16]
    assert (found.misses, found.lost_us) == (0, 0)


def test_contexts_that_do_not_fit_bend_combine_as_published(fan_out, figures):
    known = fan_out.published()["combine", 64]
    none, contexts = figures["none", "combine", 64], figures["contexts", "combine", 64]
    share = (none.gb_per_s - contexts.gb_per_s) / (none.gb_per_s - known.middle)
    assert 0.8 < share < 1.2
    assert 0 < figures["contexts", "combine", 32].lost_us < contexts.lost_us / 2


def test_the_page_shows_what_the_quick_study_gives(figures):
    text = PAGE.read_text()
    row = re.search(r"\| dispatch \|.*?\| no mechanism \|([^\n]*)", text, re.DOTALL)
    cells = [float(cell.split()[0]) for cell in row[1].strip(" |").split("|")]
    assert cells[0] == round(figures["none", "dispatch", 8].gb_per_s, 1)
    assert cells[3] == round(figures["none", "dispatch", 64].gb_per_s, 1)


@given(
    slots=st.integers(1, 20), rule=st.sampled_from(["oldest", "random"]), keys=st.lists(st.integers(0, 30))
)
def test_a_table_misses_first_uses_and_never_what_fits(slots, rule, keys):
    table = Contexts(slots, rule, 0)
    for key in keys:
        table.find(("jetty", key))
        assert table.find(("jetty", key))
    fewest = len(set(keys))
    assert table.num_misses >= fewest
    if fewest <= slots:
        assert table.num_misses == fewest


def test_going_round_one_more_than_fits_always_misses_unless_any_makes_room():
    keys = [("jetty", key) for key in range(9)]
    misses = {}
    for rule in ("oldest", "random"):
        table = Contexts(8, rule, 0)
        table.warm(keys)
        for key in keys * 100:
            table.find(key)
        misses[rule] = table.num_misses
    # Only what the warm table still had can be found, once.
    assert misses["oldest"] >= 900 - 8
    assert 0 < misses["random"] < misses["oldest"] / 2


def test_warm_contexts_that_fit_never_miss():
    table = Contexts(9, "oldest", 0)
    keys = [("jetty", key) for key in range(9)]
    table.warm(keys)
    assert all(table.find(key) for key in keys)


@pytest.mark.parametrize(("is_fifo", "free_ps"), [(False, 2_000), (True, 17_000)])
def test_the_head_of_an_input_holds_back_what_is_behind_it_only_in_one_queue(is_fifo, free_ps):
    # Two inputs each send 1 kB to output 0, which takes one after the other; behind the second one waits a
    # piece for output 1, which is free. Links carry 1 byte per ps, outputs 1 byte in 8 ps.
    clock, ends = Clock(), {}
    fabric = Fabric(clock, lambda piece: ends.__setitem__(piece.chunk, clock.now_ps), is_fifo=is_fifo)
    inputs = [fabric.add(Port(f"in {i}", 1e12, 0, 1 << 20)) for i in range(2)]
    slow, free = fabric.add(Port("out 0", 1.25e11, 0, None)), fabric.add(Port("out 1", 1e12, 0, None))
    fabric.enter(Piece("first", (inputs[0], slow), 1_000))
    fabric.enter(Piece("second", (inputs[1], slow), 1_000))
    fabric.enter(Piece("behind", (inputs[1], free), 1_000))
    clock.env.run()
    assert ends["second"] == 16_000
    assert ends["behind"] == free_ps
