"""From row counts to loads per rank: conservation, two layers against plain loops, the expected spread."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.model.loads import rank_loads
from reference.counts import ExpectedCounts
from reference.plan import count_rows
from reference.routing.expected import expected_rows
from reference.routing.generate import generate_topk
from tests.epsim.cases import group, loads_of, relabelled, rounding, sigmas_of, topk_of
from tests.strategies import routed_configs

TIERS = ("scaleup_received", "scaleup_sent", "scaleout_received", "scaleout_sent")


def journeys(config, topk, pod_size, *, dedup):
    """Walk every token by hand; count rows in and out per tier, [R] each, in the order of TIERS."""
    size = config.ep_size
    home = config.expert_ranks()
    up_in, up_out, out_in, out_out = (np.zeros(size) for _ in range(4))

    def send(src, dst):
        if src != dst:
            same = src // pod_size == dst // pod_size
            (up_out if same else out_out)[src] += 1
            (up_in if same else out_in)[dst] += 1

    for src in range(size):
        for row in topk.topk_idx[src]:
            targets = {int(home[e]) for e in row if e >= 0}
            for pod in {dst // pod_size for dst in targets}:
                members = range(pod * pod_size, min(size, (pod + 1) * pod_size))
                hop = src
                if dedup and src not in members:
                    # The rank with the sender's index spreads the row; a short last pod wraps around.
                    hop = members[(src % pod_size) % len(members)]
                    send(src, hop)
                for dst in targets.intersection(members):
                    send(hop, dst)
    return up_in, up_out, out_in, out_out


@given(case=routed_configs(), pod_size=st.integers(1, 4), dedup=st.booleans())
def test_tiers_agree_with_walking_every_token(case, pod_size, dedup):
    """Vectorised tier counts equal those of plain loops over tokens, on every rank."""
    config, topk = case
    loads = loads_of(config, topk, pod_size, pod_dedup=dedup)
    if pod_size >= config.ep_size:
        pod_size = config.ep_size
    for name, walked in zip(TIERS, journeys(config, topk, pod_size, dedup=dedup), strict=True):
        np.testing.assert_array_equal(getattr(loads, name), walked, err_msg=name)


@given(case=routed_configs(), pod_size=st.none() | st.integers(1, 4), dedup=st.booleans())
def test_what_is_sent_is_received(case, pod_size, dedup):
    """Rows out equal rows in, in all, remotely, and on each tier by itself."""
    config, topk = case
    loads = loads_of(config, topk, pod_size, pod_dedup=dedup)
    assert loads.received.sum() == loads.sent.sum() == count_rows(config, topk).rows.sum()
    assert loads.remote_received.sum() == loads.remote_sent.sum()
    assert loads.scaleup_received.sum() == loads.scaleup_sent.sum()
    assert loads.scaleout_received.sum() == loads.scaleout_sent.sum()


@given(case=routed_configs(), pod_size=st.integers(1, 4))
def test_flat_tiers_split_the_remote_rows(case, pod_size):
    """Without de-duplication each remote row travels exactly once, on one tier."""
    config, topk = case
    loads = loads_of(config, topk, pod_size, pod_dedup=False)
    np.testing.assert_array_equal(loads.scaleup_received + loads.scaleout_received, loads.remote_received)
    np.testing.assert_array_equal(loads.scaleup_sent + loads.scaleout_sent, loads.remote_sent)


@given(case=routed_configs(), pod_size=st.integers(1, 4))
def test_dedup_never_sends_more_over_the_scaleout_port(case, pod_size):
    """One row per supernode is at most one row per rank there, for every sender."""
    config, topk = case
    dedup = loads_of(config, topk, pod_size, pod_dedup=True)
    flat = loads_of(config, topk, pod_size, pod_dedup=False)
    assert (dedup.scaleout_sent <= flat.scaleout_sent).all()


@given(case=routed_configs())
def test_one_domain_has_no_scaleout_rows(case):
    """Where one supernode holds the group, every remote row is a scale-up row."""
    config, topk = case
    for pod_size in (None, config.ep_size, config.ep_size + 3):
        loads = loads_of(config, topk, pod_size)
        assert not loads.scaleout_sent.any()
        assert not loads.scaleout_logical.any()
        np.testing.assert_array_equal(loads.scaleup_received, loads.remote_received)


@given(case=routed_configs(mapped=False), data=st.data())
def test_relabelling_ranks_moves_their_loads(case, data):
    """A rank's loads belong to its tokens and experts, not to its number."""
    config, topk = case
    order = data.draw(st.permutations(range(config.ep_size)))
    renamed = relabelled(topk, order, config.num_experts // config.ep_size)
    before, after = loads_of(config, topk), loads_of(config, renamed)
    assert before.peers == after.peers
    for name in vars(before):
        if name != "peers":
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name)[order], err_msg=name)


@given(case=routed_configs())
def test_rows_per_expert_count_every_choice(case):
    """Software that does not de-duplicate sends one row per valid choice, and sums nothing."""
    config, topk = case
    loads = loads_of(config, topk, per_expert=True)
    assert loads.sent.sum() == sum(int((idx >= 0).sum()) for idx in topk.topk_idx)
    assert not loads.reduced.any()
    assert not loads.reduction_reads.any()


@given(case=routed_configs())
def test_the_reduction_reads_at_least_two_rows_per_sum(case):
    """A sum has two or more inputs, and single rows bypass it."""
    config, topk = case
    loads = loads_of(config, topk)
    assert (loads.reduction_reads >= 2 * loads.reduced).all()
    np.testing.assert_array_equal(
        loads.reduction_reads - loads.reduced, loads.expanded - loads.received, "each sum saves its inputs"
    )


@pytest.mark.parametrize("ep_size", [2, 8, 32, 128])
def test_the_spread_keeps_the_mean(ep_size):
    """Order statistics lie symmetrically around the expectation, so conservation survives them."""
    loads = rank_loads(expected_rows(group(ep_size), 16_384))
    total = float(loads.sent.sum())
    assert abs(float(loads.received.sum()) - total) <= rounding(4 * ep_size, total)
    assert (np.diff(loads.received) > 0).all()


def expected_maximum(size):
    """Integrate x d(Phi(x)^size) by the trapezoid rule."""
    points = np.linspace(-9, 9, 20_001)
    chance = np.array([NormalDist().cdf(x) for x in points.tolist()]) ** size
    return float(((points[1:] + points[:-1]) / 2 * np.diff(chance)).sum())


@pytest.mark.parametrize(
    ("size", "experts", "topk", "draws"), [(16, 256, 6, 100), (2, 2, 1, 1000), (4, 8, 1, 400)]
)
def test_the_expected_spread_is_what_sampling_shows(size, experts, topk, draws):
    """The busiest and the idlest rank, averaged over samples, meet the order statistics.

    One choice of two ranks is the sharpest case: a row more here is a row less there. The bound is the
    standard error of the sampled mean at a false-alarm rate of 1e-6, plus what Blom's approximation
    differs from the expected maximum of normal values, which is integrated here, plus half a row: a
    normal value knows no steps.
    """
    config, tokens = group(size, experts, topk, 2048), 4096 // size
    counts = expected_rows(config, tokens)
    rows = np.array(
        [
            count_rows(config, generate_topk(config, "uniform", tokens_per_rank=tokens, seed=s)).received_rows
            for s in range(draws)
        ]
    )
    expected = rank_loads(counts).received
    blom = abs(expected_maximum(size) - NormalDist().inv_cdf((size - 0.375) / (size + 0.25)))
    sigma = 2**0.5 * float(rows.std())  # Var - Cov is at most twice the variance of one rank
    for sampled, planned in ((rows.max(axis=1), expected.max()), (rows.min(axis=1), expected.min())):
        bound = sigmas_of(1e-6) * sampled.std(ddof=1) / draws**0.5 + blom * sigma + 0.5
        assert abs(sampled.mean() - planned) <= bound


@settings(max_examples=30)
@given(tokens=st.lists(st.integers(0, 64), min_size=4, max_size=4), seed=st.integers(0, 2**32))
def test_counted_rows_scatter_around_the_expectation_as_its_variance_says(tokens, seed):
    """Total rows of a sample stay within z standard deviations of the exact mean (false alarms: 1e-9)."""
    config = group(4, num_experts=8, num_topk=3, tokens=64)
    counts = expected_rows(config, tokens)
    assert isinstance(counts, ExpectedCounts)
    variance = sum(counts.received_rows_cov(a, b) for a in range(4) for b in range(4))
    sample = count_rows(config, generate_topk(config, "uniform", tokens_per_rank=tokens, seed=seed))
    # Half a row more: counts are whole numbers, and a normal bound knows no steps.
    bound = sigmas_of(1e-9) * max(0.0, variance) ** 0.5 + 0.5
    assert abs(float(sample.rows.sum()) - float(counts.rows.sum())) <= bound


def test_only_ranks_that_exchange_rows_are_peers():
    """Four ranks in two closed pairs have one peer each, however large the group."""
    config = group(4, num_experts=4, num_topk=1, tokens=2)
    topk = topk_of([[[1], [0]], [[0], [1]], [[3], [2]], [[2], [3]]], 4)
    assert loads_of(config, topk).peers == 1.0
