"""Hypothesis strategies of the whole suite: small first, odd sizes preferred.

One block per package; each block imports only its own package.
"""

# --- reference -------------------------------------------------------------------------------------
import numpy as np
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.topk import TopK

SMALL_SIZES = (1, 2, 3, 5, 7)
"""Odd sizes expose stride and rounding mistakes that powers of two hide."""


@st.composite
def ep_configs(draw, *, mapped=None):
    """Draw groups of at most 7 ranks; with mapped=True experts sit anywhere, with False by the rule."""
    ep_size = draw(st.sampled_from(SMALL_SIZES))
    num_experts = ep_size * draw(st.integers(1, 4))
    expert_map = None
    if draw(st.booleans()) if mapped is None else mapped:
        ranks = st.lists(st.integers(0, ep_size - 1), min_size=num_experts, max_size=num_experts)
        expert_map = ExpertMap(expert_ranks=tuple(draw(ranks)))
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=draw(st.integers(1, min(num_experts, 6))),
        hidden=128,
        num_max_tokens_per_rank=5,
        expert_map=expert_map,
    )


@st.composite
def topks(draw, config):
    """Draw valid routings of a config: uneven token counts with zeros, masks in any column, no repeats."""
    ranks = []
    for _ in range(config.ep_size):
        tokens = []
        for _ in range(draw(st.integers(0, config.num_max_tokens_per_rank))):
            row = draw(st.permutations(range(config.num_experts)))[: config.num_topk]
            mask = draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)))
            tokens.append([-1 if hidden else e for e, hidden in zip(row, mask, strict=True)])
        ranks.append(np.array(tokens, dtype=np.int64).reshape(len(tokens), config.num_topk))
    return TopK(num_experts=config.num_experts, topk_idx=tuple(ranks))


@st.composite
def routed_configs(draw, *, mapped=None):
    """Draw a config and a routing of it."""
    config = draw(ep_configs(mapped=mapped))
    return config, draw(topks(config))


# --- end of reference ------------------------------------------------------------------------------
