"""Handles are taken together only if they are those of one dispatch, whatever their numbers of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch_cached
from reference.errors import ConfigError
from reference.handle import DispatchMode
from reference.homes import find_homes
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
from reference.topk import TopK
from tests.reference.exchange import BF16

CONFIG = EPConfig(
    ep_size=2, num_experts=4, num_topk=2, hidden=4, num_max_tokens_per_rank=3, expert_alignment=2
)


def planned(ids, *, expand=True):
    """Return the handles of ids per rank."""
    topk = TopK(num_experts=4, topk_idx=tuple(np.array(rank, np.int64).reshape(-1, 2) for rank in ids))
    return plan_dispatch(CONFIG, topk, mode=DispatchMode(edition="nvidia-v2", expand=expand))


def refusal(handles):
    """Return why handles are not taken together; "" = they are."""
    try:
        find_homes(handles)
    except ConfigError as error:
        return str(error)
    return ""


TOKENS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, -1), (1, -1), (2, -1), (3, 0), (-1, -1), (1, 0))


@given(
    first=st.tuples(*[st.lists(st.sampled_from(TOKENS), max_size=3)] * 2),
    second=st.tuples(*[st.lists(st.sampled_from(TOKENS), max_size=3)] * 2),
    kept=st.sampled_from([(), (0,), (1,)]),
    expand=st.booleans(),
)
def test_mixed_handles_are_taken_if_and_only_if_one_dispatch_gives_them(first, second, kept, expand):
    """Rank 0's of one call and rank 1's of another, against the dispatch of the same ids."""
    second = tuple(first[rank] if rank in kept else ids for rank, ids in enumerate(second))
    one, other = planned(first, expand=expand), planned(second, expand=expand)
    mixed = (one[0], other[1])
    is_one = mixed == planned((first[0], second[1]), expand=expand)
    told = refusal(mixed)
    assert (told == "") == is_one
    assert is_one or told.endswith("the handles must come from one dispatch")


@pytest.mark.parametrize("expand", [True, False])
def test_another_expert_of_the_same_rank_is_another_dispatch(expand):
    """Each token goes to the same ranks, and every rank has as many rows: only the experts differ."""
    one = planned([[(0, 2), (1, 3)], [(0, 2)]], expand=expand)
    other = planned([[(1, 2), (0, 3)], [(1, 2)]], expand=expand)
    assert [h.num_rows for h in one] == [h.num_rows for h in other]
    for mixed in ((one[0], other[1]), (other[0], one[1])):
        for call in (
            lambda mixed=mixed: combine(
                mixed, [np.ones((h.num_rows, 4), BF16) for h in mixed], order=RANK_REDUCED
            ),
            lambda mixed=mixed: dispatch_cached(mixed, [np.ones((len(h.topk_idx), 4), BF16) for h in mixed]),
        ):
            with pytest.raises(ConfigError, match="rows and routing disagree"):
                call()
    for whole in (one, other):
        combine(whole, [np.ones((h.num_rows, 4), BF16) for h in whole], order=RANK_REDUCED)
