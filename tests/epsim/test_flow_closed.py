"""Closed forms: the expected shares are written out, the times must match to the picosecond."""

import numpy as np
import pytest

from epsim.flow import simulate
from epsim.flow.fast import choose_solver, has_numba
from epsim.flow.maxmin import binding_paths
from epsim.flow.problem import by_hand
from tests.epsim.flow_problems import GB, US, matrix_problem
from topology import leaf_spine, ubl128, with_link_rate, without_links
from topology.source import Source

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed (extra fast)")
ENGINES = ["numpy", pytest.param("numba", marks=needs_numba)]


def rates_of(problem, engine="numpy"):
    return choose_solver(engine).solve(binding_paths(problem), np.arange(problem.num_flows))[0].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_two_flows_on_one_link(engine):
    # 50 GB/s: 25 each until the small one ends at 40 us; the other has 1 MB left at 50.
    problem = by_hand([1_000_000, 2_000_000], [{0: 1.0}, {0: 1.0}], [50 * GB])
    assert rates_of(problem, engine) == [25 * GB, 25 * GB]
    result = simulate(problem, engine=engine)
    assert result.finish_ps.tolist() == [40 * US, 60 * US]
    assert (result.makespan_ps, result.lower_bound_ps, result.num_solves) == (60 * US, 60 * US, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_parking_lot(engine):
    # One long flow over three links of 30 GB/s, shared with 1, 2 and 5 short ones: the last link gives it
    # 30 / 6 = 5; the others share what it leaves: 25, 12.5 twice, 5 five times.
    uses = [{0: 1, 1: 1, 2: 1}, {0: 1}, {1: 1}, {1: 1}] + [{2: 1}] * 5
    problem = by_hand([30_000] * 9, uses, [30 * GB] * 3)
    assert rates_of(problem, engine) == [r * GB for r in (5, 25, 12.5, 12.5, 5, 5, 5, 5, 5)]
    result = simulate(problem, engine=engine)
    assert result.finish_ps.tolist() == [6 * US, 1_200_000, 2_400_000, 2_400_000, *[6 * US] * 5]


@pytest.mark.parametrize("policy", ["spray", "flow-hash", "pinned"])
def test_incast_takes_turns_at_the_port_of_the_receiver(policy):
    # 15 senders, one port of 50 GB/s: 50/15 GB/s each; 15 x 1 MB take 300 us whatever the path.
    matrix = np.zeros((16, 16), np.int64)
    matrix[1:, 0] = 1_000_000
    problem = matrix_problem(leaf_spine(16, leaves=4, spines=4), matrix, policy=policy)
    assert rates_of(problem) == [50 * GB / 15] * 15
    assert simulate(problem).finish_ps.tolist() == [300 * US] * 15


def test_a_permutation_runs_at_the_full_rate_of_the_card():
    # Eight planes of 50 GB/s: 400 GB/s for each pair, 4 MB in 10 us.
    matrix = np.roll(np.eye(16, dtype=np.int64) * 4_000_000, 3, axis=1)
    problem = matrix_problem(ubl128(16), matrix)
    assert rates_of(problem) == [400 * GB] * 16
    assert simulate(problem).finish_ps.tolist() == [10 * US] * 16


def test_one_lost_plane_leaves_seven_eighths():
    topology = ubl128(16)
    matrix = np.full((16, 16), 7_000_000) - np.diag(np.full(16, 7_000_000))
    lost = np.flatnonzero(topology.link_plane == 3)
    whole, broken = (matrix_problem(t, matrix) for t in (topology, without_links(topology, lost)))
    assert rates_of(whole) == [400 * GB / 15] * 240
    # 7/8. A seventh, the sum of 15 of them and a division round 16 times.
    assert np.abs(np.array(rates_of(broken)) / (350 * GB / 15) - 1).max() <= 16 * 2.0**-53
    assert simulate(whole).makespan_ps * 8 == simulate(broken).makespan_ps * 7
    # Lost on the way into one card only: flows to it use seven planes, and no other flow is slower.
    last = lost[topology.link_dst[lost] == 0]
    problem = matrix_problem(without_links(topology, last), np.eye(16, k=-1, dtype=np.int64) * 7_000_000)
    assert rates_of(problem) == [350 * GB] + [400 * GB] * 14


def test_a_trunk_oversubscribed_eight_to_one():
    # Two leaves of 8 cards at 50 GB/s, one uplink of 50 GB/s: 8 flows across share it, 6.25 GB/s each.
    topology = leaf_spine(16, leaves=2, spines=1)
    across = np.zeros((16, 16), np.int64)
    across[np.arange(8), np.arange(8) + 8] = 1_000_000
    problem = matrix_problem(topology, across)
    assert rates_of(problem) == [6.25 * GB] * 8
    result = simulate(problem)
    assert result.finish_ps.tolist() == [160 * US] * 8
    names = [problem.describe(resource, topology) for resource, _ in result.binding()]
    assert len(names) == 1
    assert names[0].startswith("link")
    assert "sw" in names[0].split("(")[1].split(" -> ")[0]
    assert "sw" in names[0].split(" -> ")[1]


def test_one_slow_link_of_a_spray_slows_its_flow_to_eight_times_that_link():
    topology = ubl128(2)
    slow = with_link_rate(topology, topology.links_of(0)[2:3], 25 * GB, Source("given", "test"))
    problem = matrix_problem(slow, [[0, 1_000_000], [1_000_000, 0]])
    assert rates_of(problem) == [200 * GB, 400 * GB]


def test_a_card_limit_binds_below_its_ports():
    problem = matrix_problem(
        ubl128(4), [[0, 9, 9, 9], [9, 0, 0, 0], [0] * 4, [0] * 4],
        send_bytes_per_s=[300 * GB] * 4, receive_bytes_per_s=[50 * GB, 400 * GB, 400 * GB, 400 * GB],
    )  # fmt: skip
    assert rates_of(problem) == [100 * GB, 100 * GB, 100 * GB, 50 * GB]
    assert problem.describe(simulate(problem).binding()[0][0]).startswith("receive limit of npu0")


def test_flows_that_start_later_share_from_then_on():
    # Alone until 20 us (1 MB of 2 at 50 GB/s), then 25 each: both have 1 MB, both end 40 us later.
    problem = by_hand([2_000_000, 1_000_000], [{0: 1}, {0: 1}], [50 * GB], start_ps=[0, 20 * US])
    assert simulate(problem).finish_ps.tolist() == [60 * US, 60 * US]
    gap = by_hand([50_000, 50_000], [{0: 1}, {0: 1}], [50 * GB], start_ps=[3, 9 * US])
    assert simulate(gap).finish_ps.tolist() == [US + 3, 10 * US]


def test_what_takes_no_time_ends_as_it_starts():
    problem = by_hand([0, 5, 5], [{0: 1}, {}, {0: 1}], [5 * GB], start_ps=[7, 8, 9])
    result = simulate(problem)
    assert result.finish_ps.tolist() == [7, 8, 1009]
    nothing = simulate(by_hand([], [], [1]))
    assert (nothing.makespan_ps, nothing.ratio_to_bound, nothing.binding()) == (0, 1.0, [])


def test_per_rank_times_and_link_loads():
    topology = ubl128(3)
    matrix = np.array([[5, 40_000, 80_000], [0, 0, 0], [0, 40_000, 0]])
    result = simulate(matrix_problem(topology, matrix))
    # npu0 sends 120 kB at 400 GB/s; it shares its port, npu1's flow from npu2 gets what is left: 200.
    assert result.finish_by_src(3).tolist() == [300_000, 0, 200_000]
    assert result.finish_by_dst(3).tolist() == [0, 200_000, 300_000]
    carried = result.link_bytes(topology.num_links)
    assert carried[topology.links_of(0)].tolist() == [15_000] * 8
    assert result.link_busy(topology.link_bytes_per_s())[topology.links_of(0)].tolist() == [1.0] * 8
    assert result.resource_busy().max() == 1.0
