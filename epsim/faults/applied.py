"""Faults done to a system: to its graph, to the rates of its cards and links, to the run.

A graph fault replaces the topology, so routes are found anew: they leave out what is gone, and refuse a
pair that is cut off. All other faults are rates, times and options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.faults.kinds import Fault
from epsim.platform.machine import Machine
from epsim.platform.platform import Platform
from epsim.platform.profile import Hardware
from topology import Router, Source, Topology, with_link_rate, without_links
from topology.routes import layer_order

if TYPE_CHECKING:
    from epsim.sim.run import EventOptions

Links = npt.NDArray[np.int64]

GRAPH_FAULTS = ("link-down", "link-slow", "plane-lost", "switch-slow", "miscabled")
REMOVALS = ("link-down", "plane-lost")


def faulty_platform(platform: Platform, faults: Sequence[Fault]) -> Platform:
    """Return the platform with the faults of its graph; profiles and summary stay those of the healthy one.

    Args:
      platform: healthy.
      faults: in any order.

    Raises:
      InputError: a fault names what the graph does not have.
    """
    topology = platform.network.topology
    if topology is None:
        return platform
    topology = faulty_topology(topology, faults)
    return replace(platform, network=replace(platform.network, topology=topology))


def faulty_topology(topology: Topology, faults: Sequence[Fault]) -> Topology:
    """Return the graph with faults; the same graph when none of them is about it.

    All names are those of the healthy graph, so the order of the faults does not matter; only cables that are
    swapped several times are swapped in turn.

    Raises:
      InputError: a fault names what the graph does not have, or what another fault takes away.
    """
    links = {
        fault: [cable for cable in _cables_of(fault, topology) if len(cable)]
        for fault in faults
        if fault.kind in (*GRAPH_FAULTS, "lossy")
    }
    _check_left(links)
    for fault, cables in links.items():
        if fault.kind in ("link-slow", "switch-slow"):
            topology = _slowed(topology, cables[0], fault)
    for fault in links:
        if fault.kind == "miscabled":
            topology = _swapped(topology, fault)
    # Last, because the links that are left are numbered anew.
    lost = [cable for fault, cables in links.items() if fault.kind in REMOVALS for cable in cables]
    return without_links(topology, np.unique(np.concatenate(lost))) if lost else topology


def _check_left(links: Mapping[Fault, Sequence[Links]]) -> None:
    """Refuse a fault of a cable that others take away, in whatever order they were said."""
    for fault in sorted(links, key=str):
        others = [other for other in sorted(links, key=str) if other != fault and other.kind in REMOVALS]
        for cable in links[fault]:
            takers = [other for other in others if np.isin(cable, np.concatenate(links[other])).any()]
            taken = [gone for other in takers for gone in links[other]]
            if takers and np.isin(cable, np.concatenate(taken)).all():
                names = " and ".join(map(str, takers))
                raise InputError("fault", str(fault), f"is about a cable that {names} takes away")


def faulty_machine(machine: Machine, faults: Sequence[Fault], hardware: Hardware) -> Machine:
    """Return the machine with the faults of ranks and lossy links.

    Args:
      machine: of the faulty graph.
      faults: all of them.
      hardware: supplies the packet that a link loses.

    Raises:
      InputError: a fault names a rank or link that is not there.
    """
    speed, start = machine.card_speed.copy(), machine.start_ps.copy()
    losses = np.zeros(machine.topology.num_links)
    for fault in faults:
        if fault.kind in ("rank-slow", "rank-late"):
            _check_rank(fault, machine.num_ranks)
        if fault.kind == "rank-slow":
            speed[fault.rank] *= fault.amount
        elif fault.kind == "rank-late":
            start[fault.rank] += int(fault.amount)
        elif fault.kind == "lossy":
            # A packet is sent until it comes through: p / (1 - p) times too often in the mean.
            again = fault.amount / (1 - fault.amount)
            losses[cable_links(machine.topology, fault, fault.where)] += again / hardware.packet_payload.value
    return replace(
        machine,
        card_speed=speed,
        start_ps=start,
        link_losses_per_byte=losses if losses.any() else None,
        has_uneven_links=bool(losses.any()) or any(fault.kind in GRAPH_FAULTS for fault in faults),
    )


def faulty_events(
    events: "EventOptions | None", faults: Sequence[Fault], num_ranks: int
) -> "EventOptions | None":
    """Return options of the event level with the faults of the run.

    Args:
      events: options; None = the usual ones.
      faults: all of them.
      num_ranks: R.

    Raises:
      InputError: a fault names a rank that is not there.
    """
    chosen = [fault for fault in faults if fault.kind in ("jitter", "rank-dead", "receiver-stuck")]
    if not chosen:
        return events
    from epsim.sim.run import EventOptions

    for fault in chosen:
        if fault.kind != "jitter":
            _check_rank(fault, num_ranks)
    return replace(
        events or EventOptions(),
        jitter=max((fault.amount for fault in chosen if fault.kind == "jitter"), default=0.0),
        dead_ranks=tuple(fault.rank for fault in chosen if fault.kind == "rank-dead"),
        stuck_receivers=tuple(fault.rank for fault in chosen if fault.kind == "receiver-stuck"),
    )


def places(fault: Fault, topology: Topology, npus: Links) -> list[Fault]:
    """List a fault at every place of its kind that a group can have.

    Args:
      fault: without a place.
      topology: the graph.
      npus: [R] int64, the card of each rank; cables are those of these cards.
    """
    planes = topology.planes(layer_order(topology)[0])
    if fault.form.example.split(":")[1].startswith("npu"):
        wheres = [f"npu{npu}/plane{plane}" for npu in npus.tolist() for plane in planes]
        wheres = [where for where in wheres if len(_card_links(topology, where))]
    elif fault.kind == "plane-lost":
        wheres = [str(plane) for plane in planes]
    elif fault.kind == "switch-slow":
        used = np.unique(np.concatenate([topology.link_src, topology.link_dst]))
        wheres = [topology.vertex_name(int(vertex)) for vertex in used if vertex >= topology.num_npus]
    else:
        wheres = [str(rank) for rank in range(len(npus))]
    return [replace(fault, where=where) for where in wheres]


def is_on_a_path(fault: Fault, topology: Topology, npus: Links) -> bool:
    """Tell whether a fault can touch what the ranks of a group send each other.

    Args:
      fault: any; those of ranks always can.
      topology: the healthy graph.
      npus: [R] int64, the card of each rank.

    Raises:
      InputError: the fault names what the graph does not have.
    """
    links = _links_of(fault, topology)
    if links is None:
        return True
    preferred = links[topology.link_netlayer[links] == layer_order(topology)[0]]
    ends = np.concatenate([topology.link_src[preferred], topology.link_dst[preferred]])
    if len(npus) > 1 and np.isin(ends, npus).any():
        return True
    # Trunks and other netlayers: only the routes tell. Sprayed ones are all that any policy chooses from.
    src, dst = np.nonzero(~np.eye(len(npus), dtype=bool))
    routes = Router(topology, npus).find(npus[src], npus[dst])
    return bool(np.isin(links, routes.link_idx).any())


def _links_of(fault: Fault, topology: Topology) -> Links | None:
    """Return the links that a fault is about; None = it is about a rank, or about all."""
    cables = _cables_of(fault, topology)
    return np.concatenate(cables) if cables else None


def _cables_of(fault: Fault, topology: Topology) -> list[Links]:
    """Return the links that a fault is about, those of two cables apart; none = it is about ranks."""
    if fault.kind == "plane-lost":
        return [plane_links(topology, fault)]
    if fault.kind == "switch-slow":
        return [switch_links(topology, fault)]
    if fault.kind in (*GRAPH_FAULTS, "lossy"):
        return [cable_links(topology, fault, where) for where in fault.where.split("<->")]
    return []


def plane_links(topology: Topology, fault: Fault) -> Links:
    """Return the links of a plane in the netlayer that routes prefer.

    Raises:
      InputError: there is no such plane.
    """
    layer = layer_order(topology)[0]
    is_here = (topology.link_netlayer == layer) & (topology.link_plane == int(fault.where))
    if not is_here.any():
        planes = ", ".join(str(plane) for plane in topology.planes(layer))
        raise InputError("fault", str(fault), f"netlayer {layer} has planes {planes}")
    return np.flatnonzero(is_here)


def switch_links(topology: Topology, fault: Fault) -> Links:
    """Return all links that leave a switch or end in it.

    Raises:
      InputError: there is no such switch.
    """
    switch = topology.vertex(fault.where, f"switch of {fault}")
    return np.flatnonzero((topology.link_src == switch) | (topology.link_dst == switch))


def cable_links(topology: Topology, fault: Fault, where: str) -> Links:
    """Return the links of a cable, both ways.

    Args:
      topology: the graph.
      fault: for the error.
      where: "npu3/plane2" or "npu3-sw2".

    Raises:
      InputError: there is no such cable.
      TopologyError: there is no such vertex.
    """
    if "/" in where:
        topology.vertex(where.partition("/")[0], f"card of {fault}")
        found = _card_links(topology, where)
    else:
        one, other = (topology.vertex(name, f"end of {fault}") for name in where.split("-"))
        there = (topology.link_src == one) & (topology.link_dst == other)
        back = (topology.link_src == other) & (topology.link_dst == one)
        found = np.flatnonzero(there | back)
    if not len(found):
        raise InputError("fault", str(fault), f"{topology.name} has no cable {where}")
    return found


def _card_links(topology: Topology, where: str) -> Links:
    card, _, plane = where.partition("/")
    npu = topology.vertex(card)
    is_plane = topology.link_plane == int(plane.removeprefix("plane"))
    is_layer = topology.link_netlayer == layer_order(topology)[0]
    return np.flatnonzero(is_layer & is_plane & ((topology.link_src == npu) | (topology.link_dst == npu)))


def _slowed(topology: Topology, links: Links, fault: Fault) -> Topology:
    """Give links a part of the rate that each of them has."""
    source = Source("given", str(fault))
    rates = topology.link_bytes_per_s(links)
    for rate in np.unique(rates).tolist():
        slow = max(1, round(rate * fault.amount))
        topology = with_link_rate(topology, links[rates == rate], slow, source)
    return topology


def _swapped(topology: Topology, fault: Fault) -> Topology:
    """Swap the switch ends of two cables; netlayer, plane and card port stay those of the cards' ports."""
    one, other = (cable_links(topology, fault, where) for where in fault.where.split("<->"))
    if len(np.intersect1d(one, other)):
        raise InputError("fault", str(fault), "must name two different cables")
    changed = {
        name: getattr(topology, name).copy()
        for name in ("link_src", "link_dst", "link_src_port", "link_dst_port")
    }
    for end, port, card_end in (
        ("link_dst", "link_dst_port", topology.link_src), ("link_src", "link_src_port", topology.link_dst),
    ):  # fmt: skip
        first = one[card_end[one] < topology.num_npus]
        second = other[card_end[other] < topology.num_npus]
        if len(first) != len(second) or not len(first):
            raise InputError("fault", str(fault), "must name two cables with as many links each")
        for name in (end, port):
            before = getattr(topology, name)
            changed[name][first], changed[name][second] = before[second], before[first]
    return replace(topology, **changed)


def _check_rank(fault: Fault, num_ranks: int) -> None:
    if fault.rank >= num_ranks:
        raise InputError("fault", str(fault), f"the group has ranks 0..{num_ranks - 1}")
