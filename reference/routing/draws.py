"""Random draws that are the same on every machine.

Only the raw 64-bit output of PCG64 is used (NumPy promises it never changes, unlike the distributions of
`Generator`), and only integer or exactly rounded arithmetic follows; no libm function decides anything.
"""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_ACCEPTANCE = 0.25
"""Whole-row rejection is used while at least this share of rows is expected to have no repeat."""


class Draws:
    """One stream: PCG64 seeded by SeedSequence(seed, spawn_key=key), read word by word.

    Args:
      seed: entropy of the whole workload.
      key: which stream of it; different keys are independent.
    """

    def __init__(self, seed: int, *key: int) -> None:
        """Start the stream at its beginning."""
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return [count] uint64, uniform."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def lanes16(self, count: int) -> npt.NDArray[np.uint16]:
        """Return [count] uint16: each word gives four, lowest bits first."""
        return self.words(-(-count // 4)).astype("<u8").view("<u2")[:count]

    def lanes32(self, count: int) -> npt.NDArray[np.uint32]:
        """Return [count] uint32: each word gives two, lower half first."""
        return self.words(-(-count // 2)).astype("<u8").view("<u4")[:count]

    def bounded(self, limit: int, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_] | None]:
        """Return [count] int32 of 0 .. limit - 1, and which of them are unbiased.

        A lane x of b bits becomes x * limit >> b. It must be thrown away when x * limit mod 2^b is below
        2^b mod limit; the values that stay are exactly uniform.

        Returns:
          values, and [count] bool to keep; None = keep all.
        """
        product: npt.NDArray[Any]
        if limit <= 2**12:
            bits, product = 16, self.lanes16(count).astype(np.uint32)
        else:
            bits, product = 32, self.lanes32(count).astype(np.uint64)
        product *= product.dtype.type(limit)
        values = (product >> product.dtype.type(bits)).astype(np.int32)
        excess = 2**bits % limit
        if not excess:
            return values, None
        return values, (product & product.dtype.type(2**bits - 1)) >= excess

    def below(self, limit: int, count: int) -> npt.NDArray[np.int32]:
        """Return [count] int32, exactly uniform over 0 .. limit - 1."""
        values, keep = self.bounded(limit, count)
        while keep is not None and not keep.all():
            redo = np.flatnonzero(~keep)
            values[redo], again = self.bounded(limit, redo.size)
            keep[redo] = True if again is None else again
        return values

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return a permutation of 0 .. count - 1: the order of as many words (ties, 2^-64, by index)."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def coins(self, probability: float, count: int) -> npt.NDArray[np.bool_]:
        """Return [count] bool, true with the probability rounded to a multiple of 2^-32."""
        threshold = int(probability * 2**32 + 0.5)
        return self.lanes32(count).astype(np.uint64) < np.uint64(threshold)

    def distinct(self, limit: int, width: int, count: int) -> npt.NDArray[np.int32]:
        """Return ordered tuples of distinct numbers, every tuple equally likely.

        Args:
          limit: numbers are 0 .. limit - 1.
          width: numbers of a tuple, at most `limit`.
          count: tuples.

        Returns:
          [width, count] int32, C order.
        """
        if width == 0 or count == 0:
            return np.empty((width, count), dtype=np.int32)
        accepted = prod(1 - i / limit for i in range(width))
        if accepted < LEAST_ACCEPTANCE:
            return self._distinct_by_insertion(limit, width, count)
        return self._distinct_by_rejection(limit, width, count, accepted)

    def _distinct_by_rejection(
        self, limit: int, width: int, count: int, accepted: float
    ) -> npt.NDArray[np.int32]:
        """Draw with replacement and drop whole tuples that repeat: the rest stays uniform."""
        parts: list[npt.NDArray[np.int32]] = []
        missing = count
        while missing > 0:
            tries = int(missing / accepted * 1.01) + 16
            values, keep = self.bounded(limit, width * tries)
            grid = values.reshape(width, tries)
            good = np.ones(tries, dtype=np.bool_) if keep is None else keep.reshape(grid.shape).all(axis=0)
            for k in range(1, width):
                good &= (grid[:k] != grid[k]).all(axis=0)
            part = grid[:, good][:, :missing]
            parts.append(part)
            missing -= part.shape[1]
        return np.concatenate(parts, axis=1)

    def _distinct_by_insertion(self, limit: int, width: int, count: int) -> npt.NDArray[np.int32]:
        """Draw the j-th number among those left; the sorted earlier ones turn its rank into a number."""
        result = np.empty((width, count), dtype=np.int32)
        taken = np.empty((width, count), dtype=np.int32)  # ascending, first k rows valid
        for k in range(width):
            value = self.below(limit - k, count)
            for i in range(k):
                value += value >= taken[i]
            result[k] = value
            insert_sorted(taken, k, value)
        return result


def insert_sorted(taken: npt.NDArray[np.int32], filled: int, value: npt.NDArray[np.int32]) -> None:
    """Insert one value per column into its first `filled` rows, which are ascending and stay so.

    Args:
      taken: [width, count] int32, written in rows 0 .. filled.
      filled: rows that hold values already.
      value: [count] int32.
    """
    for i in range(filled):
        low = np.minimum(taken[i], value)
        value = np.maximum(taken[i], value)
        taken[i] = low
    taken[filled] = value
