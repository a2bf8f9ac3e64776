"""The arguments of a dispatch: what the Python front end refuses, then what native code refuses.

R ranks, n tokens of this rank, K top-k, H hidden, P scale packs, L local experts, M token capacity.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from epsim.deep_ep.arrays import Array, array_of
from epsim.deep_ep.context import Context
from epsim.deep_ep.device import NVIDIA_NUM_SMS, get_num_ai_cores
from epsim.deep_ep.errors import (
    HostCheckError,
    MissingArgumentError,
    RefusedError,
    UndefinedError,
    UnsupportedError,
    raised_as,
)
from epsim.deep_ep.handle import EPHandle, masked_ids
from epsim.deep_ep.tensor_checks import (
    Payload,
    check_flags,
    check_handle,
    check_is_handle,
    check_num_sms,
    check_payload,
    check_stats,
    check_tensor,
    check_topk_weights,
)
from epsim.deep_ep.watch import Watch
from reference.config import EPConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchArguments:
    """A dispatch as the caller wrote it; see `EPBuffer.dispatch`."""

    x: Payload
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    stats: torch.Tensor | None
    num_experts: int | None
    num_max_tokens_per_rank: int | None
    expert_alignment: int | None
    num_sms: int
    num_qps: int | None
    previous_event: Any
    async_with_compute_stream: bool
    allocate_on_comm_stream: bool
    handle: EPHandle | None
    do_handle_copy: bool
    do_cpu_sync: bool | None
    do_expand: bool
    do_zero_padding: bool
    use_tma_aligned_col_major_sf: bool
    defer_epilogue: bool
    emit_expert_ids: bool

    def check_front_end(self, context: Context) -> None:
        """Refuse what the Python code of `deep_ep` refuses.

        Raises:
          UnsupportedError: queue pairs.
          RefusedError: a layout or option that the edition lacks, or that contradicts the handle.
          HostCheckError: an option that is not True or False, or a handle that is none.
          UndefinedError: another edition's handle, or one that do_expand contradicts, in editions that do
            not look.
          Source: deepep-ascend.md section 1.10; deepep-v2.md section 7.
        """
        rules = context.mode.rules
        self._check_flags()
        if self.num_qps not in (None, 0) and context.room.is_ascend:
            raise UnsupportedError("num_qps", self.num_qps, "there are no queue pairs, leave it 0")
        if self.do_handle_copy and not rules.has_handle_copy:
            raise RefusedError("do_handle_copy", True, f"edition {rules.name} keeps the caller's topk_idx")
        if not self.do_expand and not rules.has_deduplicated:
            raise RefusedError("do_expand", False, f"edition {rules.name} has the expanded layout only")
        if self.emit_expert_ids and not (rules.has_expert_ids and self.do_expand):
            raise RefusedError("emit_expert_ids", True, f"not in edition {rules.name} with this layout")
        if self.handle is not None:
            self._check_against_handle(self.handle, context)
            return
        if self.topk_idx is None:
            raise MissingArgumentError("topk_idx", None, "is needed without a handle")
        if not isinstance(self.num_experts, int):
            raise MissingArgumentError("num_experts", self.num_experts, "must be an int without a handle")

    def _check_flags(self) -> None:
        check_flags(
            async_with_compute_stream=self.async_with_compute_stream,
            allocate_on_comm_stream=self.allocate_on_comm_stream,
            do_handle_copy=self.do_handle_copy,
            do_cpu_sync=self.do_cpu_sync is None or self.do_cpu_sync,
            do_expand=self.do_expand,
            do_zero_padding=self.do_zero_padding,
            use_tma_aligned_col_major_sf=self.use_tma_aligned_col_major_sf,
            defer_epilogue=self.defer_epilogue,
            emit_expert_ids=self.emit_expert_ids,
        )

    def _check_against_handle(self, handle: EPHandle, context: Context) -> None:
        check_is_handle(handle, context.mode.rules)
        if self.topk_idx is not None:
            raise RefusedError("topk_idx", "given", "must be None with a handle, which holds it")
        if self.do_cpu_sync:
            raise RefusedError("do_cpu_sync", True, "a cached dispatch has nothing to wait for")
        if self.do_expand != handle.do_expand:
            error = RefusedError if context.room.is_ascend else UndefinedError
            raise error("do_expand", self.do_expand, f"the handle has do_expand = {handle.do_expand}")
        for name in ("num_experts", "expert_alignment", "num_max_tokens_per_rank"):
            given, kept = getattr(self, name), getattr(handle, name)
            if given is not None and given != kept:
                raise RefusedError(name, given, f"the handle has {kept}")


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchCall:
    """A dispatch whose arguments are good, as far as one rank can tell.

    Args:
      config: the group.
      data: [n, H].
      scales: [n, P], or None.
      topk_idx: [n, K] int64, the caller's or the handle's.
      weights: [n, K] float32, or None.
      stats: [L] int32 to add to, or None.
      handle: of an earlier dispatch, None = a fresh one.
      num_sms: AI cores.
      cpu_sync: outputs of exact size.
      arguments: as the caller wrote them.
    """

    config: EPConfig
    data: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor
    weights: torch.Tensor | None
    stats: torch.Tensor | None
    handle: EPHandle | None
    num_sms: int
    cpu_sync: bool
    arguments: DispatchArguments

    def watch(self) -> Watch:
        """Return what the transfer reads until its epilogue."""
        return Watch(
            rows={"x": self.data, "scales": self.scales},
            routing={"topk_idx": self.topk_idx, "topk_weights": self.weights},
        )

    def parts(self) -> list[Array]:
        """Return the columns of a record: data, scales, weights, and ids where the layout shows them."""
        tensors = [self.data, self.scales, self.weights]
        arrays = [array_of(tensor) for tensor in tensors if tensor is not None]
        if not self.arguments.do_expand:
            arrays.append(masked_ids(self.topk_idx))
        return arrays

    def same(self, context: Context) -> dict[str, Any]:
        """Return what must be equal on all ranks."""
        scales = None if self.scales is None else f"{self.scales.dtype} [{self.scales.shape[1]}]"
        return {
            # First: a cached dispatch that meets a fresh one differs in more, and this is why.
            "handle": None if self.handle is None else self.handle.origin,
            "num_max_tokens_per_rank": self.config.num_max_tokens_per_rank,
            "num_experts": self.config.num_experts,
            "hidden": self.config.hidden,
            "num_topk": self.config.num_topk,
            "x.dtype": str(self.data.dtype),
            "scales": scales,
            "topk_weights": "None" if self.weights is None else "given",
            "expert_alignment": self.config.expert_alignment,
            "do_expand": self.arguments.do_expand,
            "num_sms": self.num_sms,
        }


def check_host(arguments: DispatchArguments, context: Context) -> DispatchCall:
    """Return a dispatch after the checks of native code.

    Raises:
      HostCheckError: as `deep_ep`.
      UndefinedError: where `deep_ep` has no check.
      StaleHandleError: the handle's topk_idx was written to.
      Source: deepep-ascend.md section 1.10; deepep-v2.md section 7.
    """
    context.outstanding.check_idle("dispatch")
    _check_modes(arguments, context)
    data, scales = check_payload(arguments.x, context.mode.rules)
    handle = arguments.handle
    if handle is not None:
        check_handle(handle, context.rank, context.num_ranks, context.mode.rules)
    topk_idx = _topk_idx(arguments, data.shape[0])
    with raised_as(HostCheckError):
        config = _config(arguments, context, hidden=data.shape[1], num_topk=topk_idx.shape[1])
    if data.shape[0] > config.num_max_tokens_per_rank:
        rule = f"num_max_tokens_per_rank is {config.num_max_tokens_per_rank}"
        raise HostCheckError("x", f"{data.shape[0]} tokens", rule)
    weights = arguments.topk_weights
    if weights is not None:
        check_topk_weights(weights, tuple(topk_idx.shape), context.rank)
    if arguments.stats is not None:
        check_stats(arguments.stats, config.num_experts // config.ep_size)
    cpu_sync = handle is None and arguments.do_cpu_sync is not False
    num_sms = _num_sms(arguments, context)
    context.room.check_dispatch(
        config,
        num_sms=num_sms,
        element_bytes=data.element_size(),
        num_scale_packs=0 if scales is None else scales.shape[1],
        is_fresh=handle is None,
        cpu_sync=cpu_sync,
        zero_padding=arguments.do_zero_padding,
    )
    return DispatchCall(
        config=config,
        data=data,
        scales=scales,
        topk_idx=topk_idx,
        weights=weights,
        stats=arguments.stats,
        handle=handle,
        num_sms=num_sms,
        cpu_sync=cpu_sync,
        arguments=arguments,
    )


def _check_modes(arguments: DispatchArguments, context: Context) -> None:
    if arguments.defer_epilogue and not arguments.async_with_compute_stream:
        raise HostCheckError("defer_epilogue", True, "needs async_with_compute_stream")
    if arguments.do_zero_padding and not arguments.do_expand:
        raise HostCheckError("do_zero_padding", True, "needs do_expand")
    if arguments.handle is not None and arguments.stats is not None:
        name = "cumulative_local_expert_recv_stats"
        raise HostCheckError(name, "given", "a cached dispatch does not count")
    check_previous_event(arguments.previous_event, arguments.allocate_on_comm_stream, context)


def check_previous_event(event: Any, allocate_on_comm_stream: bool, context: Context) -> None:  # noqa: ANN401
    """Wait for an event that work must come after; the Ascend edition ignores it.

    Raises:
      HostCheckError: NVIDIA editions need allocate_on_comm_stream with it.
    """
    if event is None or context.room.is_ascend:
        return
    if not allocate_on_comm_stream:
        raise HostCheckError("previous_event", "given", "needs allocate_on_comm_stream")
    event.current_stream_wait()


def _topk_idx(arguments: DispatchArguments, num_tokens: int) -> torch.Tensor:
    if arguments.handle is not None:
        topk_idx = arguments.handle.topk_idx
        if topk_idx.shape[0] != num_tokens:
            raise HostCheckError("x", f"{num_tokens} tokens", f"the handle has {topk_idx.shape[0]}")
        return topk_idx
    topk_idx = check_tensor("topk_idx", arguments.topk_idx, dim=2, dtype=torch.int64)
    if topk_idx.shape[0] != num_tokens:
        raise HostCheckError("topk_idx", f"{topk_idx.shape[0]} rows", f"x has {num_tokens}")
    return topk_idx


def _config(arguments: DispatchArguments, context: Context, *, hidden: int, num_topk: int) -> EPConfig:
    handle = arguments.handle
    if handle is not None:
        experts, capacity = handle.num_experts, handle.num_max_tokens_per_rank
        alignment = handle.expert_alignment
    else:
        experts = arguments.num_experts or 0
        given = arguments.num_max_tokens_per_rank
        capacity = context.num_max_tokens_per_rank if given is None else given
        alignment = 1 if arguments.expert_alignment is None else arguments.expert_alignment
    return EPConfig(
        ep_size=context.num_ranks,
        num_experts=experts,
        num_topk=num_topk,
        hidden=hidden,
        num_max_tokens_per_rank=capacity,
        expert_alignment=alignment,
    )


def _num_sms(arguments: DispatchArguments, context: Context) -> int:
    check_num_sms(arguments.num_sms)
    if arguments.handle is not None:
        return arguments.handle.num_sms
    return int(arguments.num_sms) or (get_num_ai_cores() if context.room.is_ascend else NVIDIA_NUM_SMS)


def check_ids(rank: int, ids: np.ndarray[Any, Any], num_experts: int) -> None:
    """Refuse ids that no expert has; masked ones are -1 already.

    Raises:
      UndefinedError: an id of num_experts or more, or a repeat in a token; names rank, token and column.
    """
    too_large = ids >= num_experts
    if too_large.any():
        token, k = np.argwhere(too_large)[0]
        field = f"topk_idx[rank {rank}, token {token}, column {k}]"
        raise UndefinedError(field, int(ids[token, k]), f"must be an expert 0..{num_experts - 1}")
    for k in range(1, ids.shape[1]):
        repeat = ((ids[:, :k] == ids[:, k : k + 1]) & (ids[:, k : k + 1] >= 0)).any(axis=1)
        if repeat.any():
            token = int(np.argmax(repeat))
            field = f"topk_idx[rank {rank}, token {token}, column {k}]"
            raise UndefinedError(field, int(ids[token, k]), "an expert may appear once in a token")
