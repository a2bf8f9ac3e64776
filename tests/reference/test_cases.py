"""Public bug cases (cases.md) of dispatch and combine, each with the right value of its minimal input.

Where a case has a queue, a timeout or a process in it, its data half is here. Ids and replicas (G22, G44 to
G46) have tests beside the code that answers them.
"""

import dataclasses

import numpy as np
import pytest

from reference.combine import combine
from reference.comparison.compare import MismatchError, assert_equal
from reference.config import EPConfig, ExpertMap
from reference.dispatch import dispatch, dispatch_cached
from reference.errors import ConfigError
from reference.experts.replicas import to_physical
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING, RANK_REDUCED
from reference.placement import plan_dispatch
from reference.poison import is_poisoned, poison_int
from reference.topk import TopK
from tests.reference.exchange import BF16, FP8, dyadic_weights, random_rows, random_topk
from tests.reference.layer import expert_rows, group, layer, ones

COMPACT = DispatchMode(edition="nvidia-v2", expand=False)
WIDE = DispatchMode(edition="nvidia-v2")


G01 = [[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[2, 3], [0, 1]], [[3, 0], [1, 2]]]


def test_g01_combine_uses_the_routing_of_the_own_tokens():
    """r0 gives [1.5, 3.5]; a handle that holds the received ids instead is refused."""
    config, topk = group(G01, num_experts=4, weights=np.full((4, 2, 2), 0.5))
    assert layer(config, topk, ones(topk), lambda e, row: (e + 1) * row)[0].ravel().tolist() == [1.5, 3.5]
    results, handles = dispatch(config, topk, ones(topk), mode=COMPACT)
    wrong = [
        dataclasses.replace(h, source_topk_idx=r.recv_topk_idx[:2], source_digest=None)
        for r, h in zip(results, handles, strict=True)
    ]
    with pytest.raises(ConfigError, match="rows and routing disagree"):
        combine(wrong, [r.recv_x for r in results], order=RANK_REDUCED)


def test_g02_several_experts_of_a_token_on_one_rank():
    """8 choices on 6 ranks: 6 rows, 8 slots, one row with three local ids at rank 4; x comes back."""
    ids = [147, 24, 48, 96, 86, 154, 233, 142]
    config, topk = group([[ids], *[[]] * 7], num_experts=256, weights=[[np.full(8, 1 / 8)], *[[]] * 7])
    compact, handles = dispatch(config, topk, ones(topk), mode=COMPACT)
    assert config.expert_ranks()[ids].tolist() == [4, 0, 1, 3, 2, 4, 7, 4]
    assert sum(h.num_recv_tokens for h in handles) == 6
    assert sum(h.num_expanded_tokens for h in plan_dispatch(config, topk)) == 8
    assert sorted(compact[4].recv_topk_idx[0][compact[4].recv_topk_idx[0] >= 0].tolist()) == [14, 19, 26]
    assert layer(config, topk, ones(topk, 3.0))[0].item() == 3.0


def test_g03_one_row_or_one_per_expert():
    """Compact: one row with local ids [0, 1]. Expanded: two. Combine takes its own layout's count only."""
    config, topk = group([[[2, 3]], []], num_experts=4)
    compact, few = dispatch(config, topk, ones(topk), mode=COMPACT)
    expanded, many = dispatch(config, topk, ones(topk), mode=WIDE)
    assert compact[1].recv_topk_idx.tolist() == [[0, 1]]
    assert [len(r.recv_x) for r in expanded] == [0, 2]
    for handles, rows in ((few, expanded), (many, compact)):
        with pytest.raises(ConfigError, match=r"y\[rank 1\]"):
            combine(handles, [r.recv_x for r in rows], order=RANK_REDUCED)


@pytest.mark.parametrize("alignment", [1, 4])
def test_g04_counts_are_the_histogram_of_received_ids(alignment):
    """Expert counts [2, 2, 2, 3], 3 and 4 rows; the list is that histogram rounded up, under another name."""
    ids = [[[0, 1], [1, 2], [3, -1]], [[0, 3], [2, 3]]]
    config, topk = group(ids, num_experts=4, expert_alignment=alignment)
    results, handles = dispatch(config, topk, ones(topk), mode=COMPACT)
    assert [h.num_recv_tokens for h in handles] == [3, 4]
    assert [h.num_unaligned_recv_tokens_per_expert.tolist() for h in handles] == [[2, 2], [2, 3]]
    for result, handle in zip(results, handles, strict=True):
        histogram = np.bincount(result.recv_topk_idx[result.recv_topk_idx >= 0], minlength=2)
        want = tuple((-(-histogram // alignment) * alignment).tolist())
        assert handle.num_recv_tokens_per_expert_list == want


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_g05_alignment_does_not_depend_on_the_dtype(dtype):
    """Counts [1, 0, 127, 129] are padded to [128, 0, 128, 256]: an empty expert to 0; padding can be zero."""
    ids = [[[0]] * 1 + [[2]] * 127 + [[3]] * 129, []]
    config, topk = group(ids, num_experts=8, expert_alignment=128)
    x = [np.ones((n, 1), dtype) for n in topk.tokens_per_rank]
    results, handles = dispatch(config, topk, x, zero_padding=True)
    assert handles[0].num_recv_tokens_per_expert_list == (128, 0, 128, 256)
    padding = handles[0].row_origins().gid < 0
    assert (results[0].recv_x[padding].view(np.uint8) == 0).all()
    assert (results[0].recv_x[~padding] == 1).all()


def padded(topk, length):
    """Return the routing with all -1 tokens behind every rank's own."""
    idx = [np.vstack((i, np.full((length - len(i), i.shape[1]), -1))) for i in topk.topk_idx]
    return dataclasses.replace(topk, topk_idx=tuple(idx), topk_weights=None)


@pytest.mark.parametrize(
    "tokens", [(0, 3, 0, 1), (5, 5), (6, 6), (8, 8), (5, 7), (0, 8)], ids=lambda t: f"{t}"
)
def test_g06_g08_uneven_tokens_are_as_if_padded(tokens):
    """Idle ranks take part and may receive; padding adds no rows; results have the own length and dtype."""
    config = EPConfig(ep_size=len(tokens), num_experts=8, num_topk=2, hidden=3, num_max_tokens_per_rank=8)
    rng = np.random.default_rng(0)
    topk = random_topk(config, rng, tokens=tokens, masked=0.2, weights=False)
    x = [random_rows(rng, (n, 3)) for n in tokens]
    longer = [np.vstack((rows, np.ones((8 - len(rows), 3), BF16))) for rows in x]
    even = padded(topk, 8)
    have, want = layer(config, topk, x), layer(config, even, longer)
    assert [(h.shape, h.dtype) for h in have] == [((n, 3), BF16) for n in tokens]
    cut = [w[:n] for w, n in zip(want, tokens, strict=True)]
    assert_equal(cut, have, strict_zero=True, any_nan=True)
    for a, b in zip(plan_dispatch(config, topk), plan_dispatch(config, even), strict=True):
        assert a.num_recv_tokens == b.num_recv_tokens
        assert a.num_recv_tokens_per_expert_list == b.num_recv_tokens_per_expert_list


def test_g07_a_rank_that_receives_nothing_has_gradients():
    """r1 gets 0 rows; forward and backward go through it all the same."""
    config, topk = group([[[0], [1], [0]], [[1], [1], [0]]], num_experts=4)
    results, handles = dispatch(config, topk, ones(topk))
    assert [len(r.recv_x) for r in results] == [6, 0]
    forward = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
    assert [f.combined_x.ravel().tolist() for f in forward] == [[1, 1, 1]] * 2
    backward = dispatch_cached(handles, ones(topk, 2.0))
    assert [r.recv_x.ravel().tolist() for r in backward] == [[2] * 6, []]


def test_g09_the_capacity_must_match_on_all_ranks():
    """Handles of ranks with different maxima are refused; the error shows the whole group."""
    handles = []
    for capacity in (8, 4):
        config, topk = group([[[0]] * 4, [[1]] * 4], num_experts=2, capacity=capacity)
        handles.append(plan_dispatch(config, topk))
    with pytest.raises(ConfigError, match="num_max_tokens_per_rank=4"):
        dispatch_cached((handles[0][0], handles[1][1]), [np.zeros((4, 1), BF16)] * 2)


def test_g10_round_trip_of_uneven_tokens_is_the_identity():
    """X = rank * 100 + token comes back on every rank when weights sum to 1."""
    config = EPConfig(ep_size=4, num_experts=8, num_topk=2, hidden=1, num_max_tokens_per_rank=8)
    topk = random_topk(config, np.random.default_rng(0), tokens=(3, 5, 4, 8))
    topk = dataclasses.replace(topk, topk_weights=tuple(dyadic_weights(i) for i in topk.topk_idx))
    # Numbers up to 307 need 9 bits: two columns of what bf16 holds exactly.
    x = [
        np.stack((np.full(n, r * 100), np.arange(n)), axis=1).astype(BF16) for r, n in enumerate((3, 5, 4, 8))
    ]
    assert_equal(x, layer(config, topk, x), strict_zero=True)


def test_g11_more_tokens_than_the_stated_maximum():
    """4 passes, 5 is refused with both numbers before anything is written."""
    config, topk = group([[[0]] * 4], num_experts=1, capacity=4)
    dispatch(config, topk, ones(topk))
    _, five = group([[[0]] * 5], num_experts=1)
    with pytest.raises(ConfigError, match=r"'5 tokens': num_max_tokens_per_rank is 4"):
        dispatch(config, five, ones(five))


@pytest.mark.parametrize(("tokens", "rounds"), [((257,), 2), ((4224,), 17), ((10, 3), 3)])
def test_g13_g14_a_long_call_in_rounds_equals_one_large_call(tokens, rounds):
    """Every rank runs all rounds, empty ones too; counts add up and no round sees another's rows."""
    limit = 4 if len(tokens) == 2 else 256
    sizes = {"ep_size": len(tokens), "num_experts": 4, "num_topk": 2, "hidden": 1}
    large = EPConfig(**sizes, num_max_tokens_per_rank=max(tokens))
    small = EPConfig(**sizes, num_max_tokens_per_rank=limit)
    topk = random_topk(large, np.random.default_rng(0), tokens=tokens)
    x = [np.arange(n)[:, None].astype(np.float32).astype(BF16) for n in tokens]
    with pytest.raises(ConfigError, match=f"num_max_tokens_per_rank is {limit}"):
        dispatch(small, topk, x)
    pieces, counts = [], 0
    for first in range(0, max(tokens), limit):
        part = slice(first, first + limit)
        cut = [tuple(a[part] for a in arrays) for arrays in (topk.topk_idx, topk.topk_weights)]
        piece = dataclasses.replace(topk, topk_idx=cut[0], topk_weights=cut[1])
        pieces.append(layer(small, piece, [a[part] for a in x]))
        counts += np.array([h.num_unaligned_recv_tokens_per_expert for h in plan_dispatch(small, piece)])
    assert len(pieces) == rounds
    assert_equal(layer(large, topk, x), [np.vstack(p) for p in zip(*pieces, strict=True)], strict_zero=True)
    whole = [h.num_unaligned_recv_tokens_per_expert for h in plan_dispatch(large, topk)]
    np.testing.assert_array_equal(counts, whole)


def test_g17_one_sided_routing_loses_no_row():
    """40 tokens of each rank, all to expert 1: r1 receives 80 rows, 40 of them its own."""
    config, topk = group([[[1]] * 40] * 2, num_experts=2)
    assert [h.num_recv_tokens for h in plan_dispatch(config, topk)] == [0, 80]
    assert plan_dispatch(config, topk)[1].psum_num_recv_tokens_per_rank.tolist() == [40, 80]


def test_g19_no_expert_as_minus_one_or_as_weight_zero():
    """Same value; but weight 0 still counts and travels. Other negative ids are errors."""
    masked = group([[[-1, 2]], []], num_experts=4, weights=[[[0, 1]], []])
    zero = group([[[0, 2]], []], num_experts=4, weights=[[[0, 1]], []])
    assert layer(*masked, ones(masked[1]))[0] == layer(*zero, ones(zero[1]))[0] == 1
    counts = [[h.num_recv_tokens for h in plan_dispatch(*case)] for case in (masked, zero)]
    assert counts == [[0, 1], [1, 1]]
    with pytest.raises(ConfigError, match=r"token 0, column 0\] is -2"):
        group([[[-2, 2]], []], num_experts=4)


def test_g20_masked_choices_shift_no_row():
    """4 slots, counts [2, 2], 4 masked entries; a token without experts is exactly +0.0."""
    ids = [[[-1, 0], [1, -1], [-1, -1], [0, 1]]]
    config, topk = group(ids, num_experts=2)
    x = [np.array([[1], [2], [3], [4]], BF16)]
    handle = plan_dispatch(config, topk)[0]
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == [2, 2]
    placed = np.full((4, 2), -1)
    placed[handle.gids()] = handle.expanded_rows()
    assert placed.tolist() == [[-1, 0], [2, -1], [-1, -1], [1, 3]]
    combined = layer(config, topk, x)[0]
    assert combined.ravel().tolist() == [1, 2, 0, 8]
    assert combined.view(np.uint16)[2] == 0


def test_g21_a_repeated_expert_is_refused():
    """The policy is to refuse, by name of rank, token and column."""
    with pytest.raises(ConfigError, match=r"rank 0, token 0, column 1\] is 3: an expert may appear once"):
        group([[[3, 3]], []], num_experts=4)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("tokens", [4, 1, 0])
def test_g23_g58_worst_case_rows_without_host_counts(tokens, expand):
    """8 rows whatever T; the list is empty, counts are in the psums; nobody reads the poisoned tail."""
    config = EPConfig(ep_size=2, num_experts=2, num_topk=1, hidden=1, num_max_tokens_per_rank=4)
    topk = random_topk(config, np.random.default_rng(1), tokens=(tokens, tokens), weights=False)
    mode = dataclasses.replace(COMPACT, cpu_sync=False, expand=expand)
    results, handles = dispatch(config, topk, ones(topk, 2.0), mode=mode)
    for result, handle in zip(results, handles, strict=True):
        real = handle.num_real_recv_tokens
        assert (len(result.recv_x), handle.num_recv_tokens_per_expert_list) == (8, ())
        assert is_poisoned(result.recv_x[real:]).all()
        if not expand:
            assert (result.recv_topk_idx[real:] == poison_int(np.int64)).all()
    back = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
    assert [b.combined_x.ravel().tolist() for b in back] == [[2.0] * tokens] * 2


def test_g34_who_multiplies_by_the_gate_weight():
    """The caller, once: 3.5. Forgotten 6.0, twice 2.375: one token tells the mistakes apart."""
    config, topk = group([[[0, 1]]], num_experts=2, weights=[[[0.25, 0.75]]])
    results, handles = dispatch(config, topk, ones(topk))
    once, never = (
        expert_rows(results, handles, topk, lambda e, row: 2 * (e + 1) * row, weighted=w)
        for w in (True, False)
    )
    twice = [(y * r.recv_topk_weights[:, None]).astype(BF16) for y, r in zip(once, results, strict=True)]
    sums = [combine(handles, y, order=RANK_REDUCED)[0].combined_x.item() for y in (once, never, twice)]
    assert sums == [3.5, 6.0, 2.375]


def test_g35_weighted_once():
    """X = 8, weight 0.5: 4, not 2; dispatch itself applies nothing."""
    config, topk = group([[[0]]], num_experts=1, weights=[[[0.5]]])
    results, _ = dispatch(config, topk, ones(topk, 8.0))
    assert results[0].recv_x.item() == 8.0
    assert layer(config, topk, ones(topk, 8.0))[0].item() == 4.0


def test_g36_combine_returns_the_complete_sum():
    """1.5 comes home whole although its parts lie on two ranks; another all-reduce would add strangers."""
    config, topk = group([[[0, 1]], [[0, 1]]], num_experts=2, weights=[[[0.5, 0.5]]] * 2)
    assert [x.item() for x in layer(config, topk, ones(topk), lambda e, row: (e + 1) * row)] == [1.5, 1.5]


def test_g39_fp32_in_a_named_order():
    """256, 1, -256 sum to 1 in both orders; bf16 accumulation would give 0 in one of them."""
    for values in ([256.0, 1.0, -256.0], [256.0, -256.0, 1.0]):
        config, topk = group([[[0, 1, 2]]], num_experts=3)
        for order in (ONE_ROUNDING, RANK_REDUCED):
            made = layer(
                config, topk, ones(topk), lambda e, row, v=values: v[e] * row, mode=WIDE, order=order
            )
            assert made[0].item() == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_g40_arrival_order_is_open_and_deterministic_order_is_not(seed):
    """Six rows reach r0 in any order inside a sender; sorted ones ascend by source; combine never differs."""
    config, topk = group([[[0], [0]]] * 3, num_experts=3)
    x = [np.array([[10 * r], [10 * r + 1]], BF16) for r in range(3)]
    mode = dataclasses.replace(COMPACT, arrival_seed=seed)
    results, handles = dispatch(config, topk, x, mode=mode)
    gids = handles[0].gids().tolist()
    assert [sorted(gids[i : i + 2]) for i in (0, 2, 4)] == [[0, 1], [2, 3], [4, 5]]
    assert results[0].recv_x.ravel().tolist() == [10 * (g // 2) + g % 2 for g in gids]
    ordered = plan_dispatch(config, topk, mode=dataclasses.replace(mode, deterministic=True))
    assert ordered[0].gids().tolist() == list(range(6))
    assert_equal(x, [c.combined_x for c in combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)])


def test_g41_three_combines_have_three_traffics_and_two_roundings():
    """Rows that come back: 2, 2 and 4; reduction on the rank adds one bf16 rounding per rank."""
    config, topk = group([[[0, 1, 2, 3]], []], num_experts=4, hidden=4)
    wide, compact = plan_dispatch(config, topk, mode=WIDE), plan_dispatch(config, topk, mode=COMPACT)
    assert [sum(h.num_recv_tokens for h in hs) for hs in (compact, wide)] == [2, 2]
    assert sum(h.num_expanded_tokens for h in wide) == 4
    parts = [1.0, 2.0**-8, 2.0**-8, 0.0]
    sums = [
        layer(config, topk, ones(topk), lambda e, row: parts[e] * row, mode=WIDE, order=order)[0].item()
        for order in (ONE_ROUNDING, RANK_REDUCED)
    ]
    assert sums == [1.0078125, 1.0]


def test_g42_a_token_does_not_depend_on_the_others():
    """With a row-wise expert the first token's bits stay while 16, 32 or 64 others share its experts."""
    seen = set()
    for others in (0, 16, 32, 64):
        rng = np.random.default_rng(0)
        config, topk = group(
            [[[0, 3]] * (1 + others), []], num_experts=4, weights=[np.full((1 + others, 2), 0.3), []]
        )
        x = [np.vstack((np.full((1, 5), 0.7, BF16), random_rows(rng, (others, 5)))), np.zeros((0, 5), BF16)]
        seen.add(layer(config, topk, x, lambda e, row: row * (e + 0.1))[0][0].tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("rule", ["token", "source", "random", "first", "last"])
def test_g43_any_replica_gives_the_logical_sum(rule):
    """Three copies of expert 0 on two ranks: wasteful, flagged, and right."""
    expert_map = ExpertMap(expert_ranks=(0, 0, 0, 1, 1, 1), logical_ids=(0, 0, 1, 0, 2, 3))
    assert expert_map.num_wasted_replicas == 1
    config = EPConfig(
        ep_size=2, num_experts=6, num_topk=2, hidden=1, num_max_tokens_per_rank=4, expert_map=expert_map
    )
    logical = TopK(
        num_experts=4,
        topk_idx=(np.array([[0, 1], [0, 2], [0, 3], [0, 1]]), np.array([[3, 0], [0, 2]])),
        id_space="logical",
    )
    physical = to_physical(config, logical, rule=rule, seed=1)
    have = layer(config, physical, ones(physical), lambda e, row: 4.0 ** expert_map.logical_ids[e] * row)
    assert [h.ravel().tolist() for h in have] == [[5, 17, 65, 5], [65, 17]]


def test_g59_backward_after_forward_three_times():
    """dispatch, combine, cached dispatch, combine: all succeed and repeat their bits."""
    config = EPConfig(ep_size=2, num_experts=4, num_topk=2, hidden=2, num_max_tokens_per_rank=3)
    rng = np.random.default_rng(0)
    topk = random_topk(config, rng, tokens=(3, 3))
    x, grad = ([random_rows(rng, (3, 2)) for _ in range(2)] for _ in range(2))
    rounds = []
    for _ in range(3):
        results, handles = dispatch(config, topk, x)
        out = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
        back = dispatch_cached(handles, grad)
        rounds.append((out, back, combine(handles, [r.recv_x for r in back], order=RANK_REDUCED)))
    for later in rounds[1:]:
        for a, b in zip(rounds[0], later, strict=True):
            assert_equal(a, b, strict_zero=True)


def test_g60_a_handle_knows_what_it_belongs_to():
    """Another T and another group are refused; new rows of the same shape keep the old routing."""
    config, topk = group([[[0], [1]], [[1], [1]]], num_experts=2)
    _, handles = dispatch(config, topk, ones(topk))
    with pytest.raises(ConfigError, match="2 tokens here"):
        dispatch_cached(handles, [np.zeros((3, 1), BF16)] * 2)
    other = plan_dispatch(*group([[[0], [1]], [[1], [1]]], num_experts=4))
    with pytest.raises(ConfigError, match="same group and layout"):
        dispatch_cached((handles[0], other[1]), ones(topk))
    new = dispatch_cached(handles, [np.array([[5], [6]], BF16), np.array([[7], [8]], BF16)])
    assert [r.recv_x.ravel().tolist() for r in new] == [[5], [6, 7, 8]]


@pytest.mark.parametrize("order", ["D0C0D1C1", "D0D1C0C1", "D0D1C1C0", "D0D1D2C0C1C2"])
def test_g61_calls_in_flight_keep_their_tags(order):
    """Handles depend on no buffer: every order of dispatches and combines gives each call its own rows."""
    config = EPConfig(ep_size=2, num_experts=4, num_topk=1, hidden=1, num_max_tokens_per_rank=3)
    open_calls = {}
    for kind, tag in zip(order[::2], map(int, order[1::2]), strict=True):
        topk = random_topk(config, np.random.default_rng(tag), tokens=(3, 2))
        if kind == "D":
            open_calls[tag] = dispatch(config, topk, ones(topk, 10.0 + tag))
            continue
        results, handles = open_calls[tag]
        back = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
        assert [b.combined_x.ravel().tolist() for b in back] == [[10 + tag] * 3, [10 + tag] * 2]


def test_a_mixed_up_call_would_be_seen():
    """The tags of the last test differ, so that a wrong one fails it."""
    config = EPConfig(ep_size=1, num_experts=1, num_topk=1, hidden=1, num_max_tokens_per_rank=1)
    topk = random_topk(config, np.random.default_rng(0), tokens=(1,))
    first, second = (dispatch(config, topk, ones(topk, 10.0 + tag))[0] for tag in (0, 1))
    with pytest.raises(MismatchError):
        assert_equal(first, second)
