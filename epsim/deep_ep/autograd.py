"""Dispatch and combine that gradients flow through: each is the other's backward.

All ranks must run the same backward, so a loss must depend on the outputs of the same calls on every rank.
There are no second derivatives: what differentiates a gradient again raises an UnsupportedError.
n tokens of this rank, K top-k, H hidden, N received rows, X expanded rows.
Source: deepep-ascend.md section 6, usage pattern; deepep-v2.md section 3.6.
"""

from typing import Any

import torch

from epsim.deep_ep.ep import EPBuffer
from epsim.deep_ep.errors import RefusedError, UnsupportedError
from epsim.deep_ep.handle import EPHandle
from epsim.deep_ep.turns import one_at_a_time


@one_at_a_time
def dispatch(
    buffer: EPBuffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    **options: Any,  # noqa: ANN401 - those of EPBuffer.dispatch
) -> tuple[torch.Tensor, torch.Tensor | None, EPHandle]:
    """Send tokens to their experts; the backward sums the rows' gradients at home.

    Args:
      buffer: whose ranks take part.
      x: [n, H] bf16.
      topk_idx: [n, K] int64.
      topk_weights: [n, K] float32; their gradient is gathered from the rows. Expanded rows of a buffer
        without allow_multiple_reduction cannot bring one home, so there they must not require it.
      options: of `EPBuffer.dispatch`, such as num_experts and expert_alignment, but not defer_epilogue.
        do_expand is on unless given, and padding is zero then, because a gradient must not meet undefined
        rows; nor those past the last one received, with do_cpu_sync off, which are zero as well.

    Returns:
      recv_x [X, H] and recv_topk_weights [X] (not expanded: [N, H] and [N, K], of which only the columns of
      own experts may be used), and the handle.

    Raises:
      RefusedError: defer_epilogue.
      UnsupportedError: FP8 codes with scales, or topk_weights that require a gradient where it cannot come
        home.
      Otherwise as `EPBuffer.dispatch`.
    """
    options = {"do_expand": True} | options
    options = {"do_zero_padding": options["do_expand"]} | options
    with buffer.exchange.telling("dispatch"):
        if options.get("defer_epilogue"):
            rule = "gradients need the rows now; call EPBuffer.dispatch to defer"
            raise RefusedError("defer_epilogue", True, rule)
        if isinstance(x, tuple):
            rule = "gradients flow through bf16 rows only; EPBuffer.dispatch takes codes with scales"
            raise UnsupportedError("x", "a tuple", rule)
        needs_grad = isinstance(topk_weights, torch.Tensor) and topk_weights.requires_grad
        if needs_grad and torch.is_grad_enabled() and not _carries_weights(buffer, options["do_expand"]):
            rule = "expanded rows bring it home with allow_multiple_reduction only; else detach the weights"
            raise UnsupportedError("topk_weights.requires_grad", True, rule)
    made: list[EPHandle] = []
    recv_x, recv_weights = _Dispatch.apply(x, topk_weights, buffer, topk_idx, options, made)
    return recv_x, recv_weights, made[0]


@one_at_a_time
def combine(buffer: EPBuffer, x: torch.Tensor, handle: EPHandle) -> torch.Tensor:
    """Sum the experts' rows at home; the backward sends the gradient to all of them.

    Args:
      buffer: whose ranks take part.
      x: [X, H] bf16, or [N, H] when not expanded.
      handle: of the dispatch.

    Returns:
      [n, H] bf16.
    """
    combined: torch.Tensor = _Combine.apply(x, buffer, handle)
    return combined


class _Dispatch(torch.autograd.Function):  # type: ignore[misc]
    """(x, weights) -> (recv_x, recv_weights); the handle comes back through the list `made`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        x: torch.Tensor,
        topk_weights: torch.Tensor | None,
        buffer: EPBuffer,
        topk_idx: torch.Tensor,
        options: dict[str, Any],
        made: list[EPHandle],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        recv_x, _, recv_weights, handle, event = buffer.dispatch(x, topk_idx, topk_weights, **options)
        if event.event is not None:
            event.wait()
        made.append(handle)
        # Without CPU sync the outputs have the worst case's rows; the last ones are undefined.
        end = _num_defined_rows(handle)
        for rows in (recv_x, recv_weights):
            if rows is not None:
                rows[end:] = 0
        ctx.buffer, ctx.handle = buffer, handle
        return recv_x, recv_weights

    @staticmethod
    def backward(ctx: Any, grad_x: torch.Tensor, grad_weights: torch.Tensor | None) -> tuple[Any, ...]:  # noqa: ANN401
        weights = None
        if grad_weights is not None and _carries_weights(ctx.buffer, ctx.handle.do_expand):
            weights = grad_weights.contiguous()
        home_x, home_weights, _ = ctx.buffer.combine(grad_x.contiguous(), ctx.handle, weights)
        home_x = _Gradient.apply(home_x, grad_x)
        if home_weights is not None:
            home_weights = _Gradient.apply(home_weights, grad_weights)
        return home_x, home_weights, None, None, None, None


class _Combine(torch.autograd.Function):  # type: ignore[misc]
    """The rows of x -> combined_x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: EPBuffer, handle: EPHandle) -> torch.Tensor:  # noqa: ANN401
        # What is no tensor is for combine to refuse.
        rows = x.contiguous() if isinstance(x, torch.Tensor) else x
        combined, _, _ = buffer.combine(rows, handle)
        ctx.buffer, ctx.handle, ctx.num_rows = buffer, handle, x.shape[0]
        return combined

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        handle = ctx.handle
        rows, _, _, _, _ = ctx.buffer.dispatch(
            grad.contiguous(), handle=handle, do_expand=handle.do_expand, do_zero_padding=handle.do_expand
        )
        # Rows beyond the last block were not read, so nothing depends on them.
        out = torch.zeros((ctx.num_rows, grad.shape[1]), dtype=grad.dtype)
        end = min(_num_defined_rows(handle), ctx.num_rows)
        out[:end] = rows[:end]
        return _Gradient.apply(out, grad), None, None


class _Gradient(torch.autograd.Function):  # type: ignore[misc]
    """A gradient, made from another one: not to be differentiated again, where it would count as constant."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, source: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        del ctx, source
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        del ctx, grad
        rule = "a gradient that came through dispatch or combine cannot be differentiated again"
        raise UnsupportedError("create_graph", True, rule)


def _carries_weights(buffer: EPBuffer, do_expand: bool) -> bool:
    """Return whether combine takes weights: not when home sums every expert's row; deepep-v2.md section 3."""
    return buffer.allow_multiple_reduction or not do_expand


def _num_defined_rows(handle: EPHandle) -> int:
    if not handle.do_expand:
        return int(handle.psum_num_recv_tokens_per_rank[-1])
    counts, step = handle.num_unaligned_recv_tokens_per_expert.long(), handle.expert_alignment
    return int(((counts + step - 1) // step * step).sum())
