"""Our kernels on Ascend 950s, one process per NPU: all run the same program, and each its own rank of it.

Under torchrun all processes make the same calls with the same arguments; each runs its rank, then results
are gathered, so that every process returns those of all ranks. Written from public facts and tested against
a fake CANN; what only hardware can prove is in docs/hardware-status.md.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from native.backends.npu_kernels import KernelCache
from native.backends.npu_rank import Device, NpuRank, RankBuffer
from native.backends.protocol import (
    Array,
    BackendFailure,
    BufferSpec,
    CachedCall,
    Capabilities,
    CombineCall,
    Combined,
    DispatchCall,
    Dispatched,
    Received,
    Schedule,
    UnsupportedCellError,
)
from native.backends.torch_npu import TorchNpuDevice, what_is_missing
from native.errors import CompileError, NativeEnvironmentError
from native.runtime import DeviceFailure, Runtime, build_runtime
from native.settings import JitSettings
from reference.handle import DispatchMode, Handle, topk_digest
from reference.topk import TopK

MIN_AIVS, MAX_AIVS = 2, 64


class NpuBackend:
    """Our kernels, compiled for the device at run time, on this process's NPU and its group."""

    name = "npu"

    def __init__(self, device: Device, runtime: Runtime, kernels: KernelCache) -> None:
        """Use a device; `npu_backend` finds one."""
        self.device, self.runtime, self.kernels = device, runtime, kernels

    def capabilities(self) -> Capabilities:
        """Say what the kernels have; a group has the size that torchrun gave it."""
        most = min(MAX_AIVS, self.runtime.limits()[0])
        return Capabilities(
            edition="ascend",
            num_ranks=(self.device.num_ranks,),
            unsupported={
                "deduplicated": "edition ascend has the expanded layout only",
                "hybrid": "edition ascend has one flat domain",
            },
            num_aivs=tuple(sorted({MIN_AIVS, most})),
            aivs=range(MIN_AIVS, most + 1),
            hidden=128,
        )

    def open(self, spec: BufferSpec, schedule: Schedule) -> "NpuSession":
        """Open a buffer together with the other processes; a device has no schedule to choose."""
        del schedule
        return NpuSession(NpuRank(self.device, self.runtime, self.kernels, spec), spec, self.device)

    def shutdown(self) -> None:
        """Give back nothing: kernels and windows stay with the process."""


def npu_backend(settings: JitSettings) -> NpuBackend:
    """Return the backend of this process.

    Raises:
      NativeEnvironmentError: what is missing, in one sentence; exit code 3.
      CompileError: the runtime does not compile against this release of CANN.
    """
    if lacks := what_is_missing(settings):
        raise NativeEnvironmentError(f"kernels on an NPU cannot run here: {lacks}")
    runtime = Runtime(build_runtime(settings))
    return NpuBackend(TorchNpuDevice(), runtime, KernelCache(settings, runtime))


class NpuSession:
    """One buffer: runs this process's rank and gathers what the others have."""

    def __init__(self, rank: NpuRank, spec: BufferSpec, device: Device) -> None:
        """Wrap an open buffer of a rank."""
        self._rank, self._spec, self._device = rank, spec, device

    def dispatch(self, call: DispatchCall) -> Dispatched:
        """Run a dispatch."""
        if not call.expand:
            raise UnsupportedCellError("edition ascend has the expanded layout only")
        mode = DispatchMode(edition="ascend", cpu_sync=call.cpu_sync, num_aivs=self._spec.num_aivs)
        kept: list[RankBuffer] = []

        def run() -> Mapping[str, Array | None]:
            buffer, arrays = self._rank.dispatch(call)
            kept.append(buffer)
            return arrays

        answers = self._together(run)
        return _dispatched(answers, call, mode, kept[0])

    def dispatch_cached(self, before: Dispatched, call: CachedCall) -> Dispatched:
        """Run a cached dispatch."""
        buffer = _buffer_of(before)
        answers = self._together(lambda: self._rank.dispatch_cached(buffer, call))
        return Dispatched(
            received=tuple(_received(answer) for answer in answers), handles=before.handles, key=buffer
        )

    def combine(self, before: Dispatched, call: CombineCall) -> tuple[Combined, ...]:
        """Run a combine."""
        answers = self._together(lambda: self._rank.combine(_buffer_of(before), call))
        return tuple(Combined(**answer) for answer in answers)

    def close(self) -> None:
        """End the buffer."""
        self._together(self._rank.close)

    def _together(self, run: Callable[[], Mapping[str, Array | None]]) -> list[dict[str, Any]]:
        """Run this rank, then gather; a rank that fails tells the others, which would wait for it."""
        try:
            own = packed(run())
        except (DeviceFailure, CompileError, NativeEnvironmentError, RuntimeError) as error:
            own = json.dumps({"error": str(error)}).encode() + b"\n"
        given = self._device.all_gather(own)
        problems = [
            f"rank {rank}: {head['error']}"
            for rank, one in enumerate(given)
            if "error" in (head := json.loads(one.partition(b"\n")[0]))
        ]
        if problems:
            raise BackendFailure("\n".join(problems))
        return [unpacked(one) for one in given]


def packed(arrays: Mapping[str, Array | None]) -> bytes:
    """Return arrays as bytes: one line of JSON, then their content in Fortran order where they have it."""
    heads: dict[str, list[Any] | None] = {}
    contents = []
    for name, array in arrays.items():
        if array is None:
            heads[name] = None
            continue
        order: Literal["F", "C"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        contents.append(array.tobytes(order))
        heads[name] = [array.dtype.name, list(array.shape), order]
    return json.dumps(heads).encode() + b"\n" + b"".join(contents)


def unpacked(content: bytes) -> dict[str, Any]:
    """Return the arrays of `packed`; nothing in the bytes is run."""
    head, _, rest = content.partition(b"\n")
    arrays: dict[str, Any] = {}
    start = 0
    for name, described in json.loads(head).items():
        arrays[name] = None
        if described is not None:
            dtype, shape, order = np.dtype(described[0]), described[1], described[2]
            count = int(np.prod(shape))
            flat = np.frombuffer(rest, dtype, count, start).copy()
            arrays[name] = flat.reshape(shape, order=order)
            start += count * dtype.itemsize
    return arrays


def _received(answer: Mapping[str, Any]) -> Received:
    return Received(
        recv_x=answer["recv_x"],
        recv_scales=answer["recv_scales"],
        recv_topk_weights=answer["recv_topk_weights"],
        cumulative_local_expert_recv_stats=answer.get("cumulative_local_expert_recv_stats"),
    )


def _dispatched(
    answers: list[dict[str, Any]], call: DispatchCall, mode: DispatchMode, buffer: RankBuffer
) -> Dispatched:
    handles = tuple(_handle(rank, answer, call, mode) for rank, answer in enumerate(answers))
    return Dispatched(received=tuple(_received(answer) for answer in answers), handles=handles, key=buffer)


def _handle(rank: int, answer: Mapping[str, Any], call: DispatchCall, mode: DispatchMode) -> Handle:
    topk: TopK = call.topk
    aligned = answer["aligned_counts"]
    return Handle(
        rank=rank,
        config=call.config,
        mode=mode,
        source_topk_idx=topk.topk_idx[rank],
        source_digest=topk_digest(topk.topk_idx[rank]),
        num_recv_tokens=len(answer["recv_src_metadata"]),
        num_expanded_tokens=len(answer["recv_x"]),
        num_recv_tokens_per_expert_list=() if aligned is None else tuple(map(int, aligned)),
        psum_num_recv_tokens_per_rank=answer["psum_rank"],
        psum_num_recv_tokens_per_expert=answer["psum_expert"],
        num_unaligned_recv_tokens_per_expert=answer["num_unaligned"],
        recv_src_metadata=answer["recv_src_metadata"],
        dst_buffer_slot_idx=answer["dst_buffer_slot_idx"],
        dst_gsge_idx=answer["dst_gsge_idx"],
    )


def _buffer_of(before: Dispatched) -> RankBuffer:
    assert isinstance(before.key, RankBuffer)
    return before.key
