"""How the ranks of a group are divided into domains: scale-out times scale-up."""

from typing import Any

import torch.distributed as dist


def get_physical_domain_size(group_or_buffer: Any) -> tuple[int, int]:  # noqa: ANN401 - a group or a buffer
    """Return (scale-out ranks, scale-up ranks) as the machines are connected.

    A group of the CPU, like one HCCL domain, is one scale-up domain. A buffer of an NVIDIA edition has what
    it was made for.
    """
    known = getattr(group_or_buffer, "physical_domain_size", None)
    if known is not None:
        return int(known[0]), int(known[1])
    group = getattr(group_or_buffer, "group", group_or_buffer)
    return 1, dist.get_world_size(group)


def get_logical_domain_size(
    group_or_buffer: Any,  # noqa: ANN401 - a group or a buffer
    allow_hybrid_mode: bool | None = None,
) -> tuple[int, int]:
    """Return (scale-out ranks, scale-up ranks) as the operations use them.

    Args:
      group_or_buffer: a process group, or a buffer.
      allow_hybrid_mode: False = one flat domain; None = the buffer's flag, True for a group.
    """
    num_scaleout, num_scaleup = get_physical_domain_size(group_or_buffer)
    if allow_hybrid_mode is None:
        allow_hybrid_mode = bool(getattr(group_or_buffer, "allow_hybrid_mode", True))
    return (num_scaleout, num_scaleup) if allow_hybrid_mode else (1, num_scaleout * num_scaleup)
