"""Routing generators: each has the law that its name says, and no token ever repeats an expert."""

import hashlib
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.plan import count_rows
from reference.routing.draws import Draws
from reference.routing.generate import (
    ROUTINGS,
    RoutingSpec,
    generate_topk,
    parse_routing,
    sample_loads,
    stepped_token_counts,
)
from reference.routing.skew import integer_weights, weighted_distinct, zipf_popularity
from reference.routing.unbalanced import find_lift
from tests.reference.goodness_of_fit import check_frequencies, check_proportion, frequencies


def group(ep_size=4, num_experts=16, num_topk=3, tokens=20_000, expert_map=None):
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=128,
        num_max_tokens_per_rank=tokens,
        expert_map=expert_map,
    )


EXAMPLES = ("uniform", "zipf:1.1", "lognormal:0.5", "unbalanced:1.5", "precise:1.5", "groups:4/2")


@given(st.sampled_from(EXAMPLES), st.integers(0, 2**64), st.data())
def test_no_token_repeats_an_expert(routing, seed, data):
    ep_size = data.draw(st.sampled_from((2, 3, 5)))
    config = group(ep_size=ep_size, num_experts=4 * ep_size, num_topk=data.draw(st.integers(1, 4)))
    counts = data.draw(st.lists(st.integers(0, 9), min_size=ep_size, max_size=ep_size))
    topk = generate_topk(config, routing, tokens_per_rank=counts, seed=seed)
    assert topk.tokens_per_rank == tuple(counts)
    for row in np.concatenate(topk.topk_idx).tolist():
        assert len(set(row)) == config.num_topk
        assert min(row) >= 0


@pytest.mark.parametrize("routing", EXAMPLES)
def test_seed_names_the_routing(routing):
    config = group()
    first = generate_topk(config, routing, tokens_per_rank=50, seed=3)
    again = generate_topk(config, routing, tokens_per_rank=50, seed=3)
    other = generate_topk(config, routing, tokens_per_rank=50, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(first.topk_idx, again.topk_idx, strict=True))
    assert not np.array_equal(first.topk_idx[0], other.topk_idx[0])
    assert not np.array_equal(first.topk_idx[0], first.topk_idx[1]), "ranks must not share their tokens"


# Pinned: another digest means that old seeds and manifests no longer name the same routing.
PINNED = {
    "uniform": "e30c53e2981107c4",
    "zipf:1.1": "624d5efdf63bb345",
    "lognormal:0.5": "2174ba66f91289a8",
    "unbalanced:1.5": "2bca8220d9f043ef",
    "precise:1.5": "7a50870d349d7036",
    "groups:4/2": "bfa7cfd0fc8fcfa6",
    "loads": "370fa07faf7bf821",
}


@pytest.mark.parametrize("routing", PINNED)
def test_routing_of_seed_0_is_pinned(routing):
    config, options = group(), {"tokens_per_rank": (40, 39, 0, 7), "masked_ratio": 0.1, "with_weights": True}
    if routing == "loads":
        topk = sample_loads(config, range(16), **options)
    else:
        topk = generate_topk(config, routing, **options)
    state = hashlib.sha256()
    for idx, weights in zip(topk.topk_idx, topk.topk_weights, strict=True):
        state.update(idx.astype("<i8").tobytes() + weights.astype("<f4").tobytes())
    assert state.hexdigest()[:16] == PINNED[routing]


def test_tokens_of_a_rank_do_not_depend_on_other_ranks():
    config = group()
    alone = generate_topk(config, "uniform", tokens_per_rank=(0, 30, 0, 0)).topk_idx[1]
    together = generate_topk(config, "uniform", tokens_per_rank=30).topk_idx[1]
    np.testing.assert_array_equal(alone, together)


def test_uniform_subsets_are_equally_likely():
    config = group(ep_size=1, num_experts=6, num_topk=2, tokens=30_000)
    idx = generate_topk(config, "uniform", tokens_per_rank=30_000, seed=1).topk_idx[0]
    tuples = list(permutations(range(6), 2))
    check_frequencies(frequencies(idx.T, tuples), [1 / 30] * 30)


def test_masks_fall_independently_and_leave_the_rest():
    config = group()
    whole = generate_topk(config, "uniform", tokens_per_rank=20_000, with_weights=True)
    masked = generate_topk(config, "uniform", tokens_per_rank=20_000, masked_ratio=0.3, with_weights=True)
    hidden = np.concatenate(masked.topk_idx) < 0
    assert np.array_equal(np.concatenate(masked.topk_idx)[~hidden], np.concatenate(whole.topk_idx)[~hidden])
    weights = np.concatenate(masked.topk_weights)
    assert not weights[hidden].any()
    assert weights[~hidden].min() > 0
    assert weights.max() <= 1
    # All eight patterns of a token's three masks, so that columns are independent too.
    patterns = hidden @ np.array([1, 2, 4])
    expected = [0.3 ** bin(p).count("1") * 0.7 ** (3 - bin(p).count("1")) for p in range(8)]
    check_frequencies(np.bincount(patterns, minlength=8), expected)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_extreme_masked_ratios(ratio):
    topk = generate_topk(group(), "uniform", tokens_per_rank=10, masked_ratio=ratio)
    assert all((idx < 0).all() == (ratio == 1.0) for idx in topk.topk_idx)


def test_zipf_draws_without_replacement_in_proportion():
    weights = integer_weights(zipf_popularity(4, 1.5))
    p = weights / weights.sum()
    pairs = list(permutations(range(4), 2))
    law = [p[a] * p[b] / (1 - p[a]) for a, b in pairs]
    check_frequencies(frequencies(weighted_distinct(Draws(3), weights, 2, 60_000), pairs), law)


def test_zipf_seed_decides_which_expert_is_hot():
    config = group(num_topk=1)
    hottest = set()
    for seed in range(8):
        topk = generate_topk(config, "zipf:2", tokens_per_rank=2000, seed=seed)
        load = np.sort(count_rows(config, topk).expert_rows)[::-1]
        hottest.add(int(np.argmax(count_rows(config, topk).expert_rows)))
        law = 1 / np.arange(1, 17) ** 2.0
        check_frequencies([*load[:5].tolist(), load[5:].sum()], head(law / law.sum(), 5))
    assert len(hottest) > 3


def head(law, keep):
    return [*law[:keep], law[keep:].sum()]


def test_strong_skew_still_fills_every_token():
    topk = generate_topk(group(num_topk=16), "zipf:8", tokens_per_rank=50)
    assert all(sorted(row) == list(range(16)) for row in topk.topk_idx[0].tolist())


@pytest.mark.parametrize("routing", ["zipf:0", "lognormal:0", "unbalanced:1"])
def test_no_skew_is_uniform_bit_for_bit(routing):
    # cases.md G52.
    config = group()
    flat = generate_topk(config, routing, tokens_per_rank=100, seed=9)
    uniform = generate_topk(config, "uniform", tokens_per_rank=100, seed=9)
    assert all(np.array_equal(a, b) for a, b in zip(flat.topk_idx, uniform.topk_idx, strict=True))


def test_lognormal_spreads_rank_loads_and_keeps_their_total():
    # cases.md G52: 16 ranks, rising sigma, total constant.
    config = group(ep_size=16, num_experts=64, num_topk=2, tokens=2000)
    peaks = []
    for sigma in (0, 0.25, 0.5, 1.0):
        counts = count_rows(config, generate_topk(config, f"lognormal:{sigma}", tokens_per_rank=2000, seed=7))
        assert counts.expanded_rows.sum() == 16 * 2000 * 2
        peaks.append(counts.expanded_rows.max() / counts.expanded_rows.mean())
    assert peaks == sorted(peaks)
    assert peaks[0] < 1.05
    assert peaks[-1] > 2


def test_lognormal_logs_have_the_asked_deviation():
    config = group(ep_size=256, num_experts=256, num_topk=1, tokens=4000)
    counts = count_rows(config, generate_topk(config, "lognormal:0.5", tokens_per_rank=4000, seed=1))
    logs = np.log(counts.expanded_rows)
    # Standard error of a deviation from 256 values: sigma / sqrt(2 * 255), and 4 of them.
    assert abs(logs.std() - 0.5) < 4 * 0.5 / np.sqrt(510)


@pytest.mark.parametrize("ratio", [1.5, 3.0, 10.0])
def test_unbalanced_meets_its_ratio_in_expectation(ratio):
    config = group(ep_size=4, num_experts=32, num_topk=4)
    received = count_rows(
        config, generate_topk(config, f"unbalanced:{ratio}", tokens_per_rank=20_000)
    ).received_rows
    assert received[0] / received[1:].mean() == pytest.approx(ratio, rel=0.02)


def test_unbalanced_has_the_law_of_top_k_over_scores():
    # The upstream procedure itself: scores U(0, f) for rank 0 and U(0, 1) for the others, then top-k.
    experts, width, hot, total = 12, 3, 3, 60_000
    lift = find_lift(experts, width, [3, 3, 3, 3], 2.0)
    scores = np.random.default_rng(5).random((total, experts))
    scores[:, :hot] /= 1 - lift
    chosen = np.argsort(-scores, axis=1)[:, :width]
    config = group(ep_size=4, num_experts=experts, num_topk=width, tokens=total)
    ours = generate_topk(config, "unbalanced:2", tokens_per_rank=(total, 0, 0, 0)).topk_idx[0]
    for hits in range(width + 1):
        share = ((chosen < hot).sum(axis=1) == hits).mean()
        check_proportion(int(((ours < hot).sum(axis=1) == hits).sum()), total, share)


def test_precise_meets_its_ratio_by_construction():
    # Tolerances of the upstream self-test: 10% for the ratio, 2% among the other ranks.
    for ratio in (1.0, 1.5, 2.5):
        config = group(ep_size=8, num_experts=64, num_topk=6)
        counts = count_rows(config, generate_topk(config, f"precise:{ratio}", tokens_per_rank=2000))
        others = counts.received_rows[1:]
        assert abs(counts.received_rows[0] / others.min() - ratio) / ratio < 0.1
        assert others.max() / others.min() < 1.02
        # Every source rank keeps the ratio by itself, which an expectation would not do.
        assert (counts.rows[:, 0] / counts.rows[:, 1:].mean(axis=1) / ratio).std() < 0.01


def test_precise_token_that_reaches_all_ranks_includes_the_hot_one():
    # At ratio 1 nothing is capped: distinct ranks per token keep the law of a uniform subset.
    config = group(ep_size=3, num_experts=9, num_topk=4, tokens=9000)
    counts = count_rows(config, generate_topk(config, "precise:1", tokens_per_rank=9000))
    reached = [len({e // 3 for e in subset}) for subset in combinations(range(9), 4)]
    all_three = reached.count(3) / len(reached)
    assert set(reached) == {2, 3}
    check_proportion(int(counts.rows.sum()) - 2 * 27_000, 27_000, all_three)


def test_precise_spreads_choices_over_experts_of_a_rank():
    config = group(ep_size=4, num_experts=32, num_topk=6)
    loads = count_rows(config, generate_topk(config, "precise:1.5", tokens_per_rank=5000)).expert_rows
    for rank in range(4):
        own = loads[8 * rank : 8 * rank + 8]
        assert own.max() / own.min() < 1.1


def test_groups_stay_within_their_number_and_are_equally_likely():
    config = group(ep_size=1, num_experts=8, num_topk=2, tokens=40_000)
    idx = generate_topk(config, "groups:4/2", tokens_per_rank=40_000).topk_idx[0]
    # Two of four groups of two, then two of their four experts: 1/3 share a group (any of 4), else a pair.
    same = idx[:, 0] // 2 == idx[:, 1] // 2
    check_proportion(int(same.sum()), 40_000, 1 / 3)
    groups = np.sort(idx[~same] // 2, axis=1)
    pairs = list(combinations(range(4), 2))
    check_frequencies(frequencies(groups.T, pairs), [1 / 6] * 6)
    wide = generate_topk(group(num_topk=6), "groups:4/2", tokens_per_rank=500)
    assert max(len({e // 4 for e in row}) for row in wide.topk_idx[0].tolist()) == 2


def test_stepped_token_counts_are_those_of_the_upstream_test():
    assert stepped_token_counts(3, 5) == (3, 2, 1, 1, 1)


def test_loads_are_matched_in_proportion():
    config = group(ep_size=4, num_experts=8, num_topk=2)
    loads = [0, 1, 2, 3, 4, 5, 6, 7]
    counts = count_rows(config, sample_loads(config, loads, tokens_per_rank=20_000))
    total = int(counts.num_tokens.sum())
    assert counts.expert_rows[0] == 0
    for expert, load in enumerate(loads):
        check_proportion(int(counts.expert_rows[expert]), total, 2 * load / 28)


def test_load_above_every_token_is_capped_and_the_rest_keeps_its_proportions():
    config = group(ep_size=2, num_experts=4, num_topk=2)
    rows = count_rows(config, sample_loads(config, [90, 1, 2, 3], tokens_per_rank=20_000)).expert_rows
    assert rows[0] == 40_000
    for expert, share in ((1, 1 / 6), (2, 2 / 6), (3, 3 / 6)):
        check_proportion(int(rows[expert]), 40_000, share)


def test_loads_with_just_enough_experts_choose_them_always():
    config = group(ep_size=2, num_experts=4, num_topk=2)
    topk = sample_loads(config, [0, 1e-9, 0, 5], tokens_per_rank=10)
    assert all(sorted(row) == [1, 3] for row in topk.topk_idx[0].tolist())


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ([1, 2, 3], "loads is '3 experts': the group has 4 logical experts"),
        ([1, -1, 1, 1], r"loads\[1\] is -1.0: must be finite and not negative"),
        ([1, float("nan"), 1, 1], r"loads\[1\] is nan"),
        ([1, float("inf"), 1, 1], r"loads\[1\] is inf"),
        ([0, 0, 0, 1], "loads is '1 experts': at least num_topk = 2 experts need a load above 0"),
        ([[1, 2, 3, 4]], "must be one list of numbers"),
        (["1", "2", "3", "4"], "must be one list of numbers"),
    ],
)
def test_bad_loads_are_refused(loads, message):
    with pytest.raises(ConfigError, match=message):
        sample_loads(group(ep_size=2, num_experts=4, num_topk=2), loads, tokens_per_rank=1)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("uniform", RoutingSpec(kind="uniform")),
        (" zipf:1.10 ", RoutingSpec(kind="zipf", values=(1.1,))),
        ("precise:2.0", RoutingSpec(kind="precise", values=(2.0,))),
        ("groups:8/4", RoutingSpec(kind="groups", values=(8.0, 4.0))),
    ],
)
def test_routing_text_round_trips(text, spec):
    assert parse_routing(text) == spec
    assert parse_routing(spec.text) == spec


def test_routing_text_is_canonical():
    assert [parse_routing(t).text for t in ("zipf:1.10", "precise:2.0", "groups:08/4")] == [
        "zipf:1.1",
        "precise:2",
        "groups:8/4",
    ]
    assert set(ROUTINGS) == {parse_routing(t).kind for t in EXAMPLES}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "routing is '': must be one of uniform, zipf:S, lognormal:SIGMA"),
        ("zipff:1", "must be one of uniform"),
        ("uniform:2", "routing is 'uniform:2': uniform takes no value"),
        ("zipf", "routing is 'zipf': must have the form zipf:S"),
        ("zipf:", "must have the form zipf:S"),
        ("zipf:1/2", "must have the form zipf:S"),
        ("zipf:hot", "'hot' is not a number"),
        ("zipf:-1", "the number must lie between 0 and 8"),
        ("zipf:nan", "the number must lie between 0 and 8"),
        ("lognormal:9", "the number must lie between 0 and 4"),
        ("unbalanced:0.5", "the number must lie between 1 and"),
        ("groups:8", "must have the form groups:GROUPS/CHOSEN"),
        ("groups:4/8", "the chosen ones no more than all"),
        ("groups:4.5/2", "groups must be whole numbers"),
    ],
)
def test_bad_routing_text_is_refused_in_one_sentence(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse_routing(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "routing", "message"),
    [
        (group(), "groups:5/2", "the 16 experts must split into equal groups"),
        (group(num_topk=6), "groups:4/1", "1 groups hold 4 experts, fewer than top-6"),
        (group(ep_size=1), "precise:2", "a hot rank needs at least 2 ranks"),
        (group(ep_size=1), "unbalanced:2", "a hot rank needs at least 2 ranks"),
        (
            group(ep_size=8),
            "unbalanced:1000",
            "routing ratio is 1000.0: scores of up to 100 times the others reach 6.889",
        ),
        (
            group(ep_size=16, num_topk=8),
            "precise:3",
            "a token may reach 6 ranks of 1 experts, too few for top-8",
        ),
        (
            group(num_experts=5, expert_map=ExpertMap(expert_ranks=(0, 0, 1, 2, 3))),
            "precise:2",
            "needs the same number of experts on every rank",
        ),
        (
            group(num_experts=4, expert_map=ExpertMap(expert_ranks=(1, 1, 2, 3))),
            "unbalanced:2",
            "rank 0 holds no expert that could be hot",
        ),
    ],
)
def test_routing_that_the_group_cannot_have_is_refused(config, routing, message):
    with pytest.raises(ConfigError, match=message):
        generate_topk(config, routing, tokens_per_rank=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens_per_rank": (1, 2)}, "tokens_per_rank is '2 counts'"),
        ({"tokens_per_rank": 1, "seed": -1}, "seed is -1"),
        ({"tokens_per_rank": 1, "seed": 0.5}, "seed is 0.5"),
        ({"tokens_per_rank": 1, "masked_ratio": -0.1}, "masked_ratio is -0.1"),
    ],
)
def test_bad_option_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        generate_topk(group(), "uniform", **options)
