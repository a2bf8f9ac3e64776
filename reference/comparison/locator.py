"""Turns differing elements of one field into located mismatches."""

import dataclasses

import numpy as np

from reference.comparison.arraydiff import Matched, element_values, find_source_row
from reference.comparison.mismatch import Kind, Mismatch, Value, row_text
from reference.comparison.rowkeys import RowKeys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Locator:
    """One field of one rank.

    Args:
      name: name of the field.
      rank: whose array it is.
      keys: identity of the expected rows, None = they have none.
      match: the compared rows.
      shape: shape of the actual array.
    """

    name: str
    rank: int
    keys: RowKeys | None
    match: Matched
    shape: tuple[int, ...]

    def index(self, row: int, column: int) -> tuple[int, ...]:
        """Return the coordinates in the actual array."""
        if not self.shape:
            return ()
        inner = np.unravel_index(column, self.shape[1:]) if len(self.shape) > 1 else ()
        return (self.match.place(row)[1], *(int(i) for i in inner))

    def values(self, row: int, column: int) -> tuple[Value, Value, int | None]:
        """Return the expected and the actual value, and their distance in ulp."""
        mine, theirs = self.match.place(row)
        # Slices keep the dtype, which single elements of ml_dtypes do not.
        return element_values(
            self.match.expected[mine : mine + 1, column].reshape(()),
            self.match.actual[theirs : theirs + 1, column].reshape(()),
        )

    def identity(self, row: int) -> tuple[tuple[int, int] | None, int | None]:
        """Return (source rank, token) and expert of a matched row, None where there are no keys."""
        place = self.match.place(row)[0]
        return (self.keys.row(place), self.keys.expert_of(place)) if self.keys else (None, None)

    def element(self, row: int, column: int, kind: Kind, count: int, width: int) -> Mismatch:
        """Locate the first difference of a row.

        Args:
          row: matched row.
          column: where the difference is.
          kind: what it is.
          count: differing elements of the row.
          width: columns of the span that holds them.
        """
        expected, actual, ulp = self.values(row, column)
        source, expert = self.identity(row)
        return Mismatch(
            kind=kind,
            field=self.name,
            rank=self.rank,
            index=self.index(row, column),
            row=source,
            expert=expert,
            expected=expected,
            actual=actual,
            ulp=ulp,
            note=self._row_pattern(row, count, width),
        )

    def _row_pattern(self, row: int, count: int, width: int) -> str:
        num_columns = self.match.expected.shape[1]
        if count == 1:
            return ""
        gaps = "without a gap" if count == width else f"spread over {width}"
        note = f"{count} of {num_columns} columns of this row differ, {gaps}"
        other = find_source_row(self.match, row) if 2 * count > num_columns else None
        if other is not None:
            source = self.identity(other)[0]
            name = row_text(source) if source else f"row {self.match.place(other)[0]}"
            note += f"; it holds what {name} should hold"
        return note

    def swap(self, row: int, other: int, columns: list[int]) -> Mismatch:
        """Locate two matched rows that hold each other's values in some columns."""
        first = self.element(row, columns[0], "swapped_rows", 1, 1)
        source = self.identity(other)[0]
        index = self.index(other, columns[0])
        partner = row_text(source) if source else f"index {list(index)}"
        where = f"column {columns[0]}" if len(columns) == 1 else f"{len(columns)} columns"
        return dataclasses.replace(
            first, other_row=source, other_index=index, note=f"exchanged with {partner} in {where}"
        )
