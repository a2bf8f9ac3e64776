"""The only module that imports torch_npu, late: with no CANN behind it even `import torch` fails."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from native.errors import NativeEnvironmentError
from native.runtime import AllGather, find_cann
from native.settings import JitSettings
from native.toolchain import device_toolchain, host_toolchain


def load() -> Any:  # noqa: ANN401 (torch, whose types are not followed)
    """Return torch with its NPU part.

    Raises:
      NativeEnvironmentError: what is missing, in one sentence.
    """
    for name in ("torch", "torch_npu"):
        if find_spec(name) is None:
            raise NativeEnvironmentError(f"{name} is not installed: python -m pip install 'epsim[npu]'")
    try:
        torch = import_module("torch")
        import_module("torch_npu")
    except (ImportError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise NativeEnvironmentError(f"torch_npu is installed but cannot be loaded: {said}") from None
    return torch


def what_is_missing(settings: JitSettings) -> str | None:
    """Return one sentence on the first thing that kernels on an NPU need and this machine lacks, or None.

    In order: torch, torch_npu, HCCL (torch_npu does not load without it), an NPU, the compilers of CANN, its
    headers, a host compiler.
    """
    try:
        torch = load()
        if not torch.npu.device_count():
            return "torch_npu finds no NPU"
        device_toolchain(settings)
        find_cann(settings)
        host_toolchain(settings)
    except NativeEnvironmentError as error:
        return str(error)
    return None


class TorchMemory:
    """Device memory that a tensor holds."""

    def __init__(self, tensor: Any) -> None:  # noqa: ANN401 (torch.Tensor)
        """Keep a contiguous uint8 tensor."""
        self.tensor = tensor

    @property
    def address(self) -> int:
        """Address of its first byte."""
        return int(self.tensor.data_ptr())


class TorchNpuDevice:
    """The NPU of this process and the group that it belongs to; work goes to torch_npu's current stream."""

    def __init__(self) -> None:
        """Join the group that torchrun started: one process per NPU, NPU = local rank.

        Raises:
          NativeEnvironmentError: no torch_npu, or no group.
        """
        self._torch = torch = load()
        distributed = import_module("torch.distributed")
        if not distributed.is_initialized():
            try:
                distributed.init_process_group("hccl")
            except (ValueError, RuntimeError) as error:
                said = " ".join(str(error).split())
                raise NativeEnvironmentError(f"no process group (start with torchrun): {said}") from None
        self._distributed = distributed
        self.rank, self.num_ranks = distributed.get_rank(), distributed.get_world_size()
        torch.npu.set_device(distributed.get_node_local_rank(fallback_rank=self.rank))
        group = distributed.distributed_c10d._get_default_group()
        # The communicator comes into being with the first collective, and its name with it.
        distributed.barrier()
        self.comm_name = str(group._get_backend(torch.device("npu")).get_hccl_comm_name(self.rank))

    def empty(self, num_bytes: int) -> TorchMemory:
        """Allocate; content is undefined."""
        return TorchMemory(self._torch.empty(num_bytes, dtype=self._torch.uint8, device="npu"))

    def put(self, array: np.ndarray) -> TorchMemory:
        """Copy an array, in C order, to the device, ordered with the current stream."""
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes() or b"\0", np.uint8).copy()
        return TorchMemory(self._torch.from_numpy(raw).to("npu"))

    def get(self, memory: TorchMemory, num_bytes: int) -> bytes:
        """Copy the first bytes back; waits for all work of the current stream."""
        return bytes(memory.tensor[:num_bytes].cpu().numpy().tobytes())

    def stream(self) -> int:
        """Return the current ACL stream. Asking for it empties torch_npu's queue first (B-YU11)."""
        return int(self._torch.npu.current_stream().npu_stream)

    @property
    def all_gather(self) -> AllGather:
        """A collective over bytes, whose numbers may differ between ranks."""
        return self._all_gather

    def _all_gather(self, own: bytes) -> list[bytes]:
        torch, distributed = self._torch, self._distributed
        sizes = [torch.zeros(1, dtype=torch.int64, device="npu") for _ in range(self.num_ranks)]
        distributed.all_gather(sizes, torch.tensor([len(own)], dtype=torch.int64, device="npu"))
        lengths = [int(size.item()) for size in sizes]
        longest = max(1, *lengths)
        padded = self.put(np.frombuffer(own.ljust(longest, b"\0"), np.uint8)).tensor
        given = [torch.empty(longest, dtype=torch.uint8, device="npu") for _ in range(self.num_ranks)]
        distributed.all_gather(given, padded)
        return [
            bytes(one[:length].cpu().numpy().tobytes()) for one, length in zip(given, lengths, strict=True)
        ]
