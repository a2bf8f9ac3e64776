"""Classes give the listed flows' rates and finish times, exactly; planted slips are seen."""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.flow import flow_problem, refine, rolelinks, simulate
from epsim.flow.symmetry import ClassLaw, matrix_classes, solve_classes, uniform_classes
from tests.strategies import topologies
from tests.topology.oracle import spray_shares
from topology import (
    Router,
    TopologyError,
    clos,
    leaf_spine,
    link_bound,
    mesh,
    ubl128,
    with_link_rate,
    without_links,
)
from topology.source import Source

LARGEST = 262_144
GIVEN = Source("given", "test")


def listed_matrix(law):
    same = law.group[:, None] == law.group
    matrix = np.where(same, law.kind_bytes[law.kind[:, None], law.kind], 0)
    np.fill_diagonal(matrix, 0)
    return matrix


def listed_flows(topology, matrix, send=None):
    """List flows as {(src, dst): ({resource: share}, bytes)} and capacities; None when a path is missing."""
    flows, capacity = (
        {},
        {link: topology.link(link).bandwidth_bytes_per_s for link in range(topology.num_links)},
    )
    for src, dst in np.argwhere(matrix):
        shares = spray_shares(topology, src, dst)
        if shares is None:
            return None
        if send is not None:
            shares[f"send {src}"] = Fraction(1)
            capacity[f"send {src}"] = send
        flows[int(src), int(dst)] = shares, Fraction(int(matrix[src, dst]))
    return flows, capacity


def fill(flows, capacity):
    """Max-min fair rates, flow by flow: raise all, stop those on a full resource, repeat."""
    rates = {}
    while len(rates) < len(flows):
        used, rising = defaultdict(Fraction), defaultdict(Fraction)
        for flow, (shares, _) in flows.items():
            for resource, share in shares.items():
                used[resource] += share * rates.get(flow, 0)
                rising[resource] += share * (flow not in rates)
        level = {r: (capacity[r] - used[r]) / rising[r] for r in rising if rising[r]}
        lowest = min(level.values())
        for flow, (shares, _) in flows.items():
            if flow not in rates and any(level.get(r) == lowest for r in shares):
                rates[flow] = lowest
    return rates


def drain(flows, capacity):
    """Run listed flows to completion: {flow: (first rate, seconds)}."""
    flows, now, done, first = dict(flows), Fraction(0), {}, {}
    while flows:
        rates = fill(flows, capacity)
        first = first or rates
        step = min(left / rates[flow] for flow, (_, left) in flows.items())
        now += step
        flows = {flow: (shares, left - step * rates[flow]) for flow, (shares, left) in flows.items()}
        done |= {flow: (first[flow], now) for flow, (_, left) in flows.items() if not left}
        flows = {flow: one for flow, one in flows.items() if one[1]}
    return done


def assert_equals_listing(topology, law, send=None):
    matrix = listed_matrix(law)
    listing = listed_flows(topology, matrix, send)
    if listing is None:
        with pytest.raises(TopologyError):
            solve_classes(topology, law, send_bytes_per_s=send)
        return
    result = solve_classes(topology, law, send_bytes_per_s=send)
    done = drain(*listing)
    ends = {flow: math.ceil(seconds * 10**12) for flow, (_, seconds) in done.items()}
    assert result.makespan_ps == max(ends.values(), default=0)
    assert result.bound_ps <= result.makespan_ps
    finish = [max([ends[f] for f in ends if rank in f], default=0) for rank in range(law.num_ranks)]
    assert result.rank_finish_ps().tolist() == finish
    found, listed = defaultdict(int), defaultdict(int)
    for one in result.flows:
        found[one.src_class, one.dst_class, one.flow_bytes, one.first_bytes_per_s, one.finish_ps] += one.count
    for (src, dst), (rate, _) in done.items():
        classes = result.rank_class[src], result.rank_class[dst]
        listed[(*classes, int(matrix[src, dst]), rate, ends[src, dst])] += 1
    assert found == listed
    if send is None:
        assert result.bound_ps == link_bound(topology, matrix).time_ps


@st.composite
def laws(draw, num_ranks):
    """Draw a law of at most three kinds in at most two groups, or a small matrix."""
    if draw(st.booleans()):
        shift = draw(st.integers(0, num_ranks))
        matrix = 1000 * np.roll(np.eye(num_ranks, dtype=np.int64), shift, axis=1)
        matrix[draw(st.integers(0, num_ranks - 1))] += draw(st.sampled_from([0, 999]))
        return matrix_classes(matrix)
    kind = draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks))
    group = draw(st.lists(st.integers(0, 1), min_size=num_ranks, max_size=num_ranks))
    kind_bytes = draw(st.lists(st.sampled_from([0, 1, 700, 1000]), min_size=9, max_size=9))
    return ClassLaw(np.array(kind), np.array(kind_bytes).reshape(3, 3), np.array(group))


@given(topologies(), st.data())
def test_classes_equal_the_listed_flows(topology, data):
    assume(topology.num_links and topology.netlayers() != (0,) and topology.num_npus <= 8)
    law = data.draw(laws(topology.num_npus))
    assert_equals_listing(topology, law, data.draw(st.sampled_from([None, 30_000_000_000])))


@pytest.mark.parametrize("spoil", ["nothing", "slow card", "lost plane", "thin leaf", "lost spine link"])
@pytest.mark.parametrize("hot", [False, True])
def test_skew_and_faults_equal_the_listed_flows(spoil, hot):
    topology = clos(12, supernode_size=3, planes=2, scaleout_radix=6)
    inner = (topology.link_src >= 12) & (topology.link_dst >= 12)
    if spoil == "slow card":
        topology = with_link_rate(topology, topology.links_of(4), 11_000_000_000, GIVEN)
    elif spoil == "thin leaf":
        leaf = topology.link_src[inner].min()
        topology = with_link_rate(topology, topology.links_of(int(leaf))[-3:], 7_000_000_000, GIVEN)
    elif spoil != "nothing":
        links = topology.links_of(4) if spoil == "lost plane" else np.flatnonzero(inner)
        topology = without_links(topology, links[:1])
    kind = np.arange(12) % 3 == 0 if hot else np.zeros(12, bool)
    law = ClassLaw(kind.astype(np.int64), np.array([[1000, 4000], [1000, 4000]]))
    assert_equals_listing(topology, law)


def test_classes_equal_the_solver_of_listed_flows():
    # The solver's floats stay far closer than 1 ps to these times of less than 10^8 ps, so that after
    # rounding up the two differ by 1 ps at most.
    topology = clos(24, supernode_size=8, planes=3, scaleout_radix=24, oversubscription=2)
    law = ClassLaw(np.arange(24) % 8 // 7, np.array([[7_000, 28_000], [7_000, 28_000]]))
    result = solve_classes(topology, law, send_bytes_per_s=90_000_000_000)
    matrix = listed_matrix(law)
    src, dst = np.nonzero(matrix)
    send = np.full(24, 90_000_000_000)
    problem = flow_problem(Router(topology), src, dst, matrix[src, dst], send_bytes_per_s=send)
    listed = simulate(problem, engine="numpy")
    finish = np.maximum(listed.finish_by_src(24), listed.finish_by_dst(24))
    assert finish.max() < 10**8
    assert abs(result.rank_finish_ps() - finish).max() <= 1
    assert abs(result.bound_ps - listed.lower_bound_ps) <= 1


def test_uniform_traffic_is_one_class():
    result = solve_classes(clos(64, supernode_size=8, scaleout_radix=32), uniform_classes(64, 1000))
    assert [one.size for one in result.ranks] == [64]
    assert result.makespan_ps == result.bound_ps == math.ceil(56 * 1000 / 50 * 1000)


def test_one_slow_card_is_a_handful_of_classes():
    slow = with_link_rate(ubl128(32), ubl128(32).links_of(5), 25_000_000_000, GIVEN)
    result = solve_classes(slow, uniform_classes(32, 8_000))
    assert sorted(one.size for one in result.ranks) == [1, 31]
    assert result.makespan_ps == 31 * 1000 * 40


def test_grouped_traffic_stays_in_its_group():
    result = solve_classes(ubl128(12), uniform_classes(12, 800, group_size=4))
    assert [(one.count, one.src_class) for one in result.flows] == [(36, 0)]
    assert result.makespan_ps == 3 * 100 * 20


def test_262144_cards_are_one_class():
    result = solve_classes(clos(LARGEST), uniform_classes(LARGEST, 50))
    assert [one.size for one in result.ranks] == [LARGEST]
    assert result.makespan_ps == result.bound_ps == (LARGEST - 128) * 1000


@pytest.mark.parametrize("fault", ["multiplicity", "plane", "own bytes", "coarse"])
def test_planted_slips_change_the_answer(monkeypatch, fault):
    topology = clos(12, supernode_size=3, planes=2, scaleout_radix=6)
    real = rolelinks.flow_roles

    def slipped(router, parts):
        change = {
            "multiplicity": lambda role: {"num_out": role.num_out + 1},
            "own bytes": lambda role: {"num_in": role.num_in + (role.src_class == role.dst_class)},
            "plane": lambda role: {"planes": role.planes[:1]},
            "coarse": lambda role: {},
        }[fault]
        return [rolelinks.FlowRole(**{**vars(role), **change(role)}) for role in real(router, parts)]

    monkeypatch.setattr("epsim.flow.symmetry.flow_roles", slipped)
    if fault == "coarse":
        monkeypatch.setattr(refine, "_refine", lambda colour, size, relation: colour)
    law = ClassLaw(np.array([0, 1] * 6), np.array([[1000, 4000], [700, 0]]))
    with pytest.raises(AssertionError):
        assert_equals_listing(topology, law)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda t: solve_classes(t, uniform_classes(4, 1), policy="flow-hash"), "policy"),
        (lambda t: solve_classes(mesh(4), uniform_classes(4, 1)), "netlayer"),
        (lambda t: solve_classes(t, uniform_classes(8, 1), send_bytes_per_s=0), "send_bytes_per_s[0]"),
        (
            lambda t: solve_classes(t, uniform_classes(8, 1), link_bytes_per_s=[1]),
            "shape of link_bytes_per_s",
        ),
        (lambda t: ClassLaw(np.array([0, 2]), np.ones((2, 2), int)), "kind[1]"),
        (lambda t: ClassLaw(np.array([0]), np.array([[-1]])), "kind_bytes"),
        (lambda t: ClassLaw(np.array([0.5]), np.array([[1]])), "kind"),
        (lambda t: ClassLaw(np.array([0]), np.array([[1]]), np.array([0, 1])), "group"),
        (lambda t: uniform_classes(4, 1, group_size=0), "group_size"),
        (lambda t: matrix_classes(np.ones((2, 3), int)), "kind_bytes"),
    ],
)
def test_what_has_no_symmetry_is_refused(call, field):
    with pytest.raises(InputError) as raised:
        call(leaf_spine(8, leaves=2))
    assert raised.value.field == field


def test_random_traffic_is_refused_before_it_is_solved():
    matrix = np.random.default_rng(0).integers(1, 10**9, (50, 50))
    with pytest.raises(InputError, match="too little is equal"):
        solve_classes(leaf_spine(50, leaves=5), matrix_classes(matrix))


def test_a_pair_without_a_path_is_named():
    topology = ubl128(4)
    lost = without_links(topology, topology.links_of(2))
    with pytest.raises(TopologyError, match="npu2 -> npu"):
        solve_classes(lost, uniform_classes(4, 1))
