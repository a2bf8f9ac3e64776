"""Ranks that disagree get the same sentence at once; a rank that dies or is late is an error in time."""

import os
import re
import time
from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import (
    PeerLostError,
    PeerRefusedError,
    RankMismatchError,
    RefusedError,
    UndefinedError,
)
from epsim.deep_ep.roll_call import RollCall
from reference.errors import ConfigError
from tests.epsim.deep_ep.spawning import DIED, run_ranks

MIB2 = 2 * 2**20


def arguments(tokens=4, hidden=256, num_topk=2):
    idx = torch.stack([(torch.arange(num_topk) + t) % 8 for t in range(tokens)])
    return {"x": torch.ones(tokens, hidden).bfloat16(), "topk_idx": idx, "num_experts": 8, "do_expand": True}


def message(kind, call, *args, **options):
    """Return what a call that must fail says."""
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return str(caught.value)


def fp8(tokens=4):
    return torch.ones(tokens, 256).to(torch.float8_e4m3fn), torch.ones(tokens, 4, dtype=torch.int16)


def differing_arguments(rank, num_ranks):
    """Rank 2 differs in one argument at a time; return what each rank is told."""
    odd = rank == 2
    told = []

    def differ(**options):
        given = arguments() | (options if odd else {})
        told.append(message(RankMismatchError, buffer.dispatch, **given))

    world = dist.group.WORLD
    for name, values in (("num_max_tokens_per_rank", (8, 9)), ("deterministic", (False, True))):
        options = {"num_bytes": MIB2, name: values[odd]}
        told.append(message(RankMismatchError, deep_ep.EPBuffer, world, **options))
    buffer = deep_ep.EPBuffer(world, MIB2, 8)
    differ(num_max_tokens_per_rank=9)
    differ(num_experts=16)
    differ(x=torch.ones(4, 512).bfloat16())
    differ(topk_idx=torch.zeros(4, 1, dtype=torch.int64))
    differ(x=fp8())
    differ(topk_weights=torch.ones(4, 2))
    differ(expert_alignment=2)
    differ(num_sms=16)
    first, second = (buffer.dispatch(**arguments()) for _ in range(2))
    mine = second if odd else first
    told.append(message(RankMismatchError, buffer.combine, mine[0], mine[3]))
    weights = torch.ones(len(first[0])) if odd else None
    told.append(message(RankMismatchError, buffer.combine, first[0], first[3], weights))
    call = buffer.barrier if odd else lambda: buffer.combine(first[0], first[3])
    told.append(message(RankMismatchError, call))
    # The channel stays in step: what all ranks agree on still works.
    buffer.combine(first[0], first[3])
    return told


EXPECTED = [
    "num_max_tokens_per_rank is 8 on rank 0 and 9 on rank 2",
    "deterministic is False on rank 0 and True on rank 2",
    "num_max_tokens_per_rank is 8 on rank 0 and 9 on rank 2",
    "num_experts is 8 on rank 0 and 16 on rank 2",
    "hidden is 256 on rank 0 and 512 on rank 2",
    "num_topk is 2 on rank 0 and 1 on rank 2",
    "x.dtype is 'torch.bfloat16' on rank 0 and 'torch.float8_e4m3fn' on rank 2",
    "topk_weights is 'None' on rank 0 and 'given' on rank 2",
    "expert_alignment is 1 on rank 0 and 2 on rank 2",
    "num_sms is 32 on rank 0 and 16 on rank 2",
    "handle is 'of call 10 of buffer ~' on rank 0 and 'of call 11 of buffer ~' on rank 2",
    "topk_weights is 'None' on rank 0 and 'given' on rank 2",
    "operation is 'combine' on rank 0 and 'barrier' on rank 2",
]


def test_a_differing_argument_is_named_with_both_values_and_ranks_on_every_rank():
    """Never a hang, and the buffer can be used afterwards."""
    told = run_ranks(differing_arguments, 4)
    assert told[1:] == told[:1] * 3
    assert len(told[0]) == len(EXPECTED)
    for text, expected in zip(told[0], EXPECTED, strict=True):
        assert expected in re.sub("buffer [0-9a-f]{8}", "buffer ~", text)


def one_refuses(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    given = arguments()
    if rank == 1:
        given["topk_idx"][3, 1] = 8
    kind = UndefinedError if rank == 1 else PeerRefusedError
    text = message(kind, buffer.dispatch, **given)
    again = message(kind, buffer.dispatch, **(given | {"num_sms": 16}))
    # Rules of upstream's Python code and missing arguments are told to the others too.
    for options in ({"do_expand": False}, {"num_qps": 1}, {"topk_idx": None}, {"handle": 3}):
        kind = ConfigError if rank == 1 else PeerRefusedError
        name = next(iter(options))
        assert name in message(kind, buffer.dispatch, **(arguments() | (options if rank == 1 else {})))
    recv_x, _, _, handle, _ = buffer.dispatch(**arguments())
    assert "num_qps" in message(kind, buffer.combine, recv_x, handle, num_qps=rank)
    assert buffer.dispatch(**arguments())[3].num_recv_tokens >= 1
    return text, again


def test_what_one_rank_refuses_ends_the_call_on_all():
    """The others repeat its reason and its rank."""
    told = run_ranks(one_refuses, 2)
    reason = "topk_idx[rank 1, token 3, column 1] is 8: must be an expert 0..7"
    assert told[1][0] == reason
    assert told[0][0] == f"dispatch (call 2): rank 1 refused it: {reason}"
    assert told[0][1].startswith("dispatch (call 3): rank 1 refused it")


def cached_and_fresh(rank, num_ranks):
    """Rank 1 dispatches with a handle, rank 0 without, which also has weights."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    handle = buffer.dispatch(**arguments(), num_sms=16)[3]
    given = arguments() | {"topk_weights": torch.ones(4, 2), "expert_alignment": 2}
    if rank == 1:
        given = {"x": arguments()["x"], "handle": handle, "do_expand": True}
    return message(RankMismatchError, buffer.dispatch, **given)


def test_a_cached_dispatch_that_meets_a_fresh_one_is_named_so():
    """Whatever else differs between them."""
    told = run_ranks(cached_and_fresh, 2)
    assert told[0] == told[1]
    assert re.search("handle is None on rank 0 and 'of call 2 of buffer [0-9a-f]{8}' on rank 1", told[0])


def one_call_more(rank, num_ranks):
    """Rank 0 makes a second dispatch, which the others answer with the end of the buffer."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8, explicitly_destroy=True)
    buffer.dispatch(**arguments())
    text = ended(buffer) if rank else message(RankMismatchError, buffer.dispatch, **arguments())
    assert rank or "a peer closed its connection" in ended(buffer)
    return text


def ended(buffer):
    """Destroy a buffer whose peers do not; return what it warns of."""
    with pytest.warns(RuntimeWarning) as caught:
        buffer.destroy()
    assert buffer.is_destroyed
    text, end = str(caught[0].message).split("; the buffer is destroyed")
    assert end == " all the same"
    return text


def test_another_number_of_calls_is_noticed():
    """The extra call meets another one."""
    told = run_ranks(one_call_more, 2)
    assert told[0] == told[1]
    assert "operation is 'dispatch' on rank 0 and 'destroy' on rank 1" in told[0]


def fails(rank, num_ranks, deferred):
    """Rank 1 fails between the collective calls, and cleans up."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    later = {"async_with_compute_stream": True, "defer_epilogue": True} if deferred else {}
    kept = buffer.dispatch(**arguments(), **later)

    def work():
        try:
            assert kept is not None
            _ = 1 // (1 - rank)
            buffer.barrier()
        finally:
            buffer.destroy()

    kinds = (ZeroDivisionError, RankMismatchError)
    with pytest.warns(RuntimeWarning) as warned, pytest.raises(kinds) as caught:
        work()
    assert len(warned) == 1
    return caught.typename, buffer.is_destroyed


@pytest.mark.parametrize("deferred", [False, True])
def test_a_cleanup_does_not_hide_the_error_before_it(deferred):
    """Whoever fails alone keeps its error, also with an operation outstanding; the others hear of it."""
    told = run_ranks(fails, 2, deferred)
    assert told == [("RankMismatchError", True), ("ZeroDivisionError", True)]


def dies(rank, num_ranks, during):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8, num_cpu_timeout_secs=60)
    buffer.dispatch(**arguments())
    if rank == 1:
        if during:  # between the agreement and the rows
            buffer.exchange.all_to_all = lambda *_: os._exit(3)
        else:
            os._exit(3)
        buffer.dispatch(**arguments())
    start = time.monotonic()
    text = message(PeerLostError, buffer.dispatch, **arguments())
    assert message(PeerLostError, buffer.dispatch, **arguments())
    # What this rank does wrong itself is said all the same.
    assert "do_expand" in message(RefusedError, buffer.dispatch, **(arguments() | {"do_expand": False}))
    assert "a peer closed its connection" in ended(buffer)
    assert time.monotonic() - start < 20
    return text


@pytest.mark.parametrize("during", [False, True])
def test_a_rank_that_dies_is_an_error_on_the_others_at_once(during):
    """Long before the time limit, before a call or in the middle of one."""
    told = run_ranks(dies, 4, during, may_die=(1,), timeout_secs=50)
    assert told[1] == DIED
    for rank in (0, 2, 3):
        assert told[rank] == (
            f"rank {rank}, dispatch (call 3): a peer closed its connection; "
            "rank 1 (global rank 1) does not answer, it has died or is elsewhere"
        )


def is_late(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8, num_cpu_timeout_secs=1)
    if rank == 1:
        time.sleep(4)
    start = time.monotonic()
    text = message(PeerLostError, buffer.dispatch, **arguments())
    assert time.monotonic() - start < 4  # before the late rank comes
    return text


def test_a_late_rank_is_an_error_after_the_time_limit_and_not_before():
    """It is named; it finds the connection closed, and by whom."""
    told = run_ranks(is_late, 2)
    assert told[0] == "rank 0, dispatch (call 2): rank 1 (global rank 1) did not come within 1 s"
    closed = "a peer closed its connection; rank 0 (global rank 0) gave up after waiting 1 s"
    assert told[1] == f"rank 1, dispatch (call 2): {closed}"


def never_comes(rank, num_ranks):
    if rank == 0:
        return message(PeerLostError, deep_ep.EPBuffer, dist.group.WORLD, MIB2, num_cpu_timeout_secs=2)
    return None


def test_a_rank_that_does_not_make_the_buffer_is_an_error_too():
    """Construction is collective."""
    told = run_ranks(never_comes, 2, timeout_secs=60)
    assert told[0] == "rank 0, creating a buffer: rank 1 (global rank 1) did not come within 2 s"


def dies_in_a_part(rank, num_ranks):
    """Ranks 1 to 3 are a group; its last one dies while rank 2 waits at another call than the rest."""
    group = dist.new_group([1, 2, 3])
    if rank == 0:
        return None
    buffer = deep_ep.EPBuffer(group, MIB2, 8, edition="nvidia", num_cpu_timeout_secs=60)
    if rank == 3:
        os._exit(3)
    with pytest.raises(PeerLostError, match=r"rank 2 \(global rank 3\) does not answer") as caught:
        buffer.barrier()
    return caught.value.ranks, caught.value.global_ranks


def test_a_lost_peer_is_named_by_both_its_numbers():
    """In the text and as attributes; a part of the processes numbers its ranks anew."""
    told = run_ranks(dies_in_a_part, 4, may_die=(3,), timeout_secs=50)
    assert told == [None, ((2,), (3,)), ((2,), (3,)), DIED]


class Silent:
    """A store whose host is gone."""

    def set(self, *_):
        raise RuntimeError("connection reset")


ANSWERS = (
    ("closed", {}, "ranks 0, 2 (global ranks 4, 6) do not answer, they have died or are elsewhere", (0, 2)),
    ("closed", {0: "closed"}, "rank 2 (global rank 6) does not answer, it has died or is elsewhere", (2,)),
    (
        "closed",
        {0: "closed", 2: "gave up after waiting 3 s"},
        "rank 2 (global rank 6) gave up after waiting 3",
        (2,),
    ),
    ("closed", {0: "closed", 2: "closed"}, "which one is not known, all ranks answer", ()),
    ("closed", None, "which one is not known, the group's store does not answer either", ()),
    ("Timed out", {0: "closed"}, "rank 2 (global rank 6) did not come within 0.01 s", (2,)),
    (
        "Timed out",
        {0: "closed", 2: "closed"},
        "a peer did not come within 0.01 s; which one is not known, all",
        (),
    ),
    (
        "Timed out",
        None,
        "within 0.01 s; which one is not known, the group's store does not answer either",
        (),
    ),
)


@pytest.mark.parametrize(("cause", "said", "text", "ranks"), ANSWERS)
def test_who_is_lost_follows_from_who_answers(cause, said, text, ranks):
    """Or it is said that it is not known; the first finding stays. Of two ranks it is the other one."""
    call = RollCall(1, [4, 5, 6], timedelta(seconds=0.01))
    call.store = Silent() if said is None else dist.HashStore()
    for rank, word in (said or {}).items():
        call.store.set(f"answer of rank {rank}", word)
    for doing in ("dispatch", "combine"):
        error = call.error(doing, RuntimeError(cause), None)
        assert str(error).startswith(f"rank 1, {doing}: a peer" if not ranks else f"rank 1, {doing}: ")
        assert text in str(error)
        assert (error.ranks, error.global_ranks) == (ranks, tuple(4 + rank for rank in ranks))
    pair = RollCall(1, [4, 5], timedelta(seconds=0.01))
    pair.store = Silent()
    assert pair.error("dispatch", RuntimeError(cause), None).global_ranks == (4,)
