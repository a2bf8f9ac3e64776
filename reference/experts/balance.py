"""Where expert copies live: how many copies of each expert, and which rank holds which.

E logical experts, P physical copies (P >= E), R ranks with S = P / R slots each. The scheme is that of
EPLB: spare slots go one by one to the expert with the largest load per copy, then copies are packed onto
ranks of equal size, heaviest first. Every tie goes to the lower number, so equal loads give equal maps.
"""

import sys
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from reference.config import ExpertMap, whole_number
from reference.errors import ConfigError

Loads = npt.NDArray[np.float64]
BalancePolicy = Literal["auto", "global", "hierarchical"]
"""hierarchical: an expert group stays within one server, and so do the copies of its experts; global:
copies go anywhere; auto: hierarchical where the groups divide by the servers, else global."""

AT_MOST = f"must be at most {sys.float_info.max:.3g}, the largest float64"
BALANCE_POLICIES: tuple[str, ...] = get_args(BalancePolicy)


def load_array(loads: npt.ArrayLike) -> Loads:
    """Return loads as [E] float64.

    Args:
      loads: [E] tokens of each logical expert, in any unit.

    Raises:
      ConfigError: not one row of finite numbers of at least 0 with a finite sum.
    """
    try:
        array = np.array(loads, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError("loads", type(loads).__name__, "must be numbers, one per expert") from None
    except OverflowError:
        raise _too_large(loads) from None
    if array.ndim != 1 or not array.size:
        raise ConfigError("loads", array.shape, "must be one row with a number per expert")
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        expert = int(np.argmax(bad))
        raise ConfigError(f"loads[{expert}]", float(array[expert]), "must be finite and at least 0")
    with np.errstate(over="ignore"):
        total = array.sum()
    if not np.isfinite(total):
        expert = int(np.argmax(array))
        raise ConfigError(f"loads[{expert}]", float(array[expert]), f"the sum of all loads {AT_MOST}")
    return array


def _too_large(loads: npt.ArrayLike) -> ConfigError:
    """Return the refusal of the first whole number that no float64 holds."""
    for expert, load in enumerate(np.array(loads, dtype=object).ravel().tolist()):
        if isinstance(load, int) and load.bit_length() >= sys.float_info.max_exp:
            return ConfigError(f"loads[{expert}]", f"an integer of {load.bit_length()} bits", AT_MOST)
    return ConfigError("loads", type(loads).__name__, f"each {AT_MOST}")


def replica_counts(
    loads: npt.ArrayLike, num_physical_experts: int, *, max_copies: int | None = None
) -> npt.NDArray[np.int64]:
    """Decide how many copies each expert gets: the heaviest copy is split until no slot is left.

    No other choice of counts has a lighter heaviest copy (unless max_copies binds).

    Args:
      loads: [E] tokens of each logical expert; a copy carries an equal part of its expert's load.
      num_physical_experts: P, copies in all.
      max_copies: of one expert; None = no limit.

    Returns:
      [E] int64, at least 1 each, sum P. Among equal loads the expert with fewer copies is split first,
      then the lower number.

    Raises:
      ConfigError: fewer slots than experts, or more than max_copies allows.
    """
    weights = load_array(loads)
    slots = whole_number("num_physical_experts", num_physical_experts, len(weights))
    limit = slots if max_copies is None else whole_number("max_copies", max_copies, 1)
    if slots > limit * len(weights):
        rule = f"{len(weights)} experts of at most {limit} copies fill {limit * len(weights)} slots"
        raise ConfigError("num_physical_experts", slots, rule)
    counts = np.ones(len(weights), dtype=np.int64)
    for _ in range(slots - len(weights)):
        per_copy = np.where(counts < limit, weights / counts, -1.0)
        heaviest = np.flatnonzero(per_copy == per_copy.max())
        counts[heaviest[np.argmin(counts[heaviest])]] += 1
    return counts


def pack_copies(weights: npt.ArrayLike, copies: Sequence[int], num_bins: int) -> list[list[int]]:
    """Spread copies over bins of equal size, so that the heaviest bin is light.

    Two copies of an item share a bin only where it has more copies than there are bins. The heaviest bin
    exceeds the mean by at most the difference between the heaviest and the lightest copy.

    Args:
      weights: [N] load of one copy of each item.
      copies: [N] how many copies each item has; num_bins divides their sum.
      num_bins: bins.

    Returns:
      per bin its items in ascending order, with repeats.

    Raises:
      ConfigError: lengths differ, or num_bins does not divide the copies.
    """
    load = load_array(weights)
    counts = [whole_number(f"copies[{i}]", c, 1) for i, c in enumerate(copies)]
    bins = whole_number("num_bins", num_bins, 1)
    if len(counts) != len(load):
        raise ConfigError("copies", len(counts), f"weights has {len(load)} entries")
    if sum(counts) % bins:
        raise ConfigError("copies", sum(counts), f"num_bins {bins} must divide their number")
    heaviest_first = sorted(range(len(counts)), key=lambda item: (-load[item], item))
    greedy = _pack_lightest(load, counts, heaviest_first, bins)
    dealt: list[list[int]] = [[] for _ in range(bins)]
    for position, item in enumerate(i for i in heaviest_first for _ in range(counts[i])):
        dealt[position % bins].append(item)
    # Greedy packing is better nearly always, but only dealing has the bound that is promised above.
    return [sorted(items) for items in _lighter(load, greedy, dealt)]


def _lighter(load: Loads, first: list[list[int]], second: list[list[int]]) -> list[list[int]]:
    """Return the plan whose heaviest bin is lighter, the first when they are equal."""
    peaks = [max(_bin_load(load, items) for items in plan) for plan in (first, second)]
    return first if peaks[0] <= peaks[1] else second


def _bin_load(load: Loads, items: Sequence[int]) -> float:
    """Sum in one order, so that equal bins have equal loads."""
    return float(sum(load[i] for i in sorted(items)))


def _pack_lightest(load: Loads, counts: list[int], order: list[int], num_bins: int) -> list[list[int]]:
    """Give each item, in order, to the lightest bins that leave room for distinct places of the rest."""
    # Copies beyond one per bin cannot avoid each other: full rounds of them count as items of their own.
    pieces = []
    for item in order:
        rounds, rest = divmod(counts[item], num_bins)
        pieces += [(item, num_bins)] * rounds + ([(item, rest)] if rest else [])
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    filled = np.zeros(num_bins)
    room = np.full(num_bins, sum(counts) // num_bins, dtype=np.int64)
    sizes = [size for _, size in pieces]
    for number, (item, size) in enumerate(pieces):
        chosen = _choose_bins(filled, room, size, sizes[number + 1 :])
        for place in chosen:
            bins[place].append(item)
        filled[chosen] += load[item]
        room[chosen] -= 1
    return bins


def _choose_bins(filled: Loads, room: npt.NDArray[np.int64], size: int, rest: list[int]) -> list[int]:
    """Return the lightest `size` bins after which pieces of sizes `rest` still find distinct bins."""
    open_bins = [int(b) for b in np.lexsort((np.arange(len(room)), filled)) if room[b]]
    by_room = sorted(open_bins, key=lambda b: -room[b])  # stable: lightest first among equals
    # Taking the emptiest bins always works; take as few of them for that reason alone as will do.
    for forced in range(size + 1):
        chosen = by_room[:forced]
        chosen += [b for b in open_bins if b not in chosen][: size - forced]
        after = room.copy()
        after[chosen] -= 1
        if _fits(rest, after):
            return chosen
    raise AssertionError(f"no {size} bins with room {room.tolist()} leave space for pieces {rest}")


def _fits(sizes: list[int], room: npt.NDArray[np.int64]) -> bool:
    """Whether pieces that each need distinct bins can fill `room` exactly (Gale and Ryser)."""
    need = np.cumsum(sorted(sizes, reverse=True))
    have = np.cumsum(np.bincount(room, minlength=len(sizes) + 1)[::-1])[::-1]  # bins with at least j room
    offered = np.cumsum(have[1 : len(sizes) + 1])
    return bool((need <= offered).all()) and int(room.sum()) == sum(sizes)


def balance_experts(
    loads: npt.ArrayLike,
    *,
    ep_size: int,
    num_physical_experts: int,
    num_groups: int = 1,
    num_servers: int = 1,
    policy: BalancePolicy = "auto",
    avoid_waste: bool = False,
) -> ExpertMap:
    """Place experts and their redundant copies by load.

    Args:
      loads: [E] tokens of each logical expert.
      ep_size: R, divides P.
      num_physical_experts: P. Physical expert p is slot p % S of rank p // S; the slots of a rank
        are in ascending order of logical expert.
      num_groups: of the gate; group g holds the g-th equal part of the experts.
      num_servers: server s holds the s-th equal part of the ranks.
      policy: see `BalancePolicy`.
      avoid_waste: no expert gets more copies than the ranks it may be on.

    Returns:
      the identity if nothing is redundant and no placement has a lower peak. Source: cases.md G43, G44.

    Raises:
      ConfigError: a number is out of range or does not divide another.
    """
    weights, size = load_array(loads), whole_number("ep_size", ep_size, 1)
    slots = whole_number("num_physical_experts", num_physical_experts, len(weights))
    if slots % size:
        raise ConfigError("num_physical_experts", slots, f"ep_size {size} must divide it")
    servers = _num_servers(len(weights), size, num_groups, num_servers, policy)
    ranks: list[list[int]] = []
    for experts in _experts_of_servers(weights, num_groups if servers > 1 else 1, servers):
        limit = size // servers if avoid_waste else None
        ranks += _ranks_of_server(weights, experts, size // servers, slots // servers, limit)
    if slots == len(weights):
        ranks = _lighter(weights, np.arange(slots).reshape(size, -1).tolist(), ranks)
    return _expert_map(ranks)


def _expert_map(ranks: list[list[int]]) -> ExpertMap:
    return ExpertMap(
        expert_ranks=tuple(rank for rank, items in enumerate(ranks) for _ in items),
        logical_ids=tuple(item for items in ranks for item in items),
    )


def _ranks_of_server(
    weights: Loads, experts: npt.NDArray[np.int64], num_ranks: int, num_slots: int, max_copies: int | None
) -> list[list[int]]:
    """Replicate and pack the experts of one server; return each rank's experts, ascending."""
    counts = replica_counts(weights[experts], num_slots, max_copies=max_copies)
    packed = pack_copies(weights[experts] / counts, counts.tolist(), num_ranks)
    return [[int(experts[i]) for i in items] for items in packed]


def _num_servers(
    num_experts: int, ep_size: int, num_groups: int, num_servers: int, policy: BalancePolicy
) -> int:
    """Return the servers that bound where an expert's copies may be; 1 = global."""
    if policy not in BALANCE_POLICIES:
        raise ConfigError("policy", policy, f"must be one of {', '.join(BALANCE_POLICIES)}")
    groups = whole_number("num_groups", num_groups, 1)
    servers = whole_number("num_servers", num_servers, 1)
    if num_experts % groups:
        raise ConfigError("num_groups", groups, f"must divide the {num_experts} experts")
    if ep_size % servers:
        raise ConfigError("num_servers", servers, f"must divide ep_size {ep_size}")
    if policy == "hierarchical" and groups % servers:
        raise ConfigError("num_groups", groups, f"num_servers {servers} must divide it to be hierarchical")
    return 1 if policy == "global" or groups % servers else servers


def _experts_of_servers(weights: Loads, num_groups: int, num_servers: int) -> list[npt.NDArray[np.int64]]:
    """Pack whole groups onto servers; return each server's experts, ascending."""
    members = np.arange(len(weights)).reshape(num_groups, -1)
    packed = pack_copies(weights.reshape(num_groups, -1).sum(axis=1), [1] * num_groups, num_servers)
    return [members[groups].ravel() for groups in packed]


def copies_table(expert_map: ExpertMap) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the map from logical to physical experts in the form that gates use.

    Args:
      expert_map: any; its `logical_ids` are the way back.

    Returns:
      [E, most copies] int64 physical experts of each logical one, ascending, then -1; [E] int64 copies.
    """
    copies = expert_map.copies()
    counts = np.array([len(slots) for slots in copies], dtype=np.int64)
    table = np.full((len(copies), counts.max()), -1, dtype=np.int64)
    for logical, slots in enumerate(copies):
        table[logical, : len(slots)] = slots
    return table, counts
