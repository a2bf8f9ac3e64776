"""Link loads of one group after another on one netlayer, sprayed or hashed; totals stay, flows do not.

The hash is the one of `topology.paths` bit for bit (a test compares them), taken apart so that what
depends on the source alone is computed once per card and the rest in place.

Dimension legend: G ranks of a group, F flows of a group, P planes, V leaves, C spines of a plane,
M parallel links (the most there are), A and B classes of leaves by the spines they send to and receive from.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.linksums import EXACT_FLOAT, MAX_CELLS, SAFE_INT64, TIERS, Bools, Int64, Load, Wide
from topology import Topology
from topology.fabric import Attachment
from topology.graph import IntArray
from topology.paths import (
    SALT_DOWN,
    SALT_FROM_SPINE,
    SALT_PLANE,
    SALT_SPINE,
    SALT_TO_SPINE,
    SALT_UP,
    LayerPaths,
)

_GOLDEN = 0x9E3779B97F4A7C15


class Flows(NamedTuple):
    """Flows of a group, [F] int64 each: ranks src and dst, pair = src * G + dst, bytes."""

    src: Int64
    dst: Int64
    pair: Int64
    carried: Int64

    def take(self, some: Int64) -> "Flows":
        """Choose some of them."""
        return Flows(*(np.take(column, some) for column in self))


class LayerLoads:
    """Totals of one netlayer's links, fed one group at a time.

    Args:
      topology: for rates.
      paths: the netlayer.
      total: bytes of all groups together.
      whole: flows stay whole (a hash picks their path) instead of being sprayed.

    Raises:
      InputError: so many kinds of leaves that a table of their pairs would not fit.
    """

    def __init__(self, topology: Topology, paths: LayerPaths, total: int, *, whole: bool) -> None:
        """Make the tables of spines, and totals of zero."""
        layer = paths.layer
        self.paths = paths
        self.num_planes = len(layer.planes)
        self.has_spines = layer.to_spine.count.size > 0
        self._tabulate_spines()
        # Spray divides by planes, then spines, then parallel links; a hash divides nothing.
        self.plane_parts = 1 if whole else math.lcm(*range(1, self.num_planes + 1))
        self.spine_parts = 1 if whole else math.lcm(*(int(n) for n in np.unique(self.num_spines) if n))
        share = self.spine_parts // np.maximum(self.num_spines, 1)
        self.parts = np.where(self.common, share[:, :, None], 0)  # [A, B, C]
        self.back_parts = self.parts.transpose(1, 0, 2)
        tables = dict(zip(TIERS, (layer.up, layer.to_spine, layer.from_spine, layer.down), strict=True))
        self.tiers = {}
        for name, table in tables.items():
            if table.count.size:
                spines = self.spine_parts if "spine" in name else 1
                self.tiers[name] = _Tier(topology, table, self.plane_parts * spines, total, whole=whole)
        # Sprayed bytes between a leaf and classes of leaves; every group spreads over spines alike.
        self.amount = {
            name: np.zeros((len(self.tiers[name].table.count), classes), self.tiers[name].total.dtype)
            for name, classes in zip(TIERS[1:3], self.num_spines.shape[::-1], strict=True)
            if name in self.tiers and not whole
        }

    def _tabulate_spines(self) -> None:
        """Tabulate the common spines of two leaves by their classes: [A, B, C] and their number [A, B]."""
        layer, reach = self.paths.layer, self.paths.reach
        _, up_first = np.unique(reach.up_class, return_index=True)
        _, down_first = np.unique(reach.down_class, return_index=True)
        cells = len(up_first) * len(down_first) * layer.to_spine.count.shape[1]
        if cells > MAX_CELLS // 8:
            rule = f"leaves with different spines, pairs times spines; must be at most {MAX_CELLS // 8}"
            raise InputError("number of common spines to tabulate", cells, rule)
        up, down = layer.to_spine.count[up_first] > 0, layer.from_spine.count[down_first] > 0
        self.common = up[:, None] & down[None]
        self.num_spines = self.common.sum(axis=2)
        # The common spines of a pair first, in ascending order: the nth of them is in column n.
        self.nth_spine = np.argsort(~self.common, axis=2, kind="stable").astype(np.int32)

    def loads(self) -> dict[str, list[Load]]:
        """List what links carry, by tier; once, when all groups have been added."""
        reach = self.paths.reach
        for name, classes, parts in (
            ("leaf to spine", reach.up_class, self.parts),
            ("spine to leaf", reach.down_class, self.back_parts),
        ):
            if name in self.amount:
                cells = _spread_classes(self.amount.pop(name), parts, classes)
                self.tiers[name].spread(np.arange(len(classes)), cells)
        return {f"netlayer {self.paths.layer.netlayer}, {name}": [t.load()] for name, t in self.tiers.items()}

    def hash(self, position: Int64, npus: Int64, flows: Flows, usable: Bools, seed: int) -> Fraction:
        """Add flows of one group, each whole on the path that the flow hash picks.

        Args:
          position: [G] row of each rank in the netlayer's tables.
          npus: [G] NPU of each rank, which the hash reads.
          flows: pairs that this layer joins.
          usable: [P, G * G] planes that join a pair.
          seed: of the hash.

        Returns:
          Seconds of the busiest link if these flows were alone.
        """
        layer = self.paths.layer
        pick = _Hash(seed, npus, flows)
        plane = self._pick_plane(pick, flows, usable)
        slowest = Fraction(0)
        for name, salt, end in (("card to leaf", SALT_UP, flows.src), ("leaf to card", SALT_DOWN, flows.dst)):
            tier = self.tiers[name]
            parallel = pick(salt, tier.counts(position[end], plane))
            slot = _slot(end, self.num_planes, plane, tier.width, parallel)
            shape = len(position), self.num_planes, tier.width
            slowest = max(slowest, tier.add(position, _sum_floats(slot, flows.carried, shape)))
        if not self.has_spines:
            return slowest
        if isinstance(plane, int):
            near = _Leaves(layer.up_leaf[position, plane], flows.src)
            far = _Leaves(layer.down_leaf[position, plane], flows.dst)
        else:
            every = np.arange(len(plane))
            near = _Leaves(layer.up_leaf[position[flows.src], plane], every)
            far = _Leaves(layer.down_leaf[position[flows.dst], plane], every)
        # Flows under one leaf are hashed with the others and count for nothing: cheaper than to sort out.
        crossing = flows.carried * (near.of_flows() != far.of_flows())
        return max(slowest, self._hash_spines(pick, crossing, near, far)) if crossing.any() else slowest

    def _pick_plane(self, pick: "_Hash", flows: Flows, usable: Bools) -> Int64 | int:
        """Pick the nth usable plane of each flow."""
        if self.num_planes == 1:
            return 0
        if usable.all():
            return pick(SALT_PLANE, self.num_planes)
        mine = usable[:, flows.pair].T  # [F, P]
        nth = np.asarray(pick(SALT_PLANE, mine.sum(axis=1)))
        return np.asarray((np.cumsum(mine, axis=1) > nth[:, None]).argmax(axis=1), np.int64)

    def _hash_spines(self, pick: "_Hash", carried: Int64, near: "_Leaves", far: "_Leaves") -> Fraction:
        """Add bytes between leaves, [F], to the links of the spine that the hash picks."""
        reach = self.paths.reach
        if self.num_spines.size == 1:
            nth, table = pick(SALT_SPINE, int(self.num_spines[0, 0])), self.nth_spine[0, 0]
            spine = nth if self.common.all() else table[nth]
        else:
            pair = reach.up_class[near.of_flows()], reach.down_class[far.of_flows()]
            spine = self.nth_spine[*pair, pick(SALT_SPINE, self.num_spines[pair])]
        slowest = Fraction(0)
        for name, salt, end in (
            ("leaf to spine", SALT_TO_SPINE, near), ("spine to leaf", SALT_FROM_SPINE, far)
        ):  # fmt: skip
            tier = self.tiers[name]
            rows, row = _number(end.leaf, len(reach.up_class))
            row = np.take(row, end.chosen)
            parallel = pick(salt, tier.same_count or tier.table.count[end.of_flows(), spine])
            columns = tier.table.links.shape[1]
            slot = _slot(row, columns, spine, tier.width, parallel)
            loads = _sum_floats(slot, carried, (len(rows), columns, tier.width))
            slowest = max(slowest, tier.add(rows, loads))
        return slowest

    def spray(self, position: Int64, flows: Flows, usable: Bools) -> Fraction:
        """Add flows of one group, spread equally over planes, spines and parallel links.

        Args and Returns: as `hash`.
        """
        layer, size = self.paths.layer, len(position)
        alike = bool(usable.all())  # then every plane carries the same
        if alike:
            by_plane = [flows.carried * (self.plane_parts // self.num_planes)]
        else:
            mine = np.take(usable, flows.pair, axis=1)  # [P, F]
            carried = flows.carried * (self.plane_parts // mine.sum(axis=0))
            by_plane = [carried * one for one in mine]
        slowest = Fraction(0)
        for name, end in (("card to leaf", flows.src), ("leaf to card", flows.dst)):
            ports = np.stack([_sum(end, one, (size,)) for one in by_plane], axis=1)
            tier = self.tiers[name]
            slowest = max(slowest, tier.spread(position, np.broadcast_to(ports, (size, self.num_planes))))
        for plane in range(self.num_planes) if self.has_spines else ():
            near = _Leaves(layer.up_leaf[position, plane], flows.src)
            far = _Leaves(layer.down_leaf[position, plane], flows.dst)
            amount = by_plane[0 if alike else plane] * (near.of_flows() != far.of_flows())
            if amount.any():
                slowest = max(slowest, self._spray_spines(amount, near, far))
        return slowest

    def _spray_spines(self, carried: Int64, near: "_Leaves", far: "_Leaves") -> Fraction:
        """Add flows between different leaves, [F] over `plane_parts`; they reach spines in `loads`."""
        reach = self.paths.reach
        slowest = Fraction(0)
        for name, end, other, near_class, far_class, parts in (
            ("leaf to spine", near, far, reach.up_class, reach.down_class, self.parts),
            ("spine to leaf", far, near, reach.down_class, reach.up_class, self.back_parts),
        ):  # fmt: skip
            tier, num_classes = self.tiers[name], parts.shape[1]
            rows, row = _number(end.leaf, len(near_class))
            slot = np.take(row, end.chosen)
            if num_classes > 1:
                slot = slot * num_classes + np.take(far_class[other.leaf], other.chosen)
            amount = _sum(slot, carried, (len(rows), num_classes)).astype(tier.total.dtype, copy=False)
            self.amount[name][rows] += amount
            slowest = max(slowest, tier.peak(rows, _spread_classes(amount, parts, near_class[rows])))
        return slowest


class _Leaves(NamedTuple):
    """Leaves at one end of flows: those of ranks, and the rank of each flow [F]."""

    leaf: IntArray
    chosen: Int64

    def of_flows(self) -> IntArray:
        """Return the leaf of each flow, [F]."""
        return np.take(self.leaf, self.chosen)


def _spread_classes(amount: Wide, parts: Int64, own: Int64) -> Wide:
    """Spread [leaves, far classes] over spines by the parts of each pair of classes: [leaves, C]."""
    if parts.shape[1] == 1:
        return np.asarray(amount * parts[own, 0])
    return np.asarray(sum(amount[:, one, None] * parts[own, one] for one in range(parts.shape[1])))


class _Tier:
    """Totals of one kind of link, e.g. from cards to leaves.

    Args:
      topology: for rates.
      table: the links, [rows, columns, M].
      parts: what spray divides by before it comes to parallel links.
      total: bytes of all groups together.
      whole: nothing is divided.
    """

    def __init__(self, topology: Topology, table: Attachment, parts: int, total: int, *, whole: bool) -> None:
        """Start from nothing."""
        self.table, self.width = table, table.links.shape[2]
        counts = np.flatnonzero(np.bincount(table.count.reshape(-1)))
        counts = counts[counts > 0]
        self.same_count = int(counts[0]) if len(counts) == 1 else 0
        self.full = self.same_count == self.width and bool((table.links >= 0).all())
        self.parallel = 1 if whole else math.lcm(*(int(n) for n in counts))
        self.denominator = parts * self.parallel
        present = np.flatnonzero(table.links >= 0)
        link_class = topology.link_class[table.links.reshape(-1)[present]]
        by_class = np.array([one.bandwidth_bytes_per_s for one in topology.classes], np.int64)
        self.rates = sorted({int(by_class[one]) for one in np.flatnonzero(np.bincount(link_class))})
        self._rate = np.zeros(table.links.shape if len(self.rates) > 1 else 0, np.int64)
        if len(self.rates) > 1:
            self._rate.reshape(-1)[present] = by_class[link_class]
        wide = total * self.denominator >= SAFE_INT64
        # Whole flows are summed by bincount, and below 2^53 its floats are exact (`bound_groups` checks).
        exact = np.float64 if whole else np.int64
        self.total: npt.NDArray[Any] = np.zeros(table.links.shape, object if wide else exact)

    def counts(self, rows: IntArray, columns: IntArray | int) -> IntArray | int:
        """Count the parallel links of cells, one number when all cells have the same."""
        return self.same_count or self.table.count[rows, columns]

    def spread(self, rows: IntArray, carried: Wide) -> Fraction:
        """Add what cells [len(rows), columns] carry, equally over their parallel links."""
        if self.full:
            return self.add(rows, np.repeat(carried[:, :, None], self.width, axis=2))
        return self.add(rows, self._shares(rows, carried))

    def _shares(self, rows: IntArray, carried: Wide) -> Wide:
        """Share what cells carry equally over their parallel links."""
        share = self.parallel // np.maximum(self.table.count[rows], 1)
        return np.asarray((carried * share)[:, :, None] * (self.table.links[rows] >= 0))

    def add(self, rows: IntArray, loads: Wide) -> Fraction:
        """Add loads [len(rows), columns, M]; return the seconds of the slowest of them."""
        self.total[rows] += loads
        return self._slowest(rows, loads)

    def peak(self, rows: IntArray, carried: Wide) -> Fraction:
        """Return what `spread` would, and add nothing."""
        if self.full and len(self.rates) == 1:
            return Fraction(int(carried.max(initial=0)), self.denominator * self.rates[0])
        return self._slowest(rows, self._shares(rows, carried))

    def _slowest(self, rows: IntArray, loads: Wide) -> Fraction:
        if not self.rates:  # every link of the tier is gone, so nothing may cross it
            return Fraction(0)
        if len(self.rates) == 1:
            return Fraction(int(loads.max(initial=0)), self.denominator * self.rates[0])
        of = self._rate[rows]
        most = [(int(loads[of == rate].max(initial=0)), rate) for rate in self.rates]
        return max(Fraction(load, self.denominator * rate) for load, rate in most)

    def load(self) -> Load:
        """List the links with bytes."""
        used = self.total > 0
        carried = self.total[used]
        carried = carried.astype(np.int64) if carried.dtype == np.float64 else carried
        return Load(self.table.links[used], carried, np.array([self.denominator], np.int64))


class _Hash:
    """The flow hash of `topology.paths.hash_chooser` with key 0: splitmix64 over salt, source, destination.

    Args:
      seed: of the hash.
      npus: [G] NPU of each rank.
      flows: F flows between them.
    """

    def __init__(self, seed: int, npus: Int64, flows: Flows) -> None:
        """Keep the words to mix."""
        self.seed, self.words = seed, npus.astype(np.uint64)
        self.src, self.dst_words = flows.src, self.words[flows.dst]

    def __call__(self, salt: int, choices: IntArray | int) -> Int64 | int:
        """Choose a number below `choices` for each flow, [F]; 0 when there is no choice."""
        if isinstance(choices, int) and choices == 1:
            return 0
        start = np.uint64((self.seed * _GOLDEN + salt) % 2**64)
        state = np.take(_mix(self.words ^ start), self.src)
        state ^= self.dst_words
        _mix(_mix(state))  # the second time for the key, which is 0
        if isinstance(choices, int) and choices & (choices - 1) == 0:
            state &= np.uint64(choices - 1)
        else:
            # No choice at all is that of a pair under one leaf, whose result nobody uses.
            state %= np.maximum(choices, 1).astype(np.uint64)
        return state.view(np.int64)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64 bits in place (splitmix64: Steele, Lea, Flood 2014)."""
    state += np.uint64(_GOLDEN)
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= np.uint64(0x94D049BB133111EB)
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state


def _sum(slot: Int64, carried: Int64, shape: tuple[int, ...]) -> Int64:
    """Sum integers per slot, through the floats of bincount where those are exact."""
    if int(carried.sum()) < EXACT_FLOAT:
        total = np.bincount(slot, weights=carried, minlength=math.prod(shape)).astype(np.int64)
    else:
        total = np.zeros(math.prod(shape), np.int64)
        np.add.at(total, slot, carried)
    return total.reshape(shape)


def _sum_floats(slot: Int64, carried: Int64, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Sum integers per slot that are below 2^53 in all."""
    total = np.bincount(slot, weights=carried, minlength=math.prod(shape))
    return np.asarray(total.reshape(shape), np.float64)


def _slot(row: Int64, columns: int, column: IntArray | int, width: int, parallel: IntArray | int) -> Int64:
    """Find the place of links in a table [rows, columns, width]."""
    slot: Int64 = row if columns == 1 else row * columns + column
    return slot if width == 1 else slot * width + parallel


def _number(values: IntArray, upper: int) -> tuple[Int64, Int64]:
    """Give numbers to the values in 0..upper-1 that occur: (those values, the number of each entry)."""
    seen = np.zeros(upper, np.int64)
    seen[values] = 1
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]
