"""`EPBuffer`: dispatch and combine between the ranks of a group, on CPU tensors.

R ranks, M token capacity, n tokens of this rank, K top-k, H hidden, E experts, L local experts, P scale
packs, A alignment, N received rows, X expanded rows.
"""

import secrets
import sys
from types import SimpleNamespace
from typing import Any

import torch

from epsim.deep_ep.allocator import BufferAllocator
from epsim.deep_ep.balance import LoadBalancing
from epsim.deep_ep.base import BufferBase
from epsim.deep_ep.combine import CombineArguments, combine
from epsim.deep_ep.comm import barrier, get_comm_stream, get_logical_domain_size, get_physical_domain_size
from epsim.deep_ep.context import Context
from epsim.deep_ep.device import NVIDIA_NUM_SMS, get_num_ai_cores
from epsim.deep_ep.dispatch import dispatch
from epsim.deep_ep.dispatch_call import DispatchArguments
from epsim.deep_ep.ep_settings import EPSettings, SizeArguments
from epsim.deep_ep.events import EventHandle
from epsim.deep_ep.handle import EPHandle
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.tensor_checks import Payload
from epsim.deep_ep.turns import one_at_a_time


class EPBuffer(BufferBase, LoadBalancing):
    """A buffer for expert-parallel communication; one operation at a time.

    Positional arguments are those of `deep_ep.EPBuffer`. What the CPU cannot mean is accepted and ignored:
    overlap preference, huge pages, time limits of the device.

    Args:
      group: R ranks; R is 1 or even (Ascend edition).
      num_bytes: of the EP region, a multiple of 2 MiB; None = `get_buffer_size_hint` of the next four.
      num_max_tokens_per_rank: M that calls use when they give none.
      hidden: H, for sizing.
      num_topk: K, for sizing; 0 = 32.
      use_fp8_dispatch: for sizing.
      lb_allocation_plan_or_num_bytes: storage for expert load balancing behind the region: a plan, which is
        materialised on it, or bytes, a multiple of 2 MiB. It is `runtime.lb_storage`.
      deterministic: dispatch sorts its rows by source.
      allow_hybrid_mode: whether several scale-up domains are used as such; else one flat domain.
      allow_multiple_reduction: whether combine sums at the experts' rank first.
      prefer_overlap_with_compute: accepted and ignored.
      sl_idx: must be None (Ascend edition).
      num_allocated_qps: must be 0 (Ascend edition).
      num_cpu_timeout_secs: longest wait for a peer; > 0.
      num_gpu_timeout_secs: > 0, otherwise ignored.
      explicitly_destroy: see `BufferBase`.
      use_huge1g_page: accepted and ignored.
      edition: "ascend", or "nvidia" (V2.5), "nvidia-v2": opens their layouts.
      num_scaleup_ranks: ranks of a scale-up domain (NVIDIA editions); None = all.
      arrival_seed: shuffle what the contract leaves open, so that a program cannot lean on it; None =
        canonical order, source rank then token.

    Raises:
      RefusedError: a flag or size that the edition refuses.
      UnsupportedError: service levels or queue pairs.
      HostCheckError: a group that the edition cannot serve, or a number that is none.
      RankMismatchError: arguments differ between ranks.
      PeerRefusedError: another rank's arguments are refused.
      Source: deepep-ascend.md section 1.2.
    """

    barrier = barrier
    get_comm_stream = get_comm_stream
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: BufferAllocator | int = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        use_huge1g_page: bool = True,
        edition: str = "ascend",
        num_scaleup_ranks: int | None = None,
        arrival_seed: int | None = None,
    ) -> None:
        """Connect the ranks; collective."""
        self.is_destroyed = True  # nothing to warn about when the construction fails
        group = group_of(group)
        settings = EPSettings(
            sizes=SizeArguments(
                num_ranks=group.size(),
                num_max_tokens_per_rank=num_max_tokens_per_rank,
                hidden=hidden,
                num_topk=num_topk,
                use_fp8_dispatch=use_fp8_dispatch,
                allow_hybrid_mode=allow_hybrid_mode,
                allow_multiple_reduction=allow_multiple_reduction,
                edition=edition,
                num_scaleup_ranks=num_scaleup_ranks,
            ),
            given_num_bytes=num_bytes,
            lb_allocation_plan_or_num_bytes=lb_allocation_plan_or_num_bytes,
            deterministic=deterministic,
            sl_idx=sl_idx,
            num_allocated_qps=num_allocated_qps,
            num_cpu_timeout_secs=num_cpu_timeout_secs,
            num_gpu_timeout_secs=num_gpu_timeout_secs,
            arrival_seed=arrival_seed,
        )
        with telling_peers(group):
            settings.check()
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute, self.deterministic = prefer_overlap_with_compute, deterministic
        self.use_fp8_dispatch, self.use_huge1g_page = use_fp8_dispatch, use_huge1g_page
        self.num_max_tokens_per_rank, self.num_allocated_qps = num_max_tokens_per_rank, num_allocated_qps
        super().__init__(
            group,
            timeout_secs=num_cpu_timeout_secs,
            explicitly_destroy=explicitly_destroy,
            num_bytes=settings.num_bytes,
        )
        self._open(settings)

    def _open(self, settings: EPSettings) -> None:
        """Agree with all ranks, and make the storage for load balancing."""
        try:
            drawn = {"buffer_id": secrets.token_hex(4)}
            owns = self.exchange.agree(type(self).__name__, same=settings.same(), own=drawn)
        except RuntimeError:
            self.is_destroyed = True
            raise
        self.physical_domain_size = settings.sizes.physical_domains
        self.num_rdma_ranks, self.num_nvlink_ranks = self.physical_domain_size
        self.num_scaleout_ranks, self.num_scaleup_ranks = settings.sizes.logical_domains
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_lb_bytes = settings.num_lb_bytes
        self._context = Context(
            exchange=self.exchange,
            room=settings.room(),
            mode=settings.mode(),
            num_max_tokens_per_rank=self.num_max_tokens_per_rank,
            buffer_id=owns[0]["buffer_id"],
        )
        storage = torch.zeros(self.num_lb_bytes, dtype=torch.uint8)
        plan = settings.lb_allocation_plan_or_num_bytes
        if isinstance(plan, BufferAllocator):
            plan.materialize(storage)
        self.runtime = SimpleNamespace(lb_storage=storage)

    @property
    def context(self) -> Any:  # noqa: ANN401 - upstream's opaque object
        """The communicator's context."""
        return self.main_context

    @staticmethod
    def get_buffer_size_hint(
        group: Any,  # noqa: ANN401 - torch's type
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        *,
        edition: str = "ascend",
        num_scaleup_ranks: int | None = None,
    ) -> int:
        """Return bytes of the EP region that serve any call of these sizes; see the class for the arguments.

        Raises:
          RefusedError: the edition lacks a flag, or no process group.
          HostCheckError: a number is out of range.
        """
        sizes = SizeArguments(
            num_ranks=group_of(group).size(),
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            hidden=hidden,
            num_topk=num_topk,
            use_fp8_dispatch=use_fp8_dispatch,
            allow_hybrid_mode=allow_hybrid_mode,
            allow_multiple_reduction=allow_multiple_reduction,
            edition=edition,
            num_scaleup_ranks=num_scaleup_ranks,
        )
        sizes.check()
        return sizes.hint_bytes()

    @staticmethod
    def capture() -> EventHandle:
        """Return an event recorded now."""
        return EventHandle()

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """Return AI cores: all of them; the arguments are ignored, as in the Ascend edition."""
        del num_experts, num_topk, num_scaleout_topk, rdma_gbs, nvlink_gbs, sm_read_gbs, sm_write_gbs
        return get_num_ai_cores() if self._context.room.is_ascend else NVIDIA_NUM_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Return queue pairs: none."""
        del num_sms
        return 0

    def lb_get_theoretical_num_sms(self) -> int:
        """Return AI cores for the load-balancing calls: all of them."""
        return self.get_theoretical_num_sms(0, 0)

    @one_at_a_time
    def dispatch(
        self,
        x: Payload,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int | None = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
        *,
        emit_expert_ids: bool = False,
    ) -> Any:  # noqa: ANN401 - a tuple, or an event when deferred
        """Send every token once to each rank that holds one of its experts, and lay the rows out there.

        Args:
          x: [n, H] bf16, or a tuple of [n, H] float8_e4m3fn and scales [n, P] of 2-byte elements (NVIDIA: 4),
            of which the rows or the columns are contiguous.
          topk_idx: [n, K] int64 experts, negative = none; None with a handle. The handle keeps this tensor.
          topk_weights: [n, K] float32, carried and never applied; None = none.
          cumulative_local_expert_recv_stats: [L] int32; the unaligned counts are added.
          num_experts: E; needed without a handle.
          num_max_tokens_per_rank: M; None = the handle's or the buffer's.
          expert_alignment: A, a power of two; None = the handle's or 1.
          num_sms: AI cores, 0 = all; with a handle at least 0, else ignored: the handle's value is used.
          num_qps: must be 0 or None (Ascend edition).
          previous_event: waited for in NVIDIA editions; ignored on Ascend.
          async_with_compute_stream: the event must be waited for.
          allocate_on_comm_stream: accepted; NVIDIA editions need it with previous_event.
          handle: of an earlier dispatch: same places, other rows. Also the backward of combine.
          do_handle_copy: keep a copy of topk_idx (edition nvidia-v2).
          do_cpu_sync: outputs of exact size; None = yes without a handle.
          do_expand: one row per (token, local expert), by expert; must be True (Ascend edition).
          do_zero_padding: zero the rows between an expert's last row and its aligned end; else they are
            poison, as is all that the contract leaves undefined.
          use_tma_aligned_col_major_sf: scales with strides (1, X).
          defer_epilogue: return the event only; its wait returns the rest.
          emit_expert_ids: set handle.recv_expert_ids (NVIDIA V2.5).

        Returns:
          (recv_x, recv_topk_idx, recv_topk_weights, handle, event), or the event when deferred, whose wait
          returns the first four. recv_x: [X, H], with scales a tuple with [X, P]. recv_topk_idx: None when
          expanded, else [N, K] local experts. recv_topk_weights: [X] float32 when expanded, else [N, K].

        Raises:
          RefusedError, UnsupportedError, MissingArgumentError: what Python code of `deep_ep` refuses.
          HostCheckError: what its native code refuses.
          UndefinedError: what it does not check: ids out of range, repeats, NaN weights, a busy buffer.
          StaleHandleError: the handle's topk_idx was written to.
          RankMismatchError, PeerRefusedError, PeerLostError: see `Exchange.agree`.
          Source: deepep-ascend.md section 1.5; deepep-v2.md section 2.
        """
        arguments = DispatchArguments(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            stats=cumulative_local_expert_recv_stats,
            num_experts=num_experts,
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            expert_alignment=expert_alignment,
            num_sms=num_sms,
            num_qps=num_qps,
            previous_event=previous_event,
            async_with_compute_stream=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream,
            handle=handle,
            do_handle_copy=do_handle_copy,
            do_cpu_sync=do_cpu_sync,
            do_expand=do_expand,
            do_zero_padding=do_zero_padding,
            use_tma_aligned_col_major_sf=use_tma_aligned_col_major_sf,
            defer_epilogue=defer_epilogue,
            emit_expert_ids=emit_expert_ids,
        )
        return dispatch(arguments, self._context)

    @one_at_a_time
    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int | None = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:  # noqa: ANN401 - a tuple, or an event when deferred
        """Sum what the experts made of every token at its home rank; never multiplies by weights.

        Args:
          x: [rows, H] bf16, as many rows as dispatch returned; without CPU sync also those past the last one.
          handle: of the dispatch.
          topk_weights: float32 per row, [rows] when expanded, else [rows, K]; gathered at home.
          bias: [n, H] bf16, or a tuple of two; added first. When deferred, read at the wait.
          num_sms: at least 0, else ignored: the handle's value is used.
          num_qps: must be 0 or None (Ascend edition).
          previous_event: as in dispatch.
          async_with_compute_stream: the event must be waited for.
          allocate_on_comm_stream: as in dispatch.
          defer_epilogue: return the event only; its wait returns the rest.

        Returns:
          (combined_x [n, H] bf16, combined_topk_weights [n, K] float32 or None, event), or the event when
          deferred, whose wait returns the first two.

        Raises:
          As `dispatch`; UndefinedError also for a list of biases and for handles of different dispatches.
          Source: deepep-ascend.md section 1.6; deepep-v2.md section 3.
        """
        arguments = CombineArguments(
            x=x,
            handle=handle,
            topk_weights=topk_weights,
            bias=bias,
            num_sms=num_sms,
            num_qps=num_qps,
            previous_event=previous_event,
            async_with_compute_stream=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream,
            defer_epilogue=defer_epilogue,
        )
        return combine(arguments, self._context)

    @one_at_a_time
    def destroy(self) -> None:
        """End the buffer, together with all other ranks; see `BufferBase.destroy`.

        Raises:
          UndefinedError: a deferred operation has not been waited for, and no exception is being handled.
          RefusedError: destroyed already.
        """
        if sys.exception() is None and self._context.outstanding.is_waited_for:
            with self.exchange.telling("destroy"):
                self._context.outstanding.check_idle("destroy")
        super().destroy()
        del self._context
