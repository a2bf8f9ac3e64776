"""The buffer around its operations: sizes, attributes, storage, communicators, streams, lifetimes."""

import contextlib
import gc
import io
import warnings

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import tensor_of
from epsim.deep_ep.errors import HostCheckError, RankMismatchError, RefusedError, UndefinedError
from epsim.deep_ep.handle import EPHandle
from reference.experts.redundancy import lb_prefetch_weights, lb_reduce_grads
from reference.order import RANK_REDUCED
from tests.epsim.deep_ep.group_cases import assert_bits, check_combine, define_combined, make_case
from tests.epsim.deep_ep.spawning import run_ranks
from tests.reference.exchange import BF16, FP8, random_bits, random_rows

MIB2 = 2 * 2**20
HINTS = [  # ranks, M, H, K, fp8 -> bytes; deepep-ascend.md section 1.4
    (8, 4096, 7168, 6, False, 473_956_352),
    (8, 4096, 7168, 6, True, 354_418_688),
    (8, 16384, 7168, 6, False, 1_891_631_104),
    (8, 16384, 7168, 6, True, 1_413_480_448),
    (64, 4096, 7168, 8, False, 3_791_650_816),
    (64, 4096, 7168, 8, True, 2_030_043_136),
    (128, 16384, 7168, 6, False, 30_266_097_664),
    (8, 4096, 7168, 0, False, 484_442_112),
    (2, 16, 1024, 1, False, 2_097_152),
]


@pytest.mark.parametrize("row", HINTS)
def test_the_size_hint_has_the_published_numbers(row):
    """Every row of the table of worked numbers."""
    *arguments, num_bytes = row
    assert deep_ep.calculate_ep_buffer_size(*arguments) == num_bytes


def test_a_size_hint_refuses_numbers_that_mean_nothing():
    """Zero tokens, or a negative top-k."""
    for wrong in ((2, 0, 64, 1, False), (2, 4, 64, -1, False), (0, 4, 64, 1, False)):
        with pytest.raises(HostCheckError, match="must be positive"):
            deep_ep.calculate_ep_buffer_size(*wrong)


def test_every_public_name_can_be_imported():
    """Names are loaded late, so a wrong home would only show when a user needs it."""
    for name in deep_ep.__all__:
        assert getattr(deep_ep, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Buffer'"):
        _ = deep_ep.Buffer
    alignments = (deep_ep.get_num_allocation_alignment(), deep_ep.get_num_rdma_alignment())
    assert (*alignments, deep_ep.get_num_tma_alignment()) == (2_097_152, 32, 32)
    assert deep_ep.topk_idx_t == torch.int64


def test_device_questions_have_the_answers_of_a_950():
    """Settings are kept, and change nothing else."""
    assert deep_ep.get_num_ai_cores() == 32
    assert (deep_ep.get_num_vec_cores(), deep_ep.get_num_cube_cores()) == (64, 32)
    deep_ep.set_num_vec_cores(8)
    deep_ep.set_num_cube_cores(4)
    assert (deep_ep.get_num_vec_cores(), deep_ep.get_num_cube_cores()) == (8, 4)
    deep_ep.set_num_vec_cores(0)
    deep_ep.set_num_cube_cores(0)
    assert (deep_ep.get_num_vec_cores(), deep_ep.get_num_cube_cores()) == (64, 32)
    assert deep_ep.set_barrier_in_prologue(True) is False
    assert deep_ep.set_barrier_in_prologue(False) is True
    arch = deep_ep.get_npu_arch()
    deep_ep.set_npu_arch(arch)
    deep_ep.init_jit("anywhere")


def test_a_plan_gives_its_placeholders_their_memory_in_place():
    """Identity of the objects, offsets at 2 MiB, and one storage behind all."""
    plan = deep_ep.BufferAllocator()
    a, b = plan.allocate((3, 5), torch.bfloat16), plan.allocate([MIB2 + 1], torch.float8_e4m3fn)
    empty, c = plan.allocate((0, 4), torch.int64), plan.allocate((7,), torch.int32)
    kept = {"a": a, "b": b}
    assert a.is_meta
    assert plan.num_bytes == 4 * MIB2
    storage = torch.zeros(plan.num_bytes, dtype=torch.uint8)
    plan.materialize(storage)
    assert [t.data_ptr() - storage.data_ptr() for t in (a, b, c)] == [0, MIB2, 3 * MIB2]
    assert (a.shape, b.dtype, empty.numel()) == ((3, 5), torch.float8_e4m3fn, 0)
    c.fill_(-1)
    assert storage[3 * MIB2 : 3 * MIB2 + 28].eq(255).all()
    assert kept["a"] is a
    for wrong in (lambda: plan.materialize(storage), lambda: plan.allocate((1,), torch.int32)):
        with pytest.raises(RefusedError, match="materialize"):
            wrong()


def test_a_plan_refuses_a_storage_that_is_not_exactly_its_own():
    """Kind, shape and size."""
    plan = deep_ep.BufferAllocator()
    plan.allocate((3,), torch.float32)
    for wrong in (
        torch.zeros(MIB2),
        torch.zeros(2, MIB2, dtype=torch.uint8),
        torch.zeros(8, dtype=torch.uint8),
    ):
        with pytest.raises(RefusedError, match="storage"):
            plan.materialize(wrong)
    with pytest.raises(RefusedError, match="shape"):
        plan.allocate((-1,), torch.float32)
    with pytest.raises(RefusedError, match="dtype"):
        plan.allocate((1,), torch.complex64)


def buffer_and_group(rank, num_ranks):
    world = dist.group.WORLD
    comm = deep_ep.comm
    plan = deep_ep.BufferAllocator()
    weights = plan.allocate((2, 3), torch.float32)
    buffer = deep_ep.EPBuffer(
        world, None, 16, 1024, 1, lb_allocation_plan_or_num_bytes=plan, explicitly_destroy=True
    )
    assert (buffer.num_bytes, buffer.num_lb_bytes) == (MIB2, MIB2)
    assert weights.data_ptr() == buffer.runtime.lb_storage.data_ptr()
    assert (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks) == (1, num_ranks)
    assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, rank)
    assert (buffer.num_rdma_ranks, buffer.num_nvlink_ranks) == (1, num_ranks)
    assert buffer.get_theoretical_num_sms(8, 2, nvlink_gbs=3) == buffer.lb_get_theoretical_num_sms() == 32
    assert buffer.get_theoretical_num_qps(32) == 0
    assert buffer.context is buffer.hccl_comm_handle is comm.get_hccl_comm_handle(world)
    assert comm.get_hccl_comm_handle(world, force_new_comm=True) is not buffer.hccl_comm_handle
    deep_ep.destroy_all_managed_hccl_comm()
    assert comm.get_hccl_comm_handle(world) is not buffer.hccl_comm_handle
    assert deep_ep.get_physical_domain_size(world) == deep_ep.get_logical_domain_size(world) == (1, num_ranks)
    stream = buffer.get_comm_stream()
    with torch.cpu.stream(torch.cpu.Stream()):
        assert comm.get_comm_stream(None) is stream
    buffer.barrier(wait_comm_stream=False, with_cpu_sync=True)
    comm.barrier(buffer)
    buffer.capture().current_stream_wait()
    # A second buffer of the group counts its own calls, and a group of some ranks has its own.
    other = deep_ep.EPBuffer(world, MIB2, 4)
    other.barrier()
    assert (other.exchange.num_calls, buffer.exchange.num_calls) == (2, 3)
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert deep_ep.EPBuffer(pair, MIB2, 4).num_ranks == 2
    buffer.destroy()
    return endings(world)


def endings(world):
    """Return the warnings of buffers that end in different ways."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for explicitly in (True, False):
            buffer = deep_ep.EPBuffer(world, MIB2, explicitly_destroy=explicitly)
            del buffer
            gc.collect()
    return [str(warning.message) for warning in caught]


def test_a_buffer_knows_its_group_and_its_end():
    """Attributes, storage, communicators, streams, barriers of several buffers, forgotten destroy."""
    told = run_ranks(buffer_and_group, 4)
    assert told == [["EPBuffer has explicitly_destroy, but destroy() was not called"]] * 4


def memory_usage(rank, num_ranks):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        deep_ep.EPBuffer(dist.group.WORLD, MIB2).print_memory_usage()
    return out.getvalue()


def test_memory_usage_is_one_line():
    """Workspace and region."""
    (line,) = run_ranks(memory_usage, 1)
    assert line == "rank 0: EPBuffer takes 2097152 B of workspace and 2097152 B of buffer\n"


def inputs_deleted(rank, num_ranks):
    """Delete what a deferred operation reads, and fill memory anew, before the wait."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 6)
    case = make_case(8, num_ranks, alignment=4)
    expected, handles = case.dispatched(zero_padding=True)
    later = {"async_with_compute_stream": True, "defer_epilogue": True}
    event = buffer.dispatch(
        case.payload(rank),
        case.ids(rank),
        case.weights(rank),
        num_experts=case.config.num_experts,
        expert_alignment=4,
        do_expand=True,
        do_zero_padding=True,
        **later,
    )
    pressure = [torch.full((6, 256), float(i)).bfloat16() for i in range(200)]
    recv_x, _, weights, handle = event.wait()
    assert_bits(recv_x, expected[rank].recv_x, "recv_x")
    y, row_weights = case.expert_rows(handles)
    event = buffer.combine(
        tensor_of(y[rank].copy()),
        handle,
        torch.from_numpy(row_weights[rank].copy()),
        **later,
    )
    del recv_x, weights
    pressure += [torch.full((6, 256), float(i)).bfloat16() for i in range(200)]
    check_combine(event.wait(), define_combined(handles, y, RANK_REDUCED, row_weights, (), rank))
    return len(pressure)


def test_a_deferred_operation_keeps_its_inputs_alive():
    """The event holds what the transfer reads."""
    assert run_ranks(inputs_deleted, 2) == [400, 400]


def handle_by_position(rank, num_ranks):
    """Make a handle from the fields of another, in the constructor's order; use it on another buffer."""
    world = dist.group.WORLD
    case = make_case(9, num_ranks, alignment=4)
    _, handles = case.dispatched(zero_padding=True)
    first = deep_ep.EPBuffer(world, 2**24, 6)
    given = first.dispatch(
        case.payload(rank),
        case.ids(rank),
        num_experts=case.config.num_experts,
        expert_alignment=4,
        do_expand=True,
    )[3]
    names = list(EPHandle.__init__.__annotations__)[:15]
    copy = EPHandle(*(getattr(given, name) for name in names))
    y, _ = case.expert_rows(handles)
    combined = deep_ep.EPBuffer(world, 2**24, 6).combine(tensor_of(y[rank].copy()), copy)
    check_combine(combined[:2], define_combined(handles, y, RANK_REDUCED, None, (), rank))
    return names


def test_a_handle_is_its_fields_in_the_order_of_the_library():
    """It needs neither the buffer that made it nor anything hidden."""
    names = run_ranks(handle_by_position, 2)[0]
    assert names == [
        "do_expand",
        "num_experts",
        "expert_alignment",
        "num_max_tokens_per_rank",
        "num_sms",
        "topk_idx",
        "num_recv_tokens",
        "num_expanded_tokens",
        "num_recv_tokens_per_expert_list",
        "psum_num_recv_tokens_per_rank",
        "psum_num_recv_tokens_per_expert",
        "num_unaligned_recv_tokens_per_expert",
        "recv_src_metadata",
        "dst_buffer_slot_idx",
        "dst_gsge_idx",
    ]


def balancing(rank, num_ranks):
    """Compare both calls with the reference: several tensors, empty slots, copies of one expert."""
    rng = np.random.default_rng(4)
    num_local, num_slots = 3, 2
    # Each rank copies from the next, the first one twice the same expert; rank 1 leaves a slot empty.
    first = (np.arange(num_ranks) + 1) % num_ranks * num_local
    mapping = np.stack((first, first + np.arange(num_ranks) % num_local), axis=1).astype(np.int32)
    mapping[1, 0] = -1
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, lb_allocation_plan_or_num_bytes=MIB2)
    forms = [((4, 8), BF16), ((16,), np.dtype(np.float32)), ((4, 8), FP8)]

    def draw(count, make, forms):
        return [[make(rng, (count, *shape), dtype) for _ in range(num_ranks)] for shape, dtype in forms]

    slots, experts = draw(num_slots, random_bits, forms), draw(num_local, random_bits, forms)
    mine = [tensor_of(t[rank].copy()) for t in slots], [tensor_of(t[rank].copy()) for t in experts]
    table = torch.from_numpy(mapping.copy())
    buffer.lb_prefetch_weights(*mine, table).wait()
    wanted = [[a.copy() for a in tensor] for tensor in slots]
    lb_prefetch_weights(wanted, experts, mapping)
    for got, want in zip(mine[0], wanted, strict=True):
        assert_bits(got, want[rank], "redundant weights")

    def rows(rng, shape, dtype):
        return random_rows(rng, shape).astype(dtype)

    slots, experts = draw(num_slots, rows, forms[:2]), draw(num_local, rows, forms[:2])
    mine = [tensor_of(t[rank].copy()) for t in slots], [tensor_of(t[rank].copy()) for t in experts]
    buffer.lb_reduce_grads(*mine, table, num_sms=3).wait()
    lb_reduce_grads(slots, experts, mapping)
    for got, want in zip(mine[1], experts, strict=True):
        assert_bits(got, want[rank], "expert gradients")
    single = torch.ones(num_slots, 4), torch.ones(num_local, 4)
    buffer.lb_reduce_grads(*single, table)
    copies = (mapping // num_local == rank).sum()
    assert single[1].sum() == 4 * (num_local + copies)
    with pytest.raises(HostCheckError, match="float32 or bfloat16"):
        buffer.lb_reduce_grads(single[0].int(), single[1].int(), table)
    with pytest.raises(HostCheckError, match="a slot holds one"):
        buffer.lb_prefetch_weights(torch.ones(num_slots, 5), single[1], table)
    with pytest.raises(HostCheckError, match="redundancy_mapping"):
        buffer.lb_prefetch_weights(*single, table + 100)
    with pytest.raises(RankMismatchError, match="redundancy_mapping"):
        buffer.lb_prefetch_weights(*single, table if rank else torch.full_like(table, -1))
    return int((mapping >= 0).sum())


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_load_balancing_calls_move_weights_and_gradients_as_the_reference(num_ranks):
    """Upstream's Ascend kernels are missing; here the calls work."""
    told = run_ranks(balancing, num_ranks)
    assert len(set(told)) == 1
    assert told[0] > 0


def in_one_memory(rank, num_ranks):
    """Give tensors that overlap where one is written, and such that only touch."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2)
    table = torch.full((num_ranks, 2), -1, dtype=torch.int32)
    weights, other = torch.ones(6, 4), torch.ones(2, 4)
    for slots, experts, text in (
        (weights[:2], weights[:3], "is written, so it must have its own"),
        (weights[2:4], weights[:3], "redundant tensor 0 is 'in the memory of expert tensor 0'"),
        ([other, other], [weights[:3], weights[3:]], "is 'in the memory of redundant tensor 1'"),
    ):
        with pytest.raises(UndefinedError, match=text):
            buffer.lb_prefetch_weights(slots, experts, table)
    with pytest.raises(UndefinedError, match="expert tensor 0 is 'in the memory of redundant tensor 0'"):
        buffer.lb_reduce_grads(weights[1:3], weights[:3], table)
    with pytest.raises(UndefinedError, match="expert tensor 0 is 'in the memory of expert tensor 1'"):
        buffer.lb_reduce_grads([other, other], [weights[:3]] * 2, table)
    buffer.lb_prefetch_weights(weights[3:5], weights[:3], table)
    buffer.lb_reduce_grads([other, other], [weights[:3], weights[3:]], table)
    for wrong in (-1, 33, 1.5, None):
        for call in (buffer.lb_prefetch_weights, buffer.lb_reduce_grads):
            with pytest.raises(HostCheckError, match=f"num_sms is {wrong}: "):
                call(other, weights[:3], table, num_sms=wrong)
    return True


def test_load_balancing_calls_refuse_overlapping_memory_and_missing_cores():
    """What is written would be read too, in an order that nothing fixes."""
    assert run_ranks(in_one_memory, 2) == [True, True]


def unlike_shapes(rank, num_ranks):
    """Give slots as many elements as an expert has in another shape; then experts that differ by rank."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2)
    table = torch.full((num_ranks, 2), -1, dtype=torch.int32)
    experts = torch.ones(3, 4, 8)
    for call in (buffer.lb_prefetch_weights, buffer.lb_reduce_grads):
        for shape in ((8, 4), (32,), (4, 8, 1)):
            with pytest.raises(HostCheckError, match=r"a slot holds one expert of \(4, 8\)"):
                call(torch.ones(2, *shape), experts, table)
        own = (8, 4) if rank else (4, 8)
        with pytest.raises(RankMismatchError, match=r"'float32 \(3, 4, 8\)'.* on rank 0 and .*\(3, 8, 4\)"):
            call(torch.ones(2, *own), torch.ones(3, *own), table)
        call(torch.ones(2, 4, 8), experts, table)
    return True


def test_load_balancing_calls_refuse_transposed_slots():
    """Their bytes would fit, and mean something else."""
    assert run_ranks(unlike_shapes, 2) == [True, True]
