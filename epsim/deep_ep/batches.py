"""What the bucket collectives move: whole batches in one exchange, and the sums of what came.

R ranks of a group, r this rank's place in it.
"""

from collections.abc import Sequence

import numpy as np

from epsim.deep_ep.arrays import Array, array_of
from epsim.deep_ep.exchange import Bytes, Exchange
from epsim.deep_ep.regions import Part
from reference.collectives import reductions
from reference.formats.dtypes import BF16, to_bf16, widen


def flat_bytes(array: Array) -> Bytes:
    """Return a contiguous array as its bytes."""
    return array.reshape(-1).view(np.uint8)


def all_gathered(exchange: Exchange, parts: Sequence[Part]) -> list[list[Bytes]]:
    """Return, per tensor and rank, the bytes of the rank's source."""
    rows = [flat_bytes(array_of(part.src)) for part in parts]
    mine = np.concatenate(rows)[:, np.newaxis]
    cuts = np.cumsum([row.size for row in rows])[:-1]
    gathered = exchange.all_gather(mine, [len(mine)] * exchange.num_ranks)
    by_rank = [np.split(whole.reshape(-1), cuts) for whole in gathered]
    return [list(shards) for shards in zip(*by_rank, strict=True)]


def reduced(exchange: Exchange, parts: Sequence[Part], scale: float) -> list[Array]:
    """Return the sum of each tensor over all ranks, flat, of its dtype."""
    sums = []
    for part, shards in zip(parts, all_gathered(exchange, parts), strict=True):
        dtype = array_of(part.src).dtype
        sums.append(reductions.all_reduce([shard.view(dtype) for shard in shards], scale=scale))
    return sums


def scattered_sums(
    exchange: Exchange, parts: Sequence[Part], *, scale: float, rounds_to_bf16: bool
) -> list[Array]:
    """Return the r-th part of each sum, flat, of its dtype.

    Args:
      exchange: of the group.
      parts: tensors whose elements R divides.
      scale: factor of the sums.
      rounds_to_bf16: send bf16; a rank's own part does not travel and enters exactly.
    """
    size, rank = exchange.num_ranks, exchange.rank
    grids = [array_of(part.src).reshape(size, -1) for part in parts]
    wires = [to_bf16(grid) if rounds_to_bf16 else grid for grid in grids]
    rows = np.concatenate([wire.reshape(size, -1).view(np.uint8) for wire in wires], axis=1)
    came = exchange.all_to_all(np.ascontiguousarray(rows), [1] * size, [1] * size)
    cuts = np.cumsum([wire[0].nbytes for wire in wires])[:-1]
    sums = []
    for grid, wire, column in zip(grids, wires, np.split(came, cuts, axis=1), strict=True):
        terms = [_as_dtype(np.ascontiguousarray(row).view(wire.dtype), grid.dtype) for row in column]
        terms[rank] = grid[rank]
        sums.append(reductions.all_reduce(terms, scale=scale))
    return sums


def _as_dtype(values: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return bf16 that travelled for float32 as float32 again."""
    return widen(values) if values.dtype == BF16.dtype and dtype == np.float32 else values
