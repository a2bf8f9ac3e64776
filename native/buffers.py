"""Sizes of the EP buffer for host code: windows, records, and what a host cannot know before a dispatch.

The kernels have the same numbers in include/epsim_native/layout.hpp; a test keeps both equal.
"""

from native.backends.protocol import BufferSpec
from reference.config import EPConfig

WORKSPACE_BYTES = 2 << 20
HOST_COUNTS, MAX_RANKS = 1_126_400, 256
"""Offset of the count words in the host workspace, and the number of rank words (layout.hpp)."""
ARRIVAL_SHIFT = 24
MAX_UB_BYTES = 216 << 10
"""Of unified buffer that a kernel with SIMT code may use (deepep-ascend.md 3.7)."""


def align(number: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-number // step) * step


def image_bytes(num_topk: int, num_packs: int, *, cached: bool) -> int:
    """Return the bytes of a dispatch record without its payload (layout.hpp, dispatch_record)."""
    ids = 0 if cached else align(8 * num_topk, 32) + 4
    return align(2 * num_packs, 32) + align(4 * num_topk + ids, 32)


def combine_record_bytes(hidden: int, num_topk: int) -> int:
    """Return the bytes of a combine record."""
    return 2 * hidden + align(4 * num_topk, 32)


def region_bytes(spec: BufferSpec) -> int:
    """Return what dispatch and combine need of a window behind its workspace.

    bf16 makes the largest dispatch record; fp8 with its scales stays below it.
    """
    dispatch = spec.num_ranks * (2 * spec.hidden + image_bytes(spec.num_topk, 0, cached=False))
    groups = min(spec.num_ranks, spec.num_topk) if spec.multiple_reduction else spec.num_topk
    combine = groups * combine_record_bytes(spec.hidden, spec.num_topk)
    return spec.num_max_tokens_per_rank * max(dispatch, combine)


def window_bytes(spec: BufferSpec) -> int:
    """Return the size of a window on a device: workspace, then the region, in steps of 2 MiB."""
    return WORKSPACE_BYTES + align(region_bytes(spec), WORKSPACE_BYTES)


def worst_case(config: EPConfig) -> tuple[int, int]:
    """Return the records and expanded rows that a rank may receive at most (deepep-ascend.md 1.5)."""
    local, alignment = config.num_experts // config.ep_size, config.expert_alignment
    records = config.ep_size * config.num_max_tokens_per_rank
    rows = records * min(config.num_topk, local)
    return records, align(rows + (alignment - 1) * local, alignment)
