"""The dispatch of one rank: agree, plan, exchange rows; then, in the epilogue, lay them out.

R ranks, n tokens of this rank, K top-k, H hidden, P scale packs, N received rows, X expanded rows.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from epsim.deep_ep.arrays import Array, array_of, tensor_of
from epsim.deep_ep.context import Context
from epsim.deep_ep.device import AIVS_PER_AI_CORE
from epsim.deep_ep.dispatch_call import DispatchArguments, DispatchCall, check_host, check_ids
from epsim.deep_ep.events import EventHandle, EventOverlap
from epsim.deep_ep.exchange import Exchange
from epsim.deep_ep.handle import EPHandle, check_same_dispatch, handle_of, masked_ids
from epsim.deep_ep.records import pack, unpack
from epsim.deep_ep.tensor_checks import Payload
from reference.deliver import Cargo, deliver_received
from reference.handle import Handle
from reference.one_rank import Shipment, received_counts, tokens_to_send
from reference.placement import plan_rank
from reference.results import DispatchResult
from reference.topk import TopK

DispatchOutputs = tuple[Payload, torch.Tensor | None, torch.Tensor | None, EPHandle]


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrived:
    """A dispatch whose rows are here but not laid out.

    Args:
      call: the arguments.
      plan: this rank's handle, sorted if the buffer is deterministic.
      cargo: rows by source.
      ids: [rows, K] int64 by source; empty in the expanded layout, which does not read them.
      number: of the call.
    """

    call: DispatchCall
    plan: Handle
    cargo: Cargo
    ids: list[Array]
    number: int

    def lay_out(self, plan: Handle) -> DispatchResult:
        """Return the outputs in the order of a plan."""
        return deliver_received(plan, self.cargo, self.ids)


def dispatch(arguments: DispatchArguments, context: Context) -> EventOverlap | tuple[Any, ...]:
    """Run a dispatch; see `EPBuffer.dispatch`."""
    arrived = _issue(arguments, context)
    is_sorted_later = arguments.async_with_compute_stream and not arguments.defer_epilogue
    if is_sorted_later and arrived.plan.cached_recv_src_metadata_before_sort is not None:
        return _finish_then_sort(arrived, context)
    # Made now, because from now on a write to topk_idx makes it stale.
    handle = _handle(arrived, arrived.plan, context)
    if arguments.defer_epilogue:
        return context.outstanding.defer("dispatch", lambda: _finish(arrived, handle), arrived.call.watch())
    event = EventOverlap(EventHandle()) if arguments.async_with_compute_stream else EventOverlap()
    return (*_finish(arrived, handle), event)


def _issue(arguments: DispatchArguments, context: Context) -> Arrived:
    """Agree with all ranks on the call, and plan it unless a handle does."""
    exchange = context.exchange
    with exchange.telling("dispatch"):
        arguments.check_front_end(context)
        call = check_host(arguments, context)
        ids = masked_ids(call.topk_idx)
        check_ids(context.rank, ids, call.config.num_experts)
        mode = replace(
            context.mode,
            expand=arguments.do_expand,
            cpu_sync=call.cpu_sync,
            num_aivs=AIVS_PER_AI_CORE * call.num_sms,
        )
        shipment = tokens_to_send(call.config, ids)
        plan = None if call.handle is None else call.handle.as_reference(context.rank, mode)
        own: dict[str, Any] = {"num_tokens": len(ids)}
        if plan is not None:
            own |= {"sent": shipment.counts.tolist(), "due": received_counts(plan).tolist()}
    owns = exchange.agree("dispatch", same=call.same(context), own=own)
    if plan is None:
        everyone = exchange.all_gather(ids, [own["num_tokens"] for own in owns])
        topk = TopK(num_experts=call.config.num_experts, topk_idx=tuple(everyone))
        plan = plan_rank(call.config, topk, context.rank, mode=mode)
    else:
        check_same_dispatch(owns)
    return _exchange_rows(call, plan, shipment, exchange)


def _exchange_rows(call: DispatchCall, plan: Handle, shipment: Shipment, exchange: Exchange) -> Arrived:
    """Send every rank its rows, and receive this rank's."""
    parts, arguments, counts = call.parts(), call.arguments, received_counts(plan).tolist()
    records = exchange.all_to_all(pack(parts, shipment.rows), shipment.counts.tolist(), counts)
    columns = iter(unpack(records, parts, counts))
    cargo = Cargo(
        x=next(columns),
        scales=None if call.scales is None else next(columns),
        weights=None if call.weights is None else next(columns),
        zero_padding=arguments.do_zero_padding,
        column_major_scales=arguments.use_tma_aligned_col_major_sf,
        emit_expert_ids=arguments.emit_expert_ids,
    )
    ids = [] if arguments.do_expand else next(columns)
    return Arrived(call=call, plan=plan, cargo=cargo, ids=ids, number=exchange.num_calls)


def _finish(arrived: Arrived, handle: EPHandle) -> DispatchOutputs:
    """Lay out the rows, and count them."""
    _count(arrived)
    return _outputs(arrived, arrived.lay_out(arrived.plan), handle)


def _handle(arrived: Arrived, plan: Handle, context: Context) -> EPHandle:
    """Return the caller's handle of a cached dispatch, else a new one."""
    call = arrived.call
    if call.handle is not None:
        return call.handle
    topk_idx = call.topk_idx.clone() if call.arguments.do_handle_copy else call.topk_idx
    handle = handle_of(plan, topk_idx, num_sms=call.num_sms, num_scaleup_ranks=context.room.num_scaleup_ranks)
    handle.origin = f"of call {arrived.number} of buffer {context.buffer_id}"
    handle.rank = context.rank
    return handle


def _count(arrived: Arrived) -> None:
    """Add the rows of each expert to the caller's statistics, if there are any."""
    if arrived.call.stats is not None:
        arrived.call.stats.add_(tensor_of(arrived.plan.num_unaligned_recv_tokens_per_expert))


def _outputs(arrived: Arrived, result: DispatchResult, handle: EPHandle) -> DispatchOutputs:
    x: Payload = tensor_of(result.recv_x)
    if result.recv_scales is not None:
        x = (x, tensor_of(result.recv_scales))
    if result.recv_expert_ids is not None:
        handle.recv_expert_ids = tensor_of(result.recv_expert_ids)
    ids = None if result.recv_topk_idx is None else tensor_of(result.recv_topk_idx)
    weights = None if result.recv_topk_weights is None else tensor_of(result.recv_topk_weights)
    return x, ids, weights, handle


def _finish_then_sort(arrived: Arrived, context: Context) -> tuple[Any, ...]:
    """Return outputs as they arrived; a wait on the event sorts them, and the handle, in place."""
    before = arrived.plan.cached_recv_src_metadata_before_sort
    assert before is not None, "only a deterministic dispatch sorts"
    plan = replace(arrived.plan, recv_src_metadata=before.copy())
    handle = _handle(arrived, plan, context)
    handle.awaits_sort = True
    _count(arrived)
    outputs = _outputs(arrived, arrived.lay_out(plan), handle)

    def sort() -> None:
        result = _outputs(arrived, arrived.lay_out(arrived.plan), handle)
        for target, source in zip(_tensors(outputs), _tensors(result), strict=True):
            array_of(target)[...] = array_of(source)
        array_of(handle.recv_src_metadata)[...] = arrived.plan.recv_src_metadata
        handle.awaits_sort = False

    event = EventOverlap(EventHandle())
    event.register_hook_after_wait(sort)
    return (*outputs, event)


def _tensors(outputs: DispatchOutputs) -> list[torch.Tensor]:
    x, ids, weights, _ = outputs
    found = [*(x if isinstance(x, tuple) else (x,)), ids, weights]
    return [tensor for tensor in found if tensor is not None]
