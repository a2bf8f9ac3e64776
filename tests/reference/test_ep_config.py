"""EPConfig and ExpertMap: which groups exist, and where experts live."""

import dataclasses

import numpy as np
import pytest

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError

GOOD = {"ep_size": 4, "num_experts": 12, "num_topk": 2, "hidden": 256, "num_max_tokens_per_rank": 8}


def test_expert_lives_on_its_quotient_rank():
    config = EPConfig(**GOOD)
    assert config.expert_ranks().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert config.experts_per_rank().tolist() == [3, 3, 3, 3]


def test_map_places_experts_and_allows_uneven_ranks():
    ranks = (3, 0, 0, 2, 0, 1, 3)
    config = EPConfig(**GOOD | {"num_experts": 7, "expert_map": ExpertMap(expert_ranks=ranks)})
    assert tuple(config.expert_ranks().tolist()) == ranks
    assert config.experts_per_rank().tolist() == [3, 1, 1, 2]
    assert not config.is_redundant


def test_numpy_integers_become_ints():
    config = EPConfig(**GOOD | {"ep_size": np.int32(4)})
    assert type(config.ep_size) is int


def test_config_is_frozen_and_hashable():
    config = EPConfig(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.ep_size = 2
    assert hash(config) == hash(EPConfig(**GOOD))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ep_size": 0}, "ep_size is 0: must be a whole number of at least 1"),
        ({"ep_size": True}, "ep_size is True: must be a whole number of at least 1"),
        ({"ep_size": 4.0}, "ep_size is 4.0: must be a whole number of at least 1"),
        ({"hidden": "7168"}, "hidden is '7168': must be a whole number of at least 1"),
        ({"num_max_tokens_per_rank": -1}, "num_max_tokens_per_rank is -1: must be a whole number"),
        ({"expert_alignment": 0}, "expert_alignment is 0: must be a whole number of at least 1"),
        ({"ep_size": 5}, "num_experts is 12: ep_size 5 must divide it"),
        ({"num_topk": 13}, "num_topk is 13: must not exceed the 12 experts to choose from"),
        ({"expert_map": ExpertMap(expert_ranks=(0, 1))}, "must have one entry per physical expert"),
        ({"expert_map": ExpertMap(expert_ranks=(4,) * 12)}, r"expert_ranks\[0\] is 4: must be below"),
    ],
)
def test_bad_config_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        EPConfig(**GOOD | change)


# cases.md G44: 4 logical experts, 2 redundant, R = 2, 3 slots per rank.
REDUNDANT = ExpertMap(expert_ranks=(0, 0, 0, 1, 1, 1), logical_ids=(0, 1, 2, 3, 0, 1))


def test_redundant_map_lists_the_copies_of_each_logical_expert():
    assert REDUNDANT.num_logical_experts == 4
    assert REDUNDANT.copies() == ((0, 4), (1, 5), (2,), (3,))


def test_topk_is_limited_by_logical_experts():
    fields = GOOD | {"ep_size": 2, "num_experts": 6, "expert_map": REDUNDANT}
    assert EPConfig(**fields | {"num_topk": 4}).is_redundant
    with pytest.raises(ConfigError, match="num_topk is 5: must not exceed the 4 experts"):
        EPConfig(**fields | {"num_topk": 5})


def test_copies_on_one_rank_are_counted_as_wasted():
    # cases.md G43: three copies of expert 0 on two ranks, so one rank holds two of them.
    wasted = ExpertMap(expert_ranks=(0, 0, 0, 1, 1, 1), logical_ids=(0, 0, 1, 0, 2, 3))
    assert wasted.num_wasted_replicas == 1
    assert REDUNDANT.num_wasted_replicas == 0
    assert ExpertMap(expert_ranks=(0, 0)).num_wasted_replicas == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_ranks": ()}, "must name the rank of at least one expert"),
        ({"expert_ranks": (0, -1)}, r"expert_ranks\[1\] is -1: must be a whole number of at least 0"),
        ({"expert_ranks": (0, 1), "logical_ids": (0,)}, "logical_ids is 1: expert_ranks has 2 entries"),
        ({"expert_ranks": (0, 1), "logical_ids": (0, 2)}, "logical expert 1 has no physical copy"),
        ({"expert_ranks": (0, 1), "logical_ids": (0, -1)}, r"logical_ids\[1\] is -1"),
    ],
)
def test_bad_map_is_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=message):
        ExpertMap(**fields)
