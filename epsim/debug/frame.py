"""Which received row is which: read off the metadata of a capture, and what the contract lets stand there.

The contract leaves some orders open (slots come from atomics), so a capture is judged in its own order: where
it is legal, the expected tables follow it; where it is not, they say what must stand there.

R ranks, T tokens of a rank, K top-k, E experts, M token capacity, N received rows, X expanded rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.comparison.rowkeys import NO_SOURCE_ROW, PADDING_ROW, UNDEFINED_ROW, RowKeys
from reference.handle import Handle
from reference.placement import local_expert_ids

Ints = npt.NDArray[np.int64]


def settle(claims: Ints, right: Ints, group: Ints) -> Ints:
    """Return claims where they are legal, and for the others the places that nobody legally claims.

    Args:
      claims: [A] places that were taken.
      right: [A] places in canonical order; in each group a claim may be any of the group's, once.
      group: [A] what may be exchanged for each other.
    """
    if not len(right):
        return right
    span = int(right.max()) + 2
    inside = (claims >= 0) & (claims < span - 1)
    wanted = group * span + right
    got = group * span + np.where(inside, claims, span - 1)
    legal = inside & np.isin(got, wanted)
    # Of two that claim one place, the one whose canonical place it is keeps it.
    order = np.lexsort((np.arange(len(got)), got != wanted, got))
    legal[order[1:][got[order][1:] == got[order][:-1]]] = False
    free = np.setdiff1d(wanted, got[legal], assume_unique=True)
    wrong = np.flatnonzero(~legal)
    wrong = wrong[np.argsort(wanted[wrong], kind="stable")]
    settled = claims.copy()
    # Both are sorted by group, and each group lacks as many places as it has illegal claims.
    settled[wrong] = np.sort(free) - group[wrong] * span
    return settled


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """Choices of tokens whose rows stand at one rank: [A] each.

    Args:
      stream_row, src, token, k, expert, row: received record, source, column, global expert, row.
      counts: [L] rows that each expert's block was laid out for.
      holes: [lost] rows of the blocks that were laid out for records that are gone.
    """

    stream_row: Ints
    src: Ints
    token: Ints
    k: Ints
    expert: Ints
    row: Ints
    counts: Ints
    holes: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One rank's received rows as a capture has them.

    Args:
      handle: of the reference, canonical.
      gids: [n] source index of each captured stream row.
      num_tokens: [R] tokens of each rank.
      choices: expanded rows of the captured stream (expanded layout), in the capture's own order where legal.
      metadata: [N, K+2] what the captured table must hold, rows in the reference's order.
      is_whole: whether the captured stream has exactly the right rows.
      is_own: whether the order was read off the capture; else it is taken to be canonical.
    """

    handle: Handle
    gids: Ints
    num_tokens: Ints
    choices: Choices | None
    metadata: npt.NDArray[np.int32]
    is_whole: bool
    is_own: bool

    def stream_keys(self, num_rows: int | None = None) -> RowKeys:
        """Return the identity of each captured stream row; rows past the real ones are undefined."""
        num_rows = len(self.gids) if num_rows is None else num_rows
        return _stream_keys(self.handle, self.gids, num_rows, self.num_tokens)

    def row_keys(self, num_rows: int, *, zero_padding: bool) -> RowKeys:
        """Return the identity of each captured row of recv_x and its like."""
        if self.choices is None:
            return self.stream_keys(num_rows)
        return _expanded_keys(self.handle, self.choices, num_rows, zero_padding)

    def num_missing(self, num_rows: int) -> int:
        """Return how many rows of the stream lie past an array of so many rows."""
        places = np.arange(len(self.gids)) if self.choices is None else self.choices.row
        return int(np.count_nonzero(places >= num_rows))


def expected_stream_keys(handle: Handle) -> RowKeys:
    """Return the identity of the reference's stream rows."""
    return _stream_keys(handle, handle.gids().astype(np.int64), handle.num_recv_tokens)


def expected_row_keys(handle: Handle, topk: Sequence[Ints], *, zero_padding: bool) -> RowKeys:
    """Return the identity of the reference's rows of recv_x."""
    if not handle.mode.expand:
        return expected_stream_keys(handle)
    choices = _canonical_choices(handle, topk)
    return _expanded_keys(handle, choices, handle.num_rows, zero_padding)


def read_frame(
    handle: Handle,
    topk: Sequence[Ints],
    table: npt.NDArray[np.int32] | None,
    *,
    num_real: int | None = None,
    is_sorted: bool = False,
) -> Frame:
    """Read the order of one rank's rows off its captured metadata.

    Args:
      handle: of the reference, canonical.
      topk: per rank [T, K] ids.
      table: captured recv_src_metadata; None or of an odd shape = the canonical order is assumed.
      num_real: rows of the table that the capture says are real; None = as many as in the reference, or with
        CPU sync all.
      is_sorted: expanded rows must stand in the order of their sources (deterministic mode).

    Returns:
      Frame.
    """
    expected, num_tokens = np.array(handle.recv_src_metadata), np.array([len(ids) for ids in topk])
    own = table if table is not None and table.ndim == 2 and table.shape[1] == expected.shape[1] else None
    if own is None:
        gids = handle.gids().astype(np.int64)
        choices = _canonical_choices(handle, topk) if handle.mode.expand else None
        return Frame(
            handle=handle,
            gids=gids,
            num_tokens=num_tokens,
            choices=choices,
            metadata=expected,
            is_whole=True,
            is_own=False,
        )
    real = len(own)
    if not handle.mode.cpu_sync:
        real = min(real, handle.num_real_recv_tokens if num_real is None else max(0, num_real))
    gids = own[:real, _gid_column(handle)].astype(np.int64)
    right = handle.gids().astype(np.int64)
    is_whole = real == len(right) and bool(np.array_equal(np.sort(gids), np.sort(right)))
    choices = _own_choices(handle, topk, own, gids, is_sorted) if handle.mode.expand else None
    _follow(handle, expected, own, gids, choices)
    return Frame(
        handle=handle,
        gids=gids,
        num_tokens=num_tokens,
        choices=choices,
        metadata=expected,
        is_whole=is_whole,
        is_own=True,
    )


def take_by_source(grids: Sequence[npt.NDArray[Any]], src: Ints, token: Ints, k: Ints) -> Ints:
    """Return [A] values of per-rank [T, K] grids at (source rank, token, column)."""
    first = np.cumsum([0] + [len(grid) for grid in grids])
    return np.asarray(np.concatenate(grids)[first[src] + token, k], dtype=np.int64)


def in_reference_order(frame: Frame, rows: npt.NDArray[Any], topk: Sequence[Ints]) -> npt.NDArray[Any]:
    """Return a captured array of rows as it would stand in the reference's order; other rows are zero.

    Args:
      frame: whole, of that rank.
      rows: [rows, ..] as captured.
      topk: per rank [T, K] ids.
    """
    handle = frame.handle
    out = np.zeros((handle.num_rows, *rows.shape[1:]), dtype=rows.dtype)
    if frame.choices is None:
        right = handle.gids().astype(np.int64)
        out[np.argsort(right, kind="stable")] = rows[: len(right)][np.argsort(frame.gids, kind="stable")]
        return out
    mine, theirs = _canonical_choices(handle, topk), frame.choices
    here, there = (np.lexsort((c.k, c.token, c.src)) for c in (mine, theirs))
    out[mine.row[here]] = rows[theirs.row[there]]
    return out


def _gid_column(handle: Handle) -> int:
    return handle.config.num_topk if handle.mode.rules.metadata_order == "rows_first" else 0


def _first_row_column(handle: Handle) -> int:
    return 0 if handle.mode.rules.metadata_order == "rows_first" else 2


def _stream_keys(handle: Handle, gids: Ints, num_rows: int, num_tokens: Ints | None = None) -> RowKeys:
    """Return the identity of stream rows; with `num_tokens` [R], also of those that name no rank's token."""
    src, token = np.full(num_rows, UNDEFINED_ROW, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
    named = gids[:num_rows]
    real = len(named)
    src[:real], token[:real] = np.divmod(named, handle.config.num_max_tokens_per_rank)
    if num_tokens is not None:
        inside = (src[:real] >= 0) & (src[:real] < len(num_tokens))
        lost = np.flatnonzero(~inside | (token[:real] >= num_tokens[np.where(inside, src[:real], 0)]))
        src[lost], token[lost] = NO_SOURCE_ROW, named[lost]
    return RowKeys(src_rank=src, src_token=token)


def _expanded_keys(handle: Handle, choices: Choices, num_rows: int, zero_padding: bool) -> RowKeys:
    src, token = np.full(num_rows, UNDEFINED_ROW, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
    expert = np.full(num_rows, -1, dtype=np.int64)
    if zero_padding:
        owners = np.flatnonzero(handle.config.expert_ranks() == handle.rank)
        blocks = _blocks(handle, choices.counts)
        starts = np.cumsum(blocks) - blocks
        end = min(int(blocks.sum()), num_rows)
        src[:end], expert[:end] = PADDING_ROW, np.repeat(owners, blocks)[:end]
        token[:end] = (np.arange(int(blocks.sum())) - np.repeat(starts, blocks))[:end]
    src[choices.holes[choices.holes < num_rows]] = UNDEFINED_ROW
    at = choices.row < num_rows
    place = choices.row[at]
    src[place], token[place], expert[place] = choices.src[at], choices.token[at], choices.expert[at]
    return RowKeys(src_rank=src, src_token=token, expert=expert)


def _blocks(handle: Handle, counts: npt.NDArray[Any]) -> Ints:
    alignment = handle.config.expert_alignment
    return np.asarray(-(-counts.astype(np.int64) // alignment) * alignment)


def _canonical_choices(handle: Handle, topk: Sequence[Ints]) -> Choices:
    gids = handle.gids().astype(np.int64)
    stream_row, k = np.nonzero(handle.expanded_rows() >= 0)
    src, token = np.divmod(gids[stream_row], handle.config.num_max_tokens_per_rank)
    row = handle.expanded_rows()[stream_row, k].astype(np.int64)
    expert = take_by_source(topk, src, token, k)
    counts = handle.num_unaligned_recv_tokens_per_expert.astype(np.int64)
    return Choices(
        stream_row=stream_row,
        src=src,
        token=token,
        k=k,
        expert=expert,
        row=row,
        counts=counts,
        holes=np.empty(0, dtype=np.int64),
    )


def _own_choices(
    handle: Handle, topk: Sequence[Ints], table: npt.NDArray[np.int32], gids: Ints, is_sorted: bool
) -> Choices:
    """Return the choices behind the captured stream rows, each with the row that it may have.

    When rows are lost or doubled, the blocks may have been laid out with or without them; what agrees best
    with the table is taken, so that one lost row does not make every later row look wrong.
    """
    right = handle.gids().astype(np.int64)
    known = np.flatnonzero(np.isin(gids, right))
    distinct = known[np.sort(np.unique(gids[known], return_index=True)[1])]
    lost = right[~np.isin(right, gids)]
    candidates = [(known, lost[:0])]
    if len(distinct) < len(known):
        candidates.append((distinct, lost[:0]))
    if len(lost):
        candidates.append((distinct, lost))
    laid_out = [_lay_out(handle, topk, table, gids, rows, gone, is_sorted) for rows, gone in candidates]
    return min(laid_out, key=lambda found: found[0])[1]


def _lay_out(
    handle: Handle,
    topk: Sequence[Ints],
    table: npt.NDArray[np.int32],
    gids: Ints,
    stream_rows: Ints,
    gone: Ints,
    is_sorted: bool,
) -> tuple[int, Choices]:
    """Lay out blocks for some stream rows and for rows that are gone; count what the table has otherwise."""
    config, num_topk = handle.config, handle.config.num_topk
    gid = np.append(gids[stream_rows], gone)
    src, token = np.divmod(gid, config.num_max_tokens_per_rank)
    grid = np.stack([take_by_source(topk, src, token, np.full(len(src), k)) for k in range(num_topk)], axis=1)
    at, k = np.nonzero(np.append(config.expert_ranks(), -1)[grid] == handle.rank)
    local = local_expert_ids(config)[grid[at, k]]
    # Gone rows come after all others of their source, where they disturb least.
    place = np.append(stream_rows, np.full(len(gone), len(gids)))[at]
    source = src[at] if handle.mode.rules.has_ordered_experts or is_sorted else np.zeros_like(at)
    counts = np.bincount(local, minlength=int(config.experts_per_rank()[handle.rank]))
    blocks = _blocks(handle, counts)
    order = np.lexsort((gid[at] if is_sorted else place, source, local))
    right = np.empty(len(order), dtype=np.int64)
    shift = np.cumsum(blocks) - blocks - (np.cumsum(counts) - counts)
    right[order] = np.arange(len(order)) + np.repeat(shift, counts)
    here = place < len(gids)
    claims = np.full(len(at), -1, dtype=np.int64)
    claims[here] = table[place[here], _first_row_column(handle) + k[here]]
    row = right if is_sorted else settle(claims, right, local * (config.ep_size + 1) + source)
    found = Choices(
        stream_row=place[here],
        src=src[at][here],
        token=token[at][here],
        k=k[here],
        expert=grid[at, k][here],
        row=row[here],
        counts=counts,
        holes=row[~here],
    )
    return int(np.count_nonzero(row[here] != claims[here])), found


def _follow(
    handle: Handle,
    expected: npt.NDArray[np.int32],
    own: npt.NDArray[Any],
    gids: Ints,
    choices: Choices | None,
) -> None:
    """Write into the expected table the rows that the capture may choose itself."""
    if not len(gids):
        return
    right = handle.gids().astype(np.int64)
    order = np.argsort(gids, kind="stable")
    place = np.minimum(np.searchsorted(gids[order], right), len(gids) - 1)
    partner = order[place]  # first captured row of each source
    found = gids[partner] == right
    if choices is not None:
        rows = np.full((len(gids), handle.config.num_topk), -1, dtype=np.int32)
        rows[choices.stream_row, choices.k] = choices.row
        first = _first_row_column(handle)
        expected[np.flatnonzero(found), first : first + rows.shape[1]] = rows[partner[found]]
    is_hybrid = handle.mode.scaleup_ranks(handle.config) != handle.config.ep_size
    if is_hybrid:
        # The slot inside the scale-up group follows the arrival, which is open.
        topk = handle.config.num_topk
        slot, canonical = own[partner[found], 1] // topk, expected[np.flatnonzero(found), 1] // topk
        num_slots = handle.config.ep_size * handle.config.num_max_tokens_per_rank
        slot = np.where((slot >= 0) & (slot < num_slots), slot, canonical)
        expected[np.flatnonzero(found), 1] = slot * topk + handle.masters()[found]
