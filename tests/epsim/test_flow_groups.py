"""Groups summed one by one equal the routes of all their flows; planted slips are seen."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.flow import grouploads
from epsim.flow.groups import bound_groups, place_groups
from tests.strategies import byte_matrices, topologies
from topology import TopologyError, clos, find_routes, link_bound, mesh, routes_bound, without_links


@st.composite
def placed_groups(draw):
    """Draw a topology without direct links in use, groups of its NPUs (cards may be shared), matrices."""
    topology = draw(topologies())
    assume(topology.num_links and topology.netlayers() != (0,))
    num_groups, size = draw(st.integers(1, 3)), draw(st.integers(1, min(4, topology.num_npus)))
    npus = [draw(st.permutations(range(topology.num_npus)))[:size] for _ in range(num_groups)]
    matrices = [draw(byte_matrices(size)) for _ in range(num_groups)]
    return topology, np.array(npus), matrices[0] if draw(st.booleans()) else np.array(matrices)


def listed_bound(topology, npus, matrices, policy, seed):
    """Bound all flows of all groups the long way."""
    matrices = np.broadcast_to(matrices, (len(npus), *matrices.shape[-2:]))
    flows = [(npus[g, a], npus[g, b], matrices[g, a, b]) for g, a, b in np.argwhere(matrices > 0) if a != b]
    src, dst, carried = (np.array(column, np.int64) for column in zip(*flows, strict=True))
    return routes_bound(topology, find_routes(topology, src, dst, policy, seed=seed), carried)


def assert_equals_listing(topology, npus, matrices, policy, seed):
    found = bound_groups(topology, npus, matrices, policy=policy, seed=seed)
    bound = listed_bound(topology, npus, matrices, policy, seed)
    assert (found.bound.link_idx, found.bound.link_bytes) == (bound.link_idx, bound.link_bytes)
    assert found.bound.time_ps == bound.time_ps
    np.testing.assert_array_equal(found.bound.used_links, bound.used_links)
    np.testing.assert_array_equal(found.bound.used_bytes, bound.used_bytes)
    alone = [
        link_bound(topology, matrix, npus=mine, policy=policy, seed=seed).time_ps
        for mine, matrix in zip(
            npus, np.broadcast_to(matrices, (len(npus), *matrices.shape[-2:])), strict=True
        )
    ]
    assert found.group_ps.tolist() == alone


@given(placed_groups(), st.sampled_from(["spray", "flow-hash"]), st.integers(0, 3))
def test_groups_equal_the_routes_of_all_flows(drawn, policy, seed):
    topology, npus, matrices = drawn
    assume(any(m[~np.eye(len(m), dtype=bool)].any() for m in np.atleast_3d(matrices.T).T))
    try:
        listed_bound(topology, npus, matrices, policy, seed)
    except TopologyError:
        with pytest.raises(TopologyError):
            bound_groups(topology, npus, matrices, policy=policy, seed=seed)
        return
    assert_equals_listing(topology, npus, matrices, policy, seed)


@pytest.mark.parametrize("policy", ["spray", "flow-hash"])
@pytest.mark.parametrize("placement", ["packed", "spread", "random"])
@pytest.mark.parametrize("lost", [0, 40])
def test_groups_on_a_larger_clos_equal_the_listing(policy, placement, lost):
    topology = clos(192, supernode_size=16, planes=3, scaleout_radix=32, scaleout_planes=2)
    rng = np.random.default_rng(lost)
    spines = np.flatnonzero((topology.link_netlayer == 2) & (topology.link_src >= topology.num_npus))
    topology = without_links(topology, rng.choice(spines, lost, replace=False))
    npus = place_groups(topology, 12, 16, placement, seed=1)
    assert_equals_listing(topology, npus, rng.integers(0, 10**6, (16, 16)), policy, seed=7)


def test_numbers_beyond_the_floats_stay_exact():
    topology = clos(64, supernode_size=8, planes=8, scaleout_radix=32, scaleout_planes=3)
    links = np.flatnonzero(topology.link_src >= topology.num_npus)[3:40:6]
    topology = without_links(topology, links)
    matrix = np.random.default_rng(0).integers(0, 2**45, (8, 8))
    assert_equals_listing(topology, place_groups(topology, 8, 8, "random"), matrix, "spray", 0)


def test_placements_say_what_they_are():
    topology = clos(24, supernode_size=4, scaleout_radix=16)
    packed = place_groups(topology, 6, 4, "packed")
    assert (topology.npu_supernode[packed] == np.arange(6)[:, None]).all()
    spread = place_groups(topology, 4, 6, "spread")
    assert (topology.npu_supernode[spread] == np.arange(6)).all()
    drawn = place_groups(topology, 4, 6, "random", seed=3)
    assert sorted(drawn.reshape(-1)) == list(range(24))
    assert (drawn != place_groups(topology, 4, 6, "random", seed=4)).any()


@pytest.mark.parametrize("fault", ["own bytes", "seed", "plane", "multiplicity"])
def test_planted_slips_change_the_answer(monkeypatch, fault):
    topology = clos(32, supernode_size=4, planes=2, scaleout_radix=16)
    matrix = np.random.default_rng(5).integers(1, 10**6, (8, 8))
    npus, policy = place_groups(topology, 4, 8, "random"), "flow-hash"
    if fault == "own bytes":
        every = grouploads.Flows(*np.divmod(np.arange(64), 8), np.arange(64), matrix.reshape(-1))
        monkeypatch.setattr("epsim.flow.groups._flows", lambda _: every)
    elif fault == "seed":
        monkeypatch.setattr(grouploads, "_GOLDEN", 0x9E3779B97F4A7C17)
    elif fault == "plane":
        monkeypatch.setattr(grouploads.LayerLoads, "_pick_plane", lambda *_: 0)
    else:
        policy = "spray"
        real = grouploads._Tier.spread
        monkeypatch.setattr(grouploads._Tier, "spread", lambda self, rows, c: real(self, rows, 2 * c))
    with pytest.raises(AssertionError):
        assert_equals_listing(topology, npus, matrix, policy, 0)


ONE = np.ones((2, 2), np.int64)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda t: bound_groups(t, np.array([[0, 0]]), ONE), "npus[0]"),
        (lambda t: bound_groups(t, np.array([0, 1]), ONE), "npus"),
        (lambda t: bound_groups(t, np.array([[0, 1]]), np.ones((3, 3), np.int64)), "shape of matrices"),
        (lambda t: bound_groups(t, np.array([[0, 1]]), ONE * 1.0), "type of matrices"),
        (lambda t: bound_groups(t, np.array([[0, 1]]), -ONE), "smallest of matrices"),
        (lambda t: bound_groups(t, np.array([[0, 1]]), ONE * 2**52), "total of matrices"),
        (lambda t: bound_groups(t, np.array([[0, 1]]), ONE, policy="pinned"), "policy"),
        (lambda t: bound_groups(mesh(4), np.array([[0, 1]]), ONE), "netlayer"),
        (lambda t: place_groups(t, 9, 2, "packed"), "number of ranks"),
        (lambda t: place_groups(t, 0, 2, "packed"), "num_groups"),
        (lambda t: place_groups(t, 1, 2, "tight"), "placement"),
    ],
)
def test_bad_input_is_refused(call, field):
    with pytest.raises(InputError) as raised:
        call(clos(8, supernode_size=4, scaleout_radix=16))
    assert raised.value.field == field
