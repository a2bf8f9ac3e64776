"""The reference as a backend with one planted fault: what goes wrong in kernels, in a few lines each.

A fault gets what the reference gave and returns what a broken machine would give. One that finds nothing to
spoil, such as no second row to swap with, leaves all as it is.
"""

from dataclasses import dataclass, replace

import numpy as np

from epsim.conform.backends.reference import ReferenceBackend, ReferenceSession
from reference.definition_combine import columns_by_rank, rows_by_choice, sum_rows
from reference.formats.dtypes import is_nan, widen
from reference.poison import poison

FAULTS = {}
"""Name -> (stage, function)."""


def fault(stage):
    """Register a function under its own name: stage received, handle, cached, combined, or session."""

    def register(function):
        FAULTS[function.__name__] = stage, function
        return function

    return register


# --- helpers ---------------------------------------------------------------------------------------------


def spoil_rows(have, field, change, *, least=1, only=lambda handle, result: True):
    """Apply change(array, real rows) to a copy of `field` at the first rank that has enough real rows."""
    for rank, (handle, result) in enumerate(zip(have.handles, have.received, strict=True)):
        real = np.flatnonzero(handle.row_origins().gid >= 0)
        array = getattr(result, field)
        if array is None or len(real) < least or not only(handle, result):
            continue
        copy = array.copy(order="K")
        change(copy, real)
        received = list(have.received)
        received[rank] = replace(result, **{field: copy})
        return replace(have, received=tuple(received))
    return have


def spoil_handle(have, field, change, *, applies=lambda handle: True):
    """Apply value = change(copy of the value, handle) at the first rank where it applies."""
    for rank, handle in enumerate(have.handles):
        if not applies(handle):
            continue
        value = getattr(handle, field)
        handles = list(have.handles)
        new = change(value.copy() if isinstance(value, np.ndarray) else value, handle)
        handles[rank] = replace(handle, **{field: new})
        return replace(have, handles=tuple(handles))
    return have


def swap(rows, one, other):
    """Exchange two rows of anything in place."""
    raw = rows if rows.ndim == 1 else rows.view(np.uint8)
    raw[[one, other]] = raw[[other, one]]


def of_other_token(handle, real):
    """Return a real row of another token than the first, None = there is none."""
    gid = handle.row_origins().gid[real]
    others = real[gid != gid[0]]
    return int(others[0]) if len(others) else None


def spoil_two_tokens(have, change):
    """Apply change(recv_x, row, row of another token)."""
    return spoil_rows(
        have,
        "recv_x",
        lambda x, real: change(x, int(real[0]), _OTHER[0]),
        only=lambda handle, _: _find_other(handle),
    )


_OTHER = [0]


def _find_other(handle):
    real = np.flatnonzero(handle.row_origins().gid >= 0)
    found = of_other_token(handle, real) if len(real) else None
    _OTHER[0] = found
    return found is not None


def spoil_elements(have, mask):
    """Zero the elements of recv_x that mask(values) picks, in every rank."""
    received = []
    for result in have.received:
        x = result.recv_x.copy()
        x[mask(x)] = 0
        received.append(replace(result, recv_x=x))
    return replace(have, received=tuple(received))


# --- rows ------------------------------------------------------------------------------------------------


@fault("received")
def row_lost(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: poison(x[real[-1]]))


@fault("received")
def row_of_zeros(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: x[real[-1]].view(np.uint8).fill(0))


@fault("received")
def row_doubled(have, _call, _memory):
    return spoil_two_tokens(have, lambda x, a, b: np.copyto(x[b], x[a]))


@fault("received")
def rows_swapped(have, _call, _memory):
    return spoil_two_tokens(have, swap)


@fault("received")
def column_swapped_between_tokens(have, _call, _memory):
    """Hidden by a comparison that sorts columns."""
    return spoil_two_tokens(have, lambda x, a, b: swap(x.view(np.uint8)[:, -1], a, b))


@fault("received")
def stale_row_of_the_call_before(have, _call, memory):
    before = memory.get("x")
    memory["x"] = [r.recv_x.copy() for r in have.received]
    if before is None or [b.shape for b in before] != [r.recv_x.shape for r in have.received]:
        return have
    if before[0].dtype != have.received[0].recv_x.dtype:
        return have
    old = [b for b, r in zip(before, have.received, strict=True) if len(r.recv_x)]
    return spoil_rows(have, "recv_x", lambda x, real: np.copyto(x[real[0]], old[0][real[0]])) if old else have


@fault("received")
def one_bit_of_one_element(have, _call, _memory):
    def flip(x, real):
        x.view(np.uint8)[real[0], -2] ^= 1

    return spoil_rows(have, "recv_x", flip)


@fault("received")
def columns_shifted_by_one(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: np.copyto(x[real[0]], np.roll(x[real[0]], 1)))


@fault("received")
def second_half_of_a_row_missing(have, _call, _memory):
    return spoil_rows(have, "recv_x", lambda x, real: x[real[0], x.shape[1] // 2 :].view(np.uint8).fill(0))


@fault("received")
def nan_dropped(have, _call, _memory):
    return spoil_elements(have, is_nan)


@fault("received")
def minus_zero_lost(have, _call, _memory):
    return spoil_elements(have, lambda x: (widen(x) == 0) & np.signbit(widen(x)))


@fault("received")
def denormals_flushed(have, _call, _memory):
    least = {2: 2.0**-126, 1: 2.0**-6}
    return spoil_elements(have, lambda x: (widen(x) != 0) & (abs(widen(x)) < least[x.dtype.itemsize]))


@fault("received")
def weights_shifted(have, _call, _memory):
    def shift(w, real):
        w[real] = np.roll(w[real], 1, axis=0)

    return spoil_rows(have, "recv_topk_weights", shift, least=2)


@fault("received")
def weights_absent(have, _call, _memory):
    return replace(have, received=tuple(replace(r, recv_topk_weights=None) for r in have.received))


@fault("received")
def scale_rows_shifted(have, _call, _memory):
    def shift(scales, real):
        scales[real] = np.roll(scales[real], 1, axis=0)

    return spoil_rows(have, "recv_scales", shift, least=2, only=lambda handle, _: _find_other(handle))


@fault("received")
def scales_in_the_other_memory_order(have, _call, _memory):
    def turned(s):
        return None if s is None else np.ascontiguousarray(s) if s.strides[0] == 2 else np.asfortranarray(s)

    return replace(have, received=tuple(replace(r, recv_scales=turned(r.recv_scales)) for r in have.received))


def _padding(handle):
    gid = handle.row_origins().gid
    return np.flatnonzero(gid[: handle.block_starts()[-1]] < 0)


@fault("received")
def padding_of_rows_unset(have, call, _memory):
    return _unset_padding(have, call, "recv_x")


@fault("received")
def padding_of_weights_unset(have, call, _memory):
    return _unset_padding(have, call, "recv_topk_weights")


def _unset_padding(have, call, field):
    if not call.zero_padding or getattr(have.received[0], field) is None:
        return have
    received = []
    for handle, result in zip(have.handles, have.received, strict=True):
        array = getattr(result, field).copy()
        array[_padding(handle)] = 1
        received.append(replace(result, **{field: array}))
    return replace(have, received=tuple(received))


def _stats(have, change):
    name = "cumulative_local_expert_recv_stats"
    if getattr(have.received[0], name) is None:
        return have
    pairs = zip(have.handles, have.received, strict=True)
    return replace(have, received=tuple(replace(r, **{name: change(h, getattr(r, name))}) for h, r in pairs))


@fault("received")
def stats_overwritten(have, _call, _memory):
    return _stats(have, lambda handle, stats: handle.num_unaligned_recv_tokens_per_expert.copy())


@fault("received")
def stats_of_aligned_counts(have, _call, _memory):
    return _stats(
        have,
        lambda h, stats: (
            stats - h.num_unaligned_recv_tokens_per_expert + np.diff(h.block_starts()).astype(np.int32)
        ),
    )


@fault("received")
def a_rank_without_results(have, _call, _memory):
    return replace(have, received=have.received[:-1])


# --- handles ---------------------------------------------------------------------------------------------


@fault("handle")
def count_off_by_one(have, _call, _memory):
    return spoil_handle(have, "num_unaligned_recv_tokens_per_expert", lambda v, _: v + np.int32(1))


@fault("handle")
def list_without_alignment(have, _call, _memory):
    return spoil_handle(
        have,
        "num_recv_tokens_per_expert_list",
        lambda v, h: tuple(h.num_unaligned_recv_tokens_per_expert.tolist()) if v else v,
        applies=lambda h: len(_padding(h)) > 0,
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
        applies=lambda h: len(_padding(h)) > 0,
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


# --- combine ---------------------------------------------------------------------------------------------


def own_sums(before, call, *, in_rank=True, order=sorted, dropped=(), rounded=False, bias_last=False):
    """Return combined_x per rank, summed with another recipe than the right one."""
    where = rows_by_choice(before.handles)
    sums = []
    for handle in before.handles:
        x = np.zeros((len(handle.topk_idx), call.y[0].shape[1]), call.y[0].dtype)
        for token, choices in enumerate(handle.topk_idx.tolist()):
            groups = columns_by_rank(handle.config, choices)
            terms = {}
            for rank, columns in groups.items():
                rows = {k: call.y[rank][where[handle.rank, token, k, rank]] for k in columns}
                rows = {k: rows[k] for k in order(rows) if k not in dropped}
                if not rows:
                    continue
                if in_rank:
                    terms[columns[-1]] = _total(list(rows.values()), [], rounded)
                else:
                    terms |= rows
            bias = [b[handle.rank][token] for b in call.bias]
            ordered = [terms[k] for k in order(terms)]
            x[token] = _total(ordered + bias, [], False) if bias_last else _total(ordered, bias, False)
        sums.append(x)
    return sums


def _total(rows, bias, rounded):
    hidden = len((rows + bias)[0]) if rows or bias else 0
    if not rounded or len(rows) < 3:
        return sum_rows(rows, bias, hidden, "first_row") if hidden else np.float32(0)
    total = rows[0]
    for row in rows[1:]:
        total = sum_rows([total, row], [], hidden, "first_row")
    return total


def with_sums(results, sums):
    return tuple(replace(r, combined_x=x) for r, x in zip(results, sums, strict=True))


@fault("combined")
def sum_in_descending_order(results, before, call):
    return with_sums(results, own_sums(before, call, order=lambda keys: sorted(keys, reverse=True)))


@fault("combined")
def rounding_per_rank_missing(results, before, call):
    return with_sums(results, own_sums(before, call, in_rank=False))


@fault("combined")
def rounding_after_every_addition(results, before, call):
    return with_sums(results, own_sums(before, call, rounded=True))


@fault("combined")
def bias_added_last(results, before, call):
    return with_sums(results, own_sums(before, call, bias_last=True)) if call.bias else results


@fault("combined")
def column_zero_dropped(results, before, call):
    return with_sums(results, own_sums(before, call, dropped=(0,)))


@fault("combined")
def bias_twice(results, before, call):
    if len(call.bias) != 1:
        return results
    return with_sums(results, own_sums(before, replace(call, bias=call.bias * 2)))


@fault("combined")
def second_bias_forgotten(results, before, call):
    return with_sums(results, own_sums(before, replace(call, bias=call.bias[:1])))


@fault("combined")
def home_tokens_swapped(results, _before, _call):
    for rank, result in enumerate(results):
        if len(result.combined_x) > 1:
            x = result.combined_x.copy()
            swap(x, 0, 1)
            return (*results[:rank], replace(result, combined_x=x), *results[rank + 1 :])
    return results


@fault("combined")
def masked_token_undefined(results, before, call):
    """Rows of tokens without an expert are never written."""
    spoilt = []
    for handle, result in zip(before.handles, results, strict=True):
        x = result.combined_x.copy()
        x[(handle.topk_idx < 0).all(axis=1)] = 7
        spoilt.append(x)
    return with_sums(results, spoilt)


@fault("combined")
def combined_weight_of_the_neighbour(results, _before, _call):
    if results[0].combined_topk_weights is None:
        return results
    turned = [np.roll(r.combined_topk_weights, 1, axis=1) for r in results]
    pairs = zip(results, turned, strict=True)
    return tuple(replace(r, combined_topk_weights=w) for r, w in pairs)


@fault("combined")
def combined_weight_of_a_mask_not_zero(results, before, _call):
    if results[0].combined_topk_weights is None:
        return results
    spoilt = [
        np.where(h.topk_idx < 0, np.float32(1), r.combined_topk_weights)
        for h, r in zip(before.handles, results, strict=True)
    ]
    return tuple(replace(r, combined_topk_weights=w) for r, w in zip(results, spoilt, strict=True))


# --- the whole session -----------------------------------------------------------------------------------


@fault("session")
def combine_uses_the_latest_handle(session):
    right = session.inner.combine
    session.inner.combine = lambda before, call: right(session.memory["latest"], call)


@fault("session")
def cached_dispatch_uses_the_latest_handle(session):
    right = session.inner.dispatch_cached
    session.inner.dispatch_cached = lambda before, call: right(session.memory["latest"], call)


@fault("session")
def results_live_in_the_buffer(session):
    """Let the next call overwrite what the last one returned."""
    right = session.inner.dispatch_cached

    def cached(before, call):
        have = right(before, call)
        for result, old in zip(have.received, session.memory["latest"].received, strict=True):
            raw = old.recv_x.reshape(-1).view(np.uint8)
            new = result.recv_x.reshape(-1).view(np.uint8)
            raw[: len(new)] = new[: len(raw)]
        return have

    session.inner.dispatch_cached = cached


@fault("session")
def input_is_scratch(session):
    right = session.inner.combine

    def spoil(before, call):
        results = right(before, call)
        for rows in call.y:
            if rows.size:
                rows[0] = 0
        return results

    session.inner.combine = spoil


@fault("session")
def rank_without_tokens_crashes(session):
    right = session.inner.dispatch

    def crash(call):
        if 0 in call.topk.tokens_per_rank:
            raise ZeroDivisionError("tokens per core")
        return right(call)

    session.inner.dispatch = crash


class _Inner(ReferenceSession):
    """A session whose methods a fault may replace."""


@dataclass(frozen=True, kw_only=True)
class FaultyBackend(ReferenceBackend):
    """The reference with one fault."""

    fault: str = ""

    def open(self, spec, schedule):
        return FaultySession(self, spec, schedule)


class FaultySession:
    """A session of the reference; what comes out goes through the fault."""

    def __init__(self, backend, spec, schedule):
        """Open the right one."""
        self.inner = _Inner(backend.edition, spec, schedule)
        self.stage, self.function = FAULTS.get(backend.fault, ("none", None))
        self.memory = {}
        if self.stage == "session":
            self.function(self)

    def dispatch(self, call):
        have = self.inner.dispatch(call)
        self.memory["latest"] = have
        self.memory.setdefault("first", have)
        return self.function(have, call, self.memory) if self.stage in ("received", "handle") else have

    def dispatch_cached(self, before, call):
        have = self.inner.dispatch_cached(before, call)
        return self.function(have, call, self.memory) if self.stage in ("received", "cached") else have

    def combine(self, before, call):
        results = self.inner.combine(before, call)
        return self.function(results, before, call) if self.stage == "combined" else results

    def close(self):
        pass
