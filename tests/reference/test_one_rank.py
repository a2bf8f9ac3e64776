"""One rank at a time, with rows carried between the ranks, gives what all ranks at once give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import one_rank
from reference.combine import combine
from reference.comparison.compare import assert_equal
from reference.config import EPConfig
from reference.deliver import Cargo, deliver_received
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from reference.one_rank import (
    combine_home,
    received_counts,
    returned_counts,
    rows_to_return,
    tokens_to_send,
)
from reference.order import ONE_ROUNDING, RANK_REDUCED, RANK_THEN_DOMAIN
from reference.placement import plan_dispatch, plan_rank
from tests.reference.exchange import PACKS, exchanges, random_bits, random_rows, random_topk


def carry(parts, counts):
    """Return, per destination and source, the rows that the source has for it: an all-to-all."""
    cut = [np.split(part, np.cumsum(count)[:-1]) for part, count in zip(parts, counts, strict=True)]
    return [[cut[src][dst] for src in range(len(parts))] for dst in range(len(parts))]


@given(exchange=exchanges(), shuffled=st.booleans())
@settings(max_examples=150)
def test_a_rank_plans_alone_what_all_ranks_plan_together(exchange, shuffled):
    """The handle of one rank does not depend on whether the others' were made, shuffled or not."""
    mode = DispatchMode(**(vars(exchange.mode) | {"arrival_seed": exchange.seed if shuffled else None}))
    together = plan_dispatch(exchange.config, exchange.topk, mode=mode)
    for rank in {0, exchange.config.ep_size - 1}:
        assert plan_rank(exchange.config, exchange.topk, rank, mode=mode) == together[rank]


@given(exchange=exchanges(), zero=st.booleans(), column_major=st.booleans(), shuffled=st.booleans())
@settings(max_examples=150)
def test_dispatch_rank_by_rank_equals_dispatch(exchange, zero, column_major, shuffled):
    """Each rank lays out only what reached it; every byte is that of the whole, padding and poison too."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    mode = DispatchMode(**(vars(exchange.mode) | {"arrival_seed": exchange.seed if shuffled else None}))
    x = [random_bits(rng, (count, config.hidden), np.uint16) for count in topk.tokens_per_rank]
    pack = PACKS[mode.rules.scale_pack_bytes][0]
    scales = [random_bits(rng, (count, 2), pack) for count in topk.tokens_per_rank]
    options = {"zero_padding": zero and mode.expand, "column_major_scales": column_major}
    expected, handles = dispatch(config, topk, x, scales=scales, mode=mode, **options)

    shipments = [tokens_to_send(config, idx) for idx in topk.topk_idx]
    counts = [s.counts for s in shipments]

    def carried(arrays):
        return carry([a[s.rows] for a, s in zip(arrays, shipments, strict=True)], counts)

    moved, moved_scales, ids = carried(x), carried(scales), carried(topk.topk_idx)
    weights = None if topk.topk_weights is None else carried(topk.topk_weights)
    for rank, handle in enumerate(handles):
        assert received_counts(handle).tolist() == [count[rank] for count in counts]
        cargo = Cargo(
            x=moved[rank],
            scales=moved_scales[rank],
            weights=None if weights is None else weights[rank],
            **options,
        )
        actual = deliver_received(handle, cargo, ids[rank])
        assert_equal(expected[rank], actual, strict_zero=True)
        assert actual.recv_scales.strides == expected[rank].recv_scales.strides


def orders_of(mode, config):
    """Return the recipes that a dispatch allows."""
    if mode.edition == "ascend":
        return [RANK_REDUCED]
    is_hybrid = mode.scaleup_ranks(config) < config.ep_size
    return [ONE_ROUNDING, RANK_REDUCED, *([RANK_THEN_DOMAIN] if is_hybrid else [])]


@given(exchange=exchanges(), num_biases=st.integers(0, 2), pick=st.integers(0, 2), shuffled=st.booleans())
@settings(max_examples=200)
def test_combine_rank_by_rank_equals_combine(exchange, num_biases, pick, shuffled):
    """Sums at the experts' rank, then at home, give every bit of the sums made in one place."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    mode = DispatchMode(**(vars(exchange.mode) | {"arrival_seed": exchange.seed if shuffled else None}))
    handles = plan_dispatch(config, topk, mode=mode)
    orders = orders_of(mode, config)
    order = orders[pick % len(orders)]
    y = [random_rows(rng, (handle.num_rows, config.hidden)) for handle in handles]
    bias = tuple(
        [random_rows(rng, (count, config.hidden)) for count in topk.tokens_per_rank]
        for _ in range(num_biases)
    )
    weights = None
    if order.in_rank or not mode.expand:
        shapes = [(h.num_rows,) if mode.expand else (h.num_rows, config.num_topk) for h in handles]
        weights = [rng.random(shape, dtype=np.float32) for shape in shapes]
    expected = combine(handles, y, order=order, topk_weights=weights, bias=bias)

    sent = [
        rows_to_return(handle, y[r], order, None if weights is None else weights[r])
        for r, handle in enumerate(handles)
    ]
    counts = [s.counts for s in sent]
    homes = carry([s.x for s in sent], counts)
    home_weights = None if weights is None else carry([s.weights for s in sent], counts)
    per_choice = mode.expand and not order.in_rank
    for rank, handle in enumerate(handles):
        due = returned_counts(config, topk.topk_idx[rank], per_choice=per_choice)
        assert due.tolist() == [count[rank] for count in counts]
        actual = combine_home(
            handle,
            homes[rank],
            order,
            weights=None if home_weights is None else home_weights[rank],
            bias=[rows[rank] for rows in bias],
        )
        assert_equal(expected[rank], actual, strict_zero=True)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_row_that_is_not_sent_changes_the_counts(lost):
    """Sender and receiver count alone; a routing that differs by one choice shows in both."""
    rng = np.random.default_rng(3)
    config = EPConfig(ep_size=2, num_experts=4, num_topk=2, hidden=4, num_max_tokens_per_rank=4)
    topk = random_topk(config, rng, tokens=(4, 4))
    idx = topk.topk_idx[0].copy()
    idx[0] = -1
    before, after = (tokens_to_send(config, i).counts[lost] for i in (topk.topk_idx[0], idx))
    hit = (topk.topk_idx[0][0] // 2 == lost).any()
    assert before - after == hit


@pytest.mark.parametrize("block_bytes", [1, 100])
def test_sums_per_rank_do_not_depend_on_the_size_of_a_block(monkeypatch, block_bytes):
    """Rows are summed some at a time; the cut between two blocks changes no bit."""
    rng = np.random.default_rng(8)
    config = EPConfig(ep_size=2, num_experts=8, num_topk=4, hidden=6, num_max_tokens_per_rank=20)
    topk = random_topk(config, rng, tokens=(20, 17), masked=0.2)
    (handle, _) = plan_dispatch(config, topk)
    y = random_rows(rng, (handle.num_rows, config.hidden))
    whole = rows_to_return(handle, y, RANK_REDUCED)
    monkeypatch.setattr(one_rank, "BLOCK_BYTES", block_bytes)
    cut = rows_to_return(handle, y, RANK_REDUCED)
    np.testing.assert_array_equal(cut.x.view(np.uint16), whole.x.view(np.uint16))
