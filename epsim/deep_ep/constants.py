"""Fixed numbers of `deep_ep`.

Source: deepep-ascend.md sections 1.1 and 6.
"""

import torch

from reference.memory.sizes import HINT_ALIGN_BYTES, RECORD_ALIGN_BYTES

topk_idx_t = torch.int64
"""dtype of expert ids."""


def get_num_allocation_alignment() -> int:
    """Return the bytes to which buffers are rounded: 2 MiB."""
    return HINT_ALIGN_BYTES


def get_num_rdma_alignment() -> int:
    """Return the bytes to which a segment of a record is rounded: 32."""
    return RECORD_ALIGN_BYTES


def get_num_tma_alignment() -> int:
    """Return the bytes to which on-chip copies are rounded: 32."""
    return RECORD_ALIGN_BYTES
