"""Allocation plans for buffers: tensors exist as placeholders first, and get their memory later.

Source: deepep-ascend.md section 1.14.
"""

from collections.abc import Sequence

import torch

from epsim.deep_ep.arrays import numpy_dtype
from epsim.deep_ep.errors import RefusedError
from reference.collectives import allocation
from reference.errors import ConfigError


class BufferAllocator:
    """A plan of contiguous tensors, each at a multiple of 2 MiB of one storage.

    Attributes:
      num_bytes: of the storage, a multiple of 2 MiB.
      materialized: whether the tensors have their memory; the plan is closed then.
    """

    def __init__(self) -> None:
        """Start an empty plan."""
        self._plan = allocation.BufferAllocator()
        self._tensors: list[torch.Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage."""
        return self._plan.num_bytes

    @property
    def materialized(self) -> bool:
        """Whether the plan is closed."""
        return self._plan.materialized

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Append a tensor.

        Args:
          shape: of whole numbers of at least 0.
          dtype: any that NumPy or ml_dtypes has.

        Returns:
          a tensor on the meta device; `materialize` gives this very object its memory.

        Raises:
          RefusedError: the plan is materialised, or a bad shape or dtype.
        """
        try:
            self._plan.allocate(tuple(shape), numpy_dtype(dtype))
        except ConfigError as error:
            raise RefusedError(error.field, error.value, error.rule) from None
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self._tensors.append(tensor)
        return tensor

    def materialize(self, storage: torch.Tensor) -> None:
        """Give every placeholder its part of a storage, in place.

        Args:
          storage: [num_bytes] uint8, contiguous.

        Raises:
          RefusedError: materialised before, or a storage of another kind or size.
        """
        if storage.dtype != torch.uint8 or storage.dim() != 1 or not storage.is_contiguous():
            found = f"{storage.dtype} {tuple(storage.shape)}"
            raise RefusedError("storage", found, "must be one row of contiguous uint8")
        try:
            self._plan.check_storage(storage.numel())
        except ConfigError as error:
            raise RefusedError(error.field, error.value, error.rule) from None
        for tensor, place in zip(self._tensors, self._plan.allocations, strict=True):
            part = storage[place.offset : place.offset + place.num_bytes]
            torch.utils.swap_tensors(tensor, part.view(tensor.dtype).view(tensor.shape))
        self._plan.materialized = True
