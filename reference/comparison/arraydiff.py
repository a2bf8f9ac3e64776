"""Where two arrays of one dtype differ: patterns of NaN and Inf first, then bytes; and what it looks like.

Arrays are seen as [rows, columns]; rows may be matched by two lists of places. Work goes by blocks of rows,
so that comparing streams of gigabytes needs little memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.comparison.mismatch import Kind, Value
from reference.formats.dtypes import E2M1, is_float, is_nan, to_bits, ulp_distance, widen

BLOCK_BYTES = 4 << 20
ELEMENT_KINDS: tuple[Kind, ...] = ("nonfinite", "value", "zero_sign", "nan_bits")
"""What can be wrong with one element, in the order of the checks."""
MAX_PATTERN_ROWS = 4096
"""Rows among which exchanges are looked for; more than that is no exchange but another failure."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayDiff:
    """Differences of two matched lists of rows.

    Args:
      num_compared: elements that were looked at.
      by_kind: elements of each kind of ELEMENT_KINDS, those without any left out.
      rows: [W] matched rows with a difference, ascending.
      row_counts: [W] differing elements of each.
      firsts: [F, 4] of the first MAX_PATTERN_ROWS such rows: row, column of its first difference in
        the order of the checks, place of its kind in ELEMENT_KINDS, width of the span of columns that
        holds all its differences.
    """

    num_compared: int
    by_kind: dict[Kind, int]
    rows: Rows
    row_counts: Rows
    firsts: Rows

    @property
    def num_wrong(self) -> int:
        """Differing elements."""
        return int(self.row_counts.sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """Two [N, C] arrays of one dtype, and which row is which.

    Args:
      expected: [N, C].
      actual: [N', C].
      expected_rows: [A] places of the matched rows, None = all in order.
      actual_rows: [A] places of their partners, None = all in order.
    """

    expected: npt.NDArray[Any]
    actual: npt.NDArray[Any]
    expected_rows: Rows | None = None
    actual_rows: Rows | None = None

    @property
    def num_rows(self) -> int:
        """A, matched rows."""
        return int(self.expected.shape[0] if self.expected_rows is None else self.expected_rows.size)

    def take(self, rows: slice | Rows) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return both sides of some matched rows."""
        mine = self.expected[rows if self.expected_rows is None else self.expected_rows[rows]]
        theirs = self.actual[rows if self.actual_rows is None else self.actual_rows[rows]]
        return mine, theirs

    def place(self, row: int) -> tuple[int, int]:
        """Return the places of a matched row on both sides."""
        mine = row if self.expected_rows is None else int(self.expected_rows[row])
        theirs = row if self.actual_rows is None else int(self.actual_rows[row])
        return mine, theirs


def diff_rows(matched: Matched, *, strict_zero: bool = False, any_nan: bool = False) -> ArrayDiff:
    """Compare matched rows.

    Args:
      matched: what to compare.
      strict_zero: count +0 against -0 as a difference.
      any_nan: take two NaN for equal whatever their bits.
    """
    num_columns = matched.expected.shape[1]
    row_bytes = max(1, num_columns * matched.expected.dtype.itemsize)
    step = max(1, BLOCK_BYTES // row_bytes)
    by_kind = np.zeros(len(ELEMENT_KINDS), np.int64)
    rows, counts, firsts = ([np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty((0, 4), np.int64)])
    for start in range(0, matched.num_rows, step):
        mine, theirs = matched.take(slice(start, start + step))
        row, column = np.nonzero(_codes(mine) != _codes(theirs))
        if not row.size:
            continue
        kind = _kinds(mine[row, column], theirs[row, column], strict_zero, any_nan)
        row, column, kind = row[kind >= 0], column[kind >= 0], kind[kind >= 0]
        by_kind += np.bincount(kind, minlength=len(ELEMENT_KINDS))
        wrong, begin, count = np.unique(row, return_index=True, return_counts=True)
        rows.append(wrong + start)
        counts.append(count)
        width = column[begin + count - 1] - column[begin] + 1
        in_check_order = np.lexsort((column, kind, row))[begin]
        firsts.append(np.stack([wrong + start, column[in_check_order], kind[in_check_order], width], axis=1))
    return ArrayDiff(
        num_compared=matched.num_rows * num_columns,
        by_kind={kind: int(n) for kind, n in zip(ELEMENT_KINDS, by_kind, strict=True) if n},
        rows=np.concatenate(rows).astype(np.int64),
        row_counts=np.concatenate(counts).astype(np.int64),
        firsts=np.concatenate(firsts)[:MAX_PATTERN_ROWS].astype(np.int64),
    )


def _codes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what must agree bit by bit."""
    if not is_float(values.dtype):
        return values
    codes = to_bits(values)
    # ml_dtypes reads only the low half of the byte that holds an e2m1.
    return codes & np.uint8(0x0F) if values.dtype == E2M1.dtype else codes


def _kinds(
    mine: npt.NDArray[Any], theirs: npt.NDArray[Any], strict_zero: bool, any_nan: bool
) -> npt.NDArray[np.int64]:
    """Return, per differing element, its place in ELEMENT_KINDS; -1 = equal by contract."""
    kinds = np.full(mine.shape, ELEMENT_KINDS.index("value"), np.int64)
    if not is_float(mine.dtype):
        return kinds
    if mine.dtype.itemsize < 4:
        # Comparisons of ml_dtypes are slow, and e8m0 has no zero to compare with.
        mine, theirs = widen(mine), widen(theirs)
    with np.errstate(invalid="ignore"):
        finite, zero = np.isfinite(mine) & np.isfinite(theirs), (mine == 0) & (theirs == 0)
    kinds[~finite] = ELEMENT_KINDS.index("nonfinite")
    kinds[is_nan(mine) & is_nan(theirs)] = -1 if any_nan else ELEMENT_KINDS.index("nan_bits")
    kinds[zero] = ELEMENT_KINDS.index("zero_sign") if strict_zero else -1
    return kinds


def element_values(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> tuple[Value, Value, int | None]:
    """Return two elements as Python values, and their distance in ulp if they are floats.

    Args:
      mine: 0-d expected element.
      theirs: 0-d actual element.
    """
    if not is_float(mine.dtype):
        return _plain(mine), _plain(theirs), None
    distance = int(ulp_distance(mine, theirs))
    if is_nan(mine) and is_nan(theirs):
        # Only their bits can tell two NaN apart.
        return f"nan {int(to_bits(mine)):#x}", f"nan {int(to_bits(theirs)):#x}", distance
    return float(mine), float(theirs), distance


def _plain(value: npt.NDArray[Any]) -> Value:
    item = value.item()
    return item if isinstance(item, int | bool | str) else str(item)


def find_swaps(matched: Matched, diff: ArrayDiff) -> list[tuple[int, int, list[int]]]:
    """Return (row, other row, columns), ascending, for pairs that hold each other's values.

    A pair counts only if neither row differs anywhere else.

    Args:
      matched: the compared rows.
      diff: their differences.
    """
    if not 2 <= diff.rows.size <= MAX_PATTERN_ROWS:
        return []
    mine, theirs = (_codes(side) for side in matched.take(diff.rows))
    # Rows that were exchanged in the same columns look for each other's bytes there.
    holders: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    swaps = []
    for at in range(diff.rows.size):
        where = mine[at] != theirs[at]
        wants, has = mine[at][where].tobytes(), theirs[at][where].tobytes()
        partners = holders.get((where.tobytes(), has, wants))
        if partners:
            other = partners.pop(0)
            swaps.append((int(diff.rows[other]), int(diff.rows[at]), np.flatnonzero(where).tolist()))
        else:
            holders.setdefault((where.tobytes(), wants, has), []).append(at)
    return sorted(swaps)


def find_source_row(matched: Matched, row: int) -> int | None:
    """Return the matched row whose expected values the actual `row` holds in full, None if there is none."""
    _, theirs = matched.take(np.array([row], np.int64))
    wanted = _codes(theirs)[0]
    num_rows = min(matched.num_rows, MAX_PATTERN_ROWS)
    mine, _ = matched.take(slice(0, num_rows))
    same = np.flatnonzero((_codes(mine) == wanted).all(axis=1))
    return int(same[0]) if same.size == 1 and wanted.size > 1 else None


def layout_note(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> str:
    """Say so if one 2-d array is the other one transposed, or read in the other memory order; else ""."""
    if expected.ndim != 2 or actual.ndim != 2 or expected.dtype != actual.dtype:
        return ""
    if min(expected.shape) < 2 or expected.size != actual.size:
        return ""
    mine, theirs = _codes(expected), _codes(actual)
    if actual.shape == expected.shape[::-1] and np.array_equal(mine.T, theirs):
        return "holds the transpose of what is expected"
    if np.array_equal(mine.T.ravel(), theirs.ravel()):
        return "holds the expected values in column-major order, read as row-major"
    return ""


def offset_note(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> str:
    """Say so if all differing integers of a 1-d array differ by one amount from some place to the end."""
    if expected.ndim != 1 or expected.shape != actual.shape or expected.dtype.kind not in "iu":
        return ""
    wrong = np.flatnonzero(expected != actual)
    steps = {int(a) - int(e) for e, a in zip(expected[wrong], actual[wrong], strict=True)}
    if len(steps) != 1 or wrong.size < 2:
        return ""
    tail = wrong[0] + wrong.size == expected.size
    places = f"every entry from {wrong[0]} on" if tail else f"{wrong.size} entries"
    return f"{places} {'is' if tail else 'are'} off by {steps.pop():+d}"


def moved_rows(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Return (first row, number of rows) that one list of rows has more, if nothing else differs.

    Args:
      expected: [N, C].
      actual: [N', C] of the same dtype, N' != N; the rows are the longer side's.
    """
    mine, theirs = _codes(expected), _codes(actual)
    least = min(len(mine), len(theirs))
    same_head = (mine[:least] == theirs[:least]).all(axis=1)
    same_tail = (mine[len(mine) - least :] == theirs[len(theirs) - least :]).all(axis=1)
    head = least if same_head.all() else int(np.argmin(same_head))
    tail = least if same_tail.all() else int(np.argmin(same_tail[::-1]))
    if head + tail < least:
        return None
    return head, abs(len(mine) - len(theirs))
