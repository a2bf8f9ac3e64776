"""`EPHandle`: what a rank keeps of a dispatch, as tensors; the reference's handle holds the same arrays.

R ranks, n tokens of this rank, K top-k, L local experts, N received rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.errors import StaleHandleError, UndefinedError
from epsim.deep_ep.watch import contents_of
from reference.config import EPConfig
from reference.handle import DispatchMode, Handle

Ids = npt.NDArray[np.int64]
MADE_BY_HAND = "made by hand"


def masked_ids(topk_idx: torch.Tensor) -> Ids:
    """Return ids as the reference takes them: any negative id is -1."""
    idx = array_of(topk_idx)
    return np.where(idx < 0, np.int64(-1), idx)


class EPHandle:
    """One rank's handle of a dispatch; it depends on no buffer and may outlive several dispatches.

    Args:
      do_expand: whether the layout is the expanded one.
      num_experts: E.
      expert_alignment: A.
      num_max_tokens_per_rank: M.
      num_sms: AI cores of the dispatch; combine and cached dispatch use it again.
      topk_idx: [n, K] int64 global ids of this rank's tokens, kept by reference.
      num_recv_tokens: N; exact with CPU sync, else R * M.
      num_expanded_tokens: X; exact with CPU sync, else the worst case.
      num_recv_tokens_per_expert_list: L aligned counts; empty without CPU sync.
      psum_num_recv_tokens_per_rank: [R] int32 inclusive sum of deduplicated rows per source rank.
      psum_num_recv_tokens_per_expert: [L] int32; see `reference.handle.Handle`.
      num_unaligned_recv_tokens_per_expert: [L] int32 real rows.
      recv_src_metadata: [N, K+2] int32 in the edition's column order.
      dst_buffer_slot_idx: [n, K] int32.
      dst_gsge_idx: [n, K] int32; None in NVIDIA editions.

    Attributes:
      num_scaleup_ranks: SU, R unless the dispatch was hybrid.
      cached_recv_src_metadata_before_sort: the metadata as it arrived, when the buffer is deterministic.
      recv_expert_ids: [X] int32 local expert of each row, -1 = padding; None = not asked for.
      token_metadata_at_forward, channel_linked_list: None; the channels of a hybrid dispatch have no
        counterpart here.
      origin: which call of which buffer made it, in words that are the same on all ranks of that call; a
        handle made from its fields says so.
      rank: whose it is; None = made from its fields.
      edition: name of the edition whose form the tensors have; None = made from its fields.
      Source: deepep-ascend.md section 1.7.
    """

    def __init__(
        self,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: torch.Tensor,
        num_recv_tokens: int,
        num_expanded_tokens: int,
        num_recv_tokens_per_expert_list: list[int],
        psum_num_recv_tokens_per_rank: torch.Tensor,
        psum_num_recv_tokens_per_expert: torch.Tensor,
        num_unaligned_recv_tokens_per_expert: torch.Tensor,
        recv_src_metadata: torch.Tensor,
        dst_buffer_slot_idx: torch.Tensor,
        dst_gsge_idx: torch.Tensor | None,
    ) -> None:
        """Keep all fields and remember the state of topk_idx."""
        self.do_expand, self.num_experts = do_expand, num_experts
        self.expert_alignment, self.num_max_tokens_per_rank = expert_alignment, num_max_tokens_per_rank
        self.num_sms = num_sms
        self.num_recv_tokens, self.num_expanded_tokens = num_recv_tokens, num_expanded_tokens
        self.num_recv_tokens_per_expert_list = num_recv_tokens_per_expert_list
        self.psum_num_recv_tokens_per_rank = psum_num_recv_tokens_per_rank
        self.psum_num_recv_tokens_per_expert = psum_num_recv_tokens_per_expert
        self.num_unaligned_recv_tokens_per_expert = num_unaligned_recv_tokens_per_expert
        self.recv_src_metadata = recv_src_metadata
        self.dst_buffer_slot_idx, self.dst_gsge_idx = dst_buffer_slot_idx, dst_gsge_idx
        self.num_scaleup_ranks = int(psum_num_recv_tokens_per_rank.numel())
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None
        self.recv_expert_ids: torch.Tensor | None = None
        self.token_metadata_at_forward = self.channel_linked_list = None
        self.origin = MADE_BY_HAND
        self.rank: int | None = None
        self.edition: str | None = None
        self.awaits_sort = False
        self._topk_idx = topk_idx
        # Not torch's count of writes: all views of one memory share it, and NumPy's writes do not count.
        self._topk_bytes = contents_of(topk_idx)

    @property
    def topk_idx(self) -> torch.Tensor:
        """[n, K] int64 ids of this rank's tokens.

        Raises:
          StaleHandleError: the tensor does not hold what dispatch was given, however it was written to.
        """
        if self._topk_bytes != contents_of(self._topk_idx):
            rule = "it was written to after dispatch; combine would use another routing than the rows have"
            raise StaleHandleError("topk_idx of the handle", self.origin, rule)
        return self._topk_idx

    @property
    def num_rows(self) -> int:
        """Rows of recv_x: X expanded, else N."""
        return self.num_expanded_tokens if self.do_expand else self.num_recv_tokens

    @property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """[SU] int32 inclusive sum of rows per scale-up index of the source (NVIDIA's name)."""
        ends = array_of(self.psum_num_recv_tokens_per_rank)
        per_rank = ends - np.append(0, ends[:-1])
        sums = per_rank.reshape(-1, self.num_scaleup_ranks).sum(axis=0)
        return tensor_of(np.cumsum(sums, dtype=np.int32))

    def as_reference(self, rank: int, mode: DispatchMode) -> Handle:
        """Return the reference's handle over the same memory.

        Args:
          rank: whose handle.
          mode: edition and domains of the buffer.

        Raises:
          StaleHandleError: topk_idx was written to.
          UndefinedError: the dispatch's event was not waited for, so its rows are not sorted yet; or its
            fields contradict each other, because one was written to.
        """
        if self.awaits_sort:
            rule = "a deterministic dispatch sorts its rows in wait(); call it first"
            raise UndefinedError("handle", f"{self.origin}, unsorted", rule)
        ids = masked_ids(self.topk_idx)
        config = EPConfig(
            ep_size=int(self.psum_num_recv_tokens_per_rank.numel()),
            num_experts=self.num_experts,
            num_topk=ids.shape[1],
            hidden=1,  # the layout does not depend on it
            num_max_tokens_per_rank=self.num_max_tokens_per_rank,
            expert_alignment=self.expert_alignment,
        )
        gather = None if self.dst_gsge_idx is None else array_of(self.dst_gsge_idx)
        plan = Handle(
            rank=rank,
            config=config,
            mode=mode,
            source_topk_idx=ids,
            source_digest=None,
            num_recv_tokens=self.num_recv_tokens,
            num_expanded_tokens=self.num_expanded_tokens,
            num_recv_tokens_per_expert_list=tuple(self.num_recv_tokens_per_expert_list),
            psum_num_recv_tokens_per_rank=array_of(self.psum_num_recv_tokens_per_rank),
            psum_num_recv_tokens_per_expert=array_of(self.psum_num_recv_tokens_per_expert),
            num_unaligned_recv_tokens_per_expert=array_of(self.num_unaligned_recv_tokens_per_expert),
            recv_src_metadata=array_of(self.recv_src_metadata),
            dst_buffer_slot_idx=array_of(self.dst_buffer_slot_idx),
            dst_gsge_idx=gather,
        )
        _check_rows(plan)
        return plan


def _check_rows(plan: Handle) -> None:
    """Refuse a handle that names rows or tokens which its own numbers leave no room for."""

    def check(name: str, values: npt.NDArray[Any], low: int, end: int, what: str) -> None:
        wrong = values[(values < low) | (values >= end)]
        if wrong.size:
            raise UndefinedError(f"handle.{name}", f"{what} {wrong[0]}", f"must be {low} to {end - 1}")

    ends = plan.psum_num_recv_tokens_per_rank
    check("psum_num_recv_tokens_per_rank", ends, 0, plan.num_recv_tokens + 1, "row")
    sources = plan.config.ep_size * plan.num_max_tokens_per_rank
    check("recv_src_metadata", plan.gids(), 0, sources, "source")
    if plan.mode.expand:
        end = int(plan.block_starts()[-1])
        if plan.num_expanded_tokens < end:
            rule = f"the blocks of its experts end at row {end}"
            raise UndefinedError("handle.num_expanded_tokens", plan.num_expanded_tokens, rule)
        check("recv_src_metadata", plan.expanded_rows(), -1, end, "row")


def handle_of(plan: Handle, topk_idx: torch.Tensor, *, num_sms: int, num_scaleup_ranks: int) -> EPHandle:
    """Return the tensors of a planned dispatch.

    Args:
      plan: this rank's.
      topk_idx: the caller's ids, or a copy.
      num_sms: AI cores to remember.
      num_scaleup_ranks: SU.
    """
    handle = EPHandle(
        plan.mode.expand,
        plan.num_experts,
        plan.expert_alignment,
        plan.num_max_tokens_per_rank,
        num_sms,
        topk_idx,
        plan.num_recv_tokens,
        plan.num_expanded_tokens,
        list(plan.num_recv_tokens_per_expert_list),
        tensor_of(plan.psum_num_recv_tokens_per_rank),
        tensor_of(plan.psum_num_recv_tokens_per_expert),
        tensor_of(plan.num_unaligned_recv_tokens_per_expert),
        tensor_of(plan.recv_src_metadata),
        tensor_of(plan.dst_buffer_slot_idx),
        None if plan.dst_gsge_idx is None else tensor_of(plan.dst_gsge_idx),
    )
    handle.num_scaleup_ranks, handle.edition = num_scaleup_ranks, plan.mode.edition
    if plan.cached_recv_src_metadata_before_sort is not None:
        handle.cached_recv_src_metadata_before_sort = tensor_of(plan.cached_recv_src_metadata_before_sort)
    return handle


def check_same_dispatch(owns: Sequence[Mapping[str, Any]]) -> None:
    """Refuse handles that do not belong together, whatever their origins; every rank finds the same pair.

    Args:
      owns: per rank the rows that it sends to each rank ("sent", [R]) and expects from each ("due", [R]).

    Raises:
      UndefinedError: two ranks differ in the rows from one to the other.
    """
    for src, at_src in enumerate(owns):
        for home, at_home in enumerate(owns):
            sent, due = at_src["sent"][home], at_home["due"][src]
            if sent != due:
                rule = f"rank {home} expects {due} rows from it; the handles come from different dispatches"
                raise UndefinedError(f"handle of rank {src}", f"{sent} rows for rank {home}", rule)
