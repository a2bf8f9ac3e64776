"""The hot-rank routings of the upstream tests: rank 0 receives more rows than the others.

R ranks, L experts of a rank, E experts, K top-k, T tokens.
Source: deepep-v2.md section 5.
"""

from decimal import Decimal
from math import comb

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError
from reference.routing.draws import Draws

LARGEST_FACTOR = 100.0
"""Upstream looks for the hot experts' score range [0, f] with f up to 100."""


def _hit_chances(num_experts: int, num_topk: int, held: list[int], lift: float) -> tuple[float, float]:
    """Return the chance that a token reaches the hot rank, and the mean chance for another rank.

    Args:
      num_experts: E.
      num_topk: K.
      held: [R] experts of each rank, the hot one first.
      lift: chance that a hot expert's score lies above all others'.
    """
    hot, up = held[0], Decimal(lift)
    sizes = {n: held[1:].count(n) for n in set(held[1:])}
    # No lifted expert and none by chance is the only way to miss the hot rank.
    unlifted = float((1 - up) ** hot)
    reached = 1 - unlifted * (comb(num_experts - hot, num_topk) / comb(num_experts, num_topk))
    others = 0.0
    for lifted in range(min(hot, num_topk - 1) + 1):
        weight = float(comb(hot, lifted) * up**lifted * (1 - up) ** (hot - lifted))
        left, free = num_experts - lifted, num_topk - lifted
        for n, ranks in sizes.items():
            others += weight * ranks * (1 - comb(left - n, free) / comb(left, free))
    return reached, others / (len(held) - 1)


def find_lift(num_experts: int, num_topk: int, held: list[int], ratio: float) -> float:
    """Return the chance 1 - 1/f of a lifted hot expert at which the expected rows have the ratio.

    Upstream bisects f on sampled counts; here the expectation is computed, so that all ranks share one f
    and the seed does not move it.

    Args:
      num_experts: E.
      num_topk: K.
      held: [R] experts of each rank, the hot one first.
      ratio: rows of rank 0 over the mean of the other ranks.

    Raises:
      ConfigError: no f in [1, 100] reaches the ratio.
    """
    low, high = 0.0, 1 - 1 / LARGEST_FACTOR
    reached, others = _hit_chances(num_experts, num_topk, held, high)
    if ratio * others > reached:
        rule = f"scores of up to {LARGEST_FACTOR:g} times the others reach {reached / others:.4g} at most"
        raise ConfigError("routing ratio", ratio, rule)
    for _ in range(48):
        middle = (low + high) / 2
        reached, others = _hit_chances(num_experts, num_topk, held, middle)
        if reached > ratio * others:
            high = middle
        else:
            low = middle
    return low


def random_unbalanced(
    draws: Draws, homes: npt.NDArray[np.int64], width: int, count: int, lift: float
) -> npt.NDArray[np.int32]:
    """Draw tokens whose hot experts have scores in [0, f] and whose other experts in [0, 1].

    A hot score lies above 1 with chance 1 - 1/f; below 1 it is like any other. So: lifted hot experts
    first, in random order, then a uniform draw among the rest. The same law as top-k over E scores.

    Args:
      draws: stream.
      homes: [E] rank of each expert.
      width: K.
      count: T.
      lift: from `find_lift`.

    Returns:
      [K, T] int32.
    """
    hot = np.flatnonzero(homes == 0)
    lifted = draws.coins(lift, hot.size * count).reshape(hot.size, count)
    keys = draws.lanes32(hot.size * count).reshape(hot.size, count).astype(np.int64)
    order = np.argsort(np.where(lifted, keys, 2**32), axis=0, kind="stable")[:width]  # [<=K, T]
    first = np.where(np.take_along_axis(lifted, order, axis=0), hot[order], -1)
    rest = draws.distinct(homes.size, width, count)
    is_lifted = np.zeros((homes.size, count), dtype=np.bool_)
    is_lifted[hot] = lifted
    rest = np.where(np.take_along_axis(is_lifted, rest, axis=0), -1, rest)
    result = np.full((width, count), -1, dtype=np.int32)
    filled = np.zeros(count, dtype=np.int64)
    for row in (*first, *rest):
        take = np.flatnonzero((row >= 0) & (filled < width))
        result[filled[take], take] = row[take]
        filled[take] += 1
    return result


def most_ranks(ep_size: int, ratio: float) -> int:
    """Return the most ranks that a token may reach in the precise routing of this ratio."""
    return int((ep_size - 1) / ratio) + 1


def precise_unbalanced(
    draws: Draws, homes: npt.NDArray[np.int64], ep_size: int, width: int, count: int, ratio: float
) -> npt.NDArray[np.int32]:
    """Draw tokens so that the row counts themselves have the ratio, not only their expectation.

    Args:
      draws: stream.
      homes: [E] rank of each expert, the same number on each rank.
      ep_size: R, at least 2.
      width: K.
      count: T.
      ratio: rows of rank 0 over rows of each other rank.

    Returns:
      [K, T] int32.
    """
    owned = np.argsort(homes, kind="stable").reshape(ep_size, -1)  # [R, L]
    spread = np.sort(homes[draws.distinct(homes.size, width, count)], axis=0)
    reach = 1 + (spread[1:] != spread[:-1]).sum(axis=0)
    reach = np.minimum(reach, most_ranks(ep_size, ratio))  # [T] ranks of each token
    is_hot = _choose_hot_tokens(draws, reach, ep_size, ratio)
    cycle = 1 + draws.permutation(ep_size - 1)
    cold = reach - is_hot
    start = np.cumsum(cold) - cold
    result = np.empty((width, count), dtype=np.int32)
    for ranks in np.unique(reach):
        rows = np.flatnonzero(reach == ranks)
        for slot in range(ranks):
            step = start[rows] + slot - is_hot[rows]
            rank = np.where(is_hot[rows] & (slot == 0), 0, cycle[step % (ep_size - 1)])
            columns = range(slot, width, ranks)
            local = draws.distinct(owned.shape[1], len(columns), rows.size)
            for occurrence, column in enumerate(columns):
                result[column, rows] = owned[rank, local[occurrence]]
    result = result[:, draws.permutation(count)]
    columns_order = np.argsort(draws.lanes32(width * count).reshape(width, count), axis=0, kind="stable")
    return np.take_along_axis(result, columns_order, axis=0)


def _choose_hot_tokens(
    draws: Draws, reach: npt.NDArray[np.int64], ep_size: int, ratio: float
) -> npt.NDArray[np.bool_]:
    """Return [T] bool: the tokens that include rank 0, as many as the ratio asks for."""
    total = int(reach.sum())
    quota = int(total / (ep_size - 1 + ratio))
    must = reach == ep_size
    hot = max(min(total - quota * (ep_size - 1), int(quota * ratio) + 1), int(must.sum()))
    chosen = np.array(must)
    free = np.flatnonzero(~must)
    extra = min(hot - int(must.sum()), free.size)
    chosen[free[draws.permutation(free.size)[:extra]]] = True
    return chosen
