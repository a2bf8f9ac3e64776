"""`BucketSession`: collectives on ordinary tensors, staged in a bucket's storage.

Source: deepep-ascend.md section 1.13; deepep-v2.md section 6.4.
"""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from epsim.deep_ep.errors import HostCheckError, RefusedError
from epsim.deep_ep.exchange import Exchange
from epsim.deep_ep.outstanding import Outstanding
from epsim.deep_ep.regions import Part, Regions
from reference.memory.sizes import RECORD_ALIGN_BYTES, align


class Bucket(Protocol):
    """What a session needs of its buffer."""

    regions: Regions
    outstanding: Outstanding
    session_in_use: "BucketSession | None"

    def get_context_idx(self, group: Any) -> int:  # noqa: ANN401 - torch's type
        """Return the number of a group."""


class BucketSession:
    """A `with` block in which the buffer's collectives take tensors of any memory.

    Staging starts at the beginning of the storage, so what lies there must not be needed any more. It does
    not grow and is not freed before the end of the block, and the end adds no barrier: a result that is a
    view stays valid until the storage is used again.

    Args:
      buffer: a BucketBuffer.

    Attributes:
      num_allocated_bytes: of the storage in use.
    """

    def __init__(self, buffer: Bucket) -> None:
        """Prepare; the session starts with the `with` block."""
        self.buffer = buffer
        self.num_allocated_bytes = 0
        self._context_idx: int | None = None

    def __enter__(self) -> Self:
        """Start at the beginning of the storage.

        Raises:
          RefusedError: a session of this buffer is open.
        """
        if self.buffer.session_in_use is not None:
            raise RefusedError("session", "open", "sessions of one buffer do not nest")
        self.buffer.outstanding.write()  # else a late result would overwrite what this session stages
        self.buffer.session_in_use = self
        self.num_allocated_bytes, self._context_idx = 0, None
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the buffer take registered tensors only again."""
        self.buffer.session_in_use = None

    def bind(self, group: Any) -> None:  # noqa: ANN401 - torch's type
        """Note the group of a call.

        Raises:
          RefusedError: an earlier call of this session had another one.
        """
        idx = self.buffer.get_context_idx(group)
        if self._context_idx not in (None, idx):
            raise RefusedError("group", f"number {idx}", f"this session's is number {self._context_idx}")
        self._context_idx = idx

    def allocate(
        self,
        shapes: Sequence[int] | Sequence[Sequence[int]],
        dtype: torch.dtype = torch.float32,
        group: Any = None,  # noqa: ANN401 - torch's type
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return registered memory, not cleared.

        Args:
          shapes: one shape, or several.
          dtype: of all of them.
          group: must be that of the session's collectives.

        Returns:
          a tensor, or a tuple of them, each at a multiple of 32 bytes.

        Raises:
          HostCheckError: an empty tensor, or the storage is used up.
          UndefinedError: an earlier session's result lies there and is not waited for yet.
          RefusedError: outside the block, or another group.
        """
        if self.buffer.session_in_use is not self:
            raise RefusedError("session", "closed", "use it inside its with block")
        self.bind(group)
        is_single = not isinstance(shapes[0], Sequence)
        wanted: Sequence[Any] = [shapes] if is_single else shapes
        tensors = [
            self.reserve(math.prod(shape) * dtype.itemsize, dtype).view(tuple(shape)) for shape in wanted
        ]
        return tensors[0] if is_single else tuple(tensors)

    def reserve(self, num_bytes: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the next free bytes as a flat tensor; raises as `allocate`."""
        regions, offset = self.buffer.regions, self.num_allocated_bytes
        end = offset + align(num_bytes, RECORD_ALIGN_BYTES)
        if num_bytes < 1 or end > regions.num_bytes:
            rule = f"the session has {regions.num_bytes - offset} of {regions.num_bytes} bytes left"
            raise HostCheckError("num_bytes", num_bytes, rule)
        self.buffer.outstanding.check_unused(offset, end)
        self.num_allocated_bytes = end
        return regions.view(offset, num_bytes, dtype)

    def gather_part(
        self, src: torch.Tensor, dst: torch.Tensor | None, exchange: Exchange, number: int
    ) -> Part:
        """Return where a source is gathered: around it, in its target, or in fresh staging.

        Raises:
          HostCheckError: a target that does not fit, or the storage is used up.
        """
        rank, size, regions = exchange.rank, exchange.num_ranks, self.buffer.regions
        whole = size * src.nbytes
        if dst is not None and (dst.dtype != src.dtype or dst.nbytes != whole or not dst.is_contiguous()):
            rule = f"must be contiguous {src.dtype} of {size} x {src.nbytes} bytes"
            raise HostCheckError(f"dsts[{number}]", f"{dst.dtype} of {dst.nbytes} bytes", rule)
        if regions.offset_of(src) is not None:
            return regions.in_place_part(src, rank, size, f"srcs[{number}]")
        if dst is None or regions.offset_of(dst) is None:
            dst = self.reserve(whole, src.dtype)
        return regions.target_part(src, dst, rank, size, number)

    def reduce_part(self, src: torch.Tensor, number: int) -> Part:
        """Return a source where it lies if that is the storage, else a copy in fresh staging.

        Raises:
          HostCheckError: the storage is used up.
        """
        regions = self.buffer.regions
        if regions.offset_of(src) is None:
            src = self.reserve(src.nbytes, src.dtype).copy_(src.reshape(-1))
        return regions.registered_part(src, f"srcs[{number}]")
