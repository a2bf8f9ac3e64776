"""Pipelines: bubble and slots in closed form, the reference's verdict on programs, stuck runs, starvation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.schedule import pipeline as pp
from epsim.schedule.pipeline import Compute, Receive, pipeline_exchange, pipeline_training
from epsim.schedule.transfers import Draft
from epsim.sim.clock import StuckError
from epsim.sim.transfers import run_transfers
from reference.collectives import pipeline as reference
from tests.epsim.transfer_checks import WHOLE, cut_off, machine, memory_ps, send_ps, step_ps

SMALL, BIG, WORD = 64 * 1024, 2**22, 8
FORWARD = 10**9


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("batches", [1, 5])
def test_the_bubble(stages, batches):
    """R stages fill once; then the last one does a microbatch per copy and computation."""
    run = run_transfers(machine(stages), pipeline_training(stages, batches, SMALL, forward_ps=FORWARD), WHOLE)
    hop, copy = step_ps(SMALL + WORD), memory_ps(2 * SMALL)
    assert run.time_ps == stages * FORWARD + (stages - 1) * (hop + copy) + (batches - 1) * (FORWARD + copy)


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_both_orders_have_the_bubble_of_their_stages(order):
    """(M + R - 1) (f + b) without communication; with it nothing is faster."""
    training = pipeline_training(4, 6, WORD, forward_ps=FORWARD, backward_ps=2 * FORWARD, order=order)
    run = run_transfers(machine(4), training, WHOLE)
    ideal = (6 + 3) * 3 * FORWARD
    hops = 4 * 6 * 2 * (step_ps(2 * WORD) + memory_ps(2 * WORD))
    assert ideal < run.time_ps <= ideal + hops


@pytest.mark.parametrize("forward", [1, FORWARD])
def test_one_slot_costs_the_way_there_and_back(forward):
    """A copy, then the longer of the computation and release word + next tensor."""
    training = pipeline_training(2, 7, BIG, forward_ps=forward, inflight=1)
    last = max(n for n in range(training.num_transfers) if "forward" in training.describe(n))
    run = run_transfers(machine(2), training, WHOLE)
    hop, word, copy = step_ps(BIG + WORD), step_ps(WORD), memory_ps(2 * BIG)
    period = copy + max(forward, word + hop)
    assert run.finish_ps[last] == forward + hop + copy + 6 * period + forward


def test_more_slots_of_one_pair_are_not_slower():
    """Of one pair only: in a longer pipeline a stage's sends and copies get into each other's way."""
    times = [
        run_transfers(machine(2), pipeline_training(2, 8, BIG, forward_ps=1000, inflight=n)).time_ps
        for n in (1, 2, 8)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1]


def _for_reference(step):
    """Return the reference's operation of one byte."""
    x = np.zeros(1, np.uint8)
    if isinstance(step, pp.Send):
        return reference.Send(dst_rank=step.peer, x=x)
    return reference.Recv(src_rank=step.peer, x=x)


STEP = st.tuples(st.booleans(), st.sampled_from([-1, 1]))


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 4).flatmap(lambda r: st.lists(st.lists(STEP, max_size=5), min_size=r, max_size=r)),
       st.integers(1, 2))  # fmt: skip
def test_a_program_ends_exactly_when_the_reference_says_so(programs, inflight):
    size = len(programs)
    ours = [[pp.Send(peer=(r + way) % size, size_bytes=1) if sends else Receive(peer=(r + way) % size)
             for sends, way in program] for r, program in enumerate(programs)]  # fmt: skip
    theirs = [[_for_reference(step) for step in program] for program in ours]
    ring = reference.PipelineRing(num_ranks=size, num_max_tensor_bytes=1, num_max_inflight_tensors=inflight)
    try:
        reference.run_pipeline(ring, theirs)
        is_stuck = False
    except reference.PipelineStuckError:
        is_stuck = True
    try:
        run_transfers(machine(size), pipeline_exchange(ours, inflight), WHOLE)
        assert not is_stuck
    except (InputError, StuckError):
        assert is_stuck


def test_a_receiver_that_never_releases_is_named():
    sends = [pp.Send(peer=1, size_bytes=100)] * 3
    with pytest.raises(StuckError) as caught:
        run_transfers(machine(2), pipeline_exchange([sends, [Compute(label="busy", time_ps=5)]], 2))
    assert caught.value.blocked == ["send 2 from rank 0 to rank 1 waits for what never comes"]


def test_sends_that_block_each_other_are_a_circle_that_is_named():
    programs = [[pp.Send(peer=1 - r, size_bytes=1)] * 2 + [Receive(peer=1 - r)] * 2 for r in range(2)]
    with pytest.raises(InputError, match="circle") as caught:
        pipeline_exchange(programs, 1)
    assert "send 1 from rank 0 to rank 1" in str(caught.value)
    assert "send 1 from rank 1 to rank 0" in str(caught.value)
    run_transfers(machine(2), pipeline_exchange(programs, 2))


@pytest.mark.parametrize(
    ("programs", "field"), [([[]], "programs"), ([[Receive(peer=2)], [], [], []], "peer")]
)
def test_bad_programs_are_refused(programs, field):
    with pytest.raises(InputError) as caught:
        pipeline_exchange(programs, 1)
    assert caught.value.field == field


def forwarder(slow_ps, *, is_serial):
    """G66: rank 0 forwards six chunks to ranks 1 and 2, each with two slots; rank 1 takes its time."""
    draft, releases = Draft(3), {1: [], 2: []}
    before = []
    for chunk in range(6):
        for peer in (1, 2):
            waits = [releases[peer][-2]] if chunk >= 2 else []
            sent = draft.add(0, peer, SMALL, label=f"chunk {chunk}", after=[*waits, *before])
            taken = draft.local(peer, label="use", after=[sent], delay_ps=slow_ps if peer == 1 else 0)
            releases[peer].append(draft.add(peer, 0, WORD, label=f"release {chunk}", after=[taken]))
            before = [sent] if is_serial else []
    return draft.build(), releases[2][-1]


def end_of_quick_peer(slow_ps, *, is_serial):
    """Return when rank 2 has released its last chunk."""
    transfers, last = forwarder(slow_ps, is_serial=is_serial)
    return int(run_transfers(machine(3), transfers, WHOLE).finish_ps[last])


def test_a_slow_peer_does_not_starve_the_others():
    """Rank 2 waits for no more than what rank 1 puts in the engine before it; a serial forwarder fails."""
    slow = 100 * step_ps(SMALL)
    shared = 6 * (memory_ps(SMALL) + send_ps(SMALL))
    quick = end_of_quick_peer(0, is_serial=False)
    assert abs(end_of_quick_peer(slow, is_serial=False) - quick) <= shared
    assert end_of_quick_peer(slow, is_serial=True) > slow > quick + shared


def test_a_dead_peer_is_the_only_one_that_is_named():
    transfers, _ = forwarder(0, is_serial=False)
    dead = [n for n in range(transfers.num_transfers) if transfers.describe(n) == "use on rank 1"]
    with pytest.raises(StuckError) as caught:
        run_transfers(machine(3), cut_off(transfers, dead[0]), WHOLE)
    assert caught.value.blocked[0] == "use on rank 1 waits for what never comes"
    assert not any("rank 2" in line for line in caught.value.blocked)
