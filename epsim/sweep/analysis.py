"""What a table says: which parameter moves the answer most, and which points no other one beats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.sweep.plan import Plan
from epsim.sweep.table import Table, as_number
from epsim.sweep.terms import Term, fit_terms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Sense = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A column and which way is better."""

    column: str
    sense: Sense

    @property
    def text(self) -> str:
        """As the user writes it."""
        return f"{self.sense}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one axis, or one group of axes that walk together, does to the answer.

    Args:
      name: of the axis; a group is joined by "+".
      levels: its values, as text.
      means: the answer at each value, averaged over the other axes; NaN where no point has an answer.
      elasticity: percent of the answer per percent of the axis, between its smallest and largest value;
        None for words, signs and zeros.
      error: standard error of the size; 0 when the means are averages of a full grid.
      share_error: standard error of the size over the mean of the answer.
      elasticity_error: standard error of the elasticity, None where that is.
      num_knots: values between which a fit of few points took the term as straight; 0 when each has its own.
      note: why there is no figure; "" when there is one.
    """

    name: str
    levels: tuple[str, ...]
    means: tuple[float, ...]
    elasticity: float | None
    error: float = 0.0
    share_error: float = 0.0
    elasticity_error: float | None = None
    num_knots: int = 0
    note: str = ""

    @property
    def size(self) -> float:
        """Largest mean less the smallest; 0 when there is no figure."""
        known = [mean for mean in self.means if math.isfinite(mean)]
        return 0.0 if self.note or not known else max(known) - min(known)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Effects of all axes with more than one value on one column, the largest first.

    Args:
      column: the answer.
      effects: of the axes.
      mean: of the answer, over the full grid; of a fit that of all values, of no fit that of the points.
      num_used: points that have one.
      num_points: of the sweep.
      is_average: whether the means are plain averages of a full grid of the values that have answers; else
        they come from a fit of one term per axis, which a grid with gaps needs to keep axes apart.
      is_product: whether the terms of that fit are multiplied.
      num_free: numbers of the terms.
      explained: share of the answer's variance that the terms explain, of a fit the adjusted one; the rest
        is interaction, None when the answer does not vary or nothing was fitted.
    """

    column: str
    effects: tuple[Effect, ...]
    mean: float
    num_used: int
    num_points: int
    is_average: bool
    is_product: bool
    num_free: int
    explained: float | None


def parse_objective(text: str) -> Objective:
    """Read "COLUMN", "min:COLUMN" or "max:COLUMN"; by itself a bandwidth is maximised, all else minimised.

    Raises:
      InputError: another sense.
    """
    sense, colon, column = text.partition(":")
    if not colon:
        return Objective(column=text, sense="max" if "gb_per_s" in text else "min")
    if sense not in ("min", "max") or not column:
        raise InputError("objective", text, "must be a column, min:COLUMN or max:COLUMN")
    return Objective(column=column, sense="min" if sense == "min" else "max")


def check_objective(plan: Plan, objective: Objective) -> None:
    """Refuse an objective before any work.

    Raises:
      InputError: its column will not be there, or will hold words.
    """
    kinds = plan.target.columns
    numeric = [name for name, kind in kinds.items() if kind != "text"]
    numeric += [name for name, values in plan.axes.items() if None not in map(as_number, values)]
    if objective.column not in numeric:
        raise InputError("objective", objective.column, f"must be a column of numbers: {', '.join(numeric)}")


def sensitivity(table: Table, column: str) -> Sensitivity:
    """Tell how far each axis moves a column of numbers.

    Raises:
      InputError: no such column, one of words, or one without a number.
    """
    answers = table.numbers(column)
    used = np.isfinite(answers)
    if not used.any():
        raise InputError("objective", column, "has no number in any row")
    plan, y = table.plan, answers[used]
    dims = [idx for idx, length in enumerate(plan.shape) if length > 1]
    asked = np.array([plan.levels(point) for point in plan.point_ids], dtype=np.int64)[:, dims]
    levels = asked[used]
    lengths, names = [plan.shape[idx] for idx in dims], [plan.dimensions[idx] for idx in dims]
    seen = [len(np.unique(column)) for column in levels.T]
    mean, is_product = float(y.mean()), False
    is_average = len(y) == math.prod(seen)
    if is_average:
        means = [_level_means(column, y, length) for column, length in zip(levels.T, lengths, strict=True)]
        notes = ["" if count > 1 else "only one of its values has an answer" for count in seen]
        effects = [_effect(table, *item) for item in zip(names, means, notes, strict=True)]
        num_free, explained = 1 + sum(seen) - len(seen), _explained(levels, y, means)
    else:
        numbers = [_numbers(plan, group) for group in names]
        fit = fit_terms(levels, y, numbers, lengths, _is_open(asked, levels))
        effects = [
            _effect(table, group, term.means, term.note, term)
            for group, term in zip(names, fit.terms, strict=True)
        ]
        num_free, explained, mean, is_product = fit.num_free, fit.explained, fit.mean, fit.is_product
    return Sensitivity(
        column=column,
        effects=tuple(sorted(effects, key=lambda effect: -effect.size)),
        mean=mean,
        num_used=len(y),
        num_points=len(plan.point_ids),
        is_average=is_average,
        is_product=is_product,
        num_free=num_free,
        explained=explained,
    )


def pareto_front(table: Table, objectives: Sequence[Objective]) -> list[int]:
    """Return the places of the rows that no other row beats: as good in all, better in one.

    Args:
      table: rows without a number in an objective do not take part.
      objectives: at least two.

    Returns:
      row indices, the best in the first objective first; equal rows are all there.

    Raises:
      InputError: fewer than two objectives, or a column of words.
    """
    if len(objectives) < 2:
        raise InputError("objective", ", ".join(o.text for o in objectives), "a front needs at least two")
    costs = np.column_stack([_costs(table, objective) for objective in objectives])
    rows = np.flatnonzero(np.isfinite(costs).all(axis=1))
    # In this order a row can only be beaten by an earlier one.
    rows = rows[np.lexsort(costs[rows].T[::-1])]
    front: list[int] = []
    kept = np.empty_like(costs)
    for row in rows:
        others = kept[: len(front)]
        beaten = (others <= costs[row]).all(axis=1) & (others < costs[row]).any(axis=1)
        if not beaten.any():
            kept[len(front)] = costs[row]
            front.append(int(row))
    return front


def best_and_worst(table: Table, objective: Objective) -> tuple[int, int] | None:
    """Return the places of the best and the worst row, the first ones of equals; None without a number."""
    costs = _costs(table, objective)
    if not np.isfinite(costs).any():
        return None
    return int(np.nanargmin(costs)), int(np.nanargmax(costs))


def _costs(table: Table, objective: Objective) -> Floats:
    numbers = table.numbers(objective.column)
    if objective.column not in table.plan.target.columns:
        # An axis has a value in a refused row, too.
        numbers[[status != "ok" for status in table.column("status")]] = np.nan
    return numbers if objective.sense == "min" else -numbers


def _is_open(asked: Ints, levels: Ints) -> list[bool]:
    """Tell per axis whether values without an answer were just not drawn: one that was refused has none."""
    return [bool(np.isin(*pair).all()) for pair in zip(asked.T, levels.T, strict=True)]


def _level_means(levels: Ints, y: Floats, length: int) -> Floats:
    counts = np.bincount(levels, minlength=length)
    sums = np.bincount(levels, weights=y, minlength=length)
    means: Floats = np.divide(sums, counts, out=np.full(length, np.nan), where=counts > 0)
    return means


def _explained(levels: Ints, y: Floats, means: Sequence[Floats]) -> float | None:
    spread = float(((y - y.mean()) ** 2).sum())
    fitted = y.mean() + sum(
        (mean[column] - y.mean() for mean, column in zip(means, levels.T, strict=True)), 0.0
    )
    return 1 - float(((y - fitted) ** 2).sum()) / spread if spread else None


def _numbers(plan: Plan, names: tuple[str, ...]) -> Floats | None:
    """Return an axis as numbers; None for words and for axes that walk together."""
    numbers = [as_number(value) for value in plan.axes[names[0]]]
    return None if len(names) > 1 or None in numbers else np.array(numbers, np.float64)


def _effect(
    table: Table, names: tuple[str, ...], means: Floats, note: str, term: Term | None = None
) -> Effect:
    axes = table.plan.axes
    levels = ["/".join(str(axes[name][idx]) for name in names) for idx in range(len(means))]
    numbers = None if note else _numbers(table.plan, names)
    elasticity, elasticity_error = _elasticity(numbers, means, term)
    error = share_error = 0.0
    if term is not None and not note:
        ends = int(np.nanargmax(means)), int(np.nanargmin(means))
        error, share_error = term.error(*ends), term.share_error(*ends)
    return Effect(
        name="+".join(names),
        levels=tuple(levels),
        means=tuple(float(mean) for mean in means),
        elasticity=elasticity,
        error=error,
        share_error=share_error,
        elasticity_error=elasticity_error,
        num_knots=0 if term is None else term.num_knots,
        note=note,
    )


def _elasticity(
    numbers: Floats | None, means: Floats, term: Term | None
) -> tuple[float | None, float | None]:
    """Return percent of the answer per percent of the axis between its ends, and its standard error."""
    known = np.flatnonzero(np.isfinite(means))
    if numbers is None or len(known) < 2 or min(numbers[known].min(), means[known].min()) <= 0:
        return None, None
    low, high = (int(known[place(numbers[known])]) for place in (np.argmin, np.argmax))
    width = math.log(numbers[high] / numbers[low])
    if not width:
        return None, None
    error = 0.0 if term is None else term.log_error(low, high) / abs(width)
    return math.log(means[high] / means[low]) / width, error
