"""What a table says: which parameter moves the answer most, and which points no other one beats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.sweep.plan import Plan
from epsim.sweep.table import Table, as_number

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Sense = Literal["min", "max"]

MAX_LEVELS = 2_000
"""Values of all axes together up to which an incomplete grid is fitted: the matrix has this side."""


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
      note: why there is no figure; "" when there is one.
    """

    name: str
    levels: tuple[str, ...]
    means: tuple[float, ...]
    elasticity: float | None
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
      mean: of the answer over all points that have one.
      num_used: points that have one.
      num_points: of the sweep.
      is_average: whether the means are plain averages of a full grid; else they come from a least-squares
        fit of a sum of one term per axis, which a grid with gaps needs to keep axes apart.
      explained: share of the answer's variance that such a sum explains; the rest is interaction, None
        when the answer does not vary or nothing was fitted.
    """

    column: str
    effects: tuple[Effect, ...]
    mean: float
    num_used: int
    num_points: int
    is_average: bool
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
    levels = np.array([plan.levels(point) for point in plan.point_ids], dtype=np.int64)[used]
    dims = [idx for idx, length in enumerate(plan.shape) if length > 1]
    is_average = plan.is_complete and bool(used.all())
    lengths = [plan.shape[idx] for idx in dims]
    if is_average:
        means = [_level_means(levels[:, idx], y, plan.shape[idx]) for idx in dims]
        notes = [""] * len(dims)
    else:
        means, notes = _additive_fit(levels[:, dims], y, lengths)
    effects = [
        _effect(table, plan.dimensions[idx], mean, note)
        for idx, mean, note in zip(dims, means, notes, strict=True)
    ]
    return Sensitivity(
        column=column,
        effects=tuple(sorted(effects, key=lambda effect: -effect.size)),
        mean=float(y.mean()),
        num_used=int(used.sum()),
        num_points=len(plan.point_ids),
        is_average=is_average,
        explained=_explained(levels[:, dims], y, means),
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


def _level_means(levels: Ints, y: Floats, length: int) -> Floats:
    counts = np.bincount(levels, minlength=length)
    sums = np.bincount(levels, weights=y, minlength=length)
    means: Floats = np.divide(sums, counts, out=np.full(length, np.nan), where=counts > 0)
    return means


def _additive_fit(levels: Ints, y: Floats, lengths: Sequence[int]) -> tuple[list[Floats], list[str]]:
    """Fit mean + one term per dimension by least squares.

    Returns:
      per dimension the mean answer at each level with the others balanced, and why there is none.
    """
    if sum(lengths) > MAX_LEVELS:
        note = f"not fitted: the grid has gaps and more than {MAX_LEVELS:,} values"
        return [np.full(length, np.nan) for length in lengths], [note] * len(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = levels + starts[:-1]
    # Normal equations of indicator columns: counts of rows in which two values meet.
    gram = np.zeros((starts[-1], starts[-1]))
    right = np.zeros(starts[-1])
    for column in places.T:
        np.add.at(right, column, y - y.mean())
        for other in places.T:
            np.add.at(gram, (column, other), 1)
    terms = np.linalg.lstsq(gram, right, rcond=None)[0]
    rank = np.linalg.matrix_rank(gram, hermitian=True)
    means, notes = [], []
    for idx, length in enumerate(lengths):
        block = np.arange(starts[idx], starts[idx] + length)
        counts = np.diag(gram)[block]
        seen = counts > 0
        rest = np.delete(np.delete(gram, block, axis=0), block, axis=1)
        # Rows alone hold a constant, as the other axes do: rank 1.
        free = rank - (np.linalg.matrix_rank(rest, hermitian=True) if rest.size else 1)
        if seen.sum() < 2:
            notes.append("only one of its values has an answer")
        else:
            told = free == seen.sum() - 1
            notes.append("" if told else "the points there are do not tell it from other axes")
        centred = terms[block] - np.average(terms[block], weights=counts)
        means.append(np.where(seen, y.mean() + centred, np.nan))
    return means, notes


def _explained(levels: Ints, y: Floats, means: Sequence[Floats]) -> float | None:
    spread = float(((y - y.mean()) ** 2).sum())
    fitted = y.mean() + sum(
        (mean[column] - y.mean() for mean, column in zip(means, levels.T, strict=True)), 0.0
    )
    left = float(((y - fitted) ** 2).sum())
    return 1 - left / spread if spread and math.isfinite(left) else None


def _effect(table: Table, names: tuple[str, ...], means: Floats, note: str) -> Effect:
    axes = table.plan.axes
    levels = ["/".join(str(axes[name][idx]) for name in names) for idx in range(len(means))]
    elasticity = None if note or len(names) > 1 else _elasticity(axes[names[0]], means)
    return Effect(
        name="+".join(names),
        levels=tuple(levels),
        means=tuple(float(mean) for mean in means),
        elasticity=elasticity,
        note=note,
    )


def _elasticity(values: Sequence[Any], means: Floats) -> float | None:
    numbers = [as_number(value) for value in values]
    known = [
        (number, float(mean))
        for number, mean in zip(numbers, means, strict=True)
        if number is not None and math.isfinite(mean)
    ]
    if None in numbers or len(known) < 2 or min(min(pair) for pair in known) <= 0:
        return None
    (low, first), (high, last) = min(known), max(known)
    return math.log(last / first) / math.log(high / low)
