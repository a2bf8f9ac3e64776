"""Lays what the EP kernels wrote beside the definition of dispatch and combine, and beside the byte layouts.

Atomics leave the order of rows open among the tokens of one AIV; rows are matched by (source rank, token).
"""

from contextlib import contextmanager

import ml_dtypes
import numpy as np

from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.handle import DispatchMode
from reference.memory import descriptor
from reference.memory.descriptor import JETTY_INFO, Peer, Sge
from reference.memory.layout import combine_group, combine_record_idx, metadata_image, receive_offset
from reference.memory.sizes import align, ascend_scale_packs, element_bytes
from reference.memory.workspace import EP_WORKSPACE, WORKSPACE_BYTES, workspace_field
from tests.native.epkit import Case

BF16 = ml_dtypes.bfloat16


def read_handle(group, rank, done):
    """Return the handle's arrays of a rank."""
    case, config, read = group.case, group.config, group.machine.read
    tokens, topk = len(case.topk.topk_idx[rank]), config.num_topk
    found = {
        "slots": read(done.handle["dst_buffer_slot_idx"], (tokens, topk), "<i4"),
        "pairs": read(done.handle["dst_gsge_idx"], (tokens, topk), "<i4"),
        "psum_rank": read(done.handle["psum_rank"], group.num_ranks, "<i4"),
        "psum_expert": read(done.handle["psum_expert"], group.num_local, "<i4"),
        "num_unaligned": read(done.handle["num_unaligned"], group.num_local, "<i4"),
    }
    found["metadata"] = read(done.handle["recv_src_metadata"], (found["psum_rank"][-1], topk + 2), "<i4")
    return found


def definition(case: Case):
    """Return (results, handles) of the plain definition for a payload of row numbers."""
    rows = [np.arange(len(idx), dtype=np.int64)[:, None] for idx in case.topk.topk_idx]
    mode = DispatchMode(num_aivs=case.num_aivs)
    return define_dispatch(case.config, case.topk, rows, mode=mode)


def check_handle(group, rank, found, handle) -> None:
    """Compare a handle up to what atomics leave open."""
    np.testing.assert_array_equal(found["psum_rank"], handle.psum_num_recv_tokens_per_rank)
    np.testing.assert_array_equal(found["psum_expert"], handle.psum_num_recv_tokens_per_expert)
    np.testing.assert_array_equal(found["num_unaligned"], handle.num_unaligned_recv_tokens_per_expert)
    check_slots(group, rank, found, handle)
    check_stream(group, found["metadata"], handle.recv_src_metadata)
    check_expanded(group, rank, found["metadata"], handle.block_starts())


def check_slots(group, rank, found, handle) -> None:
    """Compare slots and gather pairs: same places, and per (target, AIV) the same numbers in any order."""
    wanted = {"slots": handle.dst_buffer_slot_idx, "pairs": handle.dst_gsge_idx}
    for name, want in wanted.items():
        np.testing.assert_array_equal(found[name] >= 0, want >= 0)
    share = -(-group.config.num_max_tokens_per_rank // group.case.num_aivs)
    aiv = np.arange(len(handle.topk_idx))[:, None] // share
    key = np.where(wanted["slots"] >= 0, aiv * group.num_ranks + handle.topk_idx // group.num_local, -1)
    for part in np.unique(key[key >= 0]).tolist():
        at, is_remote = key == part, part % group.num_ranks != rank
        for name, want in wanted.items():
            got, ref = np.sort(found[name][at]), np.sort(want[at])
            if name == "pairs" and group.case.switches.get("rotate_by_aiv"):
                got, ref = got - got[0], ref - ref[0]
            np.testing.assert_array_equal(got, ref, err_msg=f"{name} of rank {rank}, part {part}")
        if is_remote:
            assert len(np.unique(found["pairs"][at] - found["slots"][at])) == 1


def check_stream(group, got, want) -> None:
    """Compare lines of metadata: the same records per (source, AIV); rows at the same columns."""
    topk, tokens = group.config.num_topk, group.config.num_max_tokens_per_rank
    share = -(-tokens // group.case.num_aivs)
    parts = [lines[:, topk] // tokens * tokens + lines[:, topk] % tokens // share for lines in (got, want)]
    np.testing.assert_array_equal(*parts)
    got, want = (lines[np.argsort(lines[:, topk])] for lines in (got, want))
    np.testing.assert_array_equal(got[:, topk:], want[:, topk:])
    np.testing.assert_array_equal(got[:, :topk] >= 0, want[:, :topk] >= 0)


def check_expanded(group, rank, metadata, block_starts) -> None:
    """Compare rows: those of an expert stand in its block, in the order of the stream."""
    topk, tokens = group.config.num_topk, group.config.num_max_tokens_per_rank
    free = block_starts.tolist()
    for line in metadata.tolist():
        src, token = divmod(line[topk], tokens)
        for k in range(topk):
            if line[k] >= 0:
                expert = int(group.case.topk.topk_idx[src][token, k]) - rank * group.num_local
                assert line[k] == free[expert]
                free[expert] += 1


def check_counts(group, rank, done, found, handle, stats) -> None:
    """Compare the cumulative counts, and with CPU sync the words that the host reads."""
    num_ranks, num_local = group.num_ranks, group.num_local
    total = group.machine.read(done.handle["stats"], num_local, "<i4")
    np.testing.assert_array_equal(total, stats + found["num_unaligned"])
    words = workspace_field("host_rank_expert_count").of(
        group.machine.read(group.hosts[rank], WORKSPACE_BYTES, np.uint8)
    )
    wanted = np.zeros_like(words)
    if group.case.cpu_sync:
        wanted[:num_ranks] = (num_ranks << 24) + np.diff(found["psum_rank"], prepend=0)
        wanted[256 : 256 + num_local] = (num_ranks << 24) + np.array(handle.num_recv_tokens_per_expert_list)
    np.testing.assert_array_equal(words, wanted)


def check_rows(group, rank, done, found, payloads, dtype, weights, *, pad_to=None) -> None:
    """Compare received rows, byte by byte, with what their source had; gaps with zero."""
    config, read = group.config, group.machine.read
    topk, tokens = config.num_topk, config.num_max_tokens_per_rank
    width, packs = config.hidden * element_bytes(dtype), ascend_scale_packs(config.hidden, dtype)
    x = read(done.outputs["recv_x"], (done.num_rows, width), np.uint8)
    scales = read(done.outputs["recv_scales"], (done.num_rows, packs), "<u2") if packs else None
    got_weights = read(done.outputs["recv_weights"], done.num_rows, "<u4") if weights is not None else None
    metadata = found["metadata"]
    for i, k in zip(*np.nonzero(metadata[:, :topk] >= 0), strict=True):
        row, (src, token) = metadata[i, k], divmod(metadata[i, topk], tokens)
        assert bytes(x[row]) == payloads[src][0][token].tobytes(), (rank, row, src, token)
        if scales is not None:
            assert bytes(scales[row]) == payloads[src][1][token].tobytes()
        if got_weights is not None:
            assert got_weights[row] == weights[src].view(np.uint32)[token, k]
    if not group.case.zero_padding:
        return
    ends = found["psum_expert"]
    for end in ends.tolist():
        gap = slice(end, align(end, config.expert_alignment))
        assert not x[gap].any()
        assert scales is None or not scales[gap].any()
        assert got_weights is None or not got_weights[gap].any()


def check_region(group, founds, payloads, weights) -> None:
    """Compare the receive region record by record: every field of what each source sent to each rank."""
    case, config, record = group.case, group.config, group.record
    tokens = config.num_max_tokens_per_rank
    for dst, window in enumerate(group.windows):
        num_records = group.num_ranks * tokens
        region = group.machine.read(window + WORKSPACE_BYTES, (num_records, record.num_bytes), np.uint8)
        for src in range(group.num_ranks):
            at = (founds[src]["slots"] >= 0) & (case.topk.topk_idx[src] // group.num_local == dst)
            token, k = np.nonzero(at)
            found = record.unpack(region[src * tokens + founds[src]["slots"][token, k]])
            want = {"hidden": payloads[src][0][token], "topk_idx": case.topk.topk_idx[src][token],
                    "gid": src * tokens + token[:, None]}  # fmt: skip
            if payloads[src][1] is not None:
                want["scales"] = payloads[src][1][token]
            if weights is not None:
                want["topk_weights"] = weights[src][token]
            for name, values in want.items():
                got = np.ascontiguousarray(found[name])
                view = got.view(np.uint8) if name == "hidden" else got
                np.testing.assert_array_equal(view, values, err_msg=f"{name} of rank {src} at rank {dst}")


def check_counters(group, founds) -> None:
    """Compare the epilogue's counter rows: how many rows of each expert the AIVs before have."""
    num_aivs, topk = group.case.num_aivs, group.config.num_topk
    for rank, window in enumerate(group.windows):
        memory = group.machine.read(window, WORKSPACE_BYTES, np.uint8)
        counters = workspace_field("epilogue_expert_counter").of(memory)[: num_aivs * group.num_local]
        rows = founds[rank]["metadata"][:, :topk]
        share = -(-len(rows) // num_aivs)
        ends = founds[rank]["psum_expert"]
        for aiv in range(num_aivs):
            before = rows[: aiv * share]
            before = before[before >= 0]
            counts = np.bincount(np.searchsorted(ends, before, side="right"), minlength=group.num_local)
            got = counters[aiv * group.num_local : (aiv + 1) * group.num_local]
            np.testing.assert_array_equal(got, counts, err_msg=f"rank {rank}, AIV {aiv}")


def check_workspace(group) -> None:
    """All words that a call clears are clear, and the barrier is in step."""
    counters = set()
    for rank, window in enumerate(group.windows):
        memory = group.machine.read(window, WORKSPACE_BYTES, np.uint8)
        fields = {f.name: f.of(memory) for f in EP_WORKSPACE}
        for name in ("local_expert_histogram", "remote_expert_histogram", "local_rank_histogram",
                     "remote_rank_histogram", "host_rank_expert_count", "grid_sync_count"):  # fmt: skip
            assert not fields[name].any(), (rank, name)
        passed = int(fields["barrier_counter"].reshape(-1)[0])
        counters.add(passed)
        up = [group.num_ranks * ((passed + 1 - phase) // 2 % 2) for phase in (0, 1)]
        assert fields["barrier_signals"].tolist() == up, (rank, passed)
    assert len(counters) == 1


def check_combined(group, dispatched, founds, handles, y, outputs, weights, biases, order) -> None:
    """Compare combine bit by bit with the definition, whose rows are in another order."""
    config, read, topk = group.config, group.machine.read, group.config.num_topk
    moved, moved_weights = [], []
    for rank, handle in enumerate(handles):
        got, want = founds[rank]["metadata"], handle.recv_src_metadata
        got, want = got[np.argsort(got[:, topk])][:, :topk], want[np.argsort(want[:, topk])][:, :topk]
        rows = np.zeros((handle.num_rows, config.hidden), BF16)
        rows[want[want >= 0]] = y[rank][got[got >= 0]]
        moved.append(rows)
        if weights is not None:
            column = np.zeros(handle.num_rows, np.float32)
            column[want[want >= 0]] = weights[rank][got[got >= 0]]
            moved_weights.append(column)
    wanted = define_combine(
        handles, moved, order=order, topk_weights=moved_weights if weights is not None else None, bias=biases
    )
    for rank, want in enumerate(wanted):
        tokens = len(group.case.topk.topk_idx[rank])
        x = read(outputs[rank]["combined_x"], (tokens, config.hidden), "<u2")
        np.testing.assert_array_equal(x, want.combined_x.view(np.uint16), err_msg=f"rank {rank}")
        if weights is not None:
            got = read(outputs[rank]["combined_weights"], (tokens, topk), "<u4")
            np.testing.assert_array_equal(got, want.combined_topk_weights.view(np.uint32))


# --- requests -----------------------------------------------------------------------------------------------


def jetties(group, rank):
    """Return the jetties of a rank, heads included, [C] of JETTY_INFO."""
    read = group.machine.read
    table = read(group.machine.find(rank, "jetty_table"), group.case.num_aivs, "<u8")
    infos = np.concatenate([read(int(address), 1, JETTY_INFO) for address in table])
    for info in infos:
        info["wqebb_head"], info["num_expected_completions"] = read(int(info["sq_head_address"]), 2, "<u4")
    return infos


def peer_of(group, rank, other):
    """Return what the device table of a rank says of another."""
    table = group.machine.read(group.machine.find(rank, "peer_table"), group.num_ranks - 1, "<u8")
    first, *eid, token_value, base, size = group.machine.read(
        int(table[other - (other > rank)]), 6, "<u8"
    ).tolist()
    bits = descriptor.unpack_bits(descriptor.PEER_BITS, first)
    ids = {name: bits[name] for name in ("tp_id", "token_id")}
    return Peer(**ids, eid=tuple(eid), token_value=token_value, window_base=base, window_bytes=size)


def compare_ring(group, before, after, wanted) -> None:
    """Compare what a call wrote into a ring with [blocks * 64] bytes; it asks for one completion or none."""
    start = int(before["wqebb_head"])
    num_blocks = (int(after["wqebb_head"]) - start) % 2**32
    ring = group.machine.read(int(after["sq_base"]), (group.case.sq_depth, 64), np.uint8)
    found = ring[(start + np.arange(num_blocks)) % group.case.sq_depth].reshape(-1).view("<u8")
    np.testing.assert_array_equal(found, np.concatenate([*wanted, np.empty(0, np.uint8)]).view("<u8"))
    asked = int(after["num_expected_completions"]) - int(before["num_expected_completions"])
    assert asked == bool(wanted)


def piece(base, row, num_bytes):
    """Return the gather element of a row of a dense array."""
    return Sge(address=base + row * num_bytes, num_bytes=num_bytes)


def dispatch_requests(group, rank, aiv, found):
    """Return the requests of an AIV as the handle tells them: lists of (token, column), six at most."""
    share = -(-group.config.num_max_tokens_per_rank // group.case.num_aivs)
    pairs = found["pairs"][aiv * share : (aiv + 1) * share]
    token, k = np.nonzero(pairs >= 0)
    requests: dict[int, list[tuple[int, int]]] = {}
    for pair, t, column in sorted(zip(pairs[token, k], token, k, strict=True)):
        requests.setdefault(int(pair) // 6, []).append((int(t) + aiv * share, int(column)))
    assert sorted(requests) == list(range(len(requests)))
    return [requests[number] for number in range(len(requests))]


def check_dispatch_requests(group, rank, done, found, before, *, fresh=True) -> None:
    """Compare every word that a dispatch wrote into the send queues of a rank since `before` (`jetties`)."""
    record, capacity = group.dispatch_record(done.dtype, fresh=fresh), group.config.num_max_tokens_per_rank
    image = metadata_image(record).num_bytes
    payload = record.num_bytes - image
    x, images = done.fields["x"], done.fields["metadata_image"]
    for aiv, after in enumerate(jetties(group, rank)):
        requests, wanted = dispatch_requests(group, rank, aiv, found), []
        head = int(before[aiv]["wqebb_head"])
        for number, entries in enumerate(requests):
            target = int(group.case.topk.topk_idx[rank][entries[0]]) // group.num_local
            slot, peer = int(found["slots"][entries[0]]), peer_of(group, rank, target)
            place = receive_offset(
                record, src_rank=rank, slot=slot, ep_size=group.num_ranks, num_max_tokens_per_rank=capacity
            )
            pieces = [
                (piece(x, t, payload), piece(images, t, image))
                for t, _ in entries
            ]  # fmt: skip
            remote, is_last = peer.window_base + WORKSPACE_BYTES + place, number + 1 == len(requests)
            with ring_depth(group):
                blocks = descriptor.dispatch_blocks(head + 4 * number, peer, remote, pieces, is_last=is_last)
            wanted.append(blocks)
        compare_ring(group, before[aiv], after, wanted)


def combine_tasks(group, rank, aiv, found):
    """Return (home rank, stream position) of what an AIV sends, in order: eight of a home rank at a time."""
    num_aivs, num_ranks = group.case.num_aivs, group.num_ranks
    starts = np.append(0, found["psum_rank"]).tolist()
    turn = -(-num_aivs // num_ranks)
    order = [(rank + aiv + 1 + i) % num_ranks for i in range(num_ranks)]
    mine = {q: range(starts[q] + (aiv + q * turn) % num_aivs, starts[q + 1], num_aivs) for q in order}
    rounds = max(len(m) for m in mine.values()) // 8 + 1
    return [
        (q, i) for n in range(rounds) for q in order if q != rank for i in mine[q][8 * n : 8 * n + 8]
    ]  # fmt: skip


def sent_rows(group, rank, fields, line, position):
    """Return (group, address of the row) of each request of a received record."""
    config, topk = group.config, group.config.num_topk
    rows = [(k, int(row)) for k, row in enumerate(line[:topk]) if row >= 0]
    row_bytes = 2 * config.hidden
    if group.case.switches.get("single_reduction"):
        return [(k, fields["x"] + row * row_bytes) for k, row in rows]
    number = combine_group(
        contributor_rank=rank, master_topk=rows[-1][0], ep_size=group.num_ranks, num_topk=topk
    )
    summed = fields["send_buffer"] + position * group.back.num_bytes
    return [(number, summed if len(rows) > 1 else fields["x"] + rows[0][1] * row_bytes)]


def check_combine_requests(group, rank, fields, found, before) -> None:
    """Compare every word that a combine wrote into the send queues of a rank, in the order of its tasks."""
    config, topk = group.config, group.config.num_topk
    row_bytes, record_bytes = 2 * config.hidden, group.back.num_bytes
    for aiv, after in enumerate(jetties(group, rank)):
        head, wanted = int(before[aiv]["wqebb_head"]), []
        for home, i in combine_tasks(group, rank, aiv, found):
            line, peer = found["metadata"][i], peer_of(group, rank, home)
            tail = Sge(
                address=fields["send_buffer"] + i * record_bytes + row_bytes,
                num_bytes=record_bytes - row_bytes,
            )
            for number, address in sent_rows(group, rank, fields, line, i):
                token = int(line[topk]) % config.num_max_tokens_per_rank
                index = combine_record_idx(
                    group=number, home_token=token, num_max_tokens_per_rank=config.num_max_tokens_per_rank
                )
                remote = peer.window_base + WORKSPACE_BYTES + index * record_bytes
                row = Sge(address=address, num_bytes=row_bytes)
                with ring_depth(group):
                    wanted.append(descriptor.combine_blocks(head, peer, remote, row, tail))
                head += 2
        if wanted:
            with ring_depth(group):
                wanted.append(descriptor.combine_end_blocks(head))
        compare_ring(group, before[aiv], after, wanted)


@contextmanager
def ring_depth(group):
    """Let the reference write requests for the twin's shorter ring."""
    kept, descriptor.SQ_DEPTH = descriptor.SQ_DEPTH, group.case.sq_depth
    try:
        yield
    finally:
        descriptor.SQ_DEPTH = kept
