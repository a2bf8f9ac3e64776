"""From a topology to resources: bundles do what single links would, and only what is alike is merged."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.flow import build as build_module
from epsim.flow import flow_problem, simulate
from epsim.flow.build import _merge_alike
from epsim.flow.maxmin import binding_paths, certify, solve
from epsim.flow.problem import MAX_PS, by_hand
from tests.epsim.flow_problems import GB, matrix_problem, problems
from tests.strategies import byte_matrices, topologies
from topology import Router, TopologyError, clos, leaf_spine, link_bound, ubl128, without_links


@st.composite
def placed(draw):
    """Draw a topology (links lost and slow) and bytes between pairs that it joins."""
    topology = draw(topologies())
    matrix = draw(byte_matrices(topology.num_npus))
    router = Router(topology) if topology.num_links else None
    for a, b in np.argwhere(matrix > 0):
        if router is not None and a != b and not any(
            paths.joins(np.array([a]), np.array([b]))[0] for paths in router.layers
        ):  # fmt: skip
            matrix[a, b] = 0
    return topology, matrix


def plain(topology, matrix):
    """Write the same problem with one resource per link, by the routes themselves."""
    src, dst = np.nonzero(matrix)
    routes = Router(topology).find(src, dst)
    uses = [{} for _ in src]
    for flow, link, share in zip(routes.flow_idx, routes.link_idx, routes.share, strict=True):
        uses[flow][int(link)] = float(share)
    return by_hand(matrix[src, dst], uses, topology.link_bytes_per_s())


@given(placed())
def test_bundles_give_the_rates_of_single_links(drawn):
    topology, matrix = drawn
    if not topology.num_links:
        return
    bundled, single = matrix_problem(topology, matrix), plain(topology, matrix)
    paths, flows = binding_paths(bundled), np.flatnonzero(bundled.is_live)
    rate = solve(paths, flows)[0]
    assert np.flatnonzero(single.is_live).tolist() == flows.tolist()
    assert certify(binding_paths(single), flows, rate) is None or near(single, flows, rate)


def near(single, flows, rate):
    """Compare with the rates on single links; shares like 1/3 of 1/7 round on both ways."""
    other = solve(binding_paths(single), flows)[0]
    terms = len(flows) * single.num_resources
    return bool((np.abs(rate - other) <= other * terms * 2.0**-50).all())


@given(placed())
def test_links_carry_what_the_bound_says(drawn):
    topology, matrix = drawn
    if not topology.num_links:
        return
    bound = link_bound(topology, matrix)
    result = simulate(matrix_problem(topology, matrix), engine="numpy")
    carried = result.link_bytes(topology.num_links)
    exact = bound.bytes_per_link(topology.num_links)
    assert np.abs(carried - exact).max() <= exact.max(initial=0.0) * (matrix.size + 8) * 2.0**-53
    assert result.lower_bound_ps == bound.time_ps
    assert result.makespan_ps >= bound.time_ps


def test_a_healthy_fabric_has_one_resource_per_card_and_trunk():
    ones = np.ones((128, 128), np.int64)
    assert matrix_problem(ubl128(), ones).num_resources == 256
    problem = matrix_problem(leaf_spine(), ones)
    assert problem.num_resources == 256 + 32
    assert problem.resource_idx.shape == (128 * 128, 4)
    topology = clos(256, supernode_size=32, scaleout_radix=32)
    assert matrix_problem(topology, np.ones((256, 256), np.int64)).resource_idx.shape[1] == 4


def test_a_lost_spine_link_splits_a_trunk_only_where_it_matters():
    topology = leaf_spine(16, leaves=4, spines=4)
    lost = topology.links_between(16, 20)
    problem = matrix_problem(without_links(topology, lost), np.ones((16, 16), np.int64))
    # Into every leaf but the first: the spine it lost and the other three are now used differently.
    assert problem.num_resources == 32 + 4 + 4 + 3


def test_a_merge_needs_equal_use_and_not_only_an_equal_mark(monkeypatch):
    flow = np.array([0, 0, 1, 1, 1])
    resource = np.array([0, 1, 0, 1, 2])
    share = np.array([1.0, 0.5, 1.0, 0.5, 1.0])
    keeper, scale = _merge_alike(flow, resource, share, 3)
    assert keeper.tolist() == [0, 0, 2]
    assert scale.tolist() == [1.0, 0.5, 1.0]
    # With a hash that collides everywhere, only what is equal entry by entry may merge.
    monkeypatch.setattr(build_module, "_GOLDEN", 0)
    flow, resource, share = np.array([0, 1, 2, 0]), np.array([0, 0, 1, 1]), np.ones(4)
    order = np.argsort(flow, kind="stable")
    assert _merge_alike(flow[order], resource[order], share[order], 2)[0].tolist() == [0, 1]


def test_the_tightest_of_merged_limits_binds():
    problem = matrix_problem(ubl128(2), [[0, 8], [0, 0]], send_bytes_per_s=[100 * GB, GB])
    assert (problem.capacity_bytes_per_s / problem.share[0]).tolist() == [100 * GB]
    assert problem.describe(0) == "send limit of npu0 and 16 more used alike"
    assert np.bincount(problem.limits.kind).tolist() == [16, 1]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"size_bytes": np.array([1, 2])}, InputError, "shape of src"),
        ({"src": np.array([0.5])}, InputError, "type of src"),
        ({"dst": np.array([9])}, TopologyError, "9"),
        ({"policy": "best"}, TopologyError, "policy"),
        ({"link_bytes_per_s": [1.0]}, InputError, "one per link"),
        ({"send_bytes_per_s": [1.0]}, InputError, "one per NPU"),
        ({"size_bytes": np.array([-5])}, InputError, "size_bytes"),
        ({"size_bytes": np.array([2**62])}, InputError, r"size_bytes\[0\] is 4611686018427387904: may end"),
        ({"size_bytes": np.array([2**63], np.uint64)}, InputError, r"size_bytes\[0\] is 9223372036854775808"),
        ({"size_bytes": np.array([np.nan])}, InputError, "type of size_bytes is 'float64': must be integers"),
        ({"size_bytes": np.array([1e3])}, InputError, "type of size_bytes"),
        ({"start_ps": 0.5}, InputError, "type of start_ps"),
        ({"start_ps": np.array([2**62])}, InputError, "may end after 4.61e[+]06 s"),
    ],
)
def test_bad_flows_are_refused(change, error, text):
    given_ = {"src": np.array([0]), "dst": np.array([1]), "size_bytes": np.array([1])} | change
    ends = given_.pop("src"), given_.pop("dst"), given_.pop("size_bytes")
    with pytest.raises(error, match=text):
        flow_problem(Router(ubl128(4)), *ends, **given_)


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_the_longest_flows_that_are_taken_still_have_an_end(mode):
    """Issue 4: 2^62 bytes ended after 0 ps. 400 GB/s take 1.8e18 bytes in 2^62 ps."""
    rate = 400 * GB
    most = MAX_PS * rate // 10**12 - rate  # a second less, far more than roundings
    problem = by_hand([most // 2, most // 2 - 1], [{0: 1.0}, {0: 1.0}], [rate])
    result = simulate(problem, mode=mode)
    # Some ten operations round, each by a part of 2^-53; the bytes take a second less than 2^62 ps.
    assert abs(result.makespan_ps - (MAX_PS - 10**12)) <= 32 * np.finfo(float).eps * MAX_PS
    assert abs(result.makespan_ps - result.lower_bound_ps) <= 32 * np.finfo(float).eps * MAX_PS
    for sizes in ([most + 2 * rate], [most // 2, most // 2 + 2 * rate]):
        with pytest.raises(InputError, match="within 53 days"):
            by_hand(sizes, [{0: 1.0}] * len(sizes), [rate])


@settings(max_examples=100)
@given(problems(starts=True))
def test_no_flow_ends_after_the_time_that_is_checked(problem):
    """The last start and, for each resource of a flow, all of its bytes at its rate."""
    seconds = np.append(problem.resource_bytes() / problem.capacity_bytes_per_s, 0.0)
    most = problem.start_ps.max() + 1e12 * seconds[problem.resource_idx].sum(axis=1)
    # Up to 24 sums and as many solves round; ends are whole picoseconds.
    slack = 1 + 100 * np.finfo(float).eps * most
    assert (simulate(problem, engine="numpy").finish_ps <= most + slack).all()


@settings(max_examples=60)
@given(placed())
def test_a_bundle_carries_every_byte_of_its_links_once(case):
    topology, matrix = case
    assume(topology.num_links)
    problem = matrix_problem(topology, matrix)
    limits, carried = problem.limits, simulate(problem, engine="numpy").link_bytes(topology.num_links)
    cards = topology.num_npus
    leaves = set(topology.link_dst[topology.link_src < cards].tolist())
    for resource in range(problem.num_resources):
        links = limits.item_idx[limits.resource_idx == resource]
        tiers = {}
        for link in links.tolist():
            ends = int(topology.link_src[link]), int(topology.link_dst[link])
            kind = (
                int(topology.link_netlayer[link]),
                *(0 if e < cards else 1 if e in leaves else 2 for e in ends),
            )
            tiers[kind] = tiers.get(kind, 0.0) + carried[link]
        found, flows = (
            problem.bundle_bytes(resource, topology),
            (problem.resource_idx == resource).any(axis=1),
        )
        # Up to all links and flows are added, in another order.
        slack = 4 * (len(links) + problem.num_flows) * np.finfo(float).eps * max(1.0, found)
        assert abs(found - max(tiers.values())) <= slack
        assert found <= problem.size_bytes[flows].sum() + slack
