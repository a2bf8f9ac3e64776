"""Judging a capture against the reference, stage by stage in the order of the data flow.

R ranks, T tokens of a rank, K top-k, N received rows, X expanded rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.capture import Capture
from epsim.debug.fields import FIELDS
from epsim.debug.frame import (
    Frame,
    expected_row_keys,
    expected_stream_keys,
    in_reference_order,
    read_frame,
    settle,
    take_by_source,
)
from epsim.debug.gaps import missing_fields, not_given
from epsim.debug.notes import capture_notes
from reference.combine import combine
from reference.comparison.compare import compare
from reference.comparison.mismatch import MismatchReport
from reference.comparison.rowkeys import RowKeys, RowOrder, RowStream
from reference.dispatch import dispatch
from reference.handle import Handle
from reference.placement import plan_dispatch
from reference.results import DispatchResult

Arrays = dict[int, npt.NDArray[Any]]
Keys = dict[int, RowKeys]
COUNTS = (
    "psum_num_recv_tokens_per_rank",
    "num_unaligned_recv_tokens_per_expert",
    "psum_num_recv_tokens_per_expert",
    "num_recv_tokens_per_expert_list",
)
SOURCES = {"recv_x": "x", "recv_sf": "sf", "recv_topk_weights": "topk_weights"}
"""What each received field is a copy of."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One field that was judged.

    Args:
      field: its name.
      ranks: ranks that gave it.
      num_elements: elements compared.
      num_mismatches: disagreements of any kind.
    """

    field: str
    ranks: tuple[int, ...]
    num_elements: int
    num_mismatches: int


class Judge:
    """Judges one capture. Call the stages in their order; what they found is in the attributes.

    Attributes:
      handles: of the reference, canonical.
      slots: per rank [T, K] int32 slots that the senders may have chosen.
      frames: per rank, which captured row is which.
      reports: one per judged field.
      compared: what was judged.
      skipped: field -> why it was not.
      notes: how ids were read, ranks that look alike, and how rows were matched where not from metadata.
    """

    def __init__(self, capture: Capture, max_located: int) -> None:
        """Plan the right dispatch, and read the order of rows off the capture.

        Raises:
          ConfigError: the options do not fit the group, or the edition lacks them.
          InputError: unknown reduction order.
        """
        self.capture, self.max_located = capture, max_located
        self.config, self.options, self.topk = capture.config, capture.options, capture.topk()
        self.mode, self.order = self.options.mode(), self.options.reduction_order(self.config)
        self.is_hybrid = self.mode.scaleup_ranks(self.config) != self.config.ep_size
        self.order.check_edition(self.mode.rules, is_hybrid=self.is_hybrid)
        self.handles = plan_dispatch(self.config, self.topk, mode=self.mode)
        self.slots = [np.array(h.dst_buffer_slot_idx) for h in self.handles]
        self.frames = [self._frame(h) for h in self.handles]
        self.reports: list[MismatchReport] = []
        self.compared: list[Compared] = []
        self.skipped: dict[str, str] = {}
        self.notes = [*capture_notes(capture)]
        foreign = [frame.handle.rank for frame in self.frames if not frame.is_own]
        if foreign:
            where = "" if len(foreign) == len(self.frames) else f" at rank {', '.join(map(str, foreign[:8]))}"
            self.notes.append(
                f"no usable recv_src_metadata{where}: rows are taken to stand in canonical order"
            )

    def _frame(self, handle: Handle) -> Frame:
        arrays = self.capture.ranks[handle.rank]
        table, psum = arrays.get("recv_src_metadata"), arrays.get("psum_num_recv_tokens_per_rank")
        num_real = int(psum[-1]) if psum is not None and _is_whole(psum, 1) and psum.size else None
        return read_frame(
            handle,
            self.topk.topk_idx,
            table if table is not None and _is_whole(table, 2) else None,
            num_real=num_real,
            is_sorted=self.options.deterministic,
        )

    def given(self, name: str) -> Arrays:
        """Return the arrays of the ranks that gave a field."""
        return {rank: np.asarray(a[name]) for rank, a in enumerate(self.capture.ranks) if name in a}

    def judge(
        self,
        name: str,
        expected: Arrays,
        keys: tuple[Keys, Keys] | None = None,
        order: RowOrder = "free",
        actual: Arrays | None = None,
    ) -> None:
        """Compare one field at the ranks that gave it.

        Args:
          name: the field.
          expected: per rank what is right.
          keys: per rank identity of the expected and of the captured rows; None = compared place by place.
          order: how far the places of rows must agree.
          actual: per rank what to judge; None = what the capture has.
        """
        actual = self.given(name) if actual is None else actual
        ours = {rank: {name: expected[rank]} for rank in actual}
        streams: tuple[RowStream, ...] = ()
        if keys is not None:
            streams = (RowStream(fields=(name,), expected=keys[0], actual=keys[1], order=order),)
        report = compare(
            ours,
            {rank: {name: array} for rank, array in actual.items()},
            streams=streams,
            max_located=self.max_located,
        )
        self.reports.append(report)
        wrong = sum(sum(count.by_kind.values()) for count in report.counts)
        self.compared.append(
            Compared(field=name, ranks=tuple(actual), num_elements=report.num_elements, num_mismatches=wrong)
        )

    def judge_gaps(self) -> None:
        """Report what some ranks lack, and say which results were not dumped."""
        self.reports += missing_fields(self.capture)
        has_weights = self.order.in_rank or not self.mode.expand
        self.skipped |= not_given(self.capture, self.handles, has_combined_weights=has_weights)

    def judge_slots(self) -> None:
        """Judge what senders kept: every token must have its own slot in its source's region."""
        if self.given("dst_buffer_slot_idx"):
            if self.is_hybrid:
                self.skipped["dst_buffer_slot_idx"] = "slots of a hybrid dispatch follow the arrival"
            else:
                for rank, grid in self.given("dst_buffer_slot_idx").items():
                    self._settle_slots(rank, grid)
                self.judge("dst_buffer_slot_idx", dict(enumerate(self.slots)))
        gathers = self.given("dst_gsge_idx")
        if not gathers:
            return
        grids = {rank: self.handles[rank].dst_gsge_idx for rank in gathers}
        expected = {rank: grid for rank, grid in grids.items() if grid is not None}
        if len(expected) < len(gathers):
            self.skipped["dst_gsge_idx"] = f"edition {self.options.edition} has none"
            return
        # Which descriptor a row gets is open; that remote masters have one, and nothing else, is not.
        for rank, grid in gathers.items():
            if grid.shape == expected[rank].shape and _is_whole(grid, 2):
                open_order = (expected[rank] >= 0) & (grid >= 0)
                expected[rank] = np.where(open_order, grid, expected[rank])
        self.judge("dst_gsge_idx", dict(expected))

    def _settle_slots(self, rank: int, grid: npt.NDArray[Any]) -> None:
        right = self.slots[rank]
        if grid.shape != right.shape or not _is_whole(grid, 2):
            return
        token, k = np.nonzero(right >= 0)
        owner = self.config.expert_ranks()[self.topk.topk_idx[rank][token, k]]
        claims, places = grid[token, k].astype(np.int64), right[token, k].astype(np.int64)
        right[token, k] = settle(claims, places, owner)

    def judge_counts(self) -> None:
        """Judge sums and counts of rows."""
        for name in COUNTS:
            if not self.given(name):
                continue
            if name == "num_recv_tokens_per_expert_list" and not self.mode.cpu_sync:
                self.skipped[name] = "without CPU sync there is no list"
                continue
            self.judge(name, {h.rank: np.asarray(getattr(h, name), dtype=_form(name)) for h in self.handles})

    def judge_metadata(self) -> None:
        """Judge which token stands where; inside a source that must be as the slots say, if given."""
        name = "recv_src_metadata"
        tables = self.given(name)
        if not tables:
            return
        # The columns of rows are undefined in a layout without expanded rows.
        width = None if self.mode.expand else 2
        # Sorting moves the rows of the table itself where there are no expanded rows to move.
        is_sorted = self.options.deterministic and not self.mode.expand
        has_slots = not self.is_hybrid and len(self.given("dst_buffer_slot_idx")) == len(self.handles)
        has_slots = has_slots and not is_sorted
        order: RowOrder = "canonical" if has_slots or is_sorted else "free" if self.is_hybrid else "source"
        expected: Arrays = {}
        mine: Keys = {}
        theirs: Keys = {}
        for rank, table in tables.items():
            frame = self.frames[rank]
            places = self._stream_order(frame.handle) if has_slots else np.arange(len(frame.metadata))
            keys = expected_stream_keys(frame.handle)
            mine[rank] = RowKeys(src_rank=keys.src_rank[places], src_token=keys.src_token[places])
            expected[rank] = frame.metadata[places, :width]
            # If no row is lost, another length is an error of the whole table.
            theirs[rank] = frame.stream_keys(len(frame.metadata if frame.is_whole else table))
            if table.ndim == 2:
                tables[rank] = table[:, :width]
        self.judge(name, expected, (mine, theirs), order, tables)

    def _stream_order(self, handle: Handle) -> npt.NDArray[np.int64]:
        """Return, for each place of the stream, which of the reference's rows the slots put there."""
        gids = handle.gids().astype(np.int64)
        src, token = np.divmod(gids, self.config.num_max_tokens_per_rank)
        first = np.append(0, handle.psum_num_recv_tokens_per_rank)[:-1].astype(np.int64)
        slot = take_by_source(self.slots, src, token, handle.masters().astype(np.int64))
        if self.mode.rules.slot_has_rank:
            slot = slot - src * self.config.num_max_tokens_per_rank
        order = np.arange(len(handle.recv_src_metadata))
        order[first[src] + slot] = np.arange(len(gids))
        return order

    def judge_received(self) -> None:
        """Judge the rows that arrived."""
        names = [n for n in ("recv_x", "recv_sf", "recv_topk_idx", "recv_topk_weights") if self.given(n)]
        for name in names:
            if name in SOURCES and self.capture.column(SOURCES[name]) is None:
                self.skipped[name] = f"not every rank gave {SOURCES[name]}"
            elif name == "recv_topk_idx" and self.mode.expand:
                self.skipped[name] = "the expanded layout has none"
        names = [name for name in names if name not in self.skipped]
        results = self._dispatch() if names else ()
        for name in names:
            attribute = "recv_scales" if name == "recv_sf" else name
            self._judge_rows(name, {r.rank: getattr(r, attribute) for r in results})

    def _dispatch(self) -> Sequence[DispatchResult]:
        x = self.capture.column("x")
        if x is None:
            x = [np.zeros((count, 1), dtype=np.uint8) for count in self.topk.tokens_per_rank]
        padded = self.options.zero_padding and self.mode.expand
        sf = self.capture.column("sf")
        return dispatch(self.config, self.topk, x, scales=sf, mode=self.mode, zero_padding=padded)[0]

    def _judge_rows(self, name: str, expected: Arrays) -> None:
        padded = self.options.zero_padding
        mine: Keys = {}
        theirs: Keys = {}
        for rank, actual in self.given(name).items():
            frame = self.frames[rank]
            mine[rank] = expected_row_keys(frame.handle, self.topk.topk_idx, zero_padding=padded)
            rows = len(actual) if actual.ndim else 0
            is_lost = actual.shape[1:] == expected[rank].shape[1:] and rows <= len(expected[rank])
            if not is_lost or (frame.is_whole and not frame.num_missing(rows)):
                # No row is lost: another shape is an error of the whole array.
                rows = len(expected[rank])
            theirs[rank] = frame.row_keys(rows, zero_padding=padded)
        self.judge(name, expected, (mine, theirs))

    def judge_combined(self) -> None:
        """Judge what came home, from what the capture says the experts gave back, and the shape of that."""
        names = [n for n in ("combined_x", "combined_topk_weights") if self.given(n)]
        wrong = {name for name in ("combine_x", "combine_topk_weights") if self._judge_shapes(name)}
        reason = self._why_no_combine(wrong) if names else ""
        if reason:
            self.skipped |= dict.fromkeys(names, reason)
            return
        if not names:
            return
        has_weights = self.order.in_rank or not self.mode.expand
        weights = None if wrong else self._in_reference_order("combine_topk_weights")
        if "combined_topk_weights" in names and (weights is None or not has_weights):
            why = "not every rank gave combine_topk_weights"
            why = "combine_topk_weights of a rank have a wrong shape" if wrong else why
            self.skipped["combined_topk_weights"] = why if has_weights else "the order returns no weights"
        results = combine(
            self.handles,
            self._in_reference_order("combine_x") or [],
            order=self.order,
            topk_weights=weights if has_weights else None,
            bias=tuple(b for n in ("bias_0", "bias_1") if (b := self.capture.column(n)) is not None),
        )
        for name in names:
            if name not in self.skipped:
                self.judge(name, {r.rank: np.asarray(getattr(r, name)) for r in results})

    def _judge_shapes(self, name: str) -> bool:
        """Report the ranks whose rows for combine have a wrong width or are too few; say if there are any."""
        expected: Arrays = {}
        given = self.given(name)
        for rank, array in given.items():
            handle, frame = self.handles[rank], self.frames[rank]
            width = () if self.mode.expand else (self.config.num_topk,)
            width = (self.config.hidden,) if name == "combine_x" else width
            # A frame that is not whole is a finding of the metadata, and says nothing of rows.
            is_short = frame.is_whole and frame.num_missing(len(array)) > 0
            if array.shape[1:] != width or is_short:
                rows = len(array) if array.ndim == len(width) + 1 else handle.num_rows
                rows = max(handle.num_rows, len(array) + 1) if is_short else rows
                expected[rank] = np.broadcast_to(np.zeros((), dtype=array.dtype), (rows, *width))
        if expected:
            self.judge(name, expected, actual={rank: given[rank] for rank in expected})
        return bool(expected)

    def _why_no_combine(self, wrong: set[str]) -> str:
        """Say why combine cannot be judged; "" = it can."""
        rows = self.capture.column("combine_x")
        if rows is None:
            return "not every rank gave combine_x"
        if "combine_x" in wrong:
            return "combine_x of a rank has a wrong shape"
        for name in ("bias_0", "bias_1"):
            if self.given(name) and self.capture.column(name) is None:
                return f"not every rank gave {name}"
        for frame in self.frames:
            if not frame.is_whole:
                return f"rows of rank {frame.handle.rank} cannot be matched, see recv_src_metadata"
        return ""

    def _in_reference_order(self, name: str) -> list[npt.NDArray[Any]] | None:
        columns = self.capture.column(name)
        if columns is None:
            return None
        return [
            in_reference_order(f, a, self.topk.topk_idx) for f, a in zip(self.frames, columns, strict=True)
        ]


def _is_whole(array: npt.NDArray[Any], ndim: int) -> bool:
    """Whether an array holds whole numbers of up to 63 bits on that many axes, as places must."""
    is_wide = array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max
    return array.ndim == ndim and array.dtype.kind in "iu" and not is_wide


def _form(name: str) -> np.dtype[Any]:
    return np.dtype(np.int64 if "int64" in FIELDS[name].dtypes else np.int32)
