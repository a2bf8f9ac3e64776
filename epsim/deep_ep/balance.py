"""Redundant experts over a real group: weights out to the copies, gradients back to the originals.

R ranks, L local experts of a rank, C redundant slots of a rank; the mapping [R, C] names the expert that each
slot copies, -1 = empty. What the two calls mean is in `reference.experts.redundancy`.
"""

from abc import ABC, abstractmethod
from hashlib import blake2b
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from epsim.deep_ep.arrays import Array, array_of, row_bytes
from epsim.deep_ep.context import Context
from epsim.deep_ep.device import get_num_ai_cores
from epsim.deep_ep.errors import HostCheckError, UndefinedError, raised_as
from epsim.deep_ep.events import EventHandle, EventOverlap
from epsim.deep_ep.tensor_checks import Tensors, check_num_sms, check_tensor, listed
from epsim.deep_ep.turns import Turn, one_at_a_time
from reference.experts.redundancy import GRAD_DTYPES, check_redundancy_mapping, sum_copies

Mapping32 = npt.NDArray[np.int32]


class LoadBalancing(ABC):
    """The two calls of a buffer; both are collective and done when they return."""

    _context: Context
    turn: Turn

    @abstractmethod
    def check_alive(self, operation: str) -> None:
        """Refuse a call on a destroyed buffer; see `BufferBase`."""

    @one_at_a_time
    def lb_prefetch_weights(
        self,
        redundant_expert_weights: Tensors,
        expert_weights: Tensors,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> EventOverlap:
        """Copy the weights of experts into the redundant slots that the mapping gives them.

        Args:
          redundant_expert_weights: [C, ...] per tensor, one or several; written, empty slots excepted.
          expert_weights: [L, ...] per tensor, of the same dtype.
          redundancy_mapping: [R, C] int32, the expert of every slot of every rank, -1 = empty.
          num_sms: AI cores, 0 = all; otherwise without meaning.
          previous_event: ignored.

        Raises:
          HostCheckError: a tensor or the mapping does not fit, or more cores than there are.
          UndefinedError: a tensor that is written overlaps another.
          RankMismatchError: mappings or shapes differ between ranks.
          Source: `reference.experts.redundancy`; upstream's Ascend kernels are not written yet.
        """
        del previous_event
        given = redundant_expert_weights, expert_weights, redundancy_mapping
        prefetch_weights(*given, num_sms, self._context)
        return EventOverlap(EventHandle())

    @one_at_a_time
    def lb_reduce_grads(
        self,
        redundant_expert_grads: Tensors,
        expert_grads: Tensors,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> EventOverlap:
        """Add the gradients in redundant slots to those of the original experts, in place.

        Args:
          redundant_expert_grads: [C, ...] per tensor, float32 or bfloat16; read only.
          expert_grads: [L, ...] per tensor; written.
          redundancy_mapping: as in `lb_prefetch_weights`.
          num_sms: AI cores, 0 = all; otherwise without meaning.
          previous_event: ignored.

        Raises:
          As `lb_prefetch_weights`.
        """
        del previous_event
        reduce_grads(redundant_expert_grads, expert_grads, redundancy_mapping, num_sms, self._context)
        return EventOverlap(EventHandle())


def prefetch_weights(
    redundant: Tensors, experts: Tensors, mapping: torch.Tensor, num_sms: int, context: Context
) -> None:
    """Fill this rank's slots from the owners of their experts; see `LoadBalancing.lb_prefetch_weights`."""
    pairs, table = _agree("lb_prefetch_weights", redundant, experts, mapping, num_sms, context)
    rank, num_local = context.rank, len(pairs[0][1])
    for slots, originals in pairs:
        # What a slot needs is a copy of an expert, so the owner sends a row per (rank, slot), in that order.
        wanted = [(dst, table[dst, slot]) for dst, slot in np.argwhere(table // num_local == rank)]
        rows = _expert_rows(originals)[[expert % num_local for _, expert in wanted]]
        sent = np.bincount([dst for dst, _ in wanted], minlength=context.num_ranks)
        owners = _owners(table[rank], num_local)
        received = np.bincount(owners[owners >= 0], minlength=context.num_ranks)
        copies = context.exchange.all_to_all(rows, sent.tolist(), received.tolist())
        filled = np.flatnonzero(owners >= 0)
        _expert_rows(slots)[filled[np.argsort(owners[filled], kind="stable")]] = copies


def reduce_grads(
    redundant: Tensors, experts: Tensors, mapping: torch.Tensor, num_sms: int, context: Context
) -> None:
    """Add the slots' gradients to the originals'; see `LoadBalancing.lb_reduce_grads`."""
    pairs, table = _agree(
        "lb_reduce_grads", redundant, experts, mapping, num_sms, context, dtypes=GRAD_DTYPES
    )
    rank, num_local = context.rank, len(pairs[0][1])
    for slots, originals in pairs:
        owners = _owners(table[rank], num_local)
        filled = np.flatnonzero(owners >= 0)
        rows = _expert_rows(slots)[filled[np.argsort(owners[filled], kind="stable")]]
        sent = np.bincount(owners[filled], minlength=context.num_ranks)
        places = np.argwhere(_owners(table, num_local) == rank)  # by rank, then slot
        received = np.bincount(places[:, 0], minlength=context.num_ranks)
        copies = context.exchange.all_to_all(rows, sent.tolist(), received.tolist())
        grads = copies.reshape(-1).view(originals.dtype).reshape(len(places), *originals.shape[1:])
        experts_here = table[places[:, 0], places[:, 1]] % num_local
        for local in np.unique(experts_here):
            originals[local] = sum_copies(originals[local], list(grads[experts_here == local]))


def _owners(table: Mapping32, num_local: int) -> npt.NDArray[np.int64]:
    """Return the rank of the original of each slot, -1 = empty slot."""
    return np.where(table < 0, -1, table // num_local).astype(np.int64)


def _expert_rows(array: Array) -> npt.NDArray[np.uint8]:
    """Return [experts, bytes of one expert] of a contiguous array, over the same memory."""
    return row_bytes(array.reshape(len(array), int(np.prod(array.shape[1:]))))


def _agree(
    operation: str,
    redundant: Tensors,
    experts: Tensors,
    mapping: torch.Tensor,
    num_sms: int,
    context: Context,
    dtypes: tuple[np.dtype[Any], ...] | None = None,
) -> tuple[list[tuple[Array, Array]], Mapping32]:
    """Check the tensors, and agree with all ranks on their shapes and on the mapping."""
    with context.exchange.telling(operation):
        context.outstanding.check_idle(operation)
        check_num_sms(num_sms, get_num_ai_cores() if context.room.is_ascend else None)
        pairs = _pairs(redundant, experts, dtypes)
        table = _table(mapping, context.num_ranks, pairs)
    forms = [f"{own.dtype} {own.shape}" for _, own in pairs]
    digest = blake2b(table.tobytes(), digest_size=8).hexdigest()
    same = {"expert tensors": forms, "redundancy_mapping": f"{table.shape} digest {digest}"}
    context.exchange.agree(operation, same=same)
    return pairs, table


def _pairs(
    redundant: Tensors, experts: Tensors, dtypes: tuple[np.dtype[Any], ...] | None
) -> list[tuple[Array, Array]]:
    """Return (slots [C, ...], experts [L, ...]) per tensor.

    Raises:
      HostCheckError: other kinds, numbers, dtypes or sizes.
      UndefinedError: one that is written overlaps another.
    """
    copies, originals = listed("redundant tensors", redundant), listed("expert tensors", experts)
    if not originals or len(copies) != len(originals):
        raise HostCheckError("redundant tensors", len(copies), f"there are {len(originals)} expert tensors")
    for number, (copy, original) in enumerate(zip(copies, originals, strict=True)):
        check_tensor(f"expert tensor {number}", original, dim=None, dtype=None)
        check_tensor(f"redundant tensor {number}", copy, dim=None, dtype=original.dtype)
    pairs = [(array_of(c), array_of(o)) for c, o in zip(copies, originals, strict=True)]
    for number, (slots, own) in enumerate(pairs):
        if min(slots.ndim, own.ndim) < 2 or len(own) != len(pairs[0][1]) or not len(own):
            raise HostCheckError(f"expert tensor {number}", own.shape, "must be [experts, ...], as the first")
        if slots.shape[1:] != own.shape[1:]:
            rule = f"a slot holds one expert of {own.shape[1:]}"
            raise HostCheckError(f"redundant tensor {number}", slots.shape, rule)
        if dtypes is not None and own.dtype not in dtypes:
            raise HostCheckError(f"expert tensor {number}", own.dtype, "must be float32 or bfloat16")
    _check_apart(pairs, writes_slots=dtypes is None)
    return pairs


def _check_apart(pairs: list[tuple[Array, Array]], *, writes_slots: bool) -> None:
    """Refuse tensors that are written in memory that another tensor of the call has."""
    slots = [(f"redundant tensor {number}", array) for number, (array, _) in enumerate(pairs)]
    experts = [(f"expert tensor {number}", array) for number, (_, array) in enumerate(pairs)]
    written, read = (slots, experts) if writes_slots else (experts, slots)
    for (name, array), (other, its) in (*combinations(written, 2), *product(written, read)):
        # All are contiguous, so the bounds decide.
        if np.may_share_memory(array, its):
            raise UndefinedError(name, f"in the memory of {other}", "is written, so it must have its own")


def _table(mapping: torch.Tensor, num_ranks: int, pairs: list[tuple[Array, Array]]) -> Mapping32:
    check_tensor("redundancy_mapping", mapping, dim=2, dtype=torch.int32)
    with raised_as(HostCheckError):
        table = check_redundancy_mapping(
            array_of(mapping), ep_size=num_ranks, num_experts=num_ranks * len(pairs[0][1])
        )
    for number, (slots, _) in enumerate(pairs):
        if len(slots) != table.shape[1]:
            rule = f"redundancy_mapping has {table.shape[1]}"
            raise HostCheckError(f"redundant tensor {number}", f"{len(slots)} slots", rule)
    return table
