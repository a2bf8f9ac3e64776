"""TopK to handles: where every row lands, without moving any payload.

R ranks, SU ranks of a scale-up domain, T tokens, K top-k, L local experts, M token capacity, A alignment,
N received rows of a rank, X expanded rows, c_e real rows of local expert e.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.errors import ConfigError
from reference.handle import DispatchMode, Handle, topk_digest
from reference.memory.sizes import align
from reference.plan import ledger_blocks
from reference.poison import poison_int
from reference.routes import SendSide, send_side, small_ids, starts_of
from reference.topk import TopK

IntArray = npt.NDArray[np.int32]


def local_expert_ids(config: EPConfig) -> npt.NDArray[np.int64]:
    """Return [E] int64: each expert's number on its own rank, counted in ascending id."""
    ranks = config.expert_ranks()
    order = np.argsort(ranks, kind="stable")
    local = np.empty(len(ranks), dtype=np.int64)
    local[order] = np.arange(len(ranks)) - np.repeat(
        starts_of(config.experts_per_rank())[:-1], config.experts_per_rank()
    )
    return local


def worst_case_rows(config: EPConfig, num_local_experts: int) -> tuple[int, int]:
    """Return (N, X) that a dispatch without CPU sync allocates.

    Source: deepep-ascend.md section 1.5; deepep-v2.md section 2.5.
    """
    alignment = config.expert_alignment
    received = config.ep_size * config.num_max_tokens_per_rank
    choices = received * min(config.num_topk, num_local_experts)
    return received, align(choices + (alignment - 1) * num_local_experts, alignment)


def plan_dispatch(config: EPConfig, topk: TopK, *, mode: DispatchMode | None = None) -> tuple[Handle, ...]:
    """Decide every slot and row of a dispatch.

    Args:
      config: the group.
      topk: routing in physical ids.
      mode: the layout; None = `DispatchMode()`.

    Returns:
      One Handle per rank.

    Raises:
      ConfigError: the routing was made for another group, or R * M does not fit an int32 source index.
      EditionError: the edition lacks the layout.
    """
    placer = _placer(config, topk, DispatchMode() if mode is None else mode)
    return tuple(placer.handle(rank, topk) for rank in range(config.ep_size))


def plan_rank(config: EPConfig, topk: TopK, rank: int, *, mode: DispatchMode | None = None) -> Handle:
    """Return what `plan_dispatch` gives one rank, without placing the rows of the others.

    Raises:
      ConfigError: as `plan_dispatch`.
      EditionError: as `plan_dispatch`.
    """
    mode = DispatchMode() if mode is None else mode
    if mode.arrival_seed is not None:
        # A shuffle is drawn rank by rank, so the earlier ranks come first.
        return plan_dispatch(config, topk, mode=mode)[rank]
    return _placer(config, topk, mode).handle(rank, topk)


def _placer(config: EPConfig, topk: TopK, mode: DispatchMode) -> "_Placer":
    mode.scaleup_ranks(config)
    if config.ep_size * config.num_max_tokens_per_rank >= 2**31:
        rule = "ep_size times it must stay below 2^31, source indices are int32"
        raise ConfigError("num_max_tokens_per_rank", config.num_max_tokens_per_rank, rule)
    rng = None if mode.arrival_seed is None else np.random.default_rng(mode.arrival_seed)
    sides = [send_side(block, config, mode, rng) for block in ledger_blocks(config, topk)]
    return _Placer(config, mode, sides, rng)


@dataclass(frozen=True, eq=False)
class _Arrivals:
    """Choices that reach one rank, in order of received row and then column."""

    row: npt.NDArray[np.int64]  # received row
    gid: IntArray
    k: npt.NDArray[np.int16]
    local: npt.NDArray[np.int64]  # local expert
    is_master: npt.NDArray[np.bool_]
    group_slot: npt.NDArray[np.int64]  # per received row: slot inside its scale-up group


class _Placer:
    """Places rows rank by rank from what all senders have chosen."""

    def __init__(
        self, config: EPConfig, mode: DispatchMode, sides: list[SendSide], rng: np.random.Generator | None
    ) -> None:
        self.config, self.mode, self.sides, self.rng = config, mode, sides, rng
        self.scaleup = mode.scaleup_ranks(config)
        self.kept: dict[int, _Arrivals] = {}
        self.local_ids = local_expert_ids(config)
        self.num_local = config.experts_per_rank()
        self.rows = np.array([side.num_rows() for side in sides])  # [src, dst] deduplicated rows

    def handle(self, rank: int, topk: TopK) -> Handle:
        """Return the handle of one rank, as receiver and as sender."""
        arrivals = self._arrivals(rank)
        counts = np.bincount(arrivals.local, minlength=int(self.num_local[rank])).astype(np.int64)
        alignment = self.config.expert_alignment
        blocks = -(-counts // alignment) * alignment
        num_recv, num_expanded = int(self.rows[:, rank].sum()), int(blocks.sum())
        if not self.mode.cpu_sync:
            num_recv, num_expanded = worst_case_rows(self.config, len(counts))
        row_ends, block_ends = np.cumsum(blocks) - blocks + counts, np.cumsum(blocks)
        has_row_ends = self.mode.rules.psum_meaning(expand=self.mode.expand) == "row_ends"
        before, metadata = self._metadata(arrivals, num_recv, counts, blocks)
        idx, rules = topk.topk_idx[rank], self.mode.rules
        return Handle(
            rank=rank,
            config=self.config,
            mode=self.mode,
            source_topk_idx=idx.copy() if self.mode.copy_topk else idx,
            source_digest=topk_digest(idx) if rules.checks_topk_version else None,
            num_recv_tokens=num_recv,
            num_expanded_tokens=num_expanded,
            num_recv_tokens_per_expert_list=tuple(blocks.tolist()) if self.mode.cpu_sync else (),
            psum_num_recv_tokens_per_rank=np.cumsum(self.rows[:, rank]).astype(np.int32),
            psum_num_recv_tokens_per_expert=(row_ends if has_row_ends else block_ends).astype(np.int32),
            num_unaligned_recv_tokens_per_expert=counts.astype(np.int32),
            recv_src_metadata=metadata,
            dst_buffer_slot_idx=self._slot_grid(rank),
            dst_gsge_idx=self.sides[rank].gather_grid if rules.has_gather_idx else None,
            cached_recv_src_metadata_before_sort=before,
        )

    def _arrivals(self, rank: int) -> _Arrivals:
        """Return what reaches a rank; kept, because a shuffle may be drawn once only."""
        if self.scaleup == self.config.ep_size:
            return self._arrive(rank)
        if rank not in self.kept:
            self.kept[rank] = self._arrive(rank)
        return self.kept[rank]

    def _arrive(self, rank: int) -> _Arrivals:
        parts = [(side, side.part(rank)) for side in self.sides]
        lengths = [part.stop - part.start for _, part in parts]
        src = np.repeat(np.arange(self.config.ep_size, dtype=np.int32), lengths)
        token = np.concatenate([side.token[part] for side, part in parts])
        slot = np.concatenate([side.slot[part] for side, part in parts])
        k = np.concatenate([side.k[part] for side, part in parts])
        expert = np.concatenate([side.expert[part] for side, part in parts])
        master = np.concatenate([side.is_master[part] for side, part in parts])
        row = starts_of(self.rows[:, rank])[src] + slot
        gid = src * np.int32(self.config.num_max_tokens_per_rank) + token
        local = self.local_ids[expert]
        if self.rng is None or self.scaleup == self.config.ep_size:
            group_slot = _count_before(src[master] % self.scaleup, self.scaleup)
            return _Arrivals(row, gid, k, local, master, group_slot)
        # Hybrid: rows come by the source's scale-up index, and inside that from any domain in any order.
        group = src[master] % self.scaleup
        new_row = np.empty(len(group), dtype=np.int64)
        new_row[np.lexsort((self.rng.random(len(group)), group))] = np.arange(len(group))
        row = new_row[row]
        order = np.lexsort((k, row))
        group_slot = np.empty(len(group), dtype=np.int64)
        group_slot[new_row] = new_row - starts_of(np.bincount(group, minlength=self.scaleup))[group]
        return _Arrivals(row[order], gid[order], k[order], local[order], master[order], group_slot)

    def _metadata(
        self, arrivals: _Arrivals, num_recv: int, counts: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
    ) -> tuple[IntArray | None, IntArray]:
        """Return (metadata before the deterministic sort or None, metadata)."""
        starts = starts_of(blocks)[:-1]
        rows = self._expanded_rows(arrivals, counts, starts, by_gid=False) if self.mode.expand else None
        arrived = self._table(arrivals, rows, num_recv)
        if not self.mode.deterministic:
            return None, arrived
        if self.mode.expand:
            # Only the slots are rewritten: the rows of the table stay as they arrived.
            rows = self._expanded_rows(arrivals, counts, starts, by_gid=True)
            return arrived, self._table(arrivals, rows, num_recv)
        column = self.config.num_topk if self.mode.rules.metadata_order == "rows_first" else 0
        real = len(arrivals.group_slot)
        table = arrived.copy()
        table[:real] = arrived[:real][np.argsort(arrived[:real, column], kind="stable")]
        return arrived, table

    def _expanded_rows(
        self,
        arrivals: _Arrivals,
        counts: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        *,
        by_gid: bool,
    ) -> npt.NDArray[np.int64]:
        """Return the expanded row of each choice."""
        if by_gid:
            order = np.lexsort((arrivals.gid, arrivals.local))
        elif self.rng is not None and not self.mode.rules.has_ordered_experts:
            order = np.lexsort((self.rng.random(len(arrivals.local)), arrivals.local))
        else:
            order = np.argsort(small_ids(arrivals.local, len(counts)), kind="stable")
        rows = np.empty(len(order), dtype=np.int64)
        rows[order] = np.arange(len(order)) + np.repeat(starts - starts_of(counts)[:-1], counts)
        return rows

    def _table(self, arrivals: _Arrivals, rows: npt.NDArray[np.int64] | None, num_recv: int) -> IntArray:
        """Return recv_src_metadata [N, K+2] in the edition's column order."""
        topk, real = self.config.num_topk, len(arrivals.group_slot)
        table = np.full((num_recv, topk + 2), poison_int(np.int32), dtype=np.int32)
        gid, master = arrivals.gid[arrivals.is_master], arrivals.k[arrivals.is_master].astype(np.int64)
        if self.mode.rules.metadata_order == "rows_first":
            first_row, columns = 0, (topk, topk + 1)
        else:
            is_direct = self.scaleup == self.config.ep_size
            outer = gid // self.config.num_max_tokens_per_rank if is_direct else arrivals.group_slot
            first_row, columns, master = 2, (0, 1), outer * topk + master
        at = arrivals.row[arrivals.is_master]
        table[at, columns[0]], table[at, columns[1]] = gid, master
        if rows is not None:
            table[:real, first_row : first_row + topk] = -1
            table[arrivals.row, first_row + arrivals.k] = rows
        return table

    def _slot_grid(self, rank: int) -> IntArray:
        """Return dst_buffer_slot_idx of a source in the edition's form."""
        grid = self.sides[rank].slot_grid
        if not self.mode.rules.slot_has_rank:
            return grid
        if self.scaleup == self.config.ep_size:
            return np.where(grid < 0, -1, grid + np.int32(rank * self.config.num_max_tokens_per_rank))
        # Hybrid: the slot is the one inside the scale-up group, which only the receiver knows.
        slots = np.full(grid.shape, -1, dtype=np.int32)
        for dst in range(self.config.ep_size):
            arrivals = self._arrivals(dst)
            gid, slot = arrivals.gid[arrivals.is_master], arrivals.group_slot
            own = gid // self.config.num_max_tokens_per_rank == rank
            token = gid[own] - rank * self.config.num_max_tokens_per_rank
            slots[token, arrivals.k[arrivals.is_master][own]] = slot[own]
        return slots


def _count_before(groups: npt.NDArray[Any], num_groups: int) -> npt.NDArray[np.int64]:
    """Return, per element, how many elements of its group come before it."""
    order = np.argsort(small_ids(groups, num_groups), kind="stable")
    counts = np.bincount(groups, minlength=num_groups)
    before = np.empty(len(groups), dtype=np.int64)
    before[order] = np.arange(len(groups)) - np.repeat(starts_of(counts)[:-1], counts)
    return before
