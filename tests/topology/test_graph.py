"""The graph holds what it says, refuses what no network can be, and cannot be changed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import topologies
from topology import LinkClass, Source, Topology, TopologyError, ubl128

ARRAYS = [
    "link_src", "link_dst", "link_netlayer", "link_plane", "link_class", "link_src_port", "link_dst_port",
    "switch_tier", "npu_server", "npu_supernode",
]  # fmt: skip
GIVEN = Source("given", "test")


@given(topologies())
def test_equal_inputs_make_equal_topologies_and_hashes(topology):
    copy = replace(topology, **{field: getattr(topology, field).copy() for field in ARRAYS})
    assert copy == topology
    assert hash(copy) == hash(topology)


@pytest.mark.parametrize("field", ARRAYS)
def test_one_changed_entry_makes_topologies_differ(field):
    topology = ubl128(4, planes=3, server_mesh=True, server_size=2)
    changed = getattr(topology, field).copy()
    changed[0] = 2 if field in ("link_dst", "link_netlayer") else 1
    assert changed[0] != getattr(topology, field)[0]
    assert replace(topology, **{field: changed}) != topology


@pytest.mark.parametrize("field", ARRAYS)
def test_arrays_cannot_be_written(field):
    with pytest.raises(ValueError, match="read-only"):
        getattr(ubl128(4), field)[0] = 0


def test_writing_to_a_base_array_does_not_reach_the_topology():
    topology = ubl128(4)
    base = np.stack([topology.link_src, topology.link_dst])
    taken = replace(topology, link_src=base[0])
    base[0, 0] = 3
    assert taken == topology


@pytest.mark.parametrize(
    ("field", "position", "wrong"),
    [
        ("link_src", 5, 6), ("link_src", 0, -1), ("link_dst", 1, 99), ("link_class", 2, 2),
        ("link_netlayer", 3, 256), ("link_netlayer", 3, -1), ("link_plane", 0, -1), ("link_plane", 0, 2**15),
        ("link_src_port", 7, -2), ("link_dst_port", 7, 2**31), ("switch_tier", 1, 300), ("npu_server", 2, -1),
    ],
)  # fmt: skip
def test_an_entry_out_of_range_is_named(field, position, wrong):
    topology = ubl128(4, planes=2)
    changed = getattr(topology, field).astype(np.int64)
    changed[position] = wrong
    with pytest.raises(TopologyError) as caught:
        replace(topology, **{field: changed})
    assert caught.value.field == f"{field}[{position}]"
    assert caught.value.value == wrong


@pytest.mark.parametrize("field", ARRAYS)
def test_a_short_array_is_refused(field):
    topology = ubl128(4)
    with pytest.raises(TopologyError, match=r"length of .* must have num_"):
        replace(topology, **{field: getattr(topology, field)[:-1]})


def test_a_float_array_is_refused():
    topology = ubl128(4)
    with pytest.raises(TopologyError, match="integers"):
        replace(topology, link_src=topology.link_src.astype(float))


def test_a_link_to_itself_is_refused():
    topology = ubl128(4)
    dst = topology.link_dst.copy()
    dst[9] = topology.link_src[9]
    with pytest.raises(TopologyError, match=r"link 9 is 'npu1 -> npu1'"):
        replace(topology, link_dst=dst)


def test_classes_of_one_name_are_refused():
    topology = ubl128(4)
    with pytest.raises(TopologyError, match="differ"):
        replace(topology, classes=(topology.classes[0], topology.classes[0]))


@pytest.mark.parametrize(
    "wrong", [{"name": " "}, {"bandwidth_bytes_per_s": 0}, {"bandwidth_bytes_per_s": -5}, {"latency_ps": -1}]
)
def test_an_impossible_class_is_refused(wrong):
    good = {"name": "ubl", "bandwidth_bytes_per_s": 1, "latency_ps": 0, "source": GIVEN}
    LinkClass(**good)
    with pytest.raises(TopologyError):
        LinkClass(**(good | wrong))


@given(topologies(), st.data())
def test_vertex_names_read_back(topology, data):
    vertex = data.draw(st.integers(0, topology.num_vertices - 1))
    assert topology.vertex(topology.vertex_name(vertex)) == vertex


@pytest.mark.parametrize("name", ["npu4", "sw8", "npu", "npu-1", "sw 1", "card1", "", "NPU0", "npu1.0"])
def test_a_vertex_that_is_not_there_is_refused(name):
    with pytest.raises(TopologyError, match=r"must be one of npu0\.\.npu3 or sw0\.\.sw7"):
        ubl128(4).vertex(name, "links[0].from")


@given(topologies())
def test_conveniences_agree_with_a_plain_loop(topology):
    for vertex in range(topology.num_vertices):
        assert list(topology.links_of(vertex)) == [n for n, v in enumerate(topology.link_src) if v == vertex]
        assert list(topology.links_into(vertex)) == [
            n for n, v in enumerate(topology.link_dst) if v == vertex
        ]
    for layer in topology.netlayers():
        for into, ends in ((False, topology.link_src), (True, topology.link_dst)):
            expected = [0] * topology.num_npus
            for link in range(topology.num_links):
                if topology.link_netlayer[link] == layer and ends[link] < topology.num_npus:
                    expected[ends[link]] += topology.link(link).bandwidth_bytes_per_s
            assert list(topology.npu_rate(layer, into=into)) == expected


def test_a_link_prints_its_ends_layer_plane_and_speed():
    assert str(ubl128(4).link(3)) == "npu0 -> sw3 (netlayer 1, plane 3, 50GB/s, 250ns)"


def test_a_topology_prints_on_one_line():
    topology = ubl128(4)
    assert (
        repr(topology)
        == "Topology('ubl128 (4 cards, 8 planes)', 4 NPUs, 8 switches, 64 links, netlayers [1])"
    )
    assert isinstance(topology, Topology)
