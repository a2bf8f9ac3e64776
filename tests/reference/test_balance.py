"""Placement of expert copies: counts, packing, maps and what they do to the load."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.experts.balance import balance_experts, copies_table, pack_copies, replica_counts
from reference.experts.balance_report import compare_placements, measure_placement, peak_of_counts
from reference.experts.replicas import to_physical
from reference.experts.shared_slots import add_shared_slots, shared_expert_id
from reference.plan import count_rows
from reference.topk import TopK
from tests.strategies import SMALL_SIZES

INTEGER_LOADS = st.integers(0, 40)


@st.composite
def packings(draw):
    """Draw weights, copies and bins that divide the copies."""
    bins = draw(st.sampled_from(SMALL_SIZES))
    copies = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    copies[-1] += -sum(copies) % bins
    weights = draw(st.lists(INTEGER_LOADS, min_size=len(copies), max_size=len(copies)))
    return weights, copies, bins


@st.composite
def placements(draw):
    """Draw loads and the arguments of a placement, grouped or not."""
    servers = draw(st.sampled_from((1, 2, 3)))
    size = servers * draw(st.integers(1, 3))
    groups = servers * draw(st.integers(1, 2))
    experts = groups * draw(st.integers(1, 4))
    experts += -experts % servers
    slots = -(-experts // size) * size + size * draw(st.integers(0, 2))
    loads = draw(st.lists(INTEGER_LOADS, min_size=experts, max_size=experts))
    return loads, {
        "ep_size": size,
        "num_physical_experts": slots,
        "num_groups": groups,
        "num_servers": servers,
        "policy": draw(st.sampled_from(("auto", "global", "hierarchical"))),
    }


# --- how many copies -------------------------------------------------------------------------------


def test_copies_go_to_the_heaviest_copy_each_time():
    # 90 -> 45 45, then 60 -> 30 30, then 45 -> 30 30 30: heaviest copies 60, 45, 30.
    assert replica_counts([90, 60, 10], 4).tolist() == [2, 1, 1]
    assert replica_counts([90, 60, 10], 5).tolist() == [2, 2, 1]
    assert replica_counts([90, 60, 10], 6).tolist() == [3, 2, 1]


def test_equal_loads_are_split_in_order_of_their_number():
    assert replica_counts([5, 5, 5], 5).tolist() == [2, 2, 1]
    assert replica_counts([0, 0, 0], 5).tolist() == [2, 2, 1]


@given(st.lists(INTEGER_LOADS, min_size=1, max_size=4), st.integers(0, 5))
def test_no_other_counts_have_a_lighter_heaviest_copy(loads, spare):
    counts = replica_counts(loads, len(loads) + spare)
    assert counts.sum() == len(loads) + spare
    assert counts.min() >= 1
    heaviest = max(w / c for w, c in zip(loads, counts, strict=True))
    for other in itertools.product(range(1, spare + 2), repeat=len(loads)):
        if sum(other) == len(loads) + spare:
            assert heaviest <= max(w / c for w, c in zip(loads, other, strict=True))


def test_limit_of_copies_moves_spare_slots_to_others():
    assert replica_counts([100, 1, 1, 1], 6, max_copies=2).tolist() == [2, 2, 1, 1]
    with pytest.raises(
        ConfigError, match="num_physical_experts is 9: 4 experts of at most 2 copies fill 8 slots"
    ):
        replica_counts([100, 1, 1, 1], 9, max_copies=2)


# --- which rank ------------------------------------------------------------------------------------


def waste(bins):
    return sum(len(items) - len(set(items)) for items in bins)


def check_packing(weights, copies, num_bins, bins):
    """Reject what a packing must never be."""
    assert len(bins) == num_bins
    assert {len(items) for items in bins} == {sum(copies) // num_bins}
    placed = np.bincount([i for items in bins for i in items], minlength=len(copies))
    assert placed.tolist() == list(copies)
    assert waste(bins) == sum(max(0, c - num_bins) for c in copies), "copies share a bin that need not"
    loads = [sum(weights[i] for i in items) for items in bins]
    spread = max(weights) - min(weights)
    assert max(loads) * num_bins <= sum(loads) + spread * num_bins, "above mean plus spread"


@given(packings())
def test_packing_keeps_slots_copies_distance_and_bound(packing):
    weights, copies, num_bins = packing
    check_packing(weights, copies, num_bins, pack_copies(weights, copies, num_bins))


@pytest.mark.parametrize(
    "bins",
    [
        [[0, 0], [1, 2]],  # two copies on one rank, avoidable
        [[0, 1], [0, 1]],  # expert 2 lost, expert 1 twice
        [[0, 1, 2], [0]],  # unequal ranks
        [[0, 1], [2, 3]],  # an expert that does not exist
        [[0, 1, 0, 2]],  # one rank too few
    ],
)
def test_planted_packing_faults_are_rejected(bins):
    check_packing([4, 1, 1], [2, 1, 1], 2, [[0, 1], [0, 2]])
    with pytest.raises(AssertionError):
        check_packing([4, 1, 1], [2, 1, 1], 2, bins)


def test_planted_unbalanced_packing_is_rejected():
    with pytest.raises(AssertionError, match="above mean plus spread"):
        check_packing([9, 9, 9, 9, 1, 1, 1, 1], [1] * 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_lightest_rank_is_not_filled_when_a_later_expert_needs_it():
    # By load alone 6, 6 and 2 all join on the light rank and fill it, and both copies of 1 meet on the other.
    assert pack_copies([20, 6, 6, 2, 1], [1, 1, 1, 1, 2], 2) == [[0, 3, 4], [1, 2, 4]]


def test_weights_are_dealt_heaviest_first():
    assert pack_copies([8, 7, 6, 5], [1] * 4, 2) == [[0, 3], [1, 2]]


# --- whole placements ------------------------------------------------------------------------------


@given(placements())
def test_placement_conserves_slots_and_serves_every_expert(case):
    loads, kwargs = case
    placed = balance_experts(loads, **kwargs)
    slots, size = kwargs["num_physical_experts"], kwargs["ep_size"]
    assert placed.expert_ranks == tuple(p // (slots // size) for p in range(slots))
    assert placed.num_logical_experts == len(loads)  # ExpertMap refuses an expert without a copy
    metrics = measure_placement(placed, loads, ep_size=size)
    # Shares, their sums and the mean round once each per slot, relative to the whole load at most.
    lost = 3 * slots * 2.0**-52 * sum(loads)
    assert abs(metrics.rank_loads.sum() - sum(loads)) <= lost
    assert metrics.mean_rank_load <= metrics.max_rank_load + lost
    assert placed == balance_experts(loads, **kwargs)


@given(placements())
def test_hierarchical_placement_keeps_a_group_on_one_server(case):
    loads, kwargs = case
    placed = balance_experts(loads, **{**kwargs, "policy": "hierarchical"})
    group_size = len(loads) // kwargs["num_groups"]
    ranks_per_server = kwargs["ep_size"] // kwargs["num_servers"]
    homes = {}
    for logical, rank in zip(placed.logical_ids, placed.expert_ranks, strict=True):
        homes.setdefault(logical // group_size, set()).add(rank // ranks_per_server)
    assert all(len(servers) == 1 for servers in homes.values())
    assert len(homes) == kwargs["num_groups"]


@given(placements())
def test_global_placement_wastes_only_what_the_counts_force(case):
    loads, kwargs = case
    kwargs["policy"] = "global"
    size, slots = kwargs["ep_size"], kwargs["num_physical_experts"]
    forced = np.maximum(replica_counts(loads, slots) - size, 0).sum()
    placed = balance_experts(loads, **kwargs)
    assert placed.num_wasted_replicas == forced
    if slots <= size * len(loads):
        assert balance_experts(loads, **kwargs, avoid_waste=True).num_wasted_replicas == 0


@given(st.sampled_from(SMALL_SIZES), st.integers(1, 4), st.data())
def test_without_redundancy_the_peak_is_never_above_the_identity(size, local, data):
    experts = size * local
    loads = data.draw(st.lists(INTEGER_LOADS, min_size=experts, max_size=experts))
    placed = balance_experts(loads, ep_size=size, num_physical_experts=experts)
    identity = ExpertMap(expert_ranks=tuple(e // local for e in range(experts)))
    report = compare_placements(identity, placed, loads, ep_size=size)
    assert report.after.max_rank_load <= report.before.max_rank_load
    assert report.speedup >= 1.0


def test_worked_hierarchical_example():
    # Groups {0,1} = 100, {2,3} = 30, {4,5} = 60, {6,7} = 90: servers take {0,1}+{2,3} and {4,5}+{6,7}.
    loads = [90, 10, 20, 10, 30, 30, 80, 10]
    kwargs = {"ep_size": 4, "num_physical_experts": 12, "num_groups": 4, "num_servers": 2}
    placed = balance_experts(loads, **kwargs)
    # Server 0 splits 90 into three copies of 30 although it has two ranks: one copy is wasted.
    assert placed.logical_ids[:6] == (0, 0, 3, 0, 1, 2)
    # Server 1 splits 80 into 40 40, then 40 again into three of 26.7.
    assert placed.logical_ids[6:] == (4, 6, 6, 5, 6, 7)
    assert placed.num_wasted_replicas == 2
    assert balance_experts(loads, **kwargs, avoid_waste=True).num_wasted_replicas == 0


def test_auto_is_global_when_groups_do_not_divide_by_servers():
    kwargs = {"ep_size": 2, "num_physical_experts": 6, "num_groups": 3, "num_servers": 2}
    loads = [9, 1, 5, 1, 4, 4]
    assert balance_experts(loads, **kwargs) == balance_experts(loads, **kwargs, policy="global")
    with pytest.raises(ConfigError, match="num_groups is 3: num_servers 2 must divide it"):
        balance_experts(loads, **kwargs, policy="hierarchical")


# --- real-world cases ------------------------------------------------------------------------------


def test_g38_routed_ids_make_room_for_shared_slots_after_eplb():
    kwargs = {"num_routed_per_rank": 3, "num_shared_per_rank": 1}
    ids = np.array([[5, -1, 0], [11, 2, 3]])
    assert add_shared_slots(ids, **kwargs).tolist() == [[6, -1, 0], [14, 2, 4]]
    # With the logical count, 2 per rank, id 5 would become 7: the shared slot of rank 1.
    assert add_shared_slots(np.array([5]), num_routed_per_rank=2, num_shared_per_rank=1) == 7
    assert shared_expert_id(1, 0, **kwargs) == 7


@pytest.mark.parametrize("num_shared", [0, 1, 2])
def test_g38_routed_and_shared_ids_tile_the_slots(num_shared):
    kwargs = {"num_routed_per_rank": 3, "num_shared_per_rank": num_shared}
    routed = add_shared_slots(np.arange(12), **kwargs)
    assert (routed // (3 + num_shared)).tolist() == [e // 3 for e in range(12)]
    assert (routed % (3 + num_shared) < 3).all()
    shared = [shared_expert_id(r, j, **kwargs) for r in range(4) for j in range(num_shared)]
    assert sorted([*routed.tolist(), *shared]) == list(range(4 * (3 + num_shared)))


def test_g43_two_copies_on_one_rank_are_legal_and_flagged():
    placed = balance_experts([100, 1, 1, 1], ep_size=2, num_physical_experts=6)
    assert len(placed.copies()[0]) == 3
    assert placed.num_wasted_replicas == 1
    assert measure_placement(placed, [100, 1, 1, 1], ep_size=2).num_wasted_replicas == 1


def test_g44_map_covers_the_logical_experts_and_names_physical_slots():
    placed = balance_experts([4, 4, 1, 1], ep_size=2, num_physical_experts=6)
    table, counts = copies_table(placed)
    assert table.shape[0] == 4
    assert counts.sum() == 6
    assert set(table.ravel()) - {-1} == set(range(6))
    assert max(placed.logical_ids) < 4
    for logical in range(4):
        for physical in table[logical, : counts[logical]]:
            assert placed.logical_ids[physical] == logical


def test_g44_map_without_redundancy_is_the_identity():
    placed = balance_experts([3, 3, 3, 3], ep_size=2, num_physical_experts=4)
    assert placed.logical_ids == (0, 1, 2, 3)
    table, counts = copies_table(placed)
    assert table.ravel().tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [1] * 4


def test_g45_map_of_a_placement_is_applied_exactly_once():
    # Loads that make the map have neither fixed points nor two-cycles on the ids tested: 0->1->2->0.
    expert_map = ExpertMap(expert_ranks=(0, 0, 1, 1), logical_ids=(2, 0, 1, 3))
    table, _ = copies_table(expert_map)
    assert table[:, 0].tolist() == [1, 2, 0, 3]
    config = EPConfig(
        ep_size=2, num_experts=4, num_topk=1, hidden=128, num_max_tokens_per_rank=3, expert_map=expert_map
    )
    logical = TopK(num_experts=4, topk_idx=(np.array([[0], [1], [2]]),) * 2, id_space="logical")
    physical = to_physical(config, logical)
    assert physical.topk_idx[0].ravel().tolist() == [1, 2, 0]
    with pytest.raises(ConfigError, match="applied once"):
        to_physical(config, physical)


G46_MAP = ExpertMap(expert_ranks=tuple(range(8)), logical_ids=(0, 1, 2, 3, 0, 1, 2, 3))


@pytest.mark.parametrize(
    ("shares", "peak", "idle"),
    [([0] * 4 + [1] * 4, 2.0, 4), (None, 1.0, 0), ([0.25] * 4 + [0.75] * 4, 1.5, 0)],
)
def test_g46_replica_rule_decides_the_peak(shares, peak, idle):
    metrics = measure_placement(G46_MAP, [100] * 4, ep_size=8, shares=shares)
    assert metrics.peak_over_mean == peak
    assert metrics.copy_peak_over_mean == peak
    assert metrics.num_idle_replicas == idle


def test_copies_of_an_expert_without_load_are_not_idle():
    metrics = measure_placement(G46_MAP, [0, 1, 0.5, 1], ep_size=8, shares=[1, 1, 1, 1, 0, 0, 0, 0])
    assert metrics.num_idle_replicas == 3


def test_g46_predicted_peak_is_the_counted_one():
    rows = np.tile(np.arange(4), 10)[:, None]
    config = EPConfig(
        ep_size=8, num_experts=8, num_topk=1, hidden=128, num_max_tokens_per_rank=40, expert_map=G46_MAP
    )
    logical = TopK(num_experts=4, topk_idx=(rows,) * 8, id_space="logical")
    for rule, peak in (("last", 2.0), ("source", 1.0)):
        counts = count_rows(config, to_physical(config, logical, rule=rule))
        assert peak_of_counts(counts.received_rows) == peak


# --- metrics and refusals --------------------------------------------------------------------------


def test_report_before_and_after():
    loads = [8, 8, 1, 1]
    before = ExpertMap(expert_ranks=(0, 0, 1, 1))
    after = balance_experts(loads, ep_size=2, num_physical_experts=4)
    report = compare_placements(before, after, loads, ep_size=2)
    assert report.before.rank_loads.tolist() == [16, 2]
    assert report.after.rank_loads.tolist() == [9, 9]
    assert report.before.peak_over_mean == 16 / 9
    assert report.speedup == 16 / 9


def test_rank_without_experts_and_group_without_load_are_measured():
    metrics = measure_placement(ExpertMap(expert_ranks=(0, 2)), [3, 5], ep_size=4)
    assert metrics.rank_loads.tolist() == [3, 0, 5, 0]
    assert measure_placement(G46_MAP, [0] * 4, ep_size=8).peak_over_mean == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replica_counts([1, -1], 2), r"loads\[1\] is -1.0: must be finite and at least 0"),
        (lambda: replica_counts([1, float("nan")], 2), r"loads\[1\] is nan"),
        (lambda: replica_counts([], 2), r"loads is \(0,\): must be one row"),
        (lambda: replica_counts(["a"], 2), "loads is 'list': must be numbers"),
        (
            lambda: replica_counts([1, 10**400], 2),
            r"loads\[1\] is 'an integer of 1329 bits': must be at most 1.8e\+308",
        ),
        (
            lambda: balance_experts([1, 1.5e308, 1e308], ep_size=3, num_physical_experts=3),
            r"loads\[1\] is 1.5e\+308: the sum of all loads must be at most 1.8e\+308",
        ),
        (
            lambda: replica_counts([1, 2], 1),
            "num_physical_experts is 1: must be a whole number of at least 2",
        ),
        (lambda: pack_copies([1, 2], [1], 1), "copies is 1: weights has 2 entries"),
        (lambda: pack_copies([1, 2], [1, 2], 2), "copies is 3: num_bins 2 must divide"),
        (
            lambda: balance_experts([1, 2], ep_size=2, num_physical_experts=3),
            "num_physical_experts is 3: ep_size 2 must divide it",
        ),
        (
            lambda: balance_experts([1, 2], ep_size=2, num_physical_experts=2, num_servers=3),
            "num_servers is 3: must divide ep_size 2",
        ),
        (
            lambda: balance_experts([1, 2], ep_size=2, num_physical_experts=2, num_groups=3),
            "num_groups is 3: must divide the 2 experts",
        ),
        (
            lambda: balance_experts([1, 2], ep_size=2, num_physical_experts=2, policy="best"),
            "policy is 'best': must be one of auto, global, hierarchical",
        ),
        (lambda: measure_placement(G46_MAP, [1], ep_size=8), "loads is '1 experts': the map has 4"),
        (lambda: measure_placement(G46_MAP, [1] * 4, ep_size=7), "ep_size is 7: must be a whole number of"),
        (
            lambda: measure_placement(G46_MAP, [1] * 4, ep_size=8, shares=[1] * 8),
            "shares of logical expert 0 is 2.0",
        ),
        (
            lambda: measure_placement(G46_MAP, [1] * 4, ep_size=8, shares=[1] * 4),
            "shares is '4 entries': the map has 8 physical experts",
        ),
        (
            lambda: add_shared_slots(
                np.array([1], dtype=np.int32), num_routed_per_rank=1, num_shared_per_rank=1
            ),
            "physical_ids is 'int32': must be int64",
        ),
        (
            lambda: shared_expert_id(0, 1, num_routed_per_rank=1, num_shared_per_rank=1),
            "shared_idx is 1: a rank has 1 shared slots",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
