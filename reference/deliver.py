"""Moving the payload to the rows that the handles name.

R ranks, T tokens of a rank, K top-k, P scale packs, W payload columns, M token capacity.
"rows" is N in the deduplicated layout, X in the expanded one.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.handle import Handle
from reference.memory.sizes import align
from reference.placement import local_expert_ids
from reference.poison import fill_bytes, poison, poison_byte
from reference.results import DispatchResult
from reference.rows import as_bits, gather_rows

Payload = Sequence[npt.NDArray[Any]]
"""Per rank [T, columns], one dtype and one number of columns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cargo:
    """What one dispatch sends, already checked; see `dispatch.dispatch` for the fields."""

    x: Payload
    scales: Payload | None
    weights: Payload | None
    zero_padding: bool
    column_major_scales: bool
    emit_expert_ids: bool = False


_LARGE_BYTES = 1 << 26
"""Payload from which threads pay: NumPy copies without the interpreter's lock, and the kernel hands out fresh
pages to all cores at once. The latter is most of a first dispatch at real size."""


def deliver(handles: tuple[Handle, ...], cargo: Cargo) -> tuple[DispatchResult, ...]:
    """Return what every rank sees, in rank order; for a large payload several threads fill a rank each."""
    topk = [handle.topk_idx for handle in handles]

    def receive(handle: Handle) -> DispatchResult:
        return _Receiver(handle, cargo.zero_padding).receive(cargo, topk)

    if sum(rows.nbytes for rows in cargo.x) < _LARGE_BYTES:
        return tuple(map(receive, handles))
    with ThreadPoolExecutor() as threads:
        return tuple(threads.map(receive, handles))


def deliver_received(handle: Handle, cargo: Cargo, topk: Payload) -> DispatchResult:
    """Return what one rank sees, from the rows that reached it.

    Args:
      handle: of the receiving rank.
      cargo: its arrays hold per source only the rows that this rank receives, by ascending token.
      topk: the same rows of the ids, [rows, K] int64; read in the deduplicated layout only.
    """
    receiver = _Receiver(handle, cargo.zero_padding)
    receiver.count_received()
    return receiver.receive(cargo, topk)


class _Receiver:
    """One rank's rows: where each comes from, and which are padding."""

    def __init__(self, handle: Handle, zero_padding: bool) -> None:
        self.handle = handle
        gid, self.k = handle.row_origins()
        # Floor division keeps -1, no source, at -1.
        self.src, self.token = np.divmod(gid, handle.config.num_max_tokens_per_rank)
        starts = handle.block_starts()
        self.end = int(starts[-1]) if handle.mode.expand else handle.num_real_recv_tokens
        empty = np.flatnonzero(np.diff(np.concatenate(([False], gid < 0, [False])).astype(np.int8)))
        self.gaps = list(zip(empty[::2].tolist(), empty[1::2].tolist(), strict=True))
        self.zero_padding = zero_padding

    def count_received(self) -> None:
        """Turn each row's source token into its number among the rows of that source."""
        real = self.src >= 0
        gid = np.sort(self.handle.gids())
        capacity = self.handle.config.num_max_tokens_per_rank
        place = np.searchsorted(gid, self.src[real] * capacity + self.token[real])
        self.token[real] = place - np.searchsorted(gid, self.src[real] * capacity)

    def receive(self, cargo: Cargo, topk: Sequence[npt.NDArray[np.int64]]) -> DispatchResult:
        """Fill all outputs."""
        expand = self.handle.mode.expand
        scales = None
        if cargo.scales is not None:
            scales = self._rows_of(cargo.scales)
            if cargo.column_major_scales:
                scales = _column_major(scales, self.handle.mode.rules.scale_column_rows)
        weights = None
        if cargo.weights is not None:
            weights = self._choice_weights(cargo.weights) if expand else self._rows_of(cargo.weights)
        return DispatchResult(
            rank=self.handle.rank,
            recv_x=self._rows_of(cargo.x),
            recv_scales=scales,
            recv_topk_idx=None if expand else self._local_ids(topk),
            recv_topk_weights=weights,
            recv_expert_ids=self._expert_ids() if cargo.emit_expert_ids else None,
        )

    def _rows_of(self, arrays: Payload) -> npt.NDArray[Any]:
        out = np.empty((len(self.src), arrays[0].shape[1]), dtype=arrays[0].dtype)
        gather_rows(as_bits(out), [as_bits(a) for a in arrays], self.src, self.token)
        self._fill_gaps(out)
        return out

    def _fill_gaps(self, out: npt.NDArray[Any]) -> None:
        """Poison the rows that no token made; padding of blocks is zero when asked for, the tail never."""
        for start, stop in self.gaps:
            zeros = min(stop, self.end) if self.zero_padding else start
            fill_bytes(out[start:zeros], 0)
            fill_bytes(out[max(zeros, start) : stop], poison_byte(out.dtype))

    def _choice_weights(self, weights: Payload) -> npt.NDArray[np.float32]:
        out = np.empty(len(self.src), dtype=np.float32)
        first = np.cumsum([0] + [len(w) for w in weights])[:-1]
        real = self.src >= 0
        row = first[self.src[real]] + self.token[real]
        out.view(np.uint32)[real] = np.concatenate(weights).view(np.uint32)[row, self.k[real]]
        self._fill_gaps(out)
        return out

    def _local_ids(self, topk: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        ids = self._rows_of(topk)
        config = self.handle.config
        # The last entry is what index -1, a masked choice, reads: it is on no rank.
        owner, local = np.append(config.expert_ranks(), -1), np.append(local_expert_ids(config), -1)
        real = ids[: self.end]
        ids[: self.end] = np.where(owner[real] == self.handle.rank, local[real], -1)
        return ids

    def _expert_ids(self) -> npt.NDArray[np.int32]:
        starts = self.handle.block_starts()
        out = np.full(len(self.src), -1, dtype=np.int32)
        out[: self.end] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        out[self.src < 0] = -1
        return out


def _column_major(rows: npt.NDArray[Any], step: int) -> npt.NDArray[Any]:
    """Return the same [rows, P] with strides (1, rows rounded up to `step`)."""
    columns = np.empty((rows.shape[1], align(len(rows), step)), dtype=rows.dtype)
    poison(columns[:, len(rows) :])
    columns[:, : len(rows)] = rows.T
    return columns[:, : len(rows)].T
