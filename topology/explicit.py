"""A topology from a list of cables: for odd cabling that no builder makes."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from topology.build import in_range, latency, positive_rate
from topology.errors import TopologyError
from topology.graph import UNKNOWN_PORT, LinkClass, Topology
from topology.source import Source

MAX_VERTICES = 2**20


class LinkClassConfig(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, frozen=True
):
    """What cables of one class have in common; quantities with units, source in words."""

    name: str
    rate: str
    latency: str
    source: str = "the cluster file"


class LinkConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, frozen=True):
    """One cable, or one direction of it with `one_way`; ends are names such as npu3 or sw0."""

    src: str = msgspec.field(name="from")
    dst: str = msgspec.field(name="to")
    link_class: str = msgspec.field(name="class")
    netlayer: int = 1
    plane: int = 0
    from_port: int = UNKNOWN_PORT
    to_port: int = UNKNOWN_PORT
    one_way: bool = False


def build_links(
    *,
    name: str | None,
    num_npus: int,
    link_classes: Sequence[LinkClassConfig],
    links: Sequence[LinkConfig],
    num_switches: int = 0,
    switch_tiers: Sequence[int] | None = None,
    server_size: int | None = None,
    supernode_size: int | None = None,
) -> Topology:
    """Build a topology from listed cables; link 2i is cable i as written when no cable is one-way.

    Args:
      name: for people; "links (N cards)" when absent.
      num_npus: cards.
      link_classes: at least one.
      links: the cables.
      num_switches: switches.
      switch_tiers: tier of each switch; absent: 0 where a card is attached, 1 elsewhere.
      server_size: cards per server, in order; absent: all in one.
      supernode_size: cards per supernode, in order; absent: all in one.

    Raises:
      TopologyError: the field is the key path in the cluster file, e.g. links[3].to.
    """
    in_range(num_npus, "num_npus", 1, MAX_VERTICES)
    in_range(num_switches, "num_switches", 0, MAX_VERTICES)
    # A topology without links reads vertex names.
    empty = _topology(
        name or f"links ({num_npus} cards)", np.zeros((7, 0), np.int64), (),
        np.zeros(num_switches, np.uint8), np.zeros(num_npus, np.int32), np.zeros(num_npus, np.int32),
    )  # fmt: skip
    classes = [_link_class(config, f"link_classes[{idx}]") for idx, config in enumerate(link_classes)]
    class_idx = {link_class.name: idx for idx, link_class in enumerate(classes)}
    rows = []
    for idx, cable in enumerate(links):
        field = f"links[{idx}]"
        if cable.link_class not in class_idx:
            rule = f"must be one of {', '.join(class_idx) or 'the link_classes, and there are none'}"
            raise TopologyError(f"{field}.class", cable.link_class, rule)
        rows += _rows(empty, cable, class_idx[cable.link_class], field)
    table = np.array(rows, np.int64).reshape(-1, 7).T
    servers = in_range(server_size or num_npus, "server_size", 1, MAX_VERTICES)
    supernodes = in_range(supernode_size or num_npus, "supernode_size", 1, MAX_VERTICES)
    npus = np.arange(num_npus, dtype=np.int32)
    return _topology(
        empty.name,
        table,
        tuple(classes),
        switch_tier=_tiers(table[0], table[1], num_npus, num_switches, switch_tiers),
        npu_server=npus // servers,
        npu_supernode=npus // supernodes,
    )


def _topology(
    name: str,
    table: npt.NDArray[np.int64],
    classes: tuple[LinkClass, ...],
    switch_tier: npt.NDArray[np.uint8],
    npu_server: npt.NDArray[np.int32],
    npu_supernode: npt.NDArray[np.int32],
) -> Topology:
    """Make a topology of a [7, L] table: src, dst, netlayer, plane, class, src port, dst port."""
    return Topology(
        name=name,
        num_npus=len(npu_server),
        num_switches=len(switch_tier),
        classes=classes,
        link_src=table[0].astype(np.int32),
        link_dst=table[1].astype(np.int32),
        link_netlayer=table[2].astype(np.uint8),
        link_plane=table[3].astype(np.int16),
        link_class=table[4].astype(np.uint16),
        link_src_port=table[5].astype(np.int32),
        link_dst_port=table[6].astype(np.int32),
        switch_tier=switch_tier,
        npu_server=npu_server,
        npu_supernode=npu_supernode,
    )


def _link_class(config: LinkClassConfig, field: str) -> LinkClass:
    return LinkClass(
        name=config.name,
        bandwidth_bytes_per_s=positive_rate(config.rate, f"{field}.rate"),
        latency_ps=latency(config.latency, f"{field}.latency"),
        source=Source("given", config.source),
    )


def _rows(empty: Topology, cable: LinkConfig, link_class: int, field: str) -> list[tuple[int, ...]]:
    """Make the one or two links of a cable, as rows of `_topology`'s table."""
    src, dst = empty.vertex(cable.src, f"{field}.from"), empty.vertex(cable.dst, f"{field}.to")
    if src == dst:
        raise TopologyError(f"{field}.to", cable.dst, "a cable must join two vertices")
    in_range(cable.netlayer, f"{field}.netlayer", 0, 7)
    in_range(cable.plane, f"{field}.plane", 0, 2**15 - 1)
    for port, key in ((cable.from_port, "from_port"), (cable.to_port, "to_port")):
        in_range(port, f"{field}.{key}", UNKNOWN_PORT, 2**20, "-1 is unknown")
    kind = cable.netlayer, cable.plane, link_class
    there = (src, dst, *kind, cable.from_port, cable.to_port)
    back = (dst, src, *kind, cable.to_port, cable.from_port)
    return [there] if cable.one_way else [there, back]


def _tiers(
    src: npt.NDArray[np.int64],
    dst: npt.NDArray[np.int64],
    num_npus: int,
    num_switches: int,
    given: Sequence[int] | None,
) -> npt.NDArray[np.uint8]:
    if given is not None:
        if len(given) != num_switches:
            rule = f"must have one entry per switch, {num_switches}"
            raise TopologyError("number of switch_tiers", len(given), rule)
        for idx, tier in enumerate(given):
            in_range(tier, f"switch_tiers[{idx}]", 0, 255)
        return np.array(given, np.uint8)
    tiers = np.ones(num_switches, np.uint8)
    tiers[dst[(src < num_npus) & (dst >= num_npus)] - num_npus] = 0
    tiers[src[(dst < num_npus) & (src >= num_npus)] - num_npus] = 0
    return tiers
