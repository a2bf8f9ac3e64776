"""Graphs and HCCL files: what the files can say survives the way there and back, the rest is refused."""

import copy
import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.clos import clos
from topology.errors import TopologyError
from topology.graph import Topology
from topology.hccl_files import hccl_from_topology
from topology.hccl_graph import FabricRates, port_name, port_number, topology_from_hccl
from topology.mesh import mesh
from topology.ranktable import parse_rank_table, rank_table, read_rank_table
from topology.topojson import parse_topo_file, read_topo_file, topo_file
from topology.ubl128 import ubl128

DATA = Path(__file__).parent / "data"
TWO_TABLE = json.loads((DATA / "two_servers.ranktable.json").read_text())
TWO_TOPO = json.loads((DATA / "two_servers.topo.json").read_text())


def card_links(topology: Topology) -> Counter:
    """Links that touch a card: ends (a switch is "sw"), netlayer, plane, rate, ports of cards."""
    rates = topology.link_bytes_per_s().tolist()
    found: Counter = Counter()
    for i in range(topology.num_links):
        link = topology.link(i)
        src, dst = ("sw" if end.startswith("sw") else end for end in (link.src, link.dst))
        ports = (-1 if src == "sw" else link.src_port, -1 if dst == "sw" else link.dst_port)
        if (src, dst) != ("sw", "sw"):
            found[src, dst, link.netlayer, link.plane, rates[i], *ports] += 1
    return found


def meeting(topology: Topology) -> set[tuple[int, frozenset[int]]]:
    """Which cards share a first switch, per (netlayer, plane)."""
    members: dict[tuple[int, int, int], set[int]] = {}
    for i in range(topology.num_links):
        src, dst = int(topology.link_src[i]), int(topology.link_dst[i])
        if src < topology.num_npus <= dst:
            key = int(topology.link_netlayer[i]), int(topology.link_plane[i]), dst
            members.setdefault(key, set()).add(src)
    return {(key[0], key[1], frozenset(cards)) for key, cards in members.items()}


def same_groups(a: np.ndarray, b: np.ndarray) -> bool:
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


rate_texts = st.sampled_from(["100Gbps", "400Gbps", "112GB/s", "1B/s"])
meshes = st.builds(mesh, st.integers(2, 8), port_rate=rate_texts)


@st.composite
def supernodes(draw):
    num_npus = draw(st.integers(1, 21))
    return ubl128(
        num_npus,
        planes=draw(st.integers(1, 5)),
        ports_per_plane=draw(st.integers(1, 3)),
        port_rate=draw(rate_texts),
        server_mesh=draw(st.booleans()),
        server_size=draw(st.integers(1, min(8, num_npus))),
    )


@st.composite
def clusters(draw):
    return clos(
        draw(st.integers(1, 40)),
        supernode_size=draw(st.integers(8, 16)),
        planes=draw(st.integers(1, 3)),
        port_rate=draw(rate_texts),
        scaleout_rate=draw(rate_texts),
        scaleout_planes=draw(st.integers(1, 2)),
        server_size=draw(st.integers(1, 8)),
    )


def small(num_npus: int, planes: int = 2, **options) -> Topology:
    return ubl128(num_npus, planes=planes, server_size=num_npus, **options)


def given_rates(topology: Topology) -> FabricRates:
    per_layer = {
        layer: f"{int(topology.link_bytes_per_s()[topology.link_netlayer == layer].max())}B/s"
        for layer in topology.netlayers()
    }
    return FabricRates(netlayer_port_rate=per_layer)


@settings(max_examples=60, deadline=None)
@given(meshes | supernodes() | clusters())
def test_links_rates_netlayers_planes_and_ports_survive_both_formats(topology):
    topo, table = hccl_from_topology(topology)
    topo, table = parse_topo_file(topo.to_json()), parse_rank_table(table.to_json())
    back = topology_from_hccl(topo, table, rates=given_rates(topology))
    assert card_links(back) == card_links(topology)
    assert same_groups(back.npu_server, topology.npu_server)
    assert same_groups(back.npu_supernode, topology.npu_supernode)


@settings(deadline=None)
@given(supernodes())
def test_cards_of_one_layer_meet_in_the_same_switches_again(topology):
    back = topology_from_hccl(*hccl_from_topology(topology))
    assert meeting(back) == meeting(topology)


@settings(deadline=None)
@given(supernodes())
def test_a_second_round_changes_nothing(topology):
    files = hccl_from_topology(topology)
    again = hccl_from_topology(topology_from_hccl(*files))
    assert [f.to_json() for f in again] == [f.to_json() for f in files]


def test_a_scaleout_comes_back_as_one_switch_per_plane():
    topology = clos(32, supernode_size=8, planes=2, scaleout_radix=8)
    back = topology_from_hccl(*hccl_from_topology(topology))
    assert card_links(back) == card_links(topology)
    assert back.num_switches == 4 * 2 + 1 < topology.num_switches


def test_parallel_cables_keep_their_port_pairs():
    # Ports 0 and 1 of card 0 go to ports 5 and 4 of card 1: crossed, so that sorting one end would show.
    link = {"src": [0, 1, 0, 1], "dst": [1, 0, 1, 0], "src_port": [0, 5, 1, 4], "dst_port": [5, 0, 4, 1]}
    zeros = {"netlayer": [0] * 4, "plane": [0] * 4, "class": [0] * 4}
    topology = dataclasses.replace(
        mesh(2), **{f"link_{name}": np.array(values) for name, values in (link | zeros).items()}
    )
    topo, table = hccl_from_topology(topology)
    assert [(edge.local_a_ports, edge.local_b_ports) for edge in topo.edges] == [
        (("0/0", "0/1"), ("0/5", "0/4"))
    ]
    assert card_links(topology_from_hccl(topo, table)) == card_links(topology)


def test_ranks_in_any_order_sit_where_the_table_says():
    document = copy.deepcopy(TWO_TABLE)
    document["rank_list"][1]["rank_id"], document["rank_list"][2]["rank_id"] = 2, 1
    topology = topology_from_hccl(topo_file(TWO_TOPO), rank_table(document))
    assert topology.npu_server.tolist() == [0, 1, 0, 1]
    direct = topology.link_netlayer == 0
    pairs = zip(topology.link_src[direct].tolist(), topology.link_dst[direct].tolist(), strict=True)
    assert {frozenset(pair) for pair in pairs} == {frozenset({0, 2}), frozenset({1, 3})}
    back = topology_from_hccl(*hccl_from_topology(topology))
    assert card_links(back) == card_links(topology)


def test_eight_cards_read_as_a_mesh_and_two_planes():
    topo = read_topo_file(DATA / "eight_cards.topo.json")
    topology = topology_from_hccl(topo, read_rank_table(DATA / "eight_cards.ranktable.json"))
    assert (topology.num_npus, topology.num_switches, topology.num_links) == (8, 2, 2 * (28 + 8 * 6))
    # Seven mesh ports and six Clos ports of 50 GB/s, the latter 2 + 4 over two planes.
    assert set(topology.npu_rate(0).tolist()) == {7 * 50_000_000_000}
    assert set(topology.npu_rate(1).tolist()) == {6 * 50_000_000_000}
    planes = Counter(topology.link_plane[topology.link_netlayer == 1].tolist())
    assert planes == {0: 2 * 2 * 8, 1: 2 * 4 * 8}


def test_without_a_table_there_is_one_server_and_ports_are_planes():
    topology = topology_from_hccl(read_topo_file(DATA / "eight_cards.topo.json"))
    assert (topology.num_npus, topology.planes(1)) == (8, (0, 1, 2, 3, 4, 5))
    assert not topology.npu_server.any()


def test_a_cable_listed_for_two_protocols_counts_once_per_server():
    topology = topology_from_hccl(topo_file(TWO_TOPO), rank_table(TWO_TABLE))
    assert (topology.num_npus, topology.num_switches) == (4, 1)
    assert topology.npu_server.tolist() == [0, 0, 1, 1]
    assert topology.npu_supernode.tolist() == [0, 0, 0, 0]
    mesh_links = topology.link_netlayer == 0
    pairs = set(
        zip(topology.link_src[mesh_links].tolist(), topology.link_dst[mesh_links].tolist(), strict=True)
    )
    assert (pairs, int(mesh_links.sum())) == ({(0, 1), (1, 0), (2, 3), (3, 2)}, 4)


def test_one_machine_listed_as_two_servers_loses_its_direct_link():
    # Case G69: the link type comes from the table, so the same devices get the network instead.
    document = copy.deepcopy(TWO_TABLE)
    document["rank_list"] = document["rank_list"][:2]
    document["rank_count"] = 2
    together = topology_from_hccl(topo_file(TWO_TOPO), rank_table(document))
    document["rank_list"][1]["level_list"][0]["net_instance_id"] = "box9"
    apart = topology_from_hccl(topo_file(TWO_TOPO), rank_table(document))
    assert together.netlayers() == (0, 1)
    assert apart.netlayers() == (1,)


def plane_table(names):
    """One rank per entry: its port's plane id, or None."""
    ranks = []
    for number, name in enumerate(names):
        address = {"addr": f"a{number}", "ports": ["0/0"]} | ({} if name is None else {"plane_id": name})
        level = {"net_layer": 1, "net_instance_id": "x", "net_type": "CLOS", "rank_addr_list": [address]}
        ranks.append({"rank_id": number, "local_id": number, "level_list": [level]})
    return rank_table({"version": "2.0", "rank_count": len(ranks), "rank_list": ranks})


@pytest.mark.parametrize(
    ("names", "planes"),
    [
        (["plane7", "plane2"], [7, 2]),  # the number in the name
        (["planeB", "planeA", "planeB"], [1, 0, 1]),  # other names in order
        (["p10", "p9"], [1, 0]),  # natural order
        (["plane1", "x"], [0, 1]),  # not all of the form planeN
        (["plane1", None], [1, 2]),  # no name: behind all named planes
        ([None, None], [0, 0]),
    ],
)
def test_planes_are_numbered_from_their_ids(names, planes):
    topology = topology_from_hccl(None, plane_table(names))
    up = topology.link_src < topology.num_npus
    assert topology.link_plane[up][np.argsort(topology.link_src[up])].tolist() == planes


def mesh_table(port_counts):
    ranks = [
        {
            "rank_id": i, "local_id": i,
            "level_list": [
                {"net_layer": 0, "net_instance_id": "s", "net_type": "MESH",
                 "rank_addr_list": [{"addr": f"a{i}{k}", "ports": [f"0/{k}"]} for k in range(count)]}
            ],
        }
        for i, count in enumerate(port_counts)
    ]  # fmt: skip
    return rank_table({"version": "2.0", "rank_count": len(ranks), "rank_list": ranks})


def test_a_mesh_level_needs_no_topo_file():
    assert card_links(topology_from_hccl(None, mesh_table([4] * 5))) == card_links(mesh(5))


def test_defaults_carry_their_sources_and_given_numbers_say_so():
    topo = read_topo_file(DATA / "eight_cards.topo.json")
    plain = topology_from_hccl(topo).classes
    assert {c.source.kind for c in plain} == {"assumed"}
    own = topology_from_hccl(topo, rates=FabricRates(port_rate="50GB/s", switch_hop="1us", cable="0ns"))
    up = next(c for c in own.classes if c.name == "netlayer1-up")
    assert (up.bandwidth_bytes_per_s, up.latency_ps) == (50_000_000_000, 1_000_000)
    assert up.source.kind == "given"
    assert "switch_hop: 1us" in up.source.text


@settings(deadline=None)
@given(st.integers(0, 2**20 - 1), st.integers(0, 63))
def test_port_numbers_are_reversible(die, port):
    assert port_name(port_number(f"{die}/{port}", "port")) == f"{die}/{port}"


def unequal_ports(topo, table):
    topo["edge_list"][0]["local_b_ports"] = ["0/0", "0/5"]


def far_port(topo, table):
    topo["edge_list"][2]["local_a_ports"] = ["0/64"]


def unknown_card(topo, table):
    table["rank_list"][3]["local_id"] = 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (unequal_ports, "edge_list[0].local_b_ports is 2: must list as many ports as local_a_ports"),
        (far_port, "edge_list[2] is '0/64': must have a port below 64"),
        (unknown_card, "local_id of rank 3 is 5: must be in the topo file's peer_list"),
    ],
)
def test_files_that_do_not_fit_are_refused(fault, message):
    topo, table = copy.deepcopy(TWO_TOPO), copy.deepcopy(TWO_TABLE)
    fault(topo, table)
    with pytest.raises(TopologyError, match=re.escape(message)):
        topology_from_hccl(topo_file(topo), rank_table(table))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: topology_from_hccl(None), "topo file is None: give a topo file, a rank table, or both"),
        (
            lambda: topology_from_hccl(None, rank_table(TWO_TABLE)),
            "net_type of level 0 of rank 0 is 'TOPO_FILE_DESC': needs the topo file",
        ),
        (
            lambda: topology_from_hccl(None, mesh_table([2, 2, 1])),
            "number of ports of rank 2 on netlayer 0 is 1",
        ),
        (lambda: FabricRates(port_rate="400"), "port rate is '400': needs a unit"),
        (lambda: FabricRates(netlayer_port_rate={1: "0Gbps"}), "port rate is '0Gbps': must be positive"),
        (lambda: FabricRates(switch_hop="200"), "switch hop is '200': needs a unit"),
        (lambda: FabricRates(cable="-1ns"), "cable is '-1ns': must not be negative"),
    ],
)
def test_bad_parameters_are_refused(call, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        call()


def without(topology: Topology, *links: int) -> Topology:
    keep = np.setdiff1d(np.arange(topology.num_links), links)
    names = [f.name for f in dataclasses.fields(topology) if f.name.startswith("link_")]
    return dataclasses.replace(topology, **{name: getattr(topology, name)[keep] for name in names})


def changed(topology: Topology, field: str, position: int, value: int) -> Topology:
    array = getattr(topology, field).copy()
    array[position] = value
    return dataclasses.replace(topology, **{field: array})


def cut_in_one_server():
    """Remove one mesh cable of the second server only."""
    topology = ubl128(8, planes=1, server_mesh=True, server_size=4)
    ends = {4, 5}
    pairs = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    return without(topology, *[i for i, pair in enumerate(pairs) if set(pair) == ends])


def two_networks():
    """Split the only plane of a supernode over two switches."""
    topology = small(4, planes=1)
    moved = dataclasses.replace(topology, num_switches=2, switch_tier=np.zeros(2, np.uint8))
    for i in range(topology.num_links):
        if 3 in (topology.link_src[i], topology.link_dst[i]):
            moved = changed(moved, "link_dst" if topology.link_src[i] == 3 else "link_src", i, 5)
    return moved


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clos(16_385), "num_npus is 16385: must be at most 16384 to become a rank table"),
        (lambda: without(small(4), 0), "must come in pairs"),
        (lambda: changed(mesh(3), "link_src_port", 0, 9), "must come in pairs"),
        (cut_in_one_server, "server is 1: must be cabled like server 0"),
        (
            lambda: dataclasses.replace(mesh(4), npu_server=np.array([0, 0, 1, 1])),
            "must stay inside a server",
        ),
        (two_networks, "netlayer 1, plane 0 is '2 pairs of instance and network': must be one network"),
        (lambda: dataclasses.replace(small(4), npu_supernode=np.array([0, 0, 1, 1])), "must be one network"),
    ],
)
def test_a_graph_that_the_files_cannot_say_is_refused(make, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        hccl_from_topology(make())


@pytest.mark.parametrize(
    ("port", "message"), [(-1, "must be known to be written"), (0, "is used by another link of the card")]
)
def test_unknown_and_shared_ports_are_refused(port, message):
    topology = small(2)
    out_of, into = topology.link_src < 2, topology.link_dst < 2
    with pytest.raises(TopologyError, match=message):
        hccl_from_topology(
            dataclasses.replace(
                topology,
                link_src_port=np.where(out_of, port, topology.link_src_port),
                link_dst_port=np.where(into, port, topology.link_dst_port),
            )
        )
