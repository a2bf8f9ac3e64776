"""What a fault costs lies between nothing and simple arithmetic; graph faults say what they change."""

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.faults.applied import faulty_topology, places
from epsim.faults.kinds import FORMS, parse_family, parse_fault
from epsim.platform.machine import LINK_RETRY_PS
from epsim.sim.run import EventOptions
from epsim.sim.upsets import Jitter, Retries
from epsim.simulate import simulate
from epsim.whatif import whatif
from topology import Router, TopologyError, ubl128

COMMON = {"ep": 8, "tokens": 512, "with_slope": False}
BOTH = [spec.example for name, spec in FORMS.items() if not spec.is_events_only and name != "miscabled"]


@pytest.mark.parametrize("spec", BOTH)
def test_at_flow_level_a_fault_costs_something_and_no_more_than_arithmetic_says(spec):
    # Everything before and after the bytes is unchanged, so the whole time over the rate left is above.
    changes = whatif([spec], level="flow", **COMMON)
    for change in changes:
        # Three times are rounded to a picosecond.
        assert change.before.time_us <= change.after.time_us <= change.by_arithmetic_us + 3e-6
    # One of the two may be held up by a card that the fault does not touch.
    assert any(change.before.time_us < change.after.time_us for change in changes)


@pytest.mark.parametrize("level", ["flow", "events"])
def test_swapped_cables_cost_their_cards_a_plane_each(level):
    for change in whatif(["miscabled:npu3/plane2<->npu4/plane5"], level=level, **COMMON):
        # Between the two cards 6 of 8 planes are left, and 7 of 8 from them to all others.
        assert change.before.time_us < change.after.time_us < change.before.time_us * 8 / 6


def test_cables_swapped_within_a_plane_change_nothing():
    for change in whatif(["miscabled:npu3/plane2<->npu4/plane2"], level="flow", **COMMON):
        assert change.after.time_us == change.before.time_us
        assert change.explained_by == ""


def test_no_jitter_gives_the_bytes_of_the_healthy_trace():
    small = {**COMMON, "tokens": 64, "operations": ("dispatch",)}
    options = EventOptions(with_trace=True)
    [healthy] = simulate(events=options, **small)
    [still] = simulate(events=options, faults=("jitter@0",), **small)
    assert healthy.trace.digest() == still.trace.digest()


def test_jitter_stays_within_its_part():
    jitter = Jitter(0.02, 0, 3)
    drawn = [jitter.draw(1_000_000) for _ in range(2000)]
    assert max(map(abs, drawn)) <= 20_000
    assert min(drawn) < 0 < max(drawn)
    assert drawn == [Jitter(0.02, 0, 3).draw(1_000_000), *drawn[1:]]
    assert Jitter(0.02, 1, 3).draw(1_000_000) != drawn[0]


def test_losses_come_as_often_as_they_should():
    # A Poisson count of mean 10,000 stays within five standard deviations, 500; the seed is fixed.
    retries = Retries([1e-6], "seed")
    losses = sum(retries(1_000_000) for _ in range(10_000)) // LINK_RETRY_PS
    assert abs(losses - 10_000) <= 500


def test_links_of_one_port_share_its_bytes():
    # One lossy link of eight delivers an eighth of the bytes, so it loses an eighth as often.
    retries = Retries([1e-6] + [0.0] * 7, "seed")
    losses = sum(retries(8_000_000) for _ in range(10_000)) // LINK_RETRY_PS
    assert abs(losses - 10_000) <= 500


@pytest.mark.parametrize("policy", ["spray", "flow-hash", "pinned"])
def test_routes_leave_out_what_is_down(policy):
    topology = faulty_topology(ubl128(8), [parse_fault("link-down:npu3/plane2")])
    routes = Router(topology).find([3] * 7, [0, 1, 2, 4, 5, 6, 7], policy)
    assert 2 not in topology.link_plane[routes.link_idx]


def test_a_pair_that_is_cut_off_is_named():
    topology = ubl128(4, planes=1)
    with pytest.raises(TopologyError, match=r"npu\d -> npu\d"):
        whatif(["link-down:npu3/plane0"], system=topology, level="flow", ep=4, tokens=64)


def test_only_the_named_cable_changes():
    healthy = ubl128(8)
    slow = faulty_topology(healthy, [parse_fault("link-slow:npu3/plane2@0.5")])
    differs = slow.link_bytes_per_s() != healthy.link_bytes_per_s()
    assert differs.sum() == 2
    assert (slow.link_bytes_per_s()[differs] * 2 == healthy.link_bytes_per_s()[differs]).all()
    assert set(slow.link_plane[differs].tolist()) == {2}


@pytest.mark.parametrize(("family", "count"), [("plane-lost", 8), ("rank-slow@0.5", 4), ("link-down", 32)])
def test_every_place_of_a_group_is_listed(family, count):
    found = places(parse_family(family), ubl128(8), np.arange(4))
    assert len(set(found)) == count
    assert [parse_fault(str(fault)) for fault in found] == found


@pytest.mark.parametrize("text", ["jitter@0.1", "plane-lost:2", "miscabled", "nothing"])
def test_what_has_no_places_is_refused(text):
    with pytest.raises(InputError):
        parse_family(text)
