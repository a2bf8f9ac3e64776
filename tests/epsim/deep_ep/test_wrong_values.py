"""Values of a wrong type or kind: one sentence for who gave them, and the same told to the peers.

Rank 1 gives them, and rank 0 makes the call as it should be; the buffer can be used afterwards.
"""

import copy

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import (
    HostCheckError,
    PeerRefusedError,
    RefusedError,
    StaleHandleError,
    UndefinedError,
)
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20
LATER = {"async_with_compute_stream": True, "defer_epilogue": True}


class Broken(list):
    """A sequence of a program with a fault of its own."""

    def __len__(self):
        """Fail as the program would."""
        raise ZeroDivisionError("a fault of the program")


class BrokenEvent:
    """An event likewise."""

    def current_stream_wait(self):
        raise ZeroDivisionError("a fault of the program")


def one_gives(rank, kind, text, call, good, wrong):
    """Rank 1 makes the wrong call, the others the good one; all raise, with the same reason."""
    with pytest.raises(kind if rank == 1 else PeerRefusedError, match=text) as caught:
        call(**(good | wrong if rank == 1 else good))
    assert rank == 1 or "rank 1 refused it: " in str(caught.value)
    assert rank != 1 or type(caught.value) is kind


def inputs():
    idx = torch.stack([(torch.arange(2) + t) % 8 for t in range(4)])
    return {"x": torch.ones(4, 256).bfloat16(), "topk_idx": idx, "num_experts": 8, "do_expand": True}


def of_ep(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    rule = "num_sms is {}: must be "
    for wrong, text in ((None, "None"), ("a", "'a'"), (8.0, "8.0"), (4, "4"), (33, "33"), (-1, "-1")):
        one_gives(rank, HostCheckError, rule.format(text), buffer.dispatch, inputs(), {"num_sms": wrong})
    mapping = torch.full((num_ranks, 1), -1, dtype=torch.int32)
    good = {
        "redundant_expert_weights": torch.zeros(1, 4),
        "expert_weights": torch.zeros(2, 4),
        "redundancy_mapping": mapping,
    }
    for name, wrong, text in (
        ("redundancy_mapping", mapping.tolist(), "redundancy_mapping is 'list': must be a tensor"),
        ("redundancy_mapping", mapping.long(), "'torch.int64': must be torch.int32"),
        ("redundant_expert_weights", None, "redundant tensors is 'NoneType': must be a tensor or"),
        ("expert_weights", [1.0], r"expert tensors\[0\] is 'float': must be a tensor"),
    ):
        one_gives(rank, HostCheckError, text, buffer.lb_prefetch_weights, good, {name: wrong})
    buffer.barrier()
    return True


def of_bucket(rank, num_ranks):
    bucket = deep_ep.BucketBuffer(dist.group.WORLD, MIB2, edition="nvidia")
    good = {"srcs": bucket.storage[:64].view(torch.float32)}
    for wrong, text in (
        ({"srcs": [1.0, 2.0]}, r"srcs\[0\] is 'float'"),
        ({"srcs": None}, "srcs is 'NoneType': must be a tensor or a sequence"),
        ({"scale": "x"}, "scale is 'x': must be a finite number"),
        ({"scale": torch.ones(())}, "scale is tensor.*must be a finite number"),
    ):
        one_gives(rank, HostCheckError, text, bucket.all_reduce, good, wrong)
    gathered = {"srcs": bucket.storage[64 * rank : 64 * (rank + 1)]}
    one_gives(rank, HostCheckError, "dsts is 'int'", bucket.all_gather, gathered, {"dsts": 3})
    return True


def of_engram(rank, num_ranks):
    buffer = deep_ep.EngramBuffer(dist.group.WORLD, MIB2, MIB2, False, 0, 0)
    shape = {"num_entries_per_layer": (5,), "hidden": 64, "num_max_tokens": 4, "num_entries_per_token": 2}
    text = "num_entries_per_layer is 'int': must be a sequence"
    one_gives(rank, HostCheckError, text, buffer.set_config, shape, {"num_entries_per_layer": 5})
    buffer.set_config(**shape)
    table = {"storages": [torch.zeros(5, 64).bfloat16()]}
    for wrong, text in ((None, "storages is 'NoneType'"), ([[1.0]], r"storages\[0\] is 'list'")):
        one_gives(rank, HostCheckError, text, buffer.write, table, {"storages": wrong})
    buffer.write(**table)
    with pytest.raises(HostCheckError, match="indices is 'list': must be a tensor"):
        buffer.fetch([[[0, 1]]])
    return True


def of_ring(rank, num_ranks):
    ring = deep_ep.PPBuffer(dist.group.WORLD, 64, 1)
    for wrong, peer, text in (([1.0], 1 - rank, "x is 'list'"), (torch.ones(1), [0], "must be a neighbour")):
        for call in (ring.send, ring.recv):
            with pytest.raises(HostCheckError, match=text):
                call(wrong, peer)
    return True


def untyped(rank, num_ranks):
    """Faults of the program itself, met while a call looks at its arguments."""
    world, text = dist.group.WORLD, "a fault of the program"
    buffer = deep_ep.EPBuffer(world, MIB2, 8, edition="nvidia")
    event = {"previous_event": BrokenEvent(), "allocate_on_comm_stream": True}
    one_gives(rank, ZeroDivisionError, text, buffer.dispatch, inputs(), event)
    recv_x, _, _, handle, _ = buffer.dispatch(**inputs())
    one_gives(rank, ZeroDivisionError, text, buffer.combine, {"x": recv_x, "handle": handle}, event)
    bucket = deep_ep.BucketBuffer(world, MIB2, edition="nvidia")
    good = {"srcs": bucket.storage[:64].view(torch.float32)}
    one_gives(rank, ZeroDivisionError, text, bucket.all_reduce, good, {"srcs": Broken()})
    engram = deep_ep.EngramBuffer(world, MIB2, MIB2, False, 0, 0)
    shape = {"num_entries_per_layer": (5,), "hidden": 64, "num_max_tokens": 1, "num_entries_per_token": 1}
    wrong = {"num_entries_per_layer": Broken()}
    one_gives(rank, ZeroDivisionError, text, engram.set_config, shape, wrong)
    # What does not fit into the header that ranks show each other.
    long = {"num_entries_per_layer": (1,) * 2000}
    text = "num_entries_per_layer is 'a list of 2000': must be shorter: with it set_config shows 6... bytes"
    one_gives(rank, HostCheckError, text, engram.set_config, shape, long)
    engram.set_config(**shape)
    buffer.combine(recv_x, handle)
    return True


def deferred(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    given = inputs()
    event = buffer.dispatch(**given, **LATER)
    given["topk_idx"][0, 0] = -1
    with pytest.raises(UndefinedError, match="topk_idx is 'written to': a deferred dispatch"):
        event.wait()
    event = buffer.dispatch(**given, **LATER)
    recv_x, _, _, handle = event.wait()
    given["topk_idx"].numpy()[1, 0] = -1
    for call in (
        lambda: buffer.combine(recv_x, handle),
        lambda: buffer.dispatch(given["x"], handle=handle, do_expand=True),
    ):
        with pytest.raises(StaleHandleError, match="written to after dispatch"):
            call()
    one_gives(rank, RefusedError, "defer_epilogue is True", autograd_dispatch(buffer), inputs(), LATER)
    return len(autograd_dispatch(buffer)(**inputs())[0]) > 0


def autograd_dispatch(buffer):
    return lambda **options: deep_ep.autograd.dispatch(buffer, **options)


def dropped(rank, num_ranks):
    """Rank 1 drops the event of a deferred dispatch, rank 0 waits for its own."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    event = buffer.dispatch(**inputs(), **LATER)
    if rank == 0:
        event.wait()
    del event
    text = "dropped without a wait': its results are lost, so keep the event; the buffer is free again"
    one_gives(rank, UndefinedError, text, buffer.dispatch, inputs(), {})
    return len(buffer.dispatch(**inputs())[0]) > 0


def copies(rank, num_ranks):
    """Use copied handles like the original; each is as stale as its own routing."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    for num_writes in range(3):  # before the dispatch, which torch counts
        given = inputs()
        for _ in range(num_writes):
            given["topk_idx"] += 0
        recv_x, _, _, handle, _ = buffer.dispatch(**given)
        combined = buffer.combine(recv_x, handle)[0]
        twin = copy.deepcopy(handle)
        assert torch.equal(buffer.combine(recv_x, twin)[0], combined)
        given["topk_idx"][0, 0] = 7
        assert torch.equal(buffer.combine(recv_x, twin)[0], combined)
        twin.topk_idx[0, 0] = 7
        for one in (handle, copy.deepcopy(handle), copy.copy(handle), twin):
            with pytest.raises(StaleHandleError, match="written to after dispatch"):
                buffer.combine(recv_x, one)
    return True


JOBS = (of_ep, of_bucket, of_engram, of_ring, untyped, deferred, dropped, copies)


@pytest.mark.parametrize("job", JOBS, ids=[job.__name__ for job in JOBS])
def test_what_one_rank_does_wrong_is_a_sentence_on_all(job):
    assert run_ranks(job, 2) == [True, True]
