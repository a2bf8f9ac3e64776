"""Topo JSON files: nothing lost on the way through, ports counted, and every refusal by a planted fault."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.topojson import parse_topo_file, read_topo_file, topo_file

DATA = Path(__file__).parent / "data"
FILES = sorted(DATA.glob("*.topo.json"))
BASE = json.loads((DATA / "two_servers.topo.json").read_text())


def test_samples_are_there():
    assert len(FILES) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_and_writing_loses_nothing(path):
    topo = read_topo_file(path)
    assert json.dumps(json.loads(topo.to_json())) == json.dumps(json.loads(path.read_text()))
    assert parse_topo_file(topo.to_json()) == topo


@settings(deadline=None)
@given(st.dictionaries(st.text().map("x_".__add__), st.integers() | st.text() | st.none(), max_size=4))
def test_unknown_fields_of_edges_and_peers_survive(extra):
    document = copy.deepcopy(BASE)
    document["edge_list"][2] = {**extra, **document["edge_list"][2]}
    document["peer_list"][0].update(extra)
    text = json.dumps(document)
    assert json.dumps(json.loads(parse_topo_file(text).to_json())) == text


def test_ports_per_card_are_distinct_device_ports_of_the_layer():
    topo = read_topo_file(DATA / "eight_cards.topo.json")
    assert topo.ports_per_card(0) == dict.fromkeys(range(8), 7)
    assert topo.ports_per_card(1) == dict.fromkeys(range(8), 6)
    # Layer 3 is a port of the host, so no card has one.
    assert topo.ports_per_card(3) == dict.fromkeys(range(8), 0)
    # The same cable listed for two protocols is one port at each end.
    assert topo_file(BASE).ports_per_card(0) == {0: 1, 1: 1}


def test_optional_fields_have_the_documented_defaults():
    edge = read_topo_file(DATA / "eight_cards.topo.json").edges[-1]
    assert (edge.topo_type, edge.topo_instance_id, edge.position, edge.local_b) == ("", 0, "HOST", None)
    bare = {"net_layer": 1, "link_type": "PEER2NET", "local_a": 0, "local_a_ports": ["0/1"]}
    edge = topo_file({**BASE, "edge_list": [bare], "edge_count": 1}).edges[0]
    assert (edge.position, edge.protocols, edge.local_b_ports) == ("DEVICE", (), ())


def test_local_ids_may_have_gaps():
    document = {"version": "2.0", "peer_count": 2, "peer_list": [{"local_id": 8}, {"local_id": 0}]}
    topo = topo_file({**document, "edge_count": 0, "edge_list": []})
    assert (topo.peers, topo.edges) == ((8, 0), ())


def edge(number, **changes):
    return lambda doc: doc["edge_list"][number].update(changes)


def drop(number, name):
    return lambda doc: doc["edge_list"][number].pop(name)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda doc: doc.update(version="1.0"), "version is '1.0': must be \"2.0\""),
        (
            lambda doc: doc.update(peer_count=3),
            "peer_count is 3: must be the length of peer_list, which is 2",
        ),
        (lambda doc: doc.update(peer_count="2"), "peer_count is '2': must be an integer, not a string"),
        (
            lambda doc: doc.update(edge_count=5),
            "edge_count is 5: must be the length of edge_list, which is 4",
        ),
        (lambda doc: doc.update(edge_count=None), "edge_count is None: must be an integer"),
        (lambda doc: doc.pop("edge_list"), "edge_list is None: is missing"),
        (lambda doc: doc.pop("peer_list"), "peer_list is None: is missing"),
        (lambda doc: doc.update(peer_list=[], peer_count=0), "peer_list is 0: must name at least one card"),
        (lambda doc: doc["peer_list"][1].update(local_id=0), "peer_list[1].local_id is 0: is given twice"),
        (
            lambda doc: doc["peer_list"][1].update(local_id=-1),
            "peer_list[1].local_id is -1: must not be negative",
        ),
        (
            edge(0, link_type="PEER2SWITCH"),
            "edge_list[0].link_type is 'PEER2SWITCH': must be PEER2PEER or PEER2NET",
        ),
        (edge(0, link_type="x" * 999), "edge_list[0].link_type is '" + "x" * 60 + "...': must be"),
        (drop(0, "link_type"), "edge_list[0].link_type is None: is missing"),
        (edge(0, position="RACK"), "edge_list[0].position is 'RACK': must be DEVICE or HOST"),
        (edge(0, net_layer=-1), "edge_list[0].net_layer is -1: must not be negative"),
        (drop(0, "net_layer"), "edge_list[0].net_layer is None: is missing"),
        (edge(0, local_a=2), "edge_list[0].local_a is 2: must be a local_id of peer_list"),
        (edge(0, local_b=7), "edge_list[0].local_b is 7: must be a local_id of peer_list"),
        (edge(0, local_b=0), "edge_list[0].local_b is 0: must be another card than local_a"),
        (drop(0, "local_b"), "edge_list[0].local_b is None: is missing"),
        (drop(0, "local_b_ports"), "edge_list[0].local_b_ports is None: is missing"),
        (edge(2, local_b=1), "edge_list[2].local_b is 1: must not be given for PEER2NET"),
        (edge(0, local_a_ports=[]), "edge_list[0].local_a_ports is 0: must list at least one port"),
        (edge(0, local_a_ports=["0"]), "edge_list[0].local_a_ports[0] is '0': must be \"die/port\""),
        (edge(0, local_a_ports=["0/ 1"]), "edge_list[0].local_a_ports[0] is '0/ 1': must be \"die/port\""),
        (edge(2, local_a_ports=["0/1", "0/1"]), "edge_list[2].local_a_ports[1] is '0/1': is listed twice"),
        (edge(0, topo_instance_id=-3), "edge_list[0].topo_instance_id is -3: must not be negative"),
        (edge(0, topo_type=1), "edge_list[0].topo_type is 1: must be a string"),
        (edge(0, protocols="UB_CTP"), "edge_list[0].protocols is 'UB_CTP': must be a list"),
    ],
)
def test_a_broken_file_is_refused_with_field_value_and_rule(fault, message):
    document = copy.deepcopy(BASE)
    fault(document)
    with pytest.raises(TopologyError, match=re.escape(message)):
        topo_file(document)


@settings(deadline=None)
@given(st.integers(1, len(json.dumps(BASE)) - 1))
def test_every_truncation_is_refused(length):
    with pytest.raises(TopologyError):
        parse_topo_file(json.dumps(BASE)[:length])
