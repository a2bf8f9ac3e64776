"""Faults in what a dispatch returns: rows, scales, weights, padding, counts."""

from dataclasses import replace

import numpy as np

from reference.formats.dtypes import is_nan, widen
from reference.poison import poison
from tests.meta.faults import (
    fault,
    has_two_tokens,
    padding_of,
    spoil_elements,
    spoil_rows,
    spoil_two_tokens,
    swap,
)


@fault("received")
def row_lost(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: poison(x[real[-1]]))


@fault("received")
def row_of_zeros(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: x[real[-1]].view(np.uint8).fill(0))


@fault("received")
def row_doubled(have, _call, _memory):
    return spoil_two_tokens(have, lambda x, a, b: np.copyto(x[b], x[a]))


@fault("received")
def rows_swapped(have, _call, _memory):
    return spoil_two_tokens(have, swap)


@fault("received")
def column_swapped_between_tokens(have, _call, _memory):
    """Hidden by a comparison that sorts columns."""
    return spoil_two_tokens(have, lambda x, a, b: swap(x.view(np.uint8)[:, -1], a, b))


@fault("received")
def stale_row_of_the_call_before(have, _call, memory):
    before = memory.get("x")
    memory["x"] = [r.recv_x.copy() for r in have.received]
    if before is None or [b.shape for b in before] != [r.recv_x.shape for r in have.received]:
        return have
    if before[0].dtype != have.received[0].recv_x.dtype:
        return have
    old = [b for b, r in zip(before, have.received, strict=True) if len(r.recv_x)]
    return spoil_rows(have, "recv_x", lambda x, real: np.copyto(x[real[0]], old[0][real[0]])) if old else have


@fault("received")
def one_bit_of_one_element(have, _call, _memory):
    def flip(x, real):
        x.view(np.uint8)[real[0], -2] ^= 1

    return spoil_rows(have, "recv_x", flip)


@fault("received")
def columns_shifted_by_one(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: np.copyto(x[real[0]], np.roll(x[real[0]], 1)))


@fault("received")
def second_half_of_a_row_missing(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: x[real[0], x.shape[1] // 2 :].view(np.uint8).fill(0))


@fault("received")
def nan_dropped(have, _call, _memory):
    return spoil_elements(have, is_nan)


@fault("received")
def minus_zero_lost(have, _call, _memory):
    return spoil_elements(have, lambda x: (widen(x) == 0) & np.signbit(widen(x)))


@fault("received")
def denormals_flushed(have, _call, _memory):
    least = {2: 2.0**-126, 1: 2.0**-6}
    return spoil_elements(have, lambda x: (widen(x) != 0) & (abs(widen(x)) < least[x.dtype.itemsize]))


@fault("received")
def weights_shifted(have, _call, _memory):
    def shift(w, real):
        w[real] = np.roll(w[real], 1, axis=0)

    return spoil_rows(have, "recv_topk_weights", shift, least=2)


@fault("received")
def weights_absent(have, _call, _memory):
    return replace(have, received=tuple(replace(r, recv_topk_weights=None) for r in have.received))


@fault("received")
def scale_rows_shifted(have, _call, _memory):
    def shift(scales, real):
        scales[real] = np.roll(scales[real], 1, axis=0)

    return spoil_rows(have, "recv_scales", shift, least=2, only=has_two_tokens)


@fault("received")
def scales_in_the_other_memory_order(have, _call, _memory):
    def turned(s):
        return None if s is None else np.ascontiguousarray(s) if s.strides[0] == 2 else np.asfortranarray(s)

    return replace(have, received=tuple(replace(r, recv_scales=turned(r.recv_scales)) for r in have.received))


@fault("received")
def padding_of_rows_unset(have, call, _memory):
    return _unset_padding(have, call, "recv_x")


@fault("received")
def padding_of_weights_unset(have, call, _memory):
    return _unset_padding(have, call, "recv_topk_weights")


def _unset_padding(have, call, field):
    if not call.zero_padding or getattr(have.received[0], field) is None:
        return have
    received = []
    for handle, result in zip(have.handles, have.received, strict=True):
        array = getattr(result, field).copy()
        array[padding_of(handle)] = 1
        received.append(replace(result, **{field: array}))
    return replace(have, received=tuple(received))


def _stats(have, change):
    name = "cumulative_local_expert_recv_stats"
    if getattr(have.received[0], name) is None:
        return have
    pairs = zip(have.handles, have.received, strict=True)
    return replace(have, received=tuple(replace(r, **{name: change(h, getattr(r, name))}) for h, r in pairs))


@fault("received")
def stats_overwritten(have, _call, _memory):
    return _stats(have, lambda handle, stats: handle.num_unaligned_recv_tokens_per_expert.copy())


@fault("received")
def stats_of_aligned_counts(have, _call, _memory):
    return _stats(
        have,
        lambda h, stats: (
            stats - h.num_unaligned_recv_tokens_per_expert + np.diff(h.block_starts()).astype(np.int32)
        ),
    )


@fault("received")
def a_rank_without_results(have, _call, _memory):
    return replace(have, received=have.received[:-1])
