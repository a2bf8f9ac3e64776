"""Communicator handles: on the CPU a name for a group, kept once per group."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

_handles: dict[str, "HCCLCommHandle"] = {}


@dataclass(frozen=True)
class HCCLCommHandle:
    """A communicator of a group.

    Args:
      name: of the communicator.
      managed: whether `destroy_all_managed_hccl_comm` may drop it.
      group: the process group.
    """

    name: str
    managed: bool
    group: Any


def get_hccl_comm_handle(group: Any = None, force_new_comm: bool = False) -> HCCLCommHandle:  # noqa: ANN401
    """Return the handle of a group, the same one at every call.

    Args:
      group: a process group, None = the default one.
      force_new_comm: return a new handle, which is not kept.
    """
    group = dist.group.WORLD if group is None else group
    name = f"deep_ep/{group.group_name}"
    if force_new_comm:
        return HCCLCommHandle(f"{name}/new", False, group)
    # A default group that was made anew has the old name, but is another one.
    if name not in _handles or _handles[name].group is not group:
        _handles[name] = HCCLCommHandle(name, True, group)
    return _handles[name]


def destroy_all_managed_hccl_comm() -> None:
    """Forget all kept handles; buffers that hold one are not affected."""
    _handles.clear()
