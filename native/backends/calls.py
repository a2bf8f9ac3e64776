"""What every backend that runs our kernels gives them and reads back, wherever the memory is.

n own tokens, K top-k, R ranks, L local experts, N received records, X expanded rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from native.arguments import RuntimeConfig
from native.backends.protocol import Array, BufferSpec
from native.buffers import ARRIVAL_SHIFT, MAX_RANKS
from reference.config import EPConfig

SENDER_TABLES = ("dst_buffer_slot_idx", "dst_gsge_idx", "psum_rank", "psum_expert", "num_unaligned")
"""Arguments of dispatch that stay behind in a handle."""
RECEIVER_TABLES = ("psum_rank", "psum_expert", "recv_src_metadata")
"""The same of its epilogue."""
COUNT_MASK = (1 << ARRIVAL_SHIFT) - 1
ARRIVAL_MASK = 0xFF << ARRIVAL_SHIFT
"""A count word holds the count below and the number of ranks that have added to it above."""


class AwaitedCounts(NamedTuple):
    """Words of the host workspace that are complete when all ranks have added to each of them.

    Args:
      first: number of the first word.
      num_words: how many.
      mask: of the bits that tell.
      value: what they hold then.
    """

    first: int
    num_words: int
    mask: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a machine lets a kernel have.

    Args:
      timeout_cycles: of a wait inside a kernel.
      num_threads: of a SIMT function.
      sq_depth: blocks of a jetty's ring.
      ub_bytes: of unified buffer.
    """

    timeout_cycles: int
    num_threads: int
    sq_depth: int
    ub_bytes: int


def configure(
    limits: Limits,
    spec: BufferSpec,
    config: EPConfig,
    x: Array,
    scales: Array | None = None,
    *,
    cached: bool = False,
    cpu_sync: bool = False,
    zero_padding: bool = False,
) -> RuntimeConfig:
    """Return the configuration of one call.

    Args:
      limits: of the machine.
      spec: of the buffer.
      config: of the group.
      x: [rows, H] what is sent.
      scales: [rows, P] of 2 bytes, in any order.
      cached: into the rows of an earlier dispatch.
      cpu_sync: the host waits for the counts.
      zero_padding: clear the rows between blocks.
    """
    return RuntimeConfig(
        timeout_cycles=limits.timeout_cycles,
        num_ranks=config.ep_size,
        num_experts=config.num_experts,
        num_topk=config.num_topk,
        num_max_tokens=config.num_max_tokens_per_rank,
        expert_alignment=config.expert_alignment,
        num_aivs=spec.num_aivs,
        num_threads=limits.num_threads,
        hidden=x.shape[1],
        payload_bytes=x.shape[1] * x.dtype.itemsize,
        num_scale_packs=0 if scales is None else scales.shape[1],
        ub_bytes=limits.ub_bytes,
        sq_depth=limits.sq_depth,
        cached=cached,
        cpu_sync=cpu_sync,
        zero_padding=zero_padding,
        single_reduction=not spec.multiple_reduction,
    )


def handle_shapes(config: EPConfig, num_tokens: int, num_records: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the int32 tables of a handle, by name of the argument.

    Args:
      config: of the group.
      num_tokens: n.
      num_records: N.
    """
    local = config.num_experts // config.ep_size
    return {
        "dst_buffer_slot_idx": (num_tokens, config.num_topk),
        "dst_gsge_idx": (num_tokens, config.num_topk),
        "psum_rank": (config.ep_size,),
        "psum_expert": (local,),
        "num_unaligned": (local,),
        "recv_src_metadata": (num_records, config.num_topk + 2),
    }


def awaited_counts(config: EPConfig) -> tuple[AwaitedCounts, AwaitedCounts]:
    """Return what the host waits for after a fresh dispatch: the counts by rank and by local expert."""
    value = config.ep_size << ARRIVAL_SHIFT
    return (
        AwaitedCounts(0, config.ep_size, ARRIVAL_MASK, value),
        AwaitedCounts(MAX_RANKS, config.num_experts // config.ep_size, ARRIVAL_MASK, value),
    )


def num_count_words(config: EPConfig) -> int:
    """Return how many words of the host workspace the counts span."""
    return MAX_RANKS + config.num_experts // config.ep_size


def read_counts(words: Array, config: EPConfig) -> tuple[int, int, Array]:
    """Return received records, expanded rows and the aligned rows of each local expert, [L] int32.

    Args:
      words: `num_count_words` int32 of the host workspace, complete.
      config: of the group.
    """
    counts = words & COUNT_MASK
    aligned = counts[MAX_RANKS:].astype(np.int32)
    return int(counts[: config.ep_size].sum()), int(aligned.sum()), aligned
