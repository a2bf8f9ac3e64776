"""From a graph to HCCL files: one topo file for the server that all share, one rank table for the cards.

What the files cannot say, and a reader has to be given again: names, port rates and latencies, where
numbers came from, ports and numbers of switches, and what lies behind the first switch: a leaf/spine
network comes back as one switch per plane, which is as much as HCCL knows of it. Addresses are
placeholders made from netlayer, rank and port; a real table has those of the machine.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.graph import NETLAYER_SERVER, NETLAYER_SUPERNODE, UNKNOWN_PORT, IntArray, Topology
from topology.hccl_graph import port_name
from topology.hccl_json import VERSION, Document
from topology.ranktable import RankTable, rank_table
from topology.topojson import PEER2NET, PEER2PEER, TopoFile, topo_file

MAX_RANKS = 16_384
PROTOCOLS = ["UB_CTP", "UB_MEM"]


@dataclass
class _Card:
    """Cables of one card: (netlayer, port) -> (peer, peer port), and (netlayer, port) -> plane."""

    peers: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    planes: dict[tuple[int, int], int] = field(default_factory=dict)


def hccl_from_topology(topology: Topology, topo_file_path: str | None = None) -> tuple[TopoFile, RankTable]:
    """Write a topology as a topo file and a rank table; rank i is NPU i.

    Args:
      topology: cards of one server pattern; every cable works both ways.
      topo_file_path: what the table shall say where its topo file is; None = nothing.

    Returns:
      (topo file, rank table); `topology_from_hccl` makes a graph of them with the same cables, ports,
      netlayers and planes between cards and their first switches.

    Raises:
      TopologyError: more cards than a table may have here, a link without its reverse or without a
        port number, a direct link between servers, servers cabled in different ways, or one instance
        and plane whose cards do not all meet.
    """
    if topology.num_npus > MAX_RANKS:
        raise TopologyError(
            "num_npus", topology.num_npus, f"must be at most {MAX_RANKS} to become a rank table"
        )
    cards = _cards(topology)
    local_ids = _local_ids(topology.npu_server)
    instances = _instances(topology, cards)
    topo = topo_file(_topo_document(topology, cards, local_ids))
    table: Document = {"version": VERSION, "status": "completed", "rank_count": topology.num_npus}
    if topo_file_path is not None:
        table["topo_file_path"] = topo_file_path
    table["rank_list"] = []
    for npu, card in enumerate(cards):
        levels = [
            _level(layer, names[npu], npu, card) for layer, names in sorted(instances.items()) if npu in names
        ]
        place = {"rank_id": npu, "device_id": local_ids[npu], "local_id": local_ids[npu]}
        table["rank_list"].append({**place, "level_list": levels})
    return topo, rank_table(table)


def _cards(topology: Topology) -> list[_Card]:
    """Sort the links of every card by port, after checking that each cable works both ways."""
    _require_both_ways(topology)
    cards = [_Card() for _ in range(topology.num_npus)]
    for link_idx in np.flatnonzero(topology.link_src < topology.num_npus):
        npu, other = int(topology.link_src[link_idx]), int(topology.link_dst[link_idx])
        key = int(topology.link_netlayer[link_idx]), int(topology.link_src_port[link_idx])
        peer_port = int(topology.link_dst_port[link_idx])
        is_peer = other < topology.num_npus
        if key[1] == UNKNOWN_PORT or (is_peer and peer_port == UNKNOWN_PORT):
            where = f"port of link {topology.link(int(link_idx))}"
            raise TopologyError(where, UNKNOWN_PORT, "must be known to be written to an HCCL file")
        if key in cards[npu].peers or key in cards[npu].planes:
            where = f"port of link {topology.link(int(link_idx))}"
            raise TopologyError(where, key[1], "is used by another link of the card on the same netlayer")
        if is_peer:
            cards[npu].peers[key] = (other, peer_port)
        else:
            cards[npu].planes[key] = int(topology.link_plane[link_idx])
    return cards


def _require_both_ways(topology: Topology) -> None:
    touches = (topology.link_src < topology.num_npus) | (topology.link_dst < topology.num_npus)
    columns: list[IntArray] = [
        topology.link_src, topology.link_dst, topology.link_src_port, topology.link_dst_port,
        topology.link_netlayer, topology.link_plane,
    ]  # fmt: skip
    there = np.stack([column[touches].astype(np.int64) for column in columns])
    back = there[np.array([1, 0, 3, 2, 4, 5])]
    forward, backward = there[:, np.lexsort(there)], back[:, np.lexsort(back)]
    if not np.array_equal(forward, backward):
        first = int(np.flatnonzero((forward != backward).any(axis=0))[0])
        src, dst = (topology.vertex_name(int(vertex)) for vertex in forward[:2, first])
        raise TopologyError(
            "links near", f"{src} -> {dst}", "must come in pairs, HCCL files know only whole cables"
        )


def _local_ids(npu_server: npt.NDArray[np.int32]) -> list[int]:
    """Count the cards of each server in NPU order."""
    seen: dict[int, int] = defaultdict(int)
    local_ids = []
    for server in npu_server.tolist():
        local_ids.append(seen[server])
        seen[server] += 1
    return local_ids


def _instances(topology: Topology, cards: list[_Card]) -> dict[int, dict[int, str]]:
    """Name the instance of every card on every netlayer: netlayer -> NPU -> name."""
    used = {netlayer for card in cards for netlayer, _ in (*card.peers, *card.planes)}
    server, supernode = topology.npu_server.tolist(), topology.npu_supernode.tolist()
    instances = {NETLAYER_SERVER: {npu: f"server{number}" for npu, number in enumerate(server)}}
    if NETLAYER_SUPERNODE in used or server != supernode:
        instances[NETLAYER_SUPERNODE] = {npu: f"supernode{number}" for npu, number in enumerate(supernode)}
    for netlayer in sorted(used - {NETLAYER_SERVER, NETLAYER_SUPERNODE}):
        parts = _components(topology, topology.link_netlayer == netlayer)
        on_layer = [
            n for n, card in enumerate(cards) if any(k[0] == netlayer for k in (*card.peers, *card.planes))
        ]
        numbers = {part: i for i, part in enumerate(dict.fromkeys(parts[npu] for npu in on_layer))}
        instances[netlayer] = {npu: f"layer{netlayer}-{numbers[parts[npu]]}" for npu in on_layer}
    for netlayer in sorted(used):
        _require_one_fabric(topology, netlayer, cards, instances[netlayer])
    return instances


def _require_one_fabric(topology: Topology, netlayer: int, cards: list[_Card], names: dict[int, str]) -> None:
    """Refuse an instance and plane of several networks, and a network of several instances."""
    for plane in topology.planes(netlayer):
        chosen = (topology.link_netlayer == netlayer) & (topology.link_plane == plane)
        into_fabric = np.maximum(topology.link_src, topology.link_dst) >= topology.num_npus
        parts = _components(topology, chosen & into_fabric)
        members = [
            n
            for n, card in enumerate(cards)
            if any(k[0] == netlayer and p == plane for k, p in card.planes.items())
        ]
        pairs = {(names[npu], parts[npu]) for npu in members}
        if len(pairs) != len({name for name, _ in pairs}) or len(pairs) != len({part for _, part in pairs}):
            where = f"netlayer {netlayer}, plane {plane}"
            rule = "must be one network per instance (0: server, 1: supernode) to be written to HCCL files"
            raise TopologyError(where, f"{len(pairs)} pairs of instance and network", rule)


def _components(topology: Topology, chosen: npt.NDArray[np.bool_]) -> list[int]:
    """Label vertices by the lowest vertex they are joined to through the chosen links."""
    src, dst = topology.link_src[chosen], topology.link_dst[chosen]
    labels = np.arange(topology.num_vertices)
    while True:
        before = labels.copy()
        np.minimum.at(labels, dst, labels[src])
        np.minimum.at(labels, src, labels[dst])
        if np.array_equal(labels, before):
            return [int(label) for label in labels]


def _topo_document(topology: Topology, cards: list[_Card], local_ids: list[int]) -> Document:
    members: dict[int, list[int]] = defaultdict(list)
    for npu, server in enumerate(topology.npu_server.tolist()):
        members[server].append(npu)
    patterns = {server: _pattern(topology, npus, cards, local_ids) for server, npus in members.items()}
    largest = max(members, key=lambda server: len(members[server]))
    for server, pattern in patterns.items():
        size = len(members[server])
        expected = {
            edge for edge in patterns[largest] if edge[1] < size and (edge[3] is None or edge[3] < size)
        }
        if pattern != expected:
            rule = f"must be cabled like server {largest}: a topo file describes one server for all"
            raise TopologyError("server", server, rule)
    edges = _edges(patterns[largest])
    return {
        "version": VERSION,
        "peer_count": len(members[largest]),
        "peer_list": [{"local_id": i} for i in range(len(members[largest]))],
        "edge_count": len(edges),
        "edge_list": edges,
    }


# (netlayer, local id, port or plane-ordered port, local id of the peer or None, its port or None)
_Pattern = set[tuple[int, int, int, int | None, int | None]]


def _pattern(topology: Topology, npus: list[int], cards: list[_Card], local_ids: list[int]) -> _Pattern:
    pattern: _Pattern = set()
    for npu in npus:
        for (netlayer, port), (peer, peer_port) in cards[npu].peers.items():
            if topology.npu_server[peer] != topology.npu_server[npu]:
                pair = f"{topology.vertex_name(npu)} - {topology.vertex_name(peer)}"
                raise TopologyError(
                    "direct link", pair, "must stay inside a server to be written to a topo file"
                )
            if npu < peer:
                pattern.add((netlayer, local_ids[npu], port, local_ids[peer], peer_port))
        for netlayer, port in cards[npu].planes:
            pattern.add((netlayer, local_ids[npu], port, None, None))
    return pattern


def _edges(pattern: _Pattern) -> list[Document]:
    """Gather cables with the same ends into one edge with several ports."""
    ports: dict[tuple[int, bool, int, int], list[tuple[int, int]]] = defaultdict(list)
    for netlayer, local, port, peer, peer_port in pattern:
        key = netlayer, peer is None, local, -1 if peer is None else peer
        ports[key].append((port, -1 if peer_port is None else peer_port))
    edges: list[Document] = []
    instance_ids = {kind: i for i, kind in enumerate(sorted({key[:2] for key in ports}))}
    for (netlayer, is_net, local, peer), pairs in sorted(ports.items()):
        edge: Document = {
            "net_layer": netlayer,
            "link_type": PEER2NET if is_net else PEER2PEER,
            "protocols": PROTOCOLS,
            "topo_type": "CLOS" if is_net else "1DMESH",
            "topo_instance_id": instance_ids[netlayer, is_net],
            "local_a": local,
            "local_a_ports": [port_name(port) for port, _ in sorted(pairs)],
        }
        if not is_net:
            edge["local_b"] = peer
            edge["local_b_ports"] = [port_name(port) for _, port in sorted(pairs)]
        edges.append({**edge, "position": "DEVICE"})
    return edges


def _level(netlayer: int, instance: str, npu: int, card: _Card) -> dict[str, Any]:
    """Make one level: an endpoint per direct port, and one per plane with all its ports."""
    direct = sorted(port for layer, port in card.peers if layer == netlayer)
    planes: dict[int, list[int]] = defaultdict(list)
    for (layer, port), plane in sorted(card.planes.items()):
        if layer == netlayer:
            planes[plane].append(port)
    groups: list[tuple[list[int], dict[str, str]]] = [([port], {}) for port in direct]
    groups += [(ports, {"plane_id": f"plane{plane}"}) for plane, ports in sorted(planes.items())]
    addresses = [
        {
            "addr_type": "EID",
            "addr": f"{netlayer:04x}{npu:08x}{min(ports):020x}",
            **plane_id,
            "ports": [port_name(port) for port in ports],
        }
        for ports, plane_id in groups
    ]
    return {
        "net_layer": netlayer,
        "net_instance_id": instance,
        "net_type": "TOPO_FILE_DESC" if direct or netlayer == NETLAYER_SERVER else "CLOS",
        "net_attr": "",
        "rank_addr_list": addresses,
    }
