"""What the machine sets up for kernels: queues of their own, peers in their places, refusals."""

from itertools import pairwise

import numpy as np
import pytest

from native.errors import NativeInputError
from native.twin import TwinMachine
from reference.memory.descriptor import JETTY_INFO, SQ_DEPTH, WQEBB_BYTES
from tests.native.urmakit import NUM_BYTES, Fabric, build_script_twin


@pytest.fixture(scope="module")
def twin(jit_cache):
    """Load the twin with the script kernel."""
    return build_script_twin(jit_cache)


def test_every_jetty_has_memory_of_its_own(twin):
    fabric = Fabric(twin, ranks=3, aivs=4, sq_depth=32, cq_depth=16)
    ranges = []
    for rank, aiv in np.ndindex(3, 4):
        info = fabric.queue(rank, aiv).info
        assert info["wqebb_bytes"] == WQEBB_BYTES
        assert info["cq_depth"] == 16
        assert info["wqebb_head"] == info["num_expected_completions"] == 0
        ranges += [(info["sq_base"], 32 * WQEBB_BYTES), (info["cq_base"], 16 * info["cqe_bytes"])]
        ranges += [(info[name], 8) for name in info if name.endswith("_address")]
        assert all(address >> 40 == rank + 1 for address, _ in ranges[-7:])
    ranges.sort()
    assert all(a + size <= b for (a, size), (b, _) in pairwise(ranges))


def test_the_head_is_a_word_of_the_jetty_info(twin):
    fabric = Fabric(twin)
    table = fabric.machine.read(fabric.machine.find(0, "jetty_table"), 1, "<u8")
    offset = JETTY_INFO.fields["wqebb_head"][1]
    assert fabric.queue().info["sq_head_address"] == int(table[0]) + offset


def test_peers_name_their_windows_and_differ(twin):
    fabric = Fabric(twin, ranks=4)
    seen = set()
    for rank in range(4):
        for peer in {0, 1, 2, 3} - {rank}:
            found = fabric.peer(rank, peer)
            assert (found.window_base, found.window_bytes) == (fabric.windows[peer], NUM_BYTES)
            assert found.eid == fabric.peer((peer + 1) % 4, peer).eid
            seen.add((found.tp_id, peer, found.eid, found.token_id, found.token_value))
    assert len({row[0] for row in seen}) == 12
    assert all(len({row[i] for row in seen}) == 4 for i in (2, 3, 4))


def test_rings_have_the_depth_of_the_hardware_unless_told(twin):
    with TwinMachine(twin, {"ranks": 2, "aivs": 1}) as machine:
        for rank in range(2):
            machine.alloc(rank, 64, "window")
        machine.init_jetties()
        # The CQ is the next allocation behind the SQ, with a gap between.
        num_bytes = machine.find(0, "cq0") - machine.find(0, "sq0")
        assert SQ_DEPTH * WQEBB_BYTES <= num_bytes < 2 * SQ_DEPTH * WQEBB_BYTES


@pytest.mark.parametrize("params", [{"sq_depth": 24}, {"sq_depth": 0}, {"sq_depth": 65536}, {"cq_depth": 3}])
def test_depths_must_be_powers_of_two(twin, params):
    with pytest.raises(NativeInputError, match="power of two"):
        Fabric(twin, **params)


def test_a_rank_without_a_window_is_refused(twin):
    with TwinMachine(twin, {"ranks": 2}) as machine, pytest.raises(NativeInputError, match="window"):
        machine.init_jetties()


def test_one_rank_has_no_jetties(twin):
    with TwinMachine(twin, {"ranks": 1}) as machine:
        machine.init_jetties()
        with pytest.raises(NativeInputError):
            machine.find(0, "jetty_table")
