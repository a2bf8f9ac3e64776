"""HCCL topo JSON v2.0: the cards of one server (or pod), and the links between them and to switches.

Read in its `edge_list` form. The file says which port meets which, on which netlayer and with which
protocols; it says nothing of rates, latencies or what a switch looks like inside. Source: HCCL unit tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topology.errors import TopologyError
from topology.hccl_json import Document, Fields, clone, format_document, parse_document, read_document, shown

PEER2PEER = "PEER2PEER"
PEER2NET = "PEER2NET"
LINK_TYPES = (PEER2PEER, PEER2NET)
POSITIONS = ("DEVICE", "HOST")


@dataclass(frozen=True, kw_only=True)
class TopoEdge:
    """One line of the edge list, both directions of a cable or port group.

    Args:
      netlayer: 0 is innermost.
      link_type: "PEER2PEER" joins two cards, "PEER2NET" a card and the fabric of its netlayer.
      topo_type: "1DMESH", "CLOS" ...; "" when the file does not say.
      topo_instance_id: edges with the same id on the same netlayer form one mesh or fabric.
      local_a: local id of the card at end a.
      local_a_ports: its ports "die/port".
      local_b: local id of the card at end b, None for PEER2NET.
      local_b_ports: its ports, in the order of those at end a; empty for PEER2NET.
      protocols: "UB_CTP", "UB_MEM" ...
      position: "DEVICE" or "HOST" (a port of the host, not of the NPU).
    """

    netlayer: int
    link_type: str
    topo_type: str
    topo_instance_id: int
    local_a: int
    local_a_ports: tuple[str, ...]
    local_b: int | None
    local_b_ports: tuple[str, ...]
    protocols: tuple[str, ...]
    position: str


@dataclass(frozen=True, kw_only=True)
class TopoFile:
    """A topo JSON file: typed edges on top of the document they came from.

    Args:
      peers: local ids in file order.
      edges: in file order.
      document: the whole file; writing gives it back, unknown fields and key order included. Two
        files are equal when their documents are.
    """

    peers: tuple[int, ...] = field(compare=False)
    edges: tuple[TopoEdge, ...] = field(compare=False)
    document: Mapping[str, Any] = field(repr=False)

    def ports_per_card(self, netlayer: int) -> dict[int, int]:
        """Count distinct NPU ports of each local id that some edge of the netlayer uses.

        Times the port rate, that is the card's bandwidth on the layer.
        """
        used: dict[int, set[str]] = {peer: set() for peer in self.peers}
        for edge in self.edges:
            if edge.netlayer == netlayer and edge.position == "DEVICE":
                used[edge.local_a].update(edge.local_a_ports)
                if edge.local_b is not None:
                    used[edge.local_b].update(edge.local_b_ports)
        return {peer: len(ports) for peer, ports in used.items()}

    def to_json(self) -> str:
        """Write the file as JSON text, same values and key order as it was read."""
        return format_document(self.document)


def read_topo_file(path: str | Path) -> TopoFile:
    """Read a topo JSON file.

    Raises:
      TopologyError: the file cannot be read, is not JSON, or breaks a rule of `topo_file`.
    """
    return topo_file(read_document(path))


def parse_topo_file(data: bytes | str, name: str = "topo file") -> TopoFile:
    """Parse the JSON text of a topo file; `name` is used in errors about the text as a whole.

    Raises:
      TopologyError: not a JSON object, or as `topo_file`.
    """
    return topo_file(parse_document(data, name))


def topo_file(document: Document) -> TopoFile:
    """Check a topo file given as a JSON object and make its typed view.

    Raises:
      TopologyError: wrong version, a count that is not the length of its list, a local id given twice,
        an unknown link type or position, an edge whose end is not in `peer_list` or is the same card,
        a port that is not "die/port", or a field of the wrong kind.
    """
    topo = Fields(document, "")
    topo.require_version()
    peers = _peers(topo)
    edges = topo.objects("edge_list")
    topo.require_count("edge_count", "edge_list", len(edges))
    known = set(peers)
    return TopoFile(peers=peers, edges=tuple(_edge(edge, known) for edge in edges), document=clone(document))


def _peers(topo: Fields) -> tuple[int, ...]:
    entries = topo.objects("peer_list")
    topo.require_count("peer_count", "peer_list", len(entries))
    if not entries:
        raise TopologyError("peer_list", 0, "must name at least one card")
    peers: dict[int, None] = {}
    for entry in entries:
        local_id = entry.integer("local_id")
        if local_id in peers:
            raise TopologyError(entry.at("local_id"), local_id, "is given twice")
        peers[local_id] = None
    return tuple(peers)


def _edge(edge: Fields, peers: set[int]) -> TopoEdge:
    link_type = _choice(edge, "link_type", LINK_TYPES)
    local_a = _end(edge, "local_a", peers)
    local_b: int | None = None
    local_b_ports: tuple[str, ...] = ()
    if link_type == PEER2PEER:
        local_b, local_b_ports = _end(edge, "local_b", peers), _ports(edge, "local_b_ports")
        if local_b == local_a:
            raise TopologyError(edge.at("local_b"), local_b, "must be another card than local_a")
    elif edge.has("local_b"):
        rule = "must not be given for PEER2NET, whose other end is the fabric"
        raise TopologyError(edge.at("local_b"), shown(edge.value["local_b"]), rule)
    return TopoEdge(
        netlayer=edge.integer("net_layer"),
        link_type=link_type,
        topo_type=edge.text("topo_type", ""),
        topo_instance_id=edge.integer("topo_instance_id", 0),
        local_a=local_a,
        local_a_ports=_ports(edge, "local_a_ports"),
        local_b=local_b,
        local_b_ports=local_b_ports,
        protocols=edge.texts("protocols", []),
        position=_choice(edge, "position", POSITIONS, "DEVICE"),
    )


def _choice(edge: Fields, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
    value = edge.text(name, default)
    if value not in choices:
        raise TopologyError(edge.at(name), shown(value), f"must be {' or '.join(choices)}")
    return value


def _end(edge: Fields, name: str, peers: set[int]) -> int:
    local_id = edge.integer(name)
    if local_id not in peers:
        raise TopologyError(edge.at(name), local_id, "must be a local_id of peer_list")
    return local_id


def _ports(edge: Fields, name: str) -> tuple[str, ...]:
    ports = edge.ports(name)
    if not ports:
        raise TopologyError(edge.at(name), 0, "must list at least one port")
    return ports
