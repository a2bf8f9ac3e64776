"""The order of rows inside what the contract leaves open: shuffled on demand, sorted on demand."""

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import array_of
from epsim.deep_ep.errors import UndefinedError
from tests.epsim.deep_ep.group_cases import assert_bits, dispatch_and_combine, make_case
from tests.epsim.deep_ep.spawning import run_ranks


def many_tokens(seed, num_ranks, **shape):
    """Return a case in which each of 16 cores has three tokens, whose order is open."""
    return make_case(seed, num_ranks, alignment=4, tokens=[40] * num_ranks, num_max_tokens=40, **shape)


def shuffled_arrival(rank, num_ranks):
    group = dist.group.WORLD
    case = many_tokens(5, num_ranks, fp8=True)
    plain = deep_ep.EPBuffer(group, 2**24, 40)
    outputs, combined = dispatch_and_combine(plain, case, rank, num_sms=8)
    data = array_of(outputs[0][0])
    for seed in (1, 2):
        loose = deep_ep.EPBuffer(group, 2**24, 40, arrival_seed=seed)
        shuffled, again = dispatch_and_combine(loose, case, rank, num_sms=8)
        assert not torch.equal(shuffled[0][0].view(torch.uint8), outputs[0][0].view(torch.uint8))
        for got, want in zip(again, combined, strict=True):
            assert_bits(got, array_of(want), "what comes home does not depend on where rows lay")
        tidy = deep_ep.EPBuffer(group, 2**24, 40, deterministic=True, arrival_seed=seed)
        in_order, _ = dispatch_and_combine(tidy, case, rank, num_sms=8)
        assert_bits(in_order[0][0], data, "recv_x")
        assert_bits(in_order[0][1], array_of(outputs[0][1]), "recv_sf")
        assert_bits(in_order[2], array_of(outputs[2]), "recv_topk_weights")
    return True


def test_deterministic_hides_a_shuffled_arrival_and_the_default_does_not():
    """The slots of one core are open: two seeds differ, and the sort makes them equal the canonical order."""
    assert run_ranks(shuffled_arrival, 2) == [True, True]


def sorted_in_the_wait(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 40, deterministic=True, arrival_seed=3)
    case = many_tokens(6, num_ranks)
    arguments = (case.payload(rank), case.ids(rank), case.weights(rank))
    options = {"num_experts": case.config.num_experts, "expert_alignment": 4, "do_expand": True, "num_sms": 8}
    at_once = buffer.dispatch(*arguments, **options)
    later = buffer.dispatch(*arguments, **options, async_with_compute_stream=True)
    assert not torch.equal(later[0].view(torch.int16), at_once[0].view(torch.int16))
    with pytest.raises(UndefinedError, match=r"sorts its rows in wait\(\)"):
        buffer.combine(later[0], later[3])
    later[4].wait()
    for a, b in zip(at_once[:3:2], later[:3:2], strict=True):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))
    assert torch.equal(later[3].recv_src_metadata, at_once[3].recv_src_metadata)
    before = later[3].cached_recv_src_metadata_before_sort
    assert before is not None
    assert not torch.equal(before, later[3].recv_src_metadata)
    # Metadata rows are not sorted, only the slots in them.
    assert torch.equal(before[:, -2:], later[3].recv_src_metadata[:, -2:])
    return True


def test_an_async_deterministic_dispatch_is_sorted_by_its_wait():
    """Until then outputs are as they arrived, and the handle must not be used."""
    assert run_ranks(sorted_in_the_wait, 2) == [True, True]
