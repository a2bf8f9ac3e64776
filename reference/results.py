"""What one rank sees after dispatch and after combine.

R ranks, T tokens of a rank, K top-k, L local experts, P scale packs, W payload columns, N received rows, X
expanded rows. "rows" is N in the deduplicated layout and X in the expanded one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchResult:
    """The arrays of one receiving rank. Rows that the contract leaves undefined hold poison (`poison.py`).

    Args:
      rank: the receiving rank.
      recv_x: [rows, W] the payload's dtype, copied byte for byte.
      recv_scales: [rows, P] the scales' dtype, row- or column-major as asked; None = none were sent.
      recv_topk_idx: [N, K] int64 local expert, -1 = not on this rank; None in the expanded layout.
      recv_topk_weights: deduplicated [N, K] float32, the source row verbatim, other ranks' columns included;
        expanded [X] float32, the weight of the choice that made the row; None = none were sent.
      recv_expert_ids: [X] int32 local expert of an expanded row, -1 = padding; None = not asked for.
      cumulative_local_expert_recv_stats: [L] int32, what the caller passed plus the unaligned counts.
    """

    rank: int
    recv_x: npt.NDArray[Any]
    recv_scales: npt.NDArray[Any] | None = None
    recv_topk_idx: npt.NDArray[np.int64] | None = None
    recv_topk_weights: npt.NDArray[np.float32] | None = None
    recv_expert_ids: npt.NDArray[np.int32] | None = None
    cumulative_local_expert_recv_stats: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CombineResult:
    """What a token's home rank gets back: the complete sum, not a partial one.

    Args:
      rank: the home rank.
      combined_x: [T, H] bf16; a token without experts gets its biases, or +0.
      combined_topk_weights: [T, K] float32, 0 where masked; None = combine was given no weights.
    """

    rank: int
    combined_x: npt.NDArray[Any]
    combined_topk_weights: npt.NDArray[np.float32] | None = None
