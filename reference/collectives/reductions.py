"""What the Bucket collectives compute, as values: gather, reduce-scatter, all-reduce.

R ranks of a group. The order of every sum is rank 0, then 1, .. R - 1, in fp32, then the scale, then one
rounding to the dtype of the tensors; so all ranks that hold a result hold the same bits.
Source: deepep-ascend.md section 1.13. Upstream's own order differs (arrival; in-network sums), which is why
the order is stated here and is part of the contract.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError

Array = npt.NDArray[Any]
CommPrecision = Literal["fp32", "bf16"]
COMM_PRECISIONS: tuple[str, ...] = get_args(CommPrecision)
REDUCE_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


def gather(shards: Sequence[Array]) -> Array:
    """Return the shards of all ranks behind each other, flat.

    Args:
      shards: per rank, of one shape and dtype.

    Raises:
      ConfigError: no shard, an empty one, or shapes or dtypes that differ.
    """
    _check_alike("shards", shards)
    return np.concatenate([shard.reshape(-1) for shard in shards])


def reduce_scatter(
    tensors: Sequence[Array], *, comm_precision: CommPrecision = "fp32", scale: float = 1.0
) -> list[Array]:
    """Return the r-th part of the sum for each rank r.

    Args:
      tensors: per rank, of one shape, float32 or bfloat16, R divides the number of elements.
      comm_precision: "bf16" rounds what travels, to nearest even: rank r's part of every OTHER rank's
        tensor. Its own part does not travel and enters exactly; the sum stays fp32. (The public NVIDIA
        kernel rounds stochastically.)
      scale: factor of the sum, applied in fp32 before the final rounding.

    Returns:
      per rank [numel / R], flat, of the tensors' dtype.

    Raises:
      ConfigError: as `gather`, another dtype or precision, an infinite scale, or R does not divide the
        elements.
    """
    if comm_precision not in COMM_PRECISIONS:
        raise ConfigError("comm_precision", comm_precision, f"must be one of {', '.join(COMM_PRECISIONS)}")
    _check_reducible(tensors)
    size = len(tensors)
    if tensors[0].size % size:
        raise ConfigError("tensors", f"{tensors[0].size} elements", f"{size} ranks must divide them")
    parts = [t.reshape(size, -1) for t in tensors]
    results = []
    for rank in range(size):
        terms = [part[rank].astype(np.float32) for part in parts]
        if comm_precision == "bf16":
            terms = [t if src == rank else _through_bf16(t) for src, t in enumerate(terms)]
        results.append(_sum(terms, scale, tensors[0].dtype))
    return results


def all_reduce(tensors: Sequence[Array], *, scale: float = 1.0) -> Array:
    """Return the sum that every rank gets, flat; there is no bf16 communication here.

    Args:
      tensors: per rank, of one shape, float32 or bfloat16.
      scale: as `reduce_scatter`.

    Raises:
      ConfigError: as `gather`, another dtype, or an infinite scale.
    """
    _check_reducible(tensors)
    return _sum([t.reshape(-1).astype(np.float32) for t in tensors], scale, tensors[0].dtype)


def _sum(terms: Sequence[Array], scale: float, dtype: np.dtype[Any]) -> Array:
    if not math.isfinite(scale):
        raise ConfigError("scale", scale, "must be a finite number")
    total = terms[0].copy()
    # Infinities of opposite sign, or sums beyond fp32, are results here and no reason for a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for term in terms[1:]:
            total += term
        return np.asarray((total * np.float32(scale)).astype(dtype))


def _through_bf16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(ml_dtypes.bfloat16).astype(np.float32))


def _check_alike(name: str, arrays: Sequence[Array]) -> None:
    if not arrays:
        raise ConfigError(name, "none", "must be one array per rank")
    for rank, array in enumerate(arrays):
        if array.shape != arrays[0].shape or array.dtype != arrays[0].dtype:
            rule = f"rank 0 has {arrays[0].dtype} {arrays[0].shape}"
            raise ConfigError(f"{name}[rank {rank}]", f"{array.dtype} {array.shape}", rule)
    if not arrays[0].size:
        raise ConfigError(name, arrays[0].shape, "must not be empty")


def _check_reducible(tensors: Sequence[Array]) -> None:
    _check_alike("tensors", tensors)
    if tensors[0].dtype not in REDUCE_DTYPES:
        raise ConfigError("tensors", str(tensors[0].dtype), "must be float32 or bfloat16")
