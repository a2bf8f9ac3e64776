"""Flow classes of an equitable partition, and the links that stand for all links loaded alike.

Links are looked at through one rank of each class and the leaves above it: every other rank and leaf of the
class is loaded the same.

Dimension legend: D cells, P planes, C spines of a plane, M parallel links.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.quotient import Resource
from epsim.flow.refine import Partition
from topology import Router
from topology.fabric import Attachment
from topology.paths import LayerPaths, usable_planes

Rates = npt.NDArray[Any]
MAX_FLOW_CLASSES = 2_048


@dataclass(frozen=True, kw_only=True)
class FlowRole:
    """Flows from one class of ranks to another in one relation.

    Args:
      src_class, dst_class: of the ranks.
      pair_bytes: of each flow.
      num_out: how many of them leave each source.
      num_in: how many reach each destination.
      netlayer: that they take.
      planes: that each of them is spread over, positions in the layer.
      cells: one pair of cells that they join.
    """

    src_class: int
    dst_class: int
    pair_bytes: int
    num_out: int
    num_in: int
    netlayer: int
    planes: tuple[int, ...]
    cells: tuple[int, int]


def flow_roles(router: Router, parts: Partition) -> list[FlowRole]:
    """List the classes of flows that have bytes.

    Raises:
      InputError: too many.
      TopologyError: no layer joins a pair.
    """
    roles = []
    sizes = np.bincount(parts.colour, weights=parts.size).astype(np.int64)
    for colour in range(parts.num_classes):
        src = int((parts.colour == colour).argmax())
        relations = parts.relation[src]
        key = relations * parts.num_classes + parts.colour
        count = np.bincount(key, weights=parts.size).astype(np.int64)
        count[key[src]] -= 1  # own bytes stay on the card
        for one in np.flatnonzero(count):
            relation, dst_class = divmod(int(one), parts.num_classes)
            pair_bytes = int(parts.relation_bytes[relation])
            if not pair_bytes:
                continue
            cells = src, int((key == one).argmax())
            netlayer, planes = _layer_of(router, parts, *cells)
            num_in, rest = divmod(int(sizes[colour] * count[one]), int(sizes[dst_class]))
            assert rest == 0, "the partition is not equitable"
            roles.append(FlowRole(
                src_class=colour, dst_class=dst_class, pair_bytes=pair_bytes, num_out=int(count[one]),
                num_in=num_in, netlayer=netlayer, planes=planes, cells=cells,
            ))  # fmt: skip
    if len(roles) > MAX_FLOW_CLASSES:
        rule = f"must be at most {MAX_FLOW_CLASSES}: too little is equal; simulate the listed flows instead"
        raise InputError("number of flow classes", len(roles), rule)
    return roles


def _layer_of(router: Router, parts: Partition, src: int, dst: int) -> tuple[int, tuple[int, ...]]:
    """Find the first netlayer that joins two cells, and its planes that do."""
    a, b = parts.first[src], parts.first[dst]
    for paths in router.layers:
        layer = paths.layer
        usable = usable_planes(layer, paths.reach, layer.up_leaf[a], layer.down_leaf[b])
        if usable.any():
            return layer.netlayer, tuple(np.flatnonzero(usable).tolist())
    ranks = np.flatnonzero(parts.cell == dst)
    raise router.no_path(int(a), int(ranks[ranks != a][0]))


def link_resources(router: Router, parts: Partition, roles: list[FlowRole], rates: Rates) -> list[Resource]:
    """List one link of each kind: ports of a card of each class, spine links of its leaves."""
    found: dict[tuple[Fraction, frozenset[tuple[int, Fraction]]], Resource] = {}
    for paths in router.layers:
        mine = {flow: role for flow, role in enumerate(roles) if role.netlayer == paths.layer.netlayer}
        for one in (*_ports(paths, parts, mine, rates), *_spine_links(paths, parts, mine, rates)):
            found.setdefault((one.capacity, frozenset(one.shares.items())), one)
    return list(found.values())


def _ports(
    paths: LayerPaths, parts: Partition, roles: dict[int, FlowRole], rates: Rates
) -> Iterator[Resource]:
    """Load the ports of one rank of each class."""
    for colour in range(parts.num_classes):
        rank = int(parts.first[(parts.colour == colour).argmax()])
        for outward, table in ((True, paths.layer.up), (False, paths.layer.down)):
            for plane in range(len(paths.layer.planes)):
                shares = {}
                for flow, role in roles.items():
                    mine = colour == (role.src_class if outward else role.dst_class)
                    if mine and plane in role.planes:
                        number = role.num_out if outward else role.num_in
                        shares[flow] = Fraction(number, len(role.planes))
                yield from _parallel(table, rank, plane, shares, rates)


def _parallel(
    table: Attachment, row: int, column: int, shares: dict[int, Fraction], rates: Rates
) -> Iterator[Resource]:
    """Spread shares over the parallel links of a cell of a table."""
    links = table.links[row, column]
    links = links[links >= 0]
    each = {flow: share / len(links) for flow, share in shares.items()}
    for link in links if each else ():
        yield Resource(Fraction(rates[link].item()), each, int(link), "")


def _spine_links(
    paths: LayerPaths, parts: Partition, roles: dict[int, FlowRole], rates: Rates
) -> Iterator[Resource]:
    """Load the spine links of the leaves above one cell of each class."""
    layer, first = paths.layer, parts.first
    if not layer.to_spine.count.size:
        return
    reps = [int((parts.colour == colour).argmax()) for colour in range(parts.num_classes)]
    for outward, leaf_of, table in (
        (True, layer.up_leaf[first], layer.to_spine), (False, layer.down_leaf[first], layer.from_spine)
    ):  # fmt: skip
        for plane in range(len(layer.planes)):
            for leaf in sorted({int(leaf_of[cell, plane]) for cell in reps} - {-1}):
                under = parts.size * (leaf_of[:, plane] == leaf)
                ranks = np.bincount(parts.colour, weights=under)
                carried = {}
                for flow, role in roles.items():
                    number = int(ranks[role.src_class if outward else role.dst_class])
                    number *= role.num_out if outward else role.num_in
                    if number and plane in role.planes and _crosses(paths, parts, role, plane):
                        carried[flow] = Fraction(number, len(role.planes))
                yield from _fan(paths, parts, roles, carried, table, leaf, plane, outward, rates)


def _crosses(paths: LayerPaths, parts: Partition, role: FlowRole, plane: int) -> bool:
    src, dst = (parts.first[cell] for cell in role.cells)
    return bool(paths.layer.up_leaf[src, plane] != paths.layer.down_leaf[dst, plane])


def _fan(
    paths: LayerPaths, parts: Partition, roles: dict[int, FlowRole], carried: dict[int, Fraction],
    table: Attachment, leaf: int, plane: int, outward: bool, rates: Rates,
) -> Iterator[Resource]:  # fmt: skip
    """Spread what a leaf carries over the spines that it shares with each far leaf."""
    layer = paths.layer
    spines: dict[int, npt.NDArray[np.bool_]] = {}
    for flow in carried:
        src, dst = (parts.first[cell] for cell in roles[flow].cells)
        near, far = layer.up_leaf[src, plane], layer.down_leaf[dst, plane]
        spines[flow] = (layer.to_spine.count[near] > 0) & (layer.from_spine.count[far] > 0)
    for column in range(table.links.shape[1] if carried else 0):
        shares = {f: s / int(spines[f].sum()) for f, s in carried.items() if spines[f][column]}
        yield from _parallel(table, leaf, column, shares, rates)
