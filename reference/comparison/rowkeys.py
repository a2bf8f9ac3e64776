"""Rows of received streams and their identity: matched by (source rank, token), never by their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError

UNDEFINED_ROW = -1
"""Source rank of a row whose contents nobody promises; such rows are never compared."""
PADDING_ROW = -2
"""Source rank of a row that is promised but has no source, such as a zeroed gap; number them by src_token."""
NO_SOURCE_ROW = -3
"""Source rank of a row whose metadata names no source; its src_token is the value that stands there."""

RowOrder = Literal["free", "source", "canonical"]
"""free: rows may stand anywhere. source: the experts' blocks and, inside, the source ranks must stand in the
expected order, tokens of one source rank may not (upstream slots come from atomics). canonical: exactly."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowKeys:
    """Identity of each row of one rank's stream.

    Args:
      src_rank: [N] source rank, UNDEFINED_ROW, PADDING_ROW or NO_SOURCE_ROW.
      src_token: [N] token at its source.
      expert: [N] expert of each row of an expanded stream, where a token may stand several times; None
        if a token stands once.

    Raises:
      ConfigError: a column is not one list of whole numbers, or lengths differ.
    """

    src_rank: npt.NDArray[np.int64]
    src_token: npt.NDArray[np.int64]
    expert: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Check the columns and hold them as read-only int64."""
        for name in ("src_rank", "src_token", "expert"):
            given = getattr(self, name)
            if given is None:
                continue
            column = np.asarray(given)
            if column.size == 0:
                column = column.astype(np.int64)
            if column.ndim != 1 or column.dtype.kind not in "iu":
                shown = f"{column.ndim}-d {column.dtype}"
                raise ConfigError(f"RowKeys.{name}", shown, "must be one list of whole numbers")
            column = column.astype(np.int64)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
            if column.size != self.src_rank.size:
                raise ConfigError(
                    f"RowKeys.{name}", f"{column.size} rows", f"src_rank has {self.src_rank.size}"
                )

    @classmethod
    def from_global_idx(
        cls, gid: npt.ArrayLike, num_max_tokens_per_rank: int, expert: npt.NDArray[np.int64] | None = None
    ) -> "RowKeys":
        """Split global source indices, gid = source rank * M + source token; a negative one is undefined.

        Source: deepep-v2.md section 0.
        """
        capacity = whole_number("num_max_tokens_per_rank", num_max_tokens_per_rank, 1)
        rank, token = np.divmod(np.asarray(gid, dtype=np.int64), capacity)
        return cls(src_rank=np.where(rank < 0, UNDEFINED_ROW, rank), src_token=token, expert=expert)

    @property
    def num_rows(self) -> int:
        """N, undefined rows included."""
        return int(self.src_rank.size)

    def row(self, position: int) -> tuple[int, int]:
        """Return (source rank, token) of a row."""
        return int(self.src_rank[position]), int(self.src_token[position])

    def expert_of(self, position: int) -> int | None:
        """Return the expert of a row, None if the keys name none."""
        return None if self.expert is None else int(self.expert[position])

    def columns(self) -> list[npt.NDArray[np.int64]]:
        """Return the key columns, the one that orders blocks first: expert, source rank, token."""
        return [*([] if self.expert is None else [self.expert]), self.src_rank, self.src_token]


PerRank = Mapping[int, RowKeys] | Sequence[RowKeys]
"""Keys of each rank, by rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStream:
    """Fields whose first axis is one stream of received rows.

    Args:
      fields: names of these fields.
      expected: keys of the expected rows, per rank.
      actual: keys of the actual rows, per rank; None = the actual rows claim to stand as expected.
      order: see `RowOrder`.
      name: what a report calls the stream; default: its fields joined by "+".

    Raises:
      ConfigError: no fields.
    """

    fields: tuple[str, ...]
    expected: PerRank
    actual: PerRank | None = None
    order: RowOrder = "source"
    name: str = ""

    def __post_init__(self) -> None:
        """Fill in the name."""
        if not self.fields or isinstance(self.fields, str):
            raise ConfigError("RowStream.fields", self.fields, "must be a tuple of at least one field name")
        object.__setattr__(self, "name", self.name or "+".join(self.fields))


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """Which expected row is which actual row.

    Args:
      expected_rows: [A] matched rows, ascending places in the expected stream.
      actual_rows: [A] their places in the actual stream; of several copies, the first.
      lost: places in the expected stream of rows that the actual one lacks.
      doubled: (place of a further copy, place of the first) in the actual stream.
      unexpected: places in the actual stream of rows that nobody expects.
      disordered: (place in the actual stream where another block must stand, place of the row in the
        expected stream that belongs there); empty if rows are missing or extra, since then every later
        place has moved.
    """

    expected_rows: npt.NDArray[np.int64]
    actual_rows: npt.NDArray[np.int64]
    lost: npt.NDArray[np.int64]
    doubled: npt.NDArray[np.int64]
    unexpected: npt.NDArray[np.int64]
    disordered: npt.NDArray[np.int64]


def align_rows(expected: RowKeys, actual: RowKeys, order: RowOrder = "source") -> Alignment:
    """Match two streams by identity.

    Args:
      expected: keys of the expected rows, each at most once.
      actual: keys of the actual rows; may repeat.
      order: how far the places of the two must agree.

    Raises:
      ConfigError: an expected row repeats, or only one side names experts.
    """
    if (expected.expert is None) != (actual.expert is None):
        raise ConfigError("RowKeys.expert", "given on one side only", "must be given on both or on none")
    codes, other_codes = _encode(expected.columns(), actual.columns())
    mine = np.flatnonzero(expected.src_rank != UNDEFINED_ROW)
    theirs = np.flatnonzero(actual.src_rank != UNDEFINED_ROW)
    by_code = mine[np.argsort(codes[mine], kind="stable")]
    repeat = np.flatnonzero(np.diff(codes[by_code]) == 0)
    if repeat.size:
        row = expected.row(int(by_code[repeat[0] + 1]))
        raise ConfigError("RowStream.expected", row, "an expected row must stand once")
    sorted_theirs = theirs[np.argsort(other_codes[theirs], kind="stable")]
    first, found = _find(codes[mine], other_codes[sorted_theirs])
    _, is_expected = _find(other_codes[theirs], codes[by_code])
    copies = np.flatnonzero(np.diff(other_codes[sorted_theirs], prepend=-1) == 0)
    first_copy, _ = _find(other_codes[sorted_theirs[copies]], other_codes[sorted_theirs])
    doubled = np.stack([sorted_theirs[copies], sorted_theirs[first_copy]], axis=1)
    lost, unexpected = mine[~found], theirs[~is_expected]
    whole = not (lost.size or doubled.size or unexpected.size)
    disordered = _out_of_order(expected, actual, mine, theirs, order) if whole else np.empty((0, 2), np.int64)
    return Alignment(
        expected_rows=mine[found],
        actual_rows=sorted_theirs[first[found]],
        lost=lost,
        doubled=doubled[np.argsort(doubled[:, 0])],
        unexpected=unexpected,
        disordered=disordered,
    )


def _find(
    wanted: npt.NDArray[np.int64], ascending: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the first place of each wanted code in a sorted list, and whether it is there."""
    place = np.searchsorted(ascending, wanted, side="left").astype(np.int64)
    found = place < ascending.size
    found[found] = ascending[place[found]] == wanted[found]
    return place, found


def _out_of_order(
    expected: RowKeys,
    actual: RowKeys,
    mine: npt.NDArray[np.int64],
    theirs: npt.NDArray[np.int64],
    order: RowOrder,
) -> npt.NDArray[np.int64]:
    """Return [D, 2] pairs of places that `order` does not let stand against each other."""
    wrong = np.zeros(theirs.size, dtype=np.bool_)
    pairs = list(zip(expected.columns(), actual.columns(), strict=True))
    bound = {"free": 0, "source": len(pairs) - 1, "canonical": len(pairs)}[order]
    for ours, other in pairs[:bound]:
        wrong |= ours[mine] != other[theirs]
    return np.stack([theirs[wrong], mine[wrong]], axis=1)


def _encode(
    expected: Sequence[npt.NDArray[np.int64]], actual: Sequence[npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return one non-negative code per row, equal exactly where all columns are."""
    num_expected = expected[0].size
    table = [np.concatenate(pair) for pair in zip(expected, actual, strict=True)]
    if table[0].size == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    code: npt.NDArray[Any] = np.zeros(table[0].size, np.int64)
    span = 1
    for column in table:
        least = int(column.min())
        width = int(column.max()) - least + 1
        span *= width
        if span >= 2**63:
            # Keys of any size are legal, such as garbage in an uninitialised row.
            _, code = np.unique(np.stack(table, axis=1), axis=0, return_inverse=True)
            code = code.reshape(-1).astype(np.int64)
            break
        code = code * width + (column - least)
    return code[:num_expected], code[num_expected:]
