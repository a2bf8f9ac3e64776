"""Gate scores of upstream's tests: top-k of them gives a balanced routing, or one with rank 0 hot.

T tokens of the calling rank, E experts, R ranks, K top-k. Every draw comes from torch's generator, so
`init_seed` decides all of them. Selection is the caller's: `torch.topk(scores, K, sorted=False)`; the order
of ids in a row is then torch's, so a test records it and does not derive it again.
Source: deepep-v2.md section 5.
"""

import torch

from epsim.deep_ep.arrays import tensor_of
from reference.config import EPConfig
from reference.errors import ConfigError
from reference.routing.generate import generate_topk
from reference.routing.unbalanced import find_lift

BACKGROUND = 0.9
"""Precise routing: scores of experts not chosen stay below this, chosen ones lie above."""


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool
) -> torch.Tensor:
    """Return the scores of one rank's tokens.

    Args:
      num_tokens: T.
      num_experts: E, a multiple of R.
      num_ranks: R.
      num_topk: K.
      ratio: rows that rank 0 receives over rows of another rank, at least 1.
      precise: by construction instead of in expectation.

    Returns:
      [T, E] float32.

    Raises:
      ConfigError: a number is out of range, or the group cannot have this ratio (upstream silently comes
        as near as it can).
    """
    draw = get_precise_unbalanced_scores if precise else get_random_unbalanced_scores
    return draw(num_tokens, num_experts, num_ranks, num_topk, ratio)


def get_random_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Return scores uniform in [0, 1], for experts of rank 0 in [0, f], f such that the expectation fits.

    Upstream bisects f over sampled counts, so that ranks with other seeds get other f; here it is computed.

    Raises:
      ConfigError: as `get_unbalanced_scores`.
    """
    _config(num_tokens, num_experts, num_ranks, num_topk, ratio)
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32)
    if ratio != 1:
        held = num_experts // num_ranks
        scores[:, :held] /= 1 - find_lift(num_experts, num_topk, [held] * num_ranks, ratio)
    return scores


def get_precise_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float
) -> torch.Tensor:
    """Return scores whose top-k is a routing with exact row counts: chosen above 0.9, the others below.

    Raises:
      ConfigError: as `get_unbalanced_scores`.
    """
    config = _config(num_tokens, num_experts, num_ranks, num_topk, ratio)
    # The ranks draw apart, each from its own seed, as in upstream: this rank stands in place 0.
    seed = int(torch.randint(2**62, (), dtype=torch.int64))
    tokens = (num_tokens, *[0] * (num_ranks - 1))
    topk = generate_topk(config, f"precise:{ratio!r}", tokens_per_rank=tokens, seed=seed)
    scores = torch.empty((num_tokens, num_experts), dtype=torch.float32).uniform_(0, BACKGROUND)
    chosen = torch.empty((num_tokens, num_topk), dtype=torch.float32).uniform_(BACKGROUND + 1e-6, 1)
    return scores.scatter_(1, tensor_of(topk.topk_idx[0]), chosen)


def _config(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float) -> EPConfig:
    """Return the numbers as a group's configuration, which checks all of them but the ratio."""
    if not ratio >= 1:
        raise ConfigError("ratio", ratio, "must be at least 1: rank 0 is the hot one")
    if ratio != 1 and num_ranks == 1:
        raise ConfigError("ratio", ratio, "a hot rank needs at least 2 ranks")
    return EPConfig(
        ep_size=num_ranks,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=1,
        num_max_tokens_per_rank=num_tokens,
    )
