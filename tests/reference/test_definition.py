"""The fast path says what the definition says, bit for bit, over every layout."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.combine import combine
from reference.comparison.compare import assert_equal
from reference.config import EPConfig
from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.dispatch import dispatch, dispatch_cached
from reference.edition import EditionError
from reference.handle import DispatchMode
from reference.order import RANK_REDUCED, RECIPES
from tests.conftest import PROFILE
from tests.reference.exchange import (
    BF16,
    FP8,
    PACKS,
    PAYLOADS,
    exchanges,
    random_bits,
    random_rows,
    random_topk,
)

EXAMPLES = settings(max_examples=2000 if PROFILE == "nightly" else 300)


def comparable(handles):
    """Fields of handles as compare takes them; config and mode are compared by value."""
    for handle in handles:
        assert (handle.config, handle.mode) == (handles[0].config, handles[0].mode)
    skip = ("config", "mode", "source_digest")
    return [
        {f.name: getattr(h, f.name) for f in dataclasses.fields(h) if f.name not in skip} for h in handles
    ]


@given(exchange=exchanges(), data=st.data())
@EXAMPLES
def test_dispatch_is_what_the_definition_says(exchange, data):
    """Every output and every handle field, undefined rows (poisoned on both sides) included."""
    config, topk, mode, rng = exchange.config, exchange.topk, exchange.mode, exchange.rng()
    dtype = data.draw(st.sampled_from(PAYLOADS))
    x = [random_bits(rng, (n, config.hidden), dtype) for n in topk.tokens_per_rank]
    scales = None
    if data.draw(st.booleans()):
        pack = data.draw(st.sampled_from(PACKS[mode.rules.scale_pack_bytes]))
        scales = [random_bits(rng, (n, 3), pack) for n in topk.tokens_per_rank]
    padding = mode.expand and data.draw(st.booleans())
    if mode.edition == "ascend" and dtype not in (BF16, FP8, np.uint8):
        with pytest.raises(EditionError, match=f"x.dtype is '{dtype}': edition ascend takes bfloat16 and"):
            dispatch(config, topk, x, scales=scales, mode=mode, zero_padding=padding)
        x = [rows.view(f"u{dtype.itemsize}") for rows in x]
    want = define_dispatch(config, topk, x, scales=scales, mode=mode, zero_padding=padding)
    have = dispatch(config, topk, x, scales=scales, mode=mode, zero_padding=padding)
    assert_equal(want[0], have[0], strict_zero=True)
    assert_equal(comparable(want[1]), comparable(have[1]), strict_zero=True)
    again = dispatch_cached(
        have[1], x, scales=scales, topk_weights=topk.topk_weights, zero_padding=padding, expand=mode.expand
    )
    assert_equal(want[0], again, strict_zero=True)


@given(exchange=exchanges(), recipe=st.sampled_from(sorted(RECIPES)), num_bias=st.integers(0, 2))
@EXAMPLES
def test_combine_is_what_the_definition_says(exchange, recipe, num_bias):
    """Every recipe and bias, with infinities, NaN and zeros of both signs in the rows."""
    config, topk, mode, rng = exchange.config, exchange.topk, exchange.mode, exchange.rng()
    is_hybrid = mode.scaleup_ranks(config) != config.ep_size
    order = RECIPES[recipe if mode.edition != "ascend" else "rank_reduced"]
    if order.in_domain and not is_hybrid:
        order = RECIPES["rank_reduced"]
    x = [np.zeros((n, config.hidden), np.uint8) for n in topk.tokens_per_rank]
    _, handles = define_dispatch(config, topk, x, mode=mode)
    y = [random_rows(rng, (h.num_rows, config.hidden)) for h in handles]
    weights = None
    if order.in_rank:
        shape = (config.num_topk,) * (not mode.expand)
        weights = [rng.random((h.num_rows, *shape), dtype=np.float32) for h in handles]
    bias = tuple(
        [random_rows(rng, (n, config.hidden)) for n in topk.tokens_per_rank] for _ in range(num_bias)
    )
    want = define_combine(handles, y, order=order, topk_weights=weights, bias=bias)
    have = combine(handles, y, order=order, topk_weights=weights, bias=bias)
    assert_equal(want, have, strict_zero=True, any_nan=True)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_tokens_do_not_show(seed, monkeypatch):
    """A combine that works through one token at a time gives the same bits."""
    rng = np.random.default_rng(seed)
    config = EPConfig(ep_size=3, num_experts=9, num_topk=5, hidden=8, num_max_tokens_per_rank=9)
    topk = random_topk(config, rng, tokens=(9, 4, 0), masked=0.2)
    x = [np.zeros((n, 8), np.uint8) for n in topk.tokens_per_rank]
    _, handles = dispatch(config, topk, x, mode=DispatchMode())
    y = [random_rows(rng, (h.num_rows, 8)) for h in handles]
    whole = combine(handles, y, order=RANK_REDUCED)
    monkeypatch.setattr("reference.combine.BLOCK_BYTES", 1)
    assert_equal(whole, combine(handles, y, order=RANK_REDUCED), strict_zero=True)
