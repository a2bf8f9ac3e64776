"""Whether the handles of a group fit together: each choice of each sender has one row of its expert.

R ranks, E experts, T tokens of a rank, K top-k.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError
from reference.handle import Handle

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Home:
    """One home rank's choices: where each one's row lies."""

    dst: npt.NDArray[np.int64]  # [T, K] rank, -1 = none
    row: npt.NDArray[np.int32]  # [T, K] row there, -1 = none or, deduplicated, not the master


def find_homes(handles: tuple[Handle, ...]) -> list[Home]:
    """Turn what the receivers know around, so that each sender finds its rows.

    Args:
      handles: of one group and layout, by rank.

    Returns:
      one Home per rank.

    Raises:
      ConfigError: a choice has no row, or one of another expert, or an expert another number of rows: the
        handles come from different dispatches.
      StaleHandleError: a routing array was written to since.
    """
    config, is_expanded = handles[0].config, handles[0].mode.expand
    owner = np.append(config.expert_ranks(), -1)  # index -1, a masked choice, is on rank -1
    rows = [np.full(h.topk_idx.shape, -1, dtype=np.int32) for h in handles]
    found = [np.full(h.topk_idx.shape, -1, dtype=np.int64) for h in handles]
    for handle in handles:
        src, token = np.divmod(handle.gids(), handle.num_max_tokens_per_rank)
        if is_expanded:
            here, column = np.nonzero(handle.expanded_rows() >= 0)
            row = handle.expanded_rows()[here, column]
            what = _experts_of(handle, row)
        else:
            here = np.arange(len(src))
            column, row = handle.masters().astype(np.int64), here.astype(np.int32)
            what = np.full(len(here), handle.rank, dtype=np.int64)
        for rank in range(len(handles)):
            at = src[here] == rank
            place = token[here[at]], column[at]
            if len(place[0]) and place[0].max() >= len(rows[rank]):
                _refuse(f"recv_src_metadata of rank {handle.rank}", f"token {place[0].max()} of rank {rank}")
            rows[rank][place], found[rank][place] = row[at], what[at]
    homes = [Home(owner[h.topk_idx], row) for h, row in zip(handles, rows, strict=True)]
    for handle, home, found_at in zip(handles, homes, found, strict=True):
        # An expanded row is of one expert; a deduplicated one says its rank and the master column.
        want = handle.topk_idx if is_expanded else np.where(_masters(home.dst), home.dst, -1)
        if (want != found_at).any():
            token, k = np.argwhere(want != found_at)[0]
            value = f"expert {handle.topk_idx[token, k]}"
            _refuse(f"topk_idx of rank {handle.rank}, token {token}, column {k}", value)
    _check_counts(handles)
    return homes


def _experts_of(handle: Handle, row: npt.NDArray[np.int32]) -> Ints:
    """Return the expert in whose block each expanded row lies; E = behind the last block."""
    local = np.searchsorted(handle.block_starts(), row, side="right") - 1
    experts = np.flatnonzero(handle.config.expert_ranks() == handle.rank)
    return np.append(experts, handle.num_experts)[local]


def _check_counts(handles: tuple[Handle, ...]) -> None:
    """Refuse receivers whose experts have not as many rows as all senders together chose them."""
    owner, num_experts = handles[0].config.expert_ranks(), handles[0].num_experts
    chosen = np.zeros(num_experts, dtype=np.int64)
    for handle in handles:
        chosen += np.bincount(handle.topk_idx[handle.topk_idx >= 0], minlength=num_experts)
    for handle in handles:
        here = np.flatnonzero(owner == handle.rank)
        wrong = np.flatnonzero(chosen[here] != handle.num_unaligned_recv_tokens_per_expert)
        if len(wrong):
            field = f"num_unaligned_recv_tokens_per_expert[{wrong[0]}] of rank {handle.rank}"
            _refuse(field, str(handle.num_unaligned_recv_tokens_per_expert[wrong[0]]))


def _refuse(field: str, value: str) -> None:
    raise ConfigError(field, value, "rows and routing disagree, the handles must come from one dispatch")


def _masters(dst: Ints) -> npt.NDArray[np.bool_]:
    """Return [T, K]: whether no later column of the token has the same rank."""
    master = dst >= 0
    for k in range(dst.shape[1] - 1):
        master[:, k] &= (dst[:, k : k + 1] != dst[:, k + 1 :]).all(axis=1)
    return master
