"""Builders: every card where it should be, every size rule kept or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import healthy_topologies
from topology import TopologyError, check, clos, leaf_spine, mesh, ubl128
from topology.leafspine import size_leaf_spine


@given(healthy_topologies())
def test_every_link_has_its_way_back_at_the_same_index_of_the_same_block(topology):
    pairs = {}
    for link in range(topology.num_links):
        row = topology.link(link)
        key = (row.src, row.dst, row.netlayer, row.plane, row.src_port, row.dst_port)
        assert key not in pairs
        pairs[key] = row.bandwidth_bytes_per_s
    for (src, dst, layer, plane, src_port, dst_port), rate in pairs.items():
        assert pairs[dst, src, layer, plane, dst_port, src_port] == rate


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 3))
def test_a_card_of_ubl128_has_its_ports_in_every_plane(num_npus, planes, ports_per_plane):
    topology = ubl128(num_npus, planes=planes, ports_per_plane=ports_per_plane, radix=60)
    assert topology.num_switches == planes
    assert topology.num_links == 2 * num_npus * planes * ports_per_plane
    for npu in range(num_npus):
        links = topology.links_of(npu)
        assert sorted(topology.link_dst[links]) == [
            num_npus + plane for plane in range(planes) for _ in range(ports_per_plane)
        ]
        assert list(topology.link_plane[links]) == list(topology.link_dst[links] - num_npus)
        assert sorted(topology.link_src_port[links]) == list(range(planes * ports_per_plane))


def test_the_default_supernode_has_the_published_figures():
    topology = ubl128()
    assert (topology.num_npus, topology.num_switches, topology.num_links) == (128, 8, 2048)
    assert set(topology.npu_rate(1)) == {400_000_000_000}  # 8 x 400 Gb/s = 3.2 Tb/s, one direction
    # Two cables of 50 ns and one switch of 200 ns; there and back is the 0.6 us of the public studies.
    assert sorted({c.latency_ps for c in topology.classes}) == [50_000, 250_000]


def test_server_meshes_join_only_cards_of_one_server():
    topology = ubl128(20, server_mesh=True)
    direct = np.flatnonzero(topology.link_netlayer == 0)
    src, dst = topology.link_src[direct], topology.link_dst[direct]
    assert set(zip(src, dst, strict=True)) == {
        (a, b) for a in range(20) for b in range(20) if a != b and a // 8 == b // 8
    }
    assert list(topology.npu_server) == [card // 8 for card in range(20)]
    for card in (0, 3, 7):
        # Eight scale-up ports, then one mesh port per peer in ascending order.
        links = topology.links_of(card)
        mesh_links = links[topology.link_netlayer[links] == 0]
        by_peer = mesh_links[np.argsort(topology.link_dst[mesh_links])]
        assert topology.link_src_port[by_peer].tolist() == list(range(8, 15))


def test_a_mesh_has_one_link_per_ordered_pair():
    topology = mesh(8)
    pairs = set(zip(topology.link_src, topology.link_dst, strict=True))
    assert len(pairs) == topology.num_links == 56
    assert set(topology.npu_rate(0)) == {350_000_000_000}  # 7 x 400 Gb/s


@given(st.integers(1, 400), st.integers(2, 32), st.sampled_from([1, 1.5, 2, 3, 4]))
def test_a_two_layer_size_fits_its_switches_or_is_refused(num_npus, radix, oversubscription):
    try:
        shape = size_leaf_spine(num_npus, radix, oversubscription)
    except TopologyError as error:
        assert error.field == "num_npus"  # noqa: PT017 - the other outcome is checked below
        assert num_npus > radix * int(radix * oversubscription / (1 + oversubscription) + 1e-9)
        return
    uplinks = shape.spines * shape.links_per_pair
    assert shape.leaves * shape.down_per_leaf >= num_npus
    assert (shape.leaves - 1) * shape.down_per_leaf < num_npus
    assert shape.down_per_leaf + uplinks <= radix
    assert shape.leaves * shape.links_per_pair <= radix
    if shape.leaves > 1:
        assert uplinks * oversubscription >= shape.down_per_leaf


@given(st.sampled_from(["block", "rail"]), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(1, 2))
def test_every_card_has_one_port_in_each_scaleout_plane(wiring, num_supernodes, supernode_size, planes):
    num_npus = num_supernodes * supernode_size
    topology = clos(
        num_npus, supernode_size=supernode_size, wiring=wiring, scaleout_radix=8, scaleout_planes=planes
    )
    assert check(topology) == []
    ups = np.flatnonzero((topology.link_netlayer == 2) & (topology.link_src < num_npus))
    plane_of_card = sorted(zip(topology.link_src[ups], topology.link_plane[ups], strict=True))
    assert plane_of_card == [(npu, plane) for npu in range(num_npus) for plane in range(planes)]
    assert list(topology.npu_supernode) == [npu // supernode_size for npu in range(num_npus)]


def test_rail_wiring_puts_equal_positions_on_one_leaf():
    topology = clos(16, supernode_size=4, wiring="rail", scaleout_radix=8)
    ups = np.flatnonzero((topology.link_netlayer == 2) & (topology.link_src < 16))
    leaf_of = dict(zip(topology.link_src[ups].tolist(), topology.link_dst[ups].tolist(), strict=True))
    for position in range(4):
        assert len({leaf_of[supernode * 4 + position] for supernode in range(4)}) == 1


def test_the_last_supernode_may_be_smaller():
    topology = clos(300)
    assert np.bincount(topology.npu_supernode).tolist() == [128, 128, 44]
    assert set(topology.npu_rate(1)) == {400_000_000_000}
    assert set(topology.npu_rate(2)) == {50_000_000_000}


def test_the_largest_network_fits_in_memory():
    topology = clos(262_144)
    # 262,144 cards x (8 scale-up + 1 scale-out) cables and as many leaf-spine cables as cards, twice.
    assert topology.num_links == 2 * (262_144 * 9 + 262_144)
    held = sum(value.nbytes for value in vars(topology).values() if isinstance(value, np.ndarray))
    assert held < 120_000_000


def test_a_changed_quantity_is_given_and_a_default_keeps_its_source():
    up, down = ubl128(2, switch_hop="300ns").classes
    assert (up.source.kind, down.source.kind) == ("given", "assumed")
    assert "switch_hop: 300000" in up.source.text


def test_the_comparison_fabric_has_the_published_shape():
    topology = leaf_spine()
    assert (topology.num_npus, topology.num_switches, topology.num_links) == (128, 24, 512)
    assert {c.bandwidth_bytes_per_s for c in topology.classes} == {50_000_000_000}
    assert {c.latency_ps for c in topology.classes} == {500_000}


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: ubl128(129), "num_npus"),
        (lambda: ubl128(0), "num_npus"),
        (lambda: ubl128(True), "num_npus"),
        (lambda: ubl128(65, ports_per_plane=2), "num_npus"),
        (lambda: ubl128(planes=0), "planes"),
        (lambda: ubl128(planes=65), "planes"),
        (lambda: ubl128(planes=8.0), "planes"),
        (lambda: ubl128(ports_per_plane=0), "ports_per_plane"),
        (lambda: ubl128(radix=0), "radix"),
        (lambda: ubl128(port_rate="400"), "port_rate"),
        (lambda: ubl128(port_rate="400GB"), "port_rate"),
        (lambda: ubl128(port_rate="0Gbps"), "port_rate"),
        (lambda: ubl128(port_rate=-1), "port_rate"),
        (lambda: ubl128(port_rate=True), "port_rate"),
        (lambda: ubl128(cable="50"), "cable"),
        (lambda: ubl128(switch_hop="-1ns"), "switch_hop"),
        (lambda: ubl128(netlayer=0), "netlayer"),
        (lambda: ubl128(server_size=0), "server_size"),
        (lambda: clos(262_145), "num_npus"),
        (lambda: clos(0), "num_npus"),
        (lambda: clos(262_144, scaleout_radix=512), "num_npus"),
        (lambda: clos(1024, scaleout_radix=1), "scaleout_radix"),
        (lambda: clos(512, supernode_size=256), "supernode_size"),
        (lambda: clos(256, oversubscription=0.5), "oversubscription"),
        (lambda: clos(256, oversubscription=float("nan")), "oversubscription"),
        (lambda: clos(256, scaleout_planes=0), "scaleout_planes"),
        (lambda: clos(256, scaleout_rate="fast"), "scaleout_rate"),
        (lambda: clos(256, scaleout_cable="1m"), "scaleout_cable"),
        (lambda: clos(256, wiring="twisted"), "wiring"),
        (lambda: clos(300, wiring="rail"), "num_npus"),
        (lambda: mesh(9), "num_npus"),
        (lambda: mesh(1), "num_npus"),
        (lambda: leaf_spine(100), "num_npus"),
        (lambda: leaf_spine(leaves=0), "leaves"),
        (lambda: leaf_spine(spines=0), "spines"),
        (lambda: leaf_spine(uplink_rate="1"), "uplink_rate"),
    ],
)
def test_an_impossible_network_is_refused_by_field(build, field):
    with pytest.raises(TopologyError) as caught:
        build()
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
