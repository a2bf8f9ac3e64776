"""Listing every cable as a cluster file: the same arrays come back, and what a file cannot say is refused."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.clos import clos
from topology.cluster import from_toml, to_toml
from topology.errors import TopologyError
from topology.graph import Topology
from topology.listing import list_links
from topology.mesh import mesh
from topology.ubl128 import ubl128

TOPOLOGIES = [mesh(5), ubl128(12, planes=3, server_mesh=True), clos(40, supernode_size=16, planes=2)]
ARRAYS = [f.name for f in dataclasses.fields(Topology) if f.name.startswith(("link_", "npu_", "switch_tier"))]


def without(topology: Topology, *links: int) -> Topology:
    keep = np.setdiff1d(np.arange(topology.num_links), links)
    names = [name for name in ARRAYS if name.startswith("link_")]
    return dataclasses.replace(topology, **{name: getattr(topology, name)[keep] for name in names})


def assert_same(found: Topology, expected: Topology) -> None:
    different = [name for name in ARRAYS if not np.array_equal(getattr(found, name), getattr(expected, name))]
    assert different == []
    assert [dataclasses.replace(c, source=None) for c in found.classes] == [
        dataclasses.replace(c, source=None) for c in expected.classes
    ]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TOPOLOGIES), st.data())
def test_the_file_builds_the_same_graph_with_or_without_missing_links(topology, data):
    lost = data.draw(st.sets(st.integers(0, topology.num_links - 1), max_size=4))
    cut = without(topology, *lost)
    assert_same(from_toml(to_toml(list_links(cut))).build(), cut)


def test_a_cable_of_one_class_is_one_entry():
    # A mesh lists all links one way, then all the ways back, so pairs are put next to each other first.
    topology = mesh(4)
    order = np.lexsort(
        [np.minimum(topology.link_src, topology.link_dst), np.maximum(topology.link_src, topology.link_dst)]
    )
    names = [name for name in ARRAYS if name.startswith("link_")]
    paired = dataclasses.replace(topology, **{name: getattr(topology, name)[order] for name in names})
    entries = list_links(paired).links
    assert len(entries) == 6
    assert not any(entry.one_way for entry in entries)


def test_sources_become_text():
    config = list_links(mesh(2))
    assert config.link_classes[0].source.startswith("assumed: port_rate: ")


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (clos(16_384), "num_links is 327680: must be at most 200000 to be listed one by one"),
        (dataclasses.replace(mesh(4), npu_server=np.array([0, 1, 0, 1])), "server of npu1 is 1: cards must"),
        (dataclasses.replace(mesh(4), npu_supernode=np.array([1, 1, 2, 2])), "supernode of npu0 is 1: cards"),
    ],
)  # fmt: skip
def test_a_graph_that_a_cluster_file_cannot_say_is_refused(topology, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        list_links(topology)
