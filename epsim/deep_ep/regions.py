"""Where tensors of a bucket lie in its storage, and which ones a collective can take.

R ranks of a group, r this rank's place in it. A tensor is registered when it lies in the storage; it has the
same offset on every rank.
Source: deepep-ascend.md section 1.13.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from epsim.deep_ep.allocator import BufferAllocator
from epsim.deep_ep.arrays import tensor_of
from epsim.deep_ep.errors import HostCheckError, RefusedError, UndefinedError, raised_as
from epsim.deep_ep.exchange import Bytes
from reference.collectives.bucket import MAX_TENSORS
from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tensor of a collective call.

    Args:
      src: what this rank gives, contiguous.
      offset: of the whole tensor in the storage, in bytes.
      num_bytes: of the whole tensor.
      is_in_place: whether src lies in the whole tensor already.
    """

    src: torch.Tensor
    offset: int
    num_bytes: int
    is_in_place: bool

    def __str__(self) -> str:
        """Say what must be equal on all ranks; short, since 64 of them share one header."""
        return f"{str(self.src.dtype).removeprefix('torch.')} {self.num_bytes} B at {self.offset}"


def check_batch(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a batch of no or too many tensors, and tensors that are empty or not contiguous.

    Raises:
      HostCheckError: says which.
    """
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise HostCheckError(name, f"{len(tensors)} tensors", f"must be 1 to {MAX_TENSORS}")
    for number, tensor in enumerate(tensors):
        if not tensor.is_contiguous() or not tensor.numel():
            found = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            raise HostCheckError(f"{name}[{number}]", found, "must be contiguous and not empty")
        if tensor.device.type != "cpu":
            raise HostCheckError(f"{name}[{number}]", str(tensor.device), "must be a CPU tensor")


class Regions:
    """The storage of one rank, by offsets.

    Args:
      storage: [num_bytes] uint8, contiguous.
    """

    def __init__(self, storage: torch.Tensor) -> None:
        """Look at a storage."""
        self.storage = storage
        self.num_bytes: int = storage.numel()

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Return where a tensor begins in the storage, None when it is not wholly inside."""
        offset: int = tensor.data_ptr() - self.storage.data_ptr()
        return offset if 0 <= offset <= self.num_bytes - tensor.nbytes else None

    def touches(self, tensor: torch.Tensor, offset: int, num_bytes: int) -> bool:
        """Return whether a tensor shares memory with a part of the storage."""
        start: int = tensor.data_ptr() - self.storage.data_ptr()
        return start < offset + num_bytes and offset < start + tensor.nbytes

    def view(self, offset: int, num_bytes: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a part of the storage as a flat tensor.

        Raises:
          HostCheckError: the offset is no multiple of the dtype's size.
        """
        if offset % dtype.itemsize:
            raise HostCheckError("offset", offset, f"must be a multiple of {dtype.itemsize} for {dtype}")
        return self.storage[offset : offset + num_bytes].view(dtype)

    def store(self, part: Part, shards: Sequence[Bytes], rank: int) -> torch.Tensor:
        """Write what all ranks gave behind each other; return the gathered tensor, flat."""
        for source, shard in enumerate(shards):
            # A part that lies here already is not written: it need not be read back.
            if source != rank or not part.is_in_place:
                start = part.offset + source * shard.size
                self.storage[start : start + shard.size] = tensor_of(shard)
        return self.view(part.offset, part.num_bytes, part.src.dtype)

    def in_place_part(self, src: torch.Tensor, rank: int, num_ranks: int, field: str) -> Part:
        """Return the whole tensor whose r-th of R parts is `src`.

        Raises:
          HostCheckError: that tensor would not lie in the storage.
        """
        offset = self.offset_of(src)
        start = -1 if offset is None else offset - rank * src.nbytes
        if start < 0 or start + num_ranks * src.nbytes > self.num_bytes:
            rule = f"must be part {rank} of a gathered tensor in the storage, or dsts must be given"
            raise HostCheckError(field, f"{src.nbytes} bytes", rule)
        return Part(src=src, offset=start, num_bytes=num_ranks * src.nbytes, is_in_place=True)

    def target_part(
        self, src: torch.Tensor, dst: torch.Tensor, rank: int, num_ranks: int, number: int
    ) -> Part:
        """Return the part of a source that is gathered into a registered tensor.

        Raises:
          HostCheckError: dst has another dtype or size, lies elsewhere, or holds src at a wrong place.
        """
        whole, field = num_ranks * src.nbytes, f"dsts[{number}]"
        if dst.dtype != src.dtype or dst.nbytes != whole or not dst.is_contiguous():
            rule = f"must be contiguous {src.dtype} of {num_ranks} x {src.nbytes} bytes"
            raise HostCheckError(field, f"{dst.dtype} of {dst.nbytes} bytes", rule)
        offset = self.offset_of(dst)
        if offset is None:
            raise HostCheckError(field, f"{dst.nbytes} bytes", "must lie in the storage")
        is_in_place = self.offset_of(src) == offset + rank * src.nbytes
        if self.touches(src, offset, whole) and not is_in_place:
            rule = f"a source inside its target must be exactly part {rank} of it"
            raise HostCheckError(f"srcs[{number}]", f"{src.nbytes} bytes", rule)
        return Part(src=src, offset=offset, num_bytes=whole, is_in_place=is_in_place)

    def registered_part(self, src: torch.Tensor, field: str) -> Part:
        """Return a registered tensor that is reduced where it lies.

        Raises:
          HostCheckError: it does not lie in the storage.
        """
        offset = self.offset_of(src)
        if offset is None:
            raise HostCheckError(field, f"{src.nbytes} bytes", "must lie in the storage")
        return Part(src=src, offset=offset, num_bytes=src.nbytes, is_in_place=True)


def checked_bytes(plan: BufferAllocator | int) -> int:
    """Return the bytes of a plan that has no memory yet, or the given ones.

    Raises:
      RefusedError: a plan with memory, or bytes that are no positive multiple of 2 MiB.
    """
    if isinstance(plan, BufferAllocator) and plan.materialized:
        raise RefusedError("allocation_plan", "materialized", "a plan gets its memory once")
    with raised_as(RefusedError):
        size = plan.num_bytes if isinstance(plan, BufferAllocator) else plan
        num_bytes = whole_number("num_bytes", size, 1)
        if num_bytes % HINT_ALIGN_BYTES:
            raise ConfigError("num_bytes", num_bytes, f"must be a multiple of {HINT_ALIGN_BYTES}")
        return num_bytes


def check_disjoint(parts: Sequence[Part]) -> None:
    """Refuse tensors of one call that share memory; upstream does not notice.

    Raises:
      UndefinedError: names the two.
    """
    order = sorted(range(len(parts)), key=lambda i: parts[i].offset)
    for low, high in itertools.pairwise(order):
        if parts[low].offset + parts[low].num_bytes > parts[high].offset:
            raise UndefinedError("tensors", f"{low} and {high}", "tensors of one call must not overlap")
