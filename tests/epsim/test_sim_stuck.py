"""A run that cannot end is an error that names who waits for what."""

import numpy as np
import pytest

from epsim.model.closedform import OperationBytes
from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.schedule.work import Work
from epsim.sim.clock import Clock, StuckError
from epsim.sim.fabric import Fabric, Piece, Port
from epsim.sim.meeting import Meeting
from epsim.sim.run import EventOptions, run_operation


def comes(clock, meeting, rank):
    clock.waits[f"rank {rank}"] = f"the {meeting.name}"
    yield meeting.arrive(rank)
    del clock.waits[f"rank {rank}"]


def test_a_barrier_with_a_missing_rank_names_it():
    clock = Clock()
    barrier = Meeting(clock, "exit barrier", 4, 1000)
    for rank in (0, 1, 3):
        clock.start(comes(clock, barrier, rank))
    with pytest.raises(StuckError) as caught:
        clock.run(barrier.over, "the exit barrier")
    assert "exit barrier waits for rank 2" in str(caught.value)
    assert "rank 3 waits for the exit barrier" in str(caught.value)


def test_a_barrier_with_all_ranks_ends_after_its_latency():
    clock = Clock()
    barrier = Meeting(clock, "exit barrier", 4, 1000)
    for rank in range(4):
        clock.start(comes(clock, barrier, rank))
    assert clock.run(barrier.over, "the exit barrier") == 1000


def ring(room):
    """Three switches in a ring, each passing what comes in to the next, two hops per transfer."""
    clock = Clock()
    done = []
    fabric = Fabric(clock, lambda piece: done.append(piece.chunk))
    ports = [fabric.add(Port(f"sw{i} -> sw{(i + 1) % 3}", 1e12, 10, room)) for i in range(3)]
    out = [fabric.add(Port(f"sw{i} -> npu{i}", 1e12, 10, None)) for i in range(3)]
    for start in range(3):
        for _ in range(4):
            path = (*(ports[(start + hop) % 3] for hop in range(2)), out[(start + 2) % 3])
            fabric.enter(Piece(f"transfer of sw{start}", path, 100))
    return clock, done


def test_a_cycle_of_credits_names_the_transfers():
    clock, done = ring(room=100)
    with pytest.raises(StuckError) as caught:
        clock.run(clock.event(), "all transfers")
    text = str(caught.value)
    assert len(done) < 12
    for start in range(3):
        assert f"transfer of sw{start}" in text
    assert "waits for room of 100 bytes (free 0 of 100)" in text


def test_the_same_cycle_with_room_ends():
    clock, done = ring(room=100_000)
    with pytest.raises(StuckError, match="nothing waits at all"):
        clock.run(clock.event(), "something that never comes")
    assert len(done) == 12


def two_ranks(num_records=600):
    """Return the work of two ranks that send each other some records."""
    records = np.zeros((2, 4, 2), np.int64)
    records[0, :, 1] = records[1, :, 0] = num_records // 4
    rows = records.sum(axis=1)
    return Work(
        num_tokens=np.full(2, num_records), records=records, single_rows=rows, entries=rows, num_experts=8
    )


def run_two(**changes):
    platform = make_platform("ubl128")
    machine = make_machine(platform, 2, "none")
    row = OperationBytes(logical=7464, wire=7488, payload=7168)
    return run_operation(
        machine, platform.software, "dispatch", two_ranks(), row, 2048, EventOptions(**changes)
    )


def test_a_receiver_that_never_drains_is_named():
    with pytest.raises(StuckError) as caught:
        run_two(stuck_receivers=(1,))
    text = str(caught.value)
    assert "npu1" in text
    assert "rank 0 waits for" in text or "from rank 0 to rank 1" in text


def test_receivers_that_drain_let_it_end():
    assert run_two().time_ps > 0
