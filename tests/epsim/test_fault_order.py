"""Faults mean the same in every order, and one that others take the cable from is refused by both names."""

from itertools import permutations

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.faults.applied import faulty_topology
from epsim.faults.kinds import parse_faults
from topology import ubl128

CONTRADICTIONS = [
    ("link-down:npu3/plane2", "link-slow:npu3/plane2@0.5"),
    ("plane-lost:2", "link-down:npu3/plane2"),
    ("link-down:npu3/plane2", "link-down:npu3-sw2"),
    ("link-down:npu3/plane2", "miscabled:npu3/plane2<->npu4/plane5"),
    ("plane-lost:2", "lossy:npu3/plane2@1e-3"),
    ("plane-lost:2", "switch-slow:sw2@0.5"),
]


def verdict(specs):
    """Return what is said to faults in this order."""
    with pytest.raises(InputError) as caught:
        faulty_topology(ubl128(8), parse_faults(specs, "flow"))
    return str(caught.value)


@pytest.mark.parametrize("pair", CONTRADICTIONS)
def test_a_contradiction_has_one_verdict_that_names_both(pair):
    said = verdict(pair)
    assert said == verdict(pair[::-1])
    assert all(spec in said.replace("0.001", "1e-3") for spec in pair)


def test_two_faults_that_take_a_cable_together_are_named_both():
    both = ["link-down:npu0-sw2", "link-down:npu1-sw2"]
    rest = [f"link-down:npu{npu}-sw2" for npu in range(2, 8)]
    said = verdict(["switch-slow:sw2@0.5", *both, *rest])
    assert said.startswith("fault is 'switch-slow:sw2@0.5'")
    assert all(spec in said for spec in (*both, *rest))


def drawn(topology):
    """Return its links as rows that do not depend on their numbers."""
    rates = topology.link_bytes_per_s()
    return sorted(zip(*(c.tolist() for c in (topology.link_src, topology.link_dst, rates)), strict=True))


def test_order_changes_nothing():
    """A name is that of the healthy graph, though a swap or a lost cable comes first."""
    specs = ("link-slow:npu3-sw2@0.5", "miscabled:npu3/plane2<->npu4/plane5", "link-down:npu5/plane1")
    graphs = [drawn(faulty_topology(ubl128(8), parse_faults(some, "flow"))) for some in permutations(specs)]
    assert all(graph == graphs[0] for graph in graphs)
    assert graphs[0] != drawn(ubl128(8))


def test_faults_of_ranks_leave_the_graph_alone():
    healthy = ubl128(8)
    assert faulty_topology(healthy, parse_faults(["rank-slow:0@0.5", "rank-late:1@1us"], "flow")) is healthy


def test_a_cable_that_is_lost_in_part_can_still_be_slow():
    """The switch has other cables left."""
    graph = faulty_topology(ubl128(8), parse_faults(["link-down:npu3/plane2", "switch-slow:sw2@0.5"], "flow"))
    slow = graph.link_bytes_per_s() < ubl128(8).link_bytes_per_s().max()
    assert np.count_nonzero(slow) == 14
