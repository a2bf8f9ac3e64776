"""A buffer on the CPU twin: one machine, whose ranks all run in this process.

Each call queues its kernels on the streams of all ranks and runs them to their end;
with an odd schedule seed a cached dispatch of other rows that nobody wants is queued right behind, so that
fast ranks are in the next call while slow ones still read this one.

n own tokens, K top-k, H hidden, P scale packs of 2 bytes, R ranks, E experts, L local experts, M token
capacity, N received records, X expanded rows, C vector cores.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

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
from native.backends.protocol import (
    Array,
    BackendFailure,
    BufferSpec,
    CachedCall,
    CombineCall,
    Combined,
    DispatchCall,
    Dispatched,
    PerRank,
    Received,
    UnsupportedCellError,
)
from native.buffers import (
    HOST_COUNTS,
    MAX_RANKS,
    MAX_UB_BYTES,
    WORKSPACE_BYTES,
    combine_record_bytes,
    image_bytes,
    region_bytes,
    worst_case,
)
from native.errors import TwinViolation
from native.twin import Twin, TwinMachine
from reference.config import EPConfig
from reference.handle import DispatchMode, Handle, topk_digest
from reference.topk import TopK

SQ_DEPTH = 1024
# The timeout is beyond any run: a wait that nothing can end is reported as a deadlock, not as a timeout.
LIMITS = Limits(timeout_cycles=10**15, num_threads=64, sq_depth=SQ_DEPTH, ub_bytes=MAX_UB_BYTES)


@dataclass(kw_only=True, eq=False)
class _Kept:
    """What a dispatch leaves on the machine for later calls; addresses by rank and argument name."""

    call: DispatchCall
    num_records: int
    num_rows: int
    memory: list[dict[str, int]]


@dataclass(kw_only=True, eq=False)
class _Payload:
    """Rows to dispatch, and how."""

    x: PerRank
    scales: PerRank | None
    weights: PerRank | None
    cached: bool
    cpu_sync: bool = False
    zero_padding: bool = False


class TwinSession:
    """One buffer between all ranks of a machine."""

    def __init__(
        self,
        twin: Twin,
        spec: BufferSpec,
        params: Mapping[str, int | str],
        switches: Mapping[str, int],
        trace: Path | None = None,
    ) -> None:
        """Make the machine, its windows and its jetties."""
        self._spec, self._switches, self._trace = spec, switches, trace
        self._overlaps = bool(int(params["seed"]) & 1)
        ranks = spec.num_ranks
        self._machine = TwinMachine(
            twin,
            {"ranks": ranks, "aivs": spec.num_aivs, "ub_bytes": MAX_UB_BYTES, "sq_depth": SQ_DEPTH}
            | dict(params),
        )
        # The workspace is zero when a window is new; what the region holds is not to be relied on. The size
        # has no steps of 2 MiB as on the device: their marks would cost more time than the kernels.
        region = region_bytes(spec)
        size = WORKSPACE_BYTES + region
        self._windows = [self._alloc(rank, size, "window", is_zeroed=True) for rank in range(ranks)]
        for window in self._windows:
            self._machine.forget(window + WORKSPACE_BYTES, region)
            self._machine.write(window, np.array(self._windows, np.int64))
        self._hosts = [self._alloc(rank, WORKSPACE_BYTES, "host", is_zeroed=True) for rank in range(ranks)]
        if ranks > 1:
            self._machine.init_jetties()

    def dispatch(self, call: DispatchCall) -> Dispatched:
        """Run a dispatch."""
        if not call.expand:
            raise UnsupportedCellError("edition ascend has the expanded layout only")
        kept = self._new_handles(call)
        payload = _Payload(
            x=call.x, scales=call.scales, weights=call.topk.topk_weights, cached=False,
            cpu_sync=call.cpu_sync, zero_padding=call.zero_padding,
        )  # fmt: skip
        outputs = [self._start_dispatch(rank, kept, payload) for rank in range(self._spec.num_ranks)]
        self._run(kept)
        counts = [self._counts(rank, kept) for rank in range(self._spec.num_ranks)]
        received = tuple(
            self._received(rank, kept, payload, outputs[rank], counts[rank], call.column_major_scales)
            for rank in range(self._spec.num_ranks)
        )
        mode = DispatchMode(edition="ascend", cpu_sync=call.cpu_sync, num_aivs=self._spec.num_aivs)
        handles = tuple(self._handle(rank, kept, mode, counts[rank]) for rank in range(self._spec.num_ranks))
        return Dispatched(received=received, handles=handles, key=kept)

    def dispatch_cached(self, before: Dispatched, call: CachedCall) -> Dispatched:
        """Run a cached dispatch."""
        kept = _kept(before)
        payload = _Payload(
            x=call.x,
            scales=call.scales,
            weights=call.topk_weights,
            cached=True,
            zero_padding=call.zero_padding,
        )
        outputs = [self._start_dispatch(rank, kept, payload) for rank in range(self._spec.num_ranks)]
        self._run(kept)
        received = tuple(
            self._received(rank, kept, payload, outputs[rank], _sizes(handle), call.column_major_scales)
            for rank, handle in enumerate(before.handles)
        )
        return Dispatched(received=received, handles=before.handles, key=kept)

    def combine(self, before: Dispatched, call: CombineCall) -> tuple[Combined, ...]:
        """Run a combine."""
        kept = _kept(before)
        outputs = [self._start_combine(rank, kept, call) for rank in range(self._spec.num_ranks)]
        self._run(kept)
        topk = kept.call.config.num_topk
        combined = []
        for rank, out in enumerate(outputs):
            tokens = len(kept.call.topk.topk_idx[rank])
            x = self._machine.read(out["combined_x"], (tokens, call.y[rank].shape[1]), call.y[rank].dtype)
            weights = None
            if call.topk_weights is not None:
                weights = self._machine.read(out["combined_weights"], (tokens, topk), np.float32)
            combined.append(Combined(combined_x=x, combined_topk_weights=weights))
        return tuple(combined)

    def close(self) -> None:
        """Write the trace, if one is kept, and free the machine."""
        if self._trace is not None:
            self._machine.trace(self._trace)
        self._machine.close()

    def _run(self, kept: _Kept) -> None:
        """Run what is queued; with it, if calls shall overlap, a dispatch that nobody wants."""
        if self._overlaps:
            unwanted = _Payload(
                x=[_other_rows(x) for x in kept.call.x], scales=None, weights=None, cached=True
            )
            for rank in range(self._spec.num_ranks):
                self._start_dispatch(rank, kept, unwanted)
        try:
            self._machine.run()
        except TwinViolation as violation:
            raise BackendFailure(str(violation)) from violation

    def _new_handles(self, call: DispatchCall) -> _Kept:
        records, rows = worst_case(call.config)
        memory = []
        for rank, topk_idx in enumerate(call.topk.topk_idx):
            shapes = handle_shapes(call.config, len(topk_idx), records)
            found = {name: self._alloc(rank, 4 * prod(shape), name) for name, shape in shapes.items()}
            found["topk_idx"] = self._put(rank, topk_idx, "topk_idx")
            if call.stats is not None:
                found["stats"] = self._put(rank, call.stats[rank], "stats")
            memory.append(found)
        return _Kept(call=call, num_records=records, num_rows=rows, memory=memory)

    def _start_dispatch(self, rank: int, kept: _Kept, payload: _Payload) -> dict[str, int]:
        """Queue both kernels of a dispatch on one rank; return the addresses of its outputs."""
        x, scales = payload.x[rank], None if payload.scales is None else payload.scales[rank]
        config, memory = kept.call.config, kept.memory[rank]
        cfg = self._config(
            config, x, scales,
            cached=payload.cached, cpu_sync=payload.cpu_sync, zero_padding=payload.zero_padding,
        )  # fmt: skip
        image = image_bytes(config.num_topk, cfg.num_scale_packs, cached=payload.cached)
        given = {"x": self._put(rank, x, "x"), "metadata_image": self._alloc(rank, len(x) * image, "image")}
        out = {"recv_x": self._alloc(rank, kept.num_rows * cfg.payload_bytes, "recv_x")}
        if scales is not None:
            given["scales"] = self._put(rank, scales, "scales")
            out["recv_scales"] = self._alloc(rank, 2 * kept.num_rows * cfg.num_scale_packs, "recv_scales")
        if payload.weights is not None:
            given["topk_weights"] = self._put(rank, payload.weights[rank], "topk_weights")
            out["recv_weights"] = self._alloc(rank, 4 * kept.num_rows, "recv_weights")
        send = DispatchArgs(cfg=cfg, comm=self._comm(rank, len(x)))
        if scales is not None:
            send.scale_token_stride, send.scale_pack_stride = (step // 2 for step in _strides(scales))
        names = ["topk_idx", *SENDER_TABLES]
        names += ["stats"] if "stats" in memory and not payload.cached else []
        if payload.cpu_sync:
            self._machine.write(self._hosts[rank] + HOST_COUNTS, np.zeros(4 * (MAX_RANKS + 2048), np.uint8))
        self._launch(rank, "dispatch", send, given | {name: memory[name] for name in names})
        if payload.cpu_sync:
            self._wait_counts(rank, config)
        last = DispatchEpilogueArgs(cfg=cfg, comm=self._comm(rank, len(x)))
        self._launch(rank, "dispatch_epilogue", last, out | {name: memory[name] for name in RECEIVER_TABLES})
        return out

    def _start_combine(self, rank: int, kept: _Kept, call: CombineCall) -> dict[str, int]:
        """Queue both kernels of a combine on one rank; return the addresses of its outputs."""
        config, memory, y = kept.call.config, kept.memory[rank], call.y[rank]
        tokens, hidden = len(kept.call.topk.topk_idx[rank]), y.shape[1]
        cfg = self._config(config, y)
        record = combine_record_bytes(hidden, config.num_topk)
        given = {"x": self._put(rank, y, "y")}
        given["send_buffer"] = self._alloc(rank, kept.num_records * record, "send_buffer")
        out = {"combined_x": self._alloc(rank, 2 * tokens * hidden, "combined_x")}
        if call.topk_weights is not None:
            given["topk_weights"] = self._put(rank, call.topk_weights[rank], "y weights")
            out["combined_weights"] = self._alloc(rank, 4 * tokens * config.num_topk, "combined_weights")
        given |= {name: memory[name] for name in ("recv_src_metadata", "psum_rank")}
        self._launch(rank, "combine", CombineArgs(cfg=cfg, comm=self._comm(rank, tokens)), given)
        last = CombineEpilogueArgs(cfg=cfg, comm=self._comm(rank, tokens))
        last.bias = (ctypes.c_uint64 * 2)(*(self._put(rank, one[rank], "bias") for one in call.bias))
        self._launch(rank, "combine_epilogue", last, out | {"topk_idx": memory["topk_idx"]})
        return out

    def _config(
        self, config: EPConfig, x: Array, scales: Array | None = None, **flags: bool
    ) -> RuntimeConfig:
        cfg = configure(LIMITS, self._spec, config, x, scales, **flags)
        for name, value in self._switches.items():
            setattr(cfg, name, value)
        return cfg

    def _comm(self, rank: int, num_tokens: int) -> Comm:
        comm = Comm(
            window=self._windows[rank], host_workspace=self._hosts[rank], rank=rank, num_tokens=num_tokens
        )
        if self._spec.num_ranks > 1:
            comm.jetty_table = self._machine.find(rank, "jetty_table")
            comm.peer_table = self._machine.find(rank, "peer_table")
        return comm

    def _launch(self, rank: int, kernel: str, args: KernelArgs, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            setattr(args, name, address)
        block = self._put(rank, np.frombuffer(bytes(args), np.uint8), f"args of {kernel}")
        self._machine.enqueue(rank, kernel, block, self._spec.num_aivs)

    def _wait_counts(self, rank: int, config: EPConfig) -> None:
        """Queue the host's wait for the counts of a fresh dispatch."""
        words = self._hosts[rank] + HOST_COUNTS
        for first, num_words, mask, value in awaited_counts(config):
            self._machine.enqueue_wait_words(rank, words + 4 * first, num_words, mask, value)

    def _counts(self, rank: int, kept: _Kept) -> tuple[int, int, tuple[int, ...]]:
        """Return records, rows and the aligned rows per expert, as the host knows them after a dispatch."""
        if not kept.call.cpu_sync:
            return kept.num_records, kept.num_rows, ()
        config = kept.call.config
        words = self._machine.read(self._hosts[rank] + HOST_COUNTS, num_count_words(config), np.int32)
        records, rows, aligned = read_counts(words, config)
        return records, rows, tuple(aligned.tolist())

    def _received(
        self, rank: int, kept: _Kept, payload: _Payload, out: Mapping[str, int],
        counts: tuple[int, int, tuple[int, ...]], is_column_major: bool,
    ) -> Received:  # fmt: skip
        x, rows, read = payload.x[rank], counts[1], self._machine.read
        scales = None
        if payload.scales is not None:
            scales = read(
                out["recv_scales"], (rows, payload.scales[rank].shape[1]), payload.scales[rank].dtype
            )
            scales = np.asfortranarray(scales) if is_column_major else scales
        stats = None
        if kept.call.stats is not None and not payload.cached:
            stats = read(kept.memory[rank]["stats"], kept.call.stats[rank].shape, np.int32)
        return Received(
            recv_x=read(out["recv_x"], (rows, x.shape[1]), x.dtype),
            recv_scales=scales,
            recv_topk_weights=None
            if payload.weights is None
            else read(out["recv_weights"], rows, np.float32),
            cumulative_local_expert_recv_stats=stats,
        )

    def _handle(
        self, rank: int, kept: _Kept, mode: DispatchMode, counts: tuple[int, int, tuple[int, ...]]
    ) -> Handle:
        topk: TopK = kept.call.topk
        config, idx = kept.call.config, topk.topk_idx[rank]
        tables = {
            name: self._machine.read(kept.memory[rank][name], shape, np.int32)
            for name, shape in handle_shapes(config, len(idx), counts[0]).items()
        }
        return Handle(
            rank=rank,
            config=config,
            mode=mode,
            source_topk_idx=idx,
            source_digest=topk_digest(idx),
            num_recv_tokens=counts[0],
            num_expanded_tokens=counts[1],
            num_recv_tokens_per_expert_list=counts[2],
            psum_num_recv_tokens_per_rank=tables["psum_rank"],
            psum_num_recv_tokens_per_expert=tables["psum_expert"],
            num_unaligned_recv_tokens_per_expert=tables["num_unaligned"],
            recv_src_metadata=tables["recv_src_metadata"],
            dst_buffer_slot_idx=tables["dst_buffer_slot_idx"],
            dst_gsge_idx=tables["dst_gsge_idx"],
        )

    def _alloc(self, rank: int, num_bytes: int, name: str, *, is_zeroed: bool = False) -> int:
        return self._machine.alloc(rank, max(32, num_bytes), name, is_zeroed=is_zeroed)

    def _put(self, rank: int, values: Array, name: str) -> int:
        """Copy an array to new memory as it lies: columns first where it is column-major."""
        address = self._alloc(rank, values.nbytes, name)
        laid = values.T if _is_column_major(values) else values
        self._machine.write(address, np.ascontiguousarray(laid).view(np.uint8))
        return address


def _is_column_major(values: Array) -> bool:
    return values.flags.f_contiguous and not values.flags.c_contiguous


def _strides(scales: Array) -> Sequence[int]:
    """Return the byte strides of an array as `_put` lays it; numpy's are arbitrary where a size is 0 or 1."""
    size, (tokens, packs) = scales.itemsize, scales.shape
    return (size, tokens * size) if _is_column_major(scales) else (packs * size, size)


def _sizes(handle: Handle) -> tuple[int, int, tuple[int, ...]]:
    return handle.num_recv_tokens, handle.num_expanded_tokens, handle.num_recv_tokens_per_expert_list


def _other_rows(x: Array) -> Array:
    """Return rows of the same shape whose every byte differs."""
    flipped: Any = ~np.ascontiguousarray(x).view(np.uint8)
    return np.asarray(flipped.view(x.dtype).reshape(x.shape))


def _kept(before: Dispatched) -> _Kept:
    assert isinstance(before.key, _Kept)
    return before.key
