"""Sprayed flows on bundles: links that every flow uses alike become one resource before anything is listed.

Spray splits a flow equally over the planes that join its ends and, between two leaves, over the spines
both see. Which planes and how many depends only on the leaves of both ends, and which spines only on the
spine sets of both leaves. So the planes of a card that are open towards the same leaves are one bundle,
and so are the spines of a leaf that are open towards the same leaves; a healthy fabric has one bundle per
card and direction, and one per leaf, plane and direction. Flows are listed on bundles, never on spines.

Dimension legend: F flows, n NPUs of the router, g groups of NPUs with the same leaves, P planes, C spines,
U and D classes of leaves by the spines they send to and receive from, E entries.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.flow.problem import Floats
from topology.fabric import Attachment, Int64, group_rows
from topology.graph import IntArray
from topology.paths import LayerPaths, usable_planes
from topology.routes import Router

Bools = npt.NDArray[np.bool_]
Shaped = npt.NDArray[Any]


class Use(NamedTuple):
    """Flows on resources: [E] flow, resource key, share, and where on the path it lies."""

    flow: Int64
    key: Int64
    share: Floats
    hop: int


class Behind(NamedTuple):
    """Links behind resources: [M] resource key, link, and bytes over it per byte over the resource."""

    key: Int64
    link: Int64
    share: Floats


HOP_SEND, HOP_UP, HOP_TO_SPINE, HOP_FROM_SPINE, HOP_DOWN, HOP_RECEIVE = range(6)


def spray_uses(router: Router, src: Int64, dst: Int64) -> tuple[list[Use], list[Behind]]:
    """List sprayed flows on bundles of links.

    Args:
      router: of the topology.
      src: [F] position of each source among the router's NPUs.
      dst: [F] likewise of each destination.

    Raises:
      TopologyError: a pair has no path.
    """
    uses: list[Use] = []
    behind: list[Behind] = []
    pending = np.flatnonzero(src != dst)
    next_key = 0
    for paths in router.layers:
        joined = paths.joins(src[pending], dst[pending])
        flows, pending = pending[joined], pending[~joined]
        layer = _Layer(paths, flows, src[flows], dst[flows], next_key)
        uses += layer.uses
        behind += layer.behind
        next_key = layer.next_key
    if len(pending):
        raise router.no_path(int(src[pending[0]]), int(dst[pending[0]]))
    return uses, behind


class _Layer:
    """Uses of one netlayer; the constructor does the work.

    Resource keys are blocks of rows x columns: direct pairs, up and down ports (card x plane), trunks
    to and from spines (leaf x spine); a bundle has the key of its first column.
    """

    def __init__(self, paths: LayerPaths, flows: Int64, src: Int64, dst: Int64, first_key: int) -> None:
        """List direct links, ports and trunks."""
        self.paths, self.next_key = paths, first_key
        self.uses: list[Use] = []
        self.behind: list[Behind] = []
        row = paths.layer.find_direct(src, dst)
        found = row >= 0
        self._direct(flows[found], row[found])
        if not found.all():
            self._switched(flows[~found], src[~found], dst[~found])

    def _direct(self, flows: Int64, row: Int64) -> None:
        table = self.paths.layer.direct
        first = self._block(table, np.zeros((len(table.count), 1), np.int64))
        self.uses.append(Use(flows, first + row, np.ones(len(flows)), HOP_UP))

    def _switched(self, flows: Int64, src: Int64, dst: Int64) -> None:
        layer = self.paths.layer
        npus, place = np.unique(np.concatenate([src, dst]), return_inverse=True)
        leaves = np.concatenate([layer.up_leaf[npus], layer.down_leaf[npus]], axis=1)
        group, first = group_rows(leaves)
        up_leaf, down_leaf = layer.up_leaf[npus[first]], layer.down_leaf[npus[first]]
        usable = usable_planes(layer, self.paths.reach, up_leaf[:, None], down_leaf[None])  # [g, g, P]
        num_planes = usable.sum(axis=2)
        ends = group[place.reshape(2, -1)]  # [2, F] groups of sources and destinations
        share = 1.0 / num_planes[ends[0], ends[1]]
        of_npu = np.zeros(layer.num_npus, np.int64)
        of_npu[npus] = group
        for hop, table, near, far, npu in (
            (HOP_UP, layer.up, ends[0], ends[1], src),
            (HOP_DOWN, layer.down, ends[1], ends[0], dst),
        ):
            open_to = usable if hop == HOP_UP else usable.transpose(1, 0, 2)  # [near, far, P]
            bundle = _alike_columns(open_to)  # [g, P] first plane of the bundle
            key = self._block(table, bundle[of_npu])
            is_first = bundle == np.arange(bundle.shape[1])
            flow, plane = np.nonzero(open_to[near, far] & is_first[near])
            self.uses.append(Use(flows[flow], key + npu[flow] * bundle.shape[1] + plane, share[flow], hop))
        crosses = usable & (up_leaf[:, None] != down_leaf[None])
        flow, plane = np.nonzero(crosses[ends[0], ends[1]])
        if len(flow):
            pairs = up_leaf[ends[0][flow], plane], down_leaf[ends[1][flow], plane]
            self._trunks(flows[flow], share[flow], *pairs)

    def _trunks(self, flows: Int64, share: Floats, leaf_src: IntArray, leaf_dst: IntArray) -> None:
        """List what crosses spines: [E] flows in a plane, their part there, and both leaves."""
        layer, reach = self.paths.layer, self.paths.reach
        sends, receives = layer.to_spine.count > 0, layer.from_spine.count > 0
        up_sets, down_sets = _one_of_each(sends, reach.up_class), _one_of_each(receives, reach.down_class)
        common = up_sets[:, None] & down_sets[None]  # [U, D, C]
        up, down = reach.up_class[leaf_src], reach.down_class[leaf_dst]
        part = share / common.sum(axis=2)[up, down]
        for hop, table, leaf, near, far, open_to, classes in (
            (HOP_TO_SPINE, layer.to_spine, leaf_src, up, down, common, reach.up_class),
            (HOP_FROM_SPINE, layer.from_spine, leaf_dst, down, up, common.transpose(1, 0, 2),
             reach.down_class),
        ):  # fmt: skip
            bundle = _alike_columns(open_to)  # [near class, C]
            key = self._block(table, bundle[classes])
            firsts = _padded(open_to & (bundle == np.arange(bundle.shape[1]))[:, None])
            columns = firsts[near, far]  # [E, widest]
            entry, which = np.nonzero(columns >= 0)
            cell = leaf[entry].astype(np.int64) * bundle.shape[1] + columns[entry, which]
            self.uses.append(Use(flows[entry], key + cell, part[entry], hop))

    def _block(self, table: Attachment, bundle: Shaped) -> int:
        """Claim keys for rows x columns and put the links of each cell behind its bundle's key."""
        first = self.next_key
        rows, columns = table.count.shape
        self.next_key += rows * columns
        row, column, parallel = np.nonzero(table.links >= 0)
        key = first + row * columns + bundle[row, column]
        link = table.links[row, column, parallel].astype(np.int64)
        self.behind.append(Behind(key, link, 1.0 / table.count[row, column]))
        return first


def _alike_columns(open_to: Bools) -> Shaped:
    """Group the columns of each row of [near, far, columns] that are open to the same far ends.

    Returns:
      [near, columns] int64, the first column of each column's group.
    """
    near, _, columns = open_to.shape
    packed = np.packbits(open_to, axis=1).transpose(0, 2, 1).reshape(near * columns, -1)
    row = np.repeat(np.arange(near), columns)
    group, first = group_rows(np.column_stack([row, packed]))
    return np.asarray(first[group].reshape(near, columns) % columns, np.int64)


def _one_of_each(sets: Bools, classes: Int64) -> Bools:
    """Return the spine set of each class of leaves."""
    _, first = np.unique(classes, return_index=True)
    return np.asarray(sets[first])


def _padded(mask: Bools) -> Shaped:
    """List the true columns of [a, b, columns] as [a, b, widest], -1 pads."""
    widest = max(1, int(mask.sum(axis=2).max(initial=0)))
    order = np.argsort(~mask, axis=2, kind="stable")[:, :, :widest]
    return np.where(np.take_along_axis(mask, order, axis=2), order, -1)
