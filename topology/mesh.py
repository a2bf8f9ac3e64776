"""The 8-card server: every card cabled to every other one, on netlayer 0, no switch."""

import numpy as np

from topology.build import LinkTable, in_range
from topology.errors import TopologyError
from topology.graph import Topology
from topology.ubl128 import CABLE_PS, PORT_RATE, SOURCES, add_mesh, num_mesh_cables

MESH_PORTS = 7
SOURCE = SOURCES["server_mesh"]


def mesh(
    num_npus: int = 8,
    *,
    ports: int = MESH_PORTS,
    port_rate: str | int = PORT_RATE,
    cable: str | int = CABLE_PS,
    name: str | None = None,
) -> Topology:
    """Build one fully meshed server.

    Args:
      num_npus: cards; at most ports + 1.
      ports: mesh ports of a card.
      port_rate: of one port, one direction; text with a unit or bytes/s.
      cable: latency of one cable; text with a unit or picoseconds.
      name: for people; made from the numbers when absent.

    Returns:
      Topology without switches; card ports count peers in ascending order.

    Raises:
      TopologyError: a number is out of range, or a card has too few ports for its peers.
    """
    in_range(num_npus, "num_npus", 2, 1024)
    in_range(ports, "ports", 1, 1023)
    if num_npus > ports + 1:
        rule = f"a full mesh needs one port per peer, and a card has {ports} mesh ports"
        raise TopologyError("num_npus", num_npus, rule)
    table = LinkTable(2 * num_mesh_cables(num_npus, num_npus))
    add_mesh(table, num_npus, num_npus, port_rate=port_rate, cable=cable, first_port=0)
    return table.topology(
        name=name or f"mesh ({num_npus} cards)",
        num_npus=num_npus,
        switch_tier=np.zeros(0, np.uint8),
        server_size=num_npus,
        supernode_size=num_npus,
    )
