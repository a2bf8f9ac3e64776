"""What simple arithmetic says to a fault: the part of the rate that is left where it hurts most."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epsim.faults.applied import cable_links, is_on_a_path
from epsim.faults.kinds import Fault
from epsim.platform.machine import LINK_RETRY_PS
from topology import Policy, Topology
from topology.routes import layer_order
from topology.units import format_time


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """An expectation.

    Args:
      text: in words.
      rate_left: part of the rate that the ranks that suffer most keep at least; None = no simple rule.
    """

    text: str
    rate_left: float | None = None


def arithmetic(
    fault: Fault, topology: Topology, npus: npt.NDArray[np.int64], policy: str | Policy, packet_bytes: float
) -> Arithmetic:
    """Say what a fault can cost.

    Args:
      fault: one, on its own.
      topology: the healthy graph.
      npus: [R] int64, the card of each rank.
      policy: path choice; only sprayed bytes go over all planes in equal parts.
      packet_bytes: payload of a packet, which a lossy link loses.
    """
    if fault.kind == "rank-slow":
        text = f"rank {fault.where} serves at {fault.amount:.4g} of its rate"
        return Arithmetic(text=text, rate_left=fault.amount)
    if fault.kind == "rank-late":
        return Arithmetic(
            text="everything ends later by the delay, as the entry barrier waits", rate_left=1.0
        )
    if fault.kind == "jitter":
        text = "the mean stays; no service takes longer than the jitter says"
        return Arithmetic(text=text, rate_left=1 / (1 + fault.amount))
    if not is_on_a_path(fault, topology, npus):
        return Arithmetic(text="no rank of the group sends over it, so nothing changes", rate_left=1.0)
    if fault.kind == "miscabled":
        return Arithmetic(text="routes are found anew; the findings say what no longer fits")
    if policy != "spray":
        return Arithmetic(text=f"it depends on the flows that {policy} puts there")
    if fault.kind in ("link-slow", "switch-slow"):
        text = (
            f"bytes are sprayed in equal parts and the slowest part ends last: {fault.amount:.4g} of the "
            "rate is left"
        )
        return Arithmetic(text=text, rate_left=fault.amount)
    if fault.form.is_events_only:
        return Arithmetic(text="the run has no end")
    return _of_links(fault, topology, packet_bytes)


def _of_links(fault: Fault, topology: Topology, packet_bytes: float) -> Arithmetic:
    """Say what lost links and lossy ones cost when bytes are sprayed."""
    if fault.kind == "plane-lost":
        layer = layer_order(topology)[0]
        planes = len(topology.planes(layer))
        text = f"{planes - 1} of {planes} planes are left: {1 - 1 / planes:.4g} of the rate"
        return Arithmetic(text=text, rate_left=1 - 1 / planes)
    links = cable_links(topology, fault, fault.where)
    if fault.kind == "link-down":
        card = int(topology.link_src[links].min())
        up = topology.links_of(card)
        up = up[topology.link_netlayer[up] == topology.link_netlayer[links[0]]]
        left = len(np.setdiff1d(up, links))
        if card >= topology.num_npus or not left:
            return Arithmetic(text="bytes take the paths that are left")
        name = topology.vertex_name(card)
        text = f"{left} of {len(up)} links of {name} are left: {left / len(up):.4g} of its rate"
        return Arithmetic(text=text, rate_left=left / len(up))
    return _of_losses(fault, int(topology.link_bytes_per_s(links).max()), packet_bytes)


def _of_losses(fault: Fault, bytes_per_s: int, packet_bytes: float) -> Arithmetic:
    """Say what retries take in the mean: each loss stops the cable for a link round trip."""
    again = fault.amount / (1 - fault.amount)
    left = 1 / (1 + again * LINK_RETRY_PS * 1e-12 * bytes_per_s / packet_bytes)
    each = format_time(LINK_RETRY_PS)
    text = f"{again:.4g} losses per packet, {each} each: {left:.4g} of the rate in the mean"
    return Arithmetic(text=text, rate_left=left)
