"""The sender's side: which slot at which target each row gets, and where its gather pair stands.

R ranks, T tokens of a rank, K top-k, M token capacity, C vector cores (AIVs), P pairs (token, target rank).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.handle import DispatchMode
from reference.plan import LedgerBlock

ROWS_PER_SQE = 6
"""Records that one send-queue entry writes: 12 gather elements, two each (deepep-ascend.md section 4.2)."""
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class SendSide:
    """One source rank's valid choices, sorted by (target rank, slot, column), and its sender-side indices.

    Args:
      src_rank: the source.
      bounds: [R+1] int64, choices of target d are bounds[d] : bounds[d+1].
      token, k, expert, slot: per choice, int32/int16/int32/int32; slot counts inside (source, target).
      is_master: per choice, the row that travels.
      slot_grid: [T, K] int32 slot at each target's master, -1 elsewhere.
      gather_grid: [T, K] int32 index of the gather pair, -1 = local target or no master.
    """

    src_rank: int
    bounds: npt.NDArray[np.int64]
    token: IntArray
    k: npt.NDArray[np.int16]
    expert: IntArray
    slot: IntArray
    is_master: npt.NDArray[np.bool_]
    slot_grid: IntArray
    gather_grid: IntArray

    def part(self, dst: int) -> slice:
        """Return the slice of the choices of one target rank."""
        return slice(int(self.bounds[dst]), int(self.bounds[dst + 1]))

    def num_rows(self) -> npt.NDArray[np.int64]:
        """Return [R] int64: deduplicated rows for each target."""
        return np.diff(starts_of(self.is_master)[self.bounds])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    """(token, target) pairs in order of target, then token."""

    dst: npt.NDArray[Any]
    token: IntArray
    k: npt.NDArray[np.int16]
    aiv: npt.NDArray[np.int64]


def small_ids(ids: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return ids below `count` in a narrow dtype, for which a stable sort is a radix sort."""
    return ids.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65536 else np.int64)


def starts_of(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the exclusive running sum of counts, with the total at the end."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


def send_side(
    block: LedgerBlock, config: EPConfig, mode: DispatchMode, rng: np.random.Generator | None
) -> SendSide:
    """Give every row of one source a slot at its target.

    A slot is the number of rows for the same target that come before it: all of the AIVs below, then those of
    its own AIV in an order that on-chip atomics leave open. NVIDIA leaves the whole order open.

    Args:
      block: the source's ledger.
      config: the group.
      mode: edition and num_aivs.
      rng: shuffles what is open; None = token order.

    Returns:
      SendSide.
      Source: deepep-ascend.md section 4.2, steps 2-6; deepep-v2.md section 2.3.
    """
    size = config.ep_size
    order = np.argsort(small_ids(block.dst_rank, size), kind="stable")  # by target, then token, then column
    dst, master = block.dst_rank[order], block.is_master[order]
    # The master is its pair's last choice, so the masters before a choice number its pair.
    pair_of: npt.NDArray[np.int64] = np.cumsum(master) - master
    token = block.token[order][master]
    # NVIDIA has one counter per target, as if one core sent everything.
    num_aivs = mode.num_aivs if mode.rules.has_gather_idx else 1
    aiv = token.astype(np.int64) // -(-config.num_max_tokens_per_rank // num_aivs)
    pairs = _Pairs(dst=dst[master], token=token, k=block.k[order][master], aiv=aiv)
    slot = _slots(pairs, size, rng)
    if rng is not None:
        again = np.lexsort((block.k[order], slot[pair_of], dst))
        order, pair_of, dst, master = order[again], pair_of[again], dst[again], master[again]
    shape = (block.num_tokens, config.num_topk)
    return SendSide(
        src_rank=block.src_rank,
        bounds=starts_of(np.bincount(dst, minlength=size)),
        token=block.token[order],
        k=block.k[order],
        expert=block.expert[order],
        slot=slot[pair_of],
        is_master=master,
        slot_grid=_grid(shape, pairs, slot),
        gather_grid=_grid(shape, pairs, _gather_idx(pairs, slot, block.src_rank, size, rng)),
    )


def _grid(shape: tuple[int, int], pairs: _Pairs, values: IntArray) -> IntArray:
    grid = np.full(shape, -1, dtype=np.int32)
    grid[pairs.token, pairs.k] = values
    return grid


def _slots(pairs: _Pairs, size: int, rng: np.random.Generator | None) -> IntArray:
    counts = np.bincount(pairs.dst, minlength=size)
    in_order = np.arange(len(pairs.dst)) - np.repeat(starts_of(counts)[:-1], counts)
    slot = in_order.astype(np.int32)
    if rng is not None:
        # Pairs of one (target, AIV) are neighbours and stay so; only their order inside changes.
        slot[np.lexsort((rng.random(len(slot)), pairs.aiv, pairs.dst))] = in_order
    return slot


def _gather_idx(
    pairs: _Pairs, slot: IntArray, src_rank: int, size: int, rng: np.random.Generator | None
) -> IntArray:
    """Return each pair's number: 6 to a descriptor, descriptors by target from src+1 on, around."""
    if not len(pairs.dst):
        return np.empty(0, dtype=np.int32)
    num_aivs = int(pairs.aiv.max()) + 1
    key = pairs.aiv * size + pairs.dst
    counts = np.bincount(key, minlength=num_aivs * size).reshape(num_aivs, size)
    rotation = (src_rank + np.arange(1, size)) % size  # never the source itself: local rows are copied
    peers = np.tile(rotation, (num_aivs, 1))
    if rng is not None:
        # Lanes of one warp reserve descriptors at once, so the order of targets is open as well.
        peers = rng.permuted(peers, axis=1)
    base = np.zeros((num_aivs, size), dtype=np.int64)
    aivs = np.arange(num_aivs)[:, None]
    sqes = -(-counts[aivs, peers] // ROWS_PER_SQE)
    base[aivs, peers] = np.cumsum(sqes, axis=1) - sqes
    # The slot counts from the target's first row of all AIVs, the pair from this AIV's first row.
    before = np.cumsum(counts, axis=0) - counts
    number = ROWS_PER_SQE * base[pairs.aiv, pairs.dst] + slot - before[pairs.aiv, pairs.dst]
    return np.where(pairs.dst == src_rank, -1, number).astype(np.int32)
