"""`deep_ep.comm`: barriers, streams, communicator handles and domain sizes."""

from epsim.deep_ep.comm.barrier import barrier, get_comm_stream
from epsim.deep_ep.comm.domains import get_logical_domain_size, get_physical_domain_size
from epsim.deep_ep.comm.handle import (
    HCCLCommHandle,
    destroy_all_managed_hccl_comm,
    get_hccl_comm_handle,
)

__all__ = [
    "HCCLCommHandle",
    "barrier",
    "destroy_all_managed_hccl_comm",
    "get_comm_stream",
    "get_hccl_comm_handle",
    "get_logical_domain_size",
    "get_physical_domain_size",
]
