"""From a routing to the work of every vector core (AIV): who sends how many records to whom.

R ranks, C AIVs of a rank, T tokens of an AIV, M token capacity. AIV a owns tokens a*T .. (a+1)*T-1 of its
rank, T = ceil(M / C) (deepep-ascend.md sections 0 and 4.2).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.plan import ledger_blocks
from reference.topk import TopK

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Rows of one dispatch by sender core and destination; combine returns the same rows.

    Args:
      num_tokens: [R] int64, own tokens.
      records: [R, C, R] int64, distinct (token, rank) pairs from an AIV of src to dst, own rank included.
      single_rows: [R, R] int64, rows [src, dst] with exactly one expert on dst.
      entries: [R, R] int64, valid (token, expert) choices [src, dst].
      num_experts: E, of the group.
    """

    num_tokens: Int64
    records: Int64
    single_rows: Int64
    entries: Int64
    num_experts: int

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.num_tokens)

    @property
    def num_aivs(self) -> int:
        """C."""
        return int(self.records.shape[1])

    @cached_property
    def rows(self) -> Int64:
        """[R, R] rows [src, dst] of dispatch, own rank included."""
        return np.asarray(self.records.sum(axis=1))

    @cached_property
    def summed_rows(self) -> Int64:
        """[R, R] rows [src, dst] with several experts on dst: combine sums each there before it returns."""
        return np.asarray(self.rows - self.single_rows)

    @cached_property
    def summed_reads(self) -> Int64:
        """[R, R] expert rows behind `summed_rows`."""
        return np.asarray(self.entries - self.single_rows)


def count_work(config: EPConfig, topk: TopK, num_aivs: int) -> Work:
    """Count the work of a routing.

    Args:
      config: the group.
      topk: routing in physical ids.
      num_aivs: C.

    Raises:
      ConfigError: the routing was made for another group.
    """
    size = config.ep_size
    share = max(1, -(-config.num_max_tokens_per_rank // num_aivs))
    records = np.zeros((size, num_aivs, size), np.int64)
    single, entries = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    tokens = np.zeros(size, np.int64)
    for block in ledger_blocks(config, topk):
        src, master = block.src_rank, block.is_master
        tokens[src] = block.num_tokens
        key = (block.token[master] // share).astype(np.int64) * size + block.dst_rank[master]
        records[src] = np.bincount(key, minlength=num_aivs * size).reshape(num_aivs, size)
        alone = block.dst_rank[master & (block.num_hits == 1)]
        single[src] = np.bincount(alone, minlength=size)
        entries[src] = np.bincount(block.dst_rank, minlength=size)
    return Work(
        num_tokens=tokens,
        records=records,
        single_rows=single,
        entries=entries,
        num_experts=config.num_experts,
    )
