"""One-directional links paired into the two-way cables that packet simulators know.

Our latency of a link covers its cable and, when it ends in a switch, crossing that switch; packet
simulators give a cable and a switch a delay each. A card does not cross anything, so a link into a card
tells its cable; switches follow from there, tier by tier.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epsim.errors import InputError
from epsim.exchange.case import Int64
from topology.graph import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class Cables:
    """The two-way view of a topology. C cables, V vertices, L links.

    Args:
      vertex: [C, 2] int64, the ends.
      port: [C, 2] int64, port at each end, counted from 0 at every vertex in the order of the links.
      num_ports: [V] int64.
      bytes_per_s: [C] int64, each direction.
      delay_ps: [C] int64, of the cable alone.
      crossing_ps: [V] int64, through a switch; 0 for cards.
      link_ports: [L, 2] int64, ports at which each link leaves and arrives.
    """

    vertex: Int64
    port: Int64
    num_ports: Int64
    bytes_per_s: Int64
    delay_ps: Int64
    crossing_ps: Int64
    link_ports: Int64


def pair_cables(topology: Topology, simulator: str) -> Cables:
    """Pair links and split their latencies.

    Args:
      topology: the graph.
      simulator: for messages.

    Raises:
      InputError: a link has no way back of its rate, or no cable and crossing times explain the latencies.
    """
    forth, back = _pairs(topology, simulator)
    vertex = np.stack([topology.link_src[forth], topology.link_dst[forth]], axis=1).astype(np.int64)
    port, num_ports = _ports(vertex, topology.num_vertices)
    link_ports = np.zeros((topology.num_links, 2), np.int64)
    link_ports[forth], link_ports[back] = port, port[:, ::-1]
    rates = topology.link_bytes_per_s()
    unequal = np.flatnonzero(rates[forth] != rates[back])
    if len(unequal):
        rule = f"must be as fast as its way back: a cable of {simulator} has one rate"
        raise InputError("link", str(topology.link(int(forth[unequal[0]]))), rule)
    delay_ps, crossing_ps = _split_latency(topology, simulator, forth, back)
    return Cables(
        vertex=vertex, port=port, num_ports=num_ports, bytes_per_s=rates[forth],
        delay_ps=delay_ps, crossing_ps=crossing_ps, link_ports=link_ports,
    )  # fmt: skip


def _pairs(topology: Topology, simulator: str) -> tuple[Int64, Int64]:
    """Return the links of each cable, both ways, [C] each; the first link of a cable gives its place."""
    ends = np.stack([topology.link_src, topology.link_dst], axis=1).astype(np.int64)
    label = [topology.link_netlayer, topology.link_plane, topology.link_bytes_per_s()]
    is_up = ends[:, 0] < ends[:, 1]
    order = np.lexsort([*label, ends.max(axis=1), ends.min(axis=1)])
    up, down = order[is_up[order]], order[~is_up[order]]
    same = len(up) == len(down) and (ends[up] == ends[down][:, ::-1]).all()
    if not same:
        key = [sorted(zip(ends[some].min(axis=1).tolist(), ends[some].max(axis=1).tolist(), strict=True))
               for some in (up, down)]  # fmt: skip
        lonely = next((a for a, b in zip(*key, strict=False) if a != b), (key[0] + key[1])[-1])
        names = " - ".join(topology.vertex_name(vertex) for vertex in lonely)
        raise InputError("cable", names, f"has not as many links each way, and {simulator} knows only cables")
    first = np.argsort(np.minimum(up, down), kind="stable")
    return up[first], down[first]


def _ports(vertex: Int64, num_vertices: int) -> tuple[Int64, Int64]:
    """Count the cables of each vertex from 0; return [C, 2] ports and [V] how many."""
    flat = vertex.reshape(-1)
    num_ports = np.bincount(flat, minlength=num_vertices)
    order = np.argsort(flat, kind="stable")
    port = np.empty(len(flat), np.int64)
    port[order] = np.arange(len(flat)) - (np.cumsum(num_ports) - num_ports)[flat[order]]
    return port.reshape(-1, 2), num_ports.astype(np.int64)


def _split_latency(topology: Topology, simulator: str, forth: Int64, back: Int64) -> tuple[Int64, Int64]:
    """Return ([C] cable delay, [V] crossing time) with delay + crossing of the end = latency, both ways."""
    latency = topology.link_latency_ps()
    ends = np.stack([topology.link_src[forth], topology.link_dst[forth]], axis=1)
    into = np.stack([latency[back], latency[forth]], axis=1)  # [C, 2] latency of the link that ends there
    crossing = np.full(topology.num_vertices, -1, np.int64)
    crossing[: topology.num_npus] = 0
    delay = np.full(len(forth), -1, np.int64)
    while (delay < 0).any():
        ready = np.flatnonzero((delay < 0) & (crossing[ends] >= 0).any(axis=1))
        if not len(ready):
            raise InputError(
                "switches", "not joined to any card", f"{simulator} needs the time to cross them"
            )
        known = np.where(crossing[ends[ready, 0]] >= 0, 0, 1)
        delay[ready] = into[ready, known] - crossing[ends[ready, known]]
        far = ends[ready, 1 - known]
        unknown = crossing[far] < 0
        crossing[far[unknown]] = (into[ready, 1 - known] - delay[ready])[unknown]
    wrong = np.flatnonzero((delay < 0) | ((delay[:, None] + crossing[ends]) != into).any(axis=1))
    if len(wrong) or (crossing < 0).any():
        where = str(topology.link(int(forth[wrong[0]]))) if len(wrong) else topology.name
        rule = f"no cable delay and one crossing time per switch, as {simulator} has them, give its latency"
        raise InputError("latency", where, rule)
    return delay, crossing


class Way(NamedTuple):
    """At a vertex, the ports of all shortest ways to a destination, and how many links these have."""

    vertex: int
    num_hops: int
    ports: tuple[int, ...]


def shortest_ways(topology: Topology, npus: Int64, cables: Cables) -> dict[int, list[Way]]:
    """Find all shortest ways to the ports of cards; cards never forward.

    Args:
      topology: the graph; every link may be used.
      npus: destinations.
      cables: of the topology.

    Returns:
      For each link into a card of `npus`, the ways that end with it, nearest vertex first.
    """
    into = [np.flatnonzero(topology.link_dst == vertex) for vertex in range(topology.num_vertices)]
    return {int(last): _ways(topology, into, int(last), cables) for npu in npus for last in into[npu]}


def _ways(topology: Topology, into: list[Int64], last: int, cables: Cables) -> list[Way]:
    start = int(topology.link_src[last])
    ways = [Way(start, 1, (int(cables.link_ports[last, 0]),))]
    seen, frontier = {start}, [start]
    while frontier := [vertex for vertex in frontier if vertex >= topology.num_npus]:
        ports: dict[int, list[int]] = {}
        for link in (int(n) for vertex in frontier for n in into[vertex]):
            vertex = int(topology.link_src[link])
            if vertex not in seen:
                ports.setdefault(vertex, []).append(int(cables.link_ports[link, 0]))
        num_hops = ways[-1].num_hops + 1
        ways += [Way(vertex, num_hops, tuple(sorted(ports[vertex]))) for vertex in sorted(ports)]
        seen |= ports.keys()
        frontier = list(ports)
    return ways
