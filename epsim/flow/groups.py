"""Many groups on one cluster: link loads summed group by group, and the bound of each and of all.

2,048 groups of 128 ranks are 33 million flows; they are hashed and counted one group at a time, so memory
holds one group and the totals of the links.

Dimension legend: n groups, G ranks of a group, P planes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from epsim.errors import InputError
from epsim.flow.grouploads import Flows, LayerLoads
from epsim.flow.linksums import EXACT_FLOAT, Int64, summarise
from epsim.flow.projection import refuse_direct
from topology import LinkBound, Router, Topology
from topology.graph import IntArray
from topology.paths import usable_planes
from topology.units import PS_PER_SECOND

Placement = Literal["packed", "spread", "random"]
GroupPolicy = Literal["spray", "flow-hash"]


@dataclass(frozen=True, kw_only=True)
class GroupBound:
    """The busiest link under many groups at once.

    Args:
      bound: of all groups together.
      tiers: the same per tier, e.g. "netlayer 2, leaf to spine"; only tiers that carry bytes.
      group_ps: [n] int64, the bound of each group if it were alone, picoseconds.
      num_flows: pairs with bytes, over all groups.
    """

    bound: LinkBound
    tiers: Mapping[str, LinkBound]
    group_ps: Int64
    num_flows: int


def place_groups(
    topology: Topology, num_groups: int, group_size: int, placement: Placement, *, seed: int = 0
) -> Int64:
    """Give each group its cards, each card to one group at most.

    Args:
      topology: its NPUs and their supernodes.
      num_groups: n.
      group_size: G.
      placement: "packed" fills supernodes in order; "spread" gives neighbours in a group different
        supernodes; "random" draws cards by seed.
      seed: of "random".

    Returns:
      [n, G] int64, NPU of each rank.

    Raises:
      InputError: more ranks than NPUs, a size below 1, or no such placement.
    """
    for field, value in (("num_groups", num_groups), ("group_size", group_size)):
        if value < 1:
            raise InputError(field, value, "must be at least 1")
    if placement not in get_args(Placement):
        raise InputError("placement", placement, f"must be one of {', '.join(get_args(Placement))}")
    wanted = num_groups * group_size
    if wanted > topology.num_npus:
        rule = f"{num_groups} groups of {group_size}; {topology.name} has {topology.num_npus} NPUs"
        raise InputError("number of ranks", wanted, rule)
    supernode = topology.npu_supernode
    if placement == "random":
        cards = np.random.default_rng(seed).permutation(topology.num_npus)
    else:
        cards = np.argsort(supernode, kind="stable")
    if placement == "spread":
        size = np.bincount(supernode)
        within = np.arange(len(cards)) - (np.cumsum(size) - size)[supernode[cards]]
        cards = cards[np.argsort(within, kind="stable")]
    return np.asarray(cards[:wanted], np.int64).reshape(num_groups, group_size)


def bound_groups(
    topology: Topology, npus: IntArray, matrices: IntArray, *, policy: GroupPolicy = "spray", seed: int = 0
) -> GroupBound:
    """Find the busiest link under the byte matrices of many groups.

    Args:
      topology: the graph; its netlayers in use join cards through switches.
      npus: [n, G] NPU of each rank of each group; a card may serve several groups, one rank in each.
      matrices: [G, G] integers for all groups, or [n, G, G]; [src rank, dst rank], own bytes stay.
      policy: "spray" or "flow-hash"; see `topology.routes`.
      seed: of the flow hash.

    Raises:
      InputError: shapes do not fit, a negative or too large number, no such policy, or direct links.
      TopologyError: an NPU out of range, or a pair with bytes that no netlayer joins.
    """
    npus, matrices = _checked(npus, matrices, policy)
    cards = np.unique(npus)
    everyone = len(cards) == topology.num_npus and cards[0] == 0 and cards[-1] == topology.num_npus - 1
    router = Router(topology, None if everyone else cards)
    refuse_direct(router)
    total = int(matrices.sum()) * (len(npus) if matrices.ndim == 2 else 1)
    layers = [LayerLoads(topology, paths, total, whole=policy == "flow-hash") for paths in router.layers]
    group_ps = np.zeros(len(npus), np.int64)
    flows = _flows(matrices) if matrices.ndim == 2 else None
    num_flows = 0
    for group, mine in enumerate(npus):
        pairs = flows or _flows(matrices[group])
        num_flows += len(pairs.src)
        group_ps[group] = _add_group(router, layers, mine, pairs, policy, seed)
    found = summarise(topology, {tier: loads for one in layers for tier, loads in one.loads().items()})
    return GroupBound(bound=found.bound, tiers=found.tiers, group_ps=group_ps, num_flows=num_flows)


def _flows(matrix: IntArray) -> Flows:
    """List the pairs of one group that have bytes, own ones left out."""
    src, dst = np.nonzero(matrix)
    other = src != dst
    src, dst = src[other], dst[other]
    return Flows(src, dst, src * len(matrix) + dst, matrix[src, dst].astype(np.int64))


def _checked(npus: IntArray, matrices: IntArray, policy: str) -> tuple[Int64, IntArray]:
    npus, matrices = np.asarray(npus), np.asarray(matrices)
    if policy not in get_args(GroupPolicy):
        raise InputError("policy", policy, f"must be one of {', '.join(get_args(GroupPolicy))}")
    if npus.ndim != 2 or not npus.size or not np.issubdtype(npus.dtype, np.integer):
        raise InputError("npus", f"{npus.dtype} {npus.shape}", "must be integers [groups, ranks]")
    num_groups, size = npus.shape
    if matrices.shape not in ((size, size), (num_groups, size, size)):
        rule = f"must be ({size}, {size}) or ({num_groups}, {size}, {size}) to fit npus"
        raise InputError("shape of matrices", matrices.shape, rule)
    if not np.issubdtype(matrices.dtype, np.integer):
        raise InputError("type of matrices", str(matrices.dtype), "must be integers: whole bytes")
    if matrices.min() < 0:
        raise InputError("smallest of matrices", int(matrices.min()), "must not be negative")
    copies = num_groups if matrices.ndim == 2 else 1
    total = float(matrices.sum(dtype=np.float64)) * copies
    if total >= EXACT_FLOAT:
        raise InputError("total of matrices", total, "must stay below 2^53 bytes")
    ordered = np.sort(npus, axis=1)
    twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(twice):
        raise InputError(f"npus[{twice[0]}]", npus[twice[0]].tolist(), "must not repeat: one rank per NPU")
    return npus.astype(np.int64), matrices


def _add_group(
    router: Router, layers: list[LayerLoads], npus: Int64, flows: Flows, policy: str, seed: int
) -> int:
    """Add one group to the totals and return its own bound, picoseconds."""
    position = router.position[npus]
    slowest = Fraction(0)
    for tables in layers:
        if not len(flows.src):
            break
        layer = tables.paths.layer
        # Planes first: each comparison then runs along G neighbours in memory instead of P.
        up_leaf = np.ascontiguousarray(layer.up_leaf[position].T)[:, :, None]
        down_leaf = np.ascontiguousarray(layer.down_leaf[position].T)[:, None, :]
        usable = usable_planes(layer, tables.paths.reach, up_leaf, down_leaf).reshape(len(layer.planes), -1)
        joined = np.take(usable.any(axis=0), flows.pair)
        if not joined.any():
            continue
        taken = flows if joined.all() else flows.take(np.flatnonzero(joined))
        flows = flows.take(np.flatnonzero(~joined))
        if policy == "spray":
            slowest = max(slowest, tables.spray(position, taken, usable))
        else:
            slowest = max(slowest, tables.hash(position, npus, taken, usable, seed))
    if len(flows.src):
        raise router.no_path(int(position[flows.src[0]]), int(position[flows.dst[0]]))
    return math.ceil(slowest * PS_PER_SECOND)
