"""Allocation plans: tensors are named first, the one storage behind them is made later.

Source: deepep-ascend.md section 1.14.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, align

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A tensor of a plan.

    Args:
      offset: bytes from the start of the storage.
      shape: of the tensor.
      dtype: of the tensor.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor without padding."""
        return math.prod(self.shape) * self.dtype.itemsize

    def of(self, storage: Bytes) -> npt.NDArray[Any]:
        """Return the tensor as a view of a rank's storage."""
        part = storage[self.offset : self.offset + self.num_bytes]
        return part.view(self.dtype).reshape(self.shape)


class BufferAllocator:
    """A plan of contiguous tensors, each at a multiple of 2 MiB; one plan serves every rank alike.

    Attributes:
      allocations: in the order of the calls.
      num_bytes: of the storage, a multiple of 2 MiB.
      materialized: whether the plan is closed.
    """

    def __init__(self) -> None:
        """Start an empty plan."""
        self.alignment = HINT_ALIGN_BYTES
        self.allocations: list[Allocation] = []
        self.num_bytes = 0
        self.materialized = False

    def allocate(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Allocation:
        """Append a tensor.

        Args:
          shape: of whole numbers of at least 0; an empty tensor takes no bytes.
          dtype: NumPy's or ml_dtypes'.

        Raises:
          ConfigError: the plan is materialised, or a bad shape.
        """
        if self.materialized:
            raise ConfigError("allocate", "after materialize", "a materialised plan cannot change")
        sizes = tuple(whole_number(f"shape[{i}]", n, 0) for i, n in enumerate(shape))
        allocation = Allocation(
            offset=align(self.num_bytes, self.alignment), shape=sizes, dtype=np.dtype(dtype)
        )
        self.allocations.append(allocation)
        self.num_bytes = align(allocation.offset + allocation.num_bytes, self.alignment)
        return allocation

    def check_storage(self, num_bytes: int) -> None:
        """Refuse a storage that is not exactly the plan's, or a plan that has one already.

        Raises:
          ConfigError: says which.
        """
        if self.materialized:
            raise ConfigError("materialize", "a second time", "a plan is materialised once")
        if num_bytes != self.num_bytes:
            raise ConfigError("storage", f"{num_bytes} bytes", f"must be exactly the plan's {self.num_bytes}")

    def materialize(self, storages: Sequence[Bytes]) -> list[list[npt.NDArray[Any]]]:
        """Close the plan and return its tensors.

        Args:
          storages: per rank [num_bytes] uint8, contiguous.

        Returns:
          per rank the tensors in order, views of its storage.

        Raises:
          ConfigError: materialised before, or a storage of another kind or size.
        """
        for rank, storage in enumerate(storages):
            if storage.dtype != np.uint8 or storage.ndim != 1 or not storage.flags.c_contiguous:
                found = f"{storage.dtype} {storage.shape}"
                raise ConfigError(f"storage[rank {rank}]", found, "must be one row of contiguous uint8")
            self.check_storage(storage.size)
        self.materialized = True
        return [[allocation.of(storage) for allocation in self.allocations] for storage in storages]
