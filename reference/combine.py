"""Combine: what the experts made of a token goes home and is summed there, in a stated order.

R ranks, T tokens of a rank, K top-k, H hidden, M token capacity. "rows" is N in the deduplicated layout
(the caller has summed a rank's experts), X in the expanded one. Weights are never applied here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.arguments import check_each
from reference.errors import ConfigError
from reference.handle import Handle, check_group
from reference.homes import Home, find_homes
from reference.order import ReductionOrder
from reference.results import CombineResult
from reference.rows import gather_rows
from reference.sums import BF16, BitArray, Scratch, Terms, ordered_sums

BLOCK_BYTES = 4 * 2**20
"""Rows gathered at a time: enough to make each bulk copy long, few enough to stay near the caches."""
Rows = Sequence[npt.NDArray[Any]]


def combine(
    handles: Sequence[Handle],
    y: Rows,
    *,
    order: ReductionOrder,
    topk_weights: Rows | None = None,
    bias: tuple[Rows, ...] = (),
) -> tuple[CombineResult, ...]:
    """Return every token's sum over its experts to its home rank; the backward of dispatch.

    Args:
      handles: of one dispatch, by rank.
      y: per rank [rows, H] bf16, a row per dispatched row; those that no token made are not read.
      order: where the sum is rounded; see `order.py` and `order.library_order`.
      topk_weights: per rank what belongs to the rows: expanded [rows], deduplicated [rows, K] float32.
        They are gathered, never summed: each (token, k) has one rank.
      bias: up to two, each per rank [T, H] bf16, added before the rows.

    Returns:
      One result per home rank.

    Raises:
      ConfigError: an argument has another type, the handles do not belong together, or an array does not fit.
      EditionError: the edition lacks the order, or weights in it.
      StaleHandleError: a routing array was written to since dispatch.
      Source: deepep-ascend.md sections 1.6, 4.5, 4.6; deepep-v2.md section 3.
    """
    check_each("handles", handles, Handle)
    handles = tuple(handles)
    check_group(handles)
    _check_order(handles[0], order, topk_weights is not None)
    _check_rows(handles, y, topk_weights)
    _check_bias(handles, bias, y[0].shape[1])
    homes = find_homes(handles)
    bits = [array.view(np.uint16) for array in y]
    sums = Summer(handles[0], order, bits, is_summed=not handles[0].mode.expand)
    results = []
    for handle, home in zip(handles, homes, strict=True):
        x = sums.combine(home, [rows[handle.rank].view(np.uint16) for rows in bias])
        weights = None if topk_weights is None else _gather_weights(handle, home, topk_weights)
        results.append(CombineResult(rank=handle.rank, combined_x=x, combined_topk_weights=weights))
    return tuple(results)


def _check_order(first: Handle, order: ReductionOrder, has_weights: bool) -> None:
    if not isinstance(order, ReductionOrder):
        raise ConfigError("order", order, "must be a ReductionOrder, as order.RECIPES holds them by name")
    rules, is_hybrid = first.mode.rules, first.mode.scaleup_ranks(first.config) != first.config.ep_size
    order.check_edition(rules, is_hybrid=is_hybrid)
    if has_weights and first.mode.expand and not order.in_rank:
        raise rules.refuse(
            "topk_weights", "given", "returns no weights when expanded rows are not reduced per rank"
        )


def _check_rows(handles: tuple[Handle, ...], y: Rows, weights: Rows | None) -> None:
    check_each("y", y, np.ndarray)
    if len(y) != len(handles):
        raise ConfigError("y", f"{len(y)} ranks", f"there are {len(handles)} handles")
    for handle, rows in zip(handles, y, strict=True):
        where = f"y[rank {handle.rank}]"
        if rows.dtype != BF16:
            raise ConfigError(f"{where}.dtype", rows.dtype, "must be bfloat16")
        if rows.ndim != 2:
            raise ConfigError(f"{where}.shape", rows.shape, "must be [rows, hidden]")
        if rows.shape != (handle.num_rows, y[0].shape[1]) or not rows.flags.c_contiguous:
            rule = (
                f"must be contiguous [{handle.num_rows}, {y[0].shape[1]}], a row per row that dispatch gave"
            )
            raise ConfigError(f"{where}.shape", rows.shape, rule)
    if weights is None:
        return
    check_each("topk_weights", weights, np.ndarray)
    if len(weights) != len(handles):
        raise ConfigError("topk_weights", f"{len(weights)} ranks", f"there are {len(handles)} handles")
    for handle, values in zip(handles, weights, strict=True):
        shape = (handle.num_rows,) if handle.mode.expand else (handle.num_rows, handle.config.num_topk)
        if values.shape != shape or values.dtype != np.float32:
            rule = f"must be float32 {list(shape)}"
            raise ConfigError(f"topk_weights[rank {handle.rank}]", (values.shape, values.dtype), rule)


def _check_bias(handles: tuple[Handle, ...], bias: tuple[Rows, ...], hidden: int) -> None:
    # A list would be taken for one bias by upstream and silently ignored.
    if not isinstance(bias, tuple) or len(bias) > 2:
        raise ConfigError(
            "bias", type(bias), "must be a tuple of at most two biases, each one array per rank"
        )
    for number, rows in enumerate(bias):
        check_each(f"bias[{number}]", rows, np.ndarray)
        if len(rows) != len(handles):
            raise ConfigError(f"bias[{number}]", f"{len(rows)} ranks", f"there are {len(handles)} handles")
        for handle, values in zip(handles, rows, strict=True):
            shape = (handle.topk_idx.shape[0], hidden)
            if values.shape != shape or values.dtype != BF16 or not values.flags.c_contiguous:
                rule = f"must be contiguous bfloat16 {list(shape)}"
                raise ConfigError(f"bias[{number}][rank {handle.rank}]", (values.shape, values.dtype), rule)


def _gather_weights(handle: Handle, home: Home, weights: Rows) -> npt.NDArray[np.float32]:
    """Return [T, K]: of each choice the weight at its row, 0 where masked."""
    out = np.zeros(home.dst.shape, dtype=np.float32)
    row = home.row if handle.mode.expand else _rows_of_masters(home)
    for rank, values in enumerate(weights):
        at = np.nonzero((home.dst == rank) & (row >= 0))
        picked = values[row[at]] if handle.mode.expand else values[row[at], at[1]]
        out.view(np.uint32)[at] = picked.view(np.uint32)
    return out


def _rows_of_masters(home: Home) -> npt.NDArray[np.int32]:
    """Return [T, K]: each choice's row, which is its rank's master's."""
    row = home.row.copy()
    for master in range(row.shape[1]):
        for k in range(master):
            same = (home.dst[:, k] == home.dst[:, master]) & (home.row[:, master] >= 0)
            row[same, k] = home.row[same, master]
    return row


@dataclass(frozen=True, eq=False)
class _Items:
    """What is left to add in a block: a token, its key in the order, and where its row lies in the pool."""

    token: npt.NDArray[np.int64]
    key: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


class Summer:
    """Sums the tokens of one home rank after the other, a block of tokens at a time."""

    def __init__(self, first: Handle, order: ReductionOrder, y: list[BitArray], *, is_summed: bool) -> None:
        """Take the rows of all ranks.

        Args:
          first: any handle of the group.
          order: where the sum is rounded.
          y: per rank [rows, H] bf16 bits.
          is_summed: there is one row per (token, rank), at its master; else one per choice.
        """
        self.order, self.y, self.hidden = order, y, y[0].shape[1]
        self.start = first.mode.rules.sum_start
        self.scratch = Scratch(self.hidden)
        self.is_summed = is_summed
        self.domain_size = first.mode.scaleup_ranks(first.config)
        row_bytes = 2 * max(self.hidden, 1) * first.config.num_topk
        self.block = max(1, BLOCK_BYTES // row_bytes)

    def combine(self, home: Home, biases: list[BitArray]) -> npt.NDArray[Any]:
        """Return combined_x [T, H] bf16 of one home rank."""
        num_tokens = home.dst.shape[0]
        out = np.empty((num_tokens, self.hidden), dtype=np.uint16)
        for low in range(0, num_tokens, self.block):
            part = slice(low, min(low + self.block, num_tokens))
            self._block(home.dst[part], home.row[part], tuple(b[part] for b in biases), out[part])
        return out.view(BF16)

    def _block(
        self,
        dst: npt.NDArray[np.int64],
        row: npt.NDArray[np.int32],
        biases: tuple[BitArray, ...],
        out: BitArray,
    ) -> None:
        token, k = np.nonzero(row >= 0)
        rank = dst[token, k]
        by_rank = np.argsort(rank, kind="stable")  # then by token and column: a group's rows are neighbours
        token, k, rank = token[by_rank], k[by_rank], rank[by_rank]
        # Behind the rows is room for sums: of ranks at most as many as rows, then as many of domains.
        self.pool = self.scratch.rows("pool", 3 * len(token), np.uint16)
        self.num_pooled = len(token)
        gather_rows(self.pool[: len(token)], self.y, rank, row[token, k])
        items = _Items(token, k, rank, np.arange(len(token)))
        if self.order.in_rank and not self.is_summed:
            items = self._reduce(items, items.rank, keep_single=True)
        if self.order.in_domain:
            items = self._reduce(items, items.rank // self.domain_size, keep_single=False)
        final = np.lexsort((items.key, items.token))
        count = np.bincount(items.token, minlength=len(out))
        terms = Terms(positions=items.position[final], first=np.cumsum(count) - count, count=count)
        ordered_sums(self.pool, terms, biases, self.start, out, self.scratch)

    def _reduce(self, items: _Items, group: npt.NDArray[np.int64], *, keep_single: bool) -> _Items:
        """Sum the items of each (token, group) in ascending key; the group's key is its highest.

        Args:
          items: what is left to add.
          group: group of each item.
          keep_single: a group of one item stays bit for bit what it is; else it passes through a sum.

        Returns:
          One item per group; new sums are at the end of the pool.
        """
        order = np.lexsort((items.key, items.token, group))
        token, key, position = items.token[order], items.key[order], items.position[order]
        is_first = np.append(True, (np.diff(token) != 0) | (np.diff(group[order]) != 0))[: len(order)]
        first = np.flatnonzero(is_first)
        count = np.diff(np.append(first, len(order)))
        last = first + count - 1
        new_position = position[last]
        summed = np.flatnonzero(count > 1) if keep_single else np.arange(len(first))
        end = self.num_pooled + len(summed)
        terms = Terms(positions=position, first=first[summed], count=count[summed])
        sums = self.pool[self.num_pooled : end]
        ordered_sums(self.pool, terms, (), self.start, sums, self.scratch)
        new_position[summed] = np.arange(self.num_pooled, end)
        self.num_pooled = end
        return _Items(token[last], key[last], items.rank[order][last], new_position)
