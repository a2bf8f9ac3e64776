"""Reductions in their stated order: one sum, one scale, one rounding."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.collectives.reductions import all_reduce, gather, reduce_scatter
from reference.errors import ConfigError
from tests.strategies import SMALL_SIZES

BF16 = ml_dtypes.bfloat16


def f32(*values):
    return np.array(values, dtype=np.float32)


def test_sum_starts_at_rank_0_and_ascends_in_fp32():
    # (2**24 + 1) + 1 stays 2**24 in fp32; 1 + 1 + 2**24 is 2**24 + 2.
    assert all_reduce([f32(2**24), f32(1), f32(1)]).tolist() == [2**24]
    assert all_reduce([f32(1), f32(1), f32(2**24)]).tolist() == [2**24 + 2]


def test_bf16_tensors_are_summed_in_fp32_and_rounded_once():
    # cases.md G39: 256, 1, -256 gives 1; and 256 + 1 + 1 = 258, where bf16 steps would stay at 256.
    assert all_reduce([np.array([v], BF16) for v in (256, 1, -256)]).astype(float).tolist() == [1]
    assert all_reduce([np.array([v], BF16) for v in (256, 1, 1)]).astype(float).tolist() == [258]


def test_scale_is_applied_before_the_one_rounding():
    # 257 * 0.75 = 192.75 -> 193 in bf16 (spacing 1); rounded first, 257 would be 256 and give 192.
    tensors = [np.array([v], BF16) for v in (256, 1)]
    assert all_reduce(tensors, scale=0.75).astype(float).tolist() == [193]
    assert all_reduce([f32(3), f32(4)], scale=0.5).tolist() == [3.5]


def test_bf16_communication_rounds_what_travels_and_nothing_else():
    fine = 1 + 2.0**-10  # bf16 has 2**-7 here and rounds it to 1
    tensors = [f32(fine, fine), f32(fine, fine)]
    for rank, part in enumerate(reduce_scatter(tensors, comm_precision="bf16")):
        assert part.tolist() == [1 + fine], rank
    for part in reduce_scatter(tensors, comm_precision="fp32"):
        assert part.tolist() == [2 * fine]
    # The sum itself stays fp32: 1 + 2**-10 could not be told from 1 in bf16.
    assert reduce_scatter([f32(fine)], comm_precision="bf16")[0].tolist() == [fine]


def test_bf16_communication_rounds_to_nearest_even():
    halfway, above = 1 + 2.0**-8, 1 + 3 * 2.0**-8
    parts = reduce_scatter([f32(0, 0), f32(halfway, above)], comm_precision="bf16")
    assert parts[0].tolist() == [1.0]
    parts = reduce_scatter([f32(0, above), f32(above, 0)], comm_precision="bf16")
    assert [p.item() for p in parts] == [1 + 2.0**-6, 1 + 2.0**-6]


@given(st.sampled_from(SMALL_SIZES), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1.0, 0.5, 0.3]))
def test_reduce_scatter_is_the_part_of_all_reduce(size, count, seed, scale):
    rng = np.random.default_rng(seed)
    tensors = [rng.standard_normal((size, count)).astype(np.float32) for _ in range(size)]
    whole = all_reduce(tensors, scale=scale)
    assert gather(reduce_scatter(tensors, scale=scale)).tobytes() == whole.tobytes()
    slow = []
    for place in range(size * count):
        total = tensors[0].ravel()[place]
        for tensor in tensors[1:]:
            total = np.float32(total + tensor.ravel()[place])
        slow.append(np.float32(total * np.float32(scale)))
    assert whole.tobytes() == np.array(slow).tobytes()


def test_nan_and_opposite_infinities_are_results():
    assert np.isnan(all_reduce([f32(np.inf), f32(-np.inf)])).all()
    assert np.isnan(all_reduce([f32(np.nan), f32(1)])).all()
    assert np.isposinf(reduce_scatter([f32(3e38, 0), f32(3e38, 0)], comm_precision="bf16")[0]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reduce_scatter([f32(1)], comm_precision="fp16"), "comm_precision is 'fp16': must be one of"),
        (lambda: reduce_scatter([f32(1, 2, 3)] * 2), "tensors is '3 elements': 2 ranks must divide them"),
        (lambda: all_reduce([np.ones(2, np.float64)]), "tensors is 'float64': must be float32 or bfloat16"),
        (lambda: all_reduce([f32(1), f32(1, 2)]), r"tensors\[rank 1\] is 'float32 \(2,\)': rank 0 has"),
        (lambda: all_reduce([f32(1)], scale=float("inf")), "scale is inf: must be a finite number"),
        (lambda: gather([f32()]), r"shards is \(0,\): must not be empty"),
        (lambda: gather([]), "shards is 'none': must be one array per rank"),
    ],
)
def test_bad_tensors_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
