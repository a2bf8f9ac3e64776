"""The conformance suite on the NPU backend with one rank, whose kernels are the reference.

Everything on the host takes part: sizes, strides, addresses, switches, counts, what is kept for later calls.
"""

import ctypes

import ml_dtypes
import npukit
import numpy as np
import pytest
import runtimekit as kit

from epsim.conform import run_conformance
from epsim.conform.outcome import Profile
from native.arguments import KERNELS
from native.backends import npu_rank
from native.backends.npu_rank import NpuRank
from native.buffers import HOST_COUNTS, MAX_RANKS
from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.handle import DispatchMode
from reference.order import library_order
from reference.topk import TopK

PROFILE = Profile(
    name="host", examples_per_cell=2, schedules=1, max_ranks=1, max_tokens=5, max_hidden=256,
    max_experts_per_rank=4, max_steps=5, wide=False, least_crossed=0,
)  # fmt: skip


def read(address, shape, dtype):
    if not address:
        return None
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(ctypes.string_at(address, size)), dtype).reshape(shape)


def write(address, array):
    content = np.ascontiguousarray(array).tobytes()
    ctypes.memmove(address, content, len(content))


class OneRank:
    """Kernels of one rank: each reads what its arguments name and writes what the reference says."""

    def __init__(self, bench):
        """Take over all launches."""
        self.handles, self.errors = {}, []
        self._hook = kit.HOOK(self._run)
        bench.fake.fake_on_launch(self._hook)

    def _run(self, name, packed, num_bytes):
        try:
            address = ctypes.c_uint64.from_address(packed).value
            kind = KERNELS[name.decode()]
            args = kind.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(kind)))
            getattr(self, name.decode())(args, args.cfg, args.comm.num_tokens)
        except BaseException as error:
            self.errors.append(error)

    def dispatch(self, args, cfg, n):
        is_fp8 = cfg.payload_bytes == cfg.hidden
        dtype = ml_dtypes.float8_e4m3fn if is_fp8 else ml_dtypes.bfloat16
        x = read(args.x, (n, cfg.hidden), dtype)
        assert (args.scale_token_stride, args.scale_pack_stride) in ((0, 0), (cfg.num_scale_packs, 1))
        scales = read(args.scales, (n, cfg.num_scale_packs), np.int16)
        weights = read(args.topk_weights, (n, cfg.num_topk), np.float32)
        given = {"scales": None if scales is None else (scales,), "zero_padding": bool(cfg.zero_padding)}
        if cfg.cached:
            self.kept = self.handles[args.psum_rank]
            weights = None if weights is None else (weights,)
            self.result = dispatch_cached((self.kept,), (x,), topk_weights=weights, **given)[0]
            return
        config = EPConfig(
            ep_size=1, num_experts=cfg.num_experts, num_topk=cfg.num_topk, hidden=cfg.hidden,
            num_max_tokens_per_rank=cfg.num_max_tokens, expert_alignment=cfg.expert_alignment,
        )  # fmt: skip
        ids = read(args.topk_idx, (n, cfg.num_topk), np.int64)
        topk = TopK(num_experts=cfg.num_experts, topk_idx=(ids,),
                    topk_weights=None if weights is None else (weights,))  # fmt: skip
        mode = DispatchMode(edition="ascend", cpu_sync=bool(cfg.cpu_sync), num_aivs=cfg.num_aivs)
        stats = read(args.stats, (cfg.num_experts,), np.int32)
        results, handles = dispatch(
            config, topk, (x,), mode=mode, stats=None if stats is None else (stats,), **given
        )
        self.result, self.kept = results[0], handles[0]
        self.handles[args.psum_rank] = self.kept
        self.deliver(args, cfg)

    def deliver(self, args, cfg):
        h, stats = self.kept, self.result.cumulative_local_expert_recv_stats
        write(args.dst_buffer_slot_idx, h.dst_buffer_slot_idx)
        write(args.dst_gsge_idx, h.dst_gsge_idx)
        write(args.psum_rank, h.psum_num_recv_tokens_per_rank)
        write(args.psum_expert, h.psum_num_recv_tokens_per_expert)
        write(args.num_unaligned, h.num_unaligned_recv_tokens_per_expert)
        if stats is not None:
            write(args.stats, stats)
        if cfg.cpu_sync:
            words = read(args.comm.host_workspace + HOST_COUNTS, (MAX_RANKS + cfg.num_experts,), np.uint32)
            assert not words.any()
            words[0] = 1 << 24 | h.num_real_recv_tokens
            words[MAX_RANKS:] = [1 << 24 | count for count in h.num_recv_tokens_per_expert_list]
            write(args.comm.host_workspace + HOST_COUNTS, words)

    def dispatch_epilogue(self, args, cfg, n):
        write(args.recv_x, self.result.recv_x)
        if not cfg.cached:
            write(args.recv_src_metadata, self.kept.recv_src_metadata)
        if self.result.recv_scales is not None:
            write(args.recv_scales, self.result.recv_scales)
        if self.result.recv_topk_weights is not None:
            write(args.recv_weights, self.result.recv_topk_weights)

    def combine(self, args, cfg, n):
        self.kept = self.handles[args.psum_rank]
        rows = self.kept.num_rows
        self.y = read(args.x, (rows, cfg.hidden), ml_dtypes.bfloat16)
        self.weights = read(args.topk_weights, (rows,), np.float32)
        metadata = read(args.recv_src_metadata, self.kept.recv_src_metadata.shape, np.int32)
        assert (metadata == self.kept.recv_src_metadata).all()

    def combine_epilogue(self, args, cfg, n):
        bias = [read(one, (n, cfg.hidden), ml_dtypes.bfloat16) for one in args.bias if one]
        order = library_order(expand=True, allow_multiple_reduction=not cfg.single_reduction, is_hybrid=False)
        weights = None if self.weights is None else (self.weights,)
        done = combine(
            (self.kept,), (self.y,), order=order, topk_weights=weights, bias=tuple((one,) for one in bias)
        )[0]
        write(args.combined_x, done.combined_x)
        if weights is not None:
            write(args.combined_weights, done.combined_topk_weights)


def has_reference(cell) -> bool:
    """Leave out what our kernels have and the reference's Ascend edition has not."""
    return not cell.has("one_rounding")


def test_suite_holds(tmp_path):
    bench = kit.Bench(tmp_path)
    kernels = OneRank(bench)
    outcome = run_conformance(npukit.backend_of(bench), PROFILE, only=has_reference)
    assert kernels.errors == []
    assert [row for row in outcome.cells if row.failure] == []
    assert (bench.broken_rules(), bench.num_held()) == ([], 0)


def forget_padding(right, *arguments, **options):
    config = right(*arguments, **options)
    config.zero_padding = 0
    return config


def swap_rows(right, *arguments, **options):
    arrays = right(*arguments, **options)
    return arrays | {"recv_x": arrays["recv_x"][::-1].copy()}


@pytest.mark.parametrize(
    ("owner", "name", "fault"), [(npu_rank, "configure", forget_padding), (NpuRank, "_receive", swap_rows)]
)
def test_suite_sees_faults_of_the_host(tmp_path, monkeypatch, owner, name, fault):
    bench = kit.Bench(tmp_path)
    kernels = OneRank(bench)
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **k: fault(right, *a, **k))
    outcome = run_conformance(npukit.backend_of(bench), PROFILE, only=has_reference, stop_at_failure=True)
    assert kernels.errors == []
    assert [row for row in outcome.cells if row.failure]
