"""What dispatch and combine mean: plain loops, straight from the routing. Slow on purpose; the oracle.

Nothing here is clever, shared with the fast path, or ordered by luck. Read it top to bottom.

  R   ranks, rank r                    E   experts; each lives on one rank, L of them on a given rank
  T   tokens of a rank                 K   experts that a token chooses, in columns k = 0 .. K-1; -1 = none
  M   token capacity of a rank         H   hidden: elements of a token
  SU  ranks of a scale-up domain; ranks d*SU .. d*SU+SU-1 are domain d. SU = R: one domain, no second level.
  gid     one number per token of the group: source rank * M + source token
  master  of a token on a rank: the highest column k whose expert lives there
  received row   one per (token, rank): the token travels once, however many of its experts live there
  expanded row   one per (token, expert): rows of one expert form a block, blocks start at multiples of A

A dispatch that is not expanded delivers received rows; an expanded one copies each to its expanded rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.handle import DispatchMode, Handle, topk_digest
from reference.poison import poison, poison_int
from reference.results import DispatchResult
from reference.topk import TopK

Rows = Sequence[npt.NDArray[Any]]
Row = npt.NDArray[Any]


# --- where experts live ----------------------------------------------------------------------------


def rank_of_expert(config: EPConfig, expert: int) -> int:
    """Return the rank that holds an expert: expert e is on rank e // (E / R), unless a map says otherwise."""
    if config.expert_map is not None:
        return config.expert_map.expert_ranks[expert]
    return expert // (config.num_experts // config.ep_size)


def experts_of_rank(config: EPConfig, rank: int) -> list[int]:
    """Return a rank's experts; their place in this list is their local id there."""
    return [e for e in range(config.num_experts) if rank_of_expert(config, e) == rank]


def columns_by_rank(config: EPConfig, choices: Sequence[int]) -> dict[int, list[int]]:
    """Return for each rank that a token goes to its columns there, ascending; the last is the master."""
    found: dict[int, list[int]] = {}
    for k, expert in enumerate(choices):
        if expert >= 0:
            found.setdefault(rank_of_expert(config, expert), []).append(k)
    return found


# --- dispatch --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Received:
    """One row that a rank receives."""

    src: int
    token: int
    columns: list[int]
    """The token's columns whose experts live on the receiver, ascending."""


def received_rows(config: EPConfig, topk: TopK, scaleup_ranks: int) -> list[list[Received]]:
    """Return what each rank receives, by source rank and then source token: the canonical order.

    A token first goes once to every domain where it has an expert, to the rank there that has the sender's
    place in its own domain; that rank hands it on, once to every rank of its domain that needs it. With one
    domain the first step stays on the sender.
    """
    received: list[list[Received]] = [[] for _ in range(config.ep_size)]
    for src in range(config.ep_size):
        for token, choices in enumerate(topk.topk_idx[src].tolist()):
            targets = columns_by_rank(config, choices)
            for domain in sorted({rank // scaleup_ranks for rank in targets}):
                relay = domain * scaleup_ranks + src % scaleup_ranks
                for place in range(scaleup_ranks):
                    rank = relay // scaleup_ranks * scaleup_ranks + place
                    if rank in targets:
                        received[rank].append(Received(src=src, token=token, columns=targets[rank]))
    return received


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The expert blocks of one rank."""

    counts: list[int]
    """Real rows of each local expert."""
    starts: list[int]
    """First row of each block, and after them the end of the last block."""


def expert_blocks(config: EPConfig, topk: TopK, rank: int) -> Blocks:
    """Count a rank's expanded rows and lay out its blocks; an expert without rows has an empty block."""
    counts, starts = [], [0]
    for expert in experts_of_rank(config, rank):
        count = sum(expert in choices for idx in topk.topk_idx for choices in idx.tolist())
        padded = count
        while padded % config.expert_alignment:
            padded += 1
        counts.append(count)
        starts.append(starts[-1] + padded)
    return Blocks(counts=counts, starts=starts)


def expanded_rows(
    config: EPConfig, topk: TopK, rank: int, rows: list[Received], blocks: Blocks
) -> list[list[int]]:
    """Return, per received row and column, its expanded row; -1 = the expert is elsewhere, or none."""
    mine = experts_of_rank(config, rank)
    free = list(blocks.starts)  # the next free row of each block
    placed = []
    for row in rows:
        places = [-1] * config.num_topk
        for k in row.columns:
            local = mine.index(int(topk.topk_idx[row.src][row.token, k]))
            places[k] = free[local]
            free[local] += 1
        placed.append(places)
    return placed


def define_dispatch(
    config: EPConfig,
    topk: TopK,
    x: Rows,
    *,
    scales: Rows | None = None,
    mode: DispatchMode | None = None,
    zero_padding: bool = False,
) -> tuple[tuple[DispatchResult, ...], tuple[Handle, ...]]:
    """Send every token to every rank that holds one of its experts.

    Args:
      config: the group.
      topk: the routing; its weights travel as they are and are never applied.
      x: per rank [T, columns], opaque.
      scales: per rank [T, packs], opaque; None = none.
      mode: the layout, canonical order only; None = `DispatchMode()`.
      zero_padding: rows between an expert's last row and the end of its block are zero; else undefined.

    Returns:
      (results, handles), one of each per rank.
    """
    mode = DispatchMode() if mode is None else mode
    everyone = received_rows(config, topk, mode.scaleup_ranks(config))
    results, handles = [], []
    for rank, rows in enumerate(everyone):
        blocks = expert_blocks(config, topk, rank)
        places = expanded_rows(config, topk, rank, rows, blocks)
        handle = _handle(config, topk, mode, rank, everyone, blocks, places)
        layout = _Layout(handle=handle, rows=rows, places=places, blocks=blocks, zero_padding=zero_padding)
        ids = None
        if not mode.expand:
            ids = layout.fill([_localised(config, idx, rank) for idx in topk.topk_idx])
        results.append(
            DispatchResult(
                rank=rank,
                recv_x=layout.fill(x),
                recv_scales=None if scales is None else layout.fill(scales),
                recv_topk_idx=ids,
                recv_topk_weights=None if topk.topk_weights is None else layout.weights(topk.topk_weights),
            )
        )
        handles.append(handle)
    return tuple(results), tuple(handles)


def _localised(config: EPConfig, idx: npt.NDArray[np.int64], rank: int) -> npt.NDArray[np.int64]:
    """Return ids as their receiver sees them: its local id, or -1."""
    mine = experts_of_rank(config, rank)
    seen = [[mine.index(e) if e in mine else -1 for e in choices] for choices in idx.tolist()]
    return np.array(seen, dtype=np.int64).reshape(idx.shape)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Fills one rank's outputs."""

    handle: Handle
    rows: list[Received]
    places: list[list[int]]
    blocks: Blocks
    zero_padding: bool

    def empty(self, columns: tuple[int, ...], dtype: np.dtype[Any]) -> Row:
        """Return an output whose every row is still undefined, or zero where padding must be."""
        out = np.empty((self.handle.num_rows, *columns), dtype=dtype)
        poison(out)
        if self.zero_padding:
            out[: self.blocks.starts[-1]] = 0
        return out

    def fill(self, arrays: Rows) -> Row:
        """Copy each token's row to where it goes."""
        out = self.empty(arrays[0].shape[1:], arrays[0].dtype)
        for i, row in enumerate(self.rows):
            if not self.handle.mode.expand:
                out[i] = arrays[row.src][row.token]
                continue
            for k in row.columns:
                out[self.places[i][k]] = arrays[row.src][row.token]
        return out

    def weights(self, weights: Rows) -> Row:
        """Copy weights: all K of a received row, or the one that belongs to an expanded row."""
        if not self.handle.mode.expand:
            return self.fill(weights)
        out = self.empty((), weights[0].dtype)
        for i, row in enumerate(self.rows):
            for k in row.columns:
                out[self.places[i][k]] = weights[row.src][row.token, k]
        return out


# --- the handle: what dispatch leaves behind for combine --------------------------------------------


def _handle(
    config: EPConfig,
    topk: TopK,
    mode: DispatchMode,
    rank: int,
    everyone: list[list[Received]],
    blocks: Blocks,
    places: list[list[int]],
) -> Handle:
    rows, rules = everyone[rank], mode.rules
    num_local, capacity = len(blocks.counts), config.num_max_tokens_per_rank
    num_recv, num_expanded = len(rows), blocks.starts[-1]
    if not mode.cpu_sync:
        # Every rank could send everything here, each token to as many experts as there can be.
        num_recv = config.ep_size * capacity
        num_expanded = num_recv * min(config.num_topk, num_local) + (config.expert_alignment - 1) * num_local
        while num_expanded % config.expert_alignment:
            num_expanded += 1
    if rules.psum_meaning(expand=mode.expand) == "row_ends":
        psum = [start + count for start, count in zip(blocks.starts, blocks.counts, strict=False)]
    else:
        psum = blocks.starts[1:]
    idx = topk.topk_idx[rank]
    return Handle(
        rank=rank,
        config=config,
        mode=mode,
        source_topk_idx=idx,
        source_digest=topk_digest(idx) if rules.checks_topk_version else None,
        num_recv_tokens=num_recv,
        num_expanded_tokens=num_expanded,
        num_recv_tokens_per_expert_list=tuple(np.diff(blocks.starts).tolist()) if mode.cpu_sync else (),
        psum_num_recv_tokens_per_rank=_int32([sum(r.src <= s for r in rows) for s in range(config.ep_size)]),
        psum_num_recv_tokens_per_expert=_int32(psum),
        num_unaligned_recv_tokens_per_expert=_int32(blocks.counts),
        recv_src_metadata=_metadata(config, mode, rows, places, num_recv),
        dst_buffer_slot_idx=_slots(config, topk, mode, rank, everyone),
        dst_gsge_idx=_gather_pairs(config, topk, mode, rank) if rules.has_gather_idx else None,
    )


def _int32(values: list[Any]) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _metadata(
    config: EPConfig, mode: DispatchMode, rows: list[Received], places: list[list[int]], num_recv: int
) -> npt.NDArray[np.int32]:
    """Return one line per received row: where it came from and where its copies stand."""
    undefined = poison_int(np.int32)
    scaleup = mode.scaleup_ranks(config)
    lines = []
    for i, row in enumerate(rows):
        gid, master = row.src * config.num_max_tokens_per_rank + row.token, row.columns[-1]
        if mode.rules.metadata_order == "rows_first":
            lines.append([*places[i], gid, master])
            continue
        outer = row.src
        if scaleup != config.ep_size:
            outer = sum(r.src % scaleup == row.src % scaleup for r in rows[:i])
        lines.append(
            [
                gid,
                outer * config.num_topk + master,
                *(places[i] if mode.expand else [undefined] * config.num_topk),
            ]
        )
    lines += [[undefined] * (config.num_topk + 2)] * (num_recv - len(rows))
    return _int32(lines).reshape(num_recv, config.num_topk + 2)


def _slots(
    config: EPConfig, topk: TopK, mode: DispatchMode, src: int, everyone: list[list[Received]]
) -> npt.NDArray[np.int32]:
    """Return at each master its slot: how many rows of the same region stand before it at the target."""
    # With one domain a region belongs to one source, else to all sources with one place in their domains.
    scaleup = mode.scaleup_ranks(config)
    is_direct = scaleup == config.ep_size
    origin = src * config.num_max_tokens_per_rank if is_direct and mode.rules.slot_has_rank else 0
    slots = np.full(topk.topk_idx[src].shape, -1, dtype=np.int32)
    for rows in everyone:
        slot = origin
        for row in rows:
            if row.src == src:
                slots[row.token, row.columns[-1]] = slot
            slot += row.src % scaleup == src % scaleup
    return slots


def _gather_pairs(config: EPConfig, topk: TopK, mode: DispatchMode, src: int) -> npt.NDArray[np.int32]:
    """Return at each remote master its place in the descriptor list of the core (AIV) that sends it.

    A core owns ceil(M / C) neighbouring tokens. It writes one target after the other, src+1 first and around;
    a descriptor carries up to 6 rows of one target, and the next target starts a new descriptor.
    """
    pairs = np.full(topk.topk_idx[src].shape, -1, dtype=np.int32)
    choices = topk.topk_idx[src].tolist()
    share = -(-config.num_max_tokens_per_rank // mode.num_aivs)
    for first in range(0, len(choices), share):
        number = 0
        for distance in range(1, config.ep_size):
            target = (src + distance) % config.ep_size
            while number % 6:
                number += 1
            for token in range(first, min(first + share, len(choices))):
                columns = columns_by_rank(config, choices[token]).get(target)
                if columns:
                    pairs[token, columns[-1]] = number
                    number += 1
    return pairs
