"""What a placement of expert copies does to the load: per rank, per copy, before and after.

E logical experts, P physical copies, R ranks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.config import ExpertMap, whole_number
from reference.errors import ConfigError
from reference.experts.balance import load_array

Loads = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadMetrics:
    """Loads under one placement, in the unit of the loads given.

    Args:
      rank_loads: [R] float64.
      copy_loads: [P] float64, of each physical expert.
      num_wasted_replicas: copies that share a rank with another copy of their expert (cases.md G43).
      num_idle_replicas: redundant copies that get nothing although their expert has load.
    """

    rank_loads: Loads
    copy_loads: Loads
    num_wasted_replicas: int
    num_idle_replicas: int

    @property
    def max_rank_load(self) -> float:
        """Load of the busiest rank: what everybody waits for."""
        return float(self.rank_loads.max())

    @property
    def mean_rank_load(self) -> float:
        """Load of a rank if all were equal: the least that any placement can reach as its maximum."""
        return float(self.rank_loads.mean())

    @property
    def peak_over_mean(self) -> float:
        """Busiest rank over the mean, 1.0 when balanced or when there is no load. Source: cases.md G46."""
        return _peak_over_mean(self.rank_loads)

    @property
    def copy_peak_over_mean(self) -> float:
        """Busiest physical expert over the mean: how uneven the grouped GEMM is."""
        return _peak_over_mean(self.copy_loads)


def _peak_over_mean(loads: Loads) -> float:
    mean = float(loads.mean())
    return float(loads.max()) / mean if mean else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BalanceReport:
    """The same loads under two placements.

    Args:
      before: metrics of the placement in use.
      after: metrics of the placement proposed.
    """

    before: LoadMetrics
    after: LoadMetrics

    @property
    def speedup(self) -> float:
        """Busiest rank before over busiest rank after; above 1 = the proposal helps."""
        after = self.after.max_rank_load
        return self.before.max_rank_load / after if after else 1.0


def measure_placement(
    expert_map: ExpertMap, loads: npt.ArrayLike, *, ep_size: int, shares: npt.ArrayLike | None = None
) -> LoadMetrics:
    """Return the loads that a placement gives.

    Args:
      expert_map: placement.
      loads: [E] tokens of each logical expert.
      ep_size: R; a rank without experts counts with load 0.
      shares: [P] part of its expert's load that each physical copy takes, adding up to 1 per expert;
        None = equal parts.

    Raises:
      ConfigError: a length is wrong, a rank is beyond ep_size, or the shares of an expert do not add up.
    """
    weights = load_array(loads)
    size = whole_number("ep_size", ep_size, max(expert_map.expert_ranks) + 1)
    if len(weights) != expert_map.num_logical_experts:
        rule = f"the map has {expert_map.num_logical_experts} logical experts"
        raise ConfigError("loads", f"{len(weights)} experts", rule)
    logical = np.array(expert_map.logical_ids or range(len(expert_map.expert_ranks)))
    copies = np.bincount(logical)
    part = 1.0 / copies[logical] if shares is None else _check_shares(shares, logical)
    copy_loads = weights[logical] * part
    rank_loads = np.zeros(size)
    np.add.at(rank_loads, list(expert_map.expert_ranks), copy_loads)
    return LoadMetrics(
        rank_loads=rank_loads,
        copy_loads=copy_loads,
        num_wasted_replicas=expert_map.num_wasted_replicas,
        num_idle_replicas=int(((copy_loads == 0) & (weights[logical] > 0)).sum()),
    )


def _check_shares(shares: npt.ArrayLike, logical: npt.NDArray[np.int64]) -> Loads:
    part = load_array(shares)
    if len(part) != len(logical):
        raise ConfigError("shares", f"{len(part)} entries", f"the map has {len(logical)} physical experts")
    total = np.bincount(logical, weights=part)
    # Thirds and sevenths add up to 1 only up to the rounding of each addition.
    wrong = np.abs(total - 1) > len(part) * np.finfo(np.float64).eps
    if wrong.any():
        expert = int(np.argmax(wrong))
        rule = "the copies of an expert must share all of its load, 1"
        raise ConfigError(f"shares of logical expert {expert}", float(total[expert]), rule)
    return part


def compare_placements(
    before: ExpertMap, after: ExpertMap, loads: npt.ArrayLike, *, ep_size: int
) -> BalanceReport:
    """Return the load metrics of two placements of the same experts, copies sharing equally.

    Args:
      before: placement in use.
      after: placement proposed.
      loads: [E] tokens of each logical expert.
      ep_size: R.

    Raises:
      ConfigError: as `measure_placement`.
    """
    return BalanceReport(
        before=measure_placement(before, loads, ep_size=ep_size),
        after=measure_placement(after, loads, ep_size=ep_size),
    )


def peak_of_counts(rank_rows: npt.ArrayLike) -> float:
    """Return busiest rank over mean of rows that were counted, 1.0 without rows.

    Args:
      rank_rows: [R] rows that each rank received.

    Raises:
      ConfigError: not one row of numbers of at least 0.
    """
    return _peak_over_mean(load_array(rank_rows))
