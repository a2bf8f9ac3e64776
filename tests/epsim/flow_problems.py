"""Problems for the tests of the flow level: small and exact ones by hand, random ones by hypothesis."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from epsim.flow import flow_problem
from epsim.flow.problem import FlowProblem, by_hand
from topology import Router

GB = 10**9
US = 10**6  # picoseconds


@st.composite
def problems(draw, *, starts=False):
    """Draw up to 12 flows on up to 6 resources; shares of 1/8 to 1, odd sizes, zeros."""
    num_resources = draw(st.integers(1, 6))
    num_flows = draw(st.integers(1, 12))
    some = st.lists(st.integers(0, num_resources - 1), max_size=4, unique=True)
    share = st.sampled_from([1.0, 0.125, 1 / 3])
    uses = [{c: draw(share) for c in draw(some)} for _ in range(num_flows)]
    sizes = draw(st.lists(st.sampled_from([0, 1, 7, 1000, 999_983]), min_size=num_flows, max_size=num_flows))
    rates = draw(st.lists(st.sampled_from([1, 3, 7, 400]), min_size=num_resources, max_size=num_resources))
    when = st.sampled_from([0, 5, 1000, 10**6]) if starts else st.just(0)
    start_ps = draw(st.lists(when, min_size=num_flows, max_size=num_flows))
    return by_hand(sizes, uses, np.array(rates) * GB, start_ps)


def matrix_problem(topology, matrix, **options):
    """Put a byte matrix on a topology, rank r on NPU r."""
    matrix = np.asarray(matrix)
    src, dst = np.nonzero(matrix)
    return flow_problem(Router(topology), src, dst, matrix[src, dst], **options)


def exact_rates(problem: FlowProblem, flows):
    """Fill progressively in fractions, plain loops: {flow: bytes/s}; shares as exact binary numbers."""
    uses = {
        f: {int(c): Fraction(float(s)) for c, s in zip(problem.resource_idx[f], problem.share[f], strict=True)
            if c >= 0}
        for f in flows
    }  # fmt: skip
    left = {c: Fraction(float(rate)) for c, rate in enumerate(problem.capacity_bytes_per_s)}
    rates, rising = {}, set(uses)
    while rising:
        level = {}
        for c in left:
            weight = sum(uses[f].get(c, 0) for f in rising)
            if weight:
                level[c] = left[c] / weight
        height = min(level.values())
        full = {c for c in level if level[c] == height}
        stop = {f for f in rising if full & set(uses[f])}
        for f in stop:
            rates[f] = height
            for c, share in uses[f].items():
                left[c] -= height * share
        rising -= stop
    return rates


def exact_finish_ps(problem: FlowProblem):
    """Run flows that all start at 0 to completion in fractions: [F] exact picoseconds."""
    left = {int(f): Fraction(int(problem.size_bytes[f])) for f in np.flatnonzero(problem.is_live)}
    ends, now = [Fraction(0)] * problem.num_flows, Fraction(0)
    while left:
        rates = exact_rates(problem, sorted(left))
        step = min(left[f] / rates[f] for f in left)
        now += step
        left = {f: left[f] - rates[f] * step for f in left}
        for f in [f for f in left if not left[f]]:
            ends[f] = now * 10**12
            del left[f]
    return ends
