"""What a routing asks of a group: load, imbalance, and what limits would refuse or drop."""

from dataclasses import dataclass

from epsim.errors import InputError
from epsim.inputs.routed import distinct_ranks
from reference.config import EPConfig
from reference.counts import Counts
from reference.edition import EditionName, find_edition
from reference.memory.limits import MAX_AIVS, Limit, limits
from reference.memory.sizes import Dtype, align
from reference.plan import count_rows
from reference.topk import TopK


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What a limit on rows would drop.

    Args:
      limit: rows of each expert, or of each rank.
      num_rows: rows beyond it, over all.
      share: of all rows.
      worst: the expert or rank with the most rows beyond it; None = nothing is dropped.
    """

    limit: int
    num_rows: int
    share: float
    worst: int | None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Load of a routing. A choice is a (token, expert) pair; a row is a distinct (token, rank) pair.

    Args:
      ep_size, num_experts, num_topk, expert_alignment: the group.
      tokens_per_rank: [R] tokens.
      expert_choices: [E] choices of each expert.
      received_rows: [R] rows that reach each rank, its own included.
      sent_rows: [R] rows that each rank sends, to itself included.
      expanded_rows: [R] choices whose expert the rank holds.
      aligned_rows: [R] the same, each expert's block padded.
      active_experts: [R] experts of the rank that any token chose (cases.md G51).
      expert_imbalance: busiest expert over the mean; 0.0 without choices.
      rank_imbalance: received rows of the busiest rank over the mean.
      masked_share: choices that are -1.
      num_idle_tokens: tokens without any expert.
      local_share: rows that stay on their rank.
      distinct_ranks: [K+1] tokens by the number of ranks that they reach.
      mean_distinct_ranks: the mean of that (cases.md G51).
      multi_hit_share: rows with several experts on their rank: what deduplication saves.
      expert_drop: what `expert_limit` would drop; None = not asked.
      rank_drop: what `rank_limit` would drop; None = not asked.
      limits: see `edition_limits`.
      notes: what to know of the routing before its numbers.
    """

    ep_size: int
    num_experts: int
    num_topk: int
    expert_alignment: int
    tokens_per_rank: tuple[int, ...]
    expert_choices: tuple[int, ...]
    received_rows: tuple[int, ...]
    sent_rows: tuple[int, ...]
    expanded_rows: tuple[int, ...]
    aligned_rows: tuple[int, ...]
    active_experts: tuple[int, ...]
    expert_imbalance: float
    rank_imbalance: float
    masked_share: float
    num_idle_tokens: int
    local_share: float
    distinct_ranks: tuple[int, ...]
    mean_distinct_ranks: float
    multi_hit_share: float
    expert_drop: Dropped | None
    rank_drop: Dropped | None
    limits: tuple[Limit, ...]
    notes: tuple[str, ...] = ()


def edition_limits(
    config: EPConfig, counts: Counts, *, edition: EditionName, dtype: Dtype, num_aivs: int
) -> tuple[Limit, ...]:
    """Return what an edition's library refuses of a group that the reference covers, or comes close to.

    Args:
      config: the group.
      counts: rows of its routing.
      edition: of the library; only those of DeepEP-Ascend are known.
      dtype: of dispatch.
      num_aivs: vector cores of the kernels.
    """
    if not find_edition(edition).has_gather_idx:
        return ()
    return tuple(limits(config, num_aivs=num_aivs, dtype=dtype, counts=counts))


def inspect_routing(
    config: EPConfig,
    topk: TopK,
    *,
    edition: EditionName = "ascend",
    dtype: Dtype = "fp8",
    num_aivs: int = MAX_AIVS,
    expert_limit: int | None = None,
    rank_limit: int | None = None,
    notes: tuple[str, ...] = (),
) -> Inspection:
    """Count a routing.

    Args:
      config: the group.
      topk: routing in physical ids.
      edition: whose limits.
      dtype: of dispatch, for the limits.
      num_aivs: vector cores of the kernels, for the limits.
      expert_limit: choices that an expert would take; None = all.
      rank_limit: received rows that a rank would take; None = all.
      notes: to be passed on.

    Raises:
      ConfigError: the routing does not fit the group.
      InputError: a limit is below 0.
    """
    counts = count_rows(config, topk)
    choices = counts.expert_rows
    reached = distinct_ranks(config, topk)
    num_rows, num_choices = int(counts.rows.sum()), int(choices.sum())
    places = sum(idx.size for idx in topk.topk_idx)
    return Inspection(
        ep_size=config.ep_size,
        num_experts=config.num_experts,
        num_topk=config.num_topk,
        expert_alignment=config.expert_alignment,
        tokens_per_rank=topk.tokens_per_rank,
        expert_choices=tuple(choices.tolist()),
        received_rows=tuple(counts.received_rows.tolist()),
        sent_rows=tuple(counts.sent_rows.tolist()),
        expanded_rows=tuple(counts.expanded_rows.tolist()),
        aligned_rows=_aligned(config, choices.tolist()),
        active_experts=tuple(counts.active_experts(config).tolist()),
        expert_imbalance=float(choices.max() / choices.mean()) if num_choices else 0.0,
        rank_imbalance=counts.peak_over_mean,
        masked_share=1 - num_choices / places if places else 0.0,
        num_idle_tokens=int(reached[0]),
        local_share=float(counts.local_rows.sum()) / num_rows if num_rows else 0.0,
        distinct_ranks=tuple(reached.tolist()),
        mean_distinct_ranks=counts.mean_distinct_ranks,
        multi_hit_share=float(counts.multi_hit_rows.sum()) / num_rows if num_rows else 0.0,
        expert_drop=_dropped("expert limit", choices.tolist(), expert_limit),
        rank_drop=_dropped("rank limit", counts.received_rows.tolist(), rank_limit),
        limits=edition_limits(config, counts, edition=edition, dtype=dtype, num_aivs=num_aivs),
        notes=notes,
    )


def _aligned(config: EPConfig, choices: list[int]) -> tuple[int, ...]:
    """Return [R] expanded rows with each expert's block padded."""
    rows = [0] * config.ep_size
    for rank, load in zip(config.expert_ranks().tolist(), choices, strict=True):
        rows[rank] += align(load, config.expert_alignment)
    return tuple(rows)


def _dropped(field: str, loads: list[int], limit: int | None) -> Dropped | None:
    if limit is None:
        return None
    if limit < 0:
        raise InputError(field, limit, "must not be negative")
    beyond = [max(0, load - limit) for load in loads]
    return Dropped(
        limit=limit,
        num_rows=sum(beyond),
        share=sum(beyond) / sum(loads) if sum(loads) else 0.0,
        worst=beyond.index(max(beyond)) if any(beyond) else None,
    )
