"""Copies beside fixed originals: choice, prefetch of weights, reduction of gradients."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import ExpertMap
from reference.errors import ConfigError
from reference.experts.balance_report import measure_placement
from reference.experts.redundancy import (
    check_redundancy_mapping,
    choose_replicas,
    expert_map_of,
    lb_prefetch_weights,
    lb_reduce_grads,
)
from tests.strategies import SMALL_SIZES

BF16 = ml_dtypes.bfloat16


@st.composite
def mappings(draw):
    """Draw a legal mapping: empty slots, and the same expert on several ranks or twice on one."""
    size = draw(st.sampled_from(SMALL_SIZES))
    local, slots = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    table = np.full((size, slots), -1, dtype=np.int32)
    for rank in range(size):
        foreign = [-1] + [e for e in range(size * local) if e // local != rank]
        table[rank] = draw(st.lists(st.sampled_from(foreign), min_size=slots, max_size=slots))
    return table, local


def numbered(size, count, start=0, shape=(2, 3), dtype=np.float32):
    """Return per rank [count, *shape]: small whole numbers, exact in bfloat16 and in any order of sums."""
    values = np.arange(size * count * int(np.prod(shape))) % 7 + start
    return list(values.reshape(size, count, *shape).astype(dtype))


# --- prefetch --------------------------------------------------------------------------------------


@given(mappings(), st.sampled_from([np.float32, BF16, np.int16, ml_dtypes.float8_e4m3fn]))
def test_prefetch_fills_named_slots_and_no_others(case, dtype):
    table, local = case
    size, slots = table.shape
    weights = numbered(size, local, dtype=dtype)
    targets = [np.full((slots, 2, 3), 99, dtype=dtype) for _ in range(size)]
    lb_prefetch_weights([targets], [weights], table)
    flat = np.concatenate(weights).reshape(size * local, 6)
    for rank in range(size):
        for slot, expert in enumerate(table[rank]):
            expected = np.full(6, 99, dtype=dtype) if expert < 0 else flat[expert]
            assert targets[rank][slot].tobytes() == expected.tobytes()


def test_prefetch_moves_weights_and_scales_by_one_mapping():
    table = np.array([[2], [1]], dtype=np.int32)
    weights = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    scales = [np.array([[10], [20]]), np.array([[30], [40]])]
    new_weights, new_scales = (
        [np.zeros((1, 1)) for _ in "01"],
        [np.zeros((1, 1), dtype=np.int64) for _ in "01"],
    )
    lb_prefetch_weights([new_weights, new_scales], [weights, scales], table)
    assert [w.item() for w in new_weights] == [3.0, 2.0]
    assert [s.item() for s in new_scales] == [30, 20]


# --- reduce ----------------------------------------------------------------------------------------


@given(mappings(), st.sampled_from([np.float32, BF16]))
def test_reduce_is_the_transpose_of_prefetch(case, dtype):
    # <prefetch(w), g> = <w, reduce(g)> over the named slots; whole numbers, so exact in any order.
    table, local = case
    size, slots = table.shape
    weights = numbered(size, local, dtype=dtype)
    copies = [np.zeros((slots, 2, 3), dtype=dtype) for _ in range(size)]
    lb_prefetch_weights([copies], [weights], table)
    grads = numbered(size, slots, start=1, dtype=dtype)
    reduced = [np.zeros_like(w) for w in weights]
    lb_reduce_grads([grads], [reduced], table)

    def dot(a, b):
        return sum(
            float((x.astype(np.float64) * y.astype(np.float64)).sum()) for x, y in zip(a, b, strict=True)
        )

    named = [
        np.where((row >= 0)[:, None, None], g, np.zeros_like(g)) for row, g in zip(table, grads, strict=True)
    ]
    assert dot(copies, named) == dot(weights, reduced)


def test_reduce_adds_own_first_then_ranks_ascending_in_fp32():
    # Own 1, rank 1 2**24, rank 2 -2**24: fp32 gives (1 + 2**24) = 2**24, then 0. The other way round: 1.
    table = np.array([[-1], [0], [0]], dtype=np.int32)
    grads = [np.array([[1.0]], dtype=np.float32), np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)]
    copies = [np.full((1, 1), v, dtype=np.float32) for v in (np.nan, 2.0**24, -(2.0**24))]
    lb_reduce_grads([copies], [grads], table)
    assert grads[0].item() == 0.0
    assert copies[1].item() == 2.0**24  # only read
    flipped = [np.full((1, 1), v, dtype=np.float32) for v in (np.nan, -(2.0**24), 2.0**24)]
    grads[0][:] = 1.0
    lb_reduce_grads([flipped], [grads], table)
    assert grads[0].item() == 1.0  # 1 - 2**24 is exact in fp32


def test_reduce_rounds_bf16_once():
    # 256 + 1 + 1: each step in bf16 stays at 256 (spacing 2, ties to even); fp32 then one rounding is 258.
    table = np.array([[-1], [0], [0]], dtype=np.int32)
    grads = [np.full((1, 1), v, dtype=BF16) for v in (256, 0, 0)]
    lb_reduce_grads([[np.full((1, 1), v, dtype=BF16) for v in (7, 1, 1)]], [grads], table)
    assert float(grads[0].item()) == 258.0


def test_empty_slot_with_nan_is_not_added():
    table = np.array([[-1], [-1]], dtype=np.int32)
    grads = [np.ones((1, 1), np.float32) for _ in "01"]
    lb_reduce_grads([[np.full((1, 1), np.nan, np.float32)] * 2], [grads], table)
    assert [g.item() for g in grads] == [1.0, 1.0]


# --- choice ----------------------------------------------------------------------------------------


@given(st.sampled_from(SMALL_SIZES), st.integers(1, 3), st.integers(0, 3), st.data())
def test_chosen_copies_never_raise_the_peak_and_are_never_wasted(size, local, slots, data):
    loads = data.draw(st.lists(st.integers(0, 40), min_size=size * local, max_size=size * local))
    table = choose_replicas(loads, ep_size=size, num_redundant_per_rank=slots)
    assert table.shape == (size, slots)
    check_redundancy_mapping(table, ep_size=size, num_experts=size * local)
    home = ExpertMap(expert_ranks=tuple(e // local for e in range(size * local)))
    placed = expert_map_of(table, ep_size=size, num_experts=size * local)
    assert placed.num_wasted_replicas == 0
    before = measure_placement(home, loads, ep_size=size).max_rank_load
    assert measure_placement(placed, loads, ep_size=size).max_rank_load <= before * (1 + 1e-12)
    assert not {e for e in table.ravel() if e >= 0} & {e for e, w in enumerate(loads) if w == 0}


def test_hot_expert_is_copied_to_the_lightest_rank():
    # Rank loads 110, 20, 4: expert 0 (100) goes to rank 2, then to rank 1, which leaves 43.3, 53.3, 37.3.
    # Rank 0 then takes half of expert 2 (10) off rank 1: 48.3, 48.3, 37.3.
    table = choose_replicas([100, 10, 10, 10, 2, 2], ep_size=3, num_redundant_per_rank=1)
    assert table.tolist() == [[2], [0], [0]]
    placed = expert_map_of(table, ep_size=3, num_experts=6)
    assert placed.logical_ids == (0, 1, 2, 2, 3, 0, 4, 5, 0)
    assert placed.expert_ranks == (0, 0, 0, 1, 1, 1, 2, 2, 2)


def test_balanced_load_needs_no_copies():
    table = choose_replicas([5, 5], ep_size=2, num_redundant_per_rank=1)
    # Each copy halves one load and adds as much elsewhere, so the peak rises and nothing is copied.
    assert table.tolist() == [[-1], [-1]]


def test_copy_that_leaves_the_peak_as_it_is_is_made():
    # 6, 6, 0: half of expert 0 on rank 2 leaves the peak at 6; expert 1 then halves too, and 0 once more.
    assert choose_replicas([6, 6, 0], ep_size=3, num_redundant_per_rank=1).tolist() == [[1], [0], [0]]
    assert choose_replicas([1, 0], ep_size=2, num_redundant_per_rank=1).tolist() == [[-1], [0]]


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[4], [0]], r"redundancy_mapping\[rank 0, slot 0\] is 4: must be an expert 0..3, or -1"),
        ([[-1], [-2]], r"redundancy_mapping\[rank 1, slot 0\] is -2: must be an expert"),
        ([[0], [0]], r"redundancy_mapping\[rank 0, slot 0\] is 0: its original is on this rank"),
        ([[1], [0]], r"redundancy_mapping\[rank 0, slot 0\] is 1: its original is on this rank"),
        ([[2]], r"redundancy_mapping is 'int64 \(1, 1\)': must be signed integers of shape \(2, slots\)"),
        ([[2.0], [0.0]], "redundancy_mapping is 'float64"),
    ],
)
def test_bad_mapping_is_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        check_redundancy_mapping(table, ep_size=2, num_experts=4)


def test_ranks_must_divide_the_experts():
    with pytest.raises(ConfigError, match="num_experts is 3: ep_size 2 must divide it"):
        check_redundancy_mapping([[-1], [-1]], ep_size=2, num_experts=3)
    with pytest.raises(ConfigError, match="loads is '3 experts': ep_size 2 must divide them"):
        choose_replicas([1, 1, 1], ep_size=2, num_redundant_per_rank=1)


GOOD = np.array([[1], [0]], dtype=np.int32)


@pytest.mark.parametrize(
    ("copies", "originals", "message"),
    [
        ([], [], "redundant_expert_weights is 0: must hold as many tensors"),
        ([numbered(2, 1)], [numbered(2, 1)] * 2, "redundant_expert_weights is 1: must hold as many tensors"),
        ([numbered(1, 1)], [numbered(2, 1)], "weights tensor 0 is 1: every tensor needs 2 ranks"),
        (
            [numbered(2, 1, dtype=BF16)],
            [numbered(2, 1)],
            "weights tensor 0 of rank 0 is 'bfloat16 for float32'",
        ),
        ([numbered(2, 1, shape=(5,))], [numbered(2, 1)], "a slot holds one expert of rank 0"),
        ([numbered(2, 1, shape=(3, 2))], [numbered(2, 1)], r"is '\(3, 2\) for \(2, 3\)': a slot holds one"),
        ([numbered(2, 1, shape=(6,))], [numbered(2, 1)], "a slot holds one expert of rank 0, \\(2, 3\\)"),
        ([numbered(2, 2)], [numbered(2, 1)], "is '2 slots, 1 experts': needs 1 slots and 1 experts"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_unwritten(copies, originals, message):
    before = [a.copy() for tensor in copies for a in tensor]
    with pytest.raises(ConfigError, match=message):
        lb_prefetch_weights(copies, originals, GOOD)
    after = [a for tensor in copies for a in tensor]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))


def test_gradients_need_a_float_type():
    with pytest.raises(ConfigError, match="expert_grads dtype is 'int32': must be float32 or bfloat16"):
        lb_reduce_grads([numbered(2, 1, dtype=np.int32)], [numbered(2, 1, dtype=np.int32)], GOOD)
