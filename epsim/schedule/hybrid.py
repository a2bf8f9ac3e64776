"""Hybrid dispatch and combine over two tiers: a token crosses the scale-out network once per supernode.

The rank with the sender's index in the other supernode, the forwarder, spreads the token inside; combine goes
the same way back, summed at the forwarder. Tokens go in chunks, so that both tiers work at the same time.
Upstream DeepEP-Ascend refuses this mode; the rule is `loads.rank_loads`'s and deepep-v2.md's. R ranks, P pods
(supernodes), C chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from epsim.schedule.transfers import Draft, Transfers, whole
from reference.config import EPConfig
from reference.plan import ledger_blocks
from reference.topk import TopK

Int64 = npt.NDArray[np.int64]
SLOT_WORD_BYTES: Final = 8
"""A forwarder's word that a slot is free, as in PP (deepep-ascend.md section 4.7)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HybridRows:
    """Rows of one dispatch, chunk by chunk of each sender's tokens; combine returns the same rows.

    Args:
      pod_size: ranks of a pod; rank r is in pod r // pod_size, the last pod may be smaller.
      to_rank: [R, C, R] int64, distinct (token, rank) pairs, own rank included.
      to_pod: [R, C, P] int64, distinct (token, pod) pairs, own pod included.
      sum_rows: [R, C, R] int64, rows that the sums on the expert's rank read and write in combine: where
        a token has several experts on a rank, one per expert and one for the sum.
    """

    pod_size: int
    to_rank: Int64
    to_pod: Int64
    sum_rows: Int64

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.to_rank)

    @property
    def num_chunks(self) -> int:
        """C."""
        return int(self.to_rank.shape[1])

    @cached_property
    def forwarder(self) -> Int64:
        """[R, P] who spreads a sender's tokens in each pod: its peer there, itself at home."""
        size = self.num_ranks
        rank, start = np.arange(size), np.arange(0, size, self.pod_size)
        found = start + (rank % self.pod_size)[:, None] % np.minimum(self.pod_size, size - start)
        found[rank, rank // self.pod_size] = rank
        return found

    def members(self, pod: int) -> range:
        """Return the ranks of a pod."""
        return range(pod * self.pod_size, min((pod + 1) * self.pod_size, self.num_ranks))


def count_hybrid(config: EPConfig, topk: TopK, pod_size: int, num_chunks: int) -> HybridRows:
    """Count the rows of a routing by sender, chunk and destination.

    Args:
      config: the group.
      topk: routing in physical ids.
      pod_size: ranks of a pod.
      num_chunks: C; a chunk is ceil(most tokens of a rank / C) tokens in a row.

    Raises:
      ConfigError: the routing was made for another group.
      InputError: a number is out of range.
    """
    whole("pod size", pod_size, 1)
    size, chunks = config.ep_size, whole("chunks", num_chunks, 1)
    pods = -(-size // pod_size)
    share = max(1, -(-max(topk.tokens_per_rank) // chunks))
    to_rank, sum_rows = np.zeros((size, chunks, size), np.int64), np.zeros((size, chunks, size), np.int64)
    to_pod = np.zeros((size, chunks, pods), np.int64)
    for block in ledger_blocks(config, topk, pod_size=pod_size):
        assert block.is_pod_master is not None
        chunk, dst = (block.token // share).astype(np.int64), block.dst_rank.astype(np.int64)
        key, last, has_sum = chunk * size + dst, block.is_pod_master, block.num_hits > 1
        to_rank[block.src_rank] = _count(key[block.is_master], chunks, size)
        to_pod[block.src_rank] = _count(chunk[last] * pods + dst[last] // pod_size, chunks, pods)
        sum_rows[block.src_rank] = _count(key[has_sum], chunks, size)
        sum_rows[block.src_rank] += _count(key[has_sum & block.is_master], chunks, size)
    return HybridRows(pod_size=pod_size, to_rank=to_rank, to_pod=to_pod, sum_rows=sum_rows)


def _count(key: Int64, num_chunks: int, width: int) -> Int64:
    return np.bincount(key, minlength=num_chunks * width).reshape(num_chunks, width).astype(np.int64)


def hybrid_dispatch(rows: HybridRows, row_bytes: int, *, num_slots: int = 0) -> Transfers:
    """Send each token once to every pod that it needs, and spread it there.

    Args:
      rows: see `HybridRows`.
      row_bytes: record on the wire.
      num_slots: chunks of one sender that a forwarder can hold; a further one waits until all copies of
        the oldest one have arrived and 8 bytes said so. 0 = room for all.

    Raises:
      InputError: a number is out of range.
    """
    size, slots = whole("row bytes", row_bytes, 1), whole("slots", num_slots, 0)
    draft = Draft(rows.num_ranks)
    freed: dict[tuple[int, int], list[int]] = {}
    for chunk, src, pod in _visits(rows):
        entry = int(rows.forwarder[src, pod])
        if entry == src:
            _spread(draft, rows, chunk, src, pod, size, [])
            continue
        released = freed.setdefault((src, pod), [])
        waits = [released[-slots]] if slots and len(released) >= slots else []
        num_bytes = int(rows.to_pod[src, chunk, pod]) * size
        if num_bytes == 0:
            continue
        came = draft.add(src, entry, num_bytes, label=f"chunk {chunk} to pod {pod}", after=waits)
        sent = _spread(draft, rows, chunk, src, pod, size, [came])
        if slots:
            word = f"slot of chunk {chunk} is free"
            released.append(draft.add(entry, src, SLOT_WORD_BYTES, label=word, after=[came, *sent]))
    return draft.build()


def hybrid_combine(rows: HybridRows, row_bytes: int, payload_bytes: int) -> Transfers:
    """Return the rows of a dispatch: summed on the expert's rank, then at the forwarder, then home.

    A rank sums rows that have several of its experts (reads each, writes one). The forwarder reads all rows
    of its pod and writes one per token, when all of a chunk have come. The last sum, at home, belongs to the
    epilogue and is not part of it.

    Args:
      rows: of the dispatch.
      row_bytes: record on the wire.
      payload_bytes: what a sum reads or writes per row.

    Raises:
      InputError: a number is out of range.
    """
    size, payload = whole("row bytes", row_bytes, 1), whole("payload bytes", payload_bytes, 0)
    draft = Draft(rows.num_ranks)
    for chunk, home, pod in _visits(rows):
        entry = int(rows.forwarder[home, pod])
        come: list[int] = []
        for rank in _after(rows.members(pod), entry):
            count = int(rows.to_rank[home, chunk, rank])
            if count == 0:
                continue
            moved = int(rows.sum_rows[home, chunk, rank]) * payload
            label = f"sum of chunk {chunk} for rank {home}"
            number = draft.local(rank, label=label, memory_bytes=moved)
            if rank != entry:
                back = f"chunk {chunk} for rank {home}"
                number = draft.add(rank, entry, count * size, label=back, after=[number])
            come.append(number)
        if entry != home and come:
            num_rows = int(rows.to_pod[home, chunk, pod])
            moved = (int(rows.to_rank[home, chunk, rows.members(pod)].sum()) + num_rows) * payload
            label = f"sum of chunk {chunk} of pod {pod} for rank {home}"
            summed = draft.local(entry, label=label, after=come, memory_bytes=moved)
            draft.add(entry, home, num_rows * size, label=f"chunk {chunk} of pod {pod}", after=[summed])
    return draft.build()


def _visits(rows: HybridRows) -> Iterator[tuple[int, int, int]]:
    """Yield (chunk, rank, pod): all ranks turn to the pod at the same distance, the own one last."""
    pods = rows.to_pod.shape[2]
    for chunk in range(rows.num_chunks):
        for offset in range(1, pods + 1):
            for rank in range(rows.num_ranks):
                yield chunk, rank, (rank // rows.pod_size + offset) % pods


def _spread(
    draft: Draft, rows: HybridRows, chunk: int, src: int, pod: int, row_bytes: int, waits: list[int]
) -> list[int]:
    """Send a chunk of `src` from the forwarder in a pod to every rank there that needs rows of it.

    Rows for the sender's own rank are a local copy; those for the forwarder itself are there already.
    """
    entry = int(rows.forwarder[src, pod])
    is_own = entry == src
    sent = []
    for dst in _after(rows.members(pod), entry):
        num_rows = int(rows.to_rank[src, chunk, dst])
        if num_rows == 0 or (dst == entry and not is_own):
            continue
        # Forwarded rows have queues of their own, or they would stand behind all own ones.
        queue = dst if is_own else rows.num_ranks + dst
        label = f"chunk {chunk}" if is_own else f"chunk {chunk} of rank {src}"
        number = draft.add(entry, dst, num_rows * row_bytes, label=label, after=waits, queue_idx=queue)
        sent.append(number)
    return sent


def _after(members: range, first: int) -> list[int]:
    """Return the members from the one after `first` on, round to `first`: nobody meets at one receiver."""
    place = members.index(first) + 1
    return [*members[place:], *members[:place]]
