"""One run of a comparison: checks fields in order, and collects and counts what is wrong."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.comparison.arraydiff import (
    ELEMENT_KINDS,
    ArrayDiff,
    Matched,
    diff_rows,
    find_swaps,
    layout_note,
    moved_rows,
    offset_note,
)
from reference.comparison.fieldset import Fields
from reference.comparison.locator import Locator
from reference.comparison.mismatch import FieldCount, Kind, Mismatch, MismatchReport, row_text
from reference.comparison.rowkeys import UNDEFINED_ROW, Alignment, RowKeys, RowStream, align_rows
from reference.errors import ConfigError


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What was found in one field so far."""

    mismatches: list[Mismatch] = dataclasses.field(default_factory=list)
    num_compared: int = 0
    num_wrong: int = 0
    num_wrong_rows: int = 0
    by_kind: Counter[Kind] = dataclasses.field(default_factory=Counter)
    by_rank: Counter[int] = dataclasses.field(default_factory=Counter)
    by_src_rank: Counter[int] = dataclasses.field(default_factory=Counter)
    by_expert: Counter[int] = dataclasses.field(default_factory=Counter)
    num_sourceless_rows: int = 0

    def count(self, kind: Kind, rank: int, number: int = 1) -> None:
        """Count disagreements of a rank."""
        self.by_kind[kind] += number
        self.by_rank[rank] += number

    def count_rows(self, keys: RowKeys | None, rows: npt.NDArray[np.int64]) -> None:
        """Count wrong rows, by their keys if they have any."""
        self.num_wrong_rows += int(rows.size)
        if keys is None:
            return
        ranks = keys.src_rank[rows]
        self.by_src_rank.update(ranks[ranks >= 0].tolist())
        self.num_sourceless_rows += int(np.count_nonzero(ranks < 0))
        if keys.expert is not None:
            self.by_expert.update(keys.expert[rows].tolist())


class Comparison:
    """One run of `compare`: collects what is found, field by field."""

    def __init__(
        self, streams: Sequence[RowStream], *, strict_zero: bool, any_nan: bool, max_located: int
    ) -> None:
        """Start with nothing found; the arguments are those of `compare`."""
        self.streams: dict[str, RowStream] = {}
        for stream in streams:
            for name in stream.fields:
                if name in self.streams:
                    raise ConfigError("streams", name, "a field belongs to one stream")
                self.streams[name] = stream
        self.strict_zero, self.any_nan, self.max_located = strict_zero, any_nan, max_located
        self.tallies: dict[str, Tally] = {}
        self.alignments: dict[tuple[str, int], Alignment] = {}
        self.num_fields = 0

    def tally(self, name: str) -> Tally:
        """Return the tally of a field, a new one at its first use."""
        return self.tallies.setdefault(name, Tally())

    def found(self, mismatch: Mismatch) -> None:
        """Count a mismatch that is no single element, and show it."""
        tally = self.tally(mismatch.field)
        tally.count(mismatch.kind, mismatch.rank)
        tally.mismatches.append(mismatch)

    def check_presence(self, ours: dict[int, Fields], theirs: dict[int, Fields]) -> None:
        """Report ranks and fields that one side lacks."""
        if not any(ours.values()) and not any(theirs.values()):
            raise ConfigError("expected", "empty", "comparing nothing with nothing proves nothing")
        for rank in sorted(ours.keys() ^ theirs.keys()):
            kind: Kind = "missing_rank" if rank in ours else "extra_rank"
            self.found(Mismatch(kind=kind, field="all fields", rank=rank))
        for rank in sorted(ours.keys() & theirs.keys()):
            mine, other = ours[rank], theirs[rank]
            for name in (n for n in mine if n not in other):
                form = _form(mine[name])
                self.found(Mismatch(kind="missing_field", field=name, rank=rank, expected=form))
            for name in (n for n in other if n not in mine):
                form = _form(other[name])
                self.found(Mismatch(kind="extra_field", field=name, rank=rank, actual=form))

    def check_field(self, name: str, rank: int, mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> None:
        """Compare one field of one rank."""
        self.num_fields += 1
        stream = self.streams.get(name)
        keys = _keys(stream, "expected", rank) if stream else None
        if keys is not None and (mine.ndim == 0 or keys.num_rows != len(mine)):
            rule = f"expected {name} has shape {mine.shape}, one key per row"
            raise ConfigError(f"RowStream.expected[{rank}]", keys.num_rows, rule)
        by_identity = stream is not None and stream.actual is not None
        if by_identity and stream is not None:
            self.check_rows(stream, rank)
        if not self._same_form(name, rank, keys, mine, theirs, by_identity):
            return
        match = Matched(expected=_as_rows(mine), actual=_as_rows(theirs))
        if stream is not None and keys is not None:
            mine_rows = theirs_rows = np.flatnonzero(keys.src_rank != UNDEFINED_ROW)
            if by_identity:
                aligned = self.alignments[stream.name, rank]
                mine_rows, theirs_rows = aligned.expected_rows, aligned.actual_rows
            match = dataclasses.replace(match, expected_rows=mine_rows, actual_rows=theirs_rows)
        diff = diff_rows(match, strict_zero=self.strict_zero, any_nan=self.any_nan)
        self.tally(name).num_compared += diff.num_compared
        if diff.rows.size:
            self._add_elements(name, rank, keys, match, diff, mine, theirs)

    def check_rows(self, stream: RowStream, rank: int) -> None:
        """Match the rows of a stream once, and report those without a partner."""
        if (stream.name, rank) in self.alignments:
            return
        mine, theirs = _keys(stream, "expected", rank), _keys(stream, "actual", rank)
        aligned = self.alignments[stream.name, rank] = align_rows(mine, theirs, stream.order)
        tally = self.tally(stream.name)
        groups: list[tuple[Kind, RowKeys, npt.NDArray[np.int64]]] = [
            ("lost_row", mine, aligned.lost),
            ("doubled_row", theirs, aligned.doubled[:, 0]),
            ("unexpected_row", theirs, aligned.unexpected),
            ("row_order", theirs, aligned.disordered[:, 0]),
        ]
        notes = {
            "doubled_row": {place: f"first copy at row {first}" for place, first in aligned.doubled.tolist()},
            "row_order": {p: f"{_named(mine, q)} must stand here" for p, q in aligned.disordered.tolist()},
        }
        for kind, keys, rows in groups:
            if not rows.size:
                continue
            tally.count(kind, rank, int(rows.size))
            tally.count_rows(keys, rows)
            for place in rows[: self.max_located].tolist():
                tally.mismatches.append(
                    Mismatch(
                        kind=kind,
                        field=stream.name,
                        rank=rank,
                        index=(place,),
                        row=keys.row(place),
                        expert=keys.expert_of(place),
                        note=notes.get(kind, {}).get(place, ""),
                    )
                )

    def _same_form(
        self,
        name: str,
        rank: int,
        keys: RowKeys | None,
        mine: npt.NDArray[Any],
        theirs: npt.NDArray[Any],
        by_identity: bool,
    ) -> bool:
        """Compare shape and dtype; without equal ones no element has a partner."""
        wanted = mine.shape
        if by_identity:
            wanted = (_keys(self.streams[name], "actual", rank).num_rows, *mine.shape[1:])
        if theirs.shape != wanted:
            self.found(
                Mismatch(
                    kind="shape",
                    field=name,
                    rank=rank,
                    expected=str(wanted),
                    actual=str(theirs.shape),
                    note=layout_note(mine, theirs),
                )
            )
            if not by_identity:
                self._explain_rows(name, rank, keys, mine, theirs)
        elif mine.dtype != theirs.dtype and not (mine.dtype.kind == theirs.dtype.kind == "U"):
            # The dtype of a text is its length, which says nothing that its value does not.
            types = str(mine.dtype), str(theirs.dtype)
            self.found(Mismatch(kind="dtype", field=name, rank=rank, expected=types[0], actual=types[1]))
        else:
            return True
        return False

    def _explain_rows(
        self,
        name: str,
        rank: int,
        keys: RowKeys | None,
        mine: npt.NDArray[Any],
        theirs: npt.NDArray[Any],
    ) -> None:
        """Name the rows that are too few or too many, if that alone explains another number of rows."""
        if mine.ndim == 0 or mine.ndim != theirs.ndim or mine.dtype != theirs.dtype:
            return
        if mine.shape[1:] != theirs.shape[1:] or not mine.size or not theirs.size:
            return
        moved = moved_rows(_as_rows(mine), _as_rows(theirs))
        if moved is None:
            return
        first, number = moved
        longer = mine if len(mine) > len(theirs) else theirs
        again = first > 0 and np.array_equal(_as_rows(longer)[first], _as_rows(longer)[first - 1])
        kind: Kind = "lost_row" if longer is mine else "doubled_row" if again else "unexpected_row"
        row = keys.row(first) if keys and longer is mine else None
        note = f"{number} row{'s' if number > 1 else ''} from here; without them all rows agree"
        self.found(Mismatch(kind=kind, field=name, rank=rank, index=(first,), row=row, note=note))

    def _add_elements(
        self,
        name: str,
        rank: int,
        keys: RowKeys | None,
        match: Matched,
        diff: ArrayDiff,
        mine: npt.NDArray[Any],
        theirs: npt.NDArray[Any],
    ) -> None:
        """Count differing elements and locate the first ones."""
        tally = self.tally(name)
        for kind, number in diff.by_kind.items():
            tally.count(kind, rank, number)
        tally.num_wrong += diff.num_wrong
        places = diff.rows if match.expected_rows is None else match.expected_rows[diff.rows]
        tally.count_rows(keys, places)
        locator = Locator(name=name, rank=rank, keys=keys, match=match, shape=theirs.shape)
        swaps = find_swaps(match, diff)
        if swaps:
            tally.by_kind["swapped_rows"] += len(swaps)
        shown = [locator.swap(*swap) for swap in swaps[: self.max_located]]
        explained = {row for swap in swaps for row in swap[:2]}
        counts = dict(zip(diff.rows.tolist(), diff.row_counts.tolist(), strict=True))
        for row, column, kind_idx, width in diff.firsts.tolist():
            if len(shown) >= self.max_located:
                break
            if row not in explained:
                shown.append(locator.element(row, column, ELEMENT_KINDS[kind_idx], counts[row], width))
        note = layout_note(mine, theirs) or offset_note(mine, theirs)
        if note:
            shown[0] = dataclasses.replace(shown[0], note="; ".join(filter(None, (shown[0].note, note))))
        tally.mismatches += shown

    def report(self, skipped: tuple[str, ...]) -> MismatchReport:
        """Close the run."""
        wrong = {name: tally for name, tally in self.tallies.items() if tally.mismatches}
        return MismatchReport(
            mismatches=tuple(m for tally in wrong.values() for m in tally.mismatches),
            counts=tuple(
                FieldCount(field=name, **{k: v for k, v in vars(tally).items() if k != "mismatches"})
                for name, tally in wrong.items()
            ),
            num_fields=self.num_fields,
            num_elements=sum(tally.num_compared for tally in self.tallies.values()),
            skipped_fields=skipped,
        )


def _keys(stream: RowStream, side: str, rank: int) -> RowKeys:
    per_rank = stream.expected if side == "expected" else stream.actual
    try:
        return per_rank[rank]  # type: ignore[index]
    except (KeyError, IndexError):
        raise ConfigError(f"RowStream.{side}", stream.name, f"has no keys of rank {rank}") from None


def _named(keys: RowKeys, place: int) -> str:
    expert = keys.expert_of(place)
    return row_text(keys.row(place)) + ("" if expert is None else f", expert {expert}")


def _as_rows(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return [N, C]: first axis, everything else."""
    if array.ndim == 0:
        return array.reshape(1, 1)
    return array.reshape(array.shape[0], int(np.prod(array.shape[1:], dtype=np.int64)))


def _form(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
