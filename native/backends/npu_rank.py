"""What one rank does to run our kernels on its NPU: memory, arguments, launches, counts, results.

n own tokens, K top-k, H hidden, P scale packs of 2 bytes, R ranks, E experts, L local experts, M token
capacity, N received records, X expanded rows, A alignment, C vector cores.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from native.arguments import (
    CombineArgs,
    CombineEpilogueArgs,
    Comm,
    DispatchArgs,
    DispatchEpilogueArgs,
    KernelArgs,
    RuntimeConfig,
)
from native.backends.calls import (
    RECEIVER_TABLES,
    SENDER_TABLES,
    Limits,
    awaited_counts,
    configure,
    handle_shapes,
    num_count_words,
    read_counts,
)
from native.backends.npu_kernels import KernelCache
from native.backends.protocol import Array, BufferSpec, CachedCall, CombineCall, DispatchCall
from native.buffers import (
    HOST_COUNTS,
    MAX_UB_BYTES,
    combine_record_bytes,
    image_bytes,
    window_bytes,
    worst_case,
)
from native.runtime import AllGather, Domain, DomainSpec, Runtime
from reference.config import EPConfig

CPU_TIMEOUT_SECS, DEVICE_TIMEOUT_SECS = 300, 100
"""Upstream's defaults (deepep-ascend.md 1.2); the system counter runs at 1 GHz."""
NUM_THREADS = 512
SQ_DEPTH = 32_768
"""Blocks of a jetty's ring; the runtime refuses jetties with another number."""


class Memory(Protocol):
    """Device memory, freed with its owner."""

    @property
    def address(self) -> int:
        """Address of its first byte."""
        ...


class Device(Protocol):
    """The NPU of a process."""

    rank: int
    num_ranks: int
    comm_name: str

    def empty(self, num_bytes: int) -> Any:  # noqa: ANN401 (its own kind of Memory)
        """Allocate."""
        ...

    def put(self, array: np.ndarray) -> Any:  # noqa: ANN401
        """Copy an array in C order to new memory; at least one byte."""
        ...

    def get(self, memory: Any, num_bytes: int) -> bytes:  # noqa: ANN401
        """Copy the first bytes back after all work of the stream."""
        ...

    def stream(self) -> int:
        """Return the ACL stream, with all copies so far queued on it."""
        ...

    @property
    def all_gather(self) -> AllGather:
        """A collective over bytes."""
        ...


@dataclass(kw_only=True, eq=False)
class RankBuffer:
    """What a rank keeps of a dispatch on its device, for combine and for a cached dispatch.

    Args:
      config: of the group.
      cfg: configuration of the fresh dispatch.
      num_tokens: n.
      num_records: N of what was allocated.
      num_rows: X of what was allocated.
      memory: by name of an argument.
    """

    config: EPConfig
    cfg: RuntimeConfig
    num_tokens: int
    num_records: int = 0
    num_rows: int = 0
    memory: dict[str, Any] = field(default_factory=dict)


class NpuRank:
    """One rank's open buffer."""

    def __init__(self, device: Device, runtime: Runtime, kernels: KernelCache, spec: BufferSpec) -> None:
        """Open it together with the other ranks.

        Raises:
          DeviceFailure: it cannot be opened; nothing stays behind.
        """
        self._device, self._kernels, self._spec = device, kernels, spec
        num_cores, ub_bytes = runtime.limits()
        self._limits = Limits(
            timeout_cycles=DEVICE_TIMEOUT_SECS * 10**9,
            num_threads=NUM_THREADS,
            sq_depth=SQ_DEPTH,
            ub_bytes=min(ub_bytes, MAX_UB_BYTES),
        )
        self._domain = Domain(
            runtime,
            DomainSpec(
                comm_name=device.comm_name,
                rank=device.rank,
                num_ranks=spec.num_ranks,
                num_jetties=min(num_cores, spec.num_aivs),
                window_bytes=window_bytes(spec),
                cpu_timeout_ms=1000 * CPU_TIMEOUT_SECS,
            ),
            device.all_gather,
        )
        device.all_gather(b"")  # nobody sends before all windows are known everywhere

    def close(self) -> Mapping[str, Array | None]:
        """Release everything."""
        self._domain.close()
        return {}

    def dispatch(self, call: DispatchCall) -> tuple[RankBuffer, dict[str, Array | None]]:
        """Run a dispatch; the arrays are Received's and Handle's, by name, plus "aligned_counts" [L]."""
        me, config = self._device.rank, call.config
        topk_idx, x = call.topk.topk_idx[me], call.x[me]
        scales = None if call.scales is None else call.scales[me]
        weights = None if call.topk.topk_weights is None else call.topk.topk_weights[me]
        stats = None if call.stats is None else call.stats[me]
        cfg = configure(
            self._limits, self._spec, config, x, scales,
            cpu_sync=call.cpu_sync, zero_padding=call.zero_padding,
        )  # fmt: skip
        buffer = RankBuffer(config=config, cfg=cfg, num_tokens=len(x))
        local = config.num_experts // config.ep_size
        shapes = handle_shapes(config, len(topk_idx), 0)
        for name in SENDER_TABLES:
            buffer.memory[name] = self._device.empty(max(4, 4 * prod(shapes[name])))
        buffer.memory["topk_idx"] = self._device.put(topk_idx)
        given = {"topk_idx": buffer.memory["topk_idx"]}
        if stats is not None:
            given["stats"] = self._device.put(stats)
        words = self._domain.host_words(HOST_COUNTS, num_count_words(config))
        words[:] = 0
        self._send(buffer, cfg, x, scales, weights, given)
        aligned = self._wait_counts(buffer) if call.cpu_sync else None
        if not call.cpu_sync:
            self._assume_worst(buffer)
        arrays = self._receive(buffer, cfg, scales, has_weights=weights is not None)
        if call.column_major_scales and arrays["recv_scales"] is not None:
            arrays["recv_scales"] = np.asfortranarray(arrays["recv_scales"])
        arrays |= self._handle_arrays(buffer)
        arrays["aligned_counts"] = aligned
        arrays["cumulative_local_expert_recv_stats"] = (
            None if stats is None else self._get(given["stats"], (local,), np.int32)
        )
        return buffer, arrays

    def dispatch_cached(self, buffer: RankBuffer, call: CachedCall) -> dict[str, Array | None]:
        """Run a cached dispatch into the rows of an earlier one."""
        me = self._device.rank
        scales = None if call.scales is None else call.scales[me]
        weights = None if call.topk_weights is None else call.topk_weights[me]
        cfg = configure(
            self._limits, self._spec, buffer.config, call.x[me], scales,
            cached=True, zero_padding=call.zero_padding,
        )  # fmt: skip
        self._send(buffer, cfg, call.x[me], scales, weights, {})
        arrays = self._receive(buffer, cfg, scales, has_weights=weights is not None)
        if call.column_major_scales and arrays["recv_scales"] is not None:
            arrays["recv_scales"] = np.asfortranarray(arrays["recv_scales"])
        return arrays

    def combine(self, buffer: RankBuffer, call: CombineCall) -> dict[str, Array | None]:
        """Run a combine; the arrays are Combined's."""
        me, topk, n = self._device.rank, buffer.config.num_topk, buffer.num_tokens
        y = call.y[me]
        hidden = y.shape[1]
        weights = None if call.topk_weights is None else call.topk_weights[me]
        cfg = configure(self._limits, self._spec, buffer.config, y)
        held = {"x": self._device.put(y)}
        if weights is not None:
            held["topk_weights"] = self._device.put(weights)
        record = combine_record_bytes(hidden, topk)
        held["send_buffer"] = self._device.empty(max(1, buffer.num_records) * record)
        args = CombineArgs(cfg=cfg, comm=self._comm(n))
        self._launch("combine", args, cfg, held | _chosen(buffer, "recv_src_metadata", "psum_rank"))
        out = {"combined_x": self._device.empty(max(1, 2 * n * hidden))}
        if weights is not None:
            out["combined_weights"] = self._device.empty(max(1, 4 * n * topk))
        biases = [self._device.put(one[me]) for one in call.bias]
        last = CombineEpilogueArgs(cfg=cfg, comm=self._comm(n))
        last.bias = (ctypes.c_uint64 * 2)(*(one.address for one in biases))
        self._launch("combine_epilogue", last, cfg, out | _chosen(buffer, "topk_idx"))
        combined = self._get(out["combined_x"], (n, hidden), y.dtype)
        del held, biases  # the copy back has waited for both kernels
        return {
            "combined_x": combined,
            "combined_topk_weights": (
                None if weights is None else self._get(out["combined_weights"], (n, topk), np.float32)
            ),
        }

    def _comm(self, num_tokens: int) -> Comm:
        where = self._domain.addresses
        return Comm(
            window=where.window,
            host_workspace=where.host_workspace,
            jetty_table=where.jetty_table,
            peer_table=where.peer_table,
            rank=self._device.rank,
            num_tokens=num_tokens,
        )

    def _launch(self, name: str, args: KernelArgs, cfg: RuntimeConfig, memory: Mapping[str, Any]) -> None:
        """Launch a kernel whose address arguments are those of `memory`, by name."""
        for field_name, one in memory.items():
            setattr(args, field_name, one.address)
        held = self._device.put(np.frombuffer(bytes(args), np.uint8))
        self._kernels.find(name, cfg).launch(
            num_blocks=cfg.num_aivs,
            stream=self._device.stream(),
            ub_bytes=cfg.ub_bytes,
            timeout_secs=CPU_TIMEOUT_SECS,
            arguments=[ctypes.c_uint64(held.address)],
        )
        self._last_args = held  # the allocator may reuse it only behind the launch, on the same stream

    def _send(
        self,
        buffer: RankBuffer,
        cfg: RuntimeConfig,
        x: Array,
        scales: Array | None,
        weights: Array | None,
        given: Mapping[str, Any],
    ) -> None:
        args = DispatchArgs(cfg=cfg, comm=self._comm(buffer.num_tokens))
        held = {"x": self._device.put(x)} | dict(given)
        if scales is not None:
            held["scales"] = self._device.put(scales)
            args.scale_token_stride, args.scale_pack_stride = scales.shape[1], 1
        if weights is not None:
            held["topk_weights"] = self._device.put(weights)
        size = image_bytes(cfg.num_topk, cfg.num_scale_packs, cached=bool(cfg.cached))
        held["metadata_image"] = self._device.empty(max(1, buffer.num_tokens) * size)
        self._launch("dispatch", args, cfg, held | _chosen(buffer, *SENDER_TABLES))
        buffer.memory |= {"sent_" + name: one for name, one in held.items()}  # until the exit barrier

    def _receive(
        self, buffer: RankBuffer, cfg: RuntimeConfig, scales: Array | None, *, has_weights: bool
    ) -> dict[str, Array | None]:
        rows, packs, topk = buffer.num_rows, cfg.num_scale_packs, cfg.num_topk
        out = {"recv_x": self._device.empty(max(1, rows * cfg.payload_bytes))}
        if scales is not None:
            out["recv_scales"] = self._device.empty(max(1, 2 * rows * packs))
        if has_weights:
            out["recv_weights"] = self._device.empty(max(1, 4 * rows))
        if not cfg.cached:
            size = max(1, 4 * buffer.num_records * (topk + 2))
            buffer.memory["recv_src_metadata"] = self._device.empty(size)
        args = DispatchEpilogueArgs(cfg=cfg, comm=self._comm(buffer.num_tokens))
        self._launch("dispatch_epilogue", args, cfg, out | _chosen(buffer, *RECEIVER_TABLES))
        dtype = _fp8() if cfg.payload_bytes == cfg.hidden else _bf16()
        arrays: dict[str, Array | None] = {
            "recv_x": self._get(out["recv_x"], (rows, cfg.hidden), dtype),
            "recv_scales": None
            if scales is None
            else self._get(out["recv_scales"], (rows, packs), scales.dtype),
            "recv_topk_weights": (
                self._get(out["recv_weights"], (rows,), np.float32) if has_weights else None
            ),
        }
        for name in [name for name in buffer.memory if name.startswith("sent_")]:
            del buffer.memory[name]  # the copy back has waited for the exit barrier
        return arrays

    def _handle_arrays(self, buffer: RankBuffer) -> dict[str, Array | None]:
        shapes = handle_shapes(buffer.config, buffer.num_tokens, buffer.num_records)
        return {name: self._get(buffer.memory[name], shape, np.int32) for name, shape in shapes.items()}

    def _wait_counts(self, buffer: RankBuffer) -> Array:
        """Read the counts of a dispatch off the host workspace; return [L] aligned rows."""
        config = buffer.config
        for first, num_words, mask, value in awaited_counts(config):
            self._domain.wait_words(
                HOST_COUNTS + 4 * first, num_words, mask=mask, value=value,
                timeout_ms=1000 * CPU_TIMEOUT_SECS,
            )  # fmt: skip
        words = self._domain.host_words(HOST_COUNTS, num_count_words(config))
        buffer.num_records, buffer.num_rows, aligned = read_counts(words, config)
        return aligned

    def _assume_worst(self, buffer: RankBuffer) -> None:
        buffer.num_records, buffer.num_rows = worst_case(buffer.config)

    def _get(self, memory: Any, shape: tuple[int, ...], dtype: Any) -> Array:  # noqa: ANN401
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(self._device.get(memory, num_bytes), dtype).reshape(shape).copy()


def _chosen(buffer: RankBuffer, *names: str) -> dict[str, Any]:
    return {name: buffer.memory[name] for name in names}


def _fp8() -> Any:  # noqa: ANN401 (a dtype of ml_dtypes)
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn


def _bf16() -> Any:  # noqa: ANN401
    import ml_dtypes

    return ml_dtypes.bfloat16
