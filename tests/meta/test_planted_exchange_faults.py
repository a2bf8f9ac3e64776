"""Faults planted in correct dispatch and combine results: the comparison of the tests rejects each one."""

import dataclasses

import numpy as np
import pytest

from reference.combine import combine
from reference.comparison.compare import MismatchError, assert_equal
from reference.config import EPConfig
from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING, RANK_REDUCED
from reference.topk import TopK
from tests.reference.exchange import BF16, random_topk
from tests.reference.test_definition import comparable

CONFIG = EPConfig(
    ep_size=3, num_experts=9, num_topk=4, hidden=8, num_max_tokens_per_rank=7, expert_alignment=4
)


def exchange(mode=None):
    """Return (topk, x, what the definition gives, what the fast path gives)."""
    rng = np.random.default_rng(0)
    topk = random_topk(CONFIG, rng, tokens=(7, 5, 7), masked=0.2)
    x = [rng.standard_normal((n, 8)).astype(BF16) for n in topk.tokens_per_rank]
    return topk, x, define_dispatch(CONFIG, topk, x, mode=mode), dispatch(CONFIG, topk, x, mode=mode)


def changed(result, name, change):
    """Return a copy of one rank's result or handle with one array changed in place."""
    array = getattr(result, name).copy()
    change(array)
    return dataclasses.replace(result, **{name: array})


def swap(rows):
    """Exchange the first two rows."""
    rows[[0, 1]] = rows[[1, 0]]


def swap_in_one_column(rows):
    """Exchange the first two rows in one column only, which sorting by column would hide."""
    rows[[0, 1], 3] = rows[[1, 0], 3]


def lose_a_row(rows):
    """Leave the first row out, so that all others move up."""
    rows[:-1] = rows[1:].copy()


def one_ulp(rows):
    """Move one element to its neighbour."""
    rows.view(np.uint16).flat[5] += 1


def make_nan(rows):
    """Put one NaN where a number was."""
    rows.flat[5] = np.nan


def forget_a_row(rows):
    """Leave one row as it was before dispatch."""
    rows.view(np.uint16)[0] = 0xFFFF


def shift(array):
    """Move one entry that is set by one."""
    array[tuple(np.argwhere(array >= 0)[0])] += 1


RESULT_FAULTS = [
    ("recv_x", lose_a_row),
    ("recv_x", swap),
    ("recv_x", swap_in_one_column),
    ("recv_x", one_ulp),
    ("recv_x", make_nan),
    ("recv_x", forget_a_row),
    ("recv_topk_weights", swap),
    ("recv_topk_weights", lose_a_row),
]
HANDLE_FAULTS = [
    ("dst_buffer_slot_idx", shift),
    ("dst_gsge_idx", shift),
    ("recv_src_metadata", shift),
    ("recv_src_metadata", swap),
    ("psum_num_recv_tokens_per_rank", shift),
    ("psum_num_recv_tokens_per_expert", shift),
    ("num_unaligned_recv_tokens_per_expert", shift),
]


@pytest.mark.parametrize(("name", "fault"), RESULT_FAULTS)
def test_a_faulty_dispatch_result_is_rejected(name, fault):
    """The report names the field and the rank."""
    _, _, (want, _), (have, _) = exchange()
    assert_equal(want, have, strict_zero=True)
    with pytest.raises(MismatchError, match=name):
        assert_equal(want, (*have[:2], changed(have[2], name, fault)), strict_zero=True)


@pytest.mark.parametrize(("name", "fault"), HANDLE_FAULTS)
def test_a_faulty_handle_is_rejected(name, fault):
    """By the comparison of the tests and by the handle's own."""
    _, _, (_, want), (_, have) = exchange()
    assert_equal(comparable(want), comparable(have), strict_zero=True)
    faulty = changed(have[2], name, fault)
    assert have[2].differences(faulty) == [name]
    with pytest.raises(MismatchError, match=name):
        assert_equal(comparable(want), comparable((*have[:2], faulty)), strict_zero=True)


def combined(path, order=RANK_REDUCED):
    """Return combined results of rows that round."""
    topk, _, _, (results, handles) = exchange(DispatchMode(edition="nvidia-v2"))
    rng = np.random.default_rng(1)
    values = [rng.standard_normal((*idx.shape, 8)).astype(BF16) for idx in topk.topk_idx]
    y = []
    for handle, result in zip(handles, results, strict=True):
        gid, k = handle.row_origins()
        rows = np.full(result.recv_x.shape, np.nan, dtype=BF16)
        for row in np.flatnonzero(gid >= 0):
            src, token = divmod(int(gid[row]), 7)
            rows[row] = values[src][token, k[row]]
        y.append(rows)
    return path(handles, y, order=order)


COMBINE_FAULTS = [lose_a_row, swap, swap_in_one_column, one_ulp, make_nan]


@pytest.mark.parametrize("fault", COMBINE_FAULTS)
def test_a_faulty_combine_result_is_rejected(fault):
    """Payload faults of combined rows."""
    want, have = combined(define_combine), combined(combine)
    assert_equal(want, have, strict_zero=True, any_nan=True)
    with pytest.raises(MismatchError, match="combined_x"):
        assert_equal(want, (*have[:2], changed(have[2], "combined_x", fault)), strict_zero=True, any_nan=True)


def test_another_rounding_point_is_rejected():
    """One rounding instead of one per rank."""
    with pytest.raises(MismatchError, match="combined_x"):
        assert_equal(combined(define_combine), combined(combine, order=ONE_ROUNDING))


def test_another_order_of_addition_is_rejected():
    """1 + 2^24 - 2^24 is 0 in fp32 and 1 the other way round: columns reversed, same experts, same rows."""
    outputs = np.array([1.0, 2.0**24, -(2.0**24)], dtype=BF16)
    config = EPConfig(ep_size=1, num_experts=3, num_topk=3, hidden=1, num_max_tokens_per_rank=1)
    sums = []
    for idx in ([[0, 1, 2]], [[2, 1, 0]]):
        topk = TopK(num_experts=3, topk_idx=(np.array(idx),))
        x = [np.zeros((1, 1), BF16)]
        _, handles = dispatch(config, topk, x, mode=DispatchMode(edition="nvidia-v2"))
        sums.append(combine(handles, [outputs[:, None].copy()], order=ONE_ROUNDING))
    assert [s[0].combined_x.item() for s in sums] == [0.0, 1.0]
    with pytest.raises(MismatchError, match="combined_x"):
        assert_equal(*sums)
