"""`EPBuffer` over real processes has the bits of the definition, over the matrix of upstream's own test.

alignment {128, 1} x {FP8, BF16} x biases {0, 1, 2} x scale layout {row, column}; with and without CPU sync,
padding, weights and deferral. Source: deepep-ascend.md section 7.1.
"""

import itertools

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import tensor_of
from reference.order import RANK_REDUCED
from tests.epsim.deep_ep.group_cases import (
    assert_bits,
    check_combine,
    check_dispatch,
    check_handle,
    define_combined,
    dispatch_and_combine,
    make_case,
)
from tests.epsim.deep_ep.spawning import run_ranks

MATRIX = [
    (alignment, fp8, num_biases, column_major)
    for alignment, fp8, num_biases, column_major in itertools.product((128, 1), (1, 0), (0, 1, 2), (0, 1))
    if fp8 or not column_major
]


def waited(call, defer, **arguments):
    """Call an operation in one of the three ways; return its results without the event."""
    if defer == "deferred":
        event = call(**arguments, async_with_compute_stream=True, defer_epilogue=True)
        return event.wait()
    *results, event = call(**arguments, async_with_compute_stream=defer == "async")
    if defer == "async":
        assert event.wait() is None
    else:
        assert event.event is None
    return tuple(results)


def bias_of(biases, rank):
    """Return biases as the caller gives them: none, a tensor, or a tuple of two."""
    tensors = tuple(tensor_of(bias[rank].copy()) for bias in biases)
    return None if not tensors else tensors[0] if len(tensors) == 1 else tensors


def check_one(buffer, rank, num_ranks, point, number):
    """Fresh dispatch, combine with and without weights, cached replay and its combine."""
    alignment, fp8, num_biases, column_major = point
    defer = ("sync", "async", "deferred")[number % 3]
    cpu_sync, zero_padding = number % 2 == 0, number % 5 != 1
    case = make_case(number, num_ranks, alignment=alignment, fp8=bool(fp8))
    expected, handles = case.dispatched(zero_padding=zero_padding, cpu_sync=cpu_sync)
    stats = torch.full((case.config.num_experts // num_ranks,), 7, dtype=torch.int32)
    idx, weights = case.ids(rank), case.weights(rank)
    outputs = waited(
        buffer.dispatch,
        defer,
        x=case.payload(rank, column_major_input=number % 4 == 3),
        topk_idx=idx,
        topk_weights=weights,
        cumulative_local_expert_recv_stats=stats,
        num_experts=case.config.num_experts,
        num_max_tokens_per_rank=case.config.num_max_tokens_per_rank,
        expert_alignment=alignment,
        num_sms=(0, 8, 16)[number % 3],
        do_cpu_sync=cpu_sync,
        do_expand=True,
        do_zero_padding=zero_padding,
        use_tma_aligned_col_major_sf=bool(column_major),
    )
    handle = outputs[3]
    assert handle.topk_idx is idx
    check_dispatch(outputs, (expected[rank], handles[rank]), column_major=bool(column_major))
    assert_bits(stats, 7 + handles[rank].num_unaligned_recv_tokens_per_expert, "stats")
    y, row_weights = case.expert_rows(handles)
    biases = case.biases(num_biases)
    for given in (row_weights, None):
        combined = waited(
            buffer.combine,
            defer,
            x=tensor_of(y[rank].copy()),
            handle=handle,
            topk_weights=None if given is None else tensor_of(given[rank].copy()),
            bias=bias_of(biases, rank),
        )
        check_combine(combined, define_combined(handles, y, RANK_REDUCED, given, biases, rank))
    replay(buffer, rank, case, handle, handles, defer)


def replay(buffer, rank, case, handle, handles, defer):
    """Dispatch other rows over the same handle, with and without weights, and combine them."""
    for with_weights in (True, False):
        other = case.with_new_rows(weights=with_weights, fp8=not with_weights)
        expected, _ = other.dispatched(
            zero_padding=True, cpu_sync=bool(handle.num_recv_tokens_per_expert_list)
        )
        outputs = waited(
            buffer.dispatch,
            defer,
            x=other.payload(rank, column_major_input=True),
            topk_weights=other.weights(rank) if with_weights else None,
            handle=handle,
            num_sms=3,  # the handle's is used, whatever is passed
            do_expand=True,
            do_zero_padding=True,
        )
        assert outputs[3] is handle
        check_dispatch(outputs, (expected[rank], handles[rank]))
    y, _ = other.expert_rows(handles)
    combined = waited(buffer.combine, defer, x=tensor_of(y[rank].copy()), handle=handle)
    check_combine(combined, define_combined(handles, y, RANK_REDUCED, None, (), rank))
    check_handle(handle, handles[rank])


def matrix(rank, num_ranks, points):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 6, 256, 3, explicitly_destroy=True)
    for number in points:
        check_one(buffer, rank, num_ranks, MATRIX[number % len(MATRIX)], number)
    buffer.destroy()
    return True


@pytest.mark.parametrize(("num_ranks", "points"), [(2, range(36)), (4, range(18)), (8, range(18))])
def test_every_point_of_the_matrix_has_the_bits_of_the_definition(num_ranks, points):
    """Fresh and cached dispatch, combine: all outputs, all handle fields, padding and poison."""
    assert run_ranks(matrix, num_ranks, list(points)) == [True] * num_ranks


def test_the_matrix_is_complete():
    """Eighteen points; two rounds of them give every point both parities and all ways of waiting."""
    assert len(MATRIX) == 18


SHAPES = {
    "all tokens masked": {"masked": 1.0},
    "no tokens anywhere": {"tokens": "none"},
    "eleven columns": {"num_topk": 11, "experts_per_rank": 12},
    "one expert of one column": {"num_topk": 1, "experts_per_rank": 1},
    "rows of 384 bytes, which padding refuses": {"hidden": 384, "fp8": True},
    "only the last rank has tokens": {"tokens": "last"},
}


def odd_shapes(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 6)
    for name, shape in SHAPES.items():
        tokens = {"none": [0] * num_ranks, "last": [0] * (num_ranks - 1) + [6]}.get(shape.get("tokens"))
        case = make_case(11, num_ranks, alignment=4, **(shape | {"tokens": tokens}))
        zero_padding = case.config.hidden % 256 == 0
        expected, handles = case.dispatched(zero_padding=zero_padding)
        outputs, combined = dispatch_and_combine(buffer, case, rank, do_zero_padding=zero_padding)
        check_dispatch(outputs, (expected[rank], handles[rank]))
        y = [np.asarray(r.recv_x) for r in expected]
        y = [np.nan_to_num(a.astype(np.float32), posinf=3.3895314e38, neginf=-3.3895314e38) for a in y]
        y = [a.astype(x.recv_x.dtype) for a, x in zip(y, expected, strict=True)]
        weights = [r.recv_topk_weights for r in expected]
        check_combine(combined, define_combined(handles, y, RANK_REDUCED, weights, (), rank))
        # Weights that went out and came back are the same where a choice was made.
        chosen = case.topk.topk_idx[rank] >= 0
        assert_bits(combined[1], np.where(chosen, case.topk.topk_weights[rank], np.float32(0)), name)
    return True


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_shapes_that_upstream_does_not_test(num_ranks):
    """One rank; no token on some or all ranks; all masked; K > 8; rows that are no multiple of 256 bytes."""
    assert run_ranks(odd_shapes, num_ranks) == [True] * num_ranks
