"""Exact max-min fair rates by progressive filling, in plain NumPy: the oracle.

All rates rise together until a resource is full; the flows through it stop there, and the others rise
on. A resource c with capacity left and weight W (the shares of its flows that still rise) is full at
the level left / W, and that level only grows as others stop. So resources are taken in order of their
level, and each costs its own flows. Compiled code (`epsim.flow.kernels`) does the same operations in the
same order; the two agree bit for bit.

Dimension legend: F flows, n flows that take part, H resources of a flow (C pads), C resources.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epsim.flow.problem import Floats, FlowProblem, Ints

Int64s = npt.NDArray[np.int64]
Rates = tuple[Floats, npt.NDArray[np.int32]]
"""(rate [n] bytes/s, column of the resource that stopped the flow [n])."""

UNIT_ROUNDOFF = 2.0**-53
"""Of float64, rounding to nearest."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths:
    """What solvers read: the resources that can bind.

    Args:
      resource_idx: [F, H] int32, C pads, so that it can index arrays with one spare cell.
      share: [F, H] float64, 0 pads.
      capacity: [C] float64, bytes/s.
      kept: [C] int64, the number of each resource in the problem.
    """

    resource_idx: npt.NDArray[np.int32]
    share: Floats
    capacity: Floats
    kept: npt.NDArray[np.int64]


def binding_paths(problem: FlowProblem) -> Paths:
    """Leave out the resources that can never bind, and pad for the solvers."""
    keep = np.append(_can_bind(problem), False)  # -1 finds the spare cell
    number = np.cumsum(keep) - 1
    used = keep[problem.resource_idx]
    width = max(1, int(used.sum(axis=1).max(initial=0)))
    # A stable sort of "absent" moves what is kept to the left without changing its order.
    order = np.argsort(~used, axis=1, kind="stable")[:, :width]
    present = np.take_along_axis(used, order, axis=1)
    old = np.take_along_axis(problem.resource_idx, order, axis=1)
    kept = np.flatnonzero(keep)
    return Paths(
        resource_idx=np.where(present, number[old], len(kept)).astype(np.int32),
        share=np.where(present, np.take_along_axis(problem.share, order, axis=1), 0.0),
        capacity=problem.capacity_bytes_per_s[kept],
        kept=kept,
    )


def _can_bind(problem: FlowProblem) -> npt.NDArray[np.bool_]:
    """Mark resources that may limit something, [C].

    What flows through c cannot exceed the sum, over the other resources that those flows pass, of
    capacity times how much more they use c. A leaf whose cards' ports together are no faster than its
    uplinks never fills them. Only first and last resources of flows are tried as cover, and those stay.
    """
    table, share, capacity = problem.resource_idx, problem.share, problem.capacity_bytes_per_s
    num_flows, width = table.shape
    keep = np.ones(problem.num_resources, np.bool_)
    if not num_flows or width < 3:
        return keep
    last = width - 1 - (table[:, ::-1] >= 0).argmax(axis=1)
    first = (table >= 0).argmax(axis=1)
    is_cover = np.zeros(problem.num_resources + 1, np.bool_)
    for end in (first, last):
        is_cover[table[np.arange(num_flows), end]] = True
    flow, column = np.nonzero((table >= 0) & ~is_cover[table])
    inner = table[flow, column].astype(np.int64)
    for end in (first, last):
        cover = table[flow, end[flow]]
        key = inner * problem.num_resources + cover
        ratio = share[flow, column] / share[flow, end[flow]]
        pair, slot = np.unique(key, return_inverse=True)
        most = np.zeros(len(pair))
        np.maximum.at(most, slot.reshape(-1), ratio)
        pair_inner, pair_cover = np.divmod(pair, problem.num_resources)
        need = np.bincount(pair_inner, weights=capacity[pair_cover] * most, minlength=len(keep))
        keep[(need > 0) & (need <= capacity)] = False
    return keep


def solve(paths: Paths, flows: Ints) -> Rates:
    """Find the max-min fair rates of some flows.

    Args:
      paths: all flows.
      flows: [n] distinct flows that take part, each with at least one resource.

    Returns:
      [n] rates in bytes/s, and [n] which of its resources stopped each flow (a column of Paths).
    """
    table, share = paths.resource_idx[flows], paths.share[flows]
    num_flows, width = table.shape
    spare = len(paths.capacity) + 1  # one more cell for the padding
    cells = table.ravel()
    count = np.bincount(cells, minlength=spare)
    first = np.concatenate([[0], np.cumsum(count)])
    member = np.argsort(cells, kind="stable") // width
    weight = np.bincount(cells, weights=share.ravel(), minlength=spare)
    left = np.append(paths.capacity, np.inf)
    count[-1] = 0
    level = np.full(spare, np.inf)
    np.divide(left, weight, out=level, where=count > 0)
    rate, stopped = np.zeros(num_flows), np.zeros(num_flows, np.int32)
    for _ in range(len(paths.capacity)):
        full = int(level.argmin())
        height = level[full]
        if height == np.inf:
            break
        mine = member[first[full] : first[full + 1]]
        mine = mine[rate[mine] == 0]
        rate[mine] = height
        rows = table[mine]
        stopped[mine] = (rows == full).argmax(axis=1)
        cells = rows.ravel()
        taken = np.bincount(cells, weights=share[mine].ravel(), minlength=spare)
        count -= np.bincount(cells, minlength=spare)
        left -= height * taken
        weight -= taken
        rises = count > 0
        # Levels grow; rounding must not take them back, or the order would depend on it.
        fresh = np.divide(left, weight, out=np.full(spare, np.inf), where=rises)
        level = np.where(rises, np.maximum(level, fresh), np.inf)
    return rate, stopped


def fair_need(paths: Paths, flows: Ints, left: Floats) -> tuple[Floats, Floats]:
    """Give each flow the least that max-min fairness could leave it (see `epsim.flow.bracket`).

    Args:
      paths: all flows.
      flows: [n] distinct flows.
      left: [n] bytes each still has to send.

    Returns:
      [n] rates in bytes/s, the smallest of capacity / weight, and [n] seconds to the end at that rate.
    """
    table, spare = paths.resource_idx[flows], len(paths.capacity) + 1
    weight = np.bincount(table.ravel(), weights=paths.share[flows].ravel(), minlength=spare)
    weight[-1] = 0.0
    level = np.full(spare, np.inf)
    np.divide(np.append(paths.capacity, 0.0), weight, out=level, where=weight > 0)
    rate = level[table].min(axis=1)
    return rate, left / rate


def certify(paths: Paths, flows: Ints, rate: Floats) -> str | None:
    """Check that rates are the max-min fair ones; None when they are, else one sentence.

    Rates are max-min fair exactly when no resource is overfull and each flow passes a full resource
    on which no flow is faster. What counts as full allows for rounding, derived: over k levels `solve`
    rounds the capacity left at most 2 k times and the weight k times, and this sums n terms, so a full
    resource may be off by (n + 2 k + k W r / C) 2^-53 of C, W its first weight and r its fastest flow.
    """
    table, share = paths.resource_idx[flows], paths.share[flows]
    spare = len(paths.capacity) + 1
    cells = table.ravel()
    used = np.bincount(cells, weights=(rate[:, None] * share).ravel(), minlength=spare)[:-1]
    terms = np.bincount(cells, minlength=spare)[:-1]
    weight = np.bincount(cells, weights=share.ravel(), minlength=spare)[:-1]
    fastest = np.zeros(spare)
    np.maximum.at(fastest, cells, np.repeat(rate, table.shape[1]))
    levels = len(paths.capacity)
    slack = (terms + levels * (2 + weight * fastest[:-1] / paths.capacity)) * UNIT_ROUNDOFF
    over = np.flatnonzero(used > paths.capacity * (1 + slack))
    if len(over):
        return f"resource {over[0]} carries {used[over[0]]} of {paths.capacity[over[0]]} bytes/s"
    full = np.append(used >= paths.capacity * (1 - slack), False)
    held = (full[table] & (rate[:, None] >= fastest[table])).any(axis=1)
    if not held.all():
        flow = int(np.flatnonzero(~held)[0])
        return (
            f"flow {flow} at {rate[flow]} bytes/s could be faster at no cost, or at that of faster flows only"
        )
    return None
