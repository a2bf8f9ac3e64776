"""Whole exchanges for tests: a group, its routing, a layout and payloads, drawn or made from a seed."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.handle import DispatchMode
from reference.topk import TopK

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
SHAPES = ((1, 1), (1, 2), (1, 3), (1, 5), (1, 16), (2, 1), (2, 2), (2, 3), (2, 8), (3, 2), (5, 2), (1, 13))
"""(domains, ranks of a domain): 1xN, 2xN and Nx2, odd ones too."""
PAYLOADS = (BF16, FP8, np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.uint8), np.dtype(np.float32))
PACKS = {2: (np.int16, np.uint16), 4: (np.float32, np.int32)}


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One drawn case."""

    config: EPConfig
    topk: TopK
    mode: DispatchMode
    seed: int

    def rng(self):
        """Return the stream from which payloads are made."""
        return np.random.default_rng(self.seed)


def random_topk(config, rng, *, tokens, masked=0.0, skew=0.0, weights=True):
    """Return a routing; with skew, experts of low number are that much more likely."""
    ids = []
    for count in tokens:
        scores = rng.random((count, config.num_experts)) + skew * np.linspace(1, 0, config.num_experts)
        idx = np.argsort(-scores, axis=1)[:, : config.num_topk].astype(np.int64)
        ids.append(np.where(rng.random(idx.shape) < masked, -1, rng.permuted(idx, axis=1)))
    given = tuple(rng.random(idx.shape, dtype=np.float32) for idx in ids) if weights else None
    return TopK(num_experts=config.num_experts, topk_idx=tuple(ids), topk_weights=given)


def random_bits(rng, shape, dtype):
    """Return an array of any bit patterns, NaN and infinities included."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype=dtype).reshape(shape)


def random_rows(rng, shape):
    """Return bf16 rows of ordinary numbers among which zeros of both signs, infinities and NaN are common."""
    values = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0) ** rng.integers(-6, 6, shape)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40], dtype=np.float32)
    strange = rng.random(shape) < 0.2
    with np.errstate(over="ignore"):
        return np.where(strange, rng.choice(odd, shape), values).astype(BF16)


@st.composite
def exchanges(draw):
    """Draw an exchange of any edition and layout, mostly small; its seed makes routing and payloads."""
    domains, scaleup = draw(st.sampled_from(SHAPES))
    ep_size = domains * scaleup
    per_rank = draw(st.one_of(st.integers(1, 4), st.sampled_from((7, 16, 64))))
    num_experts = ep_size * per_rank
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    expert_map = None
    if draw(st.booleans()):
        expert_map = ExpertMap(expert_ranks=tuple(rng.integers(0, ep_size, num_experts).tolist()))
    config = EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=draw(st.integers(1, min(12, num_experts))),
        hidden=draw(st.sampled_from((1, 3, 8))),
        num_max_tokens_per_rank=draw(st.integers(1, 7)),
        expert_alignment=draw(st.sampled_from((1, 2, 3, 8))),
        expert_map=expert_map,
    )
    most = config.num_max_tokens_per_rank
    tokens = draw(st.lists(st.integers(0, most), min_size=ep_size, max_size=ep_size))
    edition = (
        "ascend"
        if domains == 1 and draw(st.booleans())
        else draw(st.sampled_from(("nvidia-v2.5", "nvidia-v2")))
    )
    mode = DispatchMode(
        edition=edition,
        expand=True if edition == "ascend" else draw(st.booleans()),
        num_scaleup_ranks=None if domains == 1 else scaleup,
        cpu_sync=draw(st.booleans()),
        num_aivs=draw(st.sampled_from((1, 2, 3, 64))),
    )
    masked, skew = draw(st.sampled_from((0.0, 0.3, 0.9, 1.0))), draw(st.sampled_from((0.0, 1.0, 5.0)))
    topk = random_topk(config, rng, tokens=tokens, masked=masked, skew=skew, weights=draw(st.booleans()))
    return Exchange(config=config, topk=topk, mode=mode, seed=seed)


def small_exchange():
    """Return (config, topk, x) of three ranks, one of them without tokens, that every test may read."""
    config = EPConfig(
        ep_size=3, num_experts=6, num_topk=2, hidden=4, num_max_tokens_per_rank=5, expert_alignment=4
    )
    rng = np.random.default_rng(0)
    topk = random_topk(config, rng, tokens=(5, 0, 3), masked=0.2)
    return config, topk, [random_rows(rng, (n, 4)) for n in topk.tokens_per_rank]


def dyadic_weights(idx):
    """Return per token weights 1/2, 1/4, ... over its valid choices, the last one twice: they sum to 1."""
    weights = np.zeros(idx.shape, np.float32)
    for row, choices in zip(weights, idx >= 0, strict=True):
        places = np.flatnonzero(choices)
        for i, k in enumerate(places):
            row[k] = 2.0 ** -min(i + 1, len(places) - 1)
    return weights
