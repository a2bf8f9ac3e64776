"""Dispatch: the worked example, what a shuffle may change, scales, padding, undefined rows, refusals."""

import dataclasses
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.combine import combine
from reference.comparison.compare import assert_equal
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.handle import DispatchMode
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
from reference.poison import is_poisoned, poison_int
from reference.topk import TopK
from tests.reference.exchange import (
    BF16,
    FP8,
    exchanges,
    random_bits,
    random_rows,
    random_topk,
    small_exchange,
)

NONE = -1
# deepep-ascend.md section 4.12: R=2, E=4, K=3, M=4, C=16, A=4, n=(4,3); T = 1 leaves nothing open.
EXAMPLE = EPConfig(
    ep_size=2, num_experts=4, num_topk=3, hidden=128, num_max_tokens_per_rank=4, expert_alignment=4
)
EXAMPLE_TOPK = TopK(
    num_experts=4,
    topk_idx=(
        np.array([(0, 2, 1), (3, NONE, 2), (1, 0, NONE), (2, 0, 3)]),
        np.array([(1, 3, NONE), (NONE, NONE, NONE), (2, 3, 0)]),
    ),
)
EXAMPLE_HANDLES = (
    {
        "dst_buffer_slot_idx": [(-1, 0, 0), (-1, -1, 1), (-1, 1, -1), (-1, 2, 2)],
        "dst_gsge_idx": [(-1, 0, -1), (-1, -1, 0), (-1, -1, -1), (-1, -1, 0)],
        "psum_num_recv_tokens_per_rank": [3, 5],
        "num_unaligned_recv_tokens_per_expert": [4, 3],
        "psum_num_recv_tokens_per_expert": [4, 7],
        "num_expanded_tokens": 8,
        "num_recv_tokens_per_expert_list": (4, 4),
        # slots, then gid, then master
        "recv_src_metadata": [
            (0, -1, 4, 0, 2),
            (5, 1, -1, 2, 1),
            (-1, 2, -1, 3, 1),
            (6, -1, -1, 4, 0),
            (-1, -1, 3, 6, 2),
        ],
    },
    {
        "dst_buffer_slot_idx": [(0, 0, -1), (-1, -1, -1), (-1, 1, 1)],
        "dst_gsge_idx": [(0, -1, -1), (-1, -1, -1), (-1, -1, 0)],
        "psum_num_recv_tokens_per_rank": [3, 5],
        "num_unaligned_recv_tokens_per_expert": [4, 4],
        "psum_num_recv_tokens_per_expert": [4, 8],
        "num_expanded_tokens": 8,
        "num_recv_tokens_per_expert_list": (4, 4),
        "recv_src_metadata": [
            (-1, 0, -1, 0, 1),
            (4, -1, 1, 1, 2),
            (2, -1, 5, 3, 2),
            (-1, 6, -1, 4, 1),
            (3, 7, -1, 6, 1),
        ],
    },
)


def example_x():
    """Payload of the worked example: a row's columns all hold 10 * rank + token."""
    return [np.tile(np.arange(n)[:, None] + 10.0 * r, (1, 128)).astype(BF16) for r, n in enumerate((4, 3))]


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_worked_example_number_by_number(rank, seed):
    """Every number of deepep-ascend.md section 4.12, and no shuffle can change one of them."""
    mode = DispatchMode(num_aivs=16, arrival_seed=seed)
    handle = plan_dispatch(EXAMPLE, EXAMPLE_TOPK, mode=mode)[rank]
    have = {name: getattr(handle, name) for name in EXAMPLE_HANDLES[rank]}
    have = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in have.items()}
    want = {
        k: [list(r) if isinstance(r, tuple) else r for r in v] if isinstance(v, list) else v
        for k, v in EXAMPLE_HANDLES[rank].items()
    }
    assert have == want


def test_the_worked_examples_combine_records():
    """Groups are by contributing rank as K > R; a fully masked token comes back as zeros."""
    mode = DispatchMode(num_aivs=16)
    assert mode.rules.groups_by_rank(ep_size=2, num_topk=3)
    results, handles = dispatch(EXAMPLE, EXAMPLE_TOPK, example_x(), mode=mode)
    records = [
        sorted(int(g) % 4 + 4 * h.rank for g in h.gids() if g // 4 == home)
        for home in (0, 1)
        for h in handles
    ]
    assert records == [[0, 2, 3], [4, 5, 7], [0, 2], [4, 6]]
    combined = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
    assert combined[1].combined_x[1].view(np.uint16).tolist() == [0] * 128
    # Identity experts: each token comes back once per valid choice.
    assert combined[0].combined_x[:, 0].tolist() == [0, 2, 4, 9]


@given(exchange=exchanges(), seed=st.integers(0, 99))
def test_a_shuffle_changes_only_what_the_contract_leaves_open(exchange, seed):
    """Counts stay; every row is still its source's row, in its source's or expert's part, exactly once."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    x = [random_bits(rng, (n, config.hidden), np.uint8) for n in topk.tokens_per_rank]
    plain = plan_dispatch(config, topk, mode=exchange.mode)
    mode = dataclasses.replace(exchange.mode, arrival_seed=seed)
    results, handles = dispatch(config, topk, x, mode=mode)
    open_fields = {"mode", "recv_src_metadata", "dst_buffer_slot_idx", "dst_gsge_idx"}
    for canonical, handle, result in zip(plain, handles, results, strict=True):
        assert set(canonical.differences(handle)) <= open_fields
        before, after = canonical.row_origins(), handle.row_origins()
        assert ((before.gid < 0) == (after.gid < 0)).all()
        real = after.gid >= 0
        src, token = np.divmod(after.gid[real], config.num_max_tokens_per_rank)
        want = [x[s][t] for s, t in zip(src, token, strict=True)]
        np.testing.assert_array_equal(
            result.recv_x[real], np.array(want, np.uint8).reshape(-1, config.hidden)
        )
        parts = handle.block_starts() if mode.expand else _source_bounds(handle)
        for low, high in pairwise(parts):
            pairs = [sorted(zip(o.gid[low:high], o.k[low:high], strict=True)) for o in (before, after)]
            assert pairs[0] == pairs[1]


def _source_bounds(handle):
    if handle.mode.scaleup_ranks(handle.config) == handle.config.ep_size:
        return np.append(0, handle.psum_num_recv_tokens_per_rank)
    return np.append(0, [handle.num_real_recv_tokens])


@pytest.mark.parametrize("num_aivs", [1, 4, 7])
def test_ascend_slots_stay_inside_their_core_and_fill_descriptors_of_six(num_aivs):
    """Slots are a permutation per core, and pairs 6p..6p+5 are rows of one target with consecutive slots."""
    rng = np.random.default_rng(num_aivs)
    config = EPConfig(ep_size=5, num_experts=10, num_topk=3, hidden=8, num_max_tokens_per_rank=60)
    topk = random_topk(config, rng, tokens=(60, 33, 0, 7, 60), masked=0.2)
    share = -(-60 // num_aivs)
    plain = plan_dispatch(config, topk, mode=DispatchMode(num_aivs=num_aivs))
    shuffled = plan_dispatch(config, topk, mode=DispatchMode(num_aivs=num_aivs, arrival_seed=1))
    assert any(a.differences(b) for a, b in zip(plain, shuffled, strict=True))
    for rank, (before, after) in enumerate(zip(plain, shuffled, strict=True)):
        dst = np.where(before.topk_idx >= 0, before.topk_idx // 2, -1)
        for first in range(0, len(dst), share):
            part = slice(first, first + share)
            for target in range(5):
                at = (dst[part] == target) & (before.dst_buffer_slot_idx[part] >= 0)
                assert sorted(before.dst_buffer_slot_idx[part][at]) == sorted(
                    after.dst_buffer_slot_idx[part][at]
                )
            pairs = after.dst_gsge_idx[part]
            sent = [
                (p, dst[part][t, k], after.dst_buffer_slot_idx[part][t, k])
                for (t, k), p in np.ndenumerate(pairs)
                if p >= 0
            ]
            sent.sort()
            assert len({p for p, _, _ in sent}) == len(sent)
            for descriptor in {p // 6 for p, _, _ in sent}:
                rows = [(p, d, s) for p, d, s in sent if p // 6 == descriptor]
                assert [p % 6 for p, _, _ in rows] == list(range(len(rows)))
                assert len({d for _, d, _ in rows}) == 1
                assert rank not in {d for _, d, _ in rows}
                assert [s - rows[0][2] for _, _, s in rows] == list(range(len(rows)))


def test_nvidia_slots_are_open_across_cores():
    """One counter per target: a core per token, which fixes Ascend's order, does not fix NVIDIA's."""
    config, topk, _ = small_exchange()
    for edition, is_open in (("ascend", False), ("nvidia-v2", True)):
        modes = [DispatchMode(edition=edition, num_aivs=64, arrival_seed=seed) for seed in (None, 1)]
        plain, shuffled = (plan_dispatch(config, topk, mode=mode) for mode in modes)
        pairs = zip(plain, shuffled, strict=True)
        assert is_open == any((a.dst_buffer_slot_idx != b.dst_buffer_slot_idx).any() for a, b in pairs)


@given(exchange=exchanges(), seed=st.integers(0, 99))
def test_deterministic_mode_hides_the_shuffle(exchange, seed):
    """Payload and weights are those of the canonical order; Ascend's table of rows stays as it arrived."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    x = [random_bits(rng, (n, config.hidden), np.uint8) for n in topk.tokens_per_rank]
    plain, handles = dispatch(config, topk, x, mode=exchange.mode)
    mode = dataclasses.replace(exchange.mode, arrival_seed=seed, deterministic=True)
    sorted_results, sorted_handles = dispatch(config, topk, x, mode=mode)
    assert_equal(plain, sorted_results, strict_zero=True)
    for canonical, handle in zip(handles, sorted_handles, strict=True):
        by_gid = (
            [h.expanded_rows()[np.argsort(h.gids())] for h in (canonical, handle)] if mode.expand else [0, 0]
        )
        np.testing.assert_array_equal(by_gid[0], by_gid[1])
        assert handle.cached_recv_src_metadata_before_sort is not None


@given(exchange=exchanges(), seed=st.one_of(st.none(), st.integers(0, 9)))
def test_cached_equals_fresh_and_may_carry_another_dtype(exchange, seed):
    """Same places for new rows; without weights none come back; the handles stay as they were."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    mode = dataclasses.replace(exchange.mode, arrival_seed=seed)
    x = [random_bits(rng, (n, config.hidden), FP8) for n in topk.tokens_per_rank]
    other = [random_rows(rng, (n, config.hidden + 2)) for n in topk.tokens_per_rank]
    first, handles = dispatch(config, topk, x, mode=mode)
    metadata = [h.recv_src_metadata.copy() for h in handles]
    assert_equal(first, dispatch_cached(handles, x, topk_weights=topk.topk_weights), strict_zero=True)
    fresh, _ = dispatch(config, dataclasses.replace(topk, topk_weights=None), other, mode=mode)
    assert_equal(fresh, dispatch_cached(handles, other), strict_zero=True)
    assert all((m == h.recv_src_metadata).all() for m, h in zip(metadata, handles, strict=True))


@given(exchange=exchanges())
def test_threads_of_large_payloads_change_no_bit(exchange):
    rng = exchange.rng()
    x = [random_bits(rng, (n, exchange.config.hidden), BF16) for n in exchange.topk.tokens_per_rank]

    def received(large_bytes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("reference.deliver._LARGE_BYTES", large_bytes)
            return dispatch(exchange.config, exchange.topk, x, mode=exchange.mode)[0]

    assert_equal(received(2**62), received(0), strict_zero=True)


@given(exchange=exchanges())
def test_expanded_rows_fold_to_the_deduplicated_ones(exchange):
    """Every row of a token is the same bytes, and folding them by the table gives the other layout."""
    config, topk, rng = exchange.config, exchange.topk, exchange.rng()
    base = dataclasses.replace(exchange.mode, edition="nvidia-v2.5")
    x = [random_bits(rng, (n, config.hidden), np.uint16) for n in topk.tokens_per_rank]
    wide, handles = dispatch(config, topk, x, mode=dataclasses.replace(base, expand=True))
    narrow, _ = dispatch(config, topk, x, mode=dataclasses.replace(base, expand=False))
    for expanded, handle, row in zip(wide, handles, narrow, strict=True):
        places = handle.expanded_rows()
        for i, place in enumerate(places):
            copies = expanded.recv_x[place[place >= 0]]
            assert (copies == row.recv_x[i]).all()
            assert len(copies) == (row.recv_topk_idx[i] >= 0).sum()


@pytest.mark.parametrize(("edition", "pack", "step"), [("ascend", np.int16, 1), ("nvidia-v2", np.float32, 4)])
@pytest.mark.parametrize("column_major_input", [False, True])
def test_scales_in_both_orders(edition, pack, step, column_major_input):
    """Either order in, either order out, the same bytes; NVIDIA pads columns to 16 bytes, Ascend does not."""
    config, topk, x = small_exchange()
    rng = np.random.default_rng(1)
    scales = [random_bits(rng, (n, 3), pack) for n in topk.tokens_per_rank]
    given_scales = [np.asfortranarray(s) if column_major_input else s for s in scales]
    config = dataclasses.replace(config, expert_alignment=1)  # so that row counts are no multiple of 4
    mode = DispatchMode(edition=edition)
    rows, handles = dispatch(config, topk, x, scales=scales, mode=mode)
    assert any(handle.num_rows % 4 for handle in handles)
    columns, _ = dispatch(config, topk, x, scales=given_scales, mode=mode, column_major_scales=True)
    assert_equal(rows, columns, strict_zero=True)
    for row, column, handle in zip(rows, columns, handles, strict=True):
        width = np.dtype(pack).itemsize
        assert row.recv_scales.strides == (3 * width, width)
        assert column.recv_scales.strides == (width, -(-handle.num_rows // step) * step * width)


def test_padding_is_undefined_unless_zeroed_and_the_tail_always_is():
    """Gap rows are poison or exact zeros in payload, scales and weights; rows past the blocks are poison."""
    config, topk, x = small_exchange()
    scales = [np.ones((n, 2), np.int16) for n in topk.tokens_per_rank]
    for padding in (False, True):
        mode = DispatchMode(cpu_sync=False)
        results, handles = dispatch(config, topk, x, scales=scales, mode=mode, zero_padding=padding)
        for result, handle in zip(results, handles, strict=True):
            empty = handle.row_origins().gid < 0
            end = handle.block_starts()[-1]
            assert empty[end:].all()
            assert len(empty) > end > empty[:end].sum() > 0
            for array in (result.recv_x, result.recv_scales, result.recv_topk_weights):
                rows = array.reshape(len(array), -1)
                assert is_poisoned(rows[end:]).all()
                gap = rows[:end][empty[:end]]
                assert (gap.view(np.uint8) == 0).all() if padding else is_poisoned(gap).all()
                assert not is_poisoned(rows[:end][~empty[:end]]).any()


def test_worst_case_sizes():
    """Without CPU sync: R * M rows, al(R * M * min(K, L) + (A-1) * L, A) expanded ones, and an empty list."""
    config, topk, x = small_exchange()
    for expand in (True, False):
        mode = DispatchMode(edition="nvidia-v2", expand=expand, cpu_sync=False)
        results, handles = dispatch(config, topk, x, mode=mode)
        for result, handle in zip(results, handles, strict=True):
            assert handle.num_recv_tokens == 15
            assert handle.num_expanded_tokens == 36  # 15 * 2 + 3 * 2 = 36, a multiple of 4
            assert len(result.recv_x) == (36 if expand else 15)
            assert handle.num_recv_tokens_per_expert_list == ()
            tail = handle.recv_src_metadata[handle.num_real_recv_tokens :]
            assert (tail == poison_int(np.int32)).all()


def test_both_meanings_of_the_expert_psum():
    """Expanded: where real rows end. Deduplicated: where aligned blocks end. The counts are the same."""
    config, topk, _ = small_exchange()
    wide = plan_dispatch(config, topk, mode=DispatchMode(edition="nvidia-v2"))
    narrow = plan_dispatch(config, topk, mode=DispatchMode(edition="nvidia-v2", expand=False))
    for a, b in zip(wide, narrow, strict=True):
        counts = a.num_unaligned_recv_tokens_per_expert
        assert (counts == b.num_unaligned_recv_tokens_per_expert).all()
        assert (b.psum_num_recv_tokens_per_expert == a.block_starts()[1:]).all()
        assert (a.psum_num_recv_tokens_per_expert - a.block_starts()[:-1] == counts).all()
        assert a.num_recv_tokens_per_expert_list == b.num_recv_tokens_per_expert_list


def test_statistics_grow_by_unaligned_counts_and_the_callers_array_stays():
    """Two dispatches count twice; the input is not written to."""
    config, topk, x = small_exchange()
    start = [np.full(2, 7, np.int32) for _ in range(3)]
    once, handles = dispatch(config, topk, x, stats=start)
    twice, _ = dispatch(config, topk, x, stats=[r.cumulative_local_expert_recv_stats for r in once])
    for result, handle in zip(twice, handles, strict=True):
        want = 7 + 2 * handle.num_unaligned_recv_tokens_per_expert
        assert (result.cumulative_local_expert_recv_stats == want).all()
    assert all((s == 7).all() for s in start)


def test_expert_ids_name_the_block_of_each_row():
    """NVIDIA V2.5 can say which local expert a row is for, -1 in padding."""
    config, topk, x = small_exchange()
    results, handles = dispatch(
        config, topk, x, mode=DispatchMode(edition="nvidia-v2.5"), emit_expert_ids=True
    )
    for result, handle in zip(results, handles, strict=True):
        origins = handle.row_origins()
        for row, local in enumerate(result.recv_expert_ids):
            src, token = divmod(int(origins.gid[row]), 5)
            want = (
                topk.topk_idx[src][token, origins.k[row]] - 2 * handle.rank if origins.gid[row] >= 0 else -1
            )
            assert local == want


def test_weights_and_payload_keep_every_bit():
    """NaN payloads, infinities and negative zeros travel untouched."""
    config, topk, _ = small_exchange()
    rng = np.random.default_rng(5)
    floats = (BF16, FP8, ml_dtypes.float8_e8m0fnu, np.float32, np.float64)
    # Edition ascend takes of floats its own two only, and the bits of the others as integers.
    cases = [("nvidia-v2.5", dtype) for dtype in floats]
    cases += [("ascend", dtype) for dtype in (BF16, FP8, np.uint8, np.uint32, np.uint64)]
    for edition, dtype in cases:
        x = [random_bits(rng, (n, 4), dtype) for n in topk.tokens_per_rank]
        results, handles = dispatch(config, topk, x, mode=DispatchMode(edition=edition))
        for result, handle in zip(results, handles, strict=True):
            gid = handle.row_origins().gid
            for row in np.flatnonzero(gid >= 0):
                src, token = divmod(int(gid[row]), 5)
                assert result.recv_x[row].tobytes() == x[src][token].tobytes()
