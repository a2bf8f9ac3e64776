"""Handles: comparison, staleness, read-only arrays, groups of handles, what each edition says."""

import dataclasses

import numpy as np
import pytest

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.edition import ASCEND, EDITIONS, NVIDIA_V2, NVIDIA_V25, EditionError, find_edition
from reference.errors import ConfigError
from reference.handle import DispatchMode, StaleHandleError, check_group
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
from reference.topk import TopK
from tests.reference.exchange import random_topk, small_exchange


def plan(**mode):
    """Return the handles of the small exchange."""
    config, topk, _ = small_exchange()
    return plan_dispatch(config, topk, mode=DispatchMode(**mode))


def test_handles_of_equal_dispatches_are_equal():
    """Field by field, also without CPU sync, where most of the table is undefined."""
    for mode in ({}, {"cpu_sync": False}, {"edition": "nvidia-v2", "expand": False}):
        for a, b in zip(plan(**mode), plan(**mode), strict=True):
            assert a == b
            assert a.differences(b) == []
    assert plan()[0] != "a handle"


def test_undefined_parts_of_the_table_do_not_count():
    """Rows past the received ones, and the row columns of a deduplicated layout."""
    handle = plan(edition="nvidia-v2", expand=False, cpu_sync=False)[0]
    table = handle.recv_src_metadata.copy()
    table[handle.num_real_recv_tokens :] = 0
    table[:, 2:] = 0
    assert dataclasses.replace(handle, recv_src_metadata=table) == handle


@pytest.mark.parametrize(
    "name",
    [
        "psum_num_recv_tokens_per_rank",
        "psum_num_recv_tokens_per_expert",
        "num_unaligned_recv_tokens_per_expert",
        "recv_src_metadata",
        "dst_buffer_slot_idx",
        "dst_gsge_idx",
        "source_topk_idx",
    ],
)
def test_one_changed_entry_is_named(name):
    """Off by one in any array is that field's difference."""
    handle = plan()[0]
    changed = getattr(handle, name).copy()
    changed.flat[0] += 1
    assert handle.differences(dataclasses.replace(handle, **{name: changed})) == [name]


def test_one_changed_number_or_dtype_is_named():
    """Scalars, the list, and an array of another width."""
    handle = plan()[0]
    for name in ("num_recv_tokens", "num_expanded_tokens"):
        changed = dataclasses.replace(handle, **{name: getattr(handle, name) + 1})
        assert handle.differences(changed) == [name]
    shorter = dataclasses.replace(handle, num_recv_tokens_per_expert_list=())
    assert handle.differences(shorter) == ["num_recv_tokens_per_expert_list"]
    wide = dataclasses.replace(handle, dst_gsge_idx=handle.dst_gsge_idx.astype(np.int64))
    assert handle.differences(wide) == ["dst_gsge_idx"]


def test_arrays_are_read_only_and_the_callers_are_not():
    """A handle cannot be changed by accident; the routing still belongs to its maker."""
    config, topk, x = small_exchange()
    mine = [idx.copy() for idx in topk.topk_idx]
    _, handles = dispatch(config, TopK(num_experts=6, topk_idx=tuple(mine)), x)
    with pytest.raises(ValueError, match="read-only"):
        handles[0].recv_src_metadata[0, 0] = 1
    assert mine[0].flags.writeable


@pytest.mark.parametrize(
    ("mode", "is_stale"),
    [
        ({"edition": "ascend"}, True),
        ({"edition": "nvidia-v2.5"}, True),
        ({"edition": "nvidia-v2"}, False),
        ({"edition": "nvidia-v2", "copy_topk": True}, False),
    ],
)
def test_a_routing_written_to_after_dispatch(mode, is_stale):
    """V2.5 and Ascend notice; V2 does not, and only its copy keeps the old routing."""
    config, topk, x = small_exchange()
    mine = [idx.copy() for idx in topk.topk_idx]
    results, handles = dispatch(
        config, TopK(num_experts=6, topk_idx=tuple(mine)), x, mode=DispatchMode(**mode)
    )
    mine[0][0] = mine[0][0][::-1].copy()
    if is_stale:
        for call in (
            lambda: combine(handles, [r.recv_x for r in results], order=RANK_REDUCED),
            lambda: dispatch_cached(handles, x),
        ):
            with pytest.raises(StaleHandleError, match="handle of rank 0"):
                call()
    elif mode.get("copy_topk"):
        np.testing.assert_array_equal(handles[0].topk_idx, topk.topk_idx[0])
        combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)
    else:
        assert handles[0].topk_idx[0].tolist() == topk.topk_idx[0][0][::-1].tolist()


def test_a_routing_written_back_is_not_stale():
    """What counts is the content: an array that holds the old ids again combines as before."""
    config, topk, x = small_exchange()
    mine = [idx.copy() for idx in topk.topk_idx]
    results, handles = dispatch(config, TopK(num_experts=6, topk_idx=tuple(mine)), x)
    mine[0][0] = -1
    mine[0][...] = topk.topk_idx[0]
    combine(handles, [r.recv_x for r in results], order=RANK_REDUCED)


def test_groups_of_handles():
    """None, a missing rank, a wrong order, another group or another layout are refused."""
    handles = plan()
    other = plan(cpu_sync=False)
    config, topk, _ = small_exchange()
    config = dataclasses.replace(config, num_max_tokens_per_rank=6)
    larger = plan_dispatch(config, topk)
    with pytest.raises(ConfigError, match="one handle per rank"):
        check_group(())
    for group in (handles[:2], handles[::-1], (handles[0], handles[0], handles[2])):
        with pytest.raises(ConfigError, match=r"handles of ranks 0\.\.2, in that order"):
            check_group(group)
    for stranger in (other[1], larger[1]):
        with pytest.raises(ConfigError, match="the same group and layout as rank 0's"):
            check_group((handles[0], stranger, handles[2]))


def test_context_of_a_handle():
    """The names of the public handle."""
    handle = plan(num_aivs=16)[2]
    assert (handle.do_expand, handle.num_experts, handle.expert_alignment) == (True, 6, 4)
    assert (handle.num_max_tokens_per_rank, handle.num_sms, handle.rank) == (5, 8, 2)
    assert handle.num_rows == handle.num_expanded_tokens
    narrow = plan(edition="nvidia-v2", expand=False)[2]
    assert narrow.num_rows == narrow.num_recv_tokens
    assert narrow.dst_gsge_idx is None
    with pytest.raises(ConfigError, match="has no expanded rows"):
        narrow.expanded_rows()


def test_rows_per_scaleup_rank_sum_over_domains():
    """Group i of a hybrid dispatch holds the rows of all sources with place i in their domain."""
    config = EPConfig(ep_size=6, num_experts=12, num_topk=3, hidden=1, num_max_tokens_per_rank=4)
    topk = random_topk(config, np.random.default_rng(0), tokens=(4, 3, 2, 1, 0, 4))
    mode = DispatchMode(edition="nvidia-v2", num_scaleup_ranks=3)
    for handle in plan_dispatch(config, topk, mode=mode):
        places = handle.gids() // 4 % 3
        want = np.cumsum([(places == i).sum() for i in range(3)])
        np.testing.assert_array_equal(handle.psum_num_recv_tokens_per_scaleup_rank, want)
        # The table's second column names the place inside that group: each exactly once.
        slots = handle.recv_src_metadata[:, 1] // 3
        for place in range(3):
            mine = slots[places == place]
            assert sorted(mine) == list(range(len(mine)))


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize(
    ("edition", "scaleup"), [*((name, None) for name in EDITIONS), ("nvidia-v2.5", 2), ("nvidia-v2", 2)]
)
def test_slots_of_the_sender_are_rows_of_the_receiver(edition, scaleup, seed):
    """The slot at a master, from its region's start, is the row that the receiver's table gives the token."""
    config = EPConfig(ep_size=4, num_experts=8, num_topk=3, hidden=1, num_max_tokens_per_rank=6)
    topk = random_topk(config, np.random.default_rng(0), tokens=(6, 5, 0, 3), masked=0.2)
    mode = DispatchMode(edition=edition, num_scaleup_ranks=scaleup, arrival_seed=seed, num_aivs=2)
    handles = plan_dispatch(config, topk, mode=mode)
    width = scaleup or 4
    for handle in handles:
        for (token, k), slot in np.ndenumerate(handle.dst_buffer_slot_idx):
            if slot < 0:
                continue
            receiver = handles[topk.topk_idx[handle.rank][token, k] // 2]
            gid = 6 * handle.rank + token
            row = receiver.gids().tolist().index(gid)
            assert receiver.masters()[row] == k
            if width < 4:
                assert receiver.recv_src_metadata[row, 1] // 3 == slot
            else:
                first = np.append(0, receiver.psum_num_recv_tokens_per_rank)[handle.rank]
                assert row == first + slot - (6 * handle.rank if mode.rules.slot_has_rank else 0)


# --- editions --------------------------------------------------------------------------------------


def test_groups_of_the_combine_region():
    """Ascend groups by rank below K ranks only; NVIDIA at K ranks already (sections 3.4 of both)."""
    assert [ASCEND.groups_by_rank(r, 4) for r in (3, 4, 5)] == [True, False, False]
    assert [NVIDIA_V2.groups_by_rank(r, 4) for r in (3, 4, 5)] == [True, True, False]


def test_edition_tables():
    """What deepep-ascend.md section 2 tells apart."""
    assert [e.scale_pack_bytes for e in (ASCEND, NVIDIA_V25, NVIDIA_V2)] == [2, 4, 4]
    assert [e.metadata_order for e in (ASCEND, NVIDIA_V25)] == ["rows_first", "gid_first"]
    assert [e.checks_topk_version for e in (ASCEND, NVIDIA_V25, NVIDIA_V2)] == [True, True, False]
    assert [e.has_handle_copy for e in (ASCEND, NVIDIA_V25, NVIDIA_V2)] == [False, False, True]
    assert [e.psum_meaning(expand=x) for e in (ASCEND, NVIDIA_V2) for x in (True, False)] == [
        "row_ends",
        "block_ends",
    ] * 2
    assert find_edition("ascend") is ASCEND
    with pytest.raises(ConfigError, match="must be one of"):
        find_edition("amd")


def test_a_refusal_carries_its_edition_and_is_a_not_implemented_error():
    """Callers can tell "not in this edition" from "wrong value", and catch it as either."""
    with pytest.raises(NotImplementedError) as caught:
        DispatchMode(edition="ascend", expand=False)
    assert isinstance(caught.value, EditionError)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.edition, caught.value.field) == ("ascend", "expand")


@pytest.mark.parametrize("field", ["num_aivs", "num_scaleup_ranks"])
def test_counts_of_a_mode_start_at_one(field):
    """Zero cores or zero ranks are refused by name."""
    with pytest.raises(ConfigError, match=field):
        DispatchMode(edition="nvidia-v2", **{field: 0})
