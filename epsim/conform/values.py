"""Arrays of a program's steps, made from data seed and number of the step; values tell where they belong.

R ranks, T tokens of a rank, K top-k, H hidden, P scale packs. "rows": of the layout.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from epsim.conform.program import Cached, Combine, Dispatch
from epsim.testing.identity import BF16, E4M3, Kind, marked_rows
from epsim.testing.strategies import marked_scales
from reference.edition import Edition
from reference.handle import Handle
from reference.poison import poison

Array = npt.NDArray[Any]
SPECIALS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -1e-40], np.float32)
"""Zeros, infinities, NaN, near the largest bf16, and denormals."""


def payload_rows(step: Dispatch | Cached, tokens: tuple[int, ...], call: int, seed: int) -> list[Array]:
    """Return x per rank [T, H]."""
    dtype = BF16 if step.payload == "bf16" else E4M3
    return [
        marked_rows(rank, count, step.hidden, dtype, call=call, kind=step.values, seed=seed)
        for rank, count in enumerate(tokens)
    ]


def payload_scales(
    step: Dispatch | Cached, tokens: tuple[int, ...], call: int, edition: Edition
) -> list[Array] | None:
    """Return scales per rank [T, P] in the edition's pack size, None for bf16."""
    if step.payload == "bf16":
        return None
    pack = np.int16 if edition.scale_pack_bytes == 2 else np.int32
    rows = [marked_scales(r, n, step.packs, pack, call=call) for r, n in enumerate(tokens)]
    return [np.asfortranarray(a) if step.payload == "fp8_columns" else a for a in rows]


def expert_outputs(step: Combine, tokens: tuple[int, ...], columns: int, call: int, seed: int) -> list[Array]:
    """Return per source rank [T, K, H] bf16: what the expert of each choice makes of its token.

    Exponents spread over 40 binades and terms cancel, so that another order, a missing rounding or a term
    twice shows in the bits of the sum.
    """
    outputs = []
    for rank, count in enumerate(tokens):
        rng = np.random.default_rng((seed, call, rank, 1))
        outputs.append(wild_rows(rng, (count, columns, step.hidden), step.values))
    return outputs


def wild_rows(rng: np.random.Generator, shape: tuple[int, int, int], kind: Kind) -> Array:
    """Return bf16 values of wide range along the middle axis, whose terms cancel often."""
    if kind == "zeros":
        return np.zeros(shape, BF16)
    values = rng.standard_normal(shape).astype(np.float32) * np.exp2(
        rng.integers(-20, 21, shape).astype(np.float32)
    )
    near = rng.random(shape) < 0.5
    # Half of the elements have one size, so that sums need rounding; every fourth undoes its neighbour.
    values[near] = rng.standard_normal(int(near.sum())).astype(np.float32)
    undo = rng.random(shape) < 0.25
    undo[:, 0] = False
    values = np.where(undo, -np.roll(values, 1, axis=1), values)
    if kind == "special":
        odd = rng.random(shape) < 0.1
        values[odd] = rng.choice(SPECIALS, int(odd.sum()))
    with np.errstate(over="ignore"):
        return values.astype(BF16)


def biases(
    step: Combine, tokens: tuple[int, ...], call: int, seed: int, outputs: list[Array] | None
) -> tuple[list[Array], ...]:
    """Return the biases, each per rank [T, H] bf16.

    A third of their elements undo the first choice's output, or the bias before: only then does the place
    of a bias among the terms show in the bits of the sum.
    """
    found: list[list[Array]] = []
    for number in range(step.biases):
        ranks = []
        for rank, count in enumerate(tokens):
            rng = np.random.default_rng((seed, call, rank, 2 + number))
            bias = wild_rows(rng, (count, 1, step.hidden), step.values)[:, 0]
            before = found[-1][rank] if found else None if outputs is None else outputs[rank][:, 0]
            if before is not None:
                undo = rng.random(bias.shape) < 1 / 3
                bias[undo] = -before[undo]
            ranks.append(bias)
        found.append(ranks)
    return tuple(found)


def placed_rows(handles: tuple[Handle, ...], outputs: list[Array]) -> list[Array]:
    """Return per rank [rows, H]: each choice's row where the handle has its place, NaN everywhere else.

    In the deduplicated layout a row is the output of its token's master column.
    """
    placed = []
    for handle in handles:
        rows = np.empty((handle.num_rows, outputs[0].shape[2]), outputs[0].dtype)
        poison(rows)
        gid, k = handle.row_origins()
        for row in np.flatnonzero(gid >= 0):
            src, token = divmod(int(gid[row]), handle.num_max_tokens_per_rank)
            rows[row] = outputs[src][token, k[row]]
        placed.append(rows)
    return placed


def placed_weights(handles: tuple[Handle, ...], weights: list[Array]) -> list[Array]:
    """Return per rank what belongs to the rows: [rows], or [rows, K] deduplicated; NaN in other rows.

    Args:
      handles: of a dispatch.
      weights: per source rank [T, K].
    """
    placed = []
    for handle in handles:
        shape = (handle.num_rows,) if handle.mode.expand else (handle.num_rows, handle.config.num_topk)
        rows = np.full(shape, np.nan, np.float32)
        gid, k = handle.row_origins()
        for row in np.flatnonzero(gid >= 0):
            src, token = divmod(int(gid[row]), handle.num_max_tokens_per_rank)
            rows[row] = weights[src][token, k[row]] if handle.mode.expand else weights[src][token]
        placed.append(rows)
    return placed


def as_expert_rows(rows: Array) -> Array:
    """Return received rows as bf16: what an identity expert gives back; fp8 codes are widened exactly."""
    return np.ascontiguousarray(
        rows if rows.dtype == BF16 else rows.astype(np.float32).astype(ml_dtypes.bfloat16)
    )
