"""`PPBuffer` over real processes: the bits of reference/pipeline, bounded flight, and errors in time."""

import os
import random

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.errors import (
    HostCheckError,
    PeerLostError,
    RankMismatchError,
    RefusedError,
    UndefinedError,
    UnsupportedError,
)
from epsim.deep_ep.pp import PPBuffer
from reference.collectives.pipeline import PipelineRing, Recv, Send, pipeline_buffer_bytes, run_pipeline
from tests.epsim.deep_ep.spawning import DIED, run_ranks

MAX_BYTES = 333
DTYPES = (torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8)


def random_programs(seed, num_ranks, inflight, num_tensors):
    """Per rank a list of (is_send, peer, values, dtype): random, but no rank ever waits for ever.

    Every send comes before its receive in one global order, and after the receive that frees its slot; so
    following that order never blocks.
    """
    draw = random.Random(seed)
    flying = {}
    programs = [[] for _ in range(num_ranks)]
    left = num_tensors
    while left or any(flying.values()):
        ready = [pair for pair, queue in flying.items() if queue]
        source = draw.randrange(num_ranks)
        pair = source, (source + draw.choice((-1, 1))) % num_ranks
        if left and len(flying.setdefault(pair, [])) < inflight and draw.random() < 0.6:
            dtype = draw.choice(DTYPES)
            num_bytes = dtype.itemsize * draw.randint(1, MAX_BYTES // dtype.itemsize)
            values = np.frombuffer(draw.randbytes(num_bytes), dtype=np.uint8)
            programs[pair[0]].append((True, pair[1], values, dtype))
            flying[pair].append((values, dtype))
            left -= 1
        elif ready:
            pair = draw.choice(ready)
            programs[pair[1]].append((False, pair[0], *flying[pair].pop(0)))
    return programs


def reference_results(programs, inflight, seed):
    """Return what each rank receives, by reference/pipeline."""
    ring = PipelineRing(
        num_ranks=len(programs), num_max_tensor_bytes=MAX_BYTES, num_max_inflight_tensors=inflight
    )
    calls, results = [], []
    for program in programs:
        calls.append(
            [
                Send(dst_rank=peer, x=values) if is_send else Recv(src_rank=peer, x=np.zeros_like(values))
                for is_send, peer, values, _ in program
            ]
        )
        results.append([call.x for call in calls[-1] if isinstance(call, Recv)])
    run_pipeline(ring, calls, seed=seed)
    return results


def play(buffer, program):
    """Run one rank's program; return what it received."""
    received = []
    for is_send, peer, values, dtype in program:
        if is_send:
            x = tensor_of(values.copy()).view(dtype)
            buffer.send(x, peer)
            x.view(torch.uint8).fill_(0xAB)  # a send has taken its copy
        else:
            x = torch.full((len(values),), 0xCD, dtype=torch.uint8).view(dtype)
            buffer.recv(x, peer)
            received.append(array_of(x).view(np.uint8))
    return received


def interleavings(rank, num_ranks, seeds):
    for inflight in (1, 3):
        buffer = PPBuffer(dist.group.WORLD, MAX_BYTES, inflight, explicitly_destroy=True)
        assert buffer.storage.nbytes == pipeline_buffer_bytes(MAX_BYTES, inflight)
        for seed in seeds:
            programs = random_programs(seed, num_ranks, inflight, 40)
            expected = reference_results(programs, inflight, seed)[rank]
            for got, want in zip(play(buffer, programs[rank]), expected, strict=True):
                np.testing.assert_array_equal(got, want)
        buffer.destroy()
        with pytest.raises(RefusedError, match="destroyed"):
            buffer.send(torch.zeros(1), (rank + 1) % num_ranks)
    return True


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_random_interleavings_in_both_directions_give_the_reference_bits(num_ranks):
    """Counters go round the slots many times; two ranks know one way only."""
    assert run_ranks(interleavings, num_ranks, range(4)) == [True] * num_ranks


def refusals(rank, num_ranks):
    world = dist.group.WORLD
    with pytest.raises(UnsupportedError, match="service levels"):
        PPBuffer(world, 64, 1, sl_idx=1)
    for sizes in ((0, 1), (64, 0), (2**32, 1), (64.0, 1)):
        with pytest.raises(RefusedError, match="num_max"):
            PPBuffer(world, *sizes)
    with pytest.raises(RefusedError, match="timeout"):
        PPBuffer(world, 64, 1, num_gpu_timeout_secs=0)
    with pytest.raises(RankMismatchError, match="num_max_tensor_bytes is 64 on rank 0 and 65 on rank 1"):
        PPBuffer(world, 64 + rank, 1)
    buffer = PPBuffer(world, 64, 2)
    neighbour = (rank + 1) % num_ranks
    for x, text in (
        (torch.zeros(65, dtype=torch.uint8), "1 to num_max_tensor_bytes 64"),
        (torch.zeros(0), "1 to num_max_tensor_bytes 64"),
        (torch.zeros(4, 4).T, "contiguous"),
    ):
        for call in (buffer.send, buffer.recv):
            with pytest.raises(HostCheckError, match=text):
                call(x, neighbour)
    for peer in (rank, (rank + 2) % num_ranks, num_ranks, -1):
        with pytest.raises(HostCheckError, match="must be a neighbour"):
            buffer.send(torch.zeros(1), peer)
        with pytest.raises(HostCheckError, match="must be a neighbour"):
            buffer.recv(torch.zeros(1), peer)
    for wrong in (-1, 65, 1.5):
        for call in (buffer.send, buffer.recv):
            with pytest.raises(HostCheckError, match=f"num_sms is {wrong}: "):
                call(torch.zeros(1), neighbour, num_sms=wrong)
    # The sizes of both sides must agree; the tensor is not lost when they do not.
    buffer.send(torch.arange(4.0), neighbour, num_sms=64)
    short = torch.zeros(3)
    with pytest.raises(UndefinedError, match=r"tensor 0 from rank . to rank .*12 bytes.*16 bytes were sent"):
        buffer.recv(short, (rank - 1) % num_ranks)
    whole = torch.zeros(4)
    buffer.recv(whole, (rank - 1) % num_ranks)
    assert whole.tolist() == [0, 1, 2, 3]
    # What is in flight at the end stays there.
    buffer.send(torch.zeros(1), neighbour)
    buffer.barrier()
    buffer.destroy()
    return True


def test_every_refusal_names_its_rule():
    """The checks of the front end, of native code, and those that only epsim makes."""
    assert run_ranks(refusals, 4) == [True] * 4


def one_too_many(rank, num_ranks):
    # The others wait longer, so that rank 0 meets its limit and not their closed connections.
    buffer = PPBuffer(dist.group.WORLD, 64, 2, num_gpu_timeout_secs=20 if rank else 2)
    if rank == 0:
        buffer.send(torch.zeros(1), 1)
        buffer.send(torch.zeros(1), 1)
        with pytest.raises(PeerLostError) as caught:
            buffer.send(torch.zeros(1), 1)
    else:
        with pytest.raises(PeerLostError) as caught:
            buffer.recv(torch.zeros(1), 0 if rank == 2 else 2)
    return str(caught.value)


def test_a_send_beyond_the_limit_ends_in_an_error_that_says_what_it_waits_for():
    """Nobody receives what rank 0 sends, and nobody sends what the others wait for."""
    told = run_ranks(one_too_many, 3)
    assert "send 2 to rank 1 waits for rank 1 to receive, 2 of 2 tensors are in flight" in told[0]
    assert told[0].endswith("in flight: rank 1 (global rank 1) did not come within 2 s")
    assert "receive 0 from rank 2 waits for rank 2 to send" in told[1]
    for text in told[1:]:
        assert text.endswith("a peer closed its connection; rank 0 (global rank 0) gave up after waiting 2 s")


def one_dies(rank, num_ranks):
    buffer = PPBuffer(dist.group.WORLD, 64, 2, num_gpu_timeout_secs=30)
    if rank == 1:
        os._exit(7)
    with pytest.raises(PeerLostError, match=r"receive 0 from rank 1 waits for rank 1 to send.*died"):
        buffer.recv(torch.zeros(1), 1)
    with pytest.raises(PeerLostError, match=r"send 0 to rank 1.*died"):
        buffer.send(torch.zeros(1), 1)
    with pytest.warns(RuntimeWarning, match=r"destroy .*died.*destroyed all the same") as warned:
        buffer.destroy()
    assert warned[0].filename == __file__
    assert buffer.is_destroyed
    return True


def test_a_dead_neighbour_is_an_error_at_once():
    """Far before the time limit."""
    assert run_ranks(one_dies, 3, may_die=(1,), timeout_secs=25) == [True, DIED, True]
