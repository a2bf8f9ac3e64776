"""What a calibration says: parameters with their spread, residuals, and errors of what was left out."""

from dataclasses import dataclass

import numpy as np

from epsim.calibration.measured import Answer
from epsim.platform.profile import Hardware, Software
from topology.units import Dimension


@dataclass(frozen=True, kw_only=True)
class FittedParameter:
    """One free number.

    Args:
      name: in the software profile.
      dimension: what it measures; `value` and the others are in its SI unit.
      start: before the fit.
      value: after it, rounded as it is written.
      deviation: standard deviation over targets drawn inside the measured ranges.
      low: 5th percentile of the same draws.
      high: 95th percentile.
    """

    name: str
    dimension: Dimension
    start: float
    value: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Residual(Answer):
    """One measurement and the fitted model's answer.

    Args:
      id: of the measurement.
      op: operation.
      ep_size: ranks.
    """

    id: str
    op: str
    ep_size: int


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Predictions of one group size by a fit that did not see it.

    Args:
      ep_size: the group size that was left out.
      knee: the knee of that fit.
      residuals: the rows that were left out.
    """

    ep_size: int
    knee: float
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """A fit of software parameters to measurements.

    Args:
      measurements: name of the file.
      hardware: profile of the card.
      software: the fitted profile, with sources.
      parameters: what was free.
      knee: ranks beyond which the wire slows down, in the fitted profile.
      knee_scan: (knee, rms) of the grid; empty when the knee was held or fitted.
      residuals: of all rows that were used.
      left_out: one fit per group size, with the knee of the full fit; empty when not asked for.
      left_out_knee: the same with the knee chosen again by each fit; empty without a grid.
      correlation: [n, n] between parameters over the draws.
      num_draws: draws behind the spread.
      seed: of the draws.
      steps: solver steps of the full fit.
    """

    measurements: str
    hardware: Hardware
    software: Software
    parameters: tuple[FittedParameter, ...]
    knee: float
    knee_scan: tuple[tuple[float, float], ...]
    residuals: tuple[Residual, ...]
    left_out: tuple[LeftOut, ...]
    left_out_knee: tuple[LeftOut, ...]
    correlation: np.ndarray
    num_draws: int
    seed: int
    steps: int

    @property
    def rms(self) -> float:
        """Root of the mean square of the relative errors."""
        return rms(self.residuals)

    @property
    def worst(self) -> float:
        """Largest relative error."""
        return worst(self.residuals)

    @property
    def num_inside(self) -> int:
        """Rows whose prediction lies in the measured range."""
        return sum(row.is_inside for row in self.residuals)

    def __str__(self) -> str:
        """Return the report as plain text."""
        from epsim.report.measured import calibration_text

        return calibration_text(self)


def rms(rows: tuple[Residual, ...]) -> float:
    """Return the root of the mean square of relative errors."""
    return float(np.sqrt(np.mean([row.error**2 for row in rows])))


def worst(rows: tuple[Residual, ...]) -> float:
    """Return the largest relative error, without its sign."""
    return max(abs(row.error) for row in rows)


def flat(left_out: tuple[LeftOut, ...]) -> tuple[Residual, ...]:
    """Return the rows of all left-out groups."""
    return tuple(row for group in left_out for row in group.residuals)
