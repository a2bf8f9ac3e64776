"""`epsim.calibrate`: fit software parameters to measurements, and say how far the fit can be trusted.

The targets are the mid-points of the measured ranges, the residuals relative errors of equal weight. The
knee of the fan-out loss is not smooth, so it is chosen on a grid by the rms of the whole fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor, log10
from typing import Literal

import numpy as np

from epsim.calibration.fitmodel import FitModel, build_model, free_parameter
from epsim.calibration.leastsquares import Residuals, Solution, dependent_columns, jacobian, minimise
from epsim.calibration.measured import Measurement
from epsim.calibration.result import Calibration, FittedParameter, LeftOut, Residual, flat, rms, worst
from epsim.errors import InputError
from epsim.model.closedform import OPERATIONS
from epsim.model.loads import Floats
from epsim.platform.profile import Software, Text, numbers_digest
from epsim.platform.quantity import Quantity, given
from topology.source import Source

DEFAULT_FIT = ("hbm_efficiency", "fanout_slope_dispatch", "fanout_slope_combine")
KNEE_GRID = tuple(range(16, 33))
"""Whole numbers of ranks between two measured group sizes, where the published curves bend."""
SLOPES = ("fanout_slope_dispatch", "fanout_slope_combine")
DIGITS = 4
"""Significant digits of a fitted number: one more than its spread has."""
NUM_DRAWS = 200
MAX_DRAWS = 10_000
LEAST_ERROR = 0.02
"""Error to expect of a perfect fit: the caveats of the published figures say 1-2 % inside EP8-EP128."""
TOKENS_DIVISOR = 4
"""Down to this part of the measured tokens a fit may speak; the fixed terms stay below 3 % there."""
_SCALE = {"count": 1.0, "ratio": 0.1, "time": 1e-6, "rate": 1e9, "size": 1.0}
"""A typical change of a parameter that starts at zero, by dimension, in SI units."""


def calibrate(
    rows: Sequence[Measurement],
    *,
    measurements: str = "measurements",
    fit: Sequence[str] = DEFAULT_FIT,
    knee: float | Literal["grid"] = "grid",
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
    leave_one_out: bool = True,
    all_rows: bool = False,
    name: str | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> Calibration:
    """Fit software parameters to measurements.

    Args:
      rows: measurements of one card within one scale-up domain.
      measurements: what to call them in sources.
      fit: names of the free parameters of the software profile.
      knee: ranks beyond which the wire slows down, or "grid" to choose it by rms. Ignored when
        fanout_knee itself is free.
      software: profile to start from and to take held numbers from; None = the rows' own.
      settings: numbers to hold at other values, name -> value with unit.
      leave_one_out: also predict every group size from the others.
      all_rows: use rows marked "validate", too.
      name: of the fitted profile; None = that of the base.
      num_draws: fits to targets drawn inside the measured ranges, for the spread; 0 = none.
      seed: of these draws.

    Returns:
      Calibration; its `software` can be given to `epsim.predict.predict` or written with `profile_toml`.

    Raises:
      InputError: no rows, unknown or whole-number parameters, more parameters than rows, parameters that
        these rows cannot tell apart, or a fit that does not settle.
    """
    used = tuple(row for row in rows if all_rows or row.use == "calibrate")
    if not used:
        raise InputError(measurements, "no row", "must hold at least one row with use=calibrate")
    held = dict(settings or {})
    model = build_model(used, _names(fit, held), software=software, settings=held)
    model = replace(model, software=replace(model.software, name=name or model.software.name))
    model, is_grid = _settle_knee(model, knee)
    solutions = _scan(model) if is_grid else {model.knee: _solve(model, _start(model))}
    model = model.with_knee(min(solutions, key=lambda key: (solutions[key].rms, key)))
    solution = solutions[model.knee]
    _check_identifiable(model, solution.x)
    values = np.array([_round(value) for value in solution.x])
    draws = _spread(model, solution.x, num_draws, seed)
    sizes = model.ep_sizes if leave_one_out else ()
    left_out = tuple(_leave_out(model, size, solution.x) for size in sizes)
    residuals = model.residuals(values)
    chosen_again = tuple(_leave_out_knee(model, size, solutions) for size in sizes if is_grid)
    source = _source(measurements, residuals, left_out, chosen_again)
    fitted = model.with_values(values, source)
    if is_grid:
        fitted = replace(fitted, fanout_knee=replace(fitted.fanout_knee, source=source))
    errors = left_out + chosen_again
    return Calibration(
        measurements=measurements,
        hardware=model.hardware,
        software=_with_domain(fitted, model, measurements, flat(errors) or residuals, bool(errors)),
        parameters=_parameters(model, values, draws),
        knee=model.with_values(values).fanout_knee.value,
        knee_scan=tuple((key, found.rms) for key, found in solutions.items()) if is_grid else (),
        residuals=residuals,
        left_out=left_out,
        left_out_knee=chosen_again,
        correlation=_correlation(draws),
        num_draws=num_draws,
        seed=seed,
        steps=solution.steps,
    )


def _names(fit: Sequence[str], settings: Mapping[str, object]) -> tuple[str, ...]:
    names = tuple(fit)
    if not names:
        raise InputError("fit", "", "must name at least one parameter")
    for name in names:
        free_parameter(name)
        if names.count(name) > 1:
            raise InputError("fit", name, "must be named once")
        if name in settings:
            raise InputError("fit", name, "is both free and set to a value")
    return names


def _settle_knee(model: FitModel, knee: float | Literal["grid"]) -> tuple[FitModel, bool]:
    """Hold the knee if that was asked for; tell whether a grid is to choose it.

    Raises:
      InputError: a knee below one rank or beyond every group, or fewer rows than free numbers.
    """
    is_free = "fanout_knee" in model.names
    is_grid = knee == "grid" and not is_free and _depends_on_knee(model)
    if knee != "grid" and not is_free:
        if not 1 <= knee < float("inf"):
            raise InputError("knee", knee, "must be grid or a number of ranks of at least 1")
        model = model.with_knee(knee, given(f"held by the user: knee={knee:g}"))
    if not is_free and not is_grid:
        _check_knee(model)
    count = len(model.names) + is_grid
    if len(model.cases) < count:
        text = ", ".join((*model.names, *(("the knee",) if is_grid else ())))
        raise InputError("fit", text, f"are {count} free numbers, and there are {len(model.cases)} rows")
    return model, is_grid


def _check_knee(model: FitModel) -> None:
    """Refuse free slopes where no group lies beyond the knee that is held."""
    slopes = ", ".join(name for name in model.names if name in SLOPES)
    largest = model.ep_sizes[-1]
    if slopes and largest <= model.knee:
        rule = f"no measured group lies beyond it, the largest is EP{largest}; nothing tells {slopes} then"
        raise InputError("knee", f"{model.knee:g} ranks", rule)


def _depends_on_knee(model: FitModel) -> bool:
    """Tell whether a grid means anything: some group lies beyond it, and some slope is not zero."""
    slopes = any(name in model.names or getattr(model.software, name).value != 0 for name in SLOPES)
    return slopes and model.ep_sizes[-1] > KNEE_GRID[0]


def _start(model: FitModel) -> Floats:
    return np.array([getattr(model.software, name).value for name in model.names])


def _scale(model: FitModel, start: Floats) -> Floats:
    floors = [_SCALE[free_parameter(name).dimension] for name in model.names]
    return np.maximum(np.abs(start), floors)


def _errors(model: FitModel, targets: Floats | None = None) -> Residuals:
    """Return the relative errors as a function of the free parameters."""
    goal = model.targets() if targets is None else targets
    return lambda values: model.answers(values) / goal - 1


def _solve(model: FitModel, start: Floats, targets: Floats | None = None) -> Solution:
    solution = minimise(_errors(model, targets), start, _scale(model, start), *_bounds(model))
    if not solution.converged:
        raise InputError(
            "fit", ", ".join(model.names), f"does not settle in {solution.steps} steps; free fewer parameters"
        )
    return solution


def _bounds(model: FitModel) -> tuple[Floats, Floats]:
    """Return [n] smallest and largest legal values."""
    declared = [free_parameter(name) for name in model.names]
    return (
        np.array([d.least for d in declared]),
        np.array([np.inf if d.most is None else d.most for d in declared]),
    )


def _scan(model: FitModel) -> dict[float, Solution]:
    """Solve at every knee of the grid, each from the solution of its neighbour."""
    found: dict[float, Solution] = {}
    start = _start(model)
    for knee in KNEE_GRID:
        found[float(knee)] = _solve(model.with_knee(knee), start)
        start = found[float(knee)].x
    return found


def _check_identifiable(model: FitModel, values: Floats, rows: str = "these rows") -> None:
    slopes = jacobian(_errors(model), values, _scale(model, values))
    blocked = [model.names[index] for index in dependent_columns(slopes)]
    if len(blocked) == 1:
        raise InputError("fit", blocked[0], f"cannot be fitted: {rows} do not depend on it")
    if blocked:
        raise InputError("fit", ", ".join(blocked), f"cannot be told apart by {rows}; hold one of them")


def _leave_out(model: FitModel, ep_size: int, start: Floats) -> LeftOut:
    """Fit without one group size and predict it, the knee held."""
    rest = model.keep(ep_size=ep_size, is_left_out=True)
    if len(rest.cases) < len(model.names):
        rule = f"leaves {len(rest.cases)} rows for {len(model.names)} free numbers"
        raise InputError("leave one out", f"EP{ep_size}", rule)
    solution = _solve(rest, start)
    _check_identifiable(rest, solution.x, f"the rows without EP{ep_size}")
    rows = model.keep(ep_size=ep_size, is_left_out=False).residuals(solution.x)
    return LeftOut(ep_size=ep_size, knee=model.knee, residuals=rows)


def _leave_out_knee(model: FitModel, ep_size: int, full: Mapping[float, Solution]) -> LeftOut:
    """Fit without one group size, the knee chosen again, and predict it."""
    rest = model.keep(ep_size=ep_size, is_left_out=True)
    # The full fit at the same knee is a good start: one group size moves it little.
    found = {knee: _solve(rest.with_knee(knee), full[knee].x) for knee in full}
    best = min(found, key=lambda knee: (found[knee].rms, knee))
    held = model.with_knee(best).keep(ep_size=ep_size, is_left_out=False)
    return LeftOut(ep_size=ep_size, knee=best, residuals=held.residuals(found[best].x))


def _spread(model: FitModel, values: Floats, num_draws: int, seed: int) -> Floats:
    """Return [draws, n] fits to targets drawn evenly inside the measured ranges, rounding included.

    The knee is held: it is a choice of the whole fit, not a smooth number.
    """
    if type(num_draws) is not int or not 0 <= num_draws <= MAX_DRAWS:
        raise InputError("draws", num_draws, f"must be a whole number from 0 to {MAX_DRAWS}")
    low = np.array([c.measured.low - c.measured.rounding for c in model.cases])
    high = np.array([c.measured.high + c.measured.rounding for c in model.cases])
    targets = np.random.default_rng(seed).uniform(low, high, size=(num_draws, len(low)))
    found = [_solve(model, values, goal).x for goal in targets]
    return np.array(found).reshape(num_draws, len(values))


def _correlation(draws: Floats) -> Floats:
    size = draws.shape[1]
    if len(draws) < 2 or (draws.std(axis=0) == 0).any():
        return np.full((size, size), np.nan)
    return np.atleast_2d(np.corrcoef(draws, rowvar=False))


def _round(value: float) -> float:
    """Keep the digits that matter."""
    return value if value == 0 else round(value, DIGITS - 1 - floor(log10(abs(value))))


def _parameters(model: FitModel, values: Floats, draws: Floats) -> tuple[FittedParameter, ...]:
    found = []
    for index, name in enumerate(model.names):
        start: Quantity = getattr(model.software, name)
        column = draws[:, index] if len(draws) else np.array([np.nan])
        low, high = np.percentile(column, [5, 95])
        found.append(
            FittedParameter(
                name=name,
                dimension=start.dimension,
                start=start.value,
                value=float(values[index]),
                deviation=float(column.std()),
                low=float(low),
                high=float(high),
            )
        )
    return tuple(found)


def _source(
    measurements: str, rows: tuple[Residual, ...], held: tuple[LeftOut, ...], again: tuple[LeftOut, ...]
) -> Source:
    """Say what a fitted number rests on, with the larger of the errors of a left-out group size."""
    sizes = sorted({row.ep_size for row in rows})
    span = f"EP{sizes[0]}" if len(sizes) == 1 else f"EP{sizes[0]} to EP{sizes[-1]}"
    said = f"epsim calibrate on {measurements}: {len(rows)} rows, {span}, mid-points of the ranges"
    said += f"; rms {rms(rows):.2%}, worst {worst(rows):.2%}"
    if held:
        said += f", worst of a left-out group size {worst(flat(held + again)):.2%}"
    if again:
        said += f" (knee held {worst(flat(held)):.2%}, chosen again {worst(flat(again)):.2%})"
        said += "; the knee was chosen on the same data"
    elif not held:
        said += "; no group size was left out"
    return Source("fitted", said)


def _with_domain(
    software: Software, model: FitModel, measurements: str, errors: tuple[Residual, ...], are_left_out: bool
) -> Software:
    """Add what the fit may speak for, all of it from the rows, and the fingerprint of the numbers."""
    rows = [case.row for case in model.cases]
    covers = Source("fitted", f"what the rows of {measurements} cover")
    fewest = min(row.tokens_per_rank for row in rows)
    tokens = Source(
        "assumed",
        f"fewest tokens per rank of the rows of {measurements}, {fewest:,}, divided by {TOKENS_DIVISOR}: "
        "tokens cancel in every term but the fixed one",
    )
    kind = "left-out group sizes" if are_left_out else "the fit itself, no group size was left out"
    error = Source(
        "fitted",
        f"the larger of {LEAST_ERROR:.0%} and {worst(errors):.2%}, the worst of {kind}, {measurements}",
    )
    pairs = {f"{row.op} {row.element_dtype}": OPERATIONS.index(row.op) for row in rows}

    def covered(values: Iterable[int]) -> tuple[Quantity, Quantity]:
        every = list(values)
        return _count(min(every), covers), _count(max(every), covers)

    ranks, hidden = covered(row.ep_size for row in rows), covered(row.hidden for row in rows)
    topk = covered(row.num_topk for row in rows)
    return replace(
        software,
        calibrated_hardware=Text(value=model.hardware.name, source=covers),
        calibrated_ranks_least=ranks[0],
        calibrated_ranks_most=ranks[1],
        calibrated_tokens_least=_count(max(1, fewest // TOKENS_DIVISOR), tokens),
        calibrated_operations=Text(
            value=", ".join(sorted(pairs, key=lambda p: (pairs[p], p))), source=covers
        ),
        calibrated_hidden_least=hidden[0],
        calibrated_hidden_most=hidden[1],
        calibrated_topk_least=topk[0],
        calibrated_topk_most=topk[1],
        calibrated_error=Quantity(
            value=max(LEAST_ERROR, float(f"{worst(errors):.2g}")), dimension="ratio", source=error
        ),
        calibrated_digest=Text(
            value=numbers_digest(model.hardware, software),
            source=Source("fitted", f"fingerprint of all numbers that the fit to {measurements} went with"),
        ),
    )


def _count(value: int, source: Source) -> Quantity:
    return Quantity(value=float(value), dimension="count", source=source)
