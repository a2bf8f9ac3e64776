"""A sum of one term per axis, fitted by least squares to a grid with gaps, with the errors of the fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_COLUMNS = 2_000
"""Numbers of all terms together up to which a grid is fitted: the matrix has this side."""
MAX_KNOTS = 5
"""Numbers that describe an axis with many values and few points at each; one of up to so many has all."""
EASY = 10
"""Points per fitted number that a value of its own, or one more knot, must leave: the customary ten."""
FEWEST = 2
"""Points per fitted number below which nothing is said: less than half of the points would be left to
contradict the fit."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """What one axis adds.

    Args:
      means: float64 [levels], the answer at each value with the other axes balanced; NaN where unknown.
      columns: int64 [levels, 2], the two fitted numbers between which a value lies.
      weights: float64 [levels, 2], their shares.
      covariance: float64 [numbers, numbers] of the fitted numbers.
      num_knots: values between which the term is straight; 0 when every value has a number of its own.
      note: why there is no figure; "" when there is one.
    """

    means: Floats
    columns: Ints
    weights: Floats
    covariance: Floats
    num_knots: int
    note: str

    def error(self, first: int, second: int) -> float:
        """Return the standard error of the difference between the means at two values."""
        contrast = np.zeros(len(self.covariance))
        np.add.at(contrast, self.columns[first], self.weights[first])
        np.subtract.at(contrast, self.columns[second], self.weights[second])
        return math.sqrt(max(0.0, float(contrast @ self.covariance @ contrast)))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The terms of all axes.

    Args:
      terms: one per axis.
      num_free: numbers that were fitted, or would have to be.
      explained: adjusted R^2, the share of the variance that the sum explains beyond what so many numbers
        explain of noise; not below 0, None when the answer does not vary or nothing was fitted.
    """

    terms: tuple[Term, ...]
    num_free: int
    explained: float | None


def fit_terms(levels: Ints, y: Floats, numbers: Sequence[Floats | None], lengths: Sequence[int]) -> Fit:
    """Fit mean + one term per axis.

    Args:
      levels: int64 [points, axes], the place of each point's value.
      y: float64 [points], the answers.
      numbers: per axis the values as float64 [levels]; None for words and axes that walk together.
      lengths: number of values of each axis.

    Returns:
      the terms; all have a note when the points are too few for the numbers to be fitted.
    """
    knots = _choose_knots(levels, numbers)
    bases = [_basis(levels[:, idx], length, knots[idx]) for idx, length in enumerate(lengths)]
    counts = [len(np.unique(columns[levels[:, idx]])) for idx, (columns, _) in enumerate(bases)]
    num_free = 1 + sum(count - 1 for count in counts)
    note = ""
    if len(y) < FEWEST * num_free:
        note = f"too few points ({len(y):,} points, {num_free:,} free numbers)"
    elif num_free > MAX_COLUMNS:
        note = f"not fitted: the grid has gaps and more than {MAX_COLUMNS:,} values"
    if note:
        terms = [
            _term(basis, np.full(length, np.nan), np.zeros((0, 0)), knots[idx], note)
            for idx, (basis, length) in enumerate(zip(bases, lengths, strict=True))
        ]
        return Fit(terms=tuple(terms), num_free=num_free, explained=None)
    return _solve(levels, y, bases, knots, num_free)


def _choose_knots(levels: Ints, numbers: Sequence[Floats | None]) -> list[tuple[Floats, Floats] | None]:
    """Return per axis the place of each value on a line and the knots on it, None = a number per value.

    A value of its own is only for those that `EASY` points share; else the axis gets as many knots as leave
    `EASY` points to each fitted number, two at least: a slope.
    """
    num_points, seen = len(levels), [len(np.unique(column)) for column in levels.T]
    is_sparse = [
        values is not None and count > MAX_KNOTS and num_points < EASY * count
        for values, count in zip(numbers, seen, strict=True)
    ]
    plain = 1 + sum(count - 1 for count, sparse in zip(seen, is_sparse, strict=True) if not sparse)
    num_knots = 1 + (num_points / EASY - plain) / max(1, sum(is_sparse))
    num_knots = min(MAX_KNOTS, max(2, int(num_knots)))
    found: list[tuple[Floats, Floats] | None] = []
    for values, column, sparse in zip(numbers, levels.T, is_sparse, strict=True):
        if values is None or not sparse:
            found.append(None)
            continue
        places = np.log(values) if values.min() > 0 else values
        ends = np.quantile(places[column], np.linspace(0, 1, num_knots), method="nearest")
        found.append((places, np.unique(ends)))
    return found


def _basis(column: Ints, length: int, knots: tuple[Floats, Floats] | None) -> tuple[Ints, Floats]:
    """Return [levels, 2] fitted numbers and their shares; NaN shares where no point can tell."""
    if knots is None:
        seen = np.isin(np.arange(length), column)
        own = np.repeat(np.arange(length)[:, None], 2, axis=1)
        return own, np.where(seen[:, None], [1.0, 0.0], np.nan)
    places, ends = knots
    left = np.clip(np.searchsorted(ends, places, side="right") - 1, 0, len(ends) - 2)
    share = (places - ends[left]) / (ends[left + 1] - ends[left])
    share = np.where((share < 0) | (share > 1), np.nan, share)
    return np.column_stack([left, left + 1]), np.column_stack([1 - share, share])


def _solve(
    levels: Ints,
    y: Floats,
    bases: Sequence[tuple[Ints, Floats]],
    knots: Sequence[tuple[Floats, Floats] | None],
    num_free: int,
) -> Fit:
    widths = [int(columns.max()) + 1 for columns, _ in bases]
    starts = np.concatenate([[0], np.cumsum(widths)])
    pairs = [
        (columns[levels[:, idx], side] + starts[idx], weights[levels[:, idx], side])
        for idx, (columns, weights) in enumerate(bases)
        for side in (0, 1)
    ]
    centre = float(y.mean())
    # Normal equations; each row holds at most two numbers per axis.
    gram, right = np.zeros((starts[-1], starts[-1])), np.zeros(starts[-1])
    for column, weight in pairs:
        np.add.at(right, column, weight * (y - centre))
        for other, share in pairs:
            np.add.at(gram, (column, other), weight * share)
    solved = np.linalg.lstsq(gram, right, rcond=None)[0]
    rank = int(np.linalg.matrix_rank(gram, hermitian=True))
    left = y - centre - sum((weight * solved[column] for column, weight in pairs), np.zeros(len(y)))
    spread, rest = float(((y - centre) ** 2).sum()), float((left**2).sum())
    variance = rest / (len(y) - rank)
    inverse = np.linalg.pinv(gram, hermitian=True) * variance
    terms = []
    for idx, basis in enumerate(bases):
        block = np.arange(starts[idx], starts[idx + 1])
        means = _means(basis, levels[:, idx], solved[block]) + centre
        note = _note(gram, rank, block)
        terms.append(_term(basis, means, inverse[np.ix_(block, block)], knots[idx], note))
    explained = max(0.0, 1 - variance * (len(y) - 1) / spread) if spread else None
    return Fit(terms=tuple(terms), num_free=num_free, explained=explained)


def _means(basis: tuple[Ints, Floats], column: Ints, solved: Floats) -> Floats:
    """Return [levels] the term at each value, 0 on average over the points."""
    columns, weights = basis
    found: Floats = (weights * solved[columns]).sum(axis=1)
    return found - float(found[column].mean())


def _note(gram: Floats, rank: int, block: Ints) -> str:
    seen = int((np.diag(gram)[block] > 0).sum())
    if seen < 2:
        return "only one of its values has an answer"
    rest = np.delete(np.delete(gram, block, axis=0), block, axis=1)
    # Rows alone hold a constant, as the other axes do: rank 1.
    free = rank - (int(np.linalg.matrix_rank(rest, hermitian=True)) if rest.size else 1)
    return "" if free == seen - 1 else "the points there are do not tell it from other axes"


def _term(
    basis: tuple[Ints, Floats],
    means: Floats,
    covariance: Floats,
    knots: tuple[Floats, Floats] | None,
    note: str,
) -> Term:
    return Term(
        means=means, columns=basis[0], weights=basis[1], covariance=covariance,
        num_knots=0 if knots is None else len(knots[1]), note=note,
    )  # fmt: skip
