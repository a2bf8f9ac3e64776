"""A second thread on a buffer is refused at once, whatever it calls; on a buffer of its own it may run."""

import threading

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import UndefinedError
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20
EP_CALLS = ("dispatch", "combine", "lb_prefetch_weights", "lb_reduce_grads", "barrier", "destroy")
CALLS = {
    "EPBuffer": EP_CALLS,
    "ElasticBuffer": EP_CALLS,
    "PPBuffer": ("send", "recv", "barrier", "destroy"),
    "EngramBuffer": ("set_config", "write", "fetch", "barrier", "destroy"),
    "BucketBuffer": ("all_gather", "reduce_scatter", "all_reduce", "barrier", "destroy"),
}
SIZES = {"PPBuffer": (64, 1), "EngramBuffer": (MIB2, MIB2, False, 0, 0), "BucketBuffer": (MIB2,)}


def halted(buffer):
    """Start a barrier in another thread and halt it inside; return what lets it go on."""
    inside, go, check = threading.Event(), threading.Event(), buffer.check_alive

    def halt(operation):
        inside.set()
        go.wait()
        check(operation)

    buffer.check_alive = halt
    thread = threading.Thread(target=buffer.barrier)
    thread.start()
    inside.wait()
    buffer.check_alive = check

    def finish():
        go.set()
        thread.join()

    return finish


def every_call(rank, num_ranks):
    """Make every public call while another thread is in one."""
    told = []
    for name, calls in CALLS.items():
        buffer = getattr(deep_ep, name)(dist.group.WORLD, *SIZES.get(name, (MIB2,)), explicitly_destroy=True)
        finish = halted(buffer)
        for call in calls:
            with pytest.raises(UndefinedError) as caught:
                getattr(buffer, call)()
            assert f"{call} must come after it" in str(caught.value)
            told.append(str(caught.value))
        finish()
        buffer.destroy()
    return told


def test_a_second_thread_is_refused_at_once():
    """Before its arguments are looked at, and without a word to the peers, who wait for the first thread."""
    told = run_ranks(every_call, 2)
    assert told[0] == told[1]
    assert len(told[0]) == sum(len(calls) for calls in CALLS.values())
    start = "buffer is 'busy with barrier in another thread': one operation at a time: "
    assert all(text.startswith(start) for text in told[0])


def round_trips(buffer, first, wrong):
    """Run ten round trips; note those that bring something else home."""
    idx = torch.tensor([[0, 1], [2, 3]])
    for value in range(first, first + 10):
        x = torch.full((2, 256), float(value), dtype=torch.bfloat16)
        recv_x, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=4, do_expand=True)
        if not torch.equal(buffer.combine(recv_x, handle)[0], 2 * x):
            wrong.append(value)


def two_buffers(rank, num_ranks):
    """Run two threads, each on its own buffer."""
    wrong = []
    buffers = [deep_ep.EPBuffer(dist.group.WORLD, MIB2, 4, num_cpu_timeout_secs=30) for _ in range(2)]
    threads = [
        threading.Thread(target=round_trips, args=(buffer, 20 * number, wrong))
        for number, buffer in enumerate(buffers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The turn comes back: the buffer can be used by any thread.
    round_trips(buffers[0], 40, wrong)
    return wrong


def test_threads_with_buffers_of_their_own_do_not_meet():
    assert run_ranks(two_buffers, 2) == [[], []]
