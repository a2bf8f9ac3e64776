"""Pipeline ring: order, limits, both directions, and a stuck exchange that says why."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.collectives.pipeline import (
    TO_NEXT,
    TO_PREVIOUS,
    PipelineRing,
    PipelineStuckError,
    Recv,
    Send,
    pipeline_buffer_bytes,
    run_pipeline,
)
from reference.errors import ConfigError


def ring_of(num_ranks, inflight=2, num_bytes=64):
    return PipelineRing(
        num_ranks=num_ranks, num_max_tensor_bytes=num_bytes, num_max_inflight_tensors=inflight
    )


def tensor(value, count=3):
    return np.full(count, value, dtype=np.int64)


@st.composite
def exchanges(draw):
    """Draw sends in both directions; each rank first sends up to the limit, then receives, and again."""
    num_ranks, inflight = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    programs, expected = [[] for _ in range(num_ranks)], []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        receives = [[] for _ in range(num_ranks)]
        for rank in range(num_ranks):
            for step in (1, -1) if num_ranks > 2 else (1,):
                peer = (rank + step) % num_ranks
                for _ in range(draw(st.integers(0, inflight))):
                    count = draw(st.integers(1, 8))
                    programs[rank].append(Send(dst_rank=peer, x=tensor(number, count)))
                    target = np.full(count, -1)
                    receives[peer].append(Recv(src_rank=rank, x=target))
                    expected.append((target, number))
                    number += 1
        for rank in range(num_ranks):
            programs[rank] += receives[rank]
    return num_ranks, inflight, programs, expected


@given(exchanges(), st.one_of(st.none(), st.integers(0, 9)))
def test_every_tensor_arrives_once_in_order_whatever_rank_goes_first(exchange, seed):
    num_ranks, inflight, programs, expected = exchange
    ring = ring_of(num_ranks, inflight)
    run_pipeline(ring, programs, seed=seed)
    for target, number in expected:
        np.testing.assert_array_equal(target, number)
    assert (ring.send_count == ring.release).all()
    assert (ring.arrival == ring.recv_count).all()
    assert ring.send_count.sum() == len(expected)


def test_send_waits_for_a_release_when_all_slots_are_taken():
    ring = ring_of(3, inflight=2)
    assert ring.try_send(0, 1, tensor(1))
    assert ring.try_send(0, 1, tensor(2))
    assert ring.num_in_flight(0, 1) == 2
    before = ring.regions.copy()
    assert not ring.try_send(0, 1, tensor(3))
    np.testing.assert_array_equal(ring.regions, before)  # an unread slot is never overwritten
    assert ring.send_count[0, TO_NEXT] == 2
    out = np.zeros(3, dtype=np.int64)
    assert ring.try_recv(1, 0, out)
    assert out.tolist() == [1, 1, 1]
    assert ring.num_in_flight(0, 1) == 1
    assert ring.try_send(0, 1, tensor(3))
    assert not ring.try_send(0, 1, tensor(4))


def test_directions_have_limits_and_slots_of_their_own():
    ring = ring_of(3, inflight=1)
    assert ring.try_send(0, 1, tensor(1))
    assert ring.try_send(0, 2, tensor(2))
    assert not ring.try_send(0, 1, tensor(3))
    assert ring.direction(0, 1) == TO_NEXT
    assert ring.direction(0, 2) == TO_PREVIOUS
    # At rank 1 region 1 is for its previous rank, at rank 2 region 0 for its next one.
    assert ring.regions[1, 1, 0, :8].view(np.int64).item() == 1
    assert ring.regions[2, 0, 0, :8].view(np.int64).item() == 2


def test_slot_is_count_mod_inflight():
    ring = ring_of(3, inflight=2, num_bytes=33)
    assert ring.slot_bytes == 64
    assert [ring.slot_offset(0, c) for c in range(4)] == [0, 64, 0, 64]
    assert ring.slot_offset(1, 5) == 3 * 64
    for count in range(5):
        ring.try_send(0, 1, tensor(count))
        assert ring.regions[1, 1, count % 2, :8].view(np.int64).item() == count
        ring.try_recv(1, 0, tensor(-1))


def test_ring_of_two_uses_the_next_pairing_alone():
    ring = ring_of(2, inflight=1)
    run_pipeline(
        ring,
        [
            [Send(dst_rank=1, x=tensor(1)), Recv(src_rank=1, x=tensor(0))],
            [Send(dst_rank=0, x=tensor(2)), Recv(src_rank=0, x=tensor(0))],
        ],
    )
    assert ring.send_count.tolist() == [[0, 1], [0, 1]]
    assert (ring.regions[:, TO_PREVIOUS] == 0xFF).all()


def test_tensor_is_copied_at_the_send():
    ring = ring_of(2)
    x, out = tensor(1), np.zeros(3, dtype=np.int64)
    ring.try_send(0, 1, x)
    x[:] = 9
    ring.try_recv(1, 0, out)
    assert out.tolist() == [1, 1, 1]


@pytest.mark.parametrize("num_bytes", [1, 64])
def test_smallest_and_largest_tensor_pass(num_bytes):
    ring, out = ring_of(2, num_bytes=64), np.zeros(num_bytes, dtype=np.uint8)
    assert ring.try_send(0, 1, np.arange(num_bytes, dtype=np.uint8))
    assert ring.try_recv(1, 0, out)
    assert out.tolist() == list(range(num_bytes))


def test_leftover_tensor_stays_in_flight():
    ring = ring_of(2)
    run_pipeline(ring, [[Send(dst_rank=1, x=tensor(1))], []])
    assert ring.num_in_flight(0, 1) == 1
    out = np.zeros(3, dtype=np.int64)
    run_pipeline(ring, [[], [Recv(src_rank=0, x=out)]])
    assert out.tolist() == [1, 1, 1]


# --- stuck -----------------------------------------------------------------------------------------


def test_both_sending_beyond_the_limit_is_stuck_and_both_are_named():
    programs = [
        [Send(dst_rank=1 - rank, x=tensor(i)) for i in range(2)] + [Recv(src_rank=1 - rank, x=tensor(0))] * 2
        for rank in range(2)
    ]
    with pytest.raises(PipelineStuckError) as caught:
        run_pipeline(ring_of(2, inflight=1), programs)
    assert str(caught.value) == (
        "pipeline exchange is stuck: "
        "rank 0, operation 1: send 1 to rank 1 waits for rank 1 to receive: 1 of 1 tensors are in flight; "
        "rank 1, operation 1: send 1 to rank 0 waits for rank 0 to receive: 1 of 1 tensors are in flight"
    )
    run_pipeline(ring_of(2, inflight=2), programs)  # one more slot is enough


def test_receive_that_nobody_serves_is_stuck():
    with pytest.raises(
        PipelineStuckError, match="rank 2, operation 0: receive 0 from rank 0 waits for rank 0"
    ):
        run_pipeline(ring_of(3), [[Send(dst_rank=1, x=tensor(1))], [], [Recv(src_rank=0, x=tensor(0))]])


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_cycle_of_receives_names_every_rank(seed):
    programs = [
        [Recv(src_rank=(r - 1) % 3, x=tensor(0)), Send(dst_rank=(r + 1) % 3, x=tensor(r))] for r in range(3)
    ]
    with pytest.raises(PipelineStuckError) as caught:
        run_pipeline(ring_of(3), programs, seed=seed)
    assert [(b.rank, b.step) for b in caught.value.blocked] == [(0, 0), (1, 0), (2, 0)]


# --- sizes and refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "inflight", "expected"),
    [
        (1, 1, 2_097_152),  # 4 * 32
        (4096 * 7168 * 2, 2, 469_762_048),  # 8 slots of 58,720,256
        (4096 * 7168 * 2 + 1, 2, 471_859_200),  # each slot 32 B larger: one page more
    ],
)
def test_buffer_size(num_bytes, inflight, expected):
    assert pipeline_buffer_bytes(num_bytes, inflight) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring_of(1), "num_ranks is 1: must be a whole number of at least 2"),
        (lambda: ring_of(2, inflight=0), "num_max_inflight_tensors is 0"),
        (lambda: pipeline_buffer_bytes(2**32 - 31, 1), "num_max_tensor_bytes is 4294967265: must not exceed"),
        (
            lambda: ring_of(4).try_send(0, 2, tensor(1)),
            "dst_rank is 2: must be the previous or next rank of 0",
        ),
        (lambda: ring_of(4).try_send(4, 0, tensor(1)), "src_rank is 4: must be below num_ranks 4"),
        (lambda: ring_of(4).try_send(1, 1, tensor(1)), "dst_rank is 1: must be the previous or next rank"),
        (lambda: ring_of(2).try_send(0, 1, tensor(1, 9)), "x is '72 bytes': must have 1 to num_max_tensor_b"),
        (lambda: ring_of(2).try_send(0, 1, tensor(1, 0)), "x is '0 bytes'"),
        (lambda: ring_of(2).try_send(0, 1, np.zeros((2, 2)).T), "must be contiguous"),
        (lambda: run_pipeline(ring_of(2), [[]]), "programs is 1: must be one per rank, 2"),
    ],
)
def test_bad_use_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_size_that_the_sender_did_not_mean_is_refused_and_can_be_retried():
    ring = ring_of(2)
    ring.try_send(0, 1, tensor(5, 3))
    rule = "tensor 0 from rank 0 to rank 1 is '16 bytes at the receiver': 24 bytes were sent"
    with pytest.raises(ConfigError, match=rule):
        ring.try_recv(1, 0, tensor(0, 2))
    out = tensor(0, 3)
    assert ring.try_recv(1, 0, out)
    assert out.tolist() == [5, 5, 5]
