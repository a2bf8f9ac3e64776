"""Bucket buffer: batched collectives over symmetric storage, for several groups at once.

A registered tensor lies in the storage of its rank, at the same offset on every rank of the group. What the
collectives compute, and in which order they add, is in `reductions`; this module is about where.
Source: deepep-ascend.md sections 1.13 and 4.9; deepep-v2.md section 6.4.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.collectives.allocation import BufferAllocator
from reference.collectives.reductions import CommPrecision, all_reduce, gather, reduce_scatter
from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, RECORD_ALIGN_BYTES, align

Array = npt.NDArray[Any]
Batch = Sequence[Sequence[Array]]
"""Per member of the group, in group order, the same number of tensors."""
MAX_GROUPS = 8
MAX_TENSORS = 64
UNDEFINED = 0xFF
"""Byte of what a collective leaves undefined: NaN in every float type."""


class BucketBuffer:
    """The storages of all ranks and the collectives over them.

    Args:
      num_ranks: ranks that own a storage.
      allocation_plan_or_num_bytes: a plan, which is materialised on the storages, or bytes.
      groups: ranks of each group in group order; None = one group of all. A rank may be in at most 8.

    Attributes:
      storage: per rank [num_bytes] uint8, zero-filled.
      tensors: per rank the tensors of the plan, empty without one.

    Raises:
      ConfigError: sizes are no positive multiples of 2 MiB, or a group is empty, repeats a rank, names an
        unknown one, or is one too many for a rank.
    """

    def __init__(
        self,
        *,
        num_ranks: int,
        allocation_plan_or_num_bytes: BufferAllocator | int,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Allocate every rank's storage and materialise the plan, if one is given."""
        self.num_ranks = whole_number("num_ranks", num_ranks, 1)
        plan = allocation_plan_or_num_bytes
        num_bytes = plan.num_bytes if isinstance(plan, BufferAllocator) else plan
        self.num_bytes = whole_number("num_bytes", num_bytes, 1)
        if self.num_bytes % HINT_ALIGN_BYTES:
            raise ConfigError("num_bytes", self.num_bytes, f"must be a multiple of {HINT_ALIGN_BYTES}")
        self.groups = self._check_groups([range(self.num_ranks)] if groups is None else groups)
        self.storage = [np.zeros(self.num_bytes, dtype=np.uint8) for _ in range(self.num_ranks)]
        self.tensors: list[list[Array]] = [[] for _ in range(self.num_ranks)]
        if isinstance(plan, BufferAllocator):
            self.tensors = plan.materialize(self.storage)
        self.session_is_open = False

    def _check_groups(self, groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        if not groups:
            raise ConfigError("groups", "none", "must name at least one group")
        checked = tuple(tuple(group) for group in groups)
        for number, group in enumerate(checked):
            unknown = [r for r in group if not 0 <= whole_number("rank", r, 0) < self.num_ranks]
            if not group or unknown or len(set(group)) < len(group):
                rule = f"must be distinct ranks below {self.num_ranks}, at least one"
                raise ConfigError(f"groups[{number}]", group, rule)
        for rank in range(self.num_ranks):
            if (count := sum(rank in group for group in checked)) > MAX_GROUPS:
                raise ConfigError("groups", f"{count} with rank {rank}", f"at most {MAX_GROUPS} per rank")
        return checked

    def members(self, group: int | None) -> tuple[int, ...]:
        """Return the ranks of a group.

        Args:
          group: index into groups; None only when there is one group.

        Raises:
          ConfigError: no index although there are several groups, or one out of range.
        """
        if group is None:
            if len(self.groups) > 1:
                raise ConfigError("group", group, f"is required: the buffer has {len(self.groups)} groups")
            return self.groups[0]
        if whole_number("group", group, 0) >= len(self.groups):
            raise ConfigError("group", group, f"must be below {len(self.groups)}")
        return self.groups[group]

    def offset_of(self, rank: int, array: Array) -> int | None:
        """Return where a tensor lies in its rank's storage, None when it is not wholly inside."""
        start = int(array.__array_interface__["data"][0])
        offset = start - int(self.storage[rank].__array_interface__["data"][0])
        return offset if 0 <= offset <= self.num_bytes - array.nbytes else None

    def all_gather(
        self, srcs: Batch, dsts: Batch | None = None, group: int | None = None
    ) -> list[list[Array]]:
        """Gather each tensor of a batch on every member.

        Args:
          srcs: per member, its shards, contiguous and not empty, of any dtype and address. Without
            `dsts` a shard must be the r-th part of a registered tensor, r = the member's place in the
            group: the result surrounds it.
          dsts: per member, registered tensors of R times the bytes and the same dtype. A source may be
            its own part of it, or anywhere outside it.
          group: see `members`.

        Returns:
          per member, flat views of the gathered tensors.

        Raises:
          ConfigError: a batch, shape, dtype or place does not fit; nothing has been written then.
        """
        members = self.members(group)
        shards = _by_tensor("srcs", srcs, len(members))
        full = [gather(tensor) for tensor in shards]
        if dsts is None:
            offsets = [self._place("srcs", members, t, steps=1) for t in shards]
        else:
            offsets = self._check_targets(members, shards, _by_tensor("dsts", dsts, len(members)))
        return self._store(members, offsets, full)

    def _check_targets(
        self, members: Sequence[int], shards: Sequence[Sequence[Array]], dsts: Sequence[Sequence[Array]]
    ) -> list[int]:
        if len(dsts) != len(shards):
            raise ConfigError("dsts", f"{len(dsts)} tensors", f"srcs has {len(shards)}")
        offsets = []
        for number, (sources, targets) in enumerate(zip(shards, dsts, strict=True)):
            num_bytes = sources[0].nbytes
            for index, (rank, source, target) in enumerate(zip(members, sources, targets, strict=True)):
                field = f"dsts[{index}][{number}]"
                if target.dtype != source.dtype or target.nbytes != len(members) * num_bytes:
                    rule = f"must be {source.dtype} of {len(members)} x {num_bytes} bytes"
                    raise ConfigError(field, f"{target.dtype} of {target.nbytes} bytes", rule)
                own = target.reshape(-1)[index * source.size : (index + 1) * source.size]
                is_own = _address(own) == _address(source)
                if np.may_share_memory(target, source) and not is_own:
                    rule = f"a source inside its target must be part {index} of it"
                    raise ConfigError(f"srcs[{index}][{number}]", f"rank {rank}", rule)
            offsets.append(self._place("dsts", members, targets))
        return offsets

    def reduce_scatter(
        self,
        srcs: Batch,
        comm_precision: CommPrecision = "fp32",
        scale: float = 1.0,
        group: int | None = None,
    ) -> list[list[Array]]:
        """Reduce registered tensors, each member getting its part, in place.

        Args:
          srcs: per member, registered tensors. Afterwards only the member's own part is defined; the
            others hold NaN here, because upstream uses them as scratch space.
          comm_precision: see `reductions.reduce_scatter`, as for the order of the sum.
          scale: factor of the sum.
          group: see `members`.

        Returns:
          per member, flat views of its parts.

        Raises:
          ConfigError: a batch, shape, dtype or place does not fit; nothing has been written then.
        """
        members = self.members(group)
        tensors = _by_tensor("srcs", srcs, len(members))
        offsets = [self._place("srcs", members, t) for t in tensors]
        parts = [reduce_scatter(t, comm_precision=comm_precision, scale=scale) for t in tensors]
        blank = [np.full(t[0].nbytes, UNDEFINED, dtype=np.uint8).view(t[0].dtype) for t in tensors]
        views = self._store(members, offsets, blank)
        results: list[list[Array]] = []
        for index, tensor_views in enumerate(views):
            mine = [v.reshape(len(members), -1)[index] for v in tensor_views]
            for view, part in zip(mine, parts, strict=True):
                view[:] = part[index]
            results.append(mine)
        return results

    def all_reduce(self, srcs: Batch, scale: float = 1.0, group: int | None = None) -> list[list[Array]]:
        """Reduce registered tensors in place, every member getting the same bits.

        Args:
          srcs: per member, registered tensors.
          scale: factor of the sum.
          group: see `members`.

        Returns:
          per member, flat views of the tensors.

        Raises:
          ConfigError: a batch, shape, dtype or place does not fit; nothing has been written then.
        """
        members = self.members(group)
        tensors = _by_tensor("srcs", srcs, len(members))
        offsets = [self._place("srcs", members, t) for t in tensors]
        return self._store(members, offsets, [all_reduce(t, scale=scale) for t in tensors])

    def _place(self, name: str, members: Sequence[int], tensors: Sequence[Array], *, steps: int = 0) -> int:
        """Return the one offset of a tensor, or with steps=1 of the tensor whose r-th part member r gives."""
        offsets: list[int] = []
        for index, (rank, tensor) in enumerate(zip(members, tensors, strict=True)):
            offset = self.offset_of(rank, tensor)
            start = -1 if offset is None else offset - steps * index * tensor.nbytes
            whole = tensor.nbytes * (len(members) if steps else 1)
            if start < 0 or start + whole > self.num_bytes:
                part = f", as part {index} of a gathered tensor" if steps else ""
                raise ConfigError(name, f"a tensor of rank {rank}", f"must lie in its rank's storage{part}")
            if offsets and start != offsets[0]:
                rule = f"must be at offset {offsets[0]}, as on rank {members[0]}"
                raise ConfigError(name, f"offset {start} on rank {rank}", rule)
            offsets.append(start)
        return offsets[0]

    def _store(
        self, members: Sequence[int], offsets: Sequence[int], values: Sequence[Array]
    ) -> list[list[Array]]:
        """Write the same values at the same offsets of every member; return views of them."""
        order = sorted(range(len(offsets)), key=lambda i: offsets[i])
        for low, high in itertools.pairwise(order):
            if offsets[low] + values[low].nbytes > offsets[high]:
                raise ConfigError("tensors", f"{low} and {high}", "tensors of one call must not overlap")
        results = []
        for rank in members:
            views = [
                self.storage[rank][offset : offset + value.nbytes].view(value.dtype)
                for offset, value in zip(offsets, values, strict=True)
            ]
            for view, value in zip(views, values, strict=True):
                view[:] = value
            results.append(views)
        return results

    def session(self, group: int | None = None) -> "BucketSession":
        """Return a session of one group, to be used in a `with` block."""
        return BucketSession(self, group)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _by_tensor(name: str, batch: Batch, num_members: int) -> list[list[Array]]:
    """Return the batch tensor by tensor after checking that every member gives the same number."""
    if len(batch) != num_members:
        raise ConfigError(name, f"{len(batch)} members", f"must be one list per member, {num_members}")
    count = len(batch[0])
    if not 1 <= count <= MAX_TENSORS or any(len(tensors) != count for tensors in batch):
        lengths = [len(tensors) for tensors in batch]
        raise ConfigError(name, lengths, f"every member needs the same 1 to {MAX_TENSORS} tensors")
    for index, tensors in enumerate(batch):
        for number, tensor in enumerate(tensors):
            if not tensor.flags.c_contiguous or not tensor.size:
                field = f"{name}[{index}][{number}]"
                raise ConfigError(field, f"{tensor.shape}", "must be contiguous and not empty")
    return [[tensors[i] for tensors in batch] for i in range(count)]


class BucketSession:
    """Collectives on ordinary tensors, staged in the buffer's storage.

    Staging starts at the beginning of the storage, so what lies there must not be needed any more; it does
    not grow and is not freed before the end. The end adds no barrier: a result that is a view stays valid
    until the storage is used again.

    Args:
      buffer: whose storage is used.
      group: of every collective of the session, see `BucketBuffer.members`.
    """

    def __init__(self, buffer: BucketBuffer, group: int | None = None) -> None:
        """Prepare a session; it starts with the `with` block."""
        self.buffer, self.group = buffer, group
        self.members = buffer.members(group)
        self.num_allocated_bytes = 0

    def __enter__(self) -> "BucketSession":
        """Start at the beginning of the storage.

        Raises:
          ConfigError: a session of this buffer is open.
        """
        if self.buffer.session_is_open:
            raise ConfigError("session", "open", "sessions of one buffer do not nest")
        self.buffer.session_is_open = True
        self.num_allocated_bytes = 0
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.buffer.session_is_open = False

    def allocate(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> list[Array]:
        """Return a registered tensor for every member, at the next multiple of 32 bytes, not cleared.

        Raises:
          ConfigError: the tensor is empty, or the storage is used up.
        """
        if not self.buffer.session_is_open:
            raise ConfigError("session", "closed", "use it inside its `with` block")
        kind = np.dtype(dtype)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        offset = self.num_allocated_bytes
        end = offset + align(whole_number("num_bytes", num_bytes, 1), RECORD_ALIGN_BYTES)
        if end > self.buffer.num_bytes:
            rule = f"the session has {self.buffer.num_bytes - offset} of {self.buffer.num_bytes} bytes left"
            raise ConfigError("num_bytes", num_bytes, rule)
        self.num_allocated_bytes = end
        storage = self.buffer.storage
        return [
            storage[r][offset : offset + num_bytes].view(kind).reshape(tuple(shape)) for r in self.members
        ]

    def all_gather(self, srcs: Batch) -> list[list[Array]]:
        """Gather tensors of any memory; results are staged views.

        Raises:
          ConfigError: as `BucketBuffer.all_gather`, or the storage is used up.
        """
        tensors = _by_tensor("srcs", srcs, len(self.members))
        staged = [self.allocate((len(self.members), t[0].size), t[0].dtype) for t in tensors]
        return self.buffer.all_gather(srcs, _by_member(staged), self.group)

    def reduce_scatter(
        self, srcs: Batch, comm_precision: CommPrecision = "fp32", scale: float = 1.0
    ) -> list[list[Array]]:
        """Reduce copies of tensors of any memory; the sources keep their values.

        Raises:
          ConfigError: as `BucketBuffer.reduce_scatter`, or the storage is used up.
        """
        return self.buffer.reduce_scatter(self._staged(srcs), comm_precision, scale, self.group)

    def all_reduce(self, srcs: Batch, scale: float = 1.0) -> list[list[Array]]:
        """Reduce copies of tensors of any memory; the sources keep their values.

        Raises:
          ConfigError: as `BucketBuffer.all_reduce`, or the storage is used up.
        """
        return self.buffer.all_reduce(self._staged(srcs), scale, self.group)

    def _staged(self, srcs: Batch) -> Batch:
        """Copy each tensor into the storage unless it lies there already."""
        staged = []
        for tensors in _by_tensor("srcs", srcs, len(self.members)):
            offsets = [self.buffer.offset_of(r, t) for r, t in zip(self.members, tensors, strict=True)]
            if None not in offsets:
                staged.append(tensors)
                continue
            targets = self.allocate(tensors[0].shape, tensors[0].dtype)
            for target, tensor in zip(targets, tensors, strict=True):
                if (target.shape, target.dtype) != (tensor.shape, tensor.dtype):
                    rule = f"the first member has {target.dtype} {target.shape}"
                    raise ConfigError("srcs", f"{tensor.dtype} {tensor.shape}", rule)
                target[...] = tensor
            staged.append(targets)
        return _by_member(staged)


def _by_member(tensors: Sequence[Sequence[Array]]) -> list[list[Array]]:
    return [list(member) for member in zip(*tensors, strict=True)]
