"""The busiest link: exact, equal however it is computed, and monotone where it must be."""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import byte_matrices, topologies
from tests.topology.oracle import spray_shares
from topology import (
    TopologyError,
    clos,
    find_routes,
    leaf_spine,
    link_bound,
    mesh,
    routes_bound,
    ubl128,
    with_link_rate,
    without_links,
)
from topology.bound import _sum_exactly
from topology.routes import POLICIES
from topology.source import Source

GIVEN = Source("given", "test")


@st.composite
def placed_matrices(draw):
    """Draw a topology, distinct NPUs for some ranks, and bytes only between pairs that have a path."""
    topology = draw(topologies())
    num_ranks = draw(st.integers(1, topology.num_npus))
    npus = draw(st.permutations(range(topology.num_npus)))[:num_ranks]
    matrix = draw(byte_matrices(num_ranks))
    for a in range(num_ranks):
        for b in range(num_ranks):
            if a != b and (not topology.num_links or spray_shares(topology, npus[a], npus[b]) is None):
                matrix[a, b] = 0
    return topology, np.array(npus), matrix


def same(one, other):
    return (
        (one.time_ps, one.link_idx, one.link_bytes) == (other.time_ps, other.link_idx, other.link_bytes)
        and np.array_equal(one.used_links, other.used_links)
        and np.array_equal(one.used_bytes, other.used_bytes)
    )


@given(placed_matrices())
def test_the_projection_is_the_sum_over_plain_loops(drawn):
    topology, npus, matrix = drawn
    if not topology.num_links:
        return
    loads = defaultdict(Fraction)
    for a, b in zip(*np.nonzero(matrix), strict=True):
        if a != b:
            for link, share in spray_shares(topology, npus[a], npus[b]).items():
                loads[link] += int(matrix[a, b]) * share
    bound = link_bound(topology, matrix, npus=npus)
    seconds = {link: load / topology.link(link).bandwidth_bytes_per_s for link, load in loads.items()}
    longest = max(seconds.values(), default=Fraction(0))
    assert bound.time_ps == math.ceil(longest * 10**12)
    assert bound.link_idx == min((link for link, s in seconds.items() if s == longest), default=-1)
    assert dict(zip(bound.used_links.tolist(), bound.used_bytes.tolist(), strict=True)) == {
        link: float(load) for link, load in loads.items()
    }


@given(placed_matrices())
def test_the_projection_equals_the_general_incidence(drawn):
    topology, npus, matrix = drawn
    if not topology.num_links:
        return
    src, dst = np.nonzero(matrix)
    routes = find_routes(topology, npus[src], npus[dst])
    assert same(link_bound(topology, matrix, npus=npus), routes_bound(topology, routes, matrix[src, dst]))


@pytest.mark.parametrize("oversubscription", [1, 2])
def test_the_projection_equals_the_incidence_over_many_leaves_and_supernodes(oversubscription):
    topology = clos(96, supernode_size=8, scaleout_radix=16, oversubscription=oversubscription, wiring="rail")
    fabric = np.flatnonzero((topology.link_src >= 96) & (topology.link_dst >= 96))
    topology = without_links(topology, fabric[::11])
    matrix = np.random.default_rng(5).integers(0, 10**6, (96, 96))
    src, dst = np.divmod(np.arange(96 * 96), 96)
    routes = find_routes(topology, src, dst)
    assert {1, 2} <= set(routes.netlayer.tolist())
    assert same(link_bound(topology, matrix), routes_bound(topology, routes, matrix[src, dst]))


def test_by_hand_on_one_switch_per_plane():
    # Rank 2 receives 3,001 + 1,000 = 4,001 bytes over two planes: 2,000.5 bytes each, at 3 GB/s
    # 2,000.5 * 10^12 / (3 * 10^9) = 666,833.3 ps, rounded up to 666,834.
    topology = ubl128(3, planes=2, port_rate="3GB/s")
    matrix = np.array([[0, 0, 3001], [0, 99, 1000], [5, 0, 0]])
    bound = link_bound(topology, matrix)
    assert bound.time_ps == 666_834
    assert bound.link_bytes == Fraction(4001, 2)
    assert str(topology.link(bound.link_idx)).startswith("sw0 -> npu2 (netlayer 1, plane 0")
    assert bound.describe(topology).startswith("666.834ns: sw0 -> npu2")
    assert "carries 2.0005kB" in bound.describe(topology)


def test_by_hand_on_a_two_layer_clos():
    # 4 cards, 2 leaves, 2 spines. Cards 0 and 1 each send 600 bytes to cards 2 and 3: a card port
    # carries 1,200 bytes, a leaf-spine link 2,400 / 2 spines = 1,200; a 10-byte pair stays in its leaf.
    topology = leaf_spine(4, leaves=2, spines=2, link_rate="1GB/s")
    matrix = np.zeros((4, 4), np.int64)
    matrix[:2, 2:] = 600
    matrix[2, 3] = 10
    bound = link_bound(topology, matrix)
    loads = bound.bytes_per_link(topology.num_links)
    names = {
        f"{row.src}>{row.dst}": loads[n] for n in range(topology.num_links) for row in [topology.link(n)]
    }
    assert {name: load for name, load in names.items() if load} == {
        "npu0>sw0": 1200, "npu1>sw0": 1200, "npu2>sw1": 10, "sw1>npu2": 1200, "sw1>npu3": 1210,
        "sw0>sw2": 1200, "sw0>sw3": 1200, "sw2>sw1": 1200, "sw3>sw1": 1200,
    }  # fmt: skip
    assert bound.time_ps == 1_210_000


def test_a_uniform_exchange_takes_what_the_ports_need():
    # 127 x 8 MB leave each card over 400 GB/s; the 16 x 8 Clos has an eighth of that.
    matrix = np.full((128, 128), 8_000_000)
    assert link_bound(ubl128(), matrix).time_ps == 127 * 8_000_000 * 10**12 // 400_000_000_000
    assert link_bound(leaf_spine(), matrix).time_ps == 127 * 8_000_000 * 10**12 // 50_000_000_000


@given(placed_matrices(), st.randoms(use_true_random=False))
def test_relabelling_ranks_moves_nothing(drawn, random):
    topology, npus, matrix = drawn
    if not topology.num_links:
        return
    order = np.array(random.sample(range(len(npus)), len(npus)))
    relabelled = link_bound(topology, matrix[np.ix_(order, order)], npus=npus[order])
    assert same(relabelled, link_bound(topology, matrix, npus=npus))


@given(placed_matrices(), st.sampled_from(POLICIES))
def test_twice_the_link_speed_takes_half_the_time(drawn, policy):
    topology, npus, matrix = drawn
    if not topology.num_links:
        return
    twice = [replace(c, bandwidth_bytes_per_s=2 * c.bandwidth_bytes_per_s) for c in topology.classes]
    fast = link_bound(replace(topology, classes=tuple(twice)), matrix, npus=npus, policy=policy)
    slow = link_bound(topology, matrix, npus=npus, policy=policy)
    assert fast.link_idx == slow.link_idx
    assert slow.time_ps in (2 * fast.time_ps, 2 * fast.time_ps - 1)  # both are rounded up


@given(placed_matrices(), st.sampled_from(["flow-hash", "pinned"]))
def test_whole_flows_are_never_faster_than_their_card(drawn, policy):
    topology, npus, matrix = drawn
    if not topology.num_links:
        return
    bound = link_bound(topology, matrix, npus=npus, policy=policy, seed=3)
    carried = matrix - np.diag(np.diag(matrix))
    # One flow, whole, over the fastest link there is.
    fastest = max(c.bandwidth_bytes_per_s for c in topology.classes)
    assert bound.time_ps >= int(carried.max(initial=0)) * 10**12 // fastest


def test_a_slow_link_binds_and_is_named():
    topology = ubl128()
    slow = topology.links_between(topology.vertex("sw3"), 77)
    topology = with_link_rate(topology, slow, 10_000_000_000, GIVEN)
    bound = link_bound(topology, np.full((128, 128), 4096))
    assert bound.link_idx == slow[0]
    assert bound.time_ps == 127 * 4096 * 10**12 // 8 // 10_000_000_000


@pytest.mark.parametrize("slow_card", [1, 2])
def test_among_equally_late_links_of_unequal_speed_the_lowest_is_named(slow_card):
    # Card 0 sends to both; one port has half the speed and half the bytes, so both need 8 ns.
    topology = mesh(3, port_rate="1GB/s")
    slow = topology.links_between(0, slow_card)
    topology = with_link_rate(topology, slow, 500_000_000, GIVEN)
    matrix = np.zeros((3, 3), np.int64)
    matrix[0, 1:] = 8
    matrix[0, slow_card] = 4
    bound = link_bound(topology, matrix)
    assert (bound.time_ps, bound.link_idx) == (8000, min(bound.used_links))


def test_bytes_on_the_diagonal_and_single_ranks_take_no_time():
    for matrix in (np.diag([5, 6, 7]), np.array([[9]]), np.zeros((0, 0), np.int64)):
        bound = link_bound(ubl128(3), matrix)
        assert (bound.time_ps, bound.link_idx) == (0, -1)
        assert bound.describe(ubl128(3)) == "no bytes cross a link"


def test_sums_beyond_63_bits_stay_exact():
    # Over the denominator 7 * 11 * 13 * 17 = 17,017 the first two alone are 2^52 * (2,431 + 1,547) > 2^63.
    links, parts = np.zeros(4, np.int64), np.array([7, 11, 13, 17])
    carried = np.array([2**52, 2**52 + 1, 3, 5])
    used, scaled, denominator = _sum_exactly(links, carried, parts, 9)
    assert used.tolist() == [0]
    exact = sum(Fraction(int(b), int(p)) for b, p in zip(carried, parts, strict=True))
    assert Fraction(int(scaled[0]), denominator) == exact


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (lambda: link_bound(ubl128(3), np.zeros((2, 3), np.int64)), "shape of the byte matrix"),
        (lambda: link_bound(ubl128(3), np.zeros(4, np.int64)), "shape of the byte matrix"),
        (lambda: link_bound(ubl128(3), np.ones((2, 2))), "whole bytes"),
        (lambda: link_bound(ubl128(3), -np.eye(3, dtype=np.int64)), r"bytes\[0, 0\] is -1"),
        (lambda: link_bound(ubl128(3), np.ones((4, 4), np.int64)), "number of ranks is 4"),
        (lambda: link_bound(ubl128(3), np.full((2, 2), 2**61)), "below 2\\^62"),
        (lambda: link_bound(ubl128(3), np.ones((2, 2), int), npus=np.array([0])), "number of npus is 1"),
        (lambda: link_bound(ubl128(3), np.ones((2, 2), int), npus=np.array([1, 1])), "one rank per NPU"),
        (lambda: link_bound(ubl128(3), np.ones((2, 2), int), npus=np.array([0, 3])), r"npus\[1\] is 3"),
        (lambda: link_bound(ubl128(3), np.ones((2, 2), int), policy="fast"), "policy is 'fast'"),
        (lambda: link_bound(split_mesh(), np.ones((3, 3), int)), "npu0 -> npu1.*no path"),
    ],
)
def test_bad_input_is_refused(bound, message):
    with pytest.raises(TopologyError, match=message):
        bound()


def split_mesh():
    topology = mesh(3)
    return without_links(topology, topology.links_between(0, 1))
