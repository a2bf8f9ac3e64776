"""Paths inside one netlayer: over all of them (spray) or over one that a number picks.

Dimension legend: F flows, P planes, C spines of a plane, M parallel links.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topology.fabric import Attachment, Int32, Int64, LayerIndex, SpineReach
from topology.graph import IntArray

Bools = npt.NDArray[np.bool_]

SALT_PLANE, SALT_SPINE, SALT_UP, SALT_DOWN, SALT_TO_SPINE, SALT_FROM_SPINE = range(6)
HOP_UP, HOP_TO_SPINE, HOP_FROM_SPINE, HOP_DOWN = range(4)
_GOLDEN = 0x9E3779B97F4A7C15


class Entries(NamedTuple):
    """Flows on links: flow, link and parts are [E]; hop is [E] or one number for all."""

    flow: Int64
    link: IntArray
    parts: IntArray
    hop: IntArray | int


Chooser = Callable[[int, IntArray, IntArray, int], Int64]
"""(salt, flows [F], number of choices [F], planes of the layer) -> choice [F]."""


def usable_planes(layer: LayerIndex, reach: SpineReach, up_leaf: Int32, down_leaf: Int32) -> Bools:
    """Mark the planes in which bytes get from the leaf above a source to the one above a destination.

    Args:
      layer: the netlayer.
      reach: its spines.
      up_leaf: [..., P] leaf the source sends to, -1 = none.
      down_leaf: [..., P] leaf the destination receives from, -1 = none.

    Returns:
      [..., P] bool.
    """
    present = (up_leaf >= 0) & (down_leaf >= 0)
    joined = up_leaf == down_leaf
    if layer.to_spine.count.size:
        joined = joined | (reach.count(up_leaf, down_leaf) > 0)
    return np.asarray(present & joined)


class LayerPaths:
    """All paths of one netlayer between its chosen NPUs (positions, not vertex numbers).

    Args:
      layer: the netlayer.
    """

    def __init__(self, layer: LayerIndex) -> None:
        """Count common spines."""
        self.layer = layer
        self.reach = SpineReach(layer)
        self.num_choices = max(1, *(math.prod(table.links.shape[1:]) for table in (layer.up, layer.to_spine)))

    def joins(self, src: Int64, dst: Int64) -> Bools:
        """Tell which pairs [F] this layer joins."""
        joined = self.layer.find_direct(src, dst) >= 0
        usable = usable_planes(self.layer, self.reach, self.layer.up_leaf[src], self.layer.down_leaf[dst])
        return np.asarray(joined | usable.any(axis=1))

    def spray(self, flows: Int64, src: Int64, dst: Int64) -> list[Entries]:
        """Spread flows equally over planes, then spines, then parallel links; direct links first."""
        row = self.layer.find_direct(src, dst)
        found = np.flatnonzero(row >= 0)
        pair, _, link, count = _expand(self.layer.direct, row[found])
        entries = [Entries(flows[found[pair]], link, count, HOP_UP)]
        rest = np.flatnonzero(row < 0)
        flows, src, dst = flows[rest], src[rest], dst[rest]
        up_leaf, down_leaf = self.layer.up_leaf[src], self.layer.down_leaf[dst]
        usable = usable_planes(self.layer, self.reach, up_leaf, down_leaf)
        num_planes = usable.sum(axis=1)
        flow, plane, link, count = _expand(self.layer.up, src, usable)
        entries.append(Entries(flows[flow], link, num_planes[flow] * count, HOP_UP))
        crosses = usable & (up_leaf != down_leaf)
        flow, plane = np.nonzero(crosses)
        for spray in self.spray_spines(up_leaf[flow, plane], down_leaf[flow, plane]):
            through = flow[spray.flow]
            entries.append(spray._replace(flow=flows[through], parts=num_planes[through] * spray.parts))
        flow, plane, link, count = _expand(self.layer.down, dst, usable)
        hop = np.where(crosses[flow, plane], HOP_DOWN, HOP_UP + 1)
        entries.append(Entries(flows[flow], link, num_planes[flow] * count, hop))
        return entries

    def spray_spines(self, leaf_src: IntArray, leaf_dst: IntArray) -> tuple[Entries, Entries]:
        """Spread bytes between pairs of different leaves; `flow` counts the pairs given."""
        both = (self.layer.to_spine.count[leaf_src] > 0) & (self.layer.from_spine.count[leaf_dst] > 0)
        num_spines = both.sum(axis=1)
        pair, _, link, count = _expand(self.layer.to_spine, leaf_src, both)
        rising = Entries(pair, link, num_spines[pair] * count, HOP_TO_SPINE)
        pair, _, link, count = _expand(self.layer.from_spine, leaf_dst, both)
        return rising, Entries(pair, link, num_spines[pair] * count, HOP_FROM_SPINE)

    def single(self, flows: Int64, src: Int64, dst: Int64, choose: Chooser) -> list[Entries]:
        """Send each flow whole along the path that `choose` picks; a direct link first."""
        layer, num_planes = self.layer, len(self.layer.planes)

        def pick(salt: int, some: Int64, table: Attachment, row: IntArray, column: IntArray | int) -> Int32:
            choice = choose(salt, flows[some], table.count[row, column], num_planes)
            return np.asarray(table.links[row, column, choice], np.int32)

        def whole(some: Int64, link: Int32, hop: IntArray | int) -> Entries:
            return Entries(flows[some], link, np.ones(len(some), np.int64), hop)

        row = layer.find_direct(src, dst)
        found, rest = np.flatnonzero(row >= 0), np.flatnonzero(row < 0)
        entries = [whole(found, pick(SALT_UP, found, layer.direct, row[found], 0), HOP_UP)]
        usable = usable_planes(layer, self.reach, layer.up_leaf[src[rest]], layer.down_leaf[dst[rest]])
        plane = _nth_true(usable, choose(SALT_PLANE, flows[rest], usable.sum(axis=1), num_planes))
        entries.append(whole(rest, pick(SALT_UP, rest, layer.up, src[rest], plane), HOP_UP))
        leaf_src, leaf_dst = layer.up_leaf[src[rest], plane], layer.down_leaf[dst[rest], plane]
        crosses = leaf_src != leaf_dst
        inter, leaf_src, leaf_dst = rest[crosses], leaf_src[crosses], leaf_dst[crosses]
        both = (layer.to_spine.count[leaf_src] > 0) & (layer.from_spine.count[leaf_dst] > 0)
        spine = _nth_true(both, choose(SALT_SPINE, flows[inter], both.sum(axis=1), num_planes))
        rising = pick(SALT_TO_SPINE, inter, layer.to_spine, leaf_src, spine)
        falling = pick(SALT_FROM_SPINE, inter, layer.from_spine, leaf_dst, spine)
        entries += [whole(inter, rising, HOP_TO_SPINE), whole(inter, falling, HOP_FROM_SPINE)]
        last = pick(SALT_DOWN, rest, layer.down, dst[rest], plane)
        entries.append(whole(rest, last, np.where(crosses, HOP_DOWN, HOP_UP + 1)))
        return entries


def _expand(
    table: Attachment, rows: IntArray, mask: Bools | None = None
) -> tuple[Int64, Int64, Int32, Int64]:
    """List the links of table rows where `mask` [rows, columns] allows.

    Returns:
      Position in `rows`, column, link, and how many parallel links share that cell; each [E].
    """
    links = table.links[rows]
    keep = links >= 0
    if mask is not None:
        keep &= mask[:, :, None]
    given, column, parallel = np.nonzero(keep)
    count = table.count[rows[given], column].astype(np.int64)
    return given, column, links[given, column, parallel], count


def _nth_true(mask: Bools, nth: Int64) -> Int64:
    """Find the column of the nth true (from 0) of each row."""
    return np.asarray((np.cumsum(mask, axis=1) > nth[:, None]).argmax(axis=1), np.int64) if mask.size else nth


def hash_chooser(seed: int, src: IntArray, dst: IntArray, key: IntArray | None) -> Chooser:
    """Choose by splitmix64 over (seed, salt, source, destination, key), modulo the choices."""
    key = np.zeros(len(src), np.int64) if key is None else np.asarray(key)
    words = [word.astype(np.uint64) for word in (src, dst, key)]

    def choose(salt: int, flows: IntArray, choices: IntArray, num_planes: int) -> Int64:
        state = np.full(len(flows), (seed * _GOLDEN + salt) % 2**64, np.uint64)
        for word in words:
            state = _splitmix64(state ^ word[flows])
        return (state % choices.astype(np.uint64)).astype(np.int64)

    return choose


def pinned_chooser(dst: IntArray) -> Chooser:
    """Choose the plane by destination modulo planes, all else by destination // planes."""

    def choose(salt: int, flows: IntArray, choices: IntArray, num_planes: int) -> Int64:
        number = dst[flows] if salt == SALT_PLANE else dst[flows] // num_planes
        return np.asarray(number % choices, np.int64)

    return choose


def _splitmix64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64 bits (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    state = state + np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
