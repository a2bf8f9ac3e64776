"""Routes: the stated split, whole paths, the right netlayer, and the same answer every time."""

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import healthy_topologies, topologies
from tests.topology.oracle import spray_shares
from topology import Router, TopologyError, clos, find_routes, leaf_spine, mesh, ubl128, without_links
from topology.graph import LinkClass, Topology
from topology.routes import POLICIES
from topology.source import Source


def all_pairs(num_npus):
    return np.divmod(np.arange(num_npus * num_npus), num_npus)


def shares_of(routes):
    shares = [defaultdict(Fraction) for _ in range(routes.num_flows)]
    for flow, link, parts in zip(routes.flow_idx, routes.link_idx, routes.parts, strict=True):
        shares[flow][int(link)] += Fraction(1, int(parts))
    return shares


@given(topologies())
def test_spray_splits_as_the_plain_loops_do(topology):
    src, dst = all_pairs(topology.num_npus)
    expected = [spray_shares(topology, a, b) if a != b else {} for a, b in zip(src, dst, strict=True)]
    joined = np.array([shares is not None for shares in expected])
    if topology.num_links:
        found = shares_of(find_routes(topology, src[joined], dst[joined]))
        assert found == [shares for shares in expected if shares is not None]
    for a, b in zip(src[~joined], dst[~joined], strict=True):
        with pytest.raises(TopologyError, match="no path"):
            find_routes(topology, np.array([a]), np.array([b]))


@given(healthy_topologies(), st.sampled_from(["flow-hash", "pinned"]), st.integers(0, 2**64 - 1))
def test_a_whole_flow_takes_one_unbroken_shortest_path(topology, policy, seed):
    src, dst = all_pairs(topology.num_npus)
    routes = find_routes(topology, src, dst, policy, seed=seed)
    sprayed = shares_of(find_routes(topology, src, dst))
    assert (routes.parts == 1).all()
    for flow, (a, b) in enumerate(zip(src, dst, strict=True)):
        path = routes.link_idx[routes.flow_idx == flow]
        vertices = [a, *topology.link_dst[path]]
        assert list(topology.link_src[path]) == vertices[:-1]
        assert vertices[-1] == b
        assert len(set(topology.link_plane[path])) <= 1
        assert list(routes.hop[routes.flow_idx == flow]) == sorted(routes.hop[routes.flow_idx == flow])
        assert set(path.tolist()) <= set(sprayed[flow])


@given(healthy_topologies(), st.sampled_from(POLICIES), st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_flow_keeps_its_route_whatever_the_others_are(topology, policy, seed, random):
    src, dst = all_pairs(topology.num_npus)
    order = np.array(random.sample(range(len(src)), len(src)))
    some = order[: max(1, len(order) // 2)]
    router = Router(topology)
    everything = shares_of(router.find(src, dst, policy, seed=seed))
    # Another router, another order and other company.
    assert shares_of(find_routes(topology, src[some], dst[some], policy, seed=seed)) == [
        everything[flow] for flow in some
    ]


def test_latency_sums_the_links_of_the_path():
    topology = leaf_spine()
    routes = find_routes(topology, np.array([0, 0, 5]), np.array([1, 127, 5]))
    assert routes.latency_ps(topology).tolist() == [1_000_000, 2_000_000, 0]
    assert find_routes(ubl128(), np.array([0]), np.array([9])).latency_ps(ubl128()).tolist() == [300_000]


def test_the_hash_uses_every_plane_about_equally():
    topology = ubl128()
    src, dst = all_pairs(128)
    keep = src != dst
    routes = find_routes(topology, src[keep], dst[keep], "flow-hash")
    first = Counter(topology.link_plane[routes.link_idx[routes.hop == 0]].tolist())
    # 16,256 flows over 8 planes: mean 2,032, standard deviation 42; five of them either way.
    assert set(first) == set(range(8))
    assert all(abs(count - 2032) < 5 * 42 for count in first.values())


def test_the_hash_depends_on_seed_and_key_but_not_on_zero_keys():
    topology = ubl128()
    src, dst = np.arange(1, 128), np.zeros(127, np.int64)
    base = find_routes(topology, src, dst, "flow-hash").link_idx
    assert (find_routes(topology, src, dst, "flow-hash", key=np.zeros(127, np.int64)).link_idx == base).all()
    assert (find_routes(topology, src, dst, "flow-hash", seed=1).link_idx != base).any()
    assert (find_routes(topology, src, dst, "flow-hash", key=np.ones(127, np.int64)).link_idx != base).any()


def splitmix64(state):
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


@given(st.integers(0, 127), st.integers(0, 127), st.integers(0, 2**70), st.integers(0, 2**32))
def test_the_hash_is_the_documented_one(src, dst, seed, key):
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # first output of the published generator for seed 0
    topology = leaf_spine()
    flows = np.array([src]), np.array([dst])
    routes = find_routes(topology, *flows, "flow-hash", seed=seed, key=np.array([key]))
    spine = topology.link_dst[routes.link_idx[routes.hop == 1]] - 128 - 16
    if src // 8 == dst // 8:
        assert (routes.hop[1:] == 1).all()
        return
    state = (seed * 0x9E3779B97F4A7C15 + 1) % 2**64  # salt 1 picks the spine
    for word in (src, dst, key):
        state = splitmix64(state ^ word)
    assert spine.tolist() == [state % 8]


@given(st.integers(2, 12), st.integers(1, 4))
def test_pinned_flows_to_one_card_share_a_plane(num_npus, planes):
    topology = ubl128(num_npus, planes=planes)
    src, dst = all_pairs(num_npus)
    keep = src != dst
    routes = find_routes(topology, src[keep], dst[keep], "pinned")
    assert (topology.link_plane[routes.link_idx] == dst[keep][routes.flow_idx] % planes).all()


def test_supernodes_use_the_fast_layer_inside_and_the_scaleout_between():
    topology = clos(8, supernode_size=4, scaleout_radix=4)
    src, dst = all_pairs(8)
    routes = find_routes(topology, src, dst)
    expected = np.where(src == dst, -1, np.where(src // 4 == dst // 4, 1, 2))
    assert (routes.netlayer == expected).all()


def test_the_mesh_is_used_only_when_asked_for_or_alone():
    topology = ubl128(16, server_mesh=True)
    src, dst = np.array([0, 0]), np.array([1, 9])
    assert find_routes(topology, src, dst).netlayer.tolist() == [1, 1]
    assert find_routes(topology, src, dst, use_mesh=True).netlayer.tolist() == [0, 1]
    assert find_routes(mesh(4), src[:1], dst[:1]).netlayer.tolist() == [0]


def test_a_lost_plane_is_avoided_by_every_policy():
    topology = ubl128(4, planes=3)
    topology = without_links(topology, topology.links_between(0, topology.vertex("sw1")))
    for policy in POLICIES:
        routes = find_routes(topology, np.zeros(3, np.int64), np.arange(1, 4), policy)
        assert 1 not in topology.link_plane[routes.link_idx]


def odd_wiring():
    """Two cards in plane 0, one of them on two switches."""
    src, dst = [0, 2, 0, 3, 1, 2], [2, 0, 3, 0, 2, 1]
    zeros = np.zeros(6, np.int64)
    link_class = LinkClass(
        name="x", bandwidth_bytes_per_s=1, latency_ps=0, source=Source("given", "test")
    )  # fmt: skip
    return Topology(
        name="odd", num_npus=2, num_switches=2, link_src=np.array(src), link_dst=np.array(dst),
        link_netlayer=zeros + 1, link_plane=zeros, link_class=zeros, classes=(link_class,),
        link_src_port=zeros - 1, link_dst_port=zeros - 1, switch_tier=np.zeros(2, np.uint8),
        npu_server=np.zeros(2, np.int32), npu_supernode=np.zeros(2, np.int32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: find_routes(ubl128(4), np.array([0]), np.array([4])), "NPU of a flow is 4"),
        (lambda: find_routes(ubl128(4), np.array([-1]), np.array([2])), "NPU of a flow is -1"),
        (lambda: find_routes(ubl128(4), np.array([0]), np.array([1, 2])), "number of dst is 2"),
        (lambda: find_routes(ubl128(4), np.array([0]), np.array([1]), "random"), "policy is 'random'"),
        (
            lambda: find_routes(odd_wiring(), np.array([0]), np.array([1])),
            "plane 0 of npu0 is 'two switches'",
        ),
        (lambda: find_routes(mesh(4), np.array([0]), np.array([1]), "sprays"), "must be one of spray"),
        (lambda: Router(ubl128(4), np.array([1, 1])), "npus is 1"),
        (lambda: Router(ubl128(4), np.array([1, 7])), r"npus\[1\] is 7"),
        (lambda: Router(ubl128(4), np.array([1, 2])).find(np.array([1]), np.array([3])), r"dst\[0\] is 3"),
        (lambda: Router(no_links()), "number of links is 0"),
    ],
)
def test_bad_flows_are_refused(find, message):
    with pytest.raises(TopologyError, match=message):
        find()


def no_links():
    topology = ubl128(2)
    return without_links(topology, np.arange(topology.num_links))
