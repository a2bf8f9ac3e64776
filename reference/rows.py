"""Moving rows of opaque bytes from several sources into one output.

S source rows, D output rows, W columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def as_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view as unsigned integers of the same width: copies of bits touch no NaN and no sign.

    Raises:
      ConfigError: the elements are neither 1, 2, 4 nor 8 bytes wide.
    """
    if array.dtype.itemsize not in _UNSIGNED:
        raise ConfigError("dtype", array.dtype, "elements must be 1, 2, 4 or 8 bytes wide")
    return array.view(_UNSIGNED[array.dtype.itemsize])


def gather_rows(
    out: npt.NDArray[Any],
    sources: Sequence[npt.NDArray[Any]],
    source: npt.NDArray[np.integer[Any]],
    row: npt.NDArray[np.integer[Any]],
) -> None:
    """Copy out[i] = sources[source[i]][row[i]]; rows with source -1 stay as they are.

    Args:
      out: [D, W] unsigned bits, C order.
      sources: per source [S, W] of the same dtype.
      source: [D] which source, -1 = none.
      row: [D] row of that source.
    """
    # Neighbours mostly share a source, so one bulk copy per run moves the data at memory speed.
    edges = np.flatnonzero(np.diff(source)) + 1
    for start, stop in zip(np.append(0, edges).tolist(), np.append(edges, len(source)).tolist(), strict=True):
        if stop > start and source[start] >= 0:
            # The indices are in range by construction; "clip" is what lets take write without a buffer.
            np.take(sources[int(source[start])], row[start:stop], axis=0, out=out[start:stop], mode="clip")
