"""Token records: the parts of a row behind each other, so that one transfer moves them all.

S rows that travel.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.deep_ep.arrays import row_bytes
from epsim.deep_ep.exchange import Bytes

Array = npt.NDArray[Any]


def pack(parts: Sequence[Array], rows: npt.NDArray[np.int64]) -> Bytes:
    """Return [S, bytes of all parts]: the chosen rows.

    Args:
      parts: each [rows, columns], of any dtype and strides.
      rows: [S] which rows, in this order.
    """
    widths = [part.shape[1] * part.itemsize for part in parts]
    records = np.empty((len(rows), sum(widths)), dtype=np.uint8)
    start = 0
    for part, width in zip(parts, widths, strict=True):
        records[:, start : start + width] = row_bytes(part)[rows]
        start += width
    return records


def unpack(records: Bytes, like: Sequence[Array], counts: Sequence[int]) -> list[list[Array]]:
    """Return, per part, its rows of each source.

    Args:
      records: [sum of counts, bytes], by source.
      like: arrays with the dtype and columns of the parts.
      counts: rows of each source.
    """
    ends = np.cumsum(counts)[:-1]
    found, start = [], 0
    for part in like:
        width = part.shape[1] * part.itemsize
        rows = np.ascontiguousarray(records[:, start : start + width]).reshape(-1).view(part.dtype)
        found.append(np.split(rows.reshape(len(records), part.shape[1]), ends))
        start += width
    return found
