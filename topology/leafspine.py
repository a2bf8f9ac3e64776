"""Two layers of switches: leaves that touch cards, spines above them. Sizing rules and cabling.

With radix r and oversubscription o a leaf has d = floor(r o / (1 + o)) ports down and ceil(d / o) up,
and a spine reaches at most r leaves: two layers carry at most r d cards, r^2 / 2 without
oversubscription.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from topology.build import LinkTable, class_source, in_range, latency, positive_rate
from topology.errors import TopologyError
from topology.graph import NETLAYER_SUPERNODE, LinkClass, Topology
from topology.source import Source

MAX_OVERSUBSCRIPTION = 64

# The comparison fabric of the public simulators: 16 leaves x 8 hosts, 8 spines, 50 GB/s, 0.5 us a hop.
BENCHMARK_RATE = 50_000_000_000
BENCHMARK_SOURCE = Source("assumed", "placeholder of the simulator comparison; no vendor's figure")


@dataclass(frozen=True, kw_only=True)
class LeafSpineShape:
    """How many of everything, in one plane.

    Args:
      leaves: leaf switches.
      down_per_leaf: card ports of a leaf.
      spines: spine switches; 0 when one leaf carries everything.
      links_per_pair: parallel cables between each leaf and each spine.
    """

    leaves: int
    down_per_leaf: int
    spines: int
    links_per_pair: int

    @property
    def num_switches(self) -> int:
        """Leaves and spines together."""
        return self.leaves + self.spines

    @property
    def num_fabric_cables(self) -> int:
        """Count the cables between leaves and spines."""
        return self.leaves * self.spines * self.links_per_pair


def size_leaf_spine(num_npus: int, radix: int, oversubscription: float = 1) -> LeafSpineShape:
    """Choose the smallest two-layer fabric: fewest leaves, then fewest spines.

    Args:
      num_npus: cards, one port each.
      radix: ports of every switch.
      oversubscription: card bandwidth over uplink bandwidth of a full leaf, at least 1.

    Raises:
      TopologyError: out of range, or two layers of this radix carry too few cards.
    """
    if not 1 <= oversubscription <= MAX_OVERSUBSCRIPTION:
        rule = f"must be in 1..{MAX_OVERSUBSCRIPTION} (card bandwidth over uplink bandwidth of a leaf)"
        raise TopologyError("oversubscription", oversubscription, rule)
    in_range(radix, "scaleout_radix", 2, 2**16)
    ratio = Fraction(oversubscription).limit_denominator(1000)
    down = int(radix * ratio / (1 + ratio))
    if num_npus <= down:
        return LeafSpineShape(leaves=1, down_per_leaf=down, spines=0, links_per_pair=0)
    leaves = -(-num_npus // down)
    if leaves > radix:
        rule = (
            f"two layers of {radix}-port switches with {down} ports down carry at most {radix * down} cards"
        )
        raise TopologyError("num_npus", num_npus, rule)
    up = -(-down // ratio)
    links_per_pair = max(m for m in range(1, up + 1) if up % m == 0 and leaves * m <= radix)
    return LeafSpineShape(
        leaves=leaves, down_per_leaf=down, spines=up // links_per_pair, links_per_pair=links_per_pair
    )


def add_card_cables(
    table: LinkTable,
    position: npt.NDArray[np.int32],
    shape: LeafSpineShape,
    *,
    first_leaf: int,
    planes: int,
    first_port: int,
    netlayer: int,
    up_class: int,
    down_class: int,
) -> None:
    """Cable every card to its leaf in each plane; `position` [N] orders cards over leaf ports."""
    num_npus = len(position)
    plane = np.arange(planes, dtype=np.int32)[None, :]
    table.add_cables(
        (num_npus, planes),
        np.arange(num_npus, dtype=np.int32)[:, None],
        first_leaf + plane * shape.leaves + (position // shape.down_per_leaf)[:, None],
        netlayer=netlayer,
        plane=plane,
        up_class=up_class,
        down_class=down_class,
        lower_port=first_port + plane,
        upper_port=(position % shape.down_per_leaf)[:, None],
    )


def add_fabric_cables(
    table: LinkTable,
    shape: LeafSpineShape,
    *,
    first_leaf: int,
    planes: int,
    netlayer: int,
    up_class: int,
    down_class: int,
) -> None:
    """Cable every leaf to every spine of its plane; spines are numbered after all leaves."""
    sizes = (planes, shape.leaves, shape.spines, shape.links_per_pair)
    plane, leaf, spine, cable = np.ogrid[tuple(slice(size) for size in sizes)]
    table.add_cables(
        sizes,
        first_leaf + plane * shape.leaves + leaf,
        first_leaf + planes * shape.leaves + plane * shape.spines + spine,
        netlayer=netlayer,
        plane=plane,
        up_class=up_class,
        down_class=down_class,
        lower_port=shape.down_per_leaf + spine * shape.links_per_pair + cable,
        upper_port=leaf * shape.links_per_pair + cable,
    )


def switch_tiers(shape: LeafSpineShape, planes: int = 1) -> npt.NDArray[np.uint8]:
    """Tier of each switch as `add_card_cables` and `add_fabric_cables` number them: leaves, then spines."""
    return np.repeat(np.array([0, 1], np.uint8), [planes * shape.leaves, planes * shape.spines])


def leaf_spine(
    num_npus: int = 128,
    *,
    leaves: int = 16,
    spines: int = 8,
    links_per_pair: int = 1,
    link_rate: str | int = BENCHMARK_RATE,
    uplink_rate: str | int | None = None,
    switch_hop: str | int = 0,
    cable: str | int = 500_000,
    netlayer: int = NETLAYER_SUPERNODE,
    name: str | None = None,
) -> Topology:
    """Build a plain two-layer Clos: one port per card, every leaf cabled to every spine.

    The defaults are the fabric on which public simulators were compared (16 leaves x 8 hosts, 8
    spines, 50 GB/s, 0.5 us a hop); they stand for no product.

    Args:
      num_npus: cards, spread over the leaves in blocks; must be a multiple of `leaves`.
      leaves: leaf switches.
      spines: spine switches.
      links_per_pair: parallel cables between a leaf and a spine.
      link_rate: of a card's port, one direction; text with a unit or bytes/s.
      uplink_rate: of a leaf-spine cable; the card's rate when absent.
      switch_hop: latency of crossing a switch; text with a unit or picoseconds.
      cable: latency of one cable; text with a unit or picoseconds.
      netlayer: HCCL's index of this network.
      name: for people; made from the numbers when absent.

    Raises:
      TopologyError: a number is out of range, or cards do not divide over leaves.
    """
    in_range(leaves, "leaves", 1, 2**14)
    in_range(spines, "spines", 1, 2**14)
    in_range(links_per_pair, "links_per_pair", 1, 2**10)
    in_range(num_npus, "num_npus", 1, 2**18)
    in_range(netlayer, "netlayer", 1, 7, "0 is the mesh inside a server")
    if num_npus % leaves:
        raise TopologyError("num_npus", num_npus, f"must be a multiple of leaves = {leaves}")
    shape = LeafSpineShape(
        leaves=leaves, down_per_leaf=num_npus // leaves, spines=spines, links_per_pair=links_per_pair
    )
    table = LinkTable(2 * (num_npus + shape.num_fabric_cables))
    rate = positive_rate(link_rate, "link_rate")
    up_rate = rate if uplink_rate is None else positive_rate(uplink_rate, "uplink_rate")
    hop_ps, cable_ps = latency(switch_hop, "switch_hop"), latency(cable, "cable")
    card = [_plain_class(table, n, rate, ps) for n, ps in (("up", cable_ps + hop_ps), ("down", cable_ps))]
    fabric = [_plain_class(table, n, up_rate, cable_ps + hop_ps) for n in ("leaf-up", "spine-down")]
    add_card_cables(
        table, np.arange(num_npus, dtype=np.int32), shape,
        first_leaf=num_npus, planes=1, first_port=0, netlayer=netlayer, up_class=card[0], down_class=card[1],
    )  # fmt: skip
    add_fabric_cables(
        table, shape,
        first_leaf=num_npus, planes=1, netlayer=netlayer, up_class=fabric[0], down_class=fabric[1],
    )  # fmt: skip
    return table.topology(
        name=name or f"leaf-spine ({num_npus} cards, {leaves} leaves, {spines} spines)",
        num_npus=num_npus,
        switch_tier=switch_tiers(shape),
        server_size=1,
        supernode_size=num_npus,
    )


def _plain_class(table: LinkTable, name: str, rate: int, latency_ps: int) -> int:
    source = class_source(
        ("rate", rate, BENCHMARK_RATE, BENCHMARK_SOURCE), ("latency", latency_ps, 500_000, BENCHMARK_SOURCE)
    )
    return table.add_class(
        LinkClass(name=name, bandwidth_bytes_per_s=rate, latency_ps=latency_ps, source=source)
    )
