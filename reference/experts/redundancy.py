"""Redundant experts beside fixed originals: where the copies go, their weights out, their gradients back.

R ranks, L local experts of a rank, E = R L experts, C redundant slots of a rank. An original stays at home:
expert e is local expert e % L of rank e // L. The redundancy mapping [R, C] int32 names, for each slot of
each rank, the expert whose copy it holds, -1 = empty. Ranks are those of the domain that exchanges
weights, and all ranks hold the same mapping.

Source: deepep-ascend.md section 1.3 names the two calls; what the mapping means is our reading of the
public NVIDIA V2.5 test of `lb_prefetch_weights` (shape, -1 = slot left untouched, never a copy beside its
original). The Ascend kernels are not written yet.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.config import ExpertMap, whole_number
from reference.errors import ConfigError
from reference.experts.balance import load_array

Array = npt.NDArray[Any]
Mapping32 = npt.NDArray[np.int32]
GRAD_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


def check_redundancy_mapping(mapping: npt.ArrayLike, *, ep_size: int, num_experts: int) -> Mapping32:
    """Return a mapping as [R, C] int32 after checking every entry.

    Two copies of one expert on one rank are legal, though of no use.

    Raises:
      ConfigError: wrong shape or kind of number, an id out of range, or a copy beside its original.
    """
    size = whole_number("ep_size", ep_size, 1)
    experts = whole_number("num_experts", num_experts, size)
    if experts % size:
        raise ConfigError("num_experts", experts, f"ep_size {size} must divide it")
    array = np.asarray(mapping)
    if array.ndim != 2 or array.shape[0] != size or array.dtype.kind != "i":
        found = f"{array.dtype} {array.shape}"
        raise ConfigError("redundancy_mapping", found, f"must be signed integers of shape ({size}, slots)")
    at_home = (array >= 0) & (array // (experts // size) == np.arange(size)[:, None])
    bad = (array < -1) | (array >= experts) | at_home
    if bad.any():
        rank, slot = np.argwhere(bad)[0]
        rule = f"must be an expert 0..{experts - 1}, or -1 for an empty slot"
        if at_home[rank, slot]:
            rule = "its original is on this rank, a copy beside it is of no use"
        raise ConfigError(f"redundancy_mapping[rank {rank}, slot {slot}]", int(array[rank, slot]), rule)
    return array.astype(np.int32)


def choose_replicas(loads: npt.ArrayLike, *, ep_size: int, num_redundant_per_rank: int) -> Mapping32:
    """Choose which experts get copies on which ranks, originals staying at home.

    The heaviest copy is split again and again; its new copy goes to the lightest rank that has a free
    slot and no copy of it. A copy that would raise the busiest rank is not made, and an expert without
    load gets none, because an empty slot costs no traffic.

    Args:
      loads: [E] tokens of each expert; copies share equally.
      ep_size: R, divides E.
      num_redundant_per_rank: C.

    Returns:
      [R, C] int32; the busiest rank is never busier than without copies.

    Raises:
      ConfigError: a number is out of range, or R does not divide E.
    """
    weights = load_array(loads)
    size = whole_number("ep_size", ep_size, 1)
    slots = whole_number("num_redundant_per_rank", num_redundant_per_rank, 0)
    if len(weights) % size:
        raise ConfigError("loads", f"{len(weights)} experts", f"ep_size {size} must divide them")
    holds = np.arange(len(weights)) // (len(weights) // size) == np.arange(size)[:, None]  # [R, E]
    mapping: list[list[int]] = [[] for _ in range(size)]
    active = weights > 0
    while active.any():
        copies = holds.sum(axis=0)
        expert = int(np.argmax(np.where(active, weights / copies, -1.0)))
        rank_loads = _rank_loads(holds, weights)
        free = [r for r in range(size) if len(mapping[r]) < slots and not holds[r, expert]]
        target = min(free, key=lambda r: (rank_loads[r], r), default=None)
        if target is not None:
            holds[target, expert] = True
            if _rank_loads(holds, weights).max() <= rank_loads.max():
                mapping[target].append(expert)
                continue
            holds[target, expert] = False
        active[expert] = False
    return np.array([row + [-1] * (slots - len(row)) for row in mapping], np.int32).reshape(size, slots)


def _rank_loads(holds: npt.NDArray[np.bool_], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Not a matrix product: its order of summation, and so a tie, may differ between machines.
    return np.asarray((holds * (weights / holds.sum(axis=0))).sum(axis=1))


def expert_map_of(mapping: npt.ArrayLike, *, ep_size: int, num_experts: int) -> ExpertMap:
    """Return the experts that dispatch sees: each rank's L originals, then its copies, slot by slot.

    Empty slots have no physical expert, so ranks may hold different numbers of them.

    Args:
      mapping: [R, C], -1 = empty.
      ep_size: R.
      num_experts: E, without copies.

    Raises:
      ConfigError: as `check_redundancy_mapping`.
    """
    table = check_redundancy_mapping(mapping, ep_size=ep_size, num_experts=num_experts)
    local = num_experts // ep_size
    held = [
        [*range(rank * local, (rank + 1) * local), *(int(e) for e in row if e >= 0)]
        for rank, row in enumerate(table)
    ]
    return ExpertMap(
        expert_ranks=tuple(rank for rank, experts in enumerate(held) for _ in experts),
        logical_ids=tuple(expert for experts in held for expert in experts),
    )


def lb_prefetch_weights(
    redundant_expert_weights: Sequence[Sequence[Array]],
    expert_weights: Sequence[Sequence[Array]],
    redundancy_mapping: npt.ArrayLike,
) -> None:
    """Fill the redundant slots of all ranks from the owners, in place; empty slots are left as they are.

    Args:
      redundant_expert_weights: per tensor (weights, scales, ..) and per rank, [C, ...] of any dtype.
      expert_weights: per tensor and per rank, [L, ...]; an expert has the shape and dtype of a slot.
      redundancy_mapping: [R, C], -1 = empty.

    Raises:
      ConfigError: a mapping, shape or dtype does not fit; nothing has been written then.
      Source: deepep-ascend.md section 1.3, and the module's reading of the mapping.
    """
    table = _check_tensors(redundant_expert_weights, expert_weights, redundancy_mapping, "weights")
    for copies, originals in zip(redundant_expert_weights, expert_weights, strict=True):
        for rank, slot in np.argwhere(table >= 0):
            owner, local = divmod(int(table[rank, slot]), len(originals[0]))
            copies[rank][slot] = originals[owner][local]


def lb_reduce_grads(
    redundant_expert_grads: Sequence[Sequence[Array]],
    expert_grads: Sequence[Sequence[Array]],
    redundancy_mapping: npt.ArrayLike,
) -> None:
    """Add the gradients of all copies to their originals', in place; the copies' are only read.

    Order: the original's own gradient, then its copies by ascending rank, then slot. The sum is fp32 from
    the first to the last term and is rounded once, to the dtype of the gradients. (The public NVIDIA
    kernel adds in the order of arrival.)

    Args:
      redundant_expert_grads: per tensor and per rank, [C, ...] float32 or bfloat16.
      expert_grads: per tensor and per rank, [L, ...] of the same dtype and shape per expert.
      redundancy_mapping: [R, C], -1 = empty; whatever an empty slot holds is not added.

    Raises:
      ConfigError: a mapping, shape or dtype does not fit; nothing has been written then.
      Source: deepep-ascend.md section 1.3, and the module's reading of the mapping.
    """
    table = _check_tensors(redundant_expert_grads, expert_grads, redundancy_mapping, "grads")
    for originals in expert_grads:
        if originals[0].dtype not in GRAD_DTYPES:
            raise ConfigError("expert_grads dtype", str(originals[0].dtype), "must be float32 or bfloat16")
    for copies, originals in zip(redundant_expert_grads, expert_grads, strict=True):
        for expert in np.unique(table[table >= 0]):
            owner, local = divmod(int(expert), len(originals[0]))
            places = np.argwhere(table == expert)
            added = [copies[rank][slot] for rank, slot in places]
            originals[owner][local] = sum_copies(originals[owner][local], added)


def sum_copies(own: Array, copies: Sequence[Array]) -> Array:
    """Return an expert's gradient plus those of its copies: fp32, in this order, rounded once.

    Args:
      own: of the original, float32 or bfloat16.
      copies: by ascending rank, then slot; of its shape.
    """
    total = own.astype(np.float32)
    for copy in copies:
        total += copy.astype(np.float32)
    return np.asarray(total.astype(own.dtype))


def _check_tensors(
    copies: Sequence[Sequence[Array]], originals: Sequence[Sequence[Array]], mapping: npt.ArrayLike, name: str
) -> Mapping32:
    """Check every tensor of every rank against the mapping and against tensor 0 of rank 0."""
    if not originals or len(copies) != len(originals):
        rule = f"must hold as many tensors as expert_{name}, {len(originals)}, and at least one"
        raise ConfigError(f"redundant_expert_{name}", len(copies), rule)
    size = len(originals[0])
    local = len(originals[0][0]) if size else 0
    table = check_redundancy_mapping(mapping, ep_size=size, num_experts=size * local)
    for number, (targets, sources) in enumerate(zip(copies, originals, strict=True)):
        if len(targets) != size or len(sources) != size:
            raise ConfigError(f"{name} tensor {number}", len(targets), f"every tensor needs {size} ranks")
        for rank in range(size):
            _check_pair(f"{name} tensor {number} of rank {rank}", targets[rank], sources[rank], sources[0])
            if len(targets[rank]) != table.shape[1] or len(sources[rank]) != local:
                rule = f"needs {table.shape[1]} slots and {local} experts"
                found = f"{len(targets[rank])} slots, {len(sources[rank])} experts"
                raise ConfigError(f"{name} tensor {number} of rank {rank}", found, rule)
    return table


def _check_pair(field: str, target: Array, source: Array, first: Array) -> None:
    if target.dtype != source.dtype or source.dtype != first.dtype:
        found = f"{target.dtype} for {source.dtype}"
        raise ConfigError(field, found, f"slots and experts must have one dtype, {first.dtype}")
    # As many elements in another shape would fit, and mean something else.
    if len({a.shape[1:] for a in (target, source, first)}) > 1:
        found = f"{target.shape[1:]} for {source.shape[1:]}"
        raise ConfigError(field, found, f"a slot holds one expert of rank 0, {first.shape[1:]}")
