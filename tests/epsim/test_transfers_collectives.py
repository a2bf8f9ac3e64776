"""Collectives against their closed forms, and what they carry against a replay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.schedule.collectives import MAX_PIECE_BYTES, all_gather, all_reduce, reduce_scatter
from epsim.schedule.parallelism import context_ring, sharded_training
from epsim.schedule.transfers import Draft
from epsim.sim.transfers import TransferOptions, run_transfers
from tests.epsim.transfer_checks import (
    COSTS,
    WHOLE,
    busiest_link_ps,
    contributions,
    doubled,
    machine,
    memory_ps,
    send_ps,
    step_ps,
    tail_ps,
    turned,
    without_wait,
)  # fmt: skip

RANKS = 8
SEGMENT = 2**20


def collective(function, algorithm, size=RANKS * SEGMENT, ranks=RANKS):
    """Build one collective over all ranks."""
    draft = Draft(ranks)
    function(draft, range(ranks), [size], algorithm)
    return draft.build()


def ring_ps(function):
    """Return steps x (doorbell + read + wire + flight), and a sum of two into one per step that reduces."""
    plain, reducing = (RANKS - 1) * step_ps(SEGMENT), (RANKS - 1) * memory_ps(3 * SEGMENT)
    forms = {all_gather: plain, reduce_scatter: plain + reducing, all_reduce: 2 * plain + reducing}
    return forms[function]


@pytest.mark.parametrize("function", [all_gather, reduce_scatter, all_reduce])
def test_a_ring_takes_its_closed_form_exactly(function):
    run = run_transfers(machine(), collective(function, "ring"), WHOLE)
    assert run.time_ps == ring_ps(function)
    # Nothing is lost or doubled: 2 (N - 1) / N of the tensor leaves every card in an all-reduce.
    turns = 2 if function is all_reduce else 1
    sent = turns * (RANKS - 1)
    assert run.busiest_port_ps == pytest.approx(sent * send_ps(SEGMENT), abs=sent / 2)  # each is rounded
    assert run.time_ps > run.busiest_port_ps


@pytest.mark.parametrize("function", [all_gather, reduce_scatter])
def test_direct_is_bound_by_the_port(function):
    """A card reads and sends seven segments in turn; no two meet at a receiver."""
    run = run_transfers(machine(), collective(function, "direct"), WHOLE)
    sent = (RANKS - 1) * (memory_ps(SEGMENT) + send_ps(SEGMENT))
    summed = memory_ps((RANKS + 1) * SEGMENT) if function is reduce_scatter else 0
    assert run.time_ps == COSTS.doorbell_ps + sent + tail_ps(SEGMENT) + summed
    assert run.time_ps > busiest_link_ps(machine(), collective(function, "direct"))


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_every_contribution_arrives_once(algorithm):
    transfers = collective(all_reduce, algorithm)
    run = run_transfers(machine(), transfers)
    assert (contributions(transfers, run) == 1).all()


def test_planted_a_lost_dependency_is_seen():
    """A rank that passes a segment on before it has come sends a sum that lacks somebody."""
    transfers = collective(all_reduce, "ring")
    numbers = [n for n, label in enumerate(transfers.label_idx) if "step 3" in transfers.labels[label]]
    wrong = without_wait(transfers, numbers[2])
    assert not (contributions(wrong, run_transfers(machine(), wrong)) == 1).all()


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_planted_a_doubled_transfer_is_seen(algorithm):
    transfers = collective(all_reduce, algorithm)
    wrong = doubled(transfers, 5)
    run = run_transfers(machine(), wrong, WHOLE)
    assert contributions(wrong, run).max() > 1
    assert run.time_ps > run_transfers(machine(), transfers, WHOLE).time_ps


def test_planted_a_wrong_direction_doubles_a_port():
    transfers = collective(all_gather, "ring")
    wrong = turned(transfers, 3)
    run = run_transfers(machine(), wrong, WHOLE)
    assert busiest_link_ps(machine(), wrong) == pytest.approx(2 * busiest_link_ps(machine(), transfers))
    assert run.busiest_port_ps == pytest.approx(busiest_link_ps(machine(), wrong))
    assert run.time_ps != ring_ps(all_gather)
    assert not (contributions(wrong, run) == 1).all()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([all_gather, reduce_scatter, all_reduce]), st.sampled_from(["direct", "ring"]),
       st.integers(1, 5), st.integers(0, 200_000))  # fmt: skip
def test_any_size_is_moved_once_and_not_below_the_bound(function, algorithm, ranks, size):
    transfers = collective(function, algorithm, size, ranks)
    run = run_transfers(machine(ranks), transfers)
    turns = 2 if function is all_reduce else 1
    assert transfers.bytes_matrix().sum() == turns * (ranks - 1) * size
    if transfers.is_remote.any():
        assert run.time_ps >= busiest_link_ps(machine(ranks), transfers)
        assert run.port_bytes.sum() >= transfers.bytes_matrix().sum()


def test_pieces_queues_and_groups():
    draft = Draft(4)
    all_gather(draft, [3, 1], [4 * MAX_PIECE_BYTES + 2], num_blocks=1)
    transfers = draft.build()
    assert sorted(transfers.size_bytes[transfers.is_remote]) == [1, 1, *[MAX_PIECE_BYTES] * 4]
    assert set(transfers.src[transfers.is_remote]) == {1, 3}
    wide = collective(all_gather, "direct", size=70 * 100, ranks=70)
    assert wide.queue_idx[wide.is_remote].max() == 63  # offsets 65 to 69 share the first cores


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(([0, 0], [8]), "ranks"), (([0], []), "bucket bytes"), (([0], [-1]), "bucket bytes"),
     (([0], [8], "tree"), "algorithm")],
)  # fmt: skip
def test_bad_collectives_are_refused(arguments, field):
    with pytest.raises(InputError) as caught:
        all_gather(Draft(2), *arguments)
    assert caught.value.field == field


def test_a_ring_of_attention_hides_what_it_can():
    """R blocks of computation one after the other when each hides the next block; else the ring's time."""
    block, slow = 2**20, 10**9
    run = run_transfers(machine(), context_ring(RANKS, block, attention_ps=slow), WHOLE)
    assert run.time_ps == RANKS * slow
    wire = run_transfers(machine(), context_ring(RANKS, block, num_buffers=RANKS), WHOLE)
    assert wire.time_ps == (RANKS - 1) * step_ps(block)
    tight = run_transfers(machine(), context_ring(RANKS, block), WHOLE)
    assert tight.time_ps > wire.time_ps
    with pytest.raises(InputError, match="buffers"):
        context_ring(RANKS, block, num_buffers=1)


def test_sharded_training_hides_its_gathers():
    """The first gather and the last scatter are seen; all others hide behind the computation."""
    size, time = RANKS * SEGMENT, 10**9
    training = sharded_training(RANKS, [size] * 3, forward_ps=time, backward_ps=time)
    first = run_transfers(machine(), collective(all_gather, "direct"), WHOLE).time_ps
    last = run_transfers(machine(), collective(reduce_scatter, "direct"), WHOLE).time_ps
    run = run_transfers(machine(), training, WHOLE)
    assert run.time_ps == first + 6 * time + last
    bare = sharded_training(RANKS, [size] * 3, forward_ps=time, backward_ps=time, num_prefetch=0)
    seen = run_transfers(machine(), bare, WHOLE).time_ps - run.time_ps
    # Two of the four gathers share the ports with a scatter.
    assert 4 * first < seen <= 4 * first + 2 * last
    kept = sharded_training(RANKS, [size] * 3, is_gathered_again=False)
    assert kept.bytes_matrix().sum() == 6 * (RANKS - 1) * size


def test_chunks_change_little_and_runs_repeat():
    transfers = collective(all_reduce, "direct")
    coarse = run_transfers(machine(), transfers, TransferOptions(chunk_bytes=SEGMENT // 4))
    again = run_transfers(machine(), transfers, TransferOptions(chunk_bytes=SEGMENT // 4, with_trace=True))
    assert np.array_equal(coarse.finish_ps, again.finish_ps)
    assert again.trace is not None
    fine = run_transfers(machine(), transfers, TransferOptions(chunk_bytes=SEGMENT // 16))
    # A chunk is read before it is sent: a finer cut ends earlier by its last part's time behind the switch.
    assert abs(fine.time_ps - coarse.time_ps) <= 4 * send_ps(SEGMENT // 4)
