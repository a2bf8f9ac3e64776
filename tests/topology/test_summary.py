"""The summary that closed forms read, and faults made on purpose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import healthy_topologies, topologies
from topology import (
    Source,
    TopologyError,
    clos,
    find_routes,
    leaf_spine,
    mesh,
    summarize,
    ubl128,
    with_link_rate,
    without_links,
)

GIVEN = Source("given", "test")


def test_the_default_supernode_in_numbers():
    layer = summarize(ubl128()).layer(1)
    assert (layer.num_npus, layer.domain_size, layer.num_planes) == (128, 128, 8)
    assert (layer.ports_per_npu_min, layer.ports_per_npu_max) == (8, 8)
    assert layer.npu_bytes_per_s_min == layer.npu_bytes_per_s_max == 400_000_000_000
    assert (layer.num_hops_min, layer.num_hops_max) == (2, 2)
    assert layer.latency_ps_min == layer.latency_ps_max == 300_000
    assert layer.oversubscription == ()
    assert [c.name for c in layer.classes] == ["ubl-up", "ubl-down"]


def test_a_scaleout_in_numbers():
    summary = summarize(clos(1024, oversubscription=2))
    assert (summary.num_npus, summary.supernode_size, summary.server_size) == (1024, 128, 8)
    assert [layer.netlayer for layer in summary.layers] == [1, 2]
    assert summary.layer(1).domain_size == 128
    layer = summary.layer(2)
    assert (layer.domain_size, layer.ports_per_npu_max, layer.npu_bytes_per_s_min) == (
        1024,
        1,
        50_000_000_000,
    )
    # Near: two cables of 150 ns and one leaf of 200 ns. Far: four cables and three switches.
    assert (layer.num_hops_min, layer.latency_ps_min) == (2, 500_000)
    assert (layer.num_hops_max, layer.latency_ps_max) == (4, 1_200_000)
    # Leaves of 170 down and 85 up.
    assert layer.oversubscription == (2.0,)


def test_a_mesh_in_numbers():
    layer = summarize(mesh()).layer(0)
    assert (layer.domain_size, layer.ports_per_npu_min, layer.num_hops_max) == (8, 7, 1)
    assert layer.npu_bytes_per_s_max == 350_000_000_000
    assert layer.oversubscription == ()


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(TopologyError, match=r"has only netlayers \[1\]"):
        summarize(ubl128()).layer(2)


def test_a_slow_port_shows_in_the_slowest_card_only():
    topology = ubl128(4)
    slow = with_link_rate(topology, topology.links_between(2, topology.vertex("sw1")), 10**10, GIVEN)
    layer = summarize(slow).layer(1)
    assert layer.npu_bytes_per_s_min == 7 * 50 * 10**9 + 10**10
    assert layer.npu_bytes_per_s_max == 8 * 50 * 10**9


def test_leaves_without_common_spines_are_two_domains():
    topology = leaf_spine(8, leaves=4, spines=2)
    ends = topology.link_src, topology.link_dst
    first, second = topology.vertex("sw4"), topology.vertex("sw5")
    near = [topology.vertex(f"sw{n}") for n in (0, 1)]
    far = [topology.vertex(f"sw{n}") for n in (2, 3)]
    cut = [
        n
        for n in range(topology.num_links)
        for a, b in [{int(ends[0][n]), int(ends[1][n])}]
        if {a, b} & {first, second} and not ({a, b} <= {first, *near} or {a, b} <= {second, *far})
    ]
    assert summarize(topology).layer(1).domain_size == 8
    assert summarize(without_links(topology, np.array(cut))).layer(1).domain_size == 4


@given(healthy_topologies())
def test_latency_and_hops_are_those_of_routes(topology):
    src, dst = np.divmod(np.arange(topology.num_npus**2), topology.num_npus)
    keep = src != dst
    routes = find_routes(topology, src[keep], dst[keep])
    for layer in summarize(topology).layers:
        used = routes.netlayer == layer.netlayer
        found = routes.latency_ps(topology)[used]
        if len(found):
            assert layer.latency_ps_min <= found.min()
            assert found.max() <= layer.latency_ps_max
            hops = routes.hop[used[routes.flow_idx]]
            assert hops.max() + 1 <= layer.num_hops_max


@given(topologies(), st.data())
def test_removed_links_are_gone_and_the_others_stay_in_order(topology, data):
    if not topology.num_links:
        return
    lost = data.draw(st.lists(st.integers(0, topology.num_links - 1), unique=True))
    smaller = without_links(topology, np.array(lost, np.int64))
    kept = [n for n in range(topology.num_links) if n not in lost]
    assert smaller.link_src.tolist() == topology.link_src[kept].tolist()
    assert smaller.link_class.tolist() == topology.link_class[kept].tolist()


@given(topologies(), st.data())
def test_a_changed_rate_reaches_only_its_links(topology, data):
    if not topology.num_links:
        return
    slow = data.draw(st.lists(st.integers(0, topology.num_links - 1), unique=True))
    changed = with_link_rate(topology, np.array(slow, np.int64), 123, GIVEN)
    expected = topology.link_bytes_per_s()
    expected[slow] = 123
    assert changed.link_bytes_per_s().tolist() == expected.tolist()
    assert changed.link_latency_ps().tolist() == topology.link_latency_ps().tolist()


@pytest.mark.parametrize("link", [-1, 64])
def test_a_fault_in_a_link_that_is_not_there_is_refused(link):
    with pytest.raises(TopologyError, match=r"must be in 0\.\.63"):
        without_links(ubl128(4), np.array([link]))
    with pytest.raises(TopologyError, match=r"must be in 0\.\.63"):
        with_link_rate(ubl128(4), np.array([link]), 1, GIVEN)


def test_a_rate_of_zero_is_no_slow_link():
    with pytest.raises(TopologyError, match="must be positive"):
        with_link_rate(ubl128(4), np.array([0]), 0, GIVEN)
