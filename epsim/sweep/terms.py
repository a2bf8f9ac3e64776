"""One term per axis, added or multiplied, fitted to a grid with gaps, with the errors of the fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Knots = tuple[Floats, Floats]

MAX_COLUMNS = 2_000
"""Numbers of all terms together up to which a grid is fitted: the matrix has this side."""
FEW_VALUES = 5
"""An axis of up to so many values has a number for each."""
MAX_KNOTS = 8
"""Numbers that describe an axis with many values and few points at each."""
EASY = 10
"""Points that share each value of an axis with a number per value: the customary ten."""
SHAPED = 4
"""Points per fitted number that one more knot must leave."""
FEWEST = 2
"""Points per fitted number below which nothing is said: less than half of the points would be left to
contradict the fit."""
MAX_STEPS = 100
"""Newton steps of the fit of a product, which is convex; it takes about six."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """What one axis adds, or multiplies by.

    Args:
      means: float64 [levels], the answer at each value, averaged over the whole grid of the other axes; NaN
        where unknown.
      slopes: float64 [levels, numbers], derivatives of the means by the fitted numbers of all axes.
      covariance: float64 [numbers, numbers] of the fitted numbers.
      num_knots: values between which the term is straight; 0 when every value has a number of its own.
      note: why there is no figure; "" when there is one.
    """

    means: Floats
    slopes: Floats
    covariance: Floats
    num_knots: int
    note: str

    def error(self, first: int, second: int) -> float:
        """Return the standard error of the difference between the means at two values."""
        return self._error(self.slopes[first] - self.slopes[second])

    def share_error(self, first: int, second: int) -> float:
        """Return that of the difference over the mean of all values, to first order; 0 if that mean is 0."""
        known = np.isfinite(self.means)
        mean = float(self.means[known].mean())
        if not mean:
            return 0.0
        share = float(self.means[first] - self.means[second]) / mean
        slope = self.slopes[first] - self.slopes[second] - share * self.slopes[known].mean(axis=0)
        return self._error(slope / mean)

    def log_error(self, first: int, second: int) -> float:
        """Return that of the logarithm of the ratio of the means at two values, to first order."""
        return self._error(self.slopes[first] / self.means[first] - self.slopes[second] / self.means[second])

    def _error(self, slope: Floats) -> float:
        return math.sqrt(max(0.0, float(slope @ self.covariance @ slope)))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The terms of all axes.

    Args:
      terms: one per axis.
      num_free: numbers that were fitted, or would have to be.
      explained: adjusted R^2, the share of the variance that the fit explains beyond what so many numbers
        explain of noise; not below 0, None when the answer does not vary or nothing was fitted.
      mean: of the answer over the whole grid; of the points when nothing was fitted.
      is_product: whether the terms are multiplied.
    """

    terms: tuple[Term, ...]
    num_free: int
    explained: float | None
    mean: float
    is_product: bool


@dataclass(frozen=True, kw_only=True)
class _Design:
    """Which numbers a point's answer holds.

    Args:
      levels: int64 [points, axes], the place of each point's value.
      knots: per axis the place of each value on a line and the knots on it, None = a number per value.
      bases: per axis int64 [levels, 2], the two numbers between which a value lies, and float64 [levels, 2],
        their shares.
      num_free: numbers without those that a shift between axes makes up for.
    """

    levels: Ints
    knots: list[Knots | None]
    bases: list[tuple[Ints, Floats]]
    num_free: int

    @property
    def starts(self) -> Ints:
        """The first number of each axis, and the count of all."""
        return np.cumsum([0] + [int(columns.max()) + 1 for columns, _ in self.bases], dtype=np.int64)

    def pairs(self) -> list[tuple[Ints, Floats]]:
        """Return [points] numbers and shares, two of each per axis."""
        return [
            (columns[self.levels[:, idx], side] + self.starts[idx], weights[self.levels[:, idx], side])
            for idx, (columns, weights) in enumerate(self.bases)
            for side in (0, 1)
        ]

    def rows(self, idx: int) -> Floats:
        """Return [levels, numbers] the shares of an axis; NaN shares where no point can tell."""
        columns, weights = self.bases[idx]
        found = np.zeros((len(columns), int(self.starts[-1])))
        for side in (0, 1):
            np.add.at(found, (np.arange(len(columns)), columns[:, side] + self.starts[idx]), weights[:, side])
        found[np.isnan(weights[:, 0])] = np.nan
        return found


@dataclass(frozen=True, kw_only=True)
class _Solution:
    """Fitted numbers.

    Args:
      numbers: float64 [numbers], of answers less `centre`, or of the logarithm of answers over it.
      fitted: float64 [points], the answers by the fit.
      known: float64 [numbers, rank], a basis of what the points tell.
      inverse: float64 [rank, rank], of the weighted normal equations in that basis.
    """

    numbers: Floats
    centre: float
    fitted: Floats
    known: Floats
    inverse: Floats


def fit_terms(
    levels: Ints,
    y: Floats,
    numbers: Sequence[Floats | None],
    lengths: Sequence[int],
    is_open: Sequence[bool] | None = None,
) -> Fit:
    """Fit one term per axis: a sum, or a product where all answers are positive and it fits better.

    The product is fitted by quasi-likelihood of variance in proportion to the mean (log link), whose sums at
    each value are those of the answers: on a full grid both fits give the plain averages, so a sample of it
    estimates these.

    Args:
      levels: int64 [points, axes], the place of each point's value.
      y: float64 [points], the answers.
      numbers: per axis the values as float64 [levels]; None for words and axes that walk together.
      lengths: number of values of each axis.
      is_open: per axis whether its pieces go on to values beyond those that have answers; None: no.

    Returns:
      the terms; all have a note when the points are too few for the numbers to be fitted.
    """
    knots = _fewest_knots(levels, numbers, is_open or [False] * len(lengths))
    design = _design(levels, lengths, knots)
    if note := _refusal(design):
        return _unfitted(design, lengths, note, float(y.mean()))
    design = _shaped(design, lengths)
    total = _fit(y, design, _solve(design, y, is_product=False), is_product=False)
    if y.min() <= 0:
        return total
    product = _fit(y, design, _solve(design, y, is_product=True), is_product=True)
    is_possible = all(np.nanmin(term.means) > 0 for term in total.terms)
    return total if is_possible and (total.explained or 0.0) > (product.explained or 0.0) else product


def _refusal(design: _Design) -> str:
    num_points, num_free = len(design.levels), design.num_free
    if num_points < FEWEST * num_free:
        return f"too few points ({num_points:,} points, {num_free:,} free numbers)"
    return (
        f"not fitted: the grid has gaps and more than {MAX_COLUMNS:,} values"
        if num_free > MAX_COLUMNS
        else ""
    )


def _unfitted(design: _Design, lengths: Sequence[int], note: str, mean: float) -> Fit:
    terms = [
        Term(
            means=np.full(length, np.nan), slopes=np.zeros((length, 0)), covariance=np.zeros((0, 0)),
            num_knots=_num_knots(knots), note=note,
        )
        for length, knots in zip(lengths, design.knots, strict=True)
    ]  # fmt: skip
    return Fit(terms=tuple(terms), num_free=design.num_free, explained=None, mean=mean, is_product=False)


def _fewest_knots(
    levels: Ints, numbers: Sequence[Floats | None], is_open: Sequence[bool]
) -> list[Knots | None]:
    """Return a slope for axes of numbers with many values and few points at each, None for others."""
    found: list[Knots | None] = []
    for values, column, is_wide in zip(numbers, levels.T, is_open, strict=True):
        count = len(np.unique(column))
        if values is None or count <= FEW_VALUES or len(levels) >= EASY * count:
            found.append(None)
            continue
        places = np.log(values) if values.min() > 0 else values
        if not is_wide:
            low, high = places[column].min(), places[column].max()
            places = np.where((places < low) | (places > high), np.nan, places)
        found.append((places, _ends(places[column], 2)))
    return found


def _ends(places: Floats, num_knots: int) -> Floats:
    return np.unique(np.quantile(np.unique(places), np.linspace(0, 1, num_knots), method="nearest"))


def _design(levels: Ints, lengths: Sequence[int], knots: list[Knots | None]) -> _Design:
    bases = [_basis(levels[:, idx], length, knots[idx]) for idx, length in enumerate(lengths)]
    counts = [len(np.unique(columns[levels[:, idx]])) for idx, (columns, _) in enumerate(bases)]
    num_free = 1 + sum(count - 1 for count in counts)
    return _Design(levels=levels, knots=knots, bases=bases, num_free=num_free)


def _basis(column: Ints, length: int, knots: Knots | None) -> tuple[Ints, Floats]:
    """Return [levels, 2] fitted numbers and their shares; NaN shares where no point can tell."""
    if knots is None:
        seen = np.isin(np.arange(length), column)
        own = np.repeat(np.arange(length)[:, None], 2, axis=1)
        return own, np.where(seen[:, None], [1.0, 0.0], np.nan)
    places, ends = knots
    left = np.clip(np.searchsorted(ends, places, side="right") - 1, 0, len(ends) - 2)
    share = (places - ends[left]) / (ends[left + 1] - ends[left])
    return np.column_stack([left, left + 1]), np.column_stack([1 - share, share])


def _shaped(design: _Design, lengths: Sequence[int]) -> _Design:
    """Give the axes with knots one more in turn, as long as `SHAPED` points are left per number."""
    for num_knots in range(3, MAX_KNOTS + 1):
        for idx, knots in enumerate(design.knots):
            if knots is None:
                continue
            places, more = knots[0], list(design.knots)
            more[idx] = places, _ends(places[design.levels[:, idx]], num_knots)
            shaped = _design(design.levels, lengths, more)
            if shaped.num_free * SHAPED <= len(design.levels):
                design = shaped
    return design


def _gram(pairs: Sequence[tuple[Ints, Floats]], size: int, weights: Floats) -> Floats:
    """Return [numbers, numbers] the normal equations; a point holds at most two numbers per axis."""
    found = np.zeros((size, size))
    for column, share in pairs:
        for other, other_share in pairs:
            np.add.at(found, (column, other), weights * share * other_share)
    return found


def _known(gram: Floats) -> Floats:
    """Return [numbers, rank] the directions that the points tell."""
    values, vectors = np.linalg.eigh(gram)
    found: Floats = vectors[:, values > values.max() * len(gram) * np.finfo(float).eps]
    return found


def _solve(design: _Design, y: Floats, *, is_product: bool) -> _Solution:
    pairs, size, centre = design.pairs(), int(design.starts[-1]), float(y.mean())
    ones = np.ones(len(y))
    plain = _gram(pairs, size, ones)
    known = _known(plain)
    # Newton from a product's perfect fit; a sum takes one step.
    numbers, fitted = np.zeros(size), y.copy()
    for _ in range(MAX_STEPS if is_product else 1):
        weights = fitted if is_product else ones
        goal = np.log(fitted / centre) + (y - fitted) / fitted if is_product else y - centre
        right = np.zeros(size)
        for column, share in pairs:
            np.add.at(right, column, share * weights * goal)
        gram = known.T @ (_gram(pairs, size, weights) if is_product else plain) @ known
        before, numbers = numbers, known @ np.linalg.solve(gram, known.T @ right)
        line = sum((share * numbers[column] for column, share in pairs), np.zeros(len(y)))
        fitted = centre * np.exp(line) if is_product else centre + line
        if np.abs(numbers - before).max() <= math.sqrt(np.finfo(float).eps):
            break
    # Newton doubles the digits: the last step is at the rounding.
    weights = fitted if is_product else ones
    gram = known.T @ (_gram(pairs, size, weights) if is_product else plain) @ known
    inverse: Floats = np.asarray(np.linalg.inv(gram), np.float64)
    return _Solution(numbers=numbers, centre=centre, fitted=fitted, known=known, inverse=inverse)


def _fit(y: Floats, design: _Design, found: _Solution, *, is_product: bool) -> Fit:
    num, rank = len(y), found.known.shape[1]
    rest, spread = float(((y - found.fitted) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    explained = max(0.0, 1 - rest / (num - rank) * (num - 1) / spread) if spread else None
    means, slopes, mean = _means(design, found, is_product=is_product)
    covariance = _covariance(design, y, found, is_product=is_product)
    plain = _gram(design.pairs(), int(design.starts[-1]), np.ones(num))
    terms = [
        Term(
            means=means[idx], slopes=slopes[idx], covariance=covariance,
            num_knots=_num_knots(design.knots[idx]),
            note=_note(plain, rank, np.arange(design.starts[idx], design.starts[idx + 1])),
        )
        for idx in range(len(means))
    ]  # fmt: skip
    return Fit(
        terms=tuple(terms), num_free=design.num_free, explained=explained, mean=mean, is_product=is_product
    )


def _means(
    design: _Design, found: _Solution, *, is_product: bool
) -> tuple[list[Floats], list[Floats], float]:
    """Return per axis means and slopes of `Term`, and the mean of the grid of all values that are known."""
    rows = [design.rows(idx) for idx in range(len(design.bases))]
    terms = [np.where(np.isnan(row[:, 0]), np.nan, np.nan_to_num(row) @ found.numbers) for row in rows]
    if not is_product:
        centres = [float(np.nanmean(term)) for term in terms]
        mean_rows = [np.nanmean(row, axis=0) for row in rows]
        mean, total = found.centre + sum(centres), np.sum(mean_rows, axis=0)
        means = [mean - centre + term for centre, term in zip(centres, terms, strict=True)]
        return means, [total - mine + row for mine, row in zip(mean_rows, rows, strict=True)], mean
    factors = [np.exp(term) for term in terms]
    centres = [float(np.nanmean(factor)) for factor in factors]
    mean_rows = [
        np.nanmean(factor[:, None] * row, axis=0) / centre
        for factor, row, centre in zip(factors, rows, centres, strict=True)
    ]
    mean, total = found.centre * math.prod(centres), np.sum(mean_rows, axis=0)
    means = [mean / centre * factor for centre, factor in zip(centres, factors, strict=True)]
    slopes = [
        value[:, None] * (total - mine + row) for value, mine, row in zip(means, mean_rows, rows, strict=True)
    ]
    return means, slopes, mean


def _covariance(design: _Design, y: Floats, found: _Solution, *, is_product: bool) -> Floats:
    """Return the sum of that of one variance for all points and that of each point's own misfit.

    The second is HC3 (MacKinnon and White 1985): the misfit to a fit without the point, squared. It counts
    that misfit is larger where answers are; the first, that a point alone at its value cannot misfit. Their
    sum is on the safe side by up to sqrt(2), which samples of few points need.
    """
    pairs, size = design.pairs(), int(design.starts[-1])
    weights: Floats = found.fitted if is_product else np.ones(len(y))
    inverse = found.known @ found.inverse @ found.known.T
    leverage = np.zeros(len(y))
    for column, share in pairs:
        for other, other_share in pairs:
            leverage += weights * share * other_share * inverse[column, other]
    left = y - found.fitted
    variance = float((left**2 / weights).sum()) / (len(y) - found.known.shape[1])
    alone = left / np.maximum(1 - leverage, 1 / len(y))
    own: Floats = inverse @ _gram(pairs, size, alone**2) @ inverse
    total: Floats = inverse * variance + own
    return total


def _num_knots(knots: Knots | None) -> int:
    return 0 if knots is None else len(knots[1])


def _note(gram: Floats, rank: int, block: Ints) -> str:
    seen = int((np.diag(gram)[block] > 0).sum())
    if seen < 2:
        return "only one of its values has an answer"
    rest = np.delete(np.delete(gram, block, axis=0), block, axis=1)
    # Rows alone hold a constant, as the other axes do: rank 1.
    free = rank - (int(np.linalg.matrix_rank(rest, hermitian=True)) if rest.size else 1)
    return "" if free == seen - 1 else "the points there are do not tell it from other axes"
