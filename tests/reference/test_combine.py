"""Combine: round trips, gradients, a grouped GEMM, zero signs, bounds, refusals."""

import dataclasses
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.combine import combine
from reference.comparison.compare import assert_equal
from reference.config import EPConfig
from reference.definition_combine import define_combine
from reference.dispatch import dispatch, dispatch_cached
from reference.errors import ConfigError
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING, RANK_REDUCED, RANK_THEN_DOMAIN, ReductionOrder, library_order
from reference.topk import TopK
from tests.reference.exchange import BF16, dyadic_weights, exchanges, random_rows, random_topk


def as_bf16(values):
    """Return values that must be exact in bf16."""
    rounded = np.asarray(values).astype(BF16)
    assert (rounded.astype(np.float64) == values).all()
    return rounded


def one_rank(rows, *, edition="nvidia-v2", bias=(), order=ONE_ROUNDING, num_ranks=None):
    """Return the sum at the home rank of one token whose k-th choice gave `rows[k]` (a number each)."""
    num = len(rows)
    size = num if num_ranks is None else num_ranks
    config = EPConfig(ep_size=size, num_experts=num, num_topk=num, hidden=1, num_max_tokens_per_rank=1)
    idx = [np.arange(num)[None], *[np.empty((0, num), np.int64)] * (size - 1)]
    topk = TopK(num_experts=num, topk_idx=tuple(idx))
    x = [np.zeros((len(i), 1), np.uint8) for i in idx]
    _, handles = dispatch(config, topk, x, mode=DispatchMode(edition=edition))
    y = [np.full((h.num_rows, 1), rows[0], BF16) for h in handles]
    for handle, rank_rows in zip(handles, y, strict=True):
        gid, k = handle.row_origins()
        rank_rows[gid >= 0, 0] = np.array(rows, BF16)[k[gid >= 0]]
    given_bias = tuple([np.array([[b]], BF16), *[np.empty((0, 1), BF16)] * (size - 1)] for b in bias)
    return combine(handles, y, order=order, bias=given_bias)[0].combined_x[0, 0]


@given(exchange=exchanges())
def test_weights_out_and_back_are_the_identity(exchange):
    """Dispatch of weights, then combine of what arrived, returns each unmasked weight's bits, else 0."""
    config, topk, mode = exchange.config, exchange.topk, exchange.mode
    if topk.topk_weights is None:
        topk = random_topk(config, exchange.rng(), tokens=topk.tokens_per_rank, masked=0.3)
    x = [np.zeros((n, 1), BF16) for n in topk.tokens_per_rank]
    results, handles = dispatch(config, topk, x, mode=mode)
    weights = [r.recv_topk_weights for r in results]
    back = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED, topk_weights=weights)
    for rank, result in enumerate(back):
        want = np.where(topk.topk_idx[rank] >= 0, topk.topk_weights[rank], np.float32(0))
        np.testing.assert_array_equal(result.combined_topk_weights.view(np.uint32), want.view(np.uint32))


@given(exchange=exchanges(), recipe=st.sampled_from([ONE_ROUNDING, RANK_REDUCED, RANK_THEN_DOMAIN]))
def test_identity_experts_give_x_back(exchange, recipe):
    """With weights 2^-k that sum to 1 all sums are exact: x comes back, masked tokens as 0."""
    config, rng = exchange.config, exchange.rng()
    mode = dataclasses.replace(exchange.mode, edition="nvidia-v2.5", expand=True)
    if mode.scaleup_ranks(config) == config.ep_size and recipe.in_domain:
        recipe = RANK_REDUCED
    if config.num_topk > 9:
        # A partial sum of 2^-1 .. 2^-9 needs more than the 8 bits of bf16; only the whole is exact.
        recipe = ONE_ROUNDING
    topk = exchange.topk
    x = [rng.choice([-4, -1, 0, 1, 2], (n, config.hidden)).astype(BF16) for n in topk.tokens_per_rank]
    weights = tuple(dyadic_weights(idx) for idx in topk.topk_idx)
    topk = dataclasses.replace(topk, topk_weights=weights)
    results, handles = dispatch(config, topk, x, mode=mode, zero_padding=True)
    y = [(r.recv_x * r.recv_topk_weights[:, None]).astype(BF16) for r in results]
    for rank, result in enumerate(combine(handles, y, order=recipe)):
        valid = (topk.topk_idx[rank] >= 0).any(axis=1)[:, None]
        np.testing.assert_array_equal(result.combined_x, np.where(valid, x[rank], BF16.type(0)))


@given(exchange=exchanges(), seed=st.integers(0, 99))
def test_arrival_order_never_reaches_the_sum(exchange, seed):
    """A shuffled dispatch combines to the bits of the canonical one, for experts that act row by row."""
    config, topk, mode = exchange.config, exchange.topk, exchange.mode
    order = RANK_REDUCED
    x = [random_rows(exchange.rng(), (n, config.hidden)) for n in topk.tokens_per_rank]
    combined = []
    for arrival in (None, seed):
        results, handles = dispatch(config, topk, x, mode=dataclasses.replace(mode, arrival_seed=arrival))
        combined.append(combine(handles, [r.recv_x for r in results], order=order))
    assert_equal(*combined, strict_zero=True, any_nan=True)


def gradient_case():
    """Return (rng, topk, x, results, handles, which rows are real) with small integers everywhere."""
    rng = np.random.default_rng(3)
    config = EPConfig(ep_size=3, num_experts=6, num_topk=3, hidden=2, num_max_tokens_per_rank=3)
    topk = random_topk(config, rng, tokens=(3, 0, 2), masked=0.3)
    x = [as_bf16(rng.integers(-4, 5, (n, 2))) for n in topk.tokens_per_rank]
    results, handles = dispatch(config, topk, x)
    return rng, topk, x, results, handles, [h.row_origins().gid >= 0 for h in handles]


def test_the_gradient_of_dispatch_is_combine():
    """Of payload and of weights, against differences of a loss; small integers, so exact."""
    rng, topk, x, results, handles, rows = gradient_case()
    config = handles[0].config
    g_recv = [as_bf16(rng.integers(-4, 5, r.recv_x.shape)) for r in results]
    g_weights = [rng.integers(-4, 5, len(r.recv_x)).astype(np.float32) for r in results]
    back = combine(handles, g_recv, order=RANK_REDUCED, topk_weights=g_weights)

    def loss(x, weights):
        got, _ = dispatch(config, dataclasses.replace(topk, topk_weights=weights), x)
        parts = zip(got, g_recv, g_weights, rows, strict=True)
        return sum(
            (r.recv_x[real].astype(np.float64) * g[real].astype(np.float64)).sum()
            + (r.recv_topk_weights[real].astype(np.float64) * w[real]).sum()
            for r, g, w, real in parts
        )

    whole = tuple(np.rint(w * 8) for w in topk.topk_weights)
    for rank in range(3):
        for at in np.ndindex(x[rank].shape):
            assert differences(loss, x, whole, 0, rank, at) == back[rank].combined_x[at]
        for at in np.ndindex(whole[rank].shape):
            assert differences(loss, x, whole, 1, rank, at) == back[rank].combined_topk_weights[at]


def test_the_gradient_of_combine_is_a_cached_dispatch():
    """Against differences of a loss; a row that no token made has no gradient."""
    rng, _, x, results, handles, rows = gradient_case()
    g_home = [as_bf16(rng.integers(-4, 5, a.shape)) for a in x]
    y = [as_bf16(rng.integers(-4, 5, r.recv_x.shape)) for r in results]

    def combined_loss(y, _):
        got = combine(handles, y, order=RANK_REDUCED)
        return sum(
            (r.combined_x.astype(np.float64) * g.astype(np.float64)).sum()
            for r, g in zip(got, g_home, strict=True)
        )

    g_y = dispatch_cached(handles, g_home)
    for rank in range(3):
        for row, column in np.ndindex(y[rank].shape):
            want = g_y[rank].recv_x[row, column] if rows[rank][row] else 0
            assert differences(combined_loss, y, None, 0, rank, (row, column)) == want


def differences(loss, x, weights, which, rank, at):
    """Return loss(one entry + 1) - loss: the derivative of a linear function, exact for small integers."""
    moved = [[a.copy() for a in arrays] if arrays is not None else None for arrays in (x, weights)]
    moved[which][rank][at] += moved[which][rank].dtype.type(1)
    after = loss(moved[0], None if weights is None else tuple(moved[1]))
    return after - loss(x, weights)


# --- order and zero signs --------------------------------------------------------------------------


def test_order_is_fp32_from_the_first_choice():
    """cases.md G39: 256 + 1 - 256 is 1 in fp32 whatever the order; bf16 accumulation would give 0."""
    for rows in ([256.0, 1.0, -256.0], [256.0, -256.0, 1.0]):
        assert one_rank(rows) == 1.0
        assert one_rank(rows, order=RANK_REDUCED, num_ranks=1) == 1.0


def test_rounding_points_decide_the_result():
    """1 + 2^-8 + 2^-8 is 1.0078125 summed at once, 1.0 when the first two are rounded between."""
    rows = [1.0, 2.0**-8, 2.0**-8, 0.0]
    assert one_rank(rows) == 1.0078125
    assert one_rank(rows, order=RANK_REDUCED, num_ranks=2) == 1.0
    # The other way round, biases first: 2^-8 + 2^-8 survive when they meet before the 1.
    assert one_rank([2.0**-8, 0.0], bias=(1.0, 2.0**-8)) == 1.0078125


@pytest.mark.parametrize("edition", ["ascend", "nvidia-v2"])
@pytest.mark.parametrize("bias", [(), (-0.0,), (-0.0, -0.0)])
@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_sign_of_a_sum_of_negative_zeros(num_rows, bias, edition):
    """Ascend starts from the first input; NVIDIA from +0, except for two rows without bias (section 3.2)."""
    order = RANK_REDUCED  # one row per rank, so the rank sums are copies
    total = one_rank([-0.0] * num_rows, edition=edition, bias=bias, order=order)
    is_negative = edition == "ascend" or (num_rows == 2 and not bias)
    assert total == 0
    assert np.signbit(total) == is_negative


def test_a_domain_of_one_rank_is_rounded_too():
    """rank_then_domain is no shortcut: with one rank per domain it still turns -0 into +0 before the end."""
    config = EPConfig(ep_size=2, num_experts=2, num_topk=2, hidden=1, num_max_tokens_per_rank=1)
    topk = TopK(num_experts=2, topk_idx=(np.array([[0, 1]]), np.empty((0, 2), np.int64)))
    mode = DispatchMode(edition="nvidia-v2", num_scaleup_ranks=1)
    _, handles = dispatch(config, topk, [np.zeros((n, 1), BF16) for n in (1, 0)], mode=mode)
    y = [np.full((h.num_rows, 1), -0.0, BF16) for h in handles]
    signs = [
        np.signbit(combine(handles, y, order=o)[0].combined_x[0, 0]) for o in (RANK_REDUCED, RANK_THEN_DOMAIN)
    ]
    assert signs == [True, False]


def test_library_orders():
    """The summary of deepep-v2.md section 3.3, all eight settings."""
    for expand, multiple, hybrid in product([False, True], repeat=3):
        have = library_order(expand=expand, allow_multiple_reduction=multiple, is_hybrid=hybrid)
        if multiple:
            want = RANK_THEN_DOMAIN if hybrid else RANK_REDUCED
        else:
            want = ONE_ROUNDING if expand else RANK_REDUCED
        assert have == want
    with pytest.raises(ConfigError, match="needs in_rank"):
        ReductionOrder(in_rank=False, in_domain=True)


@pytest.mark.parametrize("path", [combine, define_combine], ids=["vectorised", "definition"])
def test_ascend_copies_a_single_input_bit_for_bit(path):
    """A signalling NaN with a payload survives as the only row, and as the only bias of a masked token."""
    config = EPConfig(ep_size=1, num_experts=2, num_topk=1, hidden=1, num_max_tokens_per_rank=2)
    topk = TopK(num_experts=2, topk_idx=(np.array([[1], [-1]]),))
    _, handles = dispatch(config, topk, [np.zeros((2, 1), BF16)])
    y = [np.array([[0xFFA5]], np.uint16).view(BF16)]
    bias = ([np.array([[0x7FA1], [0x7FA1]], np.uint16).view(BF16)],)
    alone = path(handles, y, order=RANK_REDUCED)[0].combined_x
    assert alone.view(np.uint16).ravel().tolist() == [0xFFA5, 0]
    assert path(handles, y, order=RANK_REDUCED, bias=bias)[0].combined_x.view(np.uint16)[1, 0] == 0x7FA1


def test_a_recipe_by_name_is_refused_as_an_order():
    """`order.RECIPES` turns the name into the order; the name alone is no order."""
    config = EPConfig(ep_size=1, num_experts=2, num_topk=1, hidden=4, num_max_tokens_per_rank=1)
    topk = TopK(num_experts=2, topk_idx=(np.array([[0]]),))
    results, handles = dispatch(config, topk, [np.zeros((1, 4), dtype=BF16)])
    with pytest.raises(ConfigError, match="must be a ReductionOrder"):
        combine(handles, [results[0].recv_x], order="rank_reduced")
