"""From routes to lanes: which bundles of links a flow uses, and what share of it each takes.

Links that exactly the same flows use in the same parts carry the same bytes at all times, so they act as one
port of their number times the slowest one's rate: the eight planes of a healthy card become one port. What
is not alike (a card that lost a plane, a slow cable) keeps ports of its own.

Dimension legend: F flows, E entries (a flow on a link), L links.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.sim.card import Lane
from epsim.sim.fabric import Port
from topology import Routes, Topology

Int64 = npt.NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def bundle_links(routes: Routes, num_links: int, *, is_alone: bool) -> tuple[Int64, Int64]:
    """Group the links that carry the same flows in the same parts.

    Args:
      routes: F flows.
      num_links: L.
      is_alone: keep every link apart.

    Returns:
      [L] bundle of each link, -1 = unused; [L] first link of each link's bundle.
    """
    used = np.unique(routes.link_idx).astype(np.int64)
    bundle = np.full(num_links, -1, np.int64)
    if is_alone:
        bundle[used] = np.arange(len(used))
        return bundle, np.arange(num_links, dtype=np.int64)
    order = np.lexsort((routes.flow_idx, routes.link_idx))
    link, flow = routes.link_idx[order].astype(np.int64), routes.flow_idx[order].astype(np.uint64)
    parts, hop = routes.parts[order].astype(np.uint64), routes.hop[order].astype(np.uint64)
    word = _mix(_mix(flow * _MIX + parts) + hop)
    starts = (
        np.flatnonzero(np.concatenate([[True], link[1:] != link[:-1]]))
        if len(link)
        else np.zeros(0, np.int64)
    )
    signature = np.add.reduceat(word, starts) if len(link) else word
    counts = np.diff(np.append(starts, len(link)))
    _, first, group = np.unique(
        np.stack([signature, counts.astype(np.uint64)]), axis=1, return_index=True, return_inverse=True
    )
    group = group.reshape(-1)
    bundle[used] = group
    leader = np.arange(num_links, dtype=np.int64)
    leader[used] = used[first[group]]
    _verify(starts, counts, flow, first[group])
    return bundle, leader


def _verify(starts: Int64, counts: Int64, flow: npt.NDArray[np.uint64], leaders: Int64) -> None:
    """Check that equal signatures are equal flows; a chance match of 64 bits would be a wrong answer."""
    for link, leader in enumerate(leaders.tolist()):
        mine = flow[starts[link] : starts[link] + counts[link]]
        its = flow[starts[leader] : starts[leader] + counts[leader]]
        if not np.array_equal(mine, its):
            raise AssertionError("two links with different flows have one signature")


def _mix(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64 bits (splitmix64)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


class Lanes:
    """Ports of a set of flows, and each flow's lanes.

    Args:
      topology: the graph.
      routes: F flows.
      link_bytes_per_s: [L] payload rate of each link.
      credit_bytes: room behind one link; bundles have it once per link.
      is_alone: keep every link apart, as packets need it: each takes one path.
    """

    def __init__(
        self,
        topology: Topology,
        routes: Routes,
        link_bytes_per_s: npt.NDArray[np.float64],
        credit_bytes: int,
        *,
        is_alone: bool = False,
    ) -> None:
        """Make the ports and find the lanes of every flow."""
        self.topology = topology
        self.bundle, self.leader = bundle_links(routes, topology.num_links, is_alone=is_alone)
        self.links_of = self._members()
        latency = topology.link_latency_ps()
        self.ports: list[Port] = []
        for links in self.links_of:
            rate = len(links) * float(link_bytes_per_s[links].min())
            ends_in_card = int(topology.link_dst[links[0]]) < topology.num_npus
            room = None if ends_in_card else credit_bytes * len(links)
            self.ports.append(Port(_name(topology, links), rate, int(latency[links].max()), room))
        self.of_flow = self._find(routes)

    def _members(self) -> list[Int64]:
        used = np.flatnonzero(self.bundle >= 0)
        order = used[np.argsort(self.bundle[used], kind="stable")]
        if not len(order):
            return []
        return np.split(order, np.flatnonzero(np.diff(self.bundle[order])) + 1)

    def _find(self, routes: Routes) -> list[tuple[Lane, ...]]:
        ends = np.searchsorted(routes.flow_idx, np.arange(routes.num_flows + 1))
        port = self.bundle[routes.link_idx]
        plane = self.topology.link_plane[routes.link_idx]
        found: list[tuple[Lane, ...]] = []
        for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            here = slice(begin, end)
            found.append(self._lanes(port[here], plane[here], routes.hop[here], routes.parts[here]))
        return found

    def _lanes(
        self, port: Int64, plane: npt.NDArray[np.int16], hop: npt.NDArray[np.int8], parts: Int64
    ) -> tuple[Lane, ...]:
        """Return the lanes of one flow."""
        hops = np.unique(hop)
        per_hop = [np.unique(port[hop == h]) for h in hops]
        if all(len(ports) == 1 for ports in per_hop):
            return (Lane(tuple(self.ports[int(ports[0])] for ports in per_hop), 1, 1),)
        share: dict[tuple[int, ...], float] = {}
        for p in np.unique(plane):
            paths = _zip_paths([_ordered(port[(plane == p) & (hop == h)]) for h in hops])
            first = (plane == p) & (hop == hops[0])
            part = float((1.0 / parts[first]).sum()) / len(paths)
            for path in paths:
                share[path] = share.get(path, 0.0) + part
        of = 1 << 40
        return tuple(
            Lane(tuple(self.ports[i] for i in path), round(value * of), of) for path, value in share.items()
        )


def _ordered(ports: Int64) -> list[int]:
    """Return distinct ports in the order of their first link."""
    return list(dict.fromkeys(ports.tolist()))


def _zip_paths(per_hop: Sequence[list[int]]) -> list[tuple[int, ...]]:
    """Join the ports of each hop to paths: one port serves all paths, else they go side by side."""
    width = max(len(ports) for ports in per_hop)
    if any(len(ports) not in (1, width) for ports in per_hop):
        sizes = [len(ports) for ports in per_hop]
        raise InputError(
            "parallel ports per hop", sizes, "must be equal for events; use --level flow for this network"
        )
    return [tuple(ports[i if len(ports) > 1 else 0] for ports in per_hop) for i in range(width)]


def _name(topology: Topology, links: Int64) -> str:
    """Name a bundle by its ends: a card's ports, or the switches that it joins."""
    first = topology.link(int(links[0]))
    if len(links) == 1:
        return f"{first.src} -> {first.dst}"
    dsts = {int(v) for v in topology.link_dst[links]}
    srcs = {int(v) for v in topology.link_src[links]}
    src = first.src if len(srcs) == 1 else f"{len(srcs)} switches"
    dst = first.dst if len(dsts) == 1 else f"{len(dsts)} switches"
    return f"{src} -> {dst} ({len(links)} links)"
