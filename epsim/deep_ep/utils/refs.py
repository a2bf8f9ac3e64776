"""Dispatch and combine for tests: short, slow, over plain all-to-alls of a process group, no buffer.

R ranks, T tokens of a rank, M most tokens of a rank, K top-k, H hidden, E experts, N received rows. Ids are
global, -1 = none; expert e lives on rank e // (E / R). The group is the default one unless given.
Source: deepep-ascend.md sections 7.1 and 7.2, deepep-v2.md section 5.
"""

import math
from typing import TypeAlias

import torch
import torch.distributed as dist

from epsim.deep_ep.utils.envs import get_global_seed
from reference.errors import ConfigError

SEED_STEP = 131071
Payload: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Received: TypeAlias = tuple[Payload, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]


def dispatch(
    x: Payload,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_max_tokens_per_rank: int,
    num_experts: int,
    group: dist.ProcessGroup | None = None,
) -> Received:
    """Send each token once to every rank that has one of its experts; collective.

    Args:
      x: [T, H], or a tuple of [T, H] and scales [T, P].
      topk_idx: [T, K] int64.
      topk_weights: [T, K] float32, or None.
      num_max_tokens_per_rank: M, which numbers the source tokens.
      num_experts: E.
      group: whose ranks take part.

    Returns:
      x as received, [N, H] or the tuple; ids [N, K] int64 local to this rank, -1 elsewhere; weights [N, K]
      as sent, or None; source token rank * M + token [N] int32; rows of each source rank [R] int32. Rows
      ascend by source rank, then token.

    Raises:
      ConfigError: lengths differ, more than M tokens, or R does not divide E.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if num_experts % size:
        raise ConfigError("num_experts", num_experts, f"{size} ranks must divide it")
    columns = [*(x if isinstance(x, tuple) else (x,)), topk_idx]
    columns += [] if topk_weights is None else [topk_weights]
    tokens = len(topk_idx)
    if any(len(column) != tokens for column in columns) or tokens > num_max_tokens_per_rank:
        rule = f"must all have one row per token, at most {num_max_tokens_per_rank}"
        raise ConfigError("rows", [len(column) for column in columns], rule)
    local = num_experts // size
    homes = _homes(topk_idx, local)
    chosen = [(homes == dst).any(dim=1).nonzero().flatten() for dst in range(size)]
    sent = torch.tensor([len(rows) for rows in chosen], dtype=torch.int32)
    counts = torch.empty_like(sent)
    dist.all_to_all_single(counts, sent, group=group)
    rows = torch.cat(chosen)
    gids = (rank * num_max_tokens_per_rank + rows).to(torch.int32)
    parts = [column[rows] for column in columns] + [gids]
    *payload, ids, last, gid = [
        _exchange(part, counts.tolist(), sent.tolist(), group)
        for part in (parts if topk_weights is not None else [*parts[:-1], gids, gids])
    ]
    local_ids = torch.where(_homes(ids, local) == rank, ids - rank * local, -1)
    weights = None if topk_weights is None else last
    return (payload[0] if len(payload) == 1 else (payload[0], payload[1])), local_ids, weights, gid, counts


def _homes(topk_idx: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    """Return the rank of each choice, -1 for none."""
    return torch.where(topk_idx < 0, -1, topk_idx // num_local_experts)


def _exchange(
    rows: torch.Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Return the rows that all ranks send to this one; as bytes, because gloo knows no fp8."""
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    result = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype)
    source = rows.contiguous().reshape(-1).view(torch.uint8)
    dist.all_to_all_single(
        result.reshape(-1).view(torch.uint8),
        source,
        [count * row_bytes for count in received],
        [count * row_bytes for count in sent],
        group=group,
    )
    return result


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return what the K experts of a token "computed": a function of its identity, so that no two agree.

    Args:
      src_token_global_idx: [N] integers, source rank * M + token.
      num_max_tokens_per_rank: M.
      num_topk: K.
      hidden: H.
      group: supplies R.

    Returns:
      [N, K, H] bf16: sin((s * 131071 mod S + 1) / S * (column + 1) + sin(global seed)) with
      s = id * K + k and S = R M K.
    """
    period = dist.get_world_size(group) * num_max_tokens_per_rank * num_topk
    seeds = src_token_global_idx.long()[:, None] * num_topk + torch.arange(num_topk)
    slopes = ((seeds * SEED_STEP % period).float() + 1) / period
    columns = torch.arange(1, hidden + 1, dtype=torch.float32)
    phase = math.sin(float(get_global_seed()))
    return torch.sin(slopes[:, :, None] * columns + phase).to(torch.bfloat16)


def ordered_accumulate(data: torch.Tensor, initial_value: torch.Tensor | None = None) -> torch.Tensor:
    """Return the sum over K in ascending order: float32 throughout, then one rounding to data's dtype.

    Args:
      data: [T, K, H].
      initial_value: [T, H] to start from; None = zeros.
    """
    total = torch.zeros_like(data[:, 0], dtype=torch.float32)
    if initial_value is not None:
        total += initial_value
    for k in range(data.shape[1]):
        total += data[:, k]
    return total.to(data.dtype)


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_experts: int,
    bias: torch.Tensor | tuple[torch.Tensor, ...] | None,
    reduce_in_local: bool,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sum what each token's experts computed, in the library's order; not collective.

    Args:
      y: [T, K, H] bf16; rows of masked choices are ignored.
      topk_idx: [T, K] int64.
      num_experts: E.
      bias: none, one or two of [T, H] bf16, added before everything else.
      reduce_in_local: first sum the choices that share a rank, rounding that sum to bf16; the partial sum
        takes the place of their highest k. That is combine with multiple reduction.
      group: supplies R.

    Returns:
      [T, H] bf16.

    Raises:
      ConfigError: more than two biases.
    """
    biases = () if bias is None else (bias if isinstance(bias, tuple) else (bias,))
    if len(biases) > 2:
        raise ConfigError("bias", f"{len(biases)} tensors", "must be at most two")
    homes = _homes(topk_idx, num_experts // dist.get_world_size(group))
    terms = torch.where(homes[:, :, None] < 0, 0, y)
    if reduce_in_local:
        terms = torch.stack([_partial_sum(terms, homes, k) for k in range(y.shape[1])], dim=1)
    start = None if not biases else sum((b.float() for b in biases[1:]), start=biases[0].float())
    return ordered_accumulate(terms, start)


def _partial_sum(terms: torch.Tensor, homes: torch.Tensor, k: int) -> torch.Tensor:
    """Return [T, H]: the sum of all choices on the rank of choice k, 0 if a later one is there too."""
    mates = homes == homes[:, k : k + 1]
    is_last = ~mates[:, k + 1 :].any(dim=1)
    return ordered_accumulate(torch.where((mates & is_last[:, None])[:, :, None], terms, 0))
