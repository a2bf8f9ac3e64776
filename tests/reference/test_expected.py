"""Exact expectations against full enumeration and published tables."""

from fractions import Fraction
from itertools import combinations, product
from statistics import pvariance

import numpy as np
import pytest

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.plan import count_rows
from reference.routing.expected import expected_rows
from reference.topk import TopK

FIELDS = ("rows", "single_rows", "entries", "expert_rows", "num_tokens")


def group(ep_size, num_experts, num_topk, expert_map=None):
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=7168,
        num_max_tokens_per_rank=16384,
        expert_map=expert_map,
    )


UNEVEN = ExpertMap(expert_ranks=(2, 0, 0, 1, 0, 2, 2))
CASES = [(group(2, 6, 3), 1), (group(3, 6, 2), 2), (group(6, 6, 4), 4), (group(3, 7, 3, UNEVEN), 2)]


def enumerate_all(config, pod_size, masked):
    """Weighted mean over every K-subset and every mask, one token on rank 0.

    Returns:
      the mean counts by field, and the first and second moments of received rows, all Fractions.
    """
    subsets = list(combinations(range(config.num_experts), config.num_topk))
    totals, moments = {}, np.zeros((config.ep_size, config.ep_size), dtype=object)
    masks = list(product((False, True), repeat=config.num_topk)) if masked else [(False,) * config.num_topk]
    for subset, mask in product(subsets, masks):
        hidden = sum(mask)
        weight = masked**hidden * (1 - masked) ** (config.num_topk - hidden) / len(subsets)
        row = [-1 if m else e for e, m in zip(subset, mask, strict=True)]
        empty = np.empty((0, config.num_topk), dtype=np.int64)
        arrays = (np.array([row], dtype=np.int64), *([empty] * (config.ep_size - 1)))
        topk = TopK(num_experts=config.num_experts, topk_idx=arrays)
        counts = count_rows(config, topk, pod_size=pod_size)
        for field in (*FIELDS, "pod_rows"):
            totals[field] = totals.get(field, 0) + weight * getattr(counts, field).astype(object)
        received = counts.received_rows.astype(object)
        moments += weight * np.outer(received, received)
    return totals, moments


@pytest.mark.parametrize(("config", "pod_size"), CASES)
@pytest.mark.parametrize("masked", [Fraction(0), Fraction(1, 4), Fraction(1)])
def test_expectation_equals_full_enumeration(config, pod_size, masked):
    totals, moments = enumerate_all(config, pod_size, masked)
    tokens = (1,) + (0,) * (config.ep_size - 1)
    expected = expected_rows(config, tokens, masked_ratio=masked, pod_size=pod_size)
    for field in (*FIELDS, "pod_rows"):
        np.testing.assert_array_equal(getattr(expected, field), totals[field].astype(float), err_msg=field)
    mean = totals["rows"].sum(axis=0)
    for a, b in product(range(config.ep_size), repeat=2):
        assert expected.received_rows_cov(a, b) == float(moments[a, b] - mean[a] * mean[b])


# spec/network.md section 10.2: N, M, S, M - S, 6 - S, rows per pair at 16,384 tokens.
TABLE = [
    (8, 4.4400, 3.1211, 1.3190, 2.8789, 9093),
    (16, 5.1800, 4.4201, 0.7600, 1.5799, 5304),
    (32, 5.6010, 5.2146, 0.3864, 0.7854, 2868),
    (64, 5.8254, 5.6526, 0.1728, 0.3474, 1491),
    (128, 5.9412, 5.8824, 0.0588, 0.1176, 760),
]


@pytest.mark.parametrize(("ep_size", "distinct", "single", "multi", "behind", "pair"), TABLE)
def test_network_table_of_row_counts(ep_size, distinct, single, multi, behind, pair):
    """Each is the printed number rounded half a unit in its last place, no further off."""
    config = group(ep_size, 256, 6)
    one = expected_rows(config, 1)
    assert round(one.mean_distinct_ranks, 4) == distinct
    # By symmetry a rank receives per token of the group what a token sends per rank.
    assert round(float(one.single_hit_rows[0]), 4) == single
    assert round(float(one.multi_hit_rows[0]), 4) == multi
    assert round(float(one.multi_hit_expert_rows[0]), 4) == behind
    assert round(float(expected_rows(config, 16384).rows[0, 1])) == pair


def test_table_of_received_rows():
    # deepep-ascend.md section 5.3: N per rank at n = 16,384, printed as whole rows.
    for ep_size, received in [(8, 72745), (16, 84870), (32, 91767), (64, 95443), (128, 97340)]:
        assert round(float(expected_rows(group(ep_size, 256, 6), 16384).received_rows[0])) == received


def test_share_of_single_expert_records():
    # deepep-ascend.md section 4.5.
    for ep_size, share in [(8, 0.703), (16, 0.853), (32, 0.931), (64, 0.970), (128, 0.990)]:
        one = expected_rows(group(ep_size, 256, 6), 1)
        assert round(float(one.single_hit_rows[0] / one.received_rows[0]), 3) == share


def test_tokens_of_each_rank_scale_its_rows():
    config = group(4, 8, 3)
    rows = expected_rows(config, (4, 0, 2, 1)).rows
    assert rows[1].tolist() == [0.0] * 4
    # Factors of two commute with rounding, so no bit may differ.
    np.testing.assert_array_equal(rows[[0, 2]], np.stack((4 * rows[3], 2 * rows[3])))


def test_variances_and_covariances_sum_to_that_of_the_total():
    # Sum over ranks of all covariances is the variance of distinct ranks per token, times tokens.
    config = group(4, 8, 3)
    expected = expected_rows(config, 10)
    parts = [Fraction(expected.received_rows_cov(a, b)) for a, b in product(range(4), repeat=2)]
    seen = [Fraction(len({e // 2 for e in subset})) for subset in combinations(range(8), 3)]
    # Each covariance is an exact number rounded once to float64, by at most 2^-53 of it; the rest is exact.
    bound = sum(map(abs, parts)) / 2**53
    assert abs(sum(parts) - 40 * pvariance(seen)) <= bound


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens_per_rank": (1, 2)}, "tokens_per_rank is '2 counts': ep_size is 4"),
        ({"tokens_per_rank": (1, 2, 3, -1)}, r"tokens_per_rank\[3\] is -1: must be a whole number"),
        ({"tokens_per_rank": 16385}, r"tokens_per_rank\[0\] is 16385: must not exceed"),
        ({"tokens_per_rank": 1, "masked_ratio": 1.5}, "masked_ratio is 1.5: must be a number from 0 to 1"),
        ({"tokens_per_rank": 1, "masked_ratio": float("nan")}, "masked_ratio is nan"),
        ({"tokens_per_rank": 1, "masked_ratio": "half"}, "masked_ratio is 'half'"),
        ({"tokens_per_rank": 1, "pod_size": 0}, "pod_size is 0"),
    ],
)
def test_bad_argument_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        expected_rows(group(4, 8, 3), **arguments)


def test_redundant_experts_have_no_uniform_expectation():
    redundant = ExpertMap(expert_ranks=(0, 0, 1, 1), logical_ids=(0, 1, 2, 0))
    with pytest.raises(ConfigError, match=r"1 redundant experts.*count a sampled routing instead"):
        expected_rows(group(2, 4, 2, redundant), 1)
