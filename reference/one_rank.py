"""Dispatch and combine from the place of one rank: what it sends, and what it makes of what arrives.

`dispatch` and `combine` hold all ranks at once; a process of a real group holds one, and rows travel between.
Every row travels at most once to a rank. Both sides know how many rows go from whom to whom.

R ranks, T tokens of a rank, K top-k, H hidden, M token capacity, N received rows, S rows that travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.combine import BLOCK_BYTES, Summer
from reference.config import EPConfig
from reference.handle import Handle
from reference.homes import Home
from reference.order import ReductionOrder
from reference.results import CombineResult
from reference.routes import starts_of
from reference.sums import Scratch, Terms, ordered_sums

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shipment:
    """Rows that leave one rank.

    Args:
      rows: [S] which row of what the rank has, by destination.
      counts: [R] rows for each destination.
    """

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def owners(config: EPConfig, topk_idx: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return [T, K] the rank of each choice, -1 = none."""
    return np.append(config.expert_ranks(), -1)[topk_idx]


def tokens_to_send(config: EPConfig, topk_idx: npt.NDArray[np.int64]) -> Shipment:
    """Return which tokens a rank sends in a dispatch: each once per rank, by destination, then token."""
    dst = owners(config, topk_idx)
    hit = np.zeros((config.ep_size, len(dst)), dtype=np.bool_)
    token, k = np.nonzero(dst >= 0)
    hit[dst[token, k], token] = True
    return Shipment(rows=np.nonzero(hit)[1], counts=hit.sum(axis=1))


def received_counts(handle: Handle) -> npt.NDArray[np.int64]:
    """Return [R] int64: rows that a dispatch brings to this rank from each source."""
    ends = handle.psum_num_recv_tokens_per_rank.astype(np.int64)
    counts: npt.NDArray[np.int64] = ends - np.append(0, ends[:-1])
    return counts


@dataclass(frozen=True, kw_only=True, eq=False)
class Returns:
    """What one rank sends back in a combine, by home rank.

    Args:
      x: [S, H] bf16.
      weights: [S, K] float32, what the rank has for each column of the row's token, 0 in columns of others;
        None = combine was given no weights.
      counts: [R] rows for each home.
    """

    x: Array
    weights: npt.NDArray[np.float32] | None
    counts: npt.NDArray[np.int64]


def rows_to_return(
    handle: Handle, y: Array, order: ReductionOrder, topk_weights: npt.NDArray[np.float32] | None = None
) -> Returns:
    """Return what the rank of the experts sends home: one row per token, or with one_rounding per choice.

    Args:
      handle: of this rank.
      y: [rows, H] bf16, a row per row that dispatch gave.
      order: where the sum is rounded; in_rank = the rows of one token are summed here.
      topk_weights: expanded [rows], deduplicated [rows, K] float32. Not with one_rounding when expanded.

    Returns:
      Rows by home, then token; of one token by ascending column.
    """
    bits = y.view(np.uint16)
    arrival = np.argsort(handle.gids(), kind="stable")
    home = handle.gids()[arrival] // handle.config.num_max_tokens_per_rank
    counts = np.bincount(home, minlength=handle.config.ep_size)
    if not handle.mode.expand:
        weights = None if topk_weights is None else topk_weights[arrival]
        return Returns(x=bits[arrival].view(y.dtype), weights=weights, counts=counts)
    rows = handle.expanded_rows()[arrival]
    if not order.in_rank:
        hits = (rows >= 0).sum(axis=1)
        counts = np.bincount(np.repeat(home, hits), minlength=handle.config.ep_size)
        return Returns(x=bits[rows[rows >= 0]].view(y.dtype), weights=None, counts=counts)
    weights = None
    if topk_weights is not None:
        found = np.append(topk_weights.view(np.uint32), np.uint32(0))[rows]  # the last entry is what -1 reads
        weights = found.view(np.float32)
    return Returns(x=_rank_sums(handle, rows, bits).view(y.dtype), weights=weights, counts=counts)


def _rank_sums(handle: Handle, rows: npt.NDArray[np.int32], bits: npt.NDArray[np.uint16]) -> Array:
    """Return [N, H]: each token's rows summed by ascending column; a single row stays bit for bit."""
    out = np.empty((len(rows), bits.shape[1]), dtype=np.uint16)
    count = (rows >= 0).sum(axis=1)
    positions = rows[rows >= 0].astype(np.int64)
    first = starts_of(count)[:-1]
    single, several = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
    out[single] = bits[positions[first[single]]]
    scratch = Scratch(bits.shape[1])
    block = max(1, BLOCK_BYTES // (2 * max(1, bits.shape[1]) * rows.shape[1]))
    for low in range(0, len(several), block):
        part = several[low : low + block]
        sums = scratch.rows("sums", len(part), np.uint16)
        terms = Terms(positions=positions, first=first[part], count=count[part])
        ordered_sums(bits, terms, (), handle.mode.rules.sum_start, sums, scratch)
        out[part] = sums
    return out


def returned_counts(
    config: EPConfig, topk_idx: npt.NDArray[np.int64], *, per_choice: bool
) -> npt.NDArray[np.int64]:
    """Return [R] int64: rows that a combine brings home from each rank.

    Args:
      config: the group.
      topk_idx: [T, K] of the home rank.
      per_choice: the sender does not sum (expanded, one_rounding).
    """
    if not per_choice:
        return tokens_to_send(config, topk_idx).counts
    return np.bincount(owners(config, topk_idx)[topk_idx >= 0], minlength=config.ep_size)


def combine_home(
    handle: Handle,
    x: Sequence[Array],
    order: ReductionOrder,
    *,
    weights: Sequence[npt.NDArray[np.float32]] | None = None,
    bias: Sequence[Array] = (),
) -> CombineResult:
    """Return the sums of a rank's own tokens from the rows that came home.

    Args:
      handle: of this rank.
      x: per rank what its `rows_to_return` holds for this home, [S, H] bf16.
      order: as at the senders.
      weights: likewise, [S, K] float32.
      bias: up to two, [T, H] bf16, added before the rows.

    Raises:
      StaleHandleError: topk_idx was written to since dispatch.
    """
    dst = owners(handle.config, handle.topk_idx)
    per_choice = handle.mode.expand and not order.in_rank
    masters = np.full(dst.shape, -1, dtype=np.int32)
    row = np.full(dst.shape, -1, dtype=np.int32)  # of each choice, also below the master
    for rank in range(handle.config.ep_size):
        here = dst == rank
        if per_choice:
            row[here] = np.arange(np.count_nonzero(here), dtype=np.int32)
            continue
        token = np.flatnonzero(here.any(axis=1))
        last = dst.shape[1] - 1 - np.argmax(here[token, ::-1], axis=1)
        masters[token, last] = np.arange(len(token), dtype=np.int32)
        row[here] = (np.cumsum(here.any(axis=1)) - 1).astype(np.int32)[np.nonzero(here)[0]]
    summer = Summer(handle, order, [array.view(np.uint16) for array in x], is_summed=not per_choice)
    home = Home(dst, row if per_choice else masters)
    total = summer.combine(home, [array.view(np.uint16) for array in bias])
    found = None if weights is None else _weights_of(dst, row, weights)
    return CombineResult(rank=handle.rank, combined_x=total, combined_topk_weights=found)


def _weights_of(
    dst: npt.NDArray[np.int64], row: npt.NDArray[np.int32], weights: Sequence[npt.NDArray[np.float32]]
) -> npt.NDArray[np.float32]:
    """Return [T, K]: each choice's weight as its rank has it, 0 where masked."""
    out = np.zeros(dst.shape, dtype=np.float32)
    for rank, values in enumerate(weights):
        token, k = np.nonzero(dst == rank)
        out.view(np.uint32)[token, k] = values.view(np.uint32)[row[token, k], k]
    return out
