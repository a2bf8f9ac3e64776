"""Redundant experts: which physical copy serves a token's logical expert."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.errors import ConfigError
from reference.routing.draws import Draws
from reference.topk import TopK

ReplicaRule = Literal["token", "source", "random", "first", "last"]
"""token: copy (source rank + token) mod copies; source: source rank mod copies; random: each equally
likely; first and last: always the same one (the two bad rules of cases.md G46)."""

REPLICA_RULES: tuple[str, ...] = get_args(ReplicaRule)
_STREAM = 3


def to_physical(config: EPConfig, topk: TopK, *, rule: ReplicaRule = "token", seed: int = 0) -> TopK:
    """Replace each logical expert by one of its physical copies.

    A token names a logical expert at most once, so it never gets two copies of one.

    Args:
      config: supplies the expert map; without one, ids keep their numbers.
      topk: routing in logical ids; a physical one is refused, so that no map is applied twice.
      rule: how to choose among copies.
      seed: for rule "random".

    Raises:
      ConfigError: the ids are physical already, of another number of experts, or the rule is unknown.
      Source: cases.md G43-G46.
    """
    if rule not in REPLICA_RULES:
        raise ConfigError("replica_rule", rule, f"must be one of {', '.join(REPLICA_RULES)}")
    if topk.id_space != "logical":
        raise ConfigError("id_space", topk.id_space, "the map from logical to physical is applied once")
    if topk.num_experts != config.num_logical_experts:
        rule_text = f"the config has {config.num_logical_experts} logical experts"
        raise ConfigError("topk_idx.num_experts", topk.num_experts, rule_text)
    if config.expert_map is None:
        physical = topk.topk_idx
    else:
        copies = config.expert_map.copies()
        table = np.array([(c * max(map(len, copies)))[: max(map(len, copies))] for c in copies])
        counts = np.array([len(c) for c in copies])
        physical = tuple(
            _choose(Draws(seed, rank, _STREAM), rank, idx, table, counts, rule)
            for rank, idx in enumerate(topk.topk_idx)
        )
    return TopK(num_experts=config.num_experts, topk_idx=physical, topk_weights=topk.topk_weights)


def _choose(
    draws: Draws,
    rank: int,
    idx: npt.NDArray[np.int64],
    table: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    rule: ReplicaRule,
) -> npt.NDArray[np.int64]:
    copies = counts[idx]  # [T, K]; a masked id reads some expert's count and is restored below
    if rule == "random":
        lanes = draws.lanes32(idx.size).reshape(idx.shape).astype(np.uint64)
        copy = (lanes * copies.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    elif rule == "token":
        copy = (rank + np.arange(idx.shape[0])[:, None]) % copies
    elif rule == "source":
        copy = rank % copies
    else:
        copy = np.zeros_like(idx) if rule == "first" else copies - 1
    return np.where(idx >= 0, table[idx, copy], -1)
