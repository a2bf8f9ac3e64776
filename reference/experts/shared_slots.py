"""Routed ids moved to make room for the slots of shared experts.

R ranks, S routed slots of a rank (physical: after any map from logical ids), Q shared slots of a rank. With
them a rank has S + Q slots: the routed ones first, then the shared ones.
Source: cases.md G38.
"""

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError


def add_shared_slots(
    physical_ids: npt.NDArray[np.int64], *, num_routed_per_rank: int, num_shared_per_rank: int
) -> npt.NDArray[np.int64]:
    """Renumber routed experts; the rank of an expert does not change.

    Args:
      physical_ids: any shape, int64, physical ids, -1 = none. Logical ids would land on other ranks
        once experts are redundant.
      num_routed_per_rank: S of the physical placement, not of the logical experts.
      num_shared_per_rank: Q, 0 = nothing changes.

    Returns:
      same shape, int64; local part below S, -1 stays.

    Raises:
      ConfigError: ids of another kind, or a number out of range.
    """
    routed = whole_number("num_routed_per_rank", num_routed_per_rank, 1)
    shared = whole_number("num_shared_per_rank", num_shared_per_rank, 0)
    if physical_ids.dtype != np.int64:
        raise ConfigError("physical_ids", str(physical_ids.dtype), "must be int64")
    return np.where(physical_ids < 0, physical_ids, physical_ids + physical_ids // routed * shared)


def shared_expert_id(
    rank: int, shared_idx: int, *, num_routed_per_rank: int, num_shared_per_rank: int
) -> int:
    """Return the id of a shared slot: local part S + shared_idx on `rank`.

    Raises:
      ConfigError: a number is out of range.
    """
    rank = whole_number("rank", rank, 0)
    routed = whole_number("num_routed_per_rank", num_routed_per_rank, 1)
    shared = whole_number("num_shared_per_rank", num_shared_per_rank, 1)
    index = whole_number("shared_idx", shared_idx, 0)
    if index >= shared:
        raise ConfigError("shared_idx", index, f"a rank has {shared} shared slots")
    return rank * (routed + shared) + routed + index
