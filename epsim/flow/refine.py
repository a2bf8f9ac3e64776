"""Which ranks play equal roles: colour refinement over cells of ranks and the relations between them.

A cell is a set of ranks that share leaves, group, kind and rates. Two cells relate by the planes that join
them, the leaves they share and the bytes they exchange. Cells get one colour as long as each sees the
same number of ranks in each relation and colour; what is stable under that is an equitable partition, so
ranks of one colour have the same rates for ever. Links are told apart by their rates and leaves by their
sets of spines, never by names.

Dimension legend: R ranks, D cells, P planes, V leaves, K distinct (relation, colour) pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from topology import Router
from topology.fabric import Attachment, group_rows
from topology.paths import LayerPaths, usable_planes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
MAX_CELLS = 4_608
"""A cell per supernode and kind at full scale, twice; pairs of cells stay near 20 million."""
MAX_COUNTS = 2**26


@dataclass(frozen=True, kw_only=True)
class Partition:
    """An equitable partition of ranks.

    Args:
      cell: [R] cell of each rank.
      first: [D] lowest rank of each cell.
      size: [D] ranks in each cell.
      colour: [D] class of each cell, 0 .. number of classes - 1.
      relation: [D, D] what a rank of one cell is to a rank of the other.
      relation_bytes: bytes of a pair in each relation.
    """

    cell: Int64
    first: Int64
    size: Int64
    colour: Int64
    relation: Int32
    relation_bytes: Int64

    @property
    def num_classes(self) -> int:
        """Count the classes of ranks."""
        return int(self.colour.max()) + 1


def partition(
    router: Router,
    kind: Int64,
    group: Int64,
    kind_bytes: Int64,
    link_rate: npt.NDArray[Any],
    card_limits: list[npt.NDArray[Any]],
) -> Partition:
    """Find the coarsest partition that refinement from rates and relations gives.

    Args:
      router: of the ranks' NPUs, in rank order.
      kind: [R] row of `kind_bytes`.
      group: [R]; ranks of different groups exchange nothing.
      kind_bytes: [kinds, kinds] bytes of a pair.
      link_rate: [L].
      card_limits: arrays [R] that tell cards apart.

    Raises:
      InputError: too many cells or classes for symmetry to be of use.
    """
    codes = np.searchsorted(np.unique(link_rate), link_rate)
    layers = [paths.layer for paths in router.layers]
    rates = [_codes(table, codes) for layer in layers for table in (layer.up, layer.down)]
    limits = [np.unique(limit, return_inverse=True)[1].reshape(-1, 1) for limit in card_limits]
    attached = _varying(np.concatenate([*rates, *limits], axis=1))
    leaves = np.concatenate([side for layer in layers for side in (layer.up_leaf, layer.down_leaf)], axis=1)
    cell, first = group_rows(np.concatenate([leaves, attached, kind[:, None], group[:, None]], axis=1))
    if len(first) > MAX_CELLS:
        rule = (
            f"sets of ranks with equal leaves, group, kind and rates, at most {MAX_CELLS}; "
            "epsim.flow.projection bounds a law over any number, epsim.flow.groups many groups"
        )
        raise InputError("number of cells", len(first), rule)
    relation, relation_bytes = _relate(router.layers, leaves, first, kind[first], group[first], kind_bytes)
    roles = np.concatenate([attached[first], *_leaf_roles(router.layers, first, codes)], axis=1)
    size = np.bincount(cell)
    colour = _refine(group_rows(roles)[0], size, relation)
    return Partition(
        cell=cell, first=first, size=size, colour=colour, relation=relation, relation_bytes=relation_bytes
    )


def _codes(table: Attachment, codes: Int64) -> Int64:
    """Write down the rates behind each row of a table, -1 where there is no link: [rows, columns * M]."""
    links = table.links.reshape(len(table.links), -1)
    return np.where(links >= 0, codes[links], -1)


def _varying(columns: Int64) -> Int64:
    """Keep the columns that differ anywhere, and at least one."""
    differ = (columns != columns[0]).any(axis=0)
    differ[0] = True
    return columns[:, differ]


def _leaf_roles(layers: list[LayerPaths], first: Int64, codes: Int64) -> list[Int64]:
    """Tell leaves apart by the spines they reach and at what rates: columns [D, P]."""
    columns = [np.zeros((len(first), 1), np.int64)]
    for layer, reach in ((paths.layer, paths.reach) for paths in layers):
        if layer.to_spine.count.size:
            fans = [_codes(table, codes) for table in (layer.to_spine, layer.from_spine)]
            role, _ = group_rows(np.concatenate(fans, axis=1))
            for leaf, kinds in ((layer.up_leaf, reach.up_class), (layer.down_leaf, reach.down_class)):
                mine = leaf[first]
                columns += [np.where(mine >= 0, of[mine], -1) for of in (role, kinds)]
    return columns


def _relate(
    layers: list[LayerPaths], leaves: Int64, first: Int64, kind: Int64, group: Int64, kind_bytes: Int64
) -> tuple[Int32, Int64]:
    """Relate cells: the number of the relation, [D, D], and the bytes of each relation."""
    domain, example = group_rows(leaves[first])
    places = reduce(_join, _place_codes(layers, first[example]), np.zeros((len(example),) * 2, np.int32))
    # Bytes are kept as positions in a short list: pairs are many, different numbers few.
    amounts, position = np.unique(np.append(kind_bytes, 0), return_inverse=True)
    position = position.reshape(-1).astype(np.int32)
    nothing, position = position[-1], position[:-1].reshape(kind_bytes.shape)
    pair = np.where(group[:, None] == group, position[kind[:, None], kind], nothing)
    relation = _join(places[domain[:, None], domain], pair)
    relation_bytes = np.zeros(int(relation.max()) + 1, np.int64)
    relation_bytes[relation] = amounts[pair]
    return relation, relation_bytes


def _place_codes(layers: list[LayerPaths], ranks: Int64) -> Iterator[Int32]:
    """Tell, plane by plane, which pairs of ranks a plane joins and which leaves they share: [n, n]."""
    for paths in layers:
        up, down = paths.layer.up_leaf[ranks], paths.layer.down_leaf[ranks]
        before = None
        for plane in range(len(paths.layer.planes)):
            rising, falling = up[:, plane], down[:, plane]
            ends = rising[:, None, None], falling[None, :, None]
            code = usable_planes(paths.layer, paths.reach, *ends)[:, :, 0].astype(np.int32)
            for one, other in ((rising, rising), (falling, falling), (rising, falling)):
                code = 2 * code + (one[:, None] == other)
            if before is None or not np.array_equal(code, before):
                yield code
            before = code


def _join(one: Int32, other: Int32) -> Int32:
    """Give numbers to the pairs (one, other) that occur, element by element."""
    key = one.astype(np.int64) * (int(other.max()) + 1) + other
    upper = int(key.max()) + 1
    if upper > MAX_COUNTS:
        present = np.unique(key)
        return np.searchsorted(present, key).astype(np.int32)
    seen = np.zeros(upper, np.bool_)
    seen[key] = True
    number: Int32 = (np.cumsum(seen) - 1).astype(np.int32)
    return np.take(number, key)


def _refine(colour: Int64, size: Int64, relation: Int32) -> Int64:
    """Split colours until each cell of one sees the same numbers of ranks by relation and colour."""
    both = _join(relation, relation.T)
    while True:
        key = _join(both, np.broadcast_to(colour.astype(np.int32), both.shape))
        width = int(key.max()) + 1
        if len(colour) * width > MAX_COUNTS:
            rule = "different (relation, class) pairs: too little is equal; simulate the listed flows instead"
            raise InputError("number of roles", width, rule)
        # Row by row: weights and slots of all pairs at once would be the largest arrays here.
        ranks = size.astype(np.float64)
        counts = np.array([np.bincount(row, weights=ranks, minlength=width) for row in key]).astype(np.int64)
        finer, first = group_rows(np.concatenate([colour[:, None], counts], axis=1))
        if len(first) == int(colour.max()) + 1:
            return finer
        colour = finer
