"""One group over the whole cluster, its traffic given as a law: link loads without listing pairs.

A law says bytes(src, dst) = scale * out[src] * into[dst], own bytes excluded, so every link's load is a
sum over ports, domains and leaf pairs: O(ports + domains^2) instead of O(ranks^2). A domain is a set of
ranks with the same leaves. Integers all the way (numbers too wide for 63 bits become Python's), so the
answer equals `topology.link_bound` of the matrix that nobody writes down.

Dimension legend: R ranks, H domains of the layers already tried, G domains of this layer, P planes.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from epsim.errors import InputError
from epsim.flow.linksums import (
    EXACT_FLOAT,
    MAX_CELLS,
    SAFE_INT64,
    TIERS,
    Bools,
    Int64,
    Load,
    Projection,
    Wide,
    exact_product,
    summarise,
)
from topology import Router, Topology, TopologyError
from topology.fabric import LayerIndex, group_rows
from topology.graph import IntArray
from topology.paths import Entries, LayerPaths, usable_planes


class ProductLaw:
    """Traffic that needs two numbers per rank: bytes(src, dst) = scale * out[src] * into[dst], src != dst.

    Args:
      out: [R] integers, not negative, sum below 2^53.
      into: [R] likewise.
      scale: positive; multiplies every product.

    Raises:
      InputError: a vector is not of that kind, lengths differ, or the scale is not positive.
    """

    def __init__(self, out: IntArray, into: IntArray, scale: Fraction | int = 1) -> None:
        """Check, and move common factors into the scale."""
        if scale <= 0:
            raise InputError("scale", scale, "must be positive")
        self.out, factor_out = _reduced("out", out)
        self.into, factor_in = _reduced("into", into)
        if len(self.out) != len(self.into):
            raise InputError("length of into", len(self.into), f"must equal that of out, {len(self.out)}")
        self.scale = Fraction(scale) * factor_out * factor_in

    @property
    def num_ranks(self) -> int:
        """Count the ranks, R."""
        return len(self.out)


def uniform_law(num_ranks: int, bytes_per_pair: int) -> ProductLaw:
    """Let each of R ranks send the same bytes to each other rank."""
    if num_ranks < 1:
        raise InputError("num_ranks", num_ranks, "must be at least 1")
    ones = np.ones(num_ranks, np.int64)
    return ProductLaw(ones, ones, bytes_per_pair)


def balanced_law(out_bytes: IntArray, in_bytes: IntArray) -> ProductLaw:
    """Let rank r offer out_bytes[r] and be offered in_bytes[r], its own part staying on the card.

    Args:
      out_bytes: [R] integers, own bytes included.
      in_bytes: [R] integers with the same sum.

    Raises:
      InputError: as `ProductLaw`, or the sums differ or are 0.
    """
    total = int(np.sum(out_bytes))
    if total != int(np.sum(in_bytes)) or total <= 0:
        rule = f"must equal the sum of in_bytes, {int(np.sum(in_bytes))}, and be positive"
        raise InputError("sum of out_bytes", total, rule)
    return ProductLaw(out_bytes, in_bytes, Fraction(1, total))


def project_law(topology: Topology, law: ProductLaw, *, npus: IntArray | None = None) -> Projection:
    """Find the busiest link of a sprayed law; the netlayer of a pair is chosen as `Router` does.

    Args:
      topology: the graph; its netlayers in use join cards through switches.
      law: R ranks.
      npus: [R] the NPU of each rank; rank r sits on NPU r when absent.

    Raises:
      InputError: direct links (a mesh), or so many domains that a table of them would not fit.
      TopologyError: ranks and NPUs do not fit each other, or a pair with bytes has no path.
    """
    router = law_router(topology, law.num_ranks, npus)
    rest = _Rest.everything(law)
    tiers: dict[str, list[Load]] = {}
    for paths in router.layers:
        found, rest = _project_layer(paths, law, rest, last=paths is router.layers[-1])
        tiers |= {f"netlayer {paths.layer.netlayer}, {tier}": loads for tier, loads in found.items()}
    _refuse_unreached(router, law, rest)
    return summarise(topology, tiers, law.scale)


def law_router(topology: Topology, num_ranks: int, npus: IntArray | None) -> Router:
    """Index a topology for R ranks; rank r sits on NPU r when `npus` is absent.

    Raises:
      InputError: a layer in use has direct links.
      TopologyError: more ranks than NPUs, or not one NPU per rank.
    """
    if npus is None and num_ranks > topology.num_npus:
        raise TopologyError("number of ranks", num_ranks, f"{topology.name} has {topology.num_npus} NPUs")
    everyone = npus is None and num_ranks == topology.num_npus
    chosen = None if everyone else np.arange(num_ranks) if npus is None else npus
    router = Router(topology, chosen)
    if len(router.npus) != num_ranks:
        raise TopologyError("number of npus", len(router.npus), f"must be one per rank, {num_ranks}")
    refuse_direct(router)
    return router


def refuse_direct(router: Router) -> None:
    """Refuse layers that join cards without a switch: such links are pairs, and no sum over ports."""
    for paths in router.layers:
        if len(paths.layer.direct_key):
            rule = "has direct links between cards; give the byte matrix to topology.link_bound"
            raise InputError("netlayer", paths.layer.netlayer, rule)


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """What no netlayer has taken yet.

    domain [R] and open [H, H]: the pairs of domains without a layer; own [R]: (r, r) is among them.
    Bytes of the pairs that are left when there are no layers any more: pair [G, G] of group [R].
    """

    domain: Int64
    open: Bools
    own: Bools
    group: Int64 | None = None
    pair: Bools | None = None

    @classmethod
    def everything(cls, law: ProductLaw) -> "_Rest":
        ranks = law.num_ranks
        return cls(domain=np.zeros(ranks, np.int64), open=np.ones((1, 1), bool), own=np.ones(ranks, bool))


class _Domains:
    """The pairs of one netlayer's domains, and how its planes share their bytes.

    Args:
      paths: the netlayer.

    Attributes:
      group: [R] domain of each rank.
      up_leaf, down_leaf: [G, P] leaves of each domain, -1 = none.
      usable: [G, G, P] planes that join a pair.
      joined: [G, G] whether any does.
      common: a number that every count of planes divides.
      share: [G, G] common / planes that join the pair, 0 when none does.
    """

    def __init__(self, paths: LayerPaths) -> None:
        """Collapse ranks with equal leaves."""
        layer = paths.layer
        self.paths = paths
        self.group, first = group_rows(np.concatenate([layer.up_leaf, layer.down_leaf], axis=1))
        limit_cells(len(first) ** 2 * len(layer.planes), len(first))
        self.up_leaf, self.down_leaf = layer.up_leaf[first], layer.down_leaf[first]
        self.usable = usable_planes(layer, paths.reach, self.up_leaf[:, None], self.down_leaf[None])
        num_planes = self.usable.sum(axis=2)
        self.joined = num_planes > 0
        counts = np.flatnonzero(np.bincount(num_planes.reshape(-1)))
        self.common = math.lcm(*(int(n) for n in counts if n))
        self.share = np.where(self.joined, self.common // np.maximum(num_planes, 1), 0)


def _project_layer(
    paths: LayerPaths, law: ProductLaw, rest: _Rest, *, last: bool
) -> tuple[dict[str, list[Load]], _Rest]:
    """Take the pairs that this layer joins: (loads per tier, the pairs it leaves)."""
    domains = _Domains(paths)
    shape = len(rest.open), len(domains.joined)
    cell = rest.domain * shape[1] + domains.group
    sent, received = (
        np.bincount(cell, weights=side, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)
        for side in (law.out, law.into)
    )  # [H, G]
    reachable = exact_product(rest.open.astype(np.int64), received)  # [H, G]: `into` of the pairs left
    arriving = exact_product(rest.open.T.astype(np.int64), sent)
    loads: dict[str, list[Load]] = {tier: [] for tier in TIERS}
    weight, far = domains.share, (reachable, arriving)
    for plane in range(len(paths.layer.planes)):
        usable = domains.usable[:, :, plane]
        if plane == 0 or not np.array_equal(usable, domains.usable[:, :, plane - 1]):
            weight = domains.share * usable
            far = exact_product(reachable, weight.T), exact_product(arriving, weight)
        own = rest.own * weight.diagonal()[domains.group]
        for tier, table, mine, theirs, others in (
            ("card to leaf", paths.layer.up, law.out, law.into, far[0]),
            ("leaf to card", paths.layer.down, law.into, law.out, far[1]),
        ):
            carried = _times(mine, others[rest.domain, domains.group] - theirs * own)
            links, count = table.links[:, plane], table.count[:, plane]
            loads[tier].append(_port_load(links, count, carried, domains.common))
    crossing = paths.layer.to_spine.count.size > 0
    between = _between(law, rest, domains.group, sent, reachable) if last or crossing else np.zeros(0)
    if crossing:
        loads |= _cross_spines(domains, between)
    own = rest.own & ~domains.joined.diagonal()[domains.group]
    if last:
        left = np.asarray((between > 0) & ~domains.joined)
        return loads, replace(rest, own=own, group=domains.group, pair=left)
    return loads, _narrow(rest, cell, ~domains.joined, own)


def limit_cells(cells: int, num_domains: int) -> None:
    """Refuse a table over pairs of domains that would not fit."""
    if cells > MAX_CELLS:
        rule = f"sets of ranks with equal leaves; their pairs times planes must stay at most {MAX_CELLS}"
        raise InputError("number of domains", num_domains, rule)


def _times(a: Wide, b: Wide) -> Wide:
    """Multiply element by element, in Python's integers where 63 bits might not hold a product."""
    wide = int(a.max(initial=0)) * int(b.max(initial=0)) >= SAFE_INT64
    return a.astype(object) * b if wide else a * b


def _between(law: ProductLaw, rest: _Rest, group: Int64, sent: Wide, reachable: Wide) -> Wide:
    """Sum the pairs left between domains of this layer, own bytes excluded: [G, G]."""
    between = exact_product(sent.T, reachable)
    own = np.flatnonzero(rest.own)
    products = _times(law.out[own], law.into[own])
    if len(own) * int(products.max(initial=0)) >= SAFE_INT64:
        products, between = products.astype(object), between.astype(object)
    mine = np.zeros(len(between), products.dtype)
    np.add.at(mine, group[own], products)
    at = np.arange(len(between))
    between[at, at] -= mine
    return between


def _cross_spines(domains: _Domains, between: Wide) -> dict[str, list[Load]]:
    """Load leaf-spine links with the bytes between domains, [G, G]."""
    loads: dict[str, list[Load]] = {"leaf to spine": [], "spine to leaf": []}
    for plane in range(domains.usable.shape[2]):
        up_leaf, down_leaf = domains.up_leaf[:, plane], domains.down_leaf[:, plane]
        crosses = domains.usable[:, :, plane] & (up_leaf[:, None] != down_leaf)
        if crosses.any():
            carried = _times(between, domains.share * crosses)
            rising, falling = spine_loads(domains.paths, up_leaf, down_leaf, carried, domains.common)
            loads["leaf to spine"].append(rising)
            loads["spine to leaf"].append(falling)
    return loads


def _narrow(rest: _Rest, cell: Int64, unjoined: Bools, own: Bools) -> _Rest:
    """Refine domains by the layer just tried, and keep the pairs that it does not join."""
    num_groups = len(unjoined)
    distinct, domain = np.unique(cell, return_inverse=True)
    limit_cells(len(distinct) ** 2, len(distinct))
    before, now = distinct // num_groups, distinct % num_groups
    still = rest.open[before[:, None], before] & unjoined[now[:, None], now]
    return _Rest(domain=domain.reshape(-1), open=still, own=own)


def _port_load(links: IntArray, count: IntArray, carried: Wide, common: int) -> Load:
    """Spread what each rank carries in a plane, [R], over its parallel links [R, M]."""
    rank, parallel = np.nonzero((links >= 0) & np.asarray(carried > 0)[:, None])
    parts = count[:1] if (count == count[0]).all() else count[rank]
    return Load(links[rank, parallel], carried[rank], common * parts.astype(np.int64))


def spine_loads(
    paths: LayerPaths, leaf_src: IntArray, leaf_dst: IntArray, carried: Wide, common: int
) -> tuple[Load, Load]:
    """Load leaf-spine links with carried / common bytes between leaves.

    What a leaf sends up depends on the far leaf only through the spines that leaf can be reached from,
    so far leaves of one class are summed first.

    Args:
      paths: the netlayer.
      leaf_src: [G] leaf of each row.
      leaf_dst: [G'] leaf of each column.
      carried: [G, G'] numerators, 0 where the leaves are one.
      common: their denominator.

    Returns:
      Loads of the links to and from spines.
    """
    row, column = np.nonzero(carried)
    leaves, amount = (leaf_src[row], leaf_dst[column]), carried[row, column]
    classes = paths.reach.down_class[leaves[1]], paths.reach.up_class[leaves[0]]
    return (
        _spine_side(paths.layer, paths, leaves, amount, common, side=0, far_class=classes[0]),
        _spine_side(paths.layer, paths, leaves, amount, common, side=1, far_class=classes[1]),
    )


def _spine_side(
    layer: LayerIndex, paths: LayerPaths, leaves: tuple[IntArray, IntArray], amount: Wide, common: int,
    *, side: int, far_class: Int64,
) -> Load:  # fmt: skip
    key = leaves[side] * np.int64(len(layer.leaf_vertex)) + far_class
    _, first, slot = np.unique(key, return_index=True, return_inverse=True)
    wide = len(amount) * int(amount.max(initial=0)) >= SAFE_INT64
    total = np.zeros(len(first), object if wide else np.int64)
    np.add.at(total, slot.reshape(-1), amount)
    entries: Entries = paths.spray_spines(leaves[0][first], leaves[1][first])[side]
    return Load(entries.link, total[entries.flow], common * np.asarray(entries.parts, np.int64))


def _refuse_unreached(router: Router, law: ProductLaw, rest: _Rest) -> None:
    """Name a pair with bytes that no layer joins."""
    if rest.pair is None or rest.group is None:
        return
    for src_group, dst_group in np.argwhere(rest.pair):
        senders = np.flatnonzero((rest.group == src_group) & (law.out > 0))
        receivers = np.flatnonzero((rest.group == dst_group) & (law.into > 0))
        for src in senders:
            open_to = rest.open[rest.domain[src], rest.domain[receivers]] & (receivers != src)
            if open_to.any():
                raise router.no_path(int(src), int(receivers[open_to.argmax()]))


def _reduced(field: str, vector: IntArray) -> tuple[Int64, int]:
    """Check a vector of a law; divide it by its greatest common divisor."""
    vector = np.asarray(vector)
    if vector.ndim != 1 or not len(vector) or not np.issubdtype(vector.dtype, np.integer):
        raise InputError(field, f"{vector.dtype} {vector.shape}", "must be one integer per rank")
    if vector.min() < 0:
        rank = int(vector.argmin())
        raise InputError(f"{field}[{rank}]", int(vector[rank]), "must not be negative")
    if float(vector.sum(dtype=np.float64)) >= EXACT_FLOAT:
        raise InputError(f"sum of {field}", float(vector.sum(dtype=np.float64)), "must stay below 2^53")
    divisor = int(np.gcd.reduce(vector)) or 1
    return vector.astype(np.int64) // divisor, divisor
