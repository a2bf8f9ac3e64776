"""What is wrong with a topology: a list of findings, each a sentence that names the things.

`check` never raises on a faulty graph; what a `Topology` cannot even hold (a link from a vertex to
itself, a class that does not exist) is refused when it is made. All rules are vectorised: 262,144
cards take seconds. Rules about links are here, rules about cards in `cardchecks`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from topology.cardchecks import card_faults
from topology.fabric import Int64
from topology.graph import UNKNOWN_PORT, IntArray, Topology
from topology.units import format_rate

Severity = Literal["error", "warning"]

RULES: dict[str, tuple[Severity, str]] = {
    "npu-without-links": ("error", "every card sends and receives on some netlayer"),
    "switch-without-links": (
        "error",
        "every switch joins something; without it a plane is lost for everybody",
    ),
    "netlayer-missing": ("warning", "a card has links on every netlayer that others have"),
    "plane-missing": ("error", "a card has a link each way in every plane of a netlayer it is on"),
    "port-missing": ("warning", "a card has as many links per plane, or mesh peers, as the others"),
    "split-plane": ("error", "a card meets one switch per plane"),
    "mixed-planes": ("error", "a switch serves one plane of a netlayer"),
    "unequal-planes": ("warning", "the planes of a card have one speed"),
    "unreachable": ("error", "any two cards have a path over a netlayer that routes use"),
    "asymmetric-cable": ("error", "a link has a link back, in the same netlayer and plane"),
    "unequal-directions": ("error", "both directions of a cable have one speed"),
    "port-conflict": ("error", "a port has at most one link out and one link in"),
    "crossed-port": ("error", "a port sends to the vertex that it receives from"),
    "duplicate-link": ("warning", "a link is listed once; parallel links are told apart by their ports"),
}
"""Rule id -> severity and what a healthy topology does."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One broken rule.

    Args:
      severity: "error" (routes or predictions are wrong) or "warning" (legal, and rarely meant).
      rule: a key of `RULES`.
      message: one sentence that names the things.
    """

    severity: Severity
    rule: str
    message: str

    def __str__(self) -> str:
        """Write severity, rule and sentence on one line."""
        return f"{self.severity}: {self.rule}: {self.message}"


def check(topology: Topology, *, limit: int = 8) -> list[Finding]:
    """Check a topology.

    Args:
      topology: any.
      limit: findings per rule, at least 1; the last one counts the rest.

    Returns:
      Findings, errors first, in the order of `RULES`; empty when nothing is wrong.
    """
    faults = dict(card_faults(topology))
    ports = _PortKeys(topology)
    for found in (
        _idle_switches(topology),
        _mixed_planes(topology),
        _asymmetric(topology),
        _port_faults(topology, ports),
        _duplicates(topology, ports),
    ):
        for rule, count, sentences in found:
            faults[rule] = (count, sentences)
    findings: list[Finding] = []
    for severity in ("error", "warning"):
        for rule, (its_severity, _) in RULES.items():
            if its_severity == severity and rule in faults:
                findings += _limited(its_severity, rule, *faults[rule], limit)
    return findings


def _limited(
    severity: Severity, rule: str, count: int, sentences: Iterable[str], limit: int
) -> list[Finding]:
    shown = list(islice(sentences, limit))
    if count > len(shown) and shown:
        shown[-1] += f" (and {count - len(shown)} more)"
    return [Finding(severity=severity, rule=rule, message=sentence) for sentence in shown]


LinkFaults = Iterator[tuple[str, int, Iterable[str]]]
"""(rule, how many, sentences)."""


def _pair_keys(topology: Topology, src: IntArray, dst: IntArray, links: Int64 | slice = slice(None)) -> Int64:
    """Make one number of (src, dst, netlayer, plane) for each of the links; 16 bits stay free."""
    layers = topology.netlayers()
    layer_idx = np.zeros(256, np.int64)
    layer_idx[list(layers)] = np.arange(len(layers))
    planes = np.flatnonzero(np.bincount(topology.link_plane))
    plane_idx = np.zeros(int(planes[-1]) + 1, np.int64)
    plane_idx[planes] = np.arange(len(planes))
    assert topology.num_vertices**2 * len(layers) * len(planes) < 2**46, "too many vertices to key"
    key = src.astype(np.int64) * topology.num_vertices
    key += dst
    key *= len(layers)
    key += layer_idx[topology.link_netlayer[links]]
    key *= len(planes)
    key += plane_idx[topology.link_plane[links]]
    return key


def _idle_switches(topology: Topology) -> LinkFaults:
    """Find switches without any link: cards that all lost one plane look alike, so only the switch tells."""
    used = np.zeros(topology.num_vertices, np.bool_)
    used[topology.link_src] = used[topology.link_dst] = True
    idle = np.flatnonzero(~used[topology.num_npus :])
    if len(idle):
        yield "switch-without-links", len(idle), (f"sw{n} has no link at all" for n in idle)


def _mixed_planes(topology: Topology) -> LinkFaults:
    """Find links to or from a switch of another plane: the plane of most of its links is a switch's own."""
    plane = topology.link_plane.astype(np.int64)
    wrong: list[tuple[int, int, int]] = []  # (link, switch, the switch's own plane)
    for ends in (topology.link_dst, topology.link_src):
        for layer in topology.netlayers():
            links = np.flatnonzero((ends >= topology.num_npus) & (topology.link_netlayer == layer))
            some = np.zeros(topology.num_vertices, np.int64)
            some[ends[links]] = plane[links]
            mixed = np.unique(ends[links][some[ends[links]] != plane[links]])
            links = links[np.isin(ends[links], mixed)]
            slot = np.searchsorted(mixed, ends[links])
            counts = np.zeros((len(mixed), int(plane.max()) + 1), np.int64)
            np.add.at(counts, (slot, plane[links]), 1)
            own = counts.argmax(axis=1)[slot]
            is_wrong = plane[links] != own
            wrong += zip(
                links[is_wrong].tolist(), ends[links][is_wrong].tolist(), own[is_wrong].tolist(), strict=True
            )
    if wrong:
        yield "mixed-planes", len(wrong), (_mixed_sentence(topology, *item) for item in sorted(wrong))


def _mixed_sentence(topology: Topology, link: int, switch: int, own: int) -> str:
    src, dst = _ends(topology, link)
    name = topology.vertex_name(switch)
    return f"{src} -> {dst} ({_where(topology, link)}) meets {name}, which serves plane {own}"


def _asymmetric(topology: Topology) -> LinkFaults:
    """Compare the links with the links back, with multiplicity and speed."""
    if not topology.num_links:
        return
    rates, rate_idx = np.unique([c.bandwidth_bytes_per_s for c in topology.classes], return_inverse=True)
    rate = rate_idx.reshape(-1)[topology.link_class]
    forward = _pair_keys(topology, topology.link_src, topology.link_dst)
    back = _pair_keys(topology, topology.link_dst, topology.link_src)
    # One sorted comparison clears a healthy graph; the links at fault are looked for only otherwise.
    forward_rate, back_rate = np.sort(forward * len(rates) + rate), np.sort(back * len(rates) + rate)
    if np.array_equal(forward_rate, back_rate):
        return
    num_rates = len(rates)
    alone, _ = _differences(forward_rate // num_rates, back_rate // num_rates)
    lonely = np.flatnonzero(np.isin(forward, alone))
    if len(lonely):
        yield "asymmetric-cable", len(lonely), (_lonely_sentence(topology, int(n)) for n in lonely)
    unequal, _ = _differences(forward_rate, back_rate)
    unmatched = np.flatnonzero(np.isin(forward * num_rates + rate, unequal))
    # A link without any way back is reported above, and a cable once rather than from both ends.
    paired = ~np.isin(forward[unmatched], forward[lonely])
    slow = unmatched[paired & (topology.link_src[unmatched] < topology.link_dst[unmatched])]
    if len(slow):
        yield "unequal-directions", len(slow), (_unequal_sentence(topology, int(n)) for n in slow)


def _differences(one: Int64, other: Int64) -> tuple[Int64, Int64]:
    """List the values that the first sorted array holds more often, and those that the second does."""
    if not len(one) + len(other):
        return one, other
    # A tag in the lowest bit; merging two sorted runs is what a stable sort does fastest.
    merged = np.concatenate([one * 2, other * 2 + 1])
    merged.sort(kind="stable")
    sign = (1 - 2 * (merged & 1)).astype(np.int8)
    merged >>= 1
    starts = np.flatnonzero(np.concatenate([[True], merged[1:] != merged[:-1]]))
    balance = np.add.reduceat(sign, starts, dtype=np.int64)
    return merged[starts[balance > 0]], merged[starts[balance < 0]]


def _where(topology: Topology, link: int) -> str:
    return f"netlayer {topology.link_netlayer[link]}, plane {topology.link_plane[link]}"


def _ends(topology: Topology, link: int) -> tuple[str, str]:
    return (
        topology.vertex_name(int(topology.link_src[link])),
        topology.vertex_name(int(topology.link_dst[link])),
    )


def _lonely_sentence(topology: Topology, link: int) -> str:
    src, dst = _ends(topology, link)
    return f"{src} -> {dst} ({_where(topology, link)}) has no link back from {dst} to {src}"


def _unequal_sentence(topology: Topology, link: int) -> str:
    src, dst = _ends(topology, link)
    same = (topology.link_netlayer == topology.link_netlayer[link]) & (
        topology.link_plane == topology.link_plane[link]
    )
    backs = topology.links_between(int(topology.link_dst[link]), int(topology.link_src[link]))
    rates = sorted({int(rate) for rate in topology.link_bytes_per_s(backs[same[backs]])})
    there = format_rate(int(topology.link_bytes_per_s(np.array([link]))[0]))
    back = " and ".join(format_rate(rate) for rate in rates)
    return f"{src} -> {dst} ({_where(topology, link)}) runs at {there} and the way back at {back}"


class _PortKeys:
    """Every known port end as one sorted number (vertex, port, peer), and the ports used twice."""

    def __init__(self, topology: Topology) -> None:
        ports = topology.link_src_port, topology.link_dst_port
        self.num_ports = max(int(port.max(initial=0)) for port in ports) + 1
        self.num_vertices = topology.num_vertices
        assert self.num_vertices**2 * self.num_ports < 2**62, "port numbers too large to key"
        self.leaving = self._sorted(topology.link_src, ports[0], topology.link_dst)
        self.entering = self._sorted(topology.link_dst, ports[1], topology.link_src)
        twice = [_repeated(keys // self.num_vertices) for keys in (self.leaving, self.entering)]
        self.used_twice = np.unique(np.concatenate(twice))

    def _sorted(self, vertex: IntArray, port: IntArray, peer: IntArray) -> Int64:
        key = self.port_key(vertex, port)
        key *= self.num_vertices
        key += peer
        return np.sort(key[port != UNKNOWN_PORT])

    def port_key(self, vertex: IntArray, port: IntArray) -> Int64:
        """Make one number of (vertex, port); meaningless where the port is unknown."""
        key = vertex.astype(np.int64)
        key *= self.num_ports
        key += port
        return key


def _port_faults(topology: Topology, ports: _PortKeys) -> LinkFaults:
    """Find ports with two links one way, and ports whose two ways lead to different vertices."""
    num_ports = ports.num_ports
    if len(ports.used_twice):
        sentences = (_conflict_sentence(topology, int(port), num_ports) for port in ports.used_twice)
        yield "port-conflict", len(ports.used_twice), sentences
    if np.array_equal(ports.leaving, ports.entering):
        return
    leaving, entering = _differences(ports.leaving, ports.entering)
    out_port, in_port = leaving // ports.num_vertices, entering // ports.num_vertices
    both = np.setdiff1d(np.intersect1d(out_port, in_port), ports.used_twice)
    out_peer = leaving[np.isin(out_port, both)] % ports.num_vertices
    in_peer = entering[np.isin(in_port, both)] % ports.num_vertices
    if len(both):
        sentences = (
            _crossed_sentence(topology, int(both[n]), num_ports, int(out_peer[n]), int(in_peer[n]))
            for n in range(len(both))
        )
        yield "crossed-port", len(both), sentences


def _repeated(ordered: Int64) -> Int64:
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _port_name(topology: Topology, port_key: int, num_ports: int) -> str:
    vertex, port = divmod(port_key, num_ports)
    return f"port {port} of {topology.vertex_name(vertex)}"


def _conflict_sentence(topology: Topology, port_key: int, num_ports: int) -> str:
    vertex, port = divmod(port_key, num_ports)
    leaving = np.flatnonzero((topology.link_src == vertex) & (topology.link_src_port == port))
    entering = np.flatnonzero((topology.link_dst == vertex) & (topology.link_dst_port == port))
    links, ends, way = (
        (leaving, topology.link_dst, "to") if len(leaving) > 1 else (entering, topology.link_src, "from")
    )
    peers = " and ".join(topology.vertex_name(int(ends[link])) for link in links)
    return f"{_port_name(topology, port_key, num_ports)} holds {len(links)} links, {way} {peers}"


def _crossed_sentence(topology: Topology, port_key: int, num_ports: int, out_peer: int, in_peer: int) -> str:
    out_name, in_name = topology.vertex_name(out_peer), topology.vertex_name(in_peer)
    return f"{_port_name(topology, port_key, num_ports)} sends to {out_name} but receives from {in_name}"


def _duplicates(topology: Topology, ports: _PortKeys) -> LinkFaults:
    """Find links with equal ends, netlayer and plane that no port number tells apart."""
    if not topology.num_links:
        return
    unknown = (topology.link_src_port == UNKNOWN_PORT) & (topology.link_dst_port == UNKNOWN_PORT)
    suspects = np.flatnonzero(unknown)
    key = _pair_keys(topology, topology.link_src[suspects], topology.link_dst[suspects], suspects)
    links = np.sort(np.concatenate([_later_copies(key, suspects), _equal_ports(topology, ports)]))
    if len(links):
        yield "duplicate-link", len(links), (_duplicate_sentence(topology, int(n)) for n in links)


def _later_copies(key: Int64, links: Int64) -> Int64:
    """Keep the links whose key an earlier link already has."""
    if not len(_repeated(np.sort(key))):
        return links[:0]
    _, first = np.unique(key, return_index=True)
    return np.delete(links, first)


def _equal_ports(topology: Topology, ports: _PortKeys) -> Int64:
    """Find the later copies among links that share a port: equal ends, layer, plane and ports."""
    if not len(ports.used_twice):
        return np.zeros(0, np.int64)
    leaving = ports.port_key(topology.link_src, topology.link_src_port)
    entering = ports.port_key(topology.link_dst, topology.link_dst_port)
    known = (topology.link_src_port != UNKNOWN_PORT) | (topology.link_dst_port != UNKNOWN_PORT)
    shares = np.isin(leaving, ports.used_twice) | np.isin(entering, ports.used_twice)
    links = np.flatnonzero(known & shares)
    rows = np.stack(
        [
            topology.link_src[links], topology.link_dst[links], topology.link_netlayer[links],
            topology.link_plane[links], topology.link_src_port[links], topology.link_dst_port[links],
        ]
    )  # fmt: skip
    order = np.lexsort([links, *rows])
    same = (rows[:, order[1:]] == rows[:, order[:-1]]).all(axis=0)
    return np.asarray(links[order[1:][same]], np.int64)


def _duplicate_sentence(topology: Topology, link: int) -> str:
    src, dst = _ends(topology, link)
    return f"{src} -> {dst} ({_where(topology, link)}) is listed again as link {link} with the same ports"
