"""Row counts of a routing: counted ones and expected ones, with the same names.

R ranks, E experts, P pods. Matrices are [src, dst]; `received` sums over src, `sent` over dst; the local
rank is always included, `local` and `remote` say when it is not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Rows per pair of ranks, and what combine's reduction has to read.

    Args:
      num_tokens: [R] tokens of each source rank.
      rows: [R, R] distinct (token, rank) pairs: the records that dispatch sends and combine returns.
      single_rows: [R, R] those of them with exactly one expert on dst.
      entries: [R, R] valid (token, expert) choices, the expert on dst.
      expert_rows: [E] valid choices of each physical expert, over all sources.
      pod_size: ranks of a pod, None = no pods.
      pod_rows: [R, P] distinct (token, pod) pairs by source rank, own pod included; None = no pods.
    """

    num_tokens: npt.NDArray[Any]
    rows: npt.NDArray[Any]
    single_rows: npt.NDArray[Any]
    entries: npt.NDArray[Any]
    expert_rows: npt.NDArray[Any]
    pod_size: int | None = None
    pod_rows: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Freeze the arrays: counts are facts about a routing."""
        for array in (self.num_tokens, self.rows, self.single_rows, self.entries, self.expert_rows):
            array.flags.writeable = False
        if self.pod_rows is not None:
            self.pod_rows.flags.writeable = False

    @property
    def ep_size(self) -> int:
        """R, ranks of the group."""
        return int(self.rows.shape[0])

    @property
    def received_rows(self) -> npt.NDArray[Any]:
        """[R] rows that each rank receives; the N of the bandwidth metric."""
        return np.asarray(self.rows.sum(axis=0))

    @property
    def sent_rows(self) -> npt.NDArray[Any]:
        """[R] rows that each rank sends."""
        return np.asarray(self.rows.sum(axis=1))

    @property
    def local_rows(self) -> npt.NDArray[Any]:
        """[R] rows that stay on their rank."""
        return np.asarray(self.rows.diagonal())

    @property
    def remote_received_rows(self) -> npt.NDArray[Any]:
        """[R] rows that each rank receives from other ranks."""
        return np.asarray(self.received_rows - self.local_rows)

    @property
    def remote_sent_rows(self) -> npt.NDArray[Any]:
        """[R] rows that each rank sends to other ranks."""
        return np.asarray(self.sent_rows - self.local_rows)

    @property
    def single_hit_rows(self) -> npt.NDArray[Any]:
        """[R] received rows with exactly one local expert; combine forwards them without a sum."""
        return np.asarray(self.single_rows.sum(axis=0))

    @property
    def multi_hit_rows(self) -> npt.NDArray[Any]:
        """[R] received rows with several local experts; combine sums each into one row."""
        return np.asarray(self.received_rows - self.single_hit_rows)

    @property
    def expanded_rows(self) -> npt.NDArray[Any]:
        """[R] rows after expansion by expert, without alignment padding."""
        return np.asarray(self.entries.sum(axis=0))

    @property
    def multi_hit_expert_rows(self) -> npt.NDArray[Any]:
        """[R] expert rows behind the multi-hit rows: what combine's reduction reads."""
        # A single-hit row has one expert row, so what remains belongs to multi-hit rows.
        return np.asarray(self.expanded_rows - self.single_hit_rows)

    @property
    def mean_distinct_ranks(self) -> float:
        """Ranks that a token reaches on average; 0.0 without tokens."""
        tokens = float(self.num_tokens.sum())
        return float(self.rows.sum()) / tokens if tokens else 0.0

    @property
    def peak_over_mean(self) -> float:
        """Rows of the busiest receiver over the mean; 1.0 is balanced, 0.0 without rows.

        Source: cases.md G46 and G52: time grows with this, not with the skew's parameter.
        """
        rows = self.received_rows
        return float(rows.max() / rows.mean()) if rows.any() else 0.0

    def active_experts(self, config: EPConfig) -> npt.NDArray[np.int64]:
        """Return [R] int64: experts of each rank that any token chose (cases.md G51)."""
        owners = config.expert_ranks()[self.expert_rows > 0]
        return np.bincount(owners, minlength=config.ep_size).astype(np.int64)

    def pods_of_ranks(self) -> npt.NDArray[np.int64]:
        """Return [R] int64: the pod of each rank.

        Raises:
          ConfigError: the counts were made without pods.
        """
        if self.pod_size is None:
            raise ConfigError("pod_size", None, "pod counts were not asked for")
        return np.arange(self.ep_size, dtype=np.int64) // self.pod_size


@dataclass(frozen=True, kw_only=True, eq=False)
class RowCounts(Counts):
    """Counts of one routing; every array is int64 and exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpectedCounts(Counts):
    """Expectations over uniform routing; every array is float64, rounded once from an exact fraction.

    Args:
      received_rows_var: [R] variance of the rows that a rank receives.
      pair_covariances: per token, covariance of "reaches rank a" and "reaches rank b" for two
        different ranks, by their (smaller, larger) number of experts.
      experts_per_rank: [R] int64.
    """

    received_rows_var: npt.NDArray[np.float64]
    experts_per_rank: npt.NDArray[np.int64]
    pair_covariances: dict[tuple[int, int], float]

    def received_rows_cov(self, rank_a: int, rank_b: int) -> float:
        """Return the covariance of the rows that two ranks receive; of a rank with itself, the variance."""
        if rank_a == rank_b:
            return float(self.received_rows_var[rank_a])
        sizes = sorted((int(self.experts_per_rank[rank_a]), int(self.experts_per_rank[rank_b])))
        return float(self.num_tokens.sum()) * self.pair_covariances[sizes[0], sizes[1]]
