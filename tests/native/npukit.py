"""An NPU that is this process's memory: kernels are what the reference says that they deliver."""

import ctypes
from pathlib import Path

import numpy as np
import runtimekit as kit

from native.arguments import KERNELS
from native.backends.npu import NpuBackend
from native.backends.npu_kernels import KernelCache
from native.buffers import HOST_COUNTS, MAX_RANKS
from native.runtime import Kernel


class HostMemory:
    """Bytes with an address."""

    def __init__(self, content: bytes) -> None:
        """Hold a copy."""
        self.bytes = np.frombuffer(content, np.uint8).copy()

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data


class HostDevice:
    """Rank 0; every other rank answers as rank 0 does, but for its port."""

    comm_name = "group"
    rank = 0

    def __init__(self, num_ranks: int) -> None:
        """Be one of that many."""
        self.num_ranks = num_ranks

    def empty(self, num_bytes: int) -> HostMemory:
        return HostMemory(b"\xa5" * num_bytes)

    def put(self, array: np.ndarray) -> HostMemory:
        return HostMemory(np.ascontiguousarray(array).tobytes() or b"\0")

    def get(self, memory: HostMemory, num_bytes: int) -> bytes:
        return memory.bytes[:num_bytes].tobytes()

    def stream(self) -> int:
        return 7

    def all_gather(self, own: bytes) -> list[bytes]:
        return [own] * self.num_ranks


class HostKernels(KernelCache):
    """Kernels that are never compiled."""

    def find(self, name, config):
        return Kernel(self._runtime, Path("kernel.o"), name)


class Delivering:
    """Runs in place of each kernel: keeps its arguments, writes arrays to the addresses that they name."""

    def __init__(self, bench: kit.Bench) -> None:
        """Take over all launches; `arrays`, `counts` and `reads` say what they do."""
        self.bench, self.args, self.seen, self.arrays, self.counts = bench, {}, {}, {}, ((), ())
        self.errors: list[BaseException] = []
        self._hook = kit.HOOK(self._run)
        bench.fake.fake_on_launch(self._hook)

    def _run(self, name: bytes, packed: int, num_bytes: int) -> None:
        try:
            address = ctypes.c_uint64.from_address(packed).value
            kind = KERNELS[name.decode()]
            args = kind.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(kind)))
            self.args[name.decode()] = args
            for field, length in self.reads.get(name.decode(), {}).items():
                self.seen[field] = ctypes.string_at(getattr(args, field), length)
            for field, array in self.arrays.get(name.decode(), {}).items():
                content = np.ascontiguousarray(array).tobytes()
                ctypes.memmove(getattr(args, field), content, len(content))
            if name == b"dispatch" and args.cfg.cpu_sync:
                self._count(args)
        except BaseException as error:  # nothing gets through C: the test asks for it
            self.errors.append(error)

    reads: dict[str, dict[str, int]]

    def _count(self, args) -> None:
        arrived = args.cfg.num_ranks << 24
        for first, counts in zip((0, MAX_RANKS), self.counts, strict=True):
            words = (ctypes.c_uint32 * len(counts)).from_address(
                args.comm.host_workspace + HOST_COUNTS + 4 * first
            )
            words[:] = [arrived + int(count) for count in counts]


def backend_of(bench: kit.Bench, num_ranks: int = 1) -> NpuBackend:
    """Return the backend on a fake NPU."""
    return NpuBackend(HostDevice(num_ranks), bench.runtime, HostKernels(kit.settings(), bench.runtime))
