"""Ordered sums of bf16 rows: the one place of the vectorised reference where numbers are added.

S sums, H hidden.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.edition import SumStart

BF16 = np.dtype(ml_dtypes.bfloat16)
BitArray = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Which rows each sum adds, in which order.

    Args:
      positions: rows of the pool, the terms of one sum next to each other and in order.
      first: [S] where each sum's terms begin in `positions`.
      count: [S] how many terms it has; may be 0.
    """

    positions: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]


class Scratch:
    """Buffers of H columns that are used again: fresh memory for every block costs more than the sums."""

    def __init__(self, hidden: int) -> None:
        """Start without buffers."""
        self.hidden = hidden
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def rows(self, name: str, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return [count, H] with any content; valid until the next call with that name."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = np.empty((count, self.hidden), dtype=dtype)
        return kept[:count]


def ordered_sums(
    pool: BitArray,
    terms: Terms,
    biases: tuple[BitArray, ...],
    start: SumStart,
    out: BitArray,
    scratch: Scratch,
) -> None:
    """Write out[s] = biases in order, then terms in order, added in fp32 and rounded once to bf16.

    Args:
      pool: [rows, H] bf16 bits.
      terms: what to add.
      biases: each [S, H] bf16 bits, added before all terms.
      start: "first_row": from the first input, a single input is copied, none gives +0. "zero": from +0, but
        a sum of two rows without bias adds them directly; seen in the sign of a zero only.
      out: [S, H] bf16 bits.
      scratch: of H columns.
      Source: deepep-ascend.md sections 4.5-4.6; deepep-v2.md section 3.2.
    """
    # Longest sums first: then the sums that still have a j-th term are always a prefix.
    order = np.argsort(-terms.count, kind="stable")
    count = terms.count[order]
    num_left = [int(np.count_nonzero(count > j)) for j in range(int(count[0]) if len(count) else 0)]
    inputs = [(bias, order) for bias in biases]
    first = terms.first[order]
    inputs += [(pool, terms.positions[first[:num] + j]) for j, num in enumerate(num_left)]
    total = scratch.rows("total", len(out), np.float32)
    total[len(inputs[0][1]) if inputs else 0 :] = 0
    # Infinities of opposite sign and sums beyond the range are results here, not accidents.
    with np.errstate(invalid="ignore", over="ignore"):
        for i, (source, picked) in enumerate(inputs):
            rows = scratch.rows("rows", len(picked), np.uint16)
            # The positions are in range by construction; "clip" is what lets take write without a buffer.
            np.take(source, picked, axis=0, out=rows, mode="clip")
            term = total[: len(picked)] if i == 0 else scratch.rows("term", len(picked), np.float32)
            np.copyto(term, rows.view(BF16), casting="safe")
            if i:
                total[: len(picked)] += term
            elif start == "zero":
                bare = (count == 2) & (not biases)
                total[~bare] += np.float32(0)
        rounded = scratch.rows("rounded", len(out), BF16)
        np.copyto(rounded, total, casting="same_kind")
    out[order] = rounded.view(np.uint16)
    if start == "first_row" and len(biases) <= 1:
        # A copy keeps every bit of a NaN, a sum need not.
        single = terms.count + len(biases) == 1
        out[single] = biases[0][single] if biases else pool[terms.positions[terms.first[single]]]
