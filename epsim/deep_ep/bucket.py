"""`BucketBuffer`: batched collectives over one storage, for one or several groups.

R ranks of a group, r this rank's place in it. What the collectives compute, and in which order they add, is
in `reference.collectives.reductions`.
Source: deepep-ascend.md sections 1.13, 1.14 and 4.9.
"""

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from epsim.deep_ep.allocator import BufferAllocator
from epsim.deep_ep.arrays import numpy_dtype, tensor_of
from epsim.deep_ep.base import BufferBase, leave
from epsim.deep_ep.batches import all_gathered, reduced, scattered_sums
from epsim.deep_ep.comm import (
    get_comm_stream,
    get_hccl_comm_handle,
    get_logical_domain_size,
    get_physical_domain_size,
)
from epsim.deep_ep.editions import edition_of
from epsim.deep_ep.errors import HostCheckError, RefusedError, UnsupportedError
from epsim.deep_ep.events import EventHandle, EventOverlap
from epsim.deep_ep.exchange import Exchange
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.outstanding import Delivery, Outstanding
from epsim.deep_ep.regions import Part, Regions, check_batch, check_disjoint, checked_bytes
from epsim.deep_ep.session import BucketSession
from epsim.deep_ep.tensor_checks import Tensors, check_num_sms, listed
from epsim.deep_ep.turns import one_at_a_time
from reference.collectives import reductions
from reference.collectives.bucket import MAX_GROUPS, UNDEFINED

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")


class BucketEvent(EventOverlap):
    """An outstanding collective.

    Attributes:
      num_sms: what the call asked for; without meaning on the CPU.
    """

    num_sms: int = 0


class BucketBuffer(BufferBase):
    """A storage that the ranks of one or several groups own alike, and collectives over it.

    A collective reads its sources when it is called and writes its results when its event is waited for, or
    the next collective or session of the buffer begins: calls see what earlier ones wrote, waited for or not.
    The device reads sources until the wait, so do not write to them before it.

    `EP_AVOID_RECORD_STREAM=1`, which the real library demands for all-gather, decides who keeps tensors
    alive for another stream. Here the event always does, and the environment is not read.

    Args:
      group: a process group, or up to 8 of them; then every collective says which. All ranks of a group
        make its buffers in the same order.
      allocation_plan_or_num_bytes: a plan, which gets its memory here, or bytes; a multiple of 2 MiB.
      sl_idx: Ascend: must be None.
      num_gpu_timeout_secs: longest wait for a peer.
      explicitly_destroy: see `BufferBase`.
      use_huge1g_page: accepted and ignored.
      edition: "ascend", which has no reductions, or "nvidia". Not an argument of the real library.

    Attributes:
      storage: [num_bytes] uint8, zero-filled.
      groups: in the order given.
      contexts: one communicator handle per group.

    Raises:
      UnsupportedError: sl_idx is given.
      RefusedError: a materialised plan, a size or timeout that is not positive, no 2 MiB multiple.
      HostCheckError: no group or more than 8.
      RankMismatchError, PeerRefusedError: sizes differ in a group, or another rank's are refused.
    """

    get_comm_stream = get_comm_stream
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type, or a sequence of it
        allocation_plan_or_num_bytes: BufferAllocator | int,
        sl_idx: int | None = None,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        use_huge1g_page: bool = True,
        edition: str = "ascend",
    ) -> None:
        """Allocate the storage; collective."""
        del use_huge1g_page
        self.groups = [group_of(member) for member in (group if isinstance(group, Sequence) else [group])]
        with telling_peers(*self.groups):
            self.edition = edition_of(edition)
            if sl_idx is not None and self.edition.name == "ascend":
                raise UnsupportedError("sl_idx", sl_idx, "edition ascend has only None")
            num_bytes = checked_bytes(allocation_plan_or_num_bytes)
            if not 1 <= len(self.groups) <= MAX_GROUPS:
                raise HostCheckError("group", f"{len(self.groups)} groups", f"must be 1 to {MAX_GROUPS}")
        # A group that does not come together is told to those that come after it.
        with telling_peers(*self.groups[1:]):
            super().__init__(
                self.groups[0],
                timeout_secs=num_gpu_timeout_secs,
                explicitly_destroy=explicitly_destroy,
                num_bytes=num_bytes,
            )
        self.exchanges = [self.exchange]
        for number, other in enumerate(self.groups[1:], start=2):
            with telling_peers(*self.groups[number:]):
                self.exchanges.append(Exchange(other, timeout_secs=num_gpu_timeout_secs))
        self.contexts = [get_hccl_comm_handle(member) for member in self.groups]
        for exchange in self.exchanges:
            same = {"num_bytes": num_bytes, "edition": self.edition.name}
            exchange.agree("BucketBuffer", same=same)
        self.storage = torch.zeros(num_bytes, dtype=torch.uint8)
        self.regions = Regions(self.storage)
        self.session_in_use: BucketSession | None = None
        self.outstanding = Outstanding()
        if isinstance(allocation_plan_or_num_bytes, BufferAllocator):
            allocation_plan_or_num_bytes.materialize(self.storage)

    def get_context_idx(self, group: Any) -> int:  # noqa: ANN401 - torch's type
        """Return the number of a group; None only when there is one.

        Raises:
          RefusedError: no group although there are several, or one that the buffer does not have.
        """
        if group is None and len(self.groups) > 1:
            raise RefusedError("group", None, f"is required: the buffer has {len(self.groups)} groups")
        if group is None:
            return 0
        if group not in self.groups:
            raise RefusedError("group", str(group), "must be one of the buffer's groups")
        return self.groups.index(group)

    def get_theoretical_num_sms(self, op: str, group: Any = None) -> int:  # noqa: ANN401 - torch's type
        """Return 0 for all_gather, which needs no cores, and 1 for the reductions, where it means nothing.

        Raises:
          UnsupportedError: no such operation.
        """
        self.get_context_idx(group)
        if op not in OPERATIONS:
            raise UnsupportedError("op", op, f"must be one of {', '.join(OPERATIONS)}")
        return int(op != "all_gather")

    def session(self) -> BucketSession:
        """Return a session, to be used in a `with` block."""
        return BucketSession(self)

    @one_at_a_time
    def barrier(
        self,
        wait_comm_stream: bool = True,
        with_cpu_sync: bool = False,
        sequential: bool = True,
        group: Any = None,  # noqa: ANN401 - torch's type
    ) -> None:
        """Wait until all ranks of a group are here.

        Args:
          wait_comm_stream: order of streams and devices; without meaning on the CPU.
          with_cpu_sync: likewise.
          sequential: likewise.
          group: required when there are several.

        Raises:
          RefusedError: as `get_context_idx`, or the buffer is destroyed.
        """
        del wait_comm_stream, with_cpu_sync, sequential
        self._exchange_of(group).barrier()

    @one_at_a_time
    def destroy(self) -> None:
        """End the buffer, together with all ranks of all its groups; raises as `BufferBase.destroy`."""
        for exchange in self.exchanges[1:]:
            leave(exchange)
        super().destroy()
        self.exchanges.clear()

    def _exchange_of(self, group: Any) -> Exchange:  # noqa: ANN401 - torch's type
        return self.exchanges[self.get_context_idx(group)]

    @one_at_a_time
    def all_gather(
        self,
        srcs: Tensors,
        dsts: Tensors | None = None,
        group: Any = None,  # noqa: ANN401 - torch's type
        num_sms: int | None = None,
    ) -> EventOverlap:
        """Gather each tensor of a batch on every rank of a group.

        Args:
          srcs: a tensor or up to 64, contiguous, not empty, of any dtype and address. Without `dsts` each
            must be the r-th part of a tensor in the storage, which surrounds it; not so in a session.
          dsts: as many tensors in the storage, of R times the bytes and the same dtype; in a session they
            may be anywhere. A source may be its own part of its target, or anywhere outside it.
          group: required when there are several.
          num_sms: None or 0.

        Returns:
          event; waiting returns flat views of the gathered tensors, a tensor when srcs is one. In a session
          with `dsts` it returns those.

        Raises:
          RefusedError: see `get_context_idx`.
          HostCheckError: a tensor does not fit; UndefinedError: tensors overlap.
          RankMismatchError: number, dtype, size or place of a tensor differs between ranks.
          PeerRefusedError: another rank's tensors do not fit.
        """
        exchange = self._exchange_of(group)

        def prepare() -> list[Part]:
            outs = None if dsts is None else listed("dsts", dsts)
            return self._gather_parts(listed("srcs", srcs), outs, exchange, num_sms)

        parts = self._agreed(exchange, "all_gather", {}, prepare)
        shards = all_gathered(exchange, parts)
        copies = [] if self.session_in_use is None or dsts is None else listed("dsts", dsts)

        def finish() -> Tensors:
            views = [
                self.regions.store(part, shard, exchange.rank)
                for part, shard in zip(parts, shards, strict=True)
            ]
            for out, view in zip(copies, views if copies else [], strict=True):
                if out.data_ptr() != view.data_ptr():
                    out.view(-1).copy_(view)
            results = copies or views
            return results[0] if isinstance(srcs, torch.Tensor) else results

        return self._event(Delivery("all_gather", parts, finish), srcs, 0)

    def _gather_parts(
        self,
        sources: list[torch.Tensor],
        outs: list[torch.Tensor] | None,
        exchange: Exchange,
        num_sms: int | None,
    ) -> list[Part]:
        if num_sms:
            raise HostCheckError("num_sms", num_sms, "all_gather copies without cores, must be 0")
        check_batch("srcs", sources)
        if outs is not None and len(outs) != len(sources):
            raise HostCheckError("dsts", f"{len(outs)} tensors", f"srcs has {len(sources)}")
        targets: Sequence[torch.Tensor | None] = outs or [None] * len(sources)
        rank, size, session = exchange.rank, exchange.num_ranks, self.session_in_use
        parts = []
        for number, (src, dst) in enumerate(zip(sources, targets, strict=True)):
            if session is not None:
                parts.append(session.gather_part(src, dst, exchange, number))
            elif dst is None:
                parts.append(self.regions.in_place_part(src, rank, size, f"srcs[{number}]"))
            else:
                parts.append(self.regions.target_part(src, dst, rank, size, number))
        return parts

    @one_at_a_time
    def reduce_scatter(
        self,
        srcs: Tensors,
        comm_precision: str = "fp32",
        scale: float = 1.0,
        group: Any = None,  # noqa: ANN401 - torch's type
        num_sms: int | None = None,
    ) -> EventOverlap:
        """Sum tensors over the ranks; each rank gets the r-th part of each sum. Not in the Ascend edition.

        Sums run over ranks 0, 1, .. R - 1 in float32, then the scale, then one rounding.

        Args:
          srcs: a tensor in the storage or up to 64, float32 or bf16, R divides the elements; in a session
            they may be anywhere. After the wait only the own part is defined; the rest holds NaN here.
          comm_precision: "fp32", or "bf16" to round what travels, to nearest even (upstream's kernel rounds
            stochastically); a rank's own part does not travel.
          scale: factor of the sum.
          group: required when there are several.
          num_sms: at least 0, otherwise ignored.

        Returns:
          event; waiting returns flat views of the own parts.

        Raises:
          UnsupportedError: edition ascend.
          HostCheckError, RankMismatchError, PeerRefusedError: as `all_gather`.
        """
        exchange = self._exchange_of(group)
        size = exchange.num_ranks
        same = {"comm_precision": comm_precision, "scale": scale}

        def prepare() -> list[Part]:
            if comm_precision not in reductions.COMM_PRECISIONS:
                rule = f"must be one of {', '.join(reductions.COMM_PRECISIONS)}"
                raise HostCheckError("comm_precision", comm_precision, rule)
            return self._reduce_parts("reduce_scatter", srcs, scale, size, num_sms)

        parts = self._agreed(exchange, "reduce_scatter", same, prepare)
        sums = scattered_sums(exchange, parts, scale=scale, rounds_to_bf16=comm_precision == "bf16")

        def finish() -> Tensors:
            results = []
            for part, total in zip(parts, sums, strict=True):
                self.storage[part.offset : part.offset + part.num_bytes] = UNDEFINED
                whole = self.regions.view(part.offset, part.num_bytes, part.src.dtype)
                results.append(whole.view(size, -1)[exchange.rank].copy_(tensor_of(total)))
            return results[0] if isinstance(srcs, torch.Tensor) else results

        return self._event(Delivery("reduce_scatter", parts, finish), srcs, num_sms)

    @one_at_a_time
    def all_reduce(
        self,
        srcs: Tensors,
        scale: float = 1.0,
        group: Any = None,  # noqa: ANN401 - torch's type
        num_sms: int | None = None,
    ) -> EventOverlap:
        """Sum tensors over the ranks, in place; every rank gets the same bits. Not in the Ascend edition.

        Args:
          srcs: as `reduce_scatter`, of any number of elements.
          scale: as `reduce_scatter`, as for the order of the sum.
          group: required when there are several.
          num_sms: at least 0, otherwise ignored.

        Returns:
          event; waiting returns flat views of the sums.

        Raises:
          UnsupportedError: edition ascend.
          HostCheckError, RankMismatchError, PeerRefusedError: as `all_gather`.
        """
        exchange = self._exchange_of(group)
        parts = self._agreed(
            exchange,
            "all_reduce",
            {"scale": scale},
            lambda: self._reduce_parts("all_reduce", srcs, scale, 1, num_sms),
        )
        sums = reduced(exchange, parts, scale)

        def finish() -> Tensors:
            results = [
                self.regions.view(part.offset, part.num_bytes, part.src.dtype).copy_(tensor_of(total))
                for part, total in zip(parts, sums, strict=True)
            ]
            return results[0] if isinstance(srcs, torch.Tensor) else results

        return self._event(Delivery("all_reduce", parts, finish), srcs, num_sms)

    def _reduce_parts(
        self, operation: str, srcs: Tensors, scale: float, divisor: int, num_sms: int | None
    ) -> list[Part]:
        if self.edition.name == "ascend":
            raise UnsupportedError("edition", "ascend", f"it has no {operation}; edition='nvidia' has")
        if not isinstance(scale, numbers.Real) or not np.isfinite(scale):
            raise HostCheckError("scale", scale, "must be a finite number")
        check_num_sms(num_sms or 0)
        sources = listed("srcs", srcs)
        check_batch("srcs", sources)
        for number, src in enumerate(sources):
            if numpy_dtype(src.dtype) not in reductions.REDUCE_DTYPES:
                raise HostCheckError(f"srcs[{number}]", str(src.dtype), "must be float32 or bfloat16")
            if src.numel() % divisor:
                rule = f"{divisor} ranks must divide them"
                raise HostCheckError(f"srcs[{number}]", f"{src.numel()} elements", rule)
        session = self.session_in_use
        if session is not None:
            return [session.reduce_part(src, number) for number, src in enumerate(sources)]
        return [self.regions.registered_part(src, f"srcs[{number}]") for number, src in enumerate(sources)]

    def _agreed(
        self,
        exchange: Exchange,
        operation: str,
        same: dict[str, object],
        prepare: Callable[[], list[Part]],
    ) -> list[Part]:
        """Return the parts of a call once all ranks know that they fit everywhere."""
        self.outstanding.write()
        with exchange.telling(operation):
            if self.session_in_use is not None:
                self.session_in_use.bind(self.groups[self.exchanges.index(exchange)])
            parts = prepare()
            check_disjoint(parts)
        described = {f"tensor {number}": str(part) for number, part in enumerate(parts)}
        exchange.agree(operation, same={**same, **described})
        return parts

    def _event(self, delivery: Delivery, srcs: Tensors, num_sms: int | None) -> EventOverlap:
        event = BucketEvent(EventHandle(), extra_tensors=tuple(listed("srcs", srcs)))
        event.register_hook_after_wait(delivery)
        self.outstanding.add(delivery)
        event.num_sms = num_sms or 0
        return event
