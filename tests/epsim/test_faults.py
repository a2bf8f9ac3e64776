"""Every fault does what it says, at every level that takes it; a fault that is not applied is noticed."""

import pytest

from epsim.errors import InputError
from epsim.faults.kinds import FORMS, parse_fault
from epsim.sim.clock import StuckError
from epsim.sim.run import EventOptions
from epsim.simulate import simulate

COMMON = {"ep": 8, "tokens": 512, "operations": ("dispatch",), "with_slope": False}


def time_us(level, *faults, **changes):
    [item] = simulate(level=level, faults=faults, **{**COMMON, **changes})
    return item.time_us


ROUNDED = 3e-6
"""Bounds are rounded down to a picosecond: twice one, and one, are at most 3 ps apart; in microseconds."""

SLOWER = [
    "link-down:npu3/plane2", "link-slow:npu3/plane2@0.5", "plane-lost:2", "switch-slow:sw2@0.5",
    "rank-slow:5@0.5", "rank-late:5@100us", "lossy:npu3/plane2@0.05",
]  # fmt: skip


@pytest.mark.parametrize("level", ["flow", "events"])
@pytest.mark.parametrize("spec", SLOWER)
def test_a_fault_costs_time(level, spec):
    assert time_us(level, spec) > time_us(level)


@pytest.mark.parametrize("level", ["flow", "events"])
def test_a_late_rank_shifts_the_end_by_its_delay(level):
    assert time_us(level, "rank-late:5@100us") - time_us(level) == pytest.approx(100.0, abs=1e-5)


def test_a_plane_lost_leaves_seven_eighths_to_the_busiest_link():
    [whole] = simulate(level="flow", **COMMON)
    [lost] = simulate(level="flow", faults=("plane-lost:2",), **COMMON)
    assert lost.bound_us == pytest.approx(whole.bound_us * 8 / 7, abs=ROUNDED)


def test_half_a_switch_doubles_what_its_links_need():
    [whole] = simulate(level="flow", **COMMON)
    [slow] = simulate(level="flow", faults=("switch-slow:sw2@0.5",), **COMMON)
    assert slow.bound_us == pytest.approx(2 * whole.bound_us, abs=ROUNDED)


def digest(*faults, seed=0):
    options = EventOptions(with_trace=True)
    [item] = simulate(level="events", faults=faults, events=options, seed=seed, **{**COMMON, "tokens": 64})
    return item.trace.digest()


@pytest.mark.parametrize("spec", ["jitter@0.05", "lossy:npu3/plane2@0.05"])
def test_what_is_drawn_repeats_by_seed(spec):
    assert digest(spec) == digest(spec)
    assert digest(spec) != digest()


def test_faults_add_up():
    both = time_us("events", "rank-late:5@50us", "plane-lost:1")
    assert both > max(time_us("events", "rank-late:5@50us"), time_us("events", "plane-lost:1"))


@pytest.mark.parametrize(("spec", "named"), [("rank-dead:3", "rank 3"), ("receiver-stuck:3", "npu3")])
def test_a_run_that_cannot_end_names_the_fault(spec, named):
    with pytest.raises(StuckError, match=named):
        time_us("events", spec)


@pytest.mark.parametrize("spec", ["jitter@0.05", "rank-dead:3", "receiver-stuck:3"])
def test_what_only_events_have_is_refused_at_flow_level(spec):
    with pytest.raises(InputError):
        time_us("flow", spec)


WRONG = [
    "", "plane-lost", "plane-lost:x", "plane-lost:2@0.5", "link-slow:npu3/plane2", "link-slow:npu3/plane2@0",
    "link-slow:npu3/plane2@2", "rank-slow:5@nan", "rank-late:5@100", "lossy:npu3/plane2@1.5", "jiter@0.1",
]  # fmt: skip


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_no_fault_is_refused(spec):
    with pytest.raises(ValueError, match=r".+: .+"):
        parse_fault(spec)


@pytest.mark.parametrize("spec", ["plane-lost:99", "rank-slow:8@0.5", "link-down:npu199/plane0"])
def test_a_place_that_is_not_there_is_refused(spec):
    with pytest.raises(ValueError, match=r"99|8"):
        time_us("events", spec)


def test_every_kind_has_a_meaning():
    assert {spec.partition(":")[0] for spec in SLOWER} < set(FORMS)
    assert all(form.example for form in FORMS.values())
