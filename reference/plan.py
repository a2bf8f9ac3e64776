"""One ledger of what goes where, and the row counts that follow from it.

R ranks, T tokens of a rank, K top-k, E experts, P pods. A token is sent to a rank once, however many of its
experts live there. Matrices are [src, dst].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig, whole_number
from reference.counts import RowCounts
from reference.topk import TopK, distinct_columns


@dataclass(frozen=True, kw_only=True, eq=False)
class LedgerBlock:
    """All valid (token, expert) choices of one source rank, one row each, by token and then column.

    Args:
      src_rank: the rank whose tokens these are.
      num_tokens: T, its tokens, including those without a valid expert (they have no row).
      token: [N] int32, source token.
      k: [N] int16, top-k column.
      dst_rank: [N] int32, the rank that holds the expert.
      expert: [N] int32, physical expert.
      num_hits: [N] int16, this token's experts on dst_rank, the row itself included.
      is_master: [N] bool, true once per (token, dst_rank): at the highest column. The rows that travel.
      is_pod_master: [N] bool, true once per (token, pod of dst_rank), at the highest column; None
        without pods.
      Source: deepep-ascend.md section 0 (master), deepep-v2.md section 2.2.
    """

    src_rank: int
    num_tokens: int
    token: npt.NDArray[np.int32]
    k: npt.NDArray[np.int16]
    dst_rank: npt.NDArray[np.int32]
    expert: npt.NDArray[np.int32]
    num_hits: npt.NDArray[np.int16]
    is_master: npt.NDArray[np.bool_]
    is_pod_master: npt.NDArray[np.bool_] | None = None


def ledger_blocks(config: EPConfig, topk: TopK, *, pod_size: int | None = None) -> Iterator[LedgerBlock]:
    """Return the ledger, one block per source rank in ascending order, each made when asked for.

    Args:
      config: supplies the expert -> rank rule.
      topk: routing in physical ids.
      pod_size: ranks of a pod (supernode); rank r is in pod r // pod_size. None = no pods.

    Raises:
      ConfigError: the routing was made for another group, or pod_size is below 1.
    """
    topk.check_against(config)
    if pod_size is not None:
        pod_size = whole_number("pod_size", pod_size, 1)
    # The last entry is what index -1 reads: a masked expert is on rank -1.
    rank_of = np.append(config.expert_ranks(), -1)
    # A generator expression, so that the checks above run at the call and not at the first block.
    return (_block(src, idx, rank_of, config.ep_size, pod_size) for src, idx in enumerate(topk.topk_idx))


def _block(
    src_rank: int,
    idx: npt.NDArray[np.int64],
    rank_of: npt.NDArray[np.int64],
    ep_size: int,
    pod_size: int | None,
) -> LedgerBlock:
    num_tokens, num_topk = idx.shape
    dst = rank_of[idx]  # [T, K]
    columns = distinct_columns(dst, ep_size)
    hits, master = _group(columns)
    pod_master = None
    if pod_size is not None:
        # Masked columns stay negative, so they meet no pod; they are dropped below.
        _, pod_master = _group(columns // pod_size)
    keep = slice(None) if not idx.size or idx.min() >= 0 else (idx >= 0).ravel()

    def by_token(grid: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(grid.T).reshape(-1)[keep]

    return LedgerBlock(
        src_rank=src_rank,
        num_tokens=num_tokens,
        token=np.repeat(np.arange(num_tokens, dtype=np.int32), num_topk)[keep],
        k=np.tile(np.arange(num_topk, dtype=np.int16), num_tokens)[keep],
        dst_rank=dst.astype(np.int32).reshape(-1)[keep],
        expert=idx.astype(np.int32).reshape(-1)[keep],
        num_hits=by_token(hits),
        is_master=by_token(master),
        is_pod_master=None if pod_master is None else by_token(pod_master),
    )


def _group(columns: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Count equal columns of each token and mark the highest of them.

    Args:
      columns: [K, T] group of each choice.

    Returns:
      [K, T] int16 how many of the token's columns hold the same group; [K, T] bool, the last of them.
    """
    hits = np.ones(columns.shape, dtype=np.int16)
    master = np.ones(columns.shape, dtype=np.bool_)
    for k in range(1, columns.shape[0]):
        same = columns[:k] == columns[k]
        hits[:k] += same
        hits[k] += same.sum(axis=0, dtype=np.int16)
        master[:k] &= ~same
    return hits, master


def count_rows(config: EPConfig, topk: TopK, *, pod_size: int | None = None) -> RowCounts:
    """Count the rows of a routing by reading its ledger once.

    Args: as `ledger_blocks`; pod_size None = no pod counts.

    Returns:
      RowCounts, all int64 and exact.

    Raises:
      ConfigError: as `ledger_blocks`.
    """
    size = config.ep_size
    rows, single, entries = (np.zeros((size, size), dtype=np.int64) for _ in range(3))
    expert_rows = np.zeros(config.num_experts, dtype=np.int64)
    tokens = np.zeros(size, dtype=np.int64)
    blocks = ledger_blocks(config, topk, pod_size=pod_size)
    pods = None if pod_size is None else np.zeros((size, -(-size // pod_size)), dtype=np.int64)
    for block in blocks:
        src = block.src_rank
        tokens[src] = block.num_tokens
        # One pass gives both counts: even keys are masters with several hits, odd ones with one.
        key = 2 * block.dst_rank[block.is_master] + (block.num_hits[block.is_master] == 1)
        pairs = np.bincount(key, minlength=2 * size).reshape(size, 2)
        rows[src], single[src] = pairs.sum(axis=1), pairs[:, 1]
        entries[src] = np.bincount(block.dst_rank, minlength=size)
        expert_rows += np.bincount(block.expert, minlength=config.num_experts)
        if pods is not None and pod_size is not None:
            pod = block.dst_rank[block.is_pod_master] // pod_size
            pods[src] = np.bincount(pod, minlength=pods.shape[1])
    return RowCounts(
        num_tokens=tokens,
        rows=rows,
        single_rows=single,
        entries=entries,
        expert_rows=expert_rows,
        pod_size=pod_size,
        pod_rows=pods,
    )
