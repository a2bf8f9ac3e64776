"""Routing generators: a text, a seed and token counts give one TopK, the same on every machine.

R ranks, T tokens of a rank, K top-k, E logical experts. Stream keys of a seed: (rank, 0) choices,
(rank, 1) masks, (rank, 2) weights, (rank, 3) replicas, () what all ranks share. So masking or adding
weights leaves the choices as they were, and a rank's tokens do not depend on the other ranks' counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig, whole_number
from reference.errors import ConfigError
from reference.experts.replicas import ReplicaRule, to_physical
from reference.routing.draws import Draws
from reference.routing.expected import check_masked_ratio, check_tokens_per_rank
from reference.routing.skew import (
    inclusion_weights,
    integer_weights,
    lognormal_factors,
    systematic_distinct,
    weighted_distinct,
    zipf_popularity,
)
from reference.routing.unbalanced import find_lift, most_ranks, precise_unbalanced, random_unbalanced
from reference.topk import TopK

Sampler = Callable[[Draws, int], npt.NDArray[np.int32]]
"""(stream, T) -> [K, T] int32 distinct experts."""

# kind -> (how its value is written, least, most); None = takes no value.
ROUTINGS: dict[str, tuple[str, float, float] | None] = {
    "uniform": None,
    "zipf": ("S", 0.0, 8.0),
    "lognormal": ("SIGMA", 0.0, 4.0),
    "unbalanced": ("RATIO", 1.0, 1e6),
    "precise": ("RATIO", 1.0, 1e6),
    "groups": ("GROUPS/CHOSEN", 1.0, 1e6),
}


@dataclass(frozen=True, kw_only=True)
class RoutingSpec:
    """A routing by law instead of by table; `parse_routing` makes it, `text` writes it back.

    Args:
      kind: a key of ROUTINGS.
      values: its numbers: none, one, or (groups, chosen groups).
    """

    kind: str
    values: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """The shortest text that parses to this."""
        if not self.values:
            return self.kind
        return f"{self.kind}:{'/'.join(repr(v).removesuffix('.0') for v in self.values)}"


def parse_routing(text: str) -> RoutingSpec:
    """Read `uniform`, `zipf:1.1`, `lognormal:0.5`, `unbalanced:2`, `precise:1.5` or `groups:8/4`.

    Args:
      text: kind, and after a colon its number. zipf: popularity of the i-th expert is i^-S, which
        expert is i-th depends on the seed. lognormal: each rank's experts share one factor
        exp(SIGMA z). unbalanced, precise: rank 0 receives RATIO times the rows of another rank, in
        expectation or by construction. groups: CHOSEN of GROUPS equal groups, then K experts in them.

    Raises:
      ConfigError: one sentence with what is allowed.
      Source: deepep-v2.md section 5; cases.md G52.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind not in ROUTINGS:
        known = ", ".join(f"{k}:{v[0]}" if v else k for k, v in ROUTINGS.items())
        raise ConfigError("routing", text, f"must be one of {known}")
    form = ROUTINGS[kind]
    if form is None:
        if colon:
            raise ConfigError("routing", text, f"{kind} takes no value")
        return RoutingSpec(kind=kind)
    parts = rest.split("/")
    if len(parts) != form[0].count("/") + 1 or not all(parts):
        raise ConfigError("routing", text, f"must have the form {kind}:{form[0]}")
    values = tuple(_number(text, part, form[1], form[2]) for part in parts)
    if kind == "groups" and (any(v != int(v) for v in values) or values[1] > values[0]):
        raise ConfigError("routing", text, "groups must be whole numbers, the chosen ones no more than all")
    return RoutingSpec(kind=kind, values=values)


def _number(text: str, part: str, least: float, most: float) -> float:
    try:
        value = float(part)
    except ValueError:
        raise ConfigError("routing", text, f"{part!r} is not a number") from None
    if not least <= value <= most:
        raise ConfigError("routing", text, f"the number must lie between {least:g} and {most:g}")
    return value


def stepped_token_counts(num_tokens: int, ep_size: int) -> tuple[int, ...]:
    """Return [R] token counts of the upstream tests: rank r has max(1, num_tokens - r).

    Source: deepep-v2.md section 5, deepep-ascend.md section 5.2.
    """
    whole_number("num_tokens", num_tokens, 1)
    return tuple(max(1, num_tokens - rank) for rank in range(ep_size))


def generate_topk(
    config: EPConfig,
    routing: str | RoutingSpec,
    *,
    tokens_per_rank: int | Sequence[int],
    seed: int = 0,
    masked_ratio: float | Fraction = 0.0,
    with_weights: bool = False,
    replica_rule: ReplicaRule = "token",
) -> TopK:
    """Sample a routing.

    Args:
      config: the group. With redundant experts, logical ones are drawn and then mapped to copies.
      routing: see `parse_routing`.
      tokens_per_rank: one number for all ranks, or [R].
      seed: whole number; same seed, same TopK on every machine.
      masked_ratio: chance that a choice becomes -1, independently (to a multiple of 2^-32).
      with_weights: add weights, multiples of 2^-24 in (0, 1]; a masked one is 0.
      replica_rule: see `replicas.to_physical`.

    Raises:
      ConfigError: a value is out of range, or the group cannot have this routing.
    """
    spec = parse_routing(routing) if isinstance(routing, str) else routing
    seed = whole_number("seed", seed, 0)
    sampler = _sampler(config, spec, seed)
    return _sample(config, sampler, tokens_per_rank, seed, masked_ratio, with_weights, replica_rule)


def sample_loads(
    config: EPConfig,
    loads: npt.ArrayLike,
    *,
    tokens_per_rank: int | Sequence[int],
    seed: int = 0,
    masked_ratio: float | Fraction = 0.0,
    with_weights: bool = False,
    replica_rule: ReplicaRule = "token",
) -> TopK:
    """Sample a routing whose expected load per expert has the proportions of a histogram.

    Matched: the probability that a token chooses an expert, exactly, as long as K * load / total is at
    most 1 (a larger one becomes 1). Not matched: which experts go together; they are near independent.

    Args:
      config: the group.
      loads: [E] load of each logical expert, any unit.
      tokens_per_rank: this and the following as in `generate_topk`.
      seed: whole number.
      masked_ratio: chance that a choice becomes -1.
      with_weights: add weights.
      replica_rule: see `replicas.to_physical`.

    Raises:
      ConfigError: as `generate_topk`, or loads that are no histogram of this group.
    """
    histogram = check_loads(config, loads)
    shares = inclusion_weights(histogram, config.num_topk)
    seed = whole_number("seed", seed, 0)

    def sampler(draws: Draws, count: int) -> npt.NDArray[np.int32]:
        return systematic_distinct(draws, shares, config.num_topk, count)

    return _sample(config, sampler, tokens_per_rank, seed, masked_ratio, with_weights, replica_rule)


def check_loads(config: EPConfig, loads: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return [E] float64 loads of the logical experts.

    Raises:
      ConfigError: wrong length, or a load that is negative, infinite or not a number.
    """
    try:
        histogram = np.asarray(loads)
    except ValueError:
        raise ConfigError("loads", "nested", "must be one list of numbers") from None
    # Whole numbers beyond 64 bits come as Python objects.
    if histogram.dtype.kind not in "iuf" or histogram.ndim != 1:
        raise ConfigError("loads", f"{histogram.ndim}-d {histogram.dtype}", "must be one list of numbers")
    if histogram.size != config.num_logical_experts:
        rule = f"the group has {config.num_logical_experts} logical experts"
        raise ConfigError("loads", f"{histogram.size} experts", rule)
    histogram = histogram.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(histogram) & (histogram >= 0)))
    if bad.size:
        raise ConfigError(f"loads[{bad[0]}]", float(histogram[bad[0]]), "must be finite and not negative")
    return histogram


def _sample(
    config: EPConfig,
    sampler: Sampler,
    tokens_per_rank: int | Sequence[int],
    seed: int,
    masked_ratio: float | Fraction,
    with_weights: bool,
    replica_rule: ReplicaRule,
) -> TopK:
    tokens = check_tokens_per_rank(config, tokens_per_rank)
    ratio = float(check_masked_ratio(masked_ratio))
    ids: list[npt.NDArray[np.int64]] = []
    weights: list[npt.NDArray[np.float32]] = []
    for rank, count in enumerate(tokens):
        columns = sampler(Draws(seed, rank, 0), count)
        idx = columns.T.astype(np.int64, order="C")  # [T, K]
        if ratio:
            idx[Draws(seed, rank, 1).coins(ratio, idx.size).reshape(idx.shape)] = -1
        if with_weights:
            lanes = (Draws(seed, rank, 2).lanes32(idx.size) >> np.uint32(8)).reshape(idx.shape)
            weights.append(np.where(idx < 0, 0, (lanes + 1) * np.float64(2.0**-24)).astype(np.float32))
        ids.append(idx)
    topk = TopK(
        num_experts=config.num_logical_experts,
        topk_idx=tuple(ids),
        topk_weights=tuple(weights) if with_weights else None,
        id_space="logical" if config.is_redundant else "physical",
    )
    return to_physical(config, topk, rule=replica_rule, seed=seed) if config.is_redundant else topk


def _sampler(config: EPConfig, spec: RoutingSpec, seed: int) -> Sampler:
    """Return the sampler of a routing after checking that the group can have it."""
    width, experts = config.num_topk, config.num_logical_experts
    # A weightless skew is the uniform routing itself, bit for bit (cases.md G52).
    flat = spec.kind in ("zipf", "lognormal") and spec.values[0] == 0
    if spec.kind == "uniform" or flat or (spec.kind == "unbalanced" and spec.values[0] == 1):
        return lambda draws, count: draws.distinct(experts, width, count)
    if spec.kind in ("zipf", "lognormal"):
        weights = _weights(config, spec, Draws(seed))
        return lambda draws, count: weighted_distinct(draws, weights, width, count)
    if spec.kind == "groups":
        return _group_sampler(config, spec)
    return _unbalanced_sampler(config, spec)


def _homes(config: EPConfig) -> npt.NDArray[np.int64]:
    """Return [E] int64: the rank of each logical expert, of its first copy if it has several."""
    ranks = config.expert_ranks()
    if config.expert_map is None:
        return ranks
    return ranks[[copies[0] for copies in config.expert_map.copies()]]


def _weights(config: EPConfig, spec: RoutingSpec, shared: Draws) -> npt.NDArray[np.int64]:
    """Return [E] int64 popularity of each logical expert."""
    if spec.kind == "zipf":
        popularity = zipf_popularity(config.num_logical_experts, spec.values[0])
        place = shared.permutation(config.num_logical_experts)
        return integer_weights([popularity[p] for p in place.tolist()])
    factors = lognormal_factors(shared, config.ep_size, spec.values[0])
    return integer_weights([factors[r] for r in _homes(config).tolist()])


def _group_sampler(config: EPConfig, spec: RoutingSpec) -> Sampler:
    """Choose groups uniformly, then experts uniformly within them."""
    groups, chosen = int(spec.values[0]), int(spec.values[1])
    experts, width = config.num_logical_experts, config.num_topk
    if experts % groups:
        raise ConfigError("routing", spec.text, f"the {experts} experts must split into equal groups")
    each = experts // groups
    if width > chosen * each:
        rule = f"{chosen} groups hold {chosen * each} experts, fewer than top-{width}"
        raise ConfigError("routing", spec.text, rule)

    def sampler(draws: Draws, count: int) -> npt.NDArray[np.int32]:
        picked = draws.distinct(groups, chosen, count)
        within = draws.distinct(chosen * each, width, count)
        group = np.take_along_axis(picked, within // each, axis=0)
        return (group * each + within % each).astype(np.int32)

    return sampler


def _unbalanced_sampler(config: EPConfig, spec: RoutingSpec) -> Sampler:
    ratio, width, homes = spec.values[0], config.num_topk, _homes(config)
    held = np.bincount(homes, minlength=config.ep_size).tolist()
    if config.ep_size == 1:
        raise ConfigError("routing", spec.text, "a hot rank needs at least 2 ranks")
    if spec.kind == "unbalanced":
        if not held[0]:
            raise ConfigError("routing", spec.text, "rank 0 holds no expert that could be hot")
        lift = find_lift(homes.size, width, held, ratio)
        return lambda draws, count: random_unbalanced(draws, homes, width, count, lift)
    if len(set(held)) > 1:
        raise ConfigError("routing", spec.text, "needs the same number of experts on every rank")
    most = min(width, config.ep_size, most_ranks(config.ep_size, ratio))
    if -(-width // held[0]) > most:
        rule = f"a token may reach {most} ranks of {held[0]} experts, too few for top-{width}"
        raise ConfigError("routing", spec.text, rule)
    return lambda draws, count: precise_unbalanced(draws, homes, config.ep_size, width, count, ratio)
