"""The fixed numbers of one expert-parallel group.

R ranks, E experts (physical: the slots that hold weights), K top-k, H hidden, M token capacity of a rank.
"""

import operator
from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError


def whole_number(field: str, value: object, least: int) -> int:
    """Return `value` as an int of at least `least`.

    Args:
      field: name that an error shows.
      value: anything; a bool or a float is refused, a NumPy integer is taken.
      least: smallest legal value.

    Raises:
      ConfigError: not a whole number, or below `least`.
    """
    rule = f"must be a whole number of at least {least}"
    if isinstance(value, bool | np.bool_):
        raise ConfigError(field, value, rule)
    try:
        number = operator.index(cast("int", value))
    except TypeError:
        raise ConfigError(field, value, rule) from None
    if number < least:
        raise ConfigError(field, number, rule)
    return number


@dataclass(frozen=True, kw_only=True)
class ExpertMap:
    """Where physical experts live, and which logical expert each one is a copy of.

    Args:
      expert_ranks: [E] rank of each physical expert.
      logical_ids: [E] logical expert of each physical one; None = every expert exists once, under
        its own number. Logical ids are 0 .. n-1 and each has at least one copy.

    Raises:
      ConfigError: lengths differ, a rank or id is no whole number, or a logical expert has no copy.
    """

    expert_ranks: tuple[int, ...]
    logical_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check both columns against each other."""
        ranks = tuple(whole_number(f"expert_ranks[{e}]", r, 0) for e, r in enumerate(self.expert_ranks))
        object.__setattr__(self, "expert_ranks", ranks)
        if not ranks:
            raise ConfigError("expert_ranks", ranks, "must name the rank of at least one expert")
        if self.logical_ids is None:
            return
        ids = tuple(whole_number(f"logical_ids[{e}]", i, 0) for e, i in enumerate(self.logical_ids))
        object.__setattr__(self, "logical_ids", ids)
        if len(ids) != len(ranks):
            raise ConfigError("logical_ids", len(ids), f"expert_ranks has {len(ranks)} entries")
        missing = sorted(set(range(max(ids) + 1)) - set(ids))
        if missing:
            raise ConfigError("logical_ids", ids, f"logical expert {missing[0]} has no physical copy")

    @property
    def num_logical_experts(self) -> int:
        """Experts that the gate chooses from; fewer than physical ones when some are redundant."""
        return len(self.expert_ranks) if self.logical_ids is None else max(self.logical_ids) + 1

    @property
    def num_wasted_replicas(self) -> int:
        """Copies that share a rank with another copy of the same logical expert: legal, but of no use.

        Source: cases.md G43.
        """
        if self.logical_ids is None:
            return 0
        places = Counter(zip(self.logical_ids, self.expert_ranks, strict=True))
        return sum(count - 1 for count in places.values())

    def copies(self) -> tuple[tuple[int, ...], ...]:
        """Return, per logical expert, its physical experts in ascending order."""
        found: list[list[int]] = [[] for _ in range(self.num_logical_experts)]
        for physical, logical in enumerate(self.logical_ids or range(len(self.expert_ranks))):
            found[logical].append(physical)
        return tuple(tuple(slots) for slots in found)


@dataclass(frozen=True, kw_only=True)
class EPConfig:
    """The fixed numbers of one EP group; every rank has the same ones.

    Args:
      ep_size: R, ranks of the group.
      num_experts: E, physical experts of the whole group. Without a map, expert e lives on rank
        e // (E / R).
      num_topk: K, experts that a token chooses.
      hidden: H, elements of a token.
      num_max_tokens_per_rank: M, token capacity of a rank; a rank may send fewer.
      expert_alignment: rows to which each expert's block of received rows is padded.
      expert_map: placement and redundancy when the rule above does not hold.

    Raises:
      ConfigError: a number is out of range, R does not divide E (no map), or the map does not fit.
    """

    ep_size: int
    num_experts: int
    num_topk: int
    hidden: int
    num_max_tokens_per_rank: int
    expert_alignment: int = 1
    expert_map: ExpertMap | None = None

    def __post_init__(self) -> None:
        """Check every field, then how they fit together."""
        for field, value in vars(self).items():
            if field != "expert_map":
                object.__setattr__(self, field, whole_number(field, value, 1))
        if self.expert_map is None and self.num_experts % self.ep_size:
            raise ConfigError("num_experts", self.num_experts, f"ep_size {self.ep_size} must divide it")
        if self.expert_map is not None:
            self._check_map(self.expert_map)
        if self.num_topk > self.num_logical_experts:
            rule = f"must not exceed the {self.num_logical_experts} experts to choose from"
            raise ConfigError("num_topk", self.num_topk, rule)

    def _check_map(self, expert_map: ExpertMap) -> None:
        if len(expert_map.expert_ranks) != self.num_experts:
            rule = f"must have one entry per physical expert, num_experts = {self.num_experts}"
            raise ConfigError("expert_map.expert_ranks", len(expert_map.expert_ranks), rule)
        for expert, rank in enumerate(expert_map.expert_ranks):
            if rank >= self.ep_size:
                rule = f"must be below ep_size {self.ep_size}"
                raise ConfigError(f"expert_map.expert_ranks[{expert}]", rank, rule)

    @property
    def num_logical_experts(self) -> int:
        """Experts that the gate chooses from."""
        return self.num_experts if self.expert_map is None else self.expert_map.num_logical_experts

    @property
    def is_redundant(self) -> bool:
        """Whether some logical expert has more than one physical copy."""
        return self.num_logical_experts < self.num_experts

    def expert_ranks(self) -> npt.NDArray[np.int64]:
        """Return [E] int64: the rank that holds each physical expert."""
        if self.expert_map is not None:
            return np.array(self.expert_map.expert_ranks, dtype=np.int64)
        return np.arange(self.num_experts, dtype=np.int64) // (self.num_experts // self.ep_size)

    def experts_per_rank(self) -> npt.NDArray[np.int64]:
        """Return [R] int64: how many physical experts each rank holds."""
        return np.bincount(self.expert_ranks(), minlength=self.ep_size).astype(np.int64)
