"""What a comparison found: located disagreements, counts, and the error that carries them.

An empty `MismatchReport` is the only meaning of "equal".
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from reference.comparison.rowkeys import NO_SOURCE_ROW, PADDING_ROW

Kind = Literal[
    "missing_rank",
    "extra_rank",
    "missing_field",
    "extra_field",
    "shape",
    "dtype",
    "lost_row",
    "doubled_row",
    "unexpected_row",
    "row_order",
    "swapped_rows",
    "nonfinite",
    "value",
    "zero_sign",
    "nan_bits",
]
"""What is wrong, in the order of the checks.

nonfinite: NaN or Inf on one side only, or Inf of the other sign. zero_sign: +0 against -0, reported only
on request. nan_bits: two NaN with different bits. swapped_rows: two rows hold each other's values.
"""

Value = float | int | bool | str | None
"""An element, a shape or a dtype as text, or None where a side has nothing."""

NUM_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One located disagreement.

    Args:
      kind: see `Kind`.
      field: name of the array, or of the row stream for whole rows.
      rank: whose array it is.
      index: place in the actual array; for a lost row, its place in the expected one.
      row: (source rank, token) of that row, when rows have keys.
      expert: the row's expert, when the keys tell it.
      expected: value of the expected side.
      actual: value of the actual side.
      ulp: steps of the common float format between the two, -1 if just one is NaN; None if no floats.
      other_row: swapped_rows: the partner's (source rank, token), when rows have keys.
      other_index: swapped_rows: the partner's place.
      note: what the pattern looks like, in words; may be empty.
    """

    kind: Kind
    field: str
    rank: int
    index: tuple[int, ...] = ()
    row: tuple[int, int] | None = None
    expert: int | None = None
    expected: Value = None
    actual: Value = None
    ulp: int | None = None
    other_row: tuple[int, int] | None = None
    other_index: tuple[int, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        """Say it in one line: what, where, both values, how far apart."""
        place = f"{self.field} at rank {self.rank}"
        if self.index:
            place += f", index {list(self.index)}"
        if self.row is not None:
            place += f", {row_text(self.row)}"
        if self.expert is not None:
            place += f", expert {self.expert}"
        values = ""
        if self.expected is not None or self.actual is not None:
            values = f": expected {_shown(self.expected)}, got {_shown(self.actual)}"
        if self.ulp is not None and self.ulp >= 0:
            values += f" ({self.ulp} ulp)"
        note = f"; {self.note}" if self.note else ""
        return f"{self.kind.replace('_', ' ')}: {place}{values}{note}"

    def to_dict(self) -> dict[str, Any]:
        """Return what is known as plain JSON values.

        NaN and Inf become text, unknown keys are left out, and a row without a source is said in words.
        """
        known = {name: value for name, value in vars(self).items() if value not in (None, (), "")}
        if self.ulp is not None and self.ulp < 0:
            del known["ulp"]
        for name in ("row", "other_row"):
            row = getattr(self, name)
            if row is not None and row[0] < 0:
                known[name] = row_text(row)
        return {name: _plain(value) for name, value in known.items()}


@dataclass(frozen=True, kw_only=True)
class FieldCount:
    """How much of one field is wrong, over all ranks.

    Args:
      field: name of the array or row stream.
      num_compared: elements that were looked at.
      num_wrong: of them, those that disagree; 0 if the field fails as a whole or by whole rows.
      num_wrong_rows: rows that disagree, are lost, doubled or unexpected.
      by_kind: disagreements of each kind.
      by_rank: disagreements at each rank that has any.
      by_src_rank: wrong rows by source rank; empty without keys. Rows without a source are not in it.
      by_expert: wrong rows by expert; empty if the keys name none.
      num_sourceless_rows: wrong rows that have no source: padding, or rows whose metadata names none.
    """

    field: str
    num_compared: int
    num_wrong: int
    num_wrong_rows: int
    by_kind: Mapping[Kind, int]
    by_rank: Mapping[int, int]
    by_src_rank: Mapping[int, int] = dataclasses.field(default_factory=dict)
    by_expert: Mapping[int, int] = dataclasses.field(default_factory=dict)
    num_sourceless_rows: int = 0

    def __post_init__(self) -> None:
        """Freeze the tables."""
        for name in ("by_kind", "by_rank", "by_src_rank", "by_expert"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __str__(self) -> str:
        """Say it in one line."""
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in self.by_kind.items())
        text = f"{self.field}: {kinds}"
        if self.num_wrong:
            text += f"; {self.num_wrong} of {self.num_compared} elements in {self.num_wrong_rows} rows"
        for label, table in (
            ("rank", self.by_rank),
            ("source rank", self.by_src_rank),
            ("expert", self.by_expert),
        ):
            if table:
                text += f"; by {label} {_table(table)}"
        if self.num_sourceless_rows:
            rows = "row" if self.num_sourceless_rows == 1 else "rows"
            text += f"; {self.num_sourceless_rows} {rows} without a source"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values; keys of tables become text."""
        return {
            name: {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class MismatchReport:
    """Everything that a comparison found; empty means equal.

    It has no truth value on purpose: `assert compare(...)` would pass when the two differ.

    Args:
      mismatches: the first few of each field and rank, fields in order, then ranks.
      counts: one entry per field with a mismatch, same order.
      num_fields: (field, rank) pairs that were compared.
      num_elements: elements that were compared.
      skipped_fields: fields that the caller asked to leave out.
    """

    mismatches: tuple[Mismatch, ...]
    counts: tuple[FieldCount, ...]
    num_fields: int
    num_elements: int
    skipped_fields: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the two sides are equal."""
        return not self.mismatches

    def __bool__(self) -> bool:
        """Refuse.

        Raises:
          TypeError: always.
        """
        raise TypeError("a MismatchReport has no truth value; ask .is_empty, or call assert_equal")

    def __str__(self) -> str:
        """Show the first ten mismatches, then the counts."""
        skipped = f"; not compared: {', '.join(self.skipped_fields)}" if self.skipped_fields else ""
        compared = f"{self.num_elements} elements of {self.num_fields} arrays compared{skipped}"
        if self.is_empty:
            return f"equal: {compared}"
        lines = [str(mismatch) for mismatch in self.mismatches[:NUM_SHOWN]]
        if len(self.mismatches) > NUM_SHOWN:
            lines.append(f"... and {len(self.mismatches) - NUM_SHOWN} more located ones")
        return "\n".join([f"not equal: {compared}", *lines, "counts:", *(f"  {c}" for c in self.counts)])

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {
            "is_empty": self.is_empty,
            "num_fields": self.num_fields,
            "num_elements": self.num_elements,
            "skipped_fields": list(self.skipped_fields),
            "mismatches": [mismatch.to_dict() for mismatch in self.mismatches],
            "counts": [count.to_dict() for count in self.counts],
        }


class MismatchError(AssertionError):
    """Two sides that must be equal are not; `report` says where, the message shows its first ten."""

    def __init__(self, report: MismatchReport) -> None:
        """Carry a report that is not empty."""
        self.report = report
        super().__init__(str(report))


def row_text(row: tuple[int, int]) -> str:
    """Name a row by its source, or say that it has none."""
    if row[0] == PADDING_ROW:
        return f"padding row {row[1]}"
    if row[0] == NO_SOURCE_ROW:
        return f"no rank: metadata holds the value {row[1]}, which names no source"
    return f"token {row[1]} of rank {row[0]}"


def _shown(value: Value) -> str:
    return "nothing" if value is None else str(value)


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _table(table: Mapping[int, int]) -> str:
    items = [f"{key}: {count}" for key, count in list(table.items())[:NUM_SHOWN]]
    more = f", ... {len(table) - NUM_SHOWN} more" if len(table) > NUM_SHOWN else ""
    return "{" + ", ".join(items) + more + "}"
