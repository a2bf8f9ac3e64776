"""`ElasticBuffer`: the EP half of NVIDIA V2, under its names and return shapes.

Its other halves are `PPBuffer`, `EngramBuffer` and `BucketBuffer`, as in V2.5.
Source: deepep-v2.md sections 1.1, 1.2, 2 and 3.
"""

from functools import partial
from typing import Any

import torch

from epsim.deep_ep import comm
from epsim.deep_ep.ep import EPBuffer
from epsim.deep_ep.errors import RefusedError, UnsupportedError
from epsim.deep_ep.events import EventHandle
from epsim.deep_ep.handle import EPHandle
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.tensor_checks import Payload
from epsim.deep_ep.turns import one_at_a_time

V2 = "nvidia-v2"


class ElasticBuffer(EPBuffer):
    """An `EPBuffer` of edition nvidia-v2; what the two share has the same meaning.

    Args:
      num_cpu_bytes: must be 0: host memory is for Engram, which is a buffer of its own here.
      sl_idx: accepted and ignored.
      num_scaleup_ranks: ranks of a scale-up domain; fewer than the group = hybrid.
      arrival_seed: as in `EPBuffer`.
      others: as in `EPBuffer`.

    Raises:
      UnsupportedError: num_cpu_bytes.
      RefusedError: as `EPBuffer`.
    """

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        num_scaleup_ranks: int | None = None,
        arrival_seed: int | None = None,
    ) -> None:
        """Connect the ranks; collective."""
        self.is_destroyed = True  # nothing to warn about when the construction fails
        with telling_peers(group_of(group)):
            if num_cpu_bytes:
                rule = "host memory is for Engram: EngramBuffer"
                raise UnsupportedError("num_cpu_bytes", num_cpu_bytes, rule)
        super().__init__(
            group,
            num_bytes,
            num_max_tokens_per_rank,
            hidden,
            num_topk,
            use_fp8_dispatch,
            0,
            deterministic,
            allow_hybrid_mode,
            allow_multiple_reduction,
            prefer_overlap_with_compute,
            sl_idx,
            num_allocated_qps,
            num_cpu_timeout_secs,
            num_gpu_timeout_secs,
            explicitly_destroy,
            edition=V2,
            num_scaleup_ranks=num_scaleup_ranks,
            arrival_seed=arrival_seed,
        )

    # The same arguments, of which only the edition's default is another.
    get_buffer_size_hint = staticmethod(partial(EPBuffer.get_buffer_size_hint, edition=V2))

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Wait until all ranks are here; the arguments have no meaning on the CPU."""
        comm.barrier(self, use_comm_stream, with_cpu_sync, sequential)

    @one_at_a_time
    def dispatch(  # type: ignore[override]
        self,
        x: Payload,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Payload, torch.Tensor | None, torch.Tensor | None, EPHandle, Any]:
        """Send every token once to each rank that holds one of its experts; see `EPBuffer.dispatch`.

        Returns:
          (recv_x, recv_topk_idx, recv_topk_weights, handle, event).
        """
        if previous_event_before_epilogue is not None:
            previous_event_before_epilogue.current_stream_wait()
        found: tuple[Payload, torch.Tensor | None, torch.Tensor | None, EPHandle, Any] = super().dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            num_sms,
            num_qps,
            previous_event,
            async_with_compute_stream,
            allocate_on_comm_stream,
            handle,
            do_handle_copy,
            do_cpu_sync,
            do_expand,
            do_zero_padding,
            use_tma_aligned_col_major_sf,
        )
        return found

    @one_at_a_time
    def combine(  # type: ignore[override]
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
        """Sum what the experts made of every token at its home rank; see `EPBuffer.combine`.

        Returns:
          (combined_x, combined_topk_weights, event).
        """
        if previous_event_before_epilogue is not None:
            previous_event_before_epilogue.current_stream_wait()
        found: tuple[torch.Tensor, torch.Tensor | None, Any] = super().combine(
            x,
            handle,
            topk_weights,
            bias,
            num_sms,
            num_qps,
            previous_event,
            async_with_compute_stream,
            allocate_on_comm_stream,
        )
        return found

    def destroy(self) -> None:
        """End the buffer, together with all other ranks.

        Raises:
          RefusedError: the buffer was not made with explicitly_destroy.
        """
        if not self.explicitly_destroy:
            raise RefusedError("explicitly_destroy", False, "the buffer ends with its object")
        super().destroy()
