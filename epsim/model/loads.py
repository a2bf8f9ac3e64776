"""From row counts to what each rank moves: the arrays that the closed form reads.

R ranks. "rows" are de-duplicated (token, rank) pairs, or (token, expert) slots for software that does
not de-duplicate. Expected counts are spread over the ranks by normal order statistics, so that the
busiest rank and the printed range exist without sampling.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from reference.counts import Counts, ExpectedCounts

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankLoads:
    """Rows per rank of one dispatch; combine moves the same rows the other way.

    Args:
      num_tokens: [R] own tokens.
      received: [R] rows received, own ones included: the numerator of the bandwidth metric.
      sent: [R] rows sent, own ones included.
      remote_received: [R] received from other ranks.
      remote_sent: [R] sent to other ranks.
      scaleup_received: [R] remote rows that come in over the scale-up tier.
      scaleup_sent: [R] remote rows that go out over it.
      scaleout_received: [R] rows that come in over the scale-out tier.
      scaleout_sent: [R] rows that go out over it.
      scaleout_logical: [R] rows of the scale-out metric: distinct (token, pod) pairs, own pod included.
      reduced: [R] received rows with several local experts; combine sums each into one row.
      reduction_reads: [R] expert rows behind them.
      expanded: [R] rows after expansion by expert, without padding.
      peers: ranks that an average rank sends to.
    """

    num_tokens: Floats
    received: Floats
    sent: Floats
    remote_received: Floats
    remote_sent: Floats
    scaleup_received: Floats
    scaleup_sent: Floats
    scaleout_received: Floats
    scaleout_sent: Floats
    scaleout_logical: Floats
    reduced: Floats
    reduction_reads: Floats
    expanded: Floats
    peers: float


def rank_loads(counts: Counts, *, per_expert: bool = False, pod_dedup: bool = True) -> RankLoads:
    """Read the loads off counted or expected rows.

    Args:
      counts: with pod counts when the group spans several scale-up domains.
      per_expert: count one row per (token, expert) instead of one per (token, rank).
      pod_dedup: send one row per (token, pod) over the scale-out tier and spread it inside the pod;
        else one per (token, rank).
    """
    matrix = np.asarray(counts.entries if per_expert else counts.rows, dtype=np.float64)
    local = matrix.diagonal()
    received, sent = matrix.sum(axis=0), matrix.sum(axis=1)
    spread = _spread(counts, per_expert=per_expert)
    up_in, up_out, out_in, out_out, out_logical = _tiers(
        counts, matrix, pod_dedup=pod_dedup and not per_expert
    )
    zeros = np.zeros(counts.ep_size)
    return RankLoads(
        num_tokens=np.asarray(counts.num_tokens, dtype=np.float64),
        received=received * spread,
        sent=sent,
        remote_received=(received - local) * spread,
        remote_sent=sent - local,
        scaleup_received=up_in * spread,
        scaleup_sent=up_out,
        scaleout_received=out_in * spread,
        scaleout_sent=out_out,
        scaleout_logical=out_logical,
        reduced=zeros if per_expert else np.asarray(counts.multi_hit_rows, dtype=np.float64) * spread,
        reduction_reads=zeros
        if per_expert
        else np.asarray(counts.multi_hit_expert_rows, dtype=np.float64) * spread,
        expanded=np.asarray(counts.expanded_rows, dtype=np.float64) * spread,
        peers=_mean_peers(matrix),
    )


def _spread(counts: Counts, *, per_expert: bool) -> Floats:
    """Return [R] factors of mean 1: the expected k-th smallest rank for expected counts, else ones.

    The rows of two ranks are correlated (a token's choices are a fixed number), so the spread around
    the common mean has variance Var - Cov. Order statistics by Blom's approximation.
    """
    ones = np.ones(counts.ep_size)
    if not isinstance(counts, ExpectedCounts) or counts.ep_size == 1 or per_expert:
        return ones
    held = counts.experts_per_rank
    if (held != held[0]).any():
        return ones
    mean = float(counts.received_rows.mean())
    # Rank pairs that cannot be hit together (2 L > E) do not exist beyond two ranks of half the experts.
    variance = float(counts.received_rows_var[0]) - counts.received_rows_cov(0, 1)
    if mean <= 0 or variance <= 0:
        return ones
    size = counts.ep_size
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((k - 0.375) / (size + 0.25)) for k in range(1, size + 1)])
    return np.asarray(np.maximum(0.0, 1.0 + scores * (np.sqrt(variance) / mean)))


def _tiers(
    counts: Counts, matrix: Floats, *, pod_dedup: bool
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Split remote rows over the tiers: scale-up in and out, scale-out in, out and metric rows, each [R]."""
    size = counts.ep_size
    local = matrix.diagonal()
    nothing = np.zeros(size)
    if counts.pod_size is None or counts.pod_rows is None or counts.pod_size >= size:
        return matrix.sum(axis=0) - local, matrix.sum(axis=1) - local, nothing, nothing, nothing
    pods = np.arange(size) // counts.pod_size
    same_pod = pods[:, None] == pods[None, :]
    pod_rows = np.asarray(counts.pod_rows, dtype=np.float64)
    own = pod_rows[np.arange(size), pods]
    logical = pod_rows.sum(axis=1)
    inside = np.where(same_pod, matrix, 0.0)
    if not pod_dedup:
        outside = matrix - inside
        return (
            inside.sum(axis=0) - local,
            inside.sum(axis=1) - local,
            outside.sum(axis=0),
            outside.sum(axis=1),
            logical,
        )
    # A row for another pod goes to the rank with the sender's index there, which spreads it inside.
    sizes = np.bincount(pods)
    starts = np.cumsum(sizes) - sizes
    lane = np.arange(size) - starts[pods]
    forwarder = starts[None, :] + lane[:, None] % sizes[None, :]  # [src, pod]
    forwarder[np.arange(size), pods] = np.arange(size)
    last_sender = forwarder[:, pods]  # [src, dst]
    crosses = last_sender != np.arange(size)[None, :]
    up_out = np.bincount(last_sender[crosses], weights=matrix[crosses], minlength=size)
    foreign = np.arange(len(sizes))[None, :] != pods[:, None]
    arriving = np.bincount(forwarder[foreign], weights=pod_rows[foreign], minlength=size)
    up_in = np.where(crosses, matrix, 0.0).sum(axis=0)
    return up_in, up_out.astype(np.float64), arriving.astype(np.float64), logical - own, logical


def _mean_peers(matrix: Floats) -> float:
    """Return how many other ranks an average rank sends to; empty ranks do not count."""
    links = (matrix > 0) & ~np.eye(matrix.shape[0], dtype=bool)
    senders = links.any(axis=1).sum()
    return float(links.sum() / senders) if senders else 0.0
