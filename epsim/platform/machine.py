"""Rates of one operation on one platform: what flow level and events read, so that they cannot differ.

A link's payload rate is its nominal rate x the payload share of its packets x the wire efficiency, over
1 + slope x doublings beyond the knee when the software's fan-out loss is counted; the same numbers as in
`closedform`. L links, R ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.model.closedform import SCALEOUT_FORM, Operation
from epsim.platform.network import payload_share
from epsim.platform.platform import Platform
from topology import NETLAYER_SCALEOUT, Source, Topology

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.integer[Any]]
LINK_RETRY_PS = 1_500_000
LINK_RETRY_SOURCE = Source(
    "secondary", "go-back-N resends a link round trip, 1-2 us in a third-party RTL: network.md 1.2 and 5"
)
SoftwareSlope = Literal["dispatch", "combine", "none"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Machine:
    """What carries the bytes.

    Args:
      topology: the graph.
      npus: [R] int64, the card of each rank.
      link_bytes_per_s: [L] float64, payload rate of each link.
      memory_bytes_per_s: memory rate that source reads, local copies and sums share on a card.
      card_speed: [R] float64, factor on the memory and engine rate of each rank; 1 = healthy.
      start_ps: [R] int64, when each rank enters.
      link_losses_per_byte: [L] float64, packets that the link has to send again per byte that it delivers;
        None = no link loses any. Each costs `LINK_RETRY_PS`.
      has_uneven_links: what a card can send at depends on the destination, as with a lost or slow cable.
    """

    topology: Topology
    npus: npt.NDArray[np.int64]
    link_bytes_per_s: Floats
    memory_bytes_per_s: float
    card_speed: Floats
    start_ps: npt.NDArray[np.int64]
    link_losses_per_byte: Floats | None = None
    has_uneven_links: bool = False

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.npus)

    @property
    def entry_ps(self) -> int:
        """When the last rank enters: the entry barrier holds all others until then."""
        return int(self.start_ps.max(initial=0))

    def with_mean_rates(self) -> "Machine":
        """Return the machine with lossless links of the rates that lossy ones have in the mean."""
        if self.link_losses_per_byte is None:
            return self
        seconds = 1 / self.link_bytes_per_s + self.link_losses_per_byte * LINK_RETRY_PS * 1e-12
        return replace(self, link_bytes_per_s=1 / seconds, link_losses_per_byte=None)

    def egress_bytes_per_s(self) -> Floats:
        """Return [R] payload rate of all links of the fastest netlayer that leave each rank's card."""
        topology = self.topology
        rate = np.zeros((topology.num_npus, 8))
        up = np.flatnonzero(topology.link_src < topology.num_npus)
        np.add.at(rate, (topology.link_src[up], topology.link_netlayer[up]), self.link_bytes_per_s[up])
        return np.asarray(rate[self.npus].max(axis=1))


def make_machine(
    platform: Platform, num_ranks: int, slope: SoftwareSlope, npus: Sequence[int] | IntArray | None = None
) -> Machine:
    """Read the rates off a platform.

    Args:
      platform: must have a graph.
      num_ranks: R.
      slope: the operation whose fan-out loss counts, "none" = ideal issue order.
      npus: [R] the card of each rank; rank r sits on card r when absent.

    Raises:
      InputError: the system is a profile without a graph, or has too few cards, or no rank is asked for; or
        cards are not one per rank, repeat, or are not there.
    """
    topology, hardware, software = platform.network.topology, platform.hardware, platform.software
    if topology is None:
        raise InputError("system", platform.name, "has no graph to simulate on; epsim predict answers it")
    if not 1 <= num_ranks <= topology.num_npus:
        raise InputError(
            "ranks", num_ranks, f"must lie between 1 and the {topology.num_npus:,} cards of {topology.name}"
        )
    cards = np.arange(num_ranks, dtype=np.int64) if npus is None else checked_npus(topology, num_ranks, npus)
    share = np.full(256, payload_share(hardware))
    share[NETLAYER_SCALEOUT] = payload_share(hardware, SCALEOUT_FORM)
    rate = topology.link_bytes_per_s() * share[topology.link_netlayer] * software.wire_efficiency.value
    loss = fanout_loss(platform, num_ranks, slope)
    rate = np.where(topology.link_netlayer == NETLAYER_SCALEOUT, rate, rate / loss)
    return Machine(
        topology=topology,
        npus=cards,
        link_bytes_per_s=np.asarray(rate, np.float64),
        memory_bytes_per_s=hardware.hbm_rate.value * software.hbm_efficiency.value,
        card_speed=np.ones(num_ranks),
        start_ps=np.zeros(num_ranks, np.int64),
    )


def checked_npus(topology: Topology, num_ranks: int, npus: Sequence[int] | IntArray) -> Int64:
    """Return [R] int64, the card of each rank.

    Args:
      topology: the graph.
      num_ranks: R.
      npus: [R] cards.

    Raises:
      InputError: not one card per rank, a card twice, or one that is not there.
    """
    cards = np.asarray(npus)
    if cards.shape != (num_ranks,) or not np.issubdtype(cards.dtype, np.integer):
        rule = f"must be whole numbers, one for each of {num_ranks} ranks"
        raise InputError("npus", f"{cards.size} cards", rule)
    outside = cards[(cards < 0) | (cards >= topology.num_npus)]
    if len(outside):
        rule = f"{topology.name} has cards 0 to {topology.num_npus - 1:,}"
        raise InputError("npus", int(outside[0]), rule)
    values, counts = np.unique(cards, return_counts=True)
    if counts.max(initial=0) > 1:
        raise InputError("npus", int(values[counts > 1][0]), "must not repeat: one rank per card")
    return cards.astype(np.int64)


def slope_of(operation: Operation) -> SoftwareSlope:
    """Return whose fan-out loss an operation has."""
    return "combine" if operation == "combine" else "dispatch"


def fanout_loss(platform: Platform, num_ranks: int, slope: SoftwareSlope) -> float:
    """Return the factor on wire time that the software's many peers cost, at least 1; see `closedform`."""
    software = platform.software
    if slope == "none":
        return 1.0
    per_doubling = software.fanout_slope_combine if slope == "combine" else software.fanout_slope_dispatch
    ranks = min(num_ranks, platform.network.scaleup_domain)
    return 1 + per_doubling.value * max(0.0, log2(ranks / software.fanout_knee.value))
