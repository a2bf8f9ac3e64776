"""Values for memory that the contract leaves undefined: whoever reads it shows."""

from typing import Any

import numpy as np
import numpy.typing as npt

POISON_INT_BYTE = 0x7A
"""Every byte of a poisoned signed integer: large, positive, no id, index or sentinel."""
POISON_BYTE = 0xFF
"""Every byte of anything else: a NaN in float32, bf16, e4m3fn, e5m2 and e8m0, also as unsigned bits."""


def poison_byte(dtype: np.dtype[Any]) -> int:
    """Return the byte that poisons elements of a dtype."""
    return POISON_INT_BYTE if dtype.kind == "i" else POISON_BYTE


def poison_int(dtype: npt.DTypeLike) -> int:
    """Return what a poisoned signed integer reads as."""
    width = np.dtype(dtype).itemsize
    return int.from_bytes(bytes([POISON_INT_BYTE]) * width, "little")


def fill_bytes(array: npt.NDArray[Any], byte: int) -> None:
    """Set every byte of a writeable array whose last axis is contiguous."""
    if array.size:
        array.view(np.uint8)[...] = byte


def poison(array: npt.NDArray[Any]) -> None:
    """Overwrite a writeable array, last axis contiguous, with the poison of its dtype."""
    fill_bytes(array, poison_byte(array.dtype))


def is_poisoned(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return, per element, whether all its bytes are poison."""
    dense = np.ascontiguousarray(array)
    data = dense.view(np.uint8).reshape((*dense.shape, dense.dtype.itemsize))
    return np.asarray((data == poison_byte(dense.dtype)).all(axis=-1))
