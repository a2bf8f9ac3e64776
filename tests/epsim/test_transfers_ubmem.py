"""Load/store: waves of round trips above the outstanding limit, one round trip below it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.schedule.engram import engram_fetch, uniform_indices
from epsim.schedule.transfers import Draft
from epsim.schedule.ubmem import SOURCES, UbmemCosts
from epsim.sim.transfers import TransferOptions, run_transfers
from tests.epsim.transfer_checks import busiest_link_ps, machine, send_ps

COSTS = UbmemCosts()
LIMIT, REQUEST = COSTS.outstanding_limit, COSTS.request_bytes


def one_by_one(costs, count):
    """Return when the last of `count` loads is answered, request by request."""
    issued, answered = [], []
    for number in range(count):
        start = issued[-1] + costs.issue_ps if issued else 0
        if number >= costs.outstanding_limit:
            start = max(start, answered[number - costs.outstanding_limit])
        issued.append(start)
        answered.append(start + costs.load_ps)
    return answered[-1]


def load(size, cores=1, lane="ubmem-load"):
    """Let cores of rank 1 load (or of rank 0 store) `size` bytes each."""
    draft = Draft(2)
    for core in range(cores):
        draft.add(0, 1, size, label="x", lane=lane, queue_idx=core)
    return draft.build()


def test_the_limit_is_rate_times_round_trip():
    assert LIMIT == 48  # 35.1495 GiB/s x 662.657 ns / 512 B = 48.8
    assert set(SOURCES) == set(UbmemCosts.__dataclass_fields__)
    with pytest.raises(InputError, match="issue_ps"):
        UbmemCosts(issue_ps=0)


def test_below_and_above_the_limit():
    assert COSTS.read_ps(0) == 0
    assert COSTS.read_ps(1) == COSTS.load_ps
    assert COSTS.read_ps(LIMIT * REQUEST) == COSTS.load_ps + (LIMIT - 1) * COSTS.issue_ps
    # One more request waits for the first answer: a second round trip.
    assert COSTS.read_ps(LIMIT * REQUEST + 1) == 2 * COSTS.load_ps
    assert COSTS.read_ps(10 * LIMIT * REQUEST) == 10 * COSTS.load_ps + (LIMIT - 1) * COSTS.issue_ps


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 64))
def test_waves_are_the_recurrence(count, trip, issue, bound):
    """With any constants, unless the link is slower than the core."""
    costs = UbmemCosts(load_ps=trip, issue_ps=issue, most_outstanding=bound)
    expected = max(one_by_one(costs, count), costs.link_ps(count * REQUEST))
    assert costs.read_ps(count * REQUEST) == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300_000))
def test_a_core_alone_takes_the_form_exactly(size):
    assert run_transfers(machine(2), load(size)).time_ps == COSTS.read_ps(size)


def test_loads_of_a_core_follow_each_other_without_a_gap():
    draft = Draft(2)
    for _ in range(6):
        draft.add(0, 1, 8 * REQUEST, label="row", lane="ubmem-load", queue_idx=0)
    run = run_transfers(machine(2), draft.build())
    assert run.time_ps == COSTS.read_ps(48 * REQUEST)
    assert run.engine_busy_ps.sum() == 0


def test_stores_are_posted():
    """No limit: every further wave costs its issue time alone."""
    times = [
        run_transfers(machine(2), load(n * LIMIT * REQUEST, lane="ubmem-store")).time_ps for n in (1, 2, 9)
    ]
    wave = LIMIT * COSTS.issue_ps
    assert np.diff(times).tolist() == [wave, 7 * wave]
    assert times[0] >= COSTS.write_ps(LIMIT * REQUEST)


def test_many_cores_are_bound_by_the_port():
    """64 cores ask one owner: its port never rests after the first round trip."""
    transfers = load(20 * LIMIT * REQUEST, cores=64)
    run = run_transfers(machine(2), transfers)
    bound = busiest_link_ps(machine(2), transfers)
    pieces = 64 * 20
    assert bound <= run.time_ps
    # First answer, all bytes one after the other (each piece rounded), last piece's spread and switch.
    slack = COSTS.load_ps + LIMIT * COSTS.issue_ps + send_ps(LIMIT * REQUEST) + pieces
    assert run.time_ps <= bound + slack


def test_a_smaller_limit_is_slower():
    tight = TransferOptions(ubmem=UbmemCosts(most_outstanding=4))
    assert run_transfers(machine(2), load(10**5), tight).time_ps == tight.ubmem.read_ps(10**5)
    assert tight.ubmem.read_ps(10**5) > COSTS.read_ps(10**5)


def test_engram_loads_every_remote_row_once():
    ids = uniform_indices(4, 50, 3, 20, seed=1)
    ids[2][5] = -1
    transfers = engram_fetch(ids, entries_per_rank=20, entry_bytes=1000)
    expected = np.zeros((4, 4), np.int64)
    for rank, table in enumerate(ids):
        owners = table[table >= 0] // 20
        expected[:, rank] = np.bincount(owners, minlength=4) * 1000
    own = int(expected.trace())
    np.fill_diagonal(expected, 0)
    assert np.array_equal(transfers.bytes_matrix(), expected)
    assert transfers.size_bytes[transfers.src == transfers.dst].sum() == own
    with pytest.raises(InputError, match="below the 80 entries"):
        engram_fetch([np.array([80])] * 4, entries_per_rank=20, entry_bytes=8)


def test_engram_keeps_as_many_rows_on_their_way_as_buffers():
    """One core, one owner: rows of 60 KiB leave room for four buffers, so three loads at a time."""
    big = 60 * 1024
    ids = [np.array([[30]] * 9), np.zeros((0, 1), np.int64)]
    transfers = engram_fetch(ids, entries_per_rank=20, entry_bytes=big, num_cores=1)
    assert [transfers.waits_of(n) for n in range(5)] == [[], [], [], [0], [1]]
    run = run_transfers(machine(2), transfers)
    assert run.time_ps >= COSTS.read_ps(9 * big)
