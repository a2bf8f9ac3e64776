"""The layouts that the Ascend edition refuses: deduplicated, hybrid, single reduction, copied handles."""

import itertools

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.errors import HostCheckError
from reference.memory.sizes import nvidia_buffer_bytes
from reference.order import library_order
from tests.epsim.deep_ep.group_cases import (
    assert_bits,
    check_combine,
    check_dispatch,
    define_combined,
    make_case,
)
from tests.epsim.deep_ep.spawning import run_ranks


def round_trip(buffer, rank, case, *, num_biases, multiple, cpu_sync):
    """Compare dispatch, cached dispatch and combine with the definition."""
    expand = case.mode.expand
    expected, handles = case.dispatched(zero_padding=False, cpu_sync=cpu_sync)
    *outputs, _ = buffer.dispatch(
        case.payload(rank),
        case.ids(rank),
        case.weights(rank),
        num_experts=case.config.num_experts,
        expert_alignment=case.config.expert_alignment,
        do_cpu_sync=cpu_sync,
        do_expand=expand,
        use_tma_aligned_col_major_sf=case.scales is not None,
    )
    check_dispatch(outputs, (expected[rank], handles[rank]), column_major=True)
    handle = outputs[3]
    assert_bits(
        handle.psum_num_recv_tokens_per_scaleup_rank,
        handles[rank].psum_num_recv_tokens_per_scaleup_rank,
        "psum_num_recv_tokens_per_scaleup_rank",
    )
    other = case.with_new_rows()
    expected, _ = other.dispatched(zero_padding=False, cpu_sync=cpu_sync)
    *outputs, _ = buffer.dispatch(
        other.payload(rank), topk_weights=other.weights(rank), handle=handle, do_expand=expand
    )
    check_dispatch(outputs, (expected[rank], handles[rank]))
    y, weights = case.expert_rows(handles)
    is_hybrid = case.mode.scaleup_ranks(case.config) < case.config.ep_size
    order = library_order(expand=expand, allow_multiple_reduction=multiple, is_hybrid=is_hybrid)
    if not order.in_rank:
        weights = None
    biases = case.biases(num_biases)
    given = [tensor_of(bias[rank].copy()) for bias in biases]
    combined = buffer.combine(
        tensor_of(y[rank].copy()),
        handle,
        None if weights is None else tensor_of(weights[rank].copy()),
        bias=tuple(given) if num_biases == 2 else given[0] if given else None,
    )
    check_combine(combined, define_combined(handles, y, order, weights, biases, rank))


def layouts(rank, num_ranks, scaleups):
    number = 0
    for scaleup, multiple in itertools.product(scaleups, (True, False)):
        buffer = deep_ep.EPBuffer(
            dist.group.WORLD,
            2**25,
            6,
            allow_multiple_reduction=multiple,
            edition="nvidia",
            num_scaleup_ranks=scaleup,
        )
        assert buffer.get_physical_domain_size() == (num_ranks // scaleup, scaleup)
        assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == divmod(rank, scaleup)
        for expand, num_biases, fp8 in itertools.product((False, True), (0, 1, 2), (False, True)):
            number += 1
            case = make_case(
                number,
                num_ranks,
                edition="nvidia-v2.5",
                expand=expand,
                num_scaleup_ranks=None if scaleup == num_ranks else scaleup,
                alignment=(1, 4)[number % 2],
                fp8=fp8,
            )
            cpu_sync = number % 3 != 0
            round_trip(buffer, rank, case, num_biases=num_biases, multiple=multiple, cpu_sync=cpu_sync)
    return True


@pytest.mark.parametrize(("num_ranks", "scaleups"), [(2, [2, 1]), (4, [2]), (3, [3])])
def test_every_layout_and_reduction_has_the_bits_of_the_definition(num_ranks, scaleups):
    """Flat and 2 x N; odd groups; rows summed per rank, per domain, or all at home."""
    assert run_ranks(layouts, num_ranks, scaleups) == [True] * num_ranks


def flat_although_two_domains(rank, num_ranks):
    buffer = deep_ep.EPBuffer(
        dist.group.WORLD, 2**22, 6, allow_hybrid_mode=False, edition="nvidia", num_scaleup_ranks=1
    )
    domains = buffer.get_physical_domain_size(), buffer.get_logical_domain_size()
    sizes = {"num_max_tokens_per_rank": 8, "hidden": 1024, "num_topk": 8}
    for hybrid, nvlink in ((True, True), (False, False)):
        hint = deep_ep.EPBuffer.get_buffer_size_hint(
            dist.group.WORLD, **sizes, allow_hybrid_mode=hybrid, edition="nvidia", num_scaleup_ranks=1
        )
        split = (
            {"num_scaleout_ranks": 2, "num_scaleup_ranks": 1}
            if hybrid
            else {
                "num_scaleout_ranks": 1,
                "num_scaleup_ranks": 2,
            }
        )
        assert hint == nvidia_buffer_bytes(**split, **sizes, is_all_nvlink=nvlink).hint_bytes
    return domains


def test_hybrid_mode_can_be_switched_off():
    """Physical domains stay as they are; the operations, and the size hint, see one."""
    assert run_ranks(flat_although_two_domains, 2) == [((2, 1), (1, 2))] * 2


def elastic(rank, num_ranks):
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, num_max_tokens_per_rank=6, hidden=256, num_topk=3, explicitly_destroy=True
    )
    case = make_case(3, num_ranks, edition="nvidia-v2", expand=False, fp8=True)
    expected, handles = case.dispatched(zero_padding=False)
    idx = case.ids(rank)
    recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
        case.payload(rank),
        idx,
        case.weights(rank),
        num_experts=case.config.num_experts,
        previous_event=buffer.capture(),
        previous_event_before_epilogue=buffer.capture(),
        allocate_on_comm_stream=True,
        async_with_compute_stream=True,
    )
    with event:
        pass
    check_dispatch((recv_x, recv_idx, recv_weights, handle), (expected[rank], handles[rank]))
    # The handle has a copy, so the caller's ids may be used again.
    idx.fill_(-1)
    y, weights = case.expert_rows(handles)
    order = library_order(expand=False, allow_multiple_reduction=True, is_hybrid=False)
    combined = buffer.combine(tensor_of(y[rank].copy()), handle, tensor_of(weights[rank].copy()))
    check_combine(combined, define_combined(handles, y, order, weights, (), rank))
    kept = buffer.dispatch(
        case.payload(rank), case.ids(rank), num_experts=case.config.num_experts, do_handle_copy=False
    )
    kept[3].topk_idx.fill_(-1)
    if len(idx):
        with pytest.raises(deep_ep.errors.StaleHandleError):
            _ = kept[3].topk_idx
    buffer.barrier(use_comm_stream=False)
    buffer.destroy()
    hints = [
        hint(dist.group.WORLD, 2**17, 7168, 8, use_fp8_dispatch=True)
        for hint in (buffer.get_buffer_size_hint, deep_ep.EPBuffer.get_buffer_size_hint)
    ]
    sizes = {"num_max_tokens_per_rank": 2**17, "hidden": 7168, "num_topk": 8, "use_fp8": True}
    own = nvidia_buffer_bytes(num_scaleout_ranks=1, num_scaleup_ranks=2, **sizes).hint_bytes
    assert own == hints[0] != hints[1], "the default edition is V2"
    return True


def test_elastic_buffer_has_the_names_and_shapes_of_v2():
    """Five results, handles that copy, events before the epilogue."""
    assert run_ranks(elastic, 2) == [True, True]


def expert_ids(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**22, 6, edition="nvidia")
    case = make_case(4, num_ranks, edition="nvidia-v2.5", alignment=4)
    options = {"num_experts": case.config.num_experts, "do_expand": True, "expert_alignment": 4}
    *_, handle, _ = buffer.dispatch(case.payload(rank), case.ids(rank), **options, emit_expert_ids=True)
    ids, counts = array_of(handle.recv_expert_ids), array_of(handle.num_unaligned_recv_tokens_per_expert)
    assert np.bincount(ids[ids >= 0], minlength=3).tolist() == counts.tolist()
    starts = np.append(0, np.cumsum(handle.num_recv_tokens_per_expert_list))
    for expert, start in enumerate(starts[:-1]):
        block = ids[start : starts[expert + 1]]
        assert block.tolist() == [expert] * counts[expert] + [-1] * (len(block) - counts[expert])
    with pytest.raises(HostCheckError, match="allocate_on_comm_stream"):
        buffer.dispatch(case.payload(rank), case.ids(rank), **options, previous_event=buffer.capture())
    assert buffer.get_theoretical_num_qps(24) == 0
    assert torch.equal(handle.topk_idx, case.ids(rank))
    return True


def test_expert_ids_name_the_expert_of_each_row():
    """V2.5 returns them on request; padding is -1."""
    assert run_ranks(expert_ids, 2) == [True, True]
