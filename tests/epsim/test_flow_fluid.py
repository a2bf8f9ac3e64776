"""Runs to completion: against fractions, between proven sides, whatever the engine, order or mode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError, MissingExtraError
from epsim.flow import bracket_makespan, filling, flow_problem, kernels, simulate, steps
from epsim.flow import fast as fast_module
from epsim.flow.bracket import whole_ps
from epsim.flow.fast import has_numba, looping_solver
from epsim.flow.maxmin import binding_paths
from epsim.flow.problem import by_hand
from epsim.flow.steps import Plan
from tests.epsim.flow_problems import GB, exact_finish_ps, matrix_problem, problems
from topology import Router, leaf_spine, link_bound, ubl128

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed (extra fast)")


@given(problems())
def test_exact_ends_are_those_of_fractions(problem):
    result = simulate(problem, engine="numpy")
    for computed, exact in zip(result.finish_ps.tolist(), exact_finish_ps(problem), strict=True):
        # The true end, rounded up; rounding noise may take the value over an integer either way.
        assert exact - 1 < computed < exact + 2
    assert result.error_bound_ps == 0


@given(problems(starts=True), st.sampled_from([0.5, 0.1, 0.003]))
def test_the_bounds_hold_around_exact_and_bounded_runs(problem, epsilon):
    exact = simulate(problem, engine="numpy")
    bounded = simulate(problem, mode="bounded", epsilon=epsilon, engine="numpy")
    bracket = bracket_makespan(problem, epsilon=epsilon, engine="numpy")
    assert bracket.lower_ps <= exact.makespan_ps <= bracket.upper_ps
    assert bounded.lower_bound_ps <= bounded.makespan_ps
    assert abs(bounded.makespan_ps - exact.makespan_ps) <= bounded.error_bound_ps
    assert bounded.num_solves <= exact.num_solves + problem.num_flows
    assert exact.resource_busy().max(initial=0.0) <= 1 + (problem.num_flows + 9) * 2.0**-53


def test_a_bound_that_is_too_high_or_too_low_would_be_seen():
    # Planted: the bracket of a problem with one more flow fails around the original.
    problem = by_hand([1000, 500], [{0: 1}, {0: 1}], [GB])
    more = by_hand([1000, 500, 9], [{0: 1}] * 3, [GB])
    exact = simulate(problem, engine="numpy").makespan_ps
    assert bracket_makespan(problem).is_exact
    assert bracket_makespan(problem).lower_ps == exact
    assert bracket_makespan(more).lower_ps > exact


def test_a_coarse_step_wastes_what_the_bound_admits():
    # A third of 3 GB/s each on link 0: flow 2 ends at 2 us, flow 1 at 8/3 us, inside a step that ends at
    # 3 us and leaves its share idle until then.
    uses = [{0: 1, 1: 1}, {0: 1}, {0: 1}, {1: 1}]
    problem = by_hand([9000, 3000, 2000, 8000], uses, [3 * GB, 4 * GB])
    exact = simulate(problem, engine="numpy")
    bounded = simulate(problem, mode="bounded", epsilon=0.5, engine="numpy")
    assert 0 < bounded.makespan_ps - exact.makespan_ps <= bounded.error_bound_ps


@needs_numba
@given(problems(starts=True), st.sampled_from(["exact", "bounded"]))
def test_both_engines_give_the_same_run(problem, mode):
    runs = [simulate(problem, mode=mode, engine=engine) for engine in ("numpy", "numba")]
    assert runs[0].finish_ps.tolist() == runs[1].finish_ps.tolist()
    assert runs[0].held_s.tolist() == runs[1].held_s.tolist()
    assert runs[0].bracket == runs[1].bracket
    assert [run.engine for run in runs] == ["numpy", "numba"]


def skewed(num_ranks):
    """Return a problem with a slow trunk in which flows end one by one."""
    matrix = np.random.default_rng(0).integers(0, 10**6, (num_ranks, num_ranks))
    np.fill_diagonal(matrix, 0)
    return matrix_problem(leaf_spine(num_ranks, leaves=4, spines=2, uplink_rate="30GB/s"), matrix)


@needs_numba
@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_both_engines_give_the_same_run_at_32_ranks(mode):
    problem = skewed(32)
    runs = [simulate(problem, mode=mode, engine=engine) for engine in ("numpy", "numba")]
    assert runs[0].finish_ps.tolist() == runs[1].finish_ps.tolist()
    assert runs[0].held_s.tolist() == runs[1].held_s.tolist()
    assert runs[0].num_solves == runs[1].num_solves


def plain_run(problem):
    """Run the compiler's source as plain Python: ends as bytes."""
    paths, live = binding_paths(problem), np.flatnonzero(problem.is_live)
    never = np.zeros(problem.num_flows, np.bool_)
    size = problem.size_bytes.astype(float)
    plan = Plan(size=size, order=live, starts=np.append(live * 0.0, np.inf), on_busiest=never, epsilon=0.0)
    expected = steps.run(paths, plan)
    found = looping_solver("plain Python", vars(kernels)).run(paths, plan)
    return found.end.tobytes(), expected.end.tobytes()


def test_turns_are_kept_and_a_kept_turn_that_is_stale_would_be_seen(monkeypatch):
    problem, kept = skewed(8), []
    real = kernels.unchanged
    monkeypatch.setattr(kernels, "unchanged", lambda *args: kept.append(real(*args)) or kept[-1])
    found, expected = plain_run(problem)
    assert found == expected
    assert sum(turns > 0 for turns in kept) > len(kept) // 4
    # Planted: the resources of ended flows keep what they had before those turns.
    monkeypatch.setattr(filling, "_replay", lambda *_: True)
    found, expected = plain_run(problem)
    assert found != expected


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_another_order_of_flows_changes_no_end(mode):
    rng = np.random.default_rng(1)
    matrix = rng.integers(0, 4, (16, 16)) * 14_336
    src, dst = np.nonzero(matrix)
    order = rng.permutation(len(src))
    topology = leaf_spine(16, leaves=4, spines=2, uplink_rate="30GB/s")
    ends = []
    for rows in (np.arange(len(src)), order):
        problem = flow_problem(Router(topology), src[rows], dst[rows], matrix[src[rows], dst[rows]])
        table = np.zeros((16, 16), np.int64)
        table[src[rows], dst[rows]] = simulate(problem, mode=mode, engine="numpy").finish_ps
        ends.append(table.tolist())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("policy", ["spray", "flow-hash"])
def test_32_ranks_at_decode_size_are_within_the_bound_of_the_topology(policy):
    matrix = np.random.default_rng(0).poisson(24, (32, 32)) * 14_336
    np.fill_diagonal(matrix, 0)
    for topology in (leaf_spine(32, leaves=8, spines=4), ubl128(32)):
        problem = matrix_problem(topology, matrix, policy=policy)
        result = simulate(problem, mode="bounded", engine="numpy")
        assert result.lower_bound_ps == link_bound(topology, matrix, policy=policy).time_ps
        assert result.lower_bound_ps <= result.makespan_ps
        held = result.held_s.sum(axis=1)
        # Something holds each flow until it ends; an end may have been taken back to the bracket.
        assert (result.finish_ps - held * 1e12 < 2).all()
        assert result.makespan_ps <= result.bracket.upper_ps


def test_bad_requests_are_one_sentence():
    problem = by_hand([1], [{0: 1}], [1])
    with pytest.raises(InputError, match="epsilon is 0"):
        simulate(problem, mode="bounded", epsilon=0)
    with pytest.raises(InputError, match="mode is 'fast'"):
        simulate(problem, mode="fast")
    with pytest.raises(InputError, match="engine is 'cuda'"):
        simulate(problem, engine="cuda")


@pytest.mark.parametrize(
    ("sizes", "uses", "rates", "field"),
    [
        ([-1], [{0: 1}], [1], r"size_bytes\[0\] is -1"),
        ([1], [{1: 1}], [1], r"resource_idx\[0, 0\] is 1"),
        ([1], [{0: 0}], [1], r"share\[0\] is 0"),
        ([1], [{0: 1}], [float("inf")], r"capacity_bytes_per_s\[0\] is inf"),
        ([1, 2], [{0: 1}], [1], "shape of size_bytes"),
    ],
)
def test_bad_problems_are_refused(sizes, uses, rates, field):
    with pytest.raises(InputError, match=field):
        by_hand(sizes, uses, rates)


def test_without_numba_auto_is_numpy_and_asking_for_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(fast_module, "has_numba", lambda: False)
    problem = by_hand([1], [{0: 1}], [1])
    assert simulate(problem).engine == "numpy"
    with pytest.raises(MissingExtraError, match=r"pip install 'epsim\[fast\]'"):
        simulate(problem, engine="numba")


def test_rounding_up_forgives_noise_but_nothing_more():
    assert whole_ps(242e-12 * (1 + 2**-52), 4) == 242
    assert whole_ps(242.001e-12, 4) == 243


def test_a_resource_that_would_have_been_the_lowest_is_seen():
    problem = skewed(8)
    paths = binding_paths(problem)
    state = filling.new_fill(paths, problem.num_flows)
    state.active[problem.is_live] = True
    filling.index(state)
    filling.solve(state, 0, 0)
    last = int(state.full[3])
    assert filling._replay(state, last, 3)
    # Planted: a turn that was higher than the resource is now.
    state.height[1] *= 2
    assert not filling._replay(state, last, 3)
