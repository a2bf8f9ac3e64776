"""Entries of the bug catalogue that are requests to the URMA engine, or calls on the host."""

import itertools
from dataclasses import replace

import numpy as np

from reference.config import EPConfig
from reference.dispatch import dispatch
from reference.memory.sizes import ascend_buffer_bytes, ascend_combine_record_bytes
from reference.placement import plan_dispatch
from tests.native.cataloguekit import COMPARISON, HostEntry, UrmaEntry
from tests.native.urmakit import NUM_BYTES, STRONG, Fabric
from tests.reference.layer import group, layer, ones

FLAG = NUM_BYTES - 8


def tell(fabric: Fabric) -> None:
    """Rank 0 sets a flag in the window of rank 1, which then reads the first 64 bytes of it."""
    fabric.script(0).store(fabric.windows[1] + FLAG, 1).fence()
    fabric.script(1).poll(fabric.windows[1] + FLAG, 1).read(fabric.windows[1])


def post_from_two(fabric: Fabric, is_good: bool) -> None:
    """Let both AIVs post and ring at an offset of their own count, on one jetty or each on its own."""
    for aiv in range(2):
        fabric.queue(0, aiv, jetty=aiv if is_good else 0).write(64 * aiv, **STRONG).ring()


def reuse_sources(fabric: Fabric, is_good: bool) -> None:
    """Write sources for the next generation before this one has completed; repaired, after it."""
    queue = fabric.queue().write(0, **STRONG).ring()
    if is_good:
        queue.drain()
    queue.script.store(fabric.sources[0], 1).fence()


def notify(fabric: Fabric, is_good: bool) -> None:
    """Write and tell; repaired, write, drain and tell."""
    queue = fabric.queue().write(0, **STRONG).ring()
    if is_good:
        queue.drain()
    tell(fabric)


def take_too_many(fabric: Fabric, is_good: bool) -> None:
    """Give back one completion more than there was."""
    queue = fabric.queue().write(0, **STRONG).ring().take()
    queue.script.store(queue.info["cq_doorbell_address"], 1 if is_good else 2).fence()


def cut_identity(fabric: Fabric, is_good: bool) -> None:
    """Keep 4 bytes of the word with transport and token id."""
    queue = fabric.queue()
    sqe = queue.request(0, **STRONG)
    word = sqe.peer_word if is_good else sqe.peer_word & 0xFFFFFFFF
    queue.post(replace(sqe, peer_word=word)).ring()


URMA = [
    UrmaEntry("B-YU5", "failed completions with 64 AIVs",
              "two AIVs post to one jetty; repaired, each to its own",
              frozenset({"sq_two_producers", "sqe_bad_owner"}), post_from_two, aivs=2),
    UrmaEntry("B-YU8", "the next generation starts on an unfinished queue",
              "sources are written again before the completion was taken",
              frozenset({"data_race"}), reuse_sources),
    UrmaEntry("B-OT4", "notify unreliable", "a flag after a write that was not drained",
              frozenset({"data_race"}), notify),
    UrmaEntry("B-HC3", "a completion too many", "one more is given back than arrived",
              frozenset({"cq_misuse"}),
              take_too_many),
    UrmaEntry("B-HC7", "identity cut to 4 bytes", "transport and token id of the peer in 32 bits",
              frozenset({"wrong_token"}), cut_identity),
]  # fmt: skip


def combined(num_sums: int) -> list[float]:
    """Identity of 1 over two ranks in halves; each sum over the ranks after combine adds what is complete."""
    config, topk = group([[[0, 1]], [[0, 1]]], num_experts=2, weights=[[[0.5, 0.5]]] * 2)
    made = [x.item() for x in layer(config, topk, ones(topk), lambda _, row: row)]
    for _ in range(num_sums):
        made = [sum(made)] * len(made)
    return made


def most_rows(num_local: int, num_topk: int) -> int:
    """Most expanded rows that a rank of two receives from one token per rank, over all routings."""
    choices = list(itertools.combinations(range(2 * num_local), num_topk))
    rows = []
    for ids in itertools.product(choices, repeat=2):
        config, topk = group([[list(x)] for x in ids], num_experts=2 * num_local)
        rows.append(max(handle.num_expanded_tokens for handle in plan_dispatch(config, topk)))
    return max(rows)


def combine_bytes(num_topk: int) -> int:
    """Bytes for combine of 16 tokens over 64 ranks, in records of K = 8 or of the K that is assumed."""
    return ascend_buffer_bytes(
        ep_size=64, num_max_tokens_per_rank=16, hidden=7168, num_topk=num_topk
    ).combine_bytes


def idle_rank(capacity_as_padding: bool) -> list[list[int]]:
    """Return the rows of each rank; rank 1 has no tokens, or is padded to the capacity."""
    num_tokens = 2 if capacity_as_padding else 0
    config = EPConfig(ep_size=2, num_experts=2, num_topk=1, hidden=1, num_max_tokens_per_rank=2)
    _, topk = group([[[0], [1]], [[0]] * num_tokens], num_experts=2)
    results, _ = dispatch(config, topk, ones(topk))
    return [np.asarray(r.recv_x).ravel().astype(int).tolist() for r in results]


def host(id: str, symptom: str, rebuilt: str, wrong, repaired, right) -> HostEntry:
    """Return an entry whose wrong form is seen by comparison."""
    return HostEntry(id, symptom, rebuilt, frozenset({COMPARISON}), wrong, repaired, right)


HOST = [
    host("B-SG11", "buffer sized by all local experts",
         "one row per local expert in place of min(K, local experts)",
         lambda: 2 * 3, lambda: 2 * min(2, 3), most_rows(3, 2)),
    host("B-SG12", "padding of a rank without tokens", "it is padded to the capacity; repaired, it has none",
         lambda: idle_rank(True), lambda: idle_rank(False), [[1], [1]]),
    host("11.5, 6710", "double all-reduce", "the sums that combine returns are summed over ranks again",
         lambda: combined(1), lambda: combined(0), [1.0, 1.0]),
    host("11.5, 24443", "buffer four times too large",
         "K = 0 at construction sizes for K = 32; repaired, K = 8",
         lambda: combine_bytes(0), lambda: combine_bytes(8), 8 * 16 * ascend_combine_record_bytes(7168, 8)),
]  # fmt: skip
