"""A small Levenberg-Marquardt solver with bounds: deterministic, NumPy only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epsim.model.loads import Floats

Residuals = Callable[[Floats], Floats]
MAX_STEPS = 200
STEP_TOLERANCE = 1e-6
"""Largest scaled step at which a fit counts as converged: a hundredth of the last digit that is written."""
CENTRAL = 6e-6
"""About the cube root of the rounding unit: where truncation and rounding of a central difference meet."""
FORWARD = 1.5e-8
"""About its square root, for the cheaper forward difference."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """A least-squares fit.

    Args:
      x: [n] parameters.
      residuals: [m] at x.
      steps: Jacobians that were needed.
      converged: whether the last step was within the tolerance.
    """

    x: Floats
    residuals: Floats
    steps: int
    converged: bool

    @property
    def rms(self) -> float:
        """Root of the mean square of the residuals."""
        return float(np.sqrt(np.mean(self.residuals**2)))


def jacobian(residuals: Residuals, x: Floats, scale: Floats) -> Floats:
    """Return [m, n] derivatives by x / scale, by central differences."""
    steps = np.diag(CENTRAL * scale)
    return np.stack([(residuals(x + s) - residuals(x - s)) / (2 * CENTRAL) for s in steps], axis=1)


def _quick_jacobian(residuals: Residuals, x: Floats, scale: Floats, values: Floats) -> Floats:
    """Return [m, n] derivatives by forward differences: enough for a step, half the evaluations."""
    return np.stack([(residuals(x + s) - values) / FORWARD for s in np.diag(FORWARD * scale)], axis=1)


def minimise(residuals: Residuals, start: Floats, scale: Floats, lower: Floats, upper: Floats) -> Solution:
    """Minimise the sum of squared residuals.

    Args:
      residuals: [n] -> [m]; smooth enough for differences.
      start: [n] first guess.
      scale: [n] typical size of a change; steps are measured in it.
      lower: [n] smallest allowed values.
      upper: [n] largest allowed values.
    """
    x = np.clip(start, lower, upper)
    values = residuals(x)
    damping, moved = 1e-6, float("inf")
    for count in range(1, MAX_STEPS + 1):
        slopes = _quick_jacobian(residuals, x, scale, values)
        gradient = slopes.T @ values
        # A parameter that a bound holds must not turn the others' step; it rejoins when it is pulled back.
        free = ~(((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0)))
        before, moved = moved, 0.0
        while damping < 1e12:
            step = _damped_step(slopes, values, free, damping)
            trial = np.clip(x + step * scale, lower, upper)
            trial_values = residuals(trial)
            moved = float(np.max(np.abs(trial - x) / scale))
            if trial_values @ trial_values <= values @ values:
                x, values, damping = trial, trial_values, max(damping / 10, 1e-12)
                break
            if moved <= STEP_TOLERANCE:
                break
            damping *= 10
        # Near the minimum steps shrink by a constant factor or faster, so the next one can be foreseen.
        is_foreseen = before < np.inf and moved < 1e-3 and moved * moved / before <= STEP_TOLERANCE
        if moved <= STEP_TOLERANCE or is_foreseen:
            return Solution(x=x, residuals=values, steps=count, converged=True)
    return Solution(x=x, residuals=values, steps=MAX_STEPS, converged=False)


def _damped_step(slopes: Floats, values: Floats, free: np.ndarray, damping: float) -> Floats:
    step = np.zeros(slopes.shape[1])
    if not free.any():
        return step
    active = slopes[:, free]
    size = np.linalg.norm(active, axis=0)
    size[size == 0] = 1.0
    # Appending sqrt(damping) x columns' size solves the damped normal equations without squaring them.
    padded = np.vstack([active, np.sqrt(damping) * np.diag(size)])
    target = np.concatenate([-values, np.zeros(active.shape[1])])
    step[free] = np.linalg.lstsq(padded, target, rcond=None)[0]
    return step


def dependent_columns(slopes: Floats, tolerance: float = 1e-5) -> tuple[int, ...]:
    """Return the columns that a fit cannot tell apart; empty when all can.

    Columns are compared at unit length, so that units do not matter. The tolerance is far above the error
    of central differences and far below any correlation that a fit can use.

    Args:
      slopes: [m, n] derivatives.
      tolerance: smallest singular value that counts.
    """
    size = np.linalg.norm(slopes, axis=0)
    if (size == 0).any():
        return tuple(int(i) for i in np.flatnonzero(size == 0))
    _, singular, directions = np.linalg.svd(slopes / size, full_matrices=True)
    if len(singular) == slopes.shape[1] and singular[-1] > tolerance:
        return ()
    return tuple(int(i) for i in np.flatnonzero(np.abs(directions[-1]) > 0.1))
