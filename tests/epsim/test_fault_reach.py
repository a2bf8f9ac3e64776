"""Faults that no rank meets, cables that are one, and what waiting for room adds to a fault."""

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.faults.applied import is_on_a_path
from epsim.faults.kinds import parse_fault
from epsim.report.whatif import changes_text
from epsim.sim.run import EventOptions
from epsim.whatif import whatif
from topology import clos, ubl128

COMMON = {"ep": 4, "tokens": 128, "operations": ("dispatch",)}
NOWHERE = [
    "link-down:npu9/plane2", "link-slow:npu9/plane2@0.5", "lossy:npu9/plane2@0.05",
    "miscabled:npu9/plane2<->npu10/plane5",
]  # fmt: skip


@pytest.mark.parametrize("level", ["flow", "events"])
@pytest.mark.parametrize("spec", NOWHERE)
def test_a_fault_of_cards_outside_the_group_is_said_to_change_nothing(level, spec):
    [change] = whatif([spec], level=level, **COMMON)
    assert change.after.time_us == change.before.time_us == change.by_arithmetic_us
    assert "no rank of the group sends over it" in changes_text([change])


@pytest.mark.parametrize("spec", NOWHERE[:3])
def test_the_same_cards_in_the_group_are_met(spec):
    [change] = whatif([spec], level="flow", npus=(0, 1, 9, 10), **COMMON)
    assert change.after.time_us > change.before.time_us
    assert "no rank of the group" not in changes_text([change])


def test_trunks_and_switches_count_when_routes_use_them():
    topology = clos(64, supernode_size=8, scaleout_radix=32)
    everywhere, inside = np.arange(64), np.arange(8)
    trunk = int(np.flatnonzero(np.minimum(topology.link_src, topology.link_dst) >= 64)[0])
    names = [topology.vertex_name(int(ends[trunk])) for ends in (topology.link_src, topology.link_dst)]
    for spec in (f"link-slow:{names[0]}-{names[1]}@0.5", f"switch-slow:{names[0]}@0.5"):
        assert is_on_a_path(parse_fault(spec), topology, everywhere)
        assert not is_on_a_path(parse_fault(spec), topology, inside)
    assert is_on_a_path(parse_fault("plane-lost:2"), topology, inside)


def test_one_cable_cannot_be_swapped_with_itself():
    with pytest.raises(InputError, match="must name two different cables"):
        whatif(["miscabled:npu3/plane2<->npu3/plane2"], system=ubl128(8), **COMMON)


def test_a_swap_across_planes_shows_as_a_finding():
    [change] = whatif(["miscabled:npu3/plane2<->npu2/plane5"], level="flow", **COMMON)
    assert any("mixed-planes" in finding for finding in change.findings)


LOSSY = {"ep": 8, "tokens": 2048, "operations": ("dispatch",), "with_slope": False}


def test_what_events_add_to_a_fault_is_waiting_for_room():
    """A slower card falls out of step with the rotation; with room for all, or rotated cores, it is fluid."""
    spec = ["link-slow:npu3/plane2@0.7"]
    [flow] = whatif(spec, level="flow", **LOSSY)
    [events] = whatif(spec, **LOSSY)
    [roomy] = whatif(spec, events=EventOptions(credit_bytes=1 << 30, window_packets=1 << 20), **LOSSY)
    [rotated] = whatif(spec, events=EventOptions(rotates_by_aiv=True), **LOSSY)
    gap, *others = (abs(run.time_change - flow.time_change) for run in (events, roomy, rotated))
    assert gap > max(others)
    assert events.held_change_us.max() > roomy.held_change_us.max() == 0
    assert "waits" in changes_text([events])
    assert "more for room" not in changes_text([roomy]) + changes_text([flow])
