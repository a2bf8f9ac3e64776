"""The NPU backend against the reference, on a fake NPU that delivers what the reference says."""

import ml_dtypes
import npukit
import numpy as np
import pytest
import runtimekit as kit

from native.backends.npu import packed, unpacked
from native.backends.protocol import (
    BackendFailure,
    BufferSpec,
    CachedCall,
    CombineCall,
    DispatchCall,
    Schedule,
    UnsupportedCellError,
)
from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.handle import DispatchMode
from reference.order import library_order
from reference.topk import TopK

R, M, H, K, E, PACKS = 2, 4, 128, 2, 4, 2
CONFIG = EPConfig(
    ep_size=R, num_experts=E, num_topk=K, num_max_tokens_per_rank=M, hidden=H, expert_alignment=8
)
SPEC = BufferSpec(num_ranks=R, num_max_tokens_per_rank=M, hidden=H, num_topk=K, num_aivs=2)
IDS = np.array([[0, 2], [1, -1], [3, 2]], np.int64)
WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def rows(count, seed, dtype=ml_dtypes.bfloat16):
    return np.random.default_rng(seed).normal(size=(count, H)).astype(dtype)


@pytest.fixture
def bench(tmp_path):
    return kit.Bench(tmp_path)


class Run:
    """A session of rank 0 of two equal ranks, with the reference beside it."""

    def __init__(self, bench, *, cpu_sync=True, fp8=False, stats=None):
        """Open it and ask the reference."""
        self.npu = npukit.Delivering(bench)
        self.session = npukit.backend_of(bench, R).open(SPEC, Schedule())
        x = rows(3, 1, ml_dtypes.float8_e4m3fn if fp8 else ml_dtypes.bfloat16)
        scales = np.arange(3 * PACKS, dtype=np.int16).reshape(3, PACKS) if fp8 else None
        self.call = DispatchCall(
            config=CONFIG,
            topk=TopK(num_experts=E, topk_idx=(IDS, IDS), topk_weights=(WEIGHTS, WEIGHTS)),
            x=(x, x),
            scales=None if scales is None else (scales, scales),
            cpu_sync=cpu_sync,
            stats=stats,
        )
        mode = DispatchMode(edition="ascend", cpu_sync=cpu_sync, num_aivs=2)
        self.results, self.handles = dispatch(
            CONFIG, self.call.topk, self.call.x, scales=self.call.scales, mode=mode, stats=stats
        )
        self.expect(self.results[0])

    def expect(self, result):
        """Make the kernels deliver a dispatch of the reference."""
        h = self.handles[0]
        self.npu.counts = (np.diff(h.psum_num_recv_tokens_per_rank, prepend=0),
                           h.num_recv_tokens_per_expert_list)  # fmt: skip
        self.npu.reads = {"dispatch": {"x": self.call.x[0].nbytes}}
        self.npu.arrays = {
            "dispatch": {
                "dst_buffer_slot_idx": h.dst_buffer_slot_idx,
                "dst_gsge_idx": h.dst_gsge_idx,
                "psum_rank": h.psum_num_recv_tokens_per_rank,
                "psum_expert": h.psum_num_recv_tokens_per_expert,
                "num_unaligned": h.num_unaligned_recv_tokens_per_expert,
            },
            "dispatch_epilogue": {"recv_x": result.recv_x, "recv_src_metadata": h.recv_src_metadata},
        }
        if result.recv_topk_weights is not None:
            self.npu.arrays["dispatch_epilogue"]["recv_weights"] = result.recv_topk_weights
        if result.recv_scales is not None:
            self.npu.arrays["dispatch_epilogue"]["recv_scales"] = result.recv_scales

    def dispatched(self):
        done = self.session.dispatch(self.call)
        assert self.npu.errors == []
        return done


def same(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("cpu_sync", [True, False])
@pytest.mark.parametrize("fp8", [True, False])
def test_dispatch_gives_what_the_kernels_wrote(bench, cpu_sync, fp8):
    run = Run(bench, cpu_sync=cpu_sync, fp8=fp8)
    done = run.dispatched()
    got, want = done.received[0], run.results[0]
    for name in ("recv_x", "recv_topk_weights", *(["recv_scales"] if fp8 else [])):
        same(getattr(got, name), getattr(want, name))
    assert (got.recv_scales is None) is not fp8
    for name, value in vars(run.handles[0]).items():
        if isinstance(value, np.ndarray):
            same(getattr(done.handles[0], name), value)
        elif name != "mode":
            assert getattr(done.handles[0], name) == value
    run.session.close()
    assert (bench.broken_rules(), bench.num_held()) == ([], 0)


def test_kernels_are_told_shapes_addresses_and_switches(bench):
    run = Run(bench, fp8=True)
    run.dispatched()
    args = run.npu.args["dispatch"]
    cfg = {name: getattr(args.cfg, name) for name, _ in args.cfg._fields_}
    assert cfg == {
        "timeout_cycles": 10**11, "num_ranks": R, "num_experts": E, "num_topk": K, "num_max_tokens": M,
        "expert_alignment": 8, "num_aivs": 2, "num_threads": 512, "hidden": H, "payload_bytes": H,
        "num_scale_packs": PACKS, "ub_bytes": 221184, "sq_depth": 32768, "cached": 0, "cpu_sync": 1,
        "barrier_in_prologue": 0,
        "zero_padding": 0, "single_reduction": 0, "rotate_by_aiv": 0, "early_doorbells": 0,
    }  # fmt: skip
    assert run.npu.seen["x"] == run.call.x[0].tobytes()
    assert (args.scale_token_stride, args.scale_pack_stride, args.stats) == (PACKS, 1, 0)
    assert (args.comm.rank, args.comm.num_tokens) == (0, 3)
    assert 0 not in (args.comm.window, args.comm.jetty_table, args.comm.peer_table, args.metadata_image)
    line = next(line for line in bench.log() if "WithHostArgs dispatch " in line)
    assert "dispatch blocks 2 stream 7 ub 221184 timeout 300 arguments " in line


def test_cached_dispatch_and_combine_use_what_the_dispatch_kept(bench):
    run = Run(bench)
    done = run.dispatched()
    fresh = run.npu.args["dispatch"]
    x = rows(3, 5)
    again = dispatch_cached(run.handles, (x, x))[0]
    run.expect(again)
    got = run.session.dispatch_cached(done, CachedCall(x=(x, x))).received[0]
    same(got.recv_x, again.recv_x)
    assert got.recv_topk_weights is None
    cached = run.npu.args["dispatch"]
    assert (cached.cfg.cached, cached.cfg.cpu_sync, cached.topk_idx) == (1, 0, 0)
    assert cached.dst_buffer_slot_idx == fresh.dst_buffer_slot_idx
    y, bias = rows(len(again.recv_x), 7), rows(3, 8)
    order = library_order(expand=True, allow_multiple_reduction=True, is_hybrid=False)
    sums = combine(run.handles, (y, y), order=order, bias=((bias, bias),))[0].combined_x
    run.npu.arrays = {"combine_epilogue": {"combined_x": sums}}
    combined = run.session.combine(done, CombineCall(y=(y, y), bias=((bias, bias),)))
    assert run.npu.errors == []
    same(combined[0].combined_x, sums)
    assert combined[0].combined_topk_weights is None
    last = run.npu.args["combine_epilogue"]
    assert (last.bias[0] != 0, last.bias[1], last.topk_idx != 0) == (True, 0, True)
    assert run.npu.args["combine"].recv_src_metadata == run.npu.args["dispatch_epilogue"].recv_src_metadata


def test_statistics_are_added_to_a_copy(bench):
    stats = np.array([5, 6], np.int32)
    run = Run(bench, stats=(stats, stats))
    run.npu.arrays["dispatch"]["stats"] = np.array([9, 9], np.int32)
    got = run.dispatched().received[0].cumulative_local_expert_recv_stats
    assert (got.tolist(), stats.tolist()) == ([9, 9], [5, 6])


def test_a_failure_of_one_rank_reaches_all(bench):
    run = Run(bench)
    bench.fail("aclrtLaunchKernelWithHostArgs", 1, 507015)
    sentence = "aclrtLaunchKernelWithHostArgs returned 507015"
    with pytest.raises(BackendFailure, match=f"^rank 0: {sentence}\nrank 1: {sentence}$"):
        run.session.dispatch(run.call)


def test_what_the_edition_lacks_is_unsupported(bench):
    run = Run(bench)
    fields = {**vars(run.call), "expand": False}
    with pytest.raises(UnsupportedCellError, match="expanded layout only"):
        run.session.dispatch(DispatchCall(**fields))


def test_capabilities_follow_the_device(bench):
    bench.option("vector_cores", 48)
    told = npukit.backend_of(bench, 8).capabilities()
    assert (told.num_ranks, told.num_aivs, told.edition) == ((8,), (2, 48), "ascend")
    assert set(told.unsupported) == {"deduplicated", "hybrid"}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int16, np.float32])
def test_arrays_travel_as_they_are(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    given = {"c": array, "f": np.asfortranarray(array), "none": None, "empty": array[:0], "flat": array[0]}
    back = unpacked(packed(given))
    assert list(back) == list(given)
    assert back.pop("none") is None
    for name, value in back.items():
        same(value, given[name])
        assert value.strides == given[name].strides
        assert value.flags.writeable
