"""What a handle must hold when rows arrived in some legal order; the oracle knows the canonical order only.

Upstream slots come from atomics: the order of rows from one source (Ascend: from one core of a source) is
open. Everything else follows from that order, and is computed here by plain loops.

R ranks, T tokens of a rank, K top-k, M token capacity. gid = source rank * M + source token.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.definition import (
    Blocks,
    Received,
    columns_by_rank,
    expanded_rows,
    expert_blocks,
    experts_of_rank,
    received_rows,
)
from reference.handle import DispatchMode
from reference.topk import TopK

IntArray = npt.NDArray[np.int32]
ROWS_PER_DESCRIPTOR = 6
"""Rows of one target that a dispatch descriptor carries (deepep-ascend.md section 3.6: two SGEs a row)."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Rows by receiver in the order in which they lie there.

    Args:
      config: the group.
      topk: the routing.
      mode: the layout.
      rows: per receiver.
    """

    config: EPConfig
    topk: TopK
    mode: DispatchMode
    rows: list[list[Received]]

    def blocks(self, rank: int) -> Blocks:
        """Return the expert blocks of a rank."""
        return expert_blocks(self.config, self.topk, rank)

    def places(self, rank: int) -> list[list[int]]:
        """Return per received row and column its expanded row, -1 = none; blocks keep their order."""
        return expanded_rows(self.config, self.topk, rank, self.rows[rank], self.blocks(rank))

    def slots(self, src: int) -> IntArray:
        """Return dst_buffer_slot_idx [T, K] of a source."""
        base = src * self.config.num_max_tokens_per_rank if self.mode.rules.slot_has_rank else 0
        slots = np.full(self.topk.topk_idx[src].shape, -1, np.int32)
        for rows in self.rows:
            for slot, row in enumerate(row for row in rows if row.src == src):
                slots[row.token, row.columns[-1]] = base + slot
        return slots

    def gather_pairs(self, src: int, have: IntArray) -> IntArray:
        """Return dst_gsge_idx [T, K]: a core's rows by target, in slot order, six to a descriptor.

        The lanes of a warp reserve descriptors at once, so which target comes first is open.

        Args:
          src: the source.
          have: [T, K] what the backend has; only the order of targets is taken from it.
        """
        pairs = np.full(self.topk.topk_idx[src].shape, -1, np.int32)
        share = core_share(self.config, self.mode)
        sent: dict[int, dict[int, list[tuple[int, int]]]] = {}  # core -> target -> places in slot order
        for target, rows in enumerate(self.rows):
            for row in (row for row in rows if row.src == src != target):
                by_target = sent.setdefault(row.token // share, {})
                by_target.setdefault(target, []).append((row.token, row.columns[-1]))
        for by_target in sent.values():
            number = 0
            for places in sorted(by_target.values(), key=lambda places: int(have[places[0]])):
                for i, place in enumerate(places):
                    pairs[place] = number + i
                number += -(-len(places) // ROWS_PER_DESCRIPTOR) * ROWS_PER_DESCRIPTOR
        return pairs


def core_share(config: EPConfig, mode: DispatchMode) -> int:
    """Return how many neighbouring tokens of a source one core sends (Ascend)."""
    return -(-config.num_max_tokens_per_rank // mode.num_aivs)


def canonical_rows(config: EPConfig, topk: TopK, mode: DispatchMode) -> list[list[Received]]:
    """Return rows by receiver in canonical order."""
    return received_rows(config, topk, mode.scaleup_ranks(config))


def bound_part(config: EPConfig, mode: DispatchMode, row: Received) -> tuple[int, int]:
    """Return what decides a row's place as far as the contract does: source, and on Ascend its core."""
    has_cores = mode.rules.has_gather_idx
    return row.src, row.token // core_share(config, mode) if has_cores else 0


def arrived_rows(rows: list[Received], gids: npt.NDArray[Any], capacity: int) -> list[Received]:
    """Return canonical rows in the order of some gids, which are a permutation of theirs."""
    by_gid = {row.src * capacity + row.token: row for row in rows}
    return [by_gid[gid] for gid in gids.tolist()]


def experts_of_choices(config: EPConfig, topk: TopK, rank: int, row: Received) -> dict[int, int]:
    """Return the local expert of each of a received row's columns."""
    mine = experts_of_rank(config, rank)
    return {k: mine.index(int(topk.topk_idx[row.src][row.token, k])) for k in row.columns}


def targets_of(config: EPConfig, choices: list[int]) -> set[int]:
    """Return the ranks that a token goes to."""
    return set(columns_by_rank(config, choices))
