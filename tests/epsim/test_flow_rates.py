"""Fair rates: a certificate that planted errors do not pass, an oracle in fractions, two engines alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.flow import kernels
from epsim.flow.fast import choose_solver, has_numba, looping_solver
from epsim.flow.maxmin import binding_paths, certify, fair_need, solve
from epsim.flow.problem import by_hand
from tests.epsim.flow_problems import GB, exact_rates, matrix_problem, problems
from topology import leaf_spine

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed (extra fast)")


def solved(problem):
    paths, flows = binding_paths(problem), np.flatnonzero(problem.is_live)
    return paths, flows, solve(paths, flows)[0]


@given(problems())
def test_rates_pass_the_certificate_and_those_of_fractions_are_the_same(problem):
    paths, flows, rate = solved(problem)
    assert certify(paths, flows, rate) is None
    expected = exact_rates(problem, flows.tolist())
    # The certificate with exact rates, rounded once: the two solutions satisfy the same conditions.
    assert certify(paths, flows, np.array([float(expected[f]) for f in flows])) is None


@given(problems(), st.data())
def test_the_certificate_catches_a_rate_that_is_off(problem, data):
    paths, flows, rate = solved(problem)
    if not len(flows):
        return
    flow = data.draw(st.integers(0, len(flows) - 1))
    for factor in (1 + 1e-6, 1 - 1e-6, 0.5, 2.0):
        wrong = rate.copy()
        wrong[flow] *= factor
        assert certify(paths, flows, wrong) is not None


def test_the_certificate_catches_full_links_with_unfair_shares():
    problem = by_hand([9, 9], [{0: 1}, {0: 1}], [10 * GB])
    paths, flows, _ = solved(problem)
    assert certify(paths, flows, np.array([5.0, 5.0]) * GB) is None
    assert "faster" in certify(paths, flows, np.array([4.0, 6.0]) * GB)
    assert "carries" in certify(paths, flows, np.array([6.0, 6.0]) * GB)


PLAIN = looping_solver("plain Python", vars(kernels))


@given(problems())
def test_the_compiled_source_gives_the_same_bits_as_plain_python(problem):
    paths, flows, rate = solved(problem)
    assert PLAIN.solve(paths, flows)[0].tolist() == rate.tolist()
    left = problem.size_bytes[flows].astype(float)
    assert PLAIN.fair_need(paths, flows, left)[1].tolist() == fair_need(paths, flows, left)[1].tolist()


@needs_numba
@given(problems())
def test_both_engines_give_the_same_bits(problem):
    paths, flows, rate = solved(problem)
    other, stopped = choose_solver("numba").solve(paths, flows)
    assert other.tolist() == rate.tolist()
    assert stopped.tolist() == solve(paths, flows)[1].tolist()
    left = problem.size_bytes[flows].astype(float)
    pairs = (choose_solver(name).fair_need(paths, flows, left) for name in ("numpy", "numba"))
    assert len({(rates.tobytes(), need.tobytes()) for rates, need in pairs}) == 1


@needs_numba
def test_both_engines_give_the_same_bits_at_128_ranks():
    matrix = np.random.default_rng(0).integers(0, 3, (128, 128))
    paths, flows, rate = solved(matrix_problem(leaf_spine(uplink_rate="20GB/s"), matrix))
    assert choose_solver("numba").solve(paths, flows)[0].tolist() == rate.tolist()


@given(problems(), st.randoms(use_true_random=False))
def test_another_order_of_flows_and_resources_gives_the_same_fair_rates(problem, random):
    order = list(range(problem.num_flows))
    names = list(range(problem.num_resources))
    random.shuffle(order)
    random.shuffle(names)
    rows = [
        {names[c]: s for c, s in zip(problem.resource_idx[f], problem.share[f], strict=True) if c >= 0}
        for f in order
    ]
    rates = problem.capacity_bytes_per_s[np.argsort(names)]
    paths, flows, rate = solved(by_hand(problem.size_bytes[order], rows, rates))
    back = dict(zip(np.array(order)[flows].tolist(), rate.tolist(), strict=True))
    # Sums in another order round elsewhere, so the certificate decides, on the original problem.
    paths, flows, _ = solved(problem)
    assert certify(paths, flows, np.array([back[f] for f in flows.tolist()])) is None


@given(problems())
def test_left_out_resources_were_never_overfull(problem):
    paths, flows, rate = solved(problem)
    used = np.zeros(problem.num_resources)
    for f, x in zip(flows, rate, strict=True):
        for c, share in zip(problem.resource_idx[f], problem.share[f], strict=True):
            if c >= 0:
                used[c] += x * share
    dropped = np.setdiff1d(np.arange(problem.num_resources), paths.kept)
    slack = (problem.num_flows + problem.num_resources * 8) * 2.0**-53
    assert (used[dropped] <= problem.capacity_bytes_per_s[dropped] * (1 + slack)).all()


def test_trunks_that_ports_cannot_fill_are_left_out():
    matrix = np.ones((128, 128), np.int64)
    assert len(binding_paths(matrix_problem(leaf_spine(), matrix)).kept) == 256
    assert len(binding_paths(matrix_problem(leaf_spine(uplink_rate="49GB/s"), matrix)).kept) == 288
