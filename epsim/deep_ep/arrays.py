"""Torch tensors as NumPy arrays of the same memory and meaning, and back; no value is converted.

NumPy knows the small float types through ml_dtypes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from reference.errors import ConfigError

Array = npt.NDArray[Any]

DTYPES: Mapping[torch.dtype, np.dtype[Any]] = MappingProxyType(
    {
        torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
        torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
        torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
        torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
        torch.float16: np.dtype(np.float16),
        torch.float32: np.dtype(np.float32),
        torch.float64: np.dtype(np.float64),
        torch.bool: np.dtype(np.bool_),
        torch.uint8: np.dtype(np.uint8),
        torch.int8: np.dtype(np.int8),
        torch.uint16: np.dtype(np.uint16),
        torch.int16: np.dtype(np.int16),
        torch.uint32: np.dtype(np.uint32),
        torch.int32: np.dtype(np.int32),
        torch.int64: np.dtype(np.int64),
    }
)
TORCH_DTYPES: Mapping[np.dtype[Any], torch.dtype] = MappingProxyType({n: t for t, n in DTYPES.items()})
_CARRIERS = {1: torch.uint8, 2: torch.int16}
"""Types that both libraries have, in which the small floats cross."""


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's name for a torch dtype.

    Raises:
      ConfigError: a dtype that NumPy and ml_dtypes do not have.
    """
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"must be one of {', '.join(str(t) for t in DTYPES)}")
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor) -> Array:
    """Return a CPU tensor as an array that shares its memory, whatever its strides.

    Raises:
      ConfigError: not a CPU tensor, or a dtype without a NumPy name.
    """
    dtype = numpy_dtype(tensor.dtype)
    if tensor.device.type != "cpu":
        raise ConfigError("device", str(tensor.device), "epsim.deep_ep runs on CPU tensors")
    bare = tensor.detach()
    if dtype.type.__module__ != "numpy":
        return np.asarray(bare.view(_CARRIERS[dtype.itemsize]).numpy().view(dtype))
    return np.asarray(bare.numpy())


def tensor_of(array: Array) -> torch.Tensor:
    """Return an array as a tensor that shares its memory; a read-only array is copied.

    Raises:
      ConfigError: a dtype that torch does not have.
    """
    if array.dtype not in TORCH_DTYPES:
        raise ConfigError("dtype", str(array.dtype), "torch has no such dtype")
    dtype = TORCH_DTYPES[array.dtype]
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)  # from_numpy gives an empty tensor strides of 0
    own = array if array.flags.writeable else array.copy()
    if own.dtype.type.__module__ != "numpy":
        carrier = np.uint8 if own.dtype.itemsize == 1 else np.int16
        return torch.from_numpy(own.view(carrier)).view(dtype)
    return torch.from_numpy(own)


def row_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """Return [rows, columns] as its bytes, [rows, columns * itemsize]; a view where the strides allow one."""
    dense = np.ascontiguousarray(array)
    return dense.view(np.uint8).reshape(len(dense), dense.shape[1] * dense.itemsize)
