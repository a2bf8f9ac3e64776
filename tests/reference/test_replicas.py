"""Redundant experts: each logical choice goes to exactly one copy, once."""

import numpy as np
import pytest

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.experts.replicas import REPLICA_RULES, to_physical
from reference.plan import count_rows
from reference.routing.generate import generate_topk
from reference.topk import TopK
from tests.reference.goodness_of_fit import check_frequencies

# cases.md G46: 8 ranks; hot experts 0-3 have two copies each, on ranks i and 4 + i.
HOT = EPConfig(
    ep_size=8,
    num_experts=8,
    num_topk=1,
    hidden=128,
    num_max_tokens_per_rank=400,
    expert_map=ExpertMap(expert_ranks=tuple(range(8)), logical_ids=(0, 1, 2, 3, 0, 1, 2, 3)),
)


def hot_routing():
    rows = np.tile(np.arange(4), 100)[:, None].astype(np.int64)
    return TopK(num_experts=4, topk_idx=(rows,) * 8, id_space="logical")


@pytest.mark.parametrize(
    ("rule", "peak"),
    [("last", 2.0), ("first", 2.0), ("source", 1.0), ("token", 1.0)],
)
def test_peak_over_mean_shows_the_replica_rule(rule, peak):
    counts = count_rows(HOT, to_physical(HOT, hot_routing(), rule=rule))
    assert counts.peak_over_mean == peak
    assert counts.received_rows.sum() == 3200


def test_random_rule_splits_evenly_and_by_seed():
    first = to_physical(HOT, hot_routing(), rule="random", seed=1)
    check_frequencies(count_rows(HOT, first).received_rows, [1 / 8] * 8)
    other = to_physical(HOT, hot_routing(), rule="random", seed=2)
    assert not np.array_equal(first.topk_idx[0], other.topk_idx[0])


@pytest.mark.parametrize("rule", REPLICA_RULES)
def test_every_rule_keeps_the_logical_choice(rule):
    # cases.md G43: three copies of expert 0, two of them on rank 0.
    expert_map = ExpertMap(expert_ranks=(0, 0, 0, 1, 1, 1), logical_ids=(0, 0, 1, 0, 2, 3))
    config = EPConfig(
        ep_size=2,
        num_experts=6,
        num_topk=3,
        hidden=128,
        num_max_tokens_per_rank=50,
        expert_map=expert_map,
    )
    rows = np.array([[0, 1, -1], [3, 0, 2], [-1, -1, -1], [2, 1, 0]] * 5, dtype=np.int64)
    logical = TopK(num_experts=4, topk_idx=(rows, rows[:7]), id_space="logical")
    physical = to_physical(config, logical, rule=rule, seed=3)
    back = np.append(expert_map.logical_ids, -1)
    for before, after in zip(logical.topk_idx, physical.topk_idx, strict=True):
        np.testing.assert_array_equal(back[after], before)


def test_map_without_redundancy_is_the_identity():
    # cases.md G44.
    config = EPConfig(ep_size=2, num_experts=4, num_topk=1, hidden=128, num_max_tokens_per_rank=4)
    rows = np.array([[3], [0], [-1]], dtype=np.int64)
    physical = to_physical(config, TopK(num_experts=4, topk_idx=(rows, rows), id_space="logical"))
    np.testing.assert_array_equal(physical.topk_idx[0], rows)


def test_map_is_applied_exactly_once():
    # cases.md G45: map [2, 0, 1, 3] from logical to physical; id 0 becomes 2 once and 1 twice.
    expert_map = ExpertMap(expert_ranks=(0, 0, 1, 1), logical_ids=(1, 2, 0, 3))
    config = EPConfig(
        ep_size=2,
        num_experts=4,
        num_topk=1,
        hidden=128,
        num_max_tokens_per_rank=4,
        expert_map=expert_map,
    )
    rows = np.array([[0], [1], [2], [3]], dtype=np.int64)
    physical = to_physical(config, TopK(num_experts=4, topk_idx=(rows, rows), id_space="logical"))
    assert physical.topk_idx[0].ravel().tolist() == [2, 0, 1, 3]
    with pytest.raises(ConfigError, match="the map from logical to physical is applied once"):
        to_physical(config, physical)


def test_generator_draws_logical_experts_and_maps_them():
    topk = generate_topk(HOT, "uniform", tokens_per_rank=400, replica_rule="first")
    assert topk.id_space == "physical"
    loads = count_rows(HOT, topk).expert_rows
    check_frequencies(loads, [1 / 4] * 4 + [0] * 4)


def test_unknown_rule_or_other_group_is_refused():
    with pytest.raises(ConfigError, match="replica_rule is 'best': must be one of token, source"):
        to_physical(HOT, hot_routing(), rule="best")
    rows = np.array([[0]], dtype=np.int64)
    with pytest.raises(ConfigError, match=r"topk_idx.num_experts is 8: the config has 4 logical experts"):
        to_physical(HOT, TopK(num_experts=8, topk_idx=(rows,) * 8, id_space="logical"))
