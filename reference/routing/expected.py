"""Exact expectations for uniform routing: every K-subset of the E experts is equally likely.

R ranks, E experts, K top-k, n experts of a rank or pod, q probability that a choice is masked. All
arithmetic is rational; a float appears only in the result.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import comb

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig, whole_number
from reference.counts import ExpectedCounts
from reference.errors import ConfigError


def check_masked_ratio(masked_ratio: float | Fraction) -> Fraction:
    """Return the ratio as the exact fraction that the number stands for.

    Raises:
      ConfigError: not a number of 0 .. 1.
    """
    try:
        ratio = Fraction(masked_ratio.item() if isinstance(masked_ratio, np.generic) else masked_ratio)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError("masked_ratio", masked_ratio, "must be a number from 0 to 1") from None
    if not 0 <= ratio <= 1:
        raise ConfigError("masked_ratio", masked_ratio, "must be a number from 0 to 1")
    return ratio


def check_tokens_per_rank(config: EPConfig, tokens_per_rank: int | Sequence[int]) -> tuple[int, ...]:
    """Return one token count per rank.

    Args:
      config: supplies ep_size and num_max_tokens_per_rank.
      tokens_per_rank: one number for all ranks, or [R].

    Raises:
      ConfigError: the wrong number of counts, a negative one, or one above the capacity.
    """
    if isinstance(tokens_per_rank, int | np.integer):
        tokens_per_rank = (int(tokens_per_rank),) * config.ep_size
    counts = tuple(whole_number(f"tokens_per_rank[{r}]", t, 0) for r, t in enumerate(tokens_per_rank))
    if len(counts) != config.ep_size:
        raise ConfigError("tokens_per_rank", f"{len(counts)} counts", f"ep_size is {config.ep_size}")
    for rank, count in enumerate(counts):
        if count > config.num_max_tokens_per_rank:
            rule = f"must not exceed num_max_tokens_per_rank {config.num_max_tokens_per_rank}"
            raise ConfigError(f"tokens_per_rank[{rank}]", count, rule)
    return counts


def miss_probability(num_experts: int, num_topk: int, group: int, masked: Fraction = Fraction(0)) -> Fraction:
    """Return the probability that a token has no valid choice in a group of experts.

    Source: hypergeometric law; h choices of the group are all masked with probability q^h.
    """
    ways = sum(
        comb(group, h) * comb(num_experts - group, num_topk - h) * masked**h
        for h in range(min(group, num_topk) + 1)
    )
    return Fraction(ways) / comb(num_experts, num_topk)


def single_probability(
    num_experts: int, num_topk: int, group: int, masked: Fraction = Fraction(0)
) -> Fraction:
    """Return the probability that exactly one valid choice falls into a group of experts."""
    ways = sum(
        comb(group, h) * comb(num_experts - group, num_topk - h) * h * (1 - masked) * masked ** (h - 1)
        for h in range(1, min(group, num_topk) + 1)
    )
    return Fraction(ways) / comb(num_experts, num_topk)


def expected_rows(
    config: EPConfig,
    tokens_per_rank: int | Sequence[int],
    *,
    masked_ratio: float | Fraction = 0,
    pod_size: int | None = None,
) -> ExpectedCounts:
    """Return the exact expectation of `count_rows` under uniform routing.

    Args:
      config: group without redundant experts; ranks may hold different numbers of experts.
      tokens_per_rank: one number for all ranks, or [R].
      masked_ratio: probability that a choice is -1, independently of all others.
      pod_size: ranks of a pod (rank r is in pod r // pod_size); None = no pod counts.

    Returns:
      ExpectedCounts, float64.

    Raises:
      ConfigError: redundant experts (their counts depend on the replica rule), or a value out of range.
      Source: deepep-v2.md section 1.6 for masked_ratio 0.
    """
    _refuse_redundant(config)
    tokens = check_tokens_per_rank(config, tokens_per_rank)
    masked = check_masked_ratio(masked_ratio)
    experts, topk = config.num_experts, config.num_topk
    held = config.experts_per_rank()
    miss = {n: miss_probability(experts, topk, n, masked) for n in sorted(set(held.tolist()))}
    single = {n: single_probability(experts, topk, n, masked) for n in miss}
    choices = {n: Fraction(n * topk, experts) * (1 - masked) for n in miss}
    variance = {n: sum(tokens) * p * (1 - p) for n, p in miss.items()}
    per_expert = float(sum(tokens) * Fraction(topk, experts) * (1 - masked))

    return ExpectedCounts(
        num_tokens=np.array(tokens, dtype=np.float64),
        rows=_outer(tokens, held, {n: 1 - p for n, p in miss.items()}),
        single_rows=_outer(tokens, held, single),
        entries=_outer(tokens, held, choices),
        expert_rows=np.full(experts, per_expert),
        pod_size=pod_size,
        pod_rows=None if pod_size is None else _pod_rows(config, tokens, masked, pod_size),
        received_rows_var=np.array([float(variance[n]) for n in held.tolist()]),
        experts_per_rank=held,
        pair_covariances=_pair_covariances(config, masked, miss),
    )


def _refuse_redundant(config: EPConfig) -> None:
    if config.is_redundant:
        rule = "uniform expectations need experts without copies; count a sampled routing instead"
        redundant = config.num_experts - config.num_logical_experts
        raise ConfigError("expert_map", f"{redundant} redundant experts", rule)


def _outer(
    tokens: tuple[int, ...], sizes: npt.NDArray[np.int64], chance: dict[int, Fraction]
) -> npt.NDArray[np.float64]:
    """Return [R, len(sizes)] tokens of a rank times the chance of a size.

    Few factors are distinct, so each product is rounded once from its exact value.
    """
    counts, row = np.unique(np.array(tokens, dtype=np.int64), return_inverse=True)
    kinds, column = np.unique(sizes, return_inverse=True)
    table = [[float(t * chance[n]) for n in kinds.tolist()] for t in counts.tolist()]
    return np.array(table, dtype=np.float64)[np.ix_(row, column)]


def _pod_rows(
    config: EPConfig, tokens: tuple[int, ...], masked: Fraction, pod_size: int
) -> npt.NDArray[np.float64]:
    """Return [R, P] expected distinct (token, pod) pairs."""
    pod_size = whole_number("pod_size", pod_size, 1)
    pods = np.add.reduceat(config.experts_per_rank(), np.arange(0, config.ep_size, pod_size))
    experts, topk = config.num_experts, config.num_topk
    return _outer(
        tokens, pods, {n: 1 - miss_probability(experts, topk, n, masked) for n in set(pods.tolist())}
    )


def _pair_covariances(
    config: EPConfig, masked: Fraction, miss: dict[int, Fraction]
) -> dict[tuple[int, int], float]:
    """Return Cov(reaches a, reaches b) of one token by the two ranks' expert counts.

    Covariance of two events equals that of their complements: P(miss both) - P(miss a) P(miss b).
    """
    sizes = sorted(miss)
    experts, topk = config.num_experts, config.num_topk
    return {
        (a, b): float(miss_probability(experts, topk, a + b, masked) - miss[a] * miss[b])
        for a in sizes
        for b in sizes
        if a <= b and a + b <= experts
    }
