"""The ledger and the row counts read from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.plan import count_rows, ledger_blocks
from reference.topk import TopK
from tests.reference.counting import check_counts, check_ledger
from tests.strategies import ep_configs, routed_configs


def group(ep_size, num_experts, num_topk, tokens=8):
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=128,
        num_max_tokens_per_rank=tokens,
    )


def routing(config, *ranks):
    arrays = [np.array(r, dtype=np.int64).reshape(len(r), config.num_topk) for r in ranks]
    return TopK(num_experts=config.num_experts, topk_idx=tuple(arrays))


def rows_of(block):
    """Ledger rows as plain tuples."""
    columns = (block.token, block.k, block.dst_rank, block.expert, block.num_hits, block.is_master)
    return [(block.src_rank, *row) for row in zip(*(c.tolist() for c in columns), strict=True)]


@given(routed_configs())
def test_ledger_equals_plain_loops(routed):
    config, topk = routed
    check_ledger(config, topk, [row for block in ledger_blocks(config, topk) for row in rows_of(block)])


@given(routed_configs())
def test_ledger_is_sorted_by_source_token_and_column(routed):
    config, topk = routed
    keys = [row[:3] for block in ledger_blocks(config, topk) for row in rows_of(block)]
    assert keys == sorted(keys)


@given(routed_configs())
def test_counts_conserve_rows(routed):
    config, topk = routed
    check_counts(config, topk, count_rows(config, topk))


@given(routed_configs(), st.integers(1, 8))
def test_pod_rows_are_distinct_token_pod_pairs(routed, pod_size):
    config, topk = routed
    counts = count_rows(config, topk, pod_size=pod_size)
    where = config.expert_ranks() // pod_size
    expected = np.zeros((config.ep_size, -(-config.ep_size // pod_size)), dtype=np.int64)
    for src, idx in enumerate(topk.topk_idx):
        for experts in idx.tolist():
            for pod in {int(where[e]) for e in experts if e >= 0}:
                expected[src, pod] += 1
    np.testing.assert_array_equal(counts.pod_rows, expected)
    assert counts.pods_of_ranks().tolist() == [r // pod_size for r in range(config.ep_size)]


@given(routed_configs())
def test_pods_of_one_rank_are_ranks_and_one_pod_is_all(routed):
    config, topk = routed
    np.testing.assert_array_equal(
        count_rows(config, topk, pod_size=1).pod_rows, count_rows(config, topk).rows
    )
    whole = count_rows(config, topk, pod_size=config.ep_size).pod_rows
    assert whole[:, 0].tolist() == [int((idx >= 0).any(axis=1).sum()) for idx in topk.topk_idx]


@given(st.data(), routed_configs())
def test_relabelling_ranks_relabels_counts(data, routed):
    config, topk = routed
    new = np.array(data.draw(st.permutations(range(config.ep_size))))  # old rank -> new rank
    old = np.argsort(new)
    ranks = tuple(int(new[r]) for r in config.expert_ranks())
    moved = EPConfig(**vars(config) | {"expert_map": ExpertMap(expert_ranks=ranks)})
    moved_topk = TopK(num_experts=topk.num_experts, topk_idx=tuple(topk.topk_idx[r] for r in old))
    before, after = count_rows(config, topk), count_rows(moved, moved_topk)
    np.testing.assert_array_equal(after.rows, before.rows[np.ix_(old, old)])
    np.testing.assert_array_equal(after.multi_hit_rows, before.multi_hit_rows[old])
    np.testing.assert_array_equal(after.expert_rows, before.expert_rows)


@given(st.data(), ep_configs())
def test_all_masked_routing_moves_nothing(data, config):
    tokens = data.draw(st.integers(0, 5))
    topk = routing(config, *([[[-1] * config.num_topk] * tokens] * config.ep_size))
    counts = count_rows(config, topk, pod_size=2)
    assert counts.rows.sum() == counts.entries.sum() == counts.pod_rows.sum() == 0
    assert counts.mean_distinct_ranks == counts.peak_over_mean == 0.0
    assert counts.num_tokens.tolist() == [tokens] * config.ep_size


def test_ep1_has_no_wire_rows():
    config = group(1, 4, 2)
    counts = count_rows(config, routing(config, [[0, 3], [1, -1]]))
    assert counts.remote_received_rows.tolist() == counts.remote_sent_rows.tolist() == [0]
    assert counts.local_rows.tolist() == [2]


def test_token_with_two_experts_on_one_rank_is_one_row():
    # cases.md G02: 8 experts on 6 ranks; rank 4 holds 147, 142 and 154.
    config = group(8, 256, 8, tokens=1)
    empty = np.empty((0, 8), dtype=np.int64)
    topk = routing(config, [[147, 24, 48, 96, 86, 154, 233, 142]], *([empty] * 7))
    counts = count_rows(config, topk)
    assert counts.rows[0].tolist() == [1, 1, 1, 1, 1, 0, 0, 1]
    assert counts.entries[0].tolist() == [1, 1, 1, 1, 3, 0, 0, 1]
    assert (counts.multi_hit_rows[4], counts.multi_hit_expert_rows[4]) == (1, 3)
    block = next(iter(ledger_blocks(config, topk)))
    assert block.k[block.is_master & (block.dst_rank == 4)].tolist() == [7]


@pytest.mark.parametrize(("ep_size", "distinct", "active"), [(32, 8.0, 1), (16, 4.0, 2)])
def test_hand_made_table_halves_its_rows_at_half_the_ranks(ep_size, distinct, active):
    # cases.md G51: token t uses ids 64 (t mod 4) + 8 j, E = 256.
    config = group(ep_size, 256, 8)
    rows = [[64 * (t % 4) + 8 * j for j in range(8)] for t in range(8)]
    counts = count_rows(config, routing(config, *([rows] * ep_size)))
    assert counts.mean_distinct_ranks == distinct
    assert counts.active_experts(config).tolist() == [active] * ep_size
    assert counts.peak_over_mean == 1.0


def test_masked_choice_costs_no_row_but_an_unweighted_one_does():
    # cases.md G19: token A [-1, 2] against token B [0, 2].
    config = group(2, 4, 2)
    empty = np.empty((0, 2), dtype=np.int64)
    masked = count_rows(config, routing(config, [[-1, 2]], empty))
    zero_weight = count_rows(config, routing(config, [[0, 2]], empty))
    assert masked.rows[0].tolist() == [0, 1]
    assert zero_weight.rows[0].tolist() == [1, 1]
    assert (zero_weight.expert_rows - masked.expert_rows).tolist() == [1, 0, 0, 0]


def test_leading_masks_do_not_shift_rows():
    # cases.md G20.
    config = group(1, 2, 2)
    topk = routing(config, [[-1, 0], [1, -1], [-1, -1], [0, 1]])
    counts = count_rows(config, topk)
    assert counts.expert_rows.tolist() == [2, 2]
    (block,) = ledger_blocks(config, topk)
    assert block.token.tolist() == [0, 1, 3, 3]


def test_many_ranks_and_wide_topk_do_not_overflow():
    # 300 choices of one token on one rank: counts pass one byte, ids pass 15 bits.
    config = group(1, 40_000, 300)
    counts = count_rows(config, routing(config, [list(range(39_700, 40_000))]))
    assert (counts.rows[0, 0], counts.multi_hit_expert_rows[0]) == (1, 300)


def test_counts_are_read_only():
    config = group(1, 2, 1)
    counts = count_rows(config, routing(config, [[0]]))
    with pytest.raises(ValueError, match="read-only"):
        counts.rows[0, 0] = 5


@pytest.mark.parametrize("pod_size", [0, -1, 1.5])
def test_impossible_pod_is_refused(pod_size):
    config = group(2, 2, 1)
    with pytest.raises(ConfigError, match="pod_size is"):
        count_rows(config, routing(config, [[0]], [[1]]), pod_size=pod_size)


def test_pods_that_were_not_counted_are_refused():
    config = group(1, 2, 1)
    with pytest.raises(ConfigError, match="pod counts were not asked for"):
        count_rows(config, routing(config, [[0]])).pods_of_ranks()
