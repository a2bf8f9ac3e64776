"""The busiest link: no schedule of a byte matrix ends before it has passed its bytes.

The bound is exact integer arithmetic: a link's bytes are a sum of flow bytes / parts, kept over one
common denominator, and the time is ceil(bytes * 10^12 / rate) picoseconds, once. Under spray the
matrix is projected to row, column and leaf sums and no flow is listed; property tests show that the
projection equals the general incidence.

Dimension legend: R ranks, G groups of ranks with the same leaves, P planes, L links.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.fabric import Int64, group_rows
from topology.graph import IntArray, Topology
from topology.paths import LayerPaths, usable_planes
from topology.routes import Policy, Router, Routes
from topology.units import PS_PER_SECOND, format_size, format_time

_EXACT_FLOAT = 2**53
_SAFE_INT64 = 2**62


@dataclass(frozen=True, kw_only=True)
class LinkBound:
    """The lower bound on the time of a byte matrix, and what sets it.

    Args:
      time_ps: integer picoseconds; 0 when nothing crosses a link.
      link_idx: the binding link, -1 when there is none; the lowest index among equals.
      link_bytes: exact bytes over the binding link.
      used_links: [n] int64 ascending, the links that carry bytes.
      used_bytes: [n] float64, what each carries.
    """

    time_ps: int
    link_idx: int
    link_bytes: Fraction
    used_links: Int64
    used_bytes: npt.NDArray[np.float64]

    def bytes_per_link(self, num_links: int) -> npt.NDArray[np.float64]:
        """Spread the loads over all links of a topology, [L] float64."""
        dense = np.zeros(num_links)
        dense[self.used_links] = self.used_bytes
        return dense

    def describe(self, topology: Topology) -> str:
        """Name the binding link in one line."""
        if self.link_idx < 0:
            return "no bytes cross a link"
        carried = format_size(float(self.link_bytes))
        return f"{format_time(self.time_ps)}: {topology.link(self.link_idx)} carries {carried}"


def link_bound(
    topology: Topology,
    bytes_matrix: IntArray,
    *,
    npus: IntArray | None = None,
    policy: Policy = "spray",
    seed: int = 0,
    use_mesh: bool = False,
) -> LinkBound:
    """Find the busiest link of a byte matrix.

    Args:
      topology: the graph.
      bytes_matrix: [R, R] integers, [src rank, dst rank]; the diagonal stays on the card.
      npus: [R] the NPU of each rank; rank r sits on NPU r when absent.
      policy: see `topology.routes`.
      seed: of the flow hash.
      use_mesh: see `topology.routes.Router`.

    Raises:
      TopologyError: the matrix is not square, not integer or has a negative entry; more ranks than
        NPUs; or a pair with bytes has no path.
    """
    matrix = _checked(topology, bytes_matrix)
    router = Router(topology, np.arange(len(matrix)) if npus is None else npus, use_mesh=use_mesh)
    if len(router.npus) != len(matrix):
        raise TopologyError("number of npus", len(router.npus), f"must be one per rank, {len(matrix)}")
    if policy == "spray":
        return project_spray(router, matrix)
    src, dst = np.nonzero(matrix)
    routes = router.find(router.npus[src], router.npus[dst], policy, seed=seed)
    return routes_bound(topology, routes, matrix[src, dst])


def routes_bound(topology: Topology, routes: Routes, flow_bytes: IntArray) -> LinkBound:
    """Find the busiest link of flows whose routes are known.

    Args:
      topology: the graph the routes were found in.
      routes: F flows.
      flow_bytes: [F] integers.
    """
    carried = np.asarray(flow_bytes).astype(np.int64)[routes.flow_idx]
    return _busiest(topology, [(routes.link_idx, carried, routes.parts)])


def project_spray(router: Router, matrix: Int64) -> LinkBound:
    """Bound a sprayed matrix by sums over ports and leaf pairs instead of flows.

    Args:
      router: made for the ranks' NPUs, in rank order.
      matrix: [R, R] int64, not negative.
    """
    left = matrix.copy()
    np.fill_diagonal(left, 0)
    loads: list[Load] = []
    for paths in router.layers:
        if left.any():
            loads += _project_direct(paths, left)
            loads += _project_planes(paths, left)
    src, dst = np.nonzero(left)
    if len(src):
        raise router.no_path(int(src[0]), int(dst[0]))
    return _busiest(router.topology, loads)


Load = tuple[IntArray, Int64, Int64]
"""Links, bytes and parts, [E] each: a link carries the sum of bytes / parts over its entries."""


def _checked(topology: Topology, bytes_matrix: IntArray) -> Int64:
    matrix = np.asarray(bytes_matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise TopologyError("shape of the byte matrix", matrix.shape, "must be [ranks, ranks]")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise TopologyError("type of the byte matrix", str(matrix.dtype), "must be integers: whole bytes")
    if len(matrix) > topology.num_npus:
        raise TopologyError("number of ranks", len(matrix), f"{topology.name} has {topology.num_npus} NPUs")
    if matrix.size and matrix.min() < 0:
        src, dst = (int(n) for n in np.argwhere(matrix < 0)[0])
        raise TopologyError(f"bytes[{src}, {dst}]", int(matrix[src, dst]), "must not be negative")
    total = float(matrix.sum(dtype=np.float64))
    if total >= _SAFE_INT64:
        raise TopologyError("total of the byte matrix", total, "must stay below 2^62 bytes")
    return matrix.astype(np.int64, copy=False)


def _project_direct(paths: LayerPaths, left: Int64) -> list[Load]:
    """Take the pairs with a direct link out of `left`."""
    if not len(paths.layer.direct_key):
        return []
    src, dst = np.divmod(paths.layer.direct_key, paths.layer.num_npus)
    carried = left[src, dst]
    left[src, dst] = 0
    links, count = paths.layer.direct.links[:, 0], paths.layer.direct.count[:, 0]
    row, parallel = np.nonzero(links >= 0)
    return [(links[row, parallel], carried[row], count[row].astype(np.int64))]


def _project_planes(paths: LayerPaths, left: Int64) -> list[Load]:
    """Take the pairs that switches join out of `left`, as sums over groups of ranks."""
    layer = paths.layer
    group, first = group_rows(np.concatenate([layer.up_leaf, layer.down_leaf], axis=1))
    up_leaf, down_leaf = layer.up_leaf[first][:, None, :], layer.down_leaf[first][None, :, :]
    usable = usable_planes(layer, paths.reach, up_leaf, down_leaf)  # [G, G, P]
    num_planes = usable.sum(axis=2)  # [G, G]
    if not num_planes.any():
        return []
    member = (group[:, None] == np.arange(len(first))).astype(np.int64)  # [R, G]
    sent = _product(left, member)  # [R, G] bytes from a rank to a group
    received = _product(left.T, member)  # [R, G] bytes to a rank from a group
    between = _product(member.T, sent)  # [G, G]
    crosses = usable & (up_leaf != down_leaf)
    loads: list[Load] = []
    for parts in np.unique(num_planes[num_planes > 0]):
        allowed = usable & (num_planes == parts)[:, :, None]
        loads.append(_port_load(layer.up.links, layer.up.count, sent, allowed[group], parts))
        back = allowed.transpose(1, 0, 2)[group]
        loads.append(_port_load(layer.down.links, layer.down.count, received, back, parts))
        src, dst, plane = np.nonzero(crosses & allowed & (between > 0)[:, :, None])
        leaves = layer.up_leaf[first[src], plane], layer.down_leaf[first[dst], plane]
        loads += _spine_loads(paths, *leaves, between[src, dst], parts)
    left[(num_planes > 0)[group[:, None], group[None, :]]] = 0
    return loads


def _product(a: Int64, b: Int64) -> Int64:
    """Multiply integer matrices exactly, through BLAS where floats are exact."""
    if (
        int(a.sum()) * int(b.max(initial=0)) < _EXACT_FLOAT
        and int(b.sum()) * int(a.max(initial=0)) < _EXACT_FLOAT
    ):
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return a @ b


def _port_load(
    links: IntArray, count: IntArray, by_group: Int64, allowed: npt.NDArray[np.bool_], parts: int
) -> Load:
    """Load card ports: by_group [R, G] bytes, allowed [R, G, P] planes they use, over parts planes."""
    # One plane at a time: [R, G] integers are the largest temporary.
    planes = [(by_group * allowed[:, :, plane]).sum(axis=1) for plane in range(allowed.shape[2])]
    carried = np.stack(planes, axis=1)  # [R, P]
    rank, plane, parallel = np.nonzero((links >= 0) & (carried > 0)[:, :, None])
    return links[rank, plane, parallel], carried[rank, plane], parts * count[rank, plane].astype(np.int64)


def _spine_loads(
    paths: LayerPaths, leaf_src: IntArray, leaf_dst: IntArray, pair_bytes: Int64, parts: int
) -> list[Load]:
    """Load leaf-spine links with bytes between leaves, [pairs] each.

    What a leaf sends up depends on the far leaf only through the spines that leaf can be reached from,
    so far leaves of one class are summed first: 512 x 512 leaves become 512 entries.
    """
    reach = paths.reach
    loads = []
    for side, near, far_class in (
        (0, leaf_src, reach.down_class[leaf_dst]),
        (1, leaf_dst, reach.up_class[leaf_src]),
    ):
        key = near * np.int64(len(paths.layer.leaf_vertex)) + far_class
        _, first, slot = np.unique(key, return_index=True, return_inverse=True)
        carried = np.zeros(len(first), np.int64)
        np.add.at(carried, slot.reshape(-1), pair_bytes)
        entries = paths.spray_spines(leaf_src[first], leaf_dst[first])[side]
        loads.append((entries.link, carried[entries.flow], parts * np.asarray(entries.parts, np.int64)))
    return loads


def _busiest(topology: Topology, loads: list[Load]) -> LinkBound:
    """Sum loads exactly and pick the link that needs most time."""
    links = np.concatenate([np.zeros(0, np.int64), *(load[0] for load in loads)])
    carried = np.concatenate([np.zeros(0, np.int64), *(load[1] for load in loads)])
    parts = np.concatenate([np.ones(0, np.int64), *(load[2] for load in loads)])
    used, scaled, denominator = _sum_exactly(links.astype(np.int64), carried, parts, topology.num_links)
    rates = topology.link_bytes_per_s(used)
    best, best_link, best_bytes = Fraction(0), -1, Fraction(0)
    for rate in np.unique(rates):
        of_rate = np.flatnonzero(rates == rate)
        place = of_rate[int(scaled[of_rate].argmax())]
        link_bytes = Fraction(int(scaled[place]), denominator)
        seconds = link_bytes / int(rate)
        if seconds > best or (seconds == best and 0 <= used[place] < best_link):
            best, best_link, best_bytes = seconds, int(used[place]), link_bytes
    return LinkBound(
        time_ps=math.ceil(best * PS_PER_SECOND),
        link_idx=best_link,
        link_bytes=best_bytes,
        used_links=used,
        used_bytes=np.asarray(scaled / denominator, np.float64),
    )


def _sum_exactly(
    links: Int64, carried: Int64, parts: Int64, num_links: int
) -> tuple[Int64, npt.NDArray[Any], int]:
    """Sum bytes / parts per link: (links with bytes, numerators, common denominator)."""
    keep = carried > 0
    links, carried, parts = links[keep], carried[keep], parts[keep]
    denominator = math.lcm(*(int(n) for n in np.unique(parts)))
    # Python integers take over where 63 bits might not hold the sums; slower, never wrong.
    estimate = float((carried / parts).sum()) * denominator
    numbers = (carried, parts) if estimate < _SAFE_INT64 else (carried.astype(object), parts.astype(object))
    scaled = numbers[0] * (denominator // numbers[1])
    if len(links) * 8 < num_links:
        used, slot = np.unique(links, return_inverse=True)
        total = np.zeros(len(used), scaled.dtype)
        np.add.at(total, slot.reshape(-1), scaled)
        return used, total, denominator
    total = np.zeros(num_links, scaled.dtype)
    np.add.at(total, links, scaled)
    used = np.flatnonzero(total)
    return used, total[used], denominator
