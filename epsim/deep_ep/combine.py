"""The combine of one rank: agree, sum per rank, exchange rows; then, in the epilogue, sum at home.

R ranks, n tokens of this rank, K top-k, H hidden, rows of this rank's experts.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from epsim.deep_ep.arrays import Array, array_of, tensor_of
from epsim.deep_ep.context import Context
from epsim.deep_ep.dispatch_call import check_previous_event
from epsim.deep_ep.errors import HostCheckError, UndefinedError, UnsupportedError
from epsim.deep_ep.events import EventHandle, EventOverlap
from epsim.deep_ep.handle import EPHandle, check_same_dispatch
from epsim.deep_ep.records import pack, unpack
from epsim.deep_ep.tensor_checks import (
    check_biases,
    check_flags,
    check_handle,
    check_num_sms,
    check_shape,
    check_tensor,
)
from epsim.deep_ep.watch import Watch
from reference.handle import Handle
from reference.one_rank import combine_home, returned_counts, rows_to_return
from reference.order import ReductionOrder, library_order

CombineOutputs = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class CombineArguments:
    """A combine as the caller wrote it; see `EPBuffer.combine`."""

    x: torch.Tensor
    handle: EPHandle
    topk_weights: torch.Tensor | None
    bias: Any
    num_sms: int
    num_qps: int | None
    previous_event: Any
    async_with_compute_stream: bool
    allocate_on_comm_stream: bool
    defer_epilogue: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class CombineCall:
    """A combine whose arguments are good, as far as one rank can tell.

    Args:
      plan: the handle.
      hidden: H.
      order: where the sum is rounded.
      biases: each [n, H] bf16; read by the epilogue only.
      arguments: as the caller wrote them.
    """

    plan: Handle
    hidden: int
    order: ReductionOrder
    biases: tuple[torch.Tensor, ...]
    arguments: CombineArguments

    def same(self) -> dict[str, Any]:
        """Return what must be equal on all ranks."""
        return {
            "handle": self.arguments.handle.origin,
            "num_max_tokens_per_rank": self.plan.num_max_tokens_per_rank,
            "num_experts": self.plan.num_experts,
            "expert_alignment": self.plan.expert_alignment,
            "num_topk": self.plan.config.num_topk,
            "do_expand": self.plan.mode.expand,
            "hidden": self.hidden,
            "topk_weights": "None" if self.arguments.topk_weights is None else "given",
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Returned:
    """A combine whose rows are home but not summed: per rank [rows, H], and [rows, K] weights."""

    call: CombineCall
    x: list[Array]
    weights: list[Array] | None


def combine(arguments: CombineArguments, context: Context) -> EventOverlap | tuple[Any, ...]:
    """Run a combine; see `EPBuffer.combine`."""
    returned = _issue(arguments, context)
    if arguments.defer_epilogue:
        watch = Watch(rows={"x": arguments.x}, routing={"topk_weights": arguments.topk_weights})
        return context.outstanding.defer("combine", lambda: _finish(returned), watch)
    event = EventOverlap(EventHandle()) if arguments.async_with_compute_stream else EventOverlap()
    return (*_finish(returned), event)


def _check_host(arguments: CombineArguments, context: Context) -> CombineCall:
    """Return a combine after the checks of Python and of native code.

    Raises:
      UnsupportedError: queue pairs (Ascend).
      HostCheckError: as `deep_ep`.
      UndefinedError: where `deep_ep` has no check.
      StaleHandleError: the handle's topk_idx was written to.
      Source: deepep-ascend.md section 1.10; deepep-v2.md section 7.
    """
    check_flags(
        async_with_compute_stream=arguments.async_with_compute_stream,
        allocate_on_comm_stream=arguments.allocate_on_comm_stream,
        defer_epilogue=arguments.defer_epilogue,
    )
    check_num_sms(arguments.num_sms)
    if arguments.num_qps not in (None, 0) and context.room.is_ascend:
        raise UnsupportedError("num_qps", arguments.num_qps, "there are no queue pairs, leave it 0")
    context.outstanding.check_idle("combine")
    if arguments.defer_epilogue and not arguments.async_with_compute_stream:
        raise HostCheckError("defer_epilogue", True, "needs async_with_compute_stream")
    check_previous_event(arguments.previous_event, arguments.allocate_on_comm_stream, context)
    handle = check_handle(arguments.handle, context.rank, context.num_ranks, context.mode.rules)
    plan = handle.as_reference(context.rank, replace(context.mode, expand=handle.do_expand))
    x = check_tensor("x", arguments.x, dim=2, dtype=torch.bfloat16)
    _check_rows(plan, x, arguments.topk_weights)
    order = library_order(
        expand=handle.do_expand,
        allow_multiple_reduction=context.room.allow_multiple_reduction,
        is_hybrid=context.is_hybrid,
    )
    if arguments.topk_weights is not None and handle.do_expand and not order.in_rank:
        raise HostCheckError("topk_weights", "given", "not with expanded rows and a single reduction")
    biases = check_biases(arguments.bias, (plan.source_topk_idx.shape[0], x.shape[1]))
    context.room.check_combine(replace(plan.config, hidden=x.shape[1]), num_sms=handle.num_sms)
    return CombineCall(plan=plan, hidden=x.shape[1], order=order, biases=biases, arguments=arguments)


def _check_rows(plan: Handle, x: torch.Tensor, weights: torch.Tensor | None) -> None:
    """Check the rows of x and of the weights against each other and against the handle."""
    rows = x.shape[0]
    if rows != plan.num_rows:
        # With expanded rows upstream does not look.
        error = UndefinedError if plan.mode.expand else HostCheckError
        raise error("x", f"{rows} rows", f"the handle has {plan.num_rows}, as dispatch returned them")
    if weights is not None:
        shape = (rows,) if plan.mode.expand else (rows, plan.config.num_topk)
        check_tensor("topk_weights", weights, dim=len(shape), dtype=torch.float32)
        check_shape("topk_weights", weights, shape)


def _issue(arguments: CombineArguments, context: Context) -> Returned:
    """Agree with all ranks on the call, and exchange the rows of every token."""
    exchange = context.exchange
    with exchange.telling("combine"):
        call = _check_host(arguments, context)
        plan, weights = call.plan, arguments.topk_weights
        back = rows_to_return(
            plan, array_of(arguments.x), call.order, None if weights is None else array_of(weights)
        )
    per_choice = plan.mode.expand and not call.order.in_rank
    due = returned_counts(plan.config, plan.topk_idx, per_choice=per_choice).tolist()
    own = {"sent": back.counts.tolist(), "due": due}
    check_same_dispatch(exchange.agree("combine", same=call.same(), own=own))
    parts = [back.x] if back.weights is None else [back.x, back.weights]
    records = exchange.all_to_all(pack(parts, np.arange(len(back.x))), back.counts.tolist(), due)
    columns = unpack(records, parts, due)
    return Returned(call=call, x=columns[0], weights=columns[1] if len(columns) > 1 else None)


def _finish(returned: Returned) -> CombineOutputs:
    """Sum at home."""
    call = returned.call
    result = combine_home(
        call.plan,
        returned.x,
        call.order,
        weights=returned.weights,
        bias=[array_of(bias) for bias in call.biases],
    )
    weights = result.combined_topk_weights
    return tensor_of(result.combined_x), None if weights is None else tensor_of(weights)
