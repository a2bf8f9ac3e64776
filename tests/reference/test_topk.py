"""TopK: a routing that exists is valid, and a refusal names rank, token, column and value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import EPConfig
from reference.errors import ConfigError
from reference.topk import TopK
from tests.strategies import routed_configs


def ids(*rows):
    """[T, K] int64."""
    return np.array(rows, dtype=np.int64)


def test_uneven_and_empty_ranks_are_valid():
    topk = TopK(num_experts=4, topk_idx=(ids([0, 3], [-1, 2]), np.empty((0, 2), np.int64)))
    assert topk.tokens_per_rank == (2, 0)
    assert (topk.ep_size, topk.num_topk, topk.num_experts) == (2, 2, 4)


def test_mask_is_legal_in_any_column_and_may_repeat():
    TopK(num_experts=2, topk_idx=(ids([-1, 0, -1], [1, -1, -1], [-1, -1, -1]),))


def test_arrays_are_read_only():
    topk = TopK(num_experts=4, topk_idx=(ids([0, 3]),))
    with pytest.raises(ValueError, match="read-only"):
        topk.topk_idx[0][0, 0] = 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), "topk_idx is 'empty': must hold one array per rank"),
        (
            (ids([0, 1]).astype(np.int32),),
            r"topk_idx\[rank 0\] is dtype\('int32'\): must be an array of int64",
        ),
        ((ids([0, 1]).astype(float),), r"topk_idx\[rank 0\] is dtype\('float64'\)"),
        (([[0, 1]],), r"topk_idx\[rank 0\] is <class 'list'>"),
        ((ids(0, 1),), r"topk_idx\[rank 0\] is \(2,\): must have the shape"),
        ((np.empty((3, 0), np.int64),), r"is \(3, 0\): must have the shape"),
        ((ids([0, 1]), ids([0])), r"topk_idx\[rank 1\] is '1 columns': rank 0 has 2"),
        (
            (ids([0, 1]), ids([0, 1], [2, 4])),
            r"topk_idx\[rank 1, token 1, column 1\] is 4: must be an expert 0..3",
        ),
        ((ids([0, 1], [-2, 4]),), r"topk_idx\[rank 0, token 1, column 0\] is -2"),
        ((ids([0, 1], [3, 3]),), r"topk_idx\[rank 0, token 1, column 1\] is 3: an expert may appear once"),
        # cases.md G22: int32 ids [5, 0] read as one int64.
        ((ids([5, 0]).astype(np.int32).view(np.int64),), r"column 0\] is 5: must be an expert 0..3"),
        ((ids([63, -1, 5, 0]).astype(np.int32).view(np.int64),), r"column 0\] is -4294967233"),
    ],
)
def test_bad_ids_are_refused_with_their_place(arrays, message):
    with pytest.raises(ConfigError, match=message):
        TopK(num_experts=4, topk_idx=arrays)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "topk_weights is 'empty'"),
        (
            (np.ones((1, 2), np.float64),),
            r"topk_weights\[rank 0\] is dtype\('float64'\): must be an array of float32",
        ),
        (
            (np.ones((1, 3), np.float32),),
            r"topk_weights\[rank 0\] is \(1, 3\): must have the shape of topk_idx",
        ),
        ((np.ones((1, 2), np.float32),) * 2, "topk_weights is '2 ranks': topk_idx has 1"),
        ((np.array([[1, np.nan]], np.float32),), r"topk_weights\[rank 0, token 0, column 1\] is nan"),
    ],
)
def test_bad_weights_are_refused_with_their_place(weights, message):
    with pytest.raises(ConfigError, match=message):
        TopK(num_experts=4, topk_idx=(ids([0, 1]),), topk_weights=weights)


@given(st.data(), routed_configs(mapped=False))
def test_one_planted_repeat_is_found_where_it_is(data, routed):
    config, topk = routed
    rank = data.draw(st.integers(0, config.ep_size - 1))
    arrays = [a.copy() for a in topk.topk_idx]
    rows = [t for t, row in enumerate(arrays[rank]) if (row >= 0).any() and len(row) > 1]
    if not rows:
        return
    token = data.draw(st.sampled_from(rows))
    row = arrays[rank][token]
    source = int(np.flatnonzero(row >= 0)[0])
    target = data.draw(st.sampled_from([k for k in range(len(row)) if k != source]))
    row[target] = row[source]
    place = rf"rank {rank}, token {token}, column {max(source, target)}\] is {row[source]}"
    with pytest.raises(ConfigError, match=place):
        TopK(num_experts=config.num_experts, topk_idx=tuple(arrays))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ep_size": 1}, "number of ranks in topk_idx is 2: must be .* whose ep_size is 1"),
        ({"num_topk": 1}, "number of columns in topk_idx is 2: must be .* whose num_topk is 1"),
        ({"num_experts": 8}, "topk_idx.num_experts is 4: the routing must be made for the config's 8"),
        ({"num_max_tokens_per_rank": 1}, r"topk_idx\[rank 1\] is '2 tokens': num_max_tokens_per_rank is 1"),
    ],
)
def test_routing_of_another_group_is_refused(change, message):
    topk = TopK(num_experts=4, topk_idx=(ids([0, 1]), ids([0, 1], [2, 3])))
    fields = {"ep_size": 2, "num_experts": 4, "num_topk": 2, "hidden": 8, "num_max_tokens_per_rank": 2}
    topk.check_against(EPConfig(**fields))
    with pytest.raises(ConfigError, match=message):
        topk.check_against(EPConfig(**fields | change))


def test_logical_ids_cannot_be_counted_as_physical():
    # cases.md G45: a map that is skipped must not pass unnoticed, even when the numbers would fit.
    topk = TopK(num_experts=4, topk_idx=(ids([0, 1]),), id_space="logical")
    config = EPConfig(ep_size=1, num_experts=4, num_topk=2, hidden=8, num_max_tokens_per_rank=2)
    with pytest.raises(ConfigError, match="map logical ids to physical ones first"):
        topk.check_against(config)
