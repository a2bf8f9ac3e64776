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


def ordered_sums(
    pool: BitArray,
    terms: Terms,
    biases: tuple[BitArray, ...],
    start: SumStart,
    out: BitArray,
) -> None:
    """Write out[s] = biases in order, then terms in order, added in fp32 and rounded once to bf16.

    Args:
      pool: [rows, H] bf16 bits.
      terms: what to add.
      biases: each [S, H] bf16 bits, added before all terms.
      start: "first_row": from the first input, a single input is copied, none gives +0. "zero": from +0, but
        a sum of two rows without bias adds them directly; seen in the sign of a zero only.
      out: [S, H] bf16 bits.
      Source: deepep-ascend.md sections 4.5-4.6; deepep-v2.md section 3.2.
    """
    # Longest sums first: then the sums that still have a j-th term are always a prefix.
    order = np.argsort(-terms.count, kind="stable")
    first, count = terms.first[order], terms.count[order]
    total = _start([bias[order] for bias in biases], out.shape, start)
    rows = np.empty(out.shape, dtype=np.uint16)
    # Infinities of opposite sign and sums beyond the range are results here, not accidents.
    with np.errstate(invalid="ignore", over="ignore"):
        for j in range(int(count[0]) if len(count) else 0):
            num = int(np.count_nonzero(count > j))
            # The positions are in range by construction; "clip" is what lets take write without a buffer.
            np.take(pool, terms.positions[first[:num] + j], axis=0, out=rows[:num], mode="clip")
            term = rows[:num].view(BF16).astype(np.float32)
            if j == 0 and not biases:
                total[:num] = term
                if start == "zero":
                    total[:num][count[:num] != 2] += np.float32(0)
            else:
                total[:num] += term
        out[order] = total.astype(BF16).view(np.uint16)
    if start == "first_row" and not biases:
        # A copy keeps every bit of a NaN, a sum need not.
        single = terms.count == 1
        out[single] = pool[terms.positions[terms.first[single]]]


def _start(biases: list[BitArray], shape: tuple[int, ...], start: SumStart) -> npt.NDArray[np.float32]:
    if not biases:
        return np.zeros(shape, dtype=np.float32)
    total: npt.NDArray[Any] = biases[0].view(BF16).astype(np.float32)
    if start == "zero":
        total += np.float32(0)
    with np.errstate(invalid="ignore", over="ignore"):
        for bias in biases[1:]:
            total += bias.view(BF16).astype(np.float32)
    return total
