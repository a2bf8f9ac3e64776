"""One netlayer of a topology, indexed for path finding: who attaches where, and over which links.

Routes, the busiest-link bound, the checks and the summary all read this one index, so they cannot
disagree about what is reachable. It knows direct links (a mesh), one switch between two cards, and a
leaf, a spine and a leaf between them; NPUs never forward.

Dimension legend: n chosen NPUs, P planes of the layer, V leaves (a switch in a plane), C spines of a
plane (the most there are), M parallel links (the most there are; -1 pads).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.graph import IntArray, Topology

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """Links between things of one kind (rows) and the planes or spines they meet (columns).

    Args:
      links: [rows, columns, M] int32 link, -1 pads.
      count: [rows, columns] int32, how many parallel links there are.
    """

    links: Int32
    count: Int32


@dataclass(frozen=True, kw_only=True)
class LayerIndex:
    """One netlayer as seen from chosen NPUs.

    Args:
      netlayer: HCCL's index.
      planes: [P] plane numbers, ascending.
      up: links from each NPU into each plane, [n, P, M].
      down: links from each plane to each NPU, [n, P, M].
      up_leaf: [n, P] leaf (0..V-1) that `up` ends in, -1 = none.
      down_leaf: [n, P] leaf that `down` comes from, -1 = none.
      leaf_vertex: [V] switch vertex of each leaf.
      leaf_plane: [V] index into `planes`.
      to_spine: links from each leaf to each spine of its plane, [V, C, M].
      from_spine: links from each spine to each leaf, [V, C, M].
      direct_key: [D] int64 ascending, src * n + dst (chosen order) of pairs with a direct link.
      direct: their links, [D, 1, M].
      split: (chosen NPU, plane index) pairs cabled to two switches in one plane.
    """

    netlayer: int
    planes: Int64
    up: Attachment
    down: Attachment
    up_leaf: Int32
    down_leaf: Int32
    leaf_vertex: Int64
    leaf_plane: Int64
    to_spine: Attachment
    from_spine: Attachment
    direct_key: Int64
    direct: Attachment
    split: Int64

    @property
    def num_npus(self) -> int:
        """Count the chosen NPUs, n."""
        return len(self.up_leaf)

    def find_direct(self, src: IntArray, dst: IntArray) -> Int64:
        """Find the row of `direct` for each pair of chosen NPUs, -1 = no direct link."""
        if not len(self.direct_key):
            return np.full(len(src), -1, np.int64)
        key = src.astype(np.int64) * self.num_npus + dst
        row = np.minimum(np.searchsorted(self.direct_key, key), len(self.direct_key) - 1)
        return np.where(self.direct_key[row] == key, row, -1)


class SpineReach:
    """How many spines join two leaves; leaves with the same spines share a row of a small table.

    Args:
      layer: the index to read.

    Attributes:
      up_class: [V] class of each leaf by the spines it sends to.
      down_class: [V] class of each leaf by the spines it receives from.
    """

    def __init__(self, layer: LayerIndex) -> None:
        """Collapse leaves with equal spine sets."""
        up_sets, self.up_class = _distinct_rows(layer, layer.to_spine.count > 0)
        down_sets, self.down_class = _distinct_rows(layer, layer.from_spine.count > 0)
        # Counts up to 2^24 are exact in float32, and BLAS makes this product instant.
        common = up_sets.astype(np.float32) @ down_sets.astype(np.float32).T
        self._common = common.astype(np.int32)

    def count(self, leaf_src: IntArray, leaf_dst: IntArray) -> Int32:
        """Count the spines that take bytes from one leaf to the other; any equal shapes.

        Leaves of -1 give a meaningless entry that the caller masks.
        """
        if not self._common.size:
            return np.zeros(np.broadcast_shapes(leaf_src.shape, leaf_dst.shape), np.int32)
        return np.asarray(self._common[self.up_class[leaf_src], self.down_class[leaf_dst]], np.int32)


def _distinct_rows(layer: LayerIndex, sets: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Make each distinct (plane-local) spine set a class: (distinct sets, class of each leaf)."""
    if not sets.size:
        return sets[:0], np.zeros(len(sets), np.int64)
    packed = np.packbits(sets, axis=1)
    _, first, class_of = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return sets[first], class_of.reshape(-1)


def group_rows(rows: IntArray) -> tuple[Int64, Int64]:
    """Group equal rows of an integer matrix [n, k], k > 0.

    Returns:
      The group of each row [n], numbered in lexical order, and the first row of each group.
    """
    # Column by column lexsort: an order of magnitude faster than np.unique over rows.
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    starts = np.ones(len(rows), np.bool_)
    starts[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.empty(len(rows), np.int64)
    group[order] = np.cumsum(starts) - 1
    return group, order[starts]


def index_layer(topology: Topology, netlayer: int, npus: IntArray | None = None) -> LayerIndex:
    """Index one netlayer for the chosen NPUs (all when absent); `npus` must be distinct.

    Raises:
      TopologyError: the topology has no link on this netlayer.
    """
    links = np.flatnonzero(topology.link_netlayer == netlayer)
    if not len(links):
        rule = f"{topology.name} has links only on netlayers {list(topology.netlayers())}"
        raise TopologyError("netlayer", netlayer, rule)
    num_chosen = topology.num_npus if npus is None else len(npus)
    chosen = np.full(topology.num_vertices, -1, np.int32)
    chosen[np.arange(num_chosen) if npus is None else npus] = np.arange(num_chosen, dtype=np.int32)
    src, dst = topology.link_src[links], topology.link_dst[links]
    planes = np.flatnonzero(np.bincount(topology.link_plane[links]))
    plane = np.zeros(int(planes[-1]) + 1, np.int64)
    plane[planes] = np.arange(len(planes))
    plane = plane[topology.link_plane[links]]
    from_npu, to_npu = src < topology.num_npus, dst < topology.num_npus
    ups = np.flatnonzero(from_npu & ~to_npu & (chosen[src] >= 0))
    downs = np.flatnonzero(~from_npu & to_npu & (chosen[dst] >= 0))
    # A leaf is a (plane, switch) pair, so planes that wrongly share a switch still stay apart.
    up_leaf_key = plane[ups] * topology.num_vertices + dst[ups]
    down_leaf_key = plane[downs] * topology.num_vertices + src[downs]
    leaf_key, leaf_of = _number_keys(len(planes) * topology.num_vertices, up_leaf_key, down_leaf_key)
    up, up_leaf, up_split = _attach(
        chosen[src[ups]], plane[ups], links[ups], leaf_of[up_leaf_key],
        (num_chosen, len(planes)),
    )  # fmt: skip
    down, down_leaf, down_split = _attach(
        chosen[dst[downs]], plane[downs], links[downs], leaf_of[down_leaf_key],
        (num_chosen, len(planes)),
    )  # fmt: skip
    to_spine, from_spine = _spines(topology, links, src, dst, plane, leaf_key)
    direct_key, direct = _direct(chosen, links, src, dst, from_npu & to_npu, num_chosen)
    return LayerIndex(
        netlayer=netlayer, planes=planes, up=up, down=down, up_leaf=up_leaf, down_leaf=down_leaf,
        leaf_vertex=leaf_key % topology.num_vertices, leaf_plane=leaf_key // topology.num_vertices,
        to_spine=to_spine, from_spine=from_spine, direct_key=direct_key, direct=direct,
        split=np.unique(np.concatenate([up_split, down_split]), axis=0),
    )  # fmt: skip


def _number_keys(num_keys: int, *used: Int64) -> tuple[Int64, Int32]:
    """Give numbers to the keys in use; return those keys and the number of every possible key.

    A table beats a sort here: millions of links name a few thousand leaves.
    """
    number = np.zeros(num_keys, np.int32)
    for keys in used:
        number[keys] = 1
    present = np.flatnonzero(number)
    number[present] = np.arange(len(present), dtype=np.int32)
    return present, number


def _attach(
    npu: IntArray, plane: Int64, links: Int64, leaf: IntArray, shape: tuple[int, int]
) -> tuple[Attachment, Int32, Int64]:
    """Tabulate links by (chosen NPU, plane); also the leaf of each, and where there are two."""
    slot = npu * np.int64(shape[1]) + plane
    attachment = _tabulate(slot, links, shape)
    leaves = _tabulate(slot, leaf, shape).links
    first = leaves[:, :, 0]
    split = np.argwhere(((leaves != first[:, :, None]) & (leaves >= 0)).any(axis=2))
    return attachment, first, split


def _tabulate(slot: IntArray, values: IntArray, shape: tuple[int, int]) -> Attachment:
    """Spread values over a padded table: row-major slot -> its values in the given order."""
    num_slots = shape[0] * shape[1]
    count = np.bincount(slot, minlength=num_slots)
    widest = max(1, int(count.max(initial=0)))
    table = np.full((num_slots, widest), -1, np.int32)
    if widest == 1:
        table[slot, 0] = values
    else:
        order = np.argsort(slot, kind="stable")
        ordered, first = slot[order], np.cumsum(count) - count
        table[ordered, np.arange(len(ordered)) - first[ordered]] = values[order]
    return Attachment(links=table.reshape(*shape, widest), count=count.astype(np.int32).reshape(shape))


def _spines(
    topology: Topology, links: Int64, src: Int32, dst: Int32, plane: Int64, leaf_key: Int64
) -> tuple[Attachment, Attachment]:
    """Tabulate the links between leaves and the switches one or more tiers above them."""
    num_vertices = topology.num_vertices
    inner = np.flatnonzero((src >= topology.num_npus) & (dst >= topology.num_npus))
    if not len(inner) or not len(leaf_key):
        none = Attachment(
            links=np.zeros((len(leaf_key), 0, 1), np.int32), count=np.zeros((len(leaf_key), 0), np.int32)
        )
        return none, none
    src, dst, plane, links = src[inner], dst[inner], plane[inner], links[inner]
    tier = topology.switch_tier.astype(np.int16)
    rise = tier[dst - topology.num_npus] - tier[src - topology.num_npus]
    tables: list[tuple[Int64, Int64, Int64]] = []
    for low, high, wanted in ((src, dst, rise > 0), (dst, src, rise < 0)):
        low_key = plane * num_vertices + low
        leaf = np.minimum(np.searchsorted(leaf_key, low_key), len(leaf_key) - 1)
        keep = wanted & (leaf_key[leaf] == low_key)
        tables.append((leaf[keep], plane[keep] * num_vertices + high[keep], links[keep]))
    spine_key = np.unique(np.concatenate([tables[0][1], tables[1][1]]))
    # Spines count from 0 within their plane, which keeps the tables narrow when there are many planes.
    spine_plane = spine_key // num_vertices
    within = np.arange(len(spine_key)) - np.searchsorted(spine_plane, spine_plane)
    width = int(within.max(initial=-1)) + 1
    shape = (len(leaf_key), width)
    to_spine, from_spine = (
        _tabulate(leaf * width + within[np.searchsorted(spine_key, key)], chosen, shape)
        for leaf, key, chosen in tables
    )
    return to_spine, from_spine


def _direct(
    chosen: Int32, links: Int64, src: Int32, dst: Int32, is_direct: npt.NDArray[np.bool_], num_chosen: int
) -> tuple[Int64, Attachment]:
    """Tabulate the links that join two chosen NPUs without a switch."""
    keep = np.flatnonzero(is_direct)
    keep = keep[(chosen[src[keep]] >= 0) & (chosen[dst[keep]] >= 0)]
    key = chosen[src[keep]].astype(np.int64) * num_chosen + chosen[dst[keep]]
    distinct, slot = np.unique(key, return_inverse=True)
    return distinct, _tabulate(slot.reshape(-1), links[keep], (len(distinct), 1))
