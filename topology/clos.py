"""UBL128 supernodes joined by a two-layer scale-out Clos, up to 256K cards.

Every card keeps its UBL128 ports (netlayer 1) and adds its 400G UBG port into the scale-out network
(netlayer 2). Each default carries its Source (`SOURCES`, and those of `ubl128`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from topology.build import LinkTable, class_source, in_range, latency, positive_rate
from topology.errors import TopologyError
from topology.graph import NETLAYER_SCALEOUT, NETLAYER_SUPERNODE, LinkClass, Topology
from topology.leafspine import (
    LeafSpineShape,
    add_card_cables,
    add_fabric_cables,
    size_leaf_spine,
    switch_tiers,
)
from topology.source import Source
from topology.ubl128 import CABLE_PS, PORT_RATE, SERVER_SIZE, SWITCH_HOP_PS, add_scaleup, check_scaleup
from topology.ubl128 import SOURCES as SCALEUP_SOURCES

Wiring = Literal["block", "rail"]

MAX_CARDS = 262_144
SCALEOUT_RATE = 50_000_000_000  # bytes/s, one 400G UBG port
SCALEOUT_CABLE_PS = 150_000
SCALEOUT_RADIXES = (256, 1024)

SOURCES: Mapping[str, Source] = MappingProxyType({
    "num_npus": Source("official", "two-layer switched scale-out of 256K cards (statement of 2026-09-30)"),
    "scaleout_rate": Source("secondary", "one 400G UBG port per card (serving design text, HCCL board test)"),
    "scaleout_planes": Source("assumed", "one plane: a card has one UBG port"),
    "scaleout_radix": Source(
        "derived",
        "256 x 400G is 102.4 Tb/s silicon and carries 32,768 cards; beyond that r^2/2 >= cards asks for "
        "r >= 725, taken as 1,024, which four 100G planes of the same silicon equal under spray",
    ),
    "scaleout_switch_hop": Source("assumed", "as the scale-up switch, about 200 ns"),
    "scaleout_cable": Source("assumed", "150 ns, 30 m at 5 ns/m, top of the range 10-150 ns"),
    "oversubscription": Source("secondary", "non-blocking two-layer Clos (serving design text)"),
})  # fmt: skip
"""Where each scale-out default of `clos` came from."""


def clos(
    num_npus: int,
    *,
    supernode_size: int = 128,
    planes: int = 8,
    ports_per_plane: int = 1,
    port_rate: str | int = PORT_RATE,
    radix: int = 128,
    switch_hop: str | int = SWITCH_HOP_PS,
    cable: str | int = CABLE_PS,
    scaleout_rate: str | int = SCALEOUT_RATE,
    scaleout_planes: int = 1,
    scaleout_radix: int | None = None,
    oversubscription: float = 1,
    wiring: Wiring = "block",
    scaleout_switch_hop: str | int = SWITCH_HOP_PS,
    scaleout_cable: str | int = SCALEOUT_CABLE_PS,
    server_size: int = SERVER_SIZE,
    name: str | None = None,
) -> Topology:
    """Build UBL128 supernodes and the scale-out network above them.

    Args:
      num_npus: cards; the last supernode may be smaller.
      supernode_size: cards under one scale-up layer.
      planes: scale-up planes, as in `ubl128`.
      ports_per_plane: as in `ubl128`.
      port_rate: of a scale-up port, as in `ubl128`.
      radix: of a scale-up switch.
      switch_hop: of a scale-up switch; text or picoseconds.
      cable: of the scale-up network; text or picoseconds.
      scaleout_rate: of one scale-out port and of every leaf-spine cable, per direction.
      scaleout_planes: scale-out ports per card, each into its own leaf/spine plane.
      scaleout_radix: ports of leaf and spine switches; absent: 256, or 1,024 where 256 is too few.
      oversubscription: card bandwidth over uplink bandwidth of a full leaf; 1 is non-blocking.
      wiring: "block": cards fill leaves in order; "rail": cards of equal position in their
        supernodes share leaves.
      scaleout_switch_hop: latency of crossing a leaf or spine; text or picoseconds.
      scaleout_cable: latency of a scale-out cable; text or picoseconds.
      server_size: cards per server, for placement only.
      name: for people; made from the numbers when absent.

    Returns:
      Topology; switches are numbered scale-up first (plane fastest), then leaves, then spines.

    Raises:
      TopologyError: a number is out of range, or no two layers of that radix carry the cards.
    """
    _check(num_npus, supernode_size, scaleout_planes, wiring)
    check_scaleup(min(supernode_size, num_npus), planes, ports_per_plane, radix, "supernode_size")
    in_range(server_size, "server_size", 1, MAX_CARDS)
    shape = _scaleout_shape(num_npus, scaleout_radix, oversubscription)
    scaleup_cables = num_npus * planes * ports_per_plane
    scaleout_cables = scaleout_planes * (num_npus + shape.num_fabric_cables)
    table = LinkTable(2 * (scaleup_cables + scaleout_cables))
    num_scaleup_switches = add_scaleup(
        table, num_npus, supernode_size,
        planes=planes, ports_per_plane=ports_per_plane, port_rate=port_rate,
        switch_hop=switch_hop, cable=cable, netlayer=NETLAYER_SUPERNODE,
    )  # fmt: skip
    _add_scaleout(
        table,
        shape,
        _positions(num_npus, supernode_size, wiring),
        first_leaf=num_npus + num_scaleup_switches,
        planes=scaleout_planes,
        # Seven mesh ports and one CPU port lie between the scale-up ports and the UBG port.
        first_port=planes * ports_per_plane + 8,
        rate=positive_rate(scaleout_rate, "scaleout_rate"),
        hop_ps=latency(scaleout_switch_hop, "scaleout_switch_hop"),
        cable_ps=latency(scaleout_cable, "scaleout_cable"),
    )
    tiers = [np.zeros(num_scaleup_switches, np.uint8), switch_tiers(shape, scaleout_planes)]
    return table.topology(
        name=name or f"clos ({num_npus} cards in supernodes of {supernode_size})",
        num_npus=num_npus,
        switch_tier=np.concatenate(tiers),
        server_size=server_size,
        supernode_size=supernode_size,
    )


def _check(num_npus: int, supernode_size: int, scaleout_planes: int, wiring: str) -> None:
    in_range(num_npus, "num_npus", 1, MAX_CARDS, "256K cards is the announced limit")
    in_range(supernode_size, "supernode_size", 1, MAX_CARDS)
    in_range(scaleout_planes, "scaleout_planes", 1, 16)
    if wiring not in get_args(Wiring):
        raise TopologyError("wiring", wiring, f"must be one of {', '.join(get_args(Wiring))}")
    if wiring == "rail" and num_npus % supernode_size:
        rule = f"rail wiring needs full supernodes of {supernode_size} cards"
        raise TopologyError("num_npus", num_npus, rule)


def _scaleout_shape(num_npus: int, radix: int | None, oversubscription: float) -> LeafSpineShape:
    if radix is not None:
        return size_leaf_spine(num_npus, radix, oversubscription)
    try:
        return size_leaf_spine(num_npus, SCALEOUT_RADIXES[0], oversubscription)
    except TopologyError as error:
        if error.field != "num_npus":
            raise
        return size_leaf_spine(num_npus, SCALEOUT_RADIXES[1], oversubscription)


def _positions(num_npus: int, supernode_size: int, wiring: Wiring) -> npt.NDArray[np.int32]:
    """Order the cards over leaf ports: [N] int32, a permutation."""
    cards = np.arange(num_npus, dtype=np.int32)
    if wiring == "block":
        return cards
    return (cards % supernode_size) * (num_npus // supernode_size) + cards // supernode_size


def _add_scaleout(
    table: LinkTable,
    shape: LeafSpineShape,
    position: npt.NDArray[np.int32],
    *,
    first_leaf: int,
    planes: int,
    first_port: int,
    rate: int,
    hop_ps: int,
    cable_ps: int,
) -> None:
    rate_part = ("scaleout_rate", rate, SCALEOUT_RATE, SOURCES["scaleout_rate"])
    hop_part = ("scaleout_switch_hop", hop_ps, SWITCH_HOP_PS, SCALEUP_SOURCES["switch_hop"])
    cable_part = ("scaleout_cable", cable_ps, SCALEOUT_CABLE_PS, SOURCES["scaleout_cable"])
    through, ends_in_card = class_source(rate_part, hop_part, cable_part), class_source(rate_part, cable_part)
    classes = [
        table.add_class(
            LinkClass(
                name=class_name,
                bandwidth_bytes_per_s=rate,
                latency_ps=cable_ps + (0 if class_name == "ubg-down" else hop_ps),
                source=ends_in_card if class_name == "ubg-down" else through,
            )
        )
        for class_name in ("ubg-up", "ubg-down", "leaf-up", "spine-down")
    ]
    add_card_cables(
        table, position, shape,
        first_leaf=first_leaf, planes=planes, first_port=first_port, netlayer=NETLAYER_SCALEOUT,
        up_class=classes[0], down_class=classes[1],
    )  # fmt: skip
    add_fabric_cables(
        table, shape,
        first_leaf=first_leaf, planes=planes, netlayer=NETLAYER_SCALEOUT,
        up_class=classes[2], down_class=classes[3],
    )  # fmt: skip
