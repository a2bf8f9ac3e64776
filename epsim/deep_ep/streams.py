"""The one communication stream that `deep_ep` has, as an object that orders nothing on the CPU."""

from functools import cache

import torch


@cache
def comm_stream() -> torch.cpu.Stream:
    """Return the same stream at every call."""
    return torch.cpu.Stream()
