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
    from epsim.deep_ep import autograd, comm, utils
    from epsim.deep_ep.allocator import BufferAllocator
    from epsim.deep_ep.base import BufferBase
    from epsim.deep_ep.bucket import BucketBuffer
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
    from epsim.deep_ep.device import (
        calculate_ep_buffer_size,
        get_npu_arch,
        get_num_ai_cores,
        get_num_cube_cores,
        get_num_vec_cores,
        init_jit,
        set_barrier_in_prologue,
        set_npu_arch,
        set_num_cube_cores,
        set_num_vec_cores,
    )
    from epsim.deep_ep.elastic import ElasticBuffer
    from epsim.deep_ep.engram import EngramBuffer
    from epsim.deep_ep.ep import EPBuffer
    from epsim.deep_ep.events import EventHandle, EventOverlap
    from epsim.deep_ep.handle import EPHandle
    from epsim.deep_ep.pp import PPBuffer
    from epsim.deep_ep.session import BucketSession
    from epsim.deep_ep.utils.envs import dist_print, get_global_seed, get_local_seed, init_dist, init_seed
    from epsim.deep_ep.utils.testing import KernelProfile, bench_msprof

__version__ = "1.0.0"  # of the surface that is stood in for, not of epsim

_HOME = {
    "BucketBuffer": "bucket",
    "BucketSession": "session",
    "BufferAllocator": "allocator",
    "BufferBase": "base",
    "EPBuffer": "ep",
    "EPHandle": "handle",
    "ElasticBuffer": "elastic",
    "EngramBuffer": "engram",
    "EventHandle": "events",
    "EventOverlap": "events",
    "KernelProfile": "utils.testing",
    "PPBuffer": "pp",
    "bench_msprof": "utils.testing",
    "calculate_ep_buffer_size": "device",
    "destroy_all_managed_hccl_comm": "comm",
    "dist_print": "utils.envs",
    "get_global_seed": "utils.envs",
    "get_local_seed": "utils.envs",
    "get_logical_domain_size": "comm",
    "get_npu_arch": "device",
    "get_num_ai_cores": "device",
    "get_num_allocation_alignment": "constants",
    "get_num_cube_cores": "device",
    "get_num_rdma_alignment": "constants",
    "get_num_tma_alignment": "constants",
    "get_num_vec_cores": "device",
    "get_physical_domain_size": "comm",
    "init_dist": "utils.envs",
    "init_jit": "device",
    "init_seed": "utils.envs",
    "set_barrier_in_prologue": "device",
    "set_npu_arch": "device",
    "set_num_cube_cores": "device",
    "set_num_vec_cores": "device",
    "topk_idx_t": "constants",
}
_MODULES = ("autograd", "comm", "utils")

__all__ = [
    "BucketBuffer",
    "BucketSession",
    "BufferAllocator",
    "BufferBase",
    "EPBuffer",
    "EPHandle",
    "ElasticBuffer",
    "EngramBuffer",
    "EventHandle",
    "EventOverlap",
    "KernelProfile",
    "PPBuffer",
    "autograd",
    "bench_msprof",
    "calculate_ep_buffer_size",
    "comm",
    "destroy_all_managed_hccl_comm",
    "dist_print",
    "get_global_seed",
    "get_local_seed",
    "get_logical_domain_size",
    "get_npu_arch",
    "get_num_ai_cores",
    "get_num_allocation_alignment",
    "get_num_cube_cores",
    "get_num_rdma_alignment",
    "get_num_tma_alignment",
    "get_num_vec_cores",
    "get_physical_domain_size",
    "init_dist",
    "init_jit",
    "init_seed",
    "set_barrier_in_prologue",
    "set_npu_arch",
    "set_num_cube_cores",
    "set_num_vec_cores",
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
