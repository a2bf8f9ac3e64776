"""A drop-in for `deep_ep` on the CPU: `import epsim.deep_ep as deep_ep`, then the program as it is.

Torch CPU tensors over a `torch.distributed` group of real processes. What an operation means is decided by
`reference`; this package moves the bytes and refuses what the Ascend edition refuses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from epsim.errors import MissingExtraError

try:
    import torch.distributed as _torch_distributed
# With torch_npu installed and no CANN, `import torch` fails with a RuntimeError.
except (ImportError, RuntimeError) as error:
    _text = f"epsim.deep_ep needs torch ({error}); install it with: python -m pip install 'epsim[torch]'"
    raise MissingExtraError(_text) from error
if not _torch_distributed.is_gloo_available():
    raise MissingExtraError("epsim.deep_ep needs a torch with gloo: python -m pip install 'epsim[torch]'")

if TYPE_CHECKING:
    from epsim.deep_ep.allocator import BufferAllocator
    from epsim.deep_ep.base import BufferBase
    from epsim.deep_ep.comm import (
        destroy_all_managed_hccl_comm,
        get_logical_domain_size,
        get_physical_domain_size,
    )
    from epsim.deep_ep.constants import (
        get_num_allocation_alignment,
        get_num_rdma_alignment,
        get_num_tma_alignment,
        topk_idx_t,
    )
    from epsim.deep_ep.events import EventHandle, EventOverlap

__version__ = "1.0.0"  # of the surface that is stood in for, not of epsim

_HOME = {
    "BufferAllocator": "allocator",
    "BufferBase": "base",
    "EventHandle": "events",
    "EventOverlap": "events",
    "destroy_all_managed_hccl_comm": "comm",
    "get_logical_domain_size": "comm",
    "get_num_allocation_alignment": "constants",
    "get_num_rdma_alignment": "constants",
    "get_num_tma_alignment": "constants",
    "get_physical_domain_size": "comm",
    "topk_idx_t": "constants",
}
_MODULES = ("comm", "utils")

__all__ = [
    "BufferAllocator",
    "BufferBase",
    "EventHandle",
    "EventOverlap",
    "comm",
    "destroy_all_managed_hccl_comm",
    "get_logical_domain_size",
    "get_num_allocation_alignment",
    "get_num_rdma_alignment",
    "get_num_tma_alignment",
    "get_physical_domain_size",
    "topk_idx_t",
    "utils",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type checker reads the imports above
    """Load a public name when it is first used."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
