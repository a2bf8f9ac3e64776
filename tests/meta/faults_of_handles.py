"""Faults in the handles of a dispatch, fresh or cached."""

from dataclasses import replace

import numpy as np

from tests.meta.faults import fault, padding_of, spoil_handle


@fault("handle")
def count_off_by_one(have, _call, _memory):
    return spoil_handle(have, "num_unaligned_recv_tokens_per_expert", lambda v, _: v + np.int32(1))


@fault("handle")
def list_without_alignment(have, _call, _memory):
    return spoil_handle(
        have,
        "num_recv_tokens_per_expert_list",
        lambda v, h: tuple(h.num_unaligned_recv_tokens_per_expert.tolist()) if v else v,
        applies=lambda h: len(padding_of(h)) > 0,
    )


@fault("handle")
def exact_count_without_cpu_sync(have, _call, _memory):
    return spoil_handle(have, "num_recv_tokens", lambda v, h: h.num_real_recv_tokens)


@fault("handle")
def psum_of_ranks_exclusive(have, _call, _memory):
    return spoil_handle(
        have,
        "psum_num_recv_tokens_per_rank",
        lambda v, _: np.append(np.int32(0), v[:-1]).astype(np.int32),
        applies=lambda h: h.num_real_recv_tokens > 0,
    )


@fault("handle")
def psum_of_experts_at_block_ends(have, _call, _memory):
    return spoil_handle(
        have,
        "psum_num_recv_tokens_per_expert",
        lambda v, h: h.block_starts()[1:].copy(),
        applies=lambda h: len(padding_of(h)) > 0,
    )


@fault("handle")
def psum_of_experts_off_by_one(have, _call, _memory):
    return spoil_handle(have, "psum_num_recv_tokens_per_expert", lambda v, _: v + np.int32(1))


def _table(have, change, least=1):
    return spoil_handle(have, "recv_src_metadata", change, applies=lambda h: h.num_real_recv_tokens >= least)


@fault("handle")
def source_of_a_row_wrong(have, _call, _memory):
    def move(table, handle):
        table[0, handle.config.num_topk] += 1
        return table

    return _table(have, move)


@fault("handle")
def source_repeated(have, _call, _memory):
    def repeat(table, handle):
        table[1, handle.config.num_topk] = table[0, handle.config.num_topk]
        return table

    return _table(have, repeat, least=2)


@fault("handle")
def master_is_the_lowest_column(have, _call, _memory):
    def lowest(table, handle):
        real = handle.num_real_recv_tokens
        table[:real, -1] = np.argmax(handle.expanded_rows() >= 0, axis=1)
        return table

    return _table(have, lowest)


@fault("handle")
def places_of_two_rows_swapped(have, _call, _memory):
    def exchange(table, handle):
        rows = table[: handle.num_real_recv_tokens, : handle.config.num_topk]
        at = np.argwhere(rows >= 0)
        if len(at) > 1:
            a, b = tuple(at[0]), tuple(at[-1])
            rows[a], rows[b] = rows[b], rows[a]
        return table

    return _table(have, exchange)


@fault("handle")
def rows_by_source_backwards(have, _call, _memory):
    def reverse(table, handle):
        real = handle.num_real_recv_tokens
        table[:real] = table[:real][::-1].copy()
        return table

    return _table(have, reverse, least=2)


@fault("handle")
def place_of_an_expert_that_is_elsewhere(have, _call, _memory):
    def invent(table, handle):
        rows = table[: handle.num_real_recv_tokens, : handle.config.num_topk]
        rows[rows < 0] = 0
        return table

    return _table(have, invent)


@fault("handle")
def send_slot_off_by_one(have, _call, _memory):
    return spoil_handle(have, "dst_buffer_slot_idx", lambda v, _: np.where(v >= 0, v + 1, v).astype(np.int32))


@fault("handle")
def send_slot_missing(have, _call, _memory):
    def drop(grid, _):
        grid[tuple(np.argwhere(grid >= 0)[-1])] = -1
        return grid

    return spoil_handle(
        have, "dst_buffer_slot_idx", drop, applies=lambda h: bool((h.dst_buffer_slot_idx >= 0).any())
    )


@fault("handle")
def gather_pair_of_a_local_row(have, _call, _memory):
    return spoil_handle(
        have, "dst_gsge_idx", lambda v, h: np.where(h.dst_buffer_slot_idx >= 0, abs(v), v).astype(np.int32)
    )


# --- cached ----------------------------------------------------------------------------------------------


@fault("cached")
def cached_dispatch_changes_its_handle(have, _call, _memory):
    return _table(have, lambda table, _: table[::-1].copy(), least=2)


@fault("cached")
def cached_dispatch_counts_stats_anew(have, _call, _memory):
    return spoil_handle(have, "num_unaligned_recv_tokens_per_expert", lambda v, _: v * 0 - 1)


@fault("cached")
def cached_dispatch_keeps_old_weights(have, _call, memory):
    old = memory["first"].received
    if have.received[0].recv_topk_weights is None or old[0].recv_topk_weights is None:
        return have
    pairs = zip(have.received, old, strict=True)
    return replace(have, received=tuple(replace(r, recv_topk_weights=o.recv_topk_weights) for r, o in pairs))
