"""From HCCL files to a graph: cards and cables as the topo file and the rank table name them.

What the files cannot say comes from parameters: port rates and latencies. What a switch looks like
inside is not there either: all cards of one network instance and plane meet in one switch of as many
ports as it takes, so leaves and spines of a Clos come out as one.

Ports: "die/port" is one number in a graph, 64 x die + port.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from topology.errors import TopologyError
from topology.graph import NETLAYER_SUPERNODE, UNKNOWN_PORT, LinkClass, Topology
from topology.ranktable import RankEntry, RankTable
from topology.source import SOURCE_KINDS, Source
from topology.topojson import PEER2PEER, TopoEdge, TopoFile
from topology.units import parse_rate, parse_time

PORTS_PER_DIE = 64
DEFAULT_PORT_RATE = "400Gbps"
DEFAULT_SWITCH_HOP = "200ns"
DEFAULT_CABLE = "50ns"
SOURCES: Mapping[str, Source] = {
    "PORTS_PER_DIE": Source("secondary", "HCCL board test: the ports of die 1 are 0x40 and up"),
    "DEFAULT_PORT_RATE": Source(
        "secondary", "a UnifiedBus x4 port is sold as 400G, and HCCL files carry no rate"
    ),
    "DEFAULT_SWITCH_HOP": Source("secondary", "about 200 ns for one hop on CloudMatrix384"),
    "DEFAULT_CABLE": Source("assumed", "10 m at 5 ns/m"),
}
"""Where the default of each quantity that the files lack came from."""

_PLANE = re.compile(r"plane(\d+)", re.ASCII)
_FROM_TOPO_FILE = "TOPO_FILE_DESC"


@dataclass(frozen=True, kw_only=True)
class FabricRates:
    """The quantities that HCCL files lack.

    Args:
      port_rate: of one port and direction, with a unit, for every netlayer not named below.
      netlayer_port_rate: port rates of single netlayers.
      switch_hop: crossing a switch, with a unit.
      cable: one cable with its optics, with a unit.

    Raises:
      TopologyError: a quantity that does not parse, or a rate of zero.
    """

    port_rate: str = DEFAULT_PORT_RATE
    netlayer_port_rate: Mapping[int, str] = field(default_factory=dict)
    switch_hop: str = DEFAULT_SWITCH_HOP
    cable: str = DEFAULT_CABLE

    def __post_init__(self) -> None:
        """Parse everything once, so that bad text is refused here."""
        for netlayer in (0, *self.netlayer_port_rate):
            self.bytes_per_s(netlayer)
        parse_time(self.switch_hop, "switch hop")
        parse_time(self.cable, "cable")

    def bytes_per_s(self, netlayer: int) -> int:
        """Port rate of a netlayer, bytes per second and direction."""
        rate = self.netlayer_port_rate.get(netlayer, self.port_rate)
        if not (value := parse_rate(rate, "port rate")):
            raise TopologyError("port rate", rate, "must be positive")
        return value

    def link_class(self, name: str, netlayer: int, *, into_switch: bool) -> LinkClass:
        """Make the class of links of a netlayer; those into a switch also pay its crossing."""
        quantities = {"port_rate": self.netlayer_port_rate.get(netlayer, self.port_rate), "cable": self.cable}
        latency_ps = parse_time(self.cable)
        if into_switch:
            quantities["switch_hop"] = self.switch_hop
            latency_ps += parse_time(self.switch_hop)
        sources = [_source(key, value) for key, value in quantities.items()]
        kind = max((source.kind for source in sources), key=SOURCE_KINDS.index)
        return LinkClass(
            name=name,
            bandwidth_bytes_per_s=self.bytes_per_s(netlayer),
            latency_ps=latency_ps,
            source=Source(kind, "; ".join(source.text for source in sources)),
        )


def _source(quantity: str, value: str) -> Source:
    default = {"port_rate": DEFAULT_PORT_RATE, "cable": DEFAULT_CABLE, "switch_hop": DEFAULT_SWITCH_HOP}
    if value == default[quantity]:
        source = SOURCES[f"DEFAULT_{quantity.upper()}"]
        return Source(source.kind, f"{quantity}: {source.text}")
    return Source("given", f"{quantity}: {value}")


@dataclass(frozen=True, kw_only=True, order=True)
class _Cable:
    """One cable: a card's port, and another card's port or a fabric (then b is a key of fabrics)."""

    netlayer: int
    plane: int
    npu: int
    port: int
    peer: int = -1
    peer_port: int = UNKNOWN_PORT
    fabric: tuple[int, ...] = ()


def topology_from_hccl(
    topo: TopoFile | None,
    table: RankTable | None = None,
    *,
    rates: FabricRates | None = None,
    name: str = "hccl",
) -> Topology:
    """Build the graph that HCCL files describe.

    With both files, NPU i is rank i, each server of the table (innermost instance) has the cables of
    the topo file between those of its cards that the table lists, and every PEER2NET port goes to the
    switch of its (netlayer, instance, topo instance, plane). The plane of a port is the `plane_id` of
    its address; ports without one are counted through, after all named planes. With the topo file alone
    there is one server, and NPUs follow the local ids. With the table alone, levels of type MESH are full
    meshes and all others are fabrics. Edges that repeat a cable (another protocol, or ends swapped)
    count once, and ports of the host are left out.

    Args:
      topo: the topo file.
      table: the rank table.
      rates: what the files lack; None = the defaults with their sources.
      name: of the topology.

    Raises:
      TopologyError: neither file is given, a level needs the topo file, a rank's local id is not in it,
        the two ends of an edge have different numbers of ports, or a port does not fit the numbering.
    """
    if topo is None and table is None:
        raise TopologyError("topo file", None, "give a topo file, a rank table, or both")
    places = _places(topo, table)
    cables = set(_topo_cables(topo, places) if topo else _table_cables(places))
    return _build(name, places, sorted(cables), rates or FabricRates())


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where each NPU sits.

    Server and supernode index of each NPU, instance of each (netlayer, NPU), plane of each (netlayer,
    NPU, port) whose address names one, and per netlayer the first plane for ports that name none.
    """

    entries: tuple[RankEntry, ...]
    local_ids: tuple[int, ...]
    server: tuple[int, ...]
    supernode: tuple[int, ...]
    instance: Mapping[tuple[int, int], int]
    plane: Mapping[tuple[int, int, str], int]
    unnamed: Mapping[int, int]

    def planes_of(self, netlayer: int, npu: int, ports: tuple[str, ...]) -> list[tuple[str, int]]:
        """Pair each port with its named plane, or count the unnamed ones behind all named planes."""
        unnamed = itertools.count(self.unnamed.get(netlayer, 0))
        return [
            (port, self.plane[netlayer, npu, port] if (netlayer, npu, port) in self.plane else next(unnamed))
            for port in ports
        ]


def _places(topo: TopoFile | None, table: RankTable | None) -> _Places:
    if table is None:
        assert topo is not None
        local_ids = tuple(sorted(topo.peers))
        zeros = (0,) * len(local_ids)
        return _Places(
            entries=(), local_ids=local_ids, server=zeros, supernode=zeros, instance={}, plane={}, unnamed={}
        )
    for rank in table.ranks:
        if topo is not None and rank.local_id not in topo.peers:
            raise TopologyError(
                f"local_id of rank {rank.rank_id}", rank.local_id, "must be in the topo file's peer_list"
            )
    server = _numbered(rank.server_id for rank in table.ranks)
    instance: dict[tuple[int, int], int] = {}
    for netlayer in table.netlayers:
        levels = [(rank.rank_id, rank.level(netlayer)) for rank in table.ranks]
        present = [(rank_id, level) for rank_id, level in levels if level is not None]
        numbers = _numbered(level.instance_id for _, level in present)
        instance.update({(netlayer, rank_id): n for (rank_id, _), n in zip(present, numbers, strict=True)})
    supernode = tuple(instance.get((NETLAYER_SUPERNODE, i), server[i]) for i in range(len(table.ranks)))
    plane = _plane_numbers(table)
    unnamed = {
        layer: 1 + max((n for key, n in plane.items() if key[0] == layer), default=-1)
        for layer in table.netlayers
    }
    return _Places(
        entries=table.ranks,
        local_ids=tuple(rank.local_id for rank in table.ranks),
        server=server,
        supernode=supernode,
        instance=instance,
        plane=plane,
        unnamed=unnamed,
    )


def _numbered(names: Iterable[str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)


def _plane_numbers(table: RankTable) -> dict[tuple[int, int, str], int]:
    """Map (netlayer, rank, port) to a plane number, for ports whose address has a `plane_id`."""
    ids: dict[tuple[int, int, str], str] = {}
    for rank in table.ranks:
        for level in rank.levels:
            for address in level.addresses:
                if address.plane_id is not None:
                    ids.update(
                        {(level.netlayer, rank.rank_id, port): address.plane_id for port in address.ports}
                    )
    numbers: dict[tuple[int, int, str], int] = {}
    for netlayer in {key[0] for key in ids}:
        names = sorted({plane for key, plane in ids.items() if key[0] == netlayer}, key=_natural)
        matches = [_PLANE.fullmatch(plane) for plane in names]
        # "plane7" means plane 7; other names ("planeA") are counted in their natural order.
        number = {
            plane: int(match[1]) if match and all(matches) else i
            for i, (plane, match) in enumerate(zip(names, matches, strict=True))
        }
        numbers.update({key: number[plane] for key, plane in ids.items() if key[0] == netlayer})
    return numbers


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _topo_cables(topo: TopoFile, places: _Places) -> Iterable[_Cable]:
    card = {(places.server[i], local): i for i, local in enumerate(places.local_ids)}
    for number, edge in enumerate(topo.edges):
        if edge.position != "DEVICE":
            continue
        where = f"edge_list[{number}]"
        for server in range(max(places.server) + 1):
            npu = card.get((server, edge.local_a))
            if npu is None:
                continue
            if edge.link_type != PEER2PEER:
                yield from _net_cables(edge, npu, places, where)
            elif (peer := card.get((server, edge.local_b or 0))) is not None:
                yield from _peer_cables(edge, npu, peer, where)


def _peer_cables(edge: TopoEdge, npu: int, peer: int, where: str) -> Iterable[_Cable]:
    if len(edge.local_a_ports) != len(edge.local_b_ports):
        rule = f"must list as many ports as local_a_ports, which lists {len(edge.local_a_ports)}"
        raise TopologyError(f"{where}.local_b_ports", len(edge.local_b_ports), rule)
    for port, peer_port in zip(edge.local_a_ports, edge.local_b_ports, strict=True):
        ends = sorted([(npu, port_number(port, where)), (peer, port_number(peer_port, where))])
        (low, low_port), (high, high_port) = ends
        yield _Cable(netlayer=edge.netlayer, plane=0, npu=low, port=low_port, peer=high, peer_port=high_port)


def _net_cables(edge: TopoEdge, npu: int, places: _Places, where: str) -> Iterable[_Cable]:
    layer = edge.netlayer
    instance = places.instance.get((layer, npu), places.server[npu])
    for port, plane in places.planes_of(layer, npu, edge.local_a_ports):
        yield _Cable(
            netlayer=layer, plane=plane, npu=npu, port=port_number(port, where),
            fabric=(layer, instance, edge.topo_instance_id, plane),
        )  # fmt: skip


def _table_cables(places: _Places) -> Iterable[_Cable]:
    """Cables when there is no topo file: fabrics by plane, and full meshes port by port."""
    mesh: dict[tuple[int, int], list[tuple[int, tuple[str, ...]]]] = {}
    for npu, rank in enumerate(places.entries):
        for level in rank.levels:
            where = f"level {level.netlayer} of rank {npu}"
            instance = places.instance[level.netlayer, npu]
            if level.net_type == _FROM_TOPO_FILE and level.ports:
                raise TopologyError(
                    f"net_type of {where}", _FROM_TOPO_FILE, "needs the topo file beside the rank table"
                )
            if level.net_type == "MESH":
                mesh.setdefault((level.netlayer, instance), []).append((npu, level.ports))
                continue
            for port, plane in places.planes_of(level.netlayer, npu, level.ports):
                yield _Cable(
                    netlayer=level.netlayer, plane=plane, npu=npu, port=port_number(port, where),
                    fabric=(level.netlayer, instance, 0, plane),
                )  # fmt: skip
    for (netlayer, _), members in mesh.items():
        yield from _mesh_cables(netlayer, members)


def _mesh_cables(netlayer: int, members: list[tuple[int, tuple[str, ...]]]) -> Iterable[_Cable]:
    """Join every two members; a card's k-th port goes to its k-th peer, in rank order."""
    for i, (npu, ports) in enumerate(members):
        if len(ports) != len(members) - 1:
            rule = f"must be one per peer of its mesh, which are {len(members) - 1}"
            raise TopologyError(f"number of ports of rank {npu} on netlayer {netlayer}", len(ports), rule)
        for j in range(i + 1, len(members)):
            peer, peer_ports = members[j]
            if i < len(peer_ports):
                yield _Cable(
                    netlayer=netlayer, plane=0, npu=npu, port=port_number(ports[j - 1], "rank_list"),
                    peer=peer, peer_port=port_number(peer_ports[i], "rank_list"),
                )  # fmt: skip


def port_number(port: str, where: str) -> int:
    """Turn "die/port" into a number.

    Raises:
      TopologyError: the port part does not fit the numbering.
    """
    die, number = (int(part) for part in port.split("/"))
    if number >= PORTS_PER_DIE or die >= 2**20:
        raise TopologyError(where, port, f"must have a port below {PORTS_PER_DIE} to become part of a graph")
    return die * PORTS_PER_DIE + number


def port_name(number: int) -> str:
    """Turn a port number back into "die/port"."""
    return "{}/{}".format(*divmod(number, PORTS_PER_DIE))


def _build(name: str, places: _Places, cables: list[_Cable], rates: FabricRates) -> Topology:
    num_npus = len(places.local_ids)
    switch = {key: num_npus + i for i, key in enumerate(sorted({c.fabric for c in cables if c.fabric}))}
    classes: dict[tuple[int, str], int] = {}
    made: list[LinkClass] = []
    rows: list[tuple[int, ...]] = []

    def class_of(netlayer: int, kind: str) -> int:
        if (netlayer, kind) not in classes:
            classes[netlayer, kind] = len(made)
            made.append(rates.link_class(f"netlayer{netlayer}-{kind}", netlayer, into_switch=kind == "up"))
        return classes[netlayer, kind]

    for cable in cables:
        there, back = ("up", "down") if cable.fabric else ("peer", "peer")
        other = switch[cable.fabric] if cable.fabric else cable.peer
        common = cable.netlayer, cable.plane
        rows.append((cable.npu, other, *common, class_of(cable.netlayer, there), cable.port, cable.peer_port))
        rows.append((other, cable.npu, *common, class_of(cable.netlayer, back), cable.peer_port, cable.port))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 7).T
    src, dst, netlayer, plane, link_class, src_port, dst_port = (column.copy() for column in columns)
    return Topology(
        name=name, num_npus=num_npus, num_switches=len(switch),
        link_src=src.astype(np.int32), link_dst=dst.astype(np.int32),
        link_netlayer=netlayer.astype(np.uint8), link_plane=plane.astype(np.int16),
        link_class=link_class.astype(np.uint16), classes=tuple(made),
        link_src_port=src_port.astype(np.int32), link_dst_port=dst_port.astype(np.int32),
        switch_tier=np.zeros(len(switch), np.uint8),
        npu_server=np.array(places.server, np.int32), npu_supernode=np.array(places.supernode, np.int32),
    )  # fmt: skip
