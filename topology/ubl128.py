"""UBL128: up to 128 cards under one layer of switches, one switch per plane.

Every default carries its Source (`SOURCES`). The reading: a card has eight 400G ports, each port goes
to the switch of its plane, and each plane's switch has 128 ports (51.2 Tb/s).
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from topology.build import LinkTable, class_source, in_range, latency, positive_rate
from topology.errors import TopologyError
from topology.graph import NETLAYER_SERVER, NETLAYER_SUPERNODE, LinkClass, Topology
from topology.source import Source

MAX_PLANES = 64
MAX_RADIX = 4096
SERVER_SIZE = 8
PORT_RATE = 50_000_000_000  # bytes/s, 400 Gb/s
SWITCH_HOP_PS = 200_000
CABLE_PS = 50_000

SOURCES: Mapping[str, Source] = MappingProxyType({
    "num_npus": Source("official", "UBL128: 128 cards under one switched layer (statement of 2026-09-30)"),
    "planes": Source("secondary", "8 planes x SW128: third-party ns-3-UB study; 3.2 Tb/s = 8 x 400G"),
    "port_rate": Source("secondary", "8 x 400G per card (their sum is official), before framing"),
    "radix": Source("secondary", "switch radix 128 at 400G: 128 x 400G = 51.2 Tb/s per plane"),
    "switch_hop": Source("secondary", "about 200 ns a hop on CloudMatrix384, range 150-300 ns"),
    "cable": Source("assumed", "50 ns, 10 m at 5 ns/m, range 10-150 ns"),
    "server_mesh": Source("secondary", "7 x 400G full mesh of 8 cards (serving design text, HCCL test)"),
})  # fmt: skip
"""Where each default of `ubl128` came from."""


def ubl128(
    num_npus: int = 128,
    *,
    planes: int = 8,
    ports_per_plane: int = 1,
    port_rate: str | int = PORT_RATE,
    radix: int = 128,
    switch_hop: str | int = SWITCH_HOP_PS,
    cable: str | int = CABLE_PS,
    server_mesh: bool = False,
    server_size: int = SERVER_SIZE,
    netlayer: int = NETLAYER_SUPERNODE,
    name: str | None = None,
) -> Topology:
    """Build one UBL128 supernode.

    Args:
      num_npus: cards; fewer than the radix carries is allowed.
      planes: switches, each on its own plane.
      ports_per_plane: ports of a card into each plane; 4 planes x 2 ports with radix 256 is the other
        public reading of the same 3.2 Tb/s.
      port_rate: per port and direction, nominal; text with a unit or bytes/s.
      radix: ports of a plane's switch at `port_rate`.
      switch_hop: latency of crossing a switch; text with a unit or picoseconds.
      cable: latency of one cable with its optics; text with a unit or picoseconds.
      server_mesh: also cable the 8-card full mesh inside each server, on netlayer 0.
      server_size: cards per mesh server.
      netlayer: HCCL's index of the switched layer.
      name: for people; made from the numbers when absent.

    Returns:
      Topology; card port p goes to plane p // ports_per_plane, mesh ports follow, switch ports count
      cards.

    Raises:
      TopologyError: a number is out of range, or a plane's switch has too few ports.
    """
    check_scaleup(num_npus, planes, ports_per_plane, radix)
    in_range(server_size, "server_size", 1, MAX_RADIX)
    in_range(netlayer, "netlayer", 1, 7, "0 is the mesh inside a server")
    num_cables = num_npus * planes * ports_per_plane
    mesh_cables = num_mesh_cables(num_npus, server_size) if server_mesh else 0
    table = LinkTable(2 * (num_cables + mesh_cables))
    add_scaleup(
        table, num_npus, num_npus,
        planes=planes, ports_per_plane=ports_per_plane, port_rate=port_rate,
        switch_hop=switch_hop, cable=cable, netlayer=netlayer,
    )  # fmt: skip
    if server_mesh:
        first_port = planes * ports_per_plane
        add_mesh(table, num_npus, server_size, port_rate=port_rate, cable=cable, first_port=first_port)
    return table.topology(
        name=name or f"ubl128 ({num_npus} cards, {planes} planes)",
        num_npus=num_npus,
        switch_tier=np.zeros(planes, np.uint8),
        server_size=server_size,
        supernode_size=num_npus,
    )


def check_scaleup(
    supernode_size: int, planes: int, ports_per_plane: int, radix: int, field: str = "num_npus"
) -> None:
    """Check that one switch per plane carries a supernode; the error names `field`.

    Raises:
      TopologyError: a number is out of range, or the radix is too small.
    """
    in_range(planes, "planes", 1, MAX_PLANES)
    in_range(ports_per_plane, "ports_per_plane", 1, MAX_PLANES)
    in_range(radix, "radix", 1, MAX_RADIX)
    in_range(supernode_size, field, 1, MAX_RADIX)
    if supernode_size * ports_per_plane > radix:
        ports = f" x {ports_per_plane} ports" if ports_per_plane > 1 else ""
        rule = (
            f"one switch of {radix} ports per plane carries at most {radix // ports_per_plane} cards{ports}"
        )
        raise TopologyError(field, supernode_size, rule)


def add_scaleup(
    table: LinkTable,
    num_npus: int,
    supernode_size: int,
    *,
    planes: int,
    ports_per_plane: int,
    port_rate: str | int,
    switch_hop: str | int,
    cable: str | int,
    netlayer: int,
) -> int:
    """Cable every card to the plane switches of its supernode; return how many switches that takes.

    Switches are numbered from `num_npus`, plane fastest. Links come in C order of (card, plane, port).
    """
    up_class, down_class = _scaleup_classes(table, port_rate, switch_hop, cable)
    cards = np.arange(num_npus, dtype=np.int32)[:, None, None]
    plane = np.arange(planes, dtype=np.int32)[None, :, None]
    port = np.arange(ports_per_plane, dtype=np.int32)[None, None, :]
    table.add_cables(
        (num_npus, planes, ports_per_plane),
        cards,
        num_npus + (cards // supernode_size) * planes + plane,
        netlayer=netlayer,
        plane=plane,
        up_class=up_class,
        down_class=down_class,
        lower_port=plane * ports_per_plane + port,
        upper_port=(cards % supernode_size) * ports_per_plane + port,
    )
    return -(-num_npus // supernode_size) * planes


def _scaleup_classes(
    table: LinkTable, port_rate: str | int, switch_hop: str | int, cable: str | int
) -> tuple[int, int]:
    """Register the links from cards to switches and back; the switch hop counts on the way in."""
    rate, hop_ps, cable_ps = (
        positive_rate(port_rate, "port_rate"), latency(switch_hop, "switch_hop"), latency(cable, "cable")
    )  # fmt: skip
    rate_part = ("port_rate", rate, PORT_RATE, SOURCES["port_rate"])
    cable_part = ("cable", cable_ps, CABLE_PS, SOURCES["cable"])
    hop_part = ("switch_hop", hop_ps, SWITCH_HOP_PS, SOURCES["switch_hop"])
    up_class = table.add_class(
        LinkClass(
            name="ubl-up",
            bandwidth_bytes_per_s=rate,
            latency_ps=cable_ps + hop_ps,
            source=class_source(rate_part, hop_part, cable_part),
        )
    )
    down_class = table.add_class(
        LinkClass(
            name="ubl-down",
            bandwidth_bytes_per_s=rate,
            latency_ps=cable_ps,
            source=class_source(rate_part, cable_part),
        )
    )
    return up_class, down_class


def num_mesh_cables(num_npus: int, server_size: int) -> int:
    """Count the cables of full meshes over servers of `server_size` cards; the last may be smaller."""
    full, rest = divmod(num_npus, server_size)
    return full * (server_size * (server_size - 1) // 2) + rest * (rest - 1) // 2


def add_mesh(
    table: LinkTable,
    num_npus: int,
    server_size: int,
    *,
    port_rate: str | int,
    cable: str | int,
    first_port: int,
    netlayer: int = NETLAYER_SERVER,
) -> None:
    """Cable a full mesh inside every server; card ports count peers in ascending order."""
    rate, cable_ps = positive_rate(port_rate, "port_rate"), latency(cable, "cable")
    source = class_source(
        ("port_rate", rate, PORT_RATE, SOURCES["server_mesh"]),
        ("cable", cable_ps, CABLE_PS, SOURCES["cable"]),
    )
    link_class = table.add_class(
        LinkClass(name="mesh", bandwidth_bytes_per_s=rate, latency_ps=cable_ps, source=source)
    )
    low, high = np.triu_indices(server_size, k=1)  # low < high inside a server
    first_card = np.arange(0, num_npus, server_size)[:, None]
    lower, upper = (first_card + low).ravel(), (first_card + high).ravel()
    present = upper < num_npus
    num_servers = len(first_card)
    table.add_cables(
        (int(present.sum()),),
        lower[present],
        upper[present],
        netlayer=netlayer,
        plane=0,
        up_class=link_class,
        down_class=link_class,
        # A card skips itself when it counts its peers: the higher peer sits one port lower.
        lower_port=np.tile(first_port + high - 1, num_servers)[present],
        upper_port=np.tile(first_port + low, num_servers)[present],
    )
