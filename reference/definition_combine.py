"""What combine means: plain loops over tokens, the other half of `definition.py`, whose words it uses.

  R ranks, T tokens of a rank, K top-k columns, H hidden.

Every (token, expert) has a row of expert output at the expert's rank. Combine adds a token's rows up at home.
It never weights them: whoever wrote the rows has done so. What it adds in which order, and where it rounds to
bf16, is the `ReductionOrder`; the additions themselves are fp32.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.definition import columns_by_rank
from reference.edition import SumStart
from reference.handle import Handle
from reference.order import ReductionOrder
from reference.results import CombineResult

Row = npt.NDArray[Any]
Rows = Sequence[Row]
BF16 = ml_dtypes.bfloat16


def rounded(values: npt.NDArray[np.float32]) -> Row:
    """Return fp32 values as bf16, to nearest, ties to even."""
    with np.errstate(over="ignore"):
        return values.astype(BF16)


def add(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the fp32 sum; infinities may meet."""
    with np.errstate(invalid="ignore", over="ignore"):
        return left + right


def sum_rows(rows: list[Row], biases: list[Row], hidden: int, start: SumStart) -> Row:
    """Add bf16 rows of [H]: the biases first, then the rows in order, fp32, one rounding.

    The two libraries start differently, which shows in the sign of a zero alone. Ascend starts from the first
    input, so a single one is a copy. NVIDIA starts from +0, unless there is no bias and at most two rows:
    then it adds these two, a missing one being +0.
    """
    inputs = [*biases, *rows]
    if not inputs:
        return np.zeros(hidden, dtype=BF16)
    if start == "first_row" and len(inputs) == 1:
        return inputs[0].copy()
    wide = [row.astype(np.float32) for row in inputs]
    starts_bare = start == "first_row" or (not biases and len(rows) == 2)
    total = wide[0] if starts_bare else add(np.zeros(hidden, dtype=np.float32), wide[0])
    for term in wide[1:]:
        total = add(total, term)
    return rounded(total)


def rows_by_choice(handles: Sequence[Handle]) -> dict[tuple[int, int, int, int], int]:
    """Return the row of each (home rank, token, column, rank): where that column's output lies.

    In the deduplicated layout a rank has one row per token, so only the master column has one.
    """
    found = {}
    for handle in handles:
        capacity, masters = handle.num_max_tokens_per_rank, handle.masters()
        for i, gid in enumerate(handle.gids().tolist()):
            home, token = divmod(gid, capacity)
            if not handle.mode.expand:
                found[home, token, int(masters[i]), handle.rank] = i
                continue
            for k, row in enumerate(handle.expanded_rows()[i].tolist()):
                if row >= 0:
                    found[home, token, k, handle.rank] = row
    return found


def define_combine(
    handles: Sequence[Handle],
    y: Rows,
    *,
    order: ReductionOrder,
    topk_weights: Rows | None = None,
    bias: tuple[Rows, ...] = (),
) -> tuple[CombineResult, ...]:
    """Sum every token's rows at its home rank.

    Args:
      handles: of one dispatch, by rank.
      y: per rank [rows, H] bf16.
      order: where the sum is rounded.
      topk_weights: per rank, expanded [rows], deduplicated [rows, K]; gathered, never summed.
      bias: up to two, per rank [T, H] bf16.

    Returns:
      One result per home rank.
    """
    where = rows_by_choice(handles)
    results = []
    for handle in handles:
        hidden = y[0].shape[1]
        x = np.zeros((len(handle.topk_idx), hidden), dtype=BF16)
        weights = np.zeros(handle.topk_idx.shape, dtype=np.float32)
        for token, choices in enumerate(handle.topk_idx.tolist()):
            by_rank = columns_by_rank(handle.config, choices)
            biases = [rows[handle.rank][token] for rows in bias]
            terms = _terms(handle, order, where, y, token, by_rank)
            x[token] = sum_rows(terms, biases, hidden, handle.mode.rules.sum_start)
            if topk_weights is not None:
                _gather(handle, where, topk_weights, token, by_rank, weights[token])
        results.append(
            CombineResult(
                rank=handle.rank,
                combined_x=x,
                combined_topk_weights=None if topk_weights is None else weights,
            )
        )
    return tuple(results)


def _terms(
    handle: Handle,
    order: ReductionOrder,
    where: dict[tuple[int, int, int, int], int],
    y: Rows,
    token: int,
    by_rank: dict[int, list[int]],
) -> list[Row]:
    """Return the bf16 rows that the final sum of one token adds, in its order.

    A term is known by its key, the highest column that went into it; terms are added in ascending key.
    """
    start, hidden = handle.mode.rules.sum_start, y[0].shape[1]
    terms: dict[int, tuple[int, Row]] = {}  # key -> (rank, row)
    for rank, columns in by_rank.items():
        here = [k for k in columns if (handle.rank, token, k, rank) in where]
        rows = [y[rank][where[handle.rank, token, k, rank]] for k in here]
        if not order.in_rank:
            terms |= {k: (rank, row) for k, row in zip(here, rows, strict=True)}
        else:
            # One row is sent as it is, bit for bit; several are summed before they travel.
            terms[columns[-1]] = rank, rows[0] if len(rows) == 1 else sum_rows(rows, [], hidden, start)
    if not order.in_domain:
        return [terms[key][1] for key in sorted(terms)]
    domain_size = handle.mode.scaleup_ranks(handle.config)
    domains: dict[int, list[int]] = {}
    for key in sorted(terms):
        domains.setdefault(terms[key][0] // domain_size, []).append(key)
    sums = {keys[-1]: sum_rows([terms[k][1] for k in keys], [], hidden, start) for keys in domains.values()}
    return [sums[key] for key in sorted(sums)]


def _gather(
    handle: Handle,
    where: dict[tuple[int, int, int, int], int],
    topk_weights: Rows,
    token: int,
    by_rank: dict[int, list[int]],
    out: npt.NDArray[np.float32],
) -> None:
    """Write each column's weight as its rank has it; a masked column keeps its 0."""
    for rank, columns in by_rank.items():
        for k in columns:
            if handle.mode.expand:
                out[k] = topk_weights[rank][where[handle.rank, token, k, rank]]
            else:
                out[k] = topk_weights[rank][where[handle.rank, token, columns[-1], rank], k]
