"""Properties of a dispatch, in the order of the data flow: the first that breaks is the one to look at.

R ranks, K top-k, L local experts, N received rows, X expanded rows, M token capacity.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.conform.arrival import Arrival, arrived_rows, bound_part, canonical_rows, experts_of_choices
from epsim.conform.evidence import PropertyBroken, PropertyName, RunEvidence
from epsim.testing.identity import WORD_COLUMNS, read_identity, read_words
from native.backends.protocol import Dispatched
from reference.comparison.compare import PADDING_ROW, UNDEFINED_ROW, RowKeys, RowStream, compare
from reference.handle import Handle
from reference.results import DispatchResult
from reference.topk import TopK

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class DispatchCheck:
    """One dispatch to judge.

    Args:
      topk: the routing of the handles.
      wanted: results by the definition.
      handles: handles by the definition; both in canonical order.
      have: what the backend gave.
      x: what was sent.
      zero_padding: whether gaps must be zero.
      column_major: whether scales must be column-major.
      seen: counts what is compared.
    """

    topk: TopK
    wanted: Sequence[DispatchResult]
    handles: Sequence[Handle]
    have: Dispatched
    x: Sequence[Array]
    zero_padding: bool
    column_major: bool
    seen: RunEvidence

    def run(self) -> None:
        """Check everything.

        Raises:
          PropertyBroken: the first property that does not hold.
        """
        self.check_handles()
        self.check_received()

    # --- handles -------------------------------------------------------------------------------------

    def check_handles(self) -> None:
        """Check what the handles hold."""
        counts = (
            "num_recv_tokens",
            "num_expanded_tokens",
            "num_recv_tokens_per_expert_list",
            "num_unaligned_recv_tokens_per_expert",
        )
        psums = ("psum_num_recv_tokens_per_rank", "psum_num_recv_tokens_per_expert")
        self._fields("counts", counts)
        self._fields("psums", psums)
        with self.seen.clock("metadata"):
            arrival = self._arrival()
        with self.seen.clock("row_slots"):
            self._row_slots(arrival)
        with self.seen.clock("send_slots"):
            self._grids("send_slots", "dst_buffer_slot_idx", lambda rank, _: arrival.slots(rank))
        if self.handles[0].mode.rules.has_gather_idx:
            with self.seen.clock("gather_pairs"):
                self._grids("gather_pairs", "dst_gsge_idx", arrival.gather_pairs)

    def _fields(self, name: PropertyName, fields: tuple[str, ...]) -> None:
        with self.seen.clock(name):
            sides = [
                {h.rank: {f: _listed(getattr(h, f)) for f in fields} for h in handles}
                for handles in (self.handles, self.have.handles)
            ]
            self._equal(name, sides[0], sides[1])

    def _equal(
        self,
        name: PropertyName,
        wanted: dict[int, Any],
        have: dict[int, Any],
        stream: RowStream | None = None,
    ) -> None:
        if stream is None and _are_same(wanted, have):
            self.seen.add(name, sum(np.size(v) for fields in wanted.values() for v in fields.values()))
            return
        report = compare(wanted, have, streams=[stream] if stream else (), strict_zero=True)
        self.seen.add(name, report.num_elements)
        if not report.is_empty:
            raise PropertyBroken(name, str(report))

    def _arrival(self) -> Arrival:
        """Return the rows in the order in which the backend's metadata has them."""
        first = self.handles[0]
        config, mode = first.config, first.mode
        canonical = canonical_rows(config, self.topk, mode)
        arrived = []
        for wanted, have, rows in zip(self.handles, self.have.handles, canonical, strict=True):
            self._same_shape("metadata", "recv_src_metadata", wanted, have)
            if np.array_equal(np.sort(wanted.gids()), np.sort(have.gids())):
                self.seen.add("metadata", len(have.gids()))
                arrived.append(arrived_rows(rows, have.gids(), config.num_max_tokens_per_rank))
                self._columns(wanted, have, arrived[-1])
                self._order(have.rank, arrived[-1], rows)
                continue
            keys = [RowKeys.from_global_idx(h.gids(), config.num_max_tokens_per_rank) for h in (wanted, have)]
            fields = [{have.rank: {"source": h.gids() * 0}} for h in (wanted, have)]
            stream = RowStream(
                fields=("source",),
                expected={have.rank: keys[0]},
                actual={have.rank: keys[1]},
                order="free",
                name="received rows",
            )
            self._equal("metadata", fields[0], fields[1], stream)
            raise PropertyBroken("metadata", f"sources of rank {have.rank} are {have.gids().tolist()}")
        return Arrival(config=config, topk=self.topk, mode=mode, rows=arrived)

    def _same_shape(self, name: PropertyName, field: str, wanted: Handle, have: Handle) -> None:
        sides = [getattr(h, field) for h in (wanted, have)]
        forms = [None if a is None else f"{a.dtype} {list(a.shape)}" for a in sides]
        if forms[0] != forms[1]:
            raise PropertyBroken(name, f"{field} of rank {have.rank} is {forms[1]}, must be {forms[0]}")

    def _columns(self, wanted: Handle, have: Handle, rows: list[Any]) -> None:
        """Check the masters, the outer number beside them, and which columns have a row here."""
        masters = np.array([row.columns[-1] for row in rows], np.int32)
        sides: list[dict[str, Array]] = [{"master": masters}, {"master": have.masters()}]
        if wanted.mode.rules.metadata_order == "gid_first":
            topk = wanted.config.num_topk
            sides[0]["source * K + master"] = np.array([row.src * topk for row in rows], np.int32) + masters
            sides[1]["source * K + master"] = have.recv_src_metadata[: len(rows), 1]
        if wanted.mode.expand:
            mine = np.zeros((len(rows), wanted.config.num_topk), np.bool_)
            for line, row in zip(mine, rows, strict=True):
                line[row.columns] = True
            sides[0]["columns here"] = mine
            sides[1]["columns here"] = have.expanded_rows() != -1
        self._equal("metadata", {have.rank: sides[0]}, {have.rank: sides[1]})

    def _order(self, rank: int, rows: list[Any], canonical: list[Any]) -> None:
        """Check that each source, and core, has the places that its counts give it."""
        first = self.handles[0]
        parts = [[bound_part(first.config, first.mode, row) for row in order] for order in (canonical, rows)]
        self.seen.add("row_order", len(rows))
        for place, (wanted, have) in enumerate(zip(*parts, strict=True)):
            if wanted != have:
                text = f"row {place} of rank {rank} is from rank {have[0]}, core {have[1]}"
                raise PropertyBroken("row_order", f"{text}; must be from rank {wanted[0]}, core {wanted[1]}")

    def _row_slots(self, arrival: Arrival) -> None:
        if not self.handles[0].mode.expand:
            return
        for have in self.have.handles:
            if have.mode.rules.has_ordered_experts:
                places = np.array(arrival.places(have.rank), np.int32).reshape(-1, have.config.num_topk)
                sides = [{have.rank: {"expanded rows": rows}} for rows in (places, have.expanded_rows())]
                self._equal("row_slots", sides[0], sides[1])
                continue
            blocks, found = arrival.blocks(have.rank), have.expanded_rows()
            choices = [
                (expert, int(found[i, k]))
                for i, row in enumerate(arrival.rows[have.rank])
                for k, expert in experts_of_choices(have.config, self.topk, have.rank, row).items()
            ]
            for expert, group in groupby(sorted(choices), key=lambda pair: pair[0]):
                rows = [row for _, row in group]
                start = blocks.starts[expert]
                self.seen.add("row_slots", len(rows))
                if rows != list(range(start, start + len(rows))):
                    text = f"rows of local expert {expert} of rank {have.rank} are {rows}"
                    raise PropertyBroken("row_slots", f"{text}, must be {len(rows)} from {start} on")

    def _grids(self, name: PropertyName, field: str, of_source: Callable[[int, Array], Array]) -> None:
        sides: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
        for wanted, have in zip(self.handles, self.have.handles, strict=True):
            self._same_shape(name, field, wanted, have)
            grid = getattr(have, field)
            sides[0][have.rank], sides[1][have.rank] = {field: of_source(have.rank, grid)}, {field: grid}
        self._equal(name, sides[0], sides[1])

    # --- rows ----------------------------------------------------------------------------------------

    def check_received(self) -> None:
        """Check the arrays, row by row, matched by the places that the handles give."""
        keys = [
            {h.rank: _row_keys(h, self.topk, self.zero_padding) for h in handles}
            for handles in (self.handles, self.have.handles)
        ]
        with self.seen.clock("identity"):
            for result in self.have.received:
                if result.recv_x.dtype != self.wanted[0].recv_x.dtype:
                    text = f"recv_x is {result.recv_x.dtype}, must be {self.wanted[0].recv_x.dtype}"
                    raise PropertyBroken("rows", text)
            for rank, received in enumerate(self.have.received):
                self._identity(rank, received.recv_x, keys[1][rank])
        fields: tuple[tuple[PropertyName, str], ...] = (
            ("rows", "recv_x"),
            ("scales", "recv_scales"),
            ("weights", "recv_topk_weights"),
            ("local_ids", "recv_topk_idx"),
        )
        for name, field in fields:
            with self.seen.clock(name):
                self._rows(name, field, keys)
        if self.column_major or self.wanted[0].recv_scales is not None:
            self._strides()
        self._stats()

    def _identity(self, rank: int, rows: Array, keys: RowKeys) -> None:
        """Check the word in each row's signs against its place."""
        real = np.flatnonzero(keys.src_rank >= 0)
        if rows.ndim != 2 or len(rows) != keys.num_rows or rows.shape[1] < WORD_COLUMNS:
            return  # another shape is for `rows` to tell
        if not any((array.view(np.uint8) != 0).any() for array in self.x):
            return  # rows of zeros name nothing; the guard will say so
        words = [read_words(array) for array in self.x]
        wanted = [words[s][t] for s, t in zip(keys.src_rank[real], keys.src_token[real], strict=True)]
        self.seen.add("identity", len(real))
        for place, word, have in zip(real, wanted, read_words(rows[real]), strict=True):
            if word != have:
                src, token = keys.row(int(place))
                says = read_identity(rows[place])
                should = read_identity(self.x[src][token])
                raise PropertyBroken("identity", f"row {place} of rank {rank} says: {says}; must be {should}")

    def _rows(self, name: PropertyName, field: str, keys: list[dict[int, RowKeys]]) -> None:
        sides = [
            {rank: {field: getattr(result, field)} for rank, result in enumerate(results)}
            for results in (self.wanted, self.have.received)
        ]
        if all(v[field] is None for side in sides for v in side.values()):
            return
        stream = RowStream(fields=(field,), expected=keys[0], actual=keys[1], order="free", name=field)
        num_padding = _num_padding_elements(sides[0], keys[0], field)
        if num_padding:
            self.seen.add("padding", num_padding)
        num_real = _num_defined(sides[0], keys[0], field) - num_padding
        if all(_same_rows(sides, keys, field, rank) for rank in sides[0]):
            self.seen.add(name, num_real)
            return
        report = compare(*sides, streams=[stream], strict_zero=True)
        self.seen.add(name, num_real)
        if report.is_empty:
            return
        is_padding = all(m.row is not None and m.row[0] == PADDING_ROW for m in report.mismatches)
        raise PropertyBroken("padding" if is_padding else name, str(report))

    def _strides(self) -> None:
        """Check the order of the scales in memory, where a shape can show it."""
        for rank, (wanted, have) in enumerate(zip(self.wanted, self.have.received, strict=True)):
            scales = have.recv_scales
            if scales is None or wanted.recv_scales is None or min(scales.shape) < 2:
                continue
            width, rules = scales.dtype.itemsize, self.handles[0].mode.rules
            strides = (scales.shape[1] * width, width)
            if self.column_major:
                strides = (
                    width,
                    -(-len(scales) // rules.scale_column_rows) * rules.scale_column_rows * width,
                )
            self.seen.add("scales", 1)
            if scales.strides != strides:
                text = f"recv_scales of rank {rank} has strides {scales.strides}, must be {strides}"
                raise PropertyBroken("scales", text)

    def _stats(self) -> None:
        name = "cumulative_local_expert_recv_stats"
        sides = [
            {rank: {name: getattr(r, name)} for rank, r in enumerate(results)}
            for results in (self.wanted, self.have.received)
        ]
        if any(v[name] is not None for side in sides for v in side.values()):
            with self.seen.clock("stats"):
                self._equal("stats", sides[0], sides[1])


def _are_same(wanted: dict[int, Any], have: dict[int, Any]) -> bool:
    """Whether all fields are equal at a glance; anything else is for the comparison to tell."""
    return wanted.keys() == have.keys() and all(
        wanted[rank].keys() == have[rank].keys()
        and all(_is_same(value, have[rank][name]) for name, value in fields.items())
        for rank, fields in wanted.items()
    )


def _is_same(wanted: Any, have: Any) -> bool:  # noqa: ANN401 - fields have every type
    if isinstance(wanted, np.ndarray) and isinstance(have, np.ndarray):
        same_form = (wanted.shape, wanted.dtype) == (have.shape, have.dtype)
        return same_form and wanted.tobytes() == have.tobytes()
    return type(wanted) is type(have) and bool(wanted == have)


def _listed(value: Any) -> Any:  # noqa: ANN401 - fields have every type
    return list(value) if isinstance(value, tuple) else value


def _row_keys(handle: Handle, topk: TopK, zero_padding: bool) -> RowKeys:
    """Return who each row of recv_x is; gaps are padding if they must be zero, else undefined."""
    gid, k = handle.row_origins()
    keys = RowKeys.from_global_idx(gid, handle.num_max_tokens_per_rank)
    if not handle.mode.expand:
        return keys
    real = gid >= 0
    expert = np.zeros(len(gid), np.int64)
    pairs = zip(keys.src_rank[real], keys.src_token[real], k[real], strict=True)
    expert[real] = [topk.topk_idx[s][t, column] for s, t, column in pairs]
    src, token = keys.src_rank.copy(), keys.src_token.copy()
    src[~real], token[~real] = UNDEFINED_ROW, np.flatnonzero(~real)
    if zero_padding:
        gaps = np.flatnonzero(~real)
        src[gaps[gaps < handle.block_starts()[-1]]] = PADDING_ROW
    return replace(keys, src_rank=src, src_token=token, expert=expert)


def _same_rows(
    sides: Sequence[dict[int, Any]], keys: list[dict[int, RowKeys]], field: str, rank: int
) -> bool:
    """Whether both sides have the same rows; anything else is for the comparison to tell."""
    rows = []
    for side, by_rank in zip(sides, keys, strict=True):
        array, key = side[rank][field], by_rank[rank]
        if array is None or array.shape[:1] != (key.num_rows,):
            return False
        order = np.lexsort(key.columns()[::-1])
        order = order[key.src_rank[order] != UNDEFINED_ROW]
        names = [column[order] for column in key.columns()]
        rows.append((array.dtype, array.shape[1:], [n.tobytes() for n in names], array[order].tobytes()))
    return bool(rows[0] == rows[1])


def _num_defined(side: dict[int, dict[str, Array]], keys: dict[int, RowKeys], field: str) -> int:
    """Return how many elements of a field are promised."""
    return sum(
        int((keys[rank].src_rank != UNDEFINED_ROW).sum()) * int(np.prod(fields[field].shape[1:]))
        for rank, fields in side.items()
        if fields[field] is not None
    )


def _num_padding_elements(side: dict[int, dict[str, Array]], keys: dict[int, RowKeys], field: str) -> int:
    """Return how many of the compared elements stand in gaps."""
    return sum(
        int((keys[rank].src_rank == PADDING_ROW).sum()) * int(np.prod(fields[field].shape[1:]))
        for rank, fields in side.items()
        if fields[field] is not None
    )
