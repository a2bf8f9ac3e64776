"""Predicted against measured: every row of a measurement file through `epsim.predict`.

The arrows point one way: rows are read to choose the case and to compare, never to predict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from epsim.calibration.cases import Target, metric_bytes, target_of
from epsim.calibration.measured import LOGICAL, PACKAGED, SCALEOUT, Answer, Measurement, packaged_measurements
from epsim.calibration.missing import implied_wire_gb_per_s, missing_terms
from epsim.errors import InputError
from epsim.inputs.counting import Draws
from epsim.model.closedform import Operation
from epsim.predict import predict
from epsim.prediction import Prediction, Predictions
from reference.errors import ConfigError
from reference.memory.sizes import Dtype
from topology.errors import TopologyError

LARGE_ERROR = 0.10
"""Beyond it a comparison must say which terms are missing."""


@dataclass(frozen=True, kw_only=True)
class Compared(Answer):
    """One quantity of a row, predicted and measured.

    Args:
      low: smallest predicted value of a rank.
      high: largest; low = high where the prediction has one value for all ranks.
    """

    low: float
    high: float

    @property
    def overlaps(self) -> bool:
        """Whether predicted and measured ranges meet."""
        return self.low <= self.measured.high and self.measured.low <= self.high

    @property
    def width_ratio(self) -> float | None:
        """Predicted over measured width; None when either has none."""
        measured = self.measured.high - self.measured.low
        return (self.high - self.low) / measured if measured > 0 and self.high > self.low else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row, predicted and measured.

    Args:
      row: the measurement.
      target: what was predicted for it.
      prediction: the answer.
      bandwidth: GB/s by the row's metric; None when the row has none.
      latency: us; None when the row has none.
      numerator: how the row's GB/s were counted.
    """

    row: Measurement
    target: Target
    prediction: Prediction
    bandwidth: Compared | None
    latency: Compared | None
    numerator: str

    @property
    def main(self) -> Compared:
        """The figure that the row publishes: its GB/s, else its time."""
        found = self.bandwidth or self.latency
        assert found is not None
        return found

    @property
    def is_calibrated(self) -> bool:
        """Whether a fit may have used the row."""
        return self.row.use == "calibrate"

    @property
    def is_derived(self) -> bool:
        """Whether a packaged profile took a number from the row, or was chosen with it in view."""
        return self.row.is_derived_from or bool(self.target.derived_from)

    @property
    def worst_error(self) -> float:
        """The relative error that is farthest from zero, of bandwidth and time."""
        return max((c.error for c in (self.bandwidth, self.latency) if c is not None), key=abs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the row's own figures say about its numerator and its ports."""
        found = [note for note in (self._numerator_note(),) if note]
        needed = implied_wire_gb_per_s(self.row, self.prediction)
        if needed is not None and needed > self.prediction.payload_limit_gb_per_s:
            found.append(f"the measured time means {needed:.0f} GB/s out of every card")
        return tuple(found)

    def _numerator_note(self) -> str:
        """Say when published GB/s times published time are other bytes than the numerator used here."""
        row = self.row
        if row.bandwidth is None or row.latency is None or row.metric in (LOGICAL, SCALEOUT):
            return ""
        implied = row.bandwidth.middle * 1e3 * row.latency.middle
        used = metric_bytes(row, 0.0)[0]
        rounding = sum(r.rounding / r.middle for r in (row.bandwidth, row.latency))
        if abs(implied - used) <= implied * rounding:
            return ""
        return (
            f"{row.bandwidth.text} GB/s x {row.latency.text} us are {implied / 1e6:.2f} MB per rank, and "
            f"the numerator used here ({self.numerator}) gives {used / 1e6:.2f} MB: the publication counts "
            "other bytes or another time"
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Terms that the prediction lacks, when the error is large; never empty then."""
        if abs(self.worst_error) <= LARGE_ERROR:
            return ()
        main = self.main
        is_fast = main.error > 0 if main.unit == "GB/s" else main.error < 0
        return missing_terms(self.row, self.prediction, is_fast=is_fast)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All rows of one or more files.

    Args:
      comparisons: in the order of the rows.
    """

    comparisons: tuple[Comparison, ...]

    @cached_property
    def calibrated(self) -> tuple[Comparison, ...]:
        """Rows marked for fits."""
        return tuple(c for c in self.comparisons if c.is_calibrated)

    @cached_property
    def derived(self) -> tuple[Comparison, ...]:
        """Rows that no fit used, but that a packaged profile depends on."""
        return tuple(c for c in self.comparisons if not c.is_calibrated and c.is_derived)

    @cached_property
    def independent(self) -> tuple[Comparison, ...]:
        """Rows that neither a fit nor a packaged profile used."""
        return tuple(c for c in self.comparisons if not c.is_calibrated and not c.is_derived)

    @property
    def is_packaged_fit(self) -> bool:
        """Whether the rows marked for fits are those that the packaged profile was fitted to."""
        known = packaged_measurements("published")
        return bool(self.calibrated) and all(c.row in known for c in self.calibrated)

    @property
    def outside(self) -> tuple[Comparison, ...]:
        """Calibrated rows whose predicted mean lies outside the published range."""
        return tuple(c for c in self.calibrated if not c.main.is_inside)

    def __str__(self) -> str:
        """Return the report as plain text."""
        from epsim.report.measured import validation_text

        return validation_text(self)


def all_packaged() -> tuple[Measurement, ...]:
    """Return the rows of all measurement files that come with epsim."""
    return tuple(row for name in PACKAGED for row in packaged_measurements(name))


def validate(
    rows: Sequence[Measurement] | None = None,
    *,
    draws: Draws = None,
    seed: int = 0,
    software: str | None = None,
    settings: Mapping[str, str | float] | None = None,
) -> Validation:
    """Predict every row and compare.

    Args:
      rows: measurements; None = all that come with epsim.
      draws: None = exact expectation, with the range over ranks from order statistics; else sampled
        routings, see `epsim.predict.predict`.
      seed: of the first draw.
      software: profile instead of each row's own.
      settings: single parameters on top, for all rows.

    Raises:
      InputError: a row names an unknown system, or a case that cannot be predicted.
    """
    rows = all_packaged() if rows is None else tuple(rows)
    runs: dict[tuple[object, ...], Predictions] = {}
    found = []
    for row in rows:
        target = _target(row, software, settings or {})
        found.append(_compare(row, target, _predict(row, target, draws, seed, rows, runs)))
    return Validation(comparisons=tuple(found))


def _target(row: Measurement, software: str | None, settings: Mapping[str, str | float]) -> Target:
    target = target_of(row)
    return replace(target, software=software or target.software, settings={**target.settings, **settings})


def _shape(row: Measurement) -> tuple[object, ...]:
    """Return what one routing serves: dispatch and combine of a shape are predicted together."""
    return (
        row.system,
        row.generation,
        row.kernel,
        row.ep_size,
        row.tokens_per_rank,
        row.hidden,
        row.num_topk,
        row.num_experts,
    )


def _predict(
    row: Measurement,
    target: Target,
    draws: Draws,
    seed: int,
    rows: Sequence[Measurement],
    runs: dict[tuple[object, ...], Predictions],
) -> Prediction:
    # A combine row says nothing of dispatch's dtype and does not depend on it.
    dtype: Dtype = row.element_dtype if row.op != "combine" else "fp8"
    key = (*_shape(row), dtype)
    if key not in runs:
        operations: list[Operation] = [
            op
            for op in dict.fromkeys(other.op for other in rows if _shape(other) == _shape(row))
            if op == "combine" or op == row.op or dtype == "fp8"
        ]
        runs[key] = _run(row, target, dtype, operations, draws, seed)
    return runs[key].one(row.op, row.ep_size)


def _run(
    row: Measurement,
    target: Target,
    dtype: Dtype,
    operations: Sequence[Operation],
    draws: Draws,
    seed: int,
) -> Predictions:
    try:
        return predict(
            target.system,
            ep=row.ep_size,
            tokens=row.tokens_per_rank,
            token_counts=target.token_counts,
            operations=operations,
            dtype=dtype,
            hidden=row.hidden,
            num_experts=row.num_experts,
            num_topk=row.num_topk,
            draws=draws,
            seed=seed,
            ranks_per_supernode=target.ranks_per_supernode,
            software=target.software,
            settings=target.settings,
        )
    except (InputError, ConfigError, TopologyError) as error:
        raise InputError(f"{row.where}, {error.field}", error.value, error.rule) from error


def _compare(row: Measurement, target: Target, item: Prediction) -> Comparison:
    latency = None
    if row.latency is not None:
        time = item.time_us
        latency = Compared(unit="us", measured=row.latency, predicted=time, low=time, high=time)
    bandwidth, how = None, ""
    if row.bandwidth is not None:
        value, how = _bandwidth(row, item)
        # Ranks share the time, so a rank's part of the metric follows its received bytes.
        spread = (1.0, 1.0)
        if row.metric == LOGICAL and item.gb_per_s_mean > 0:
            spread = item.gb_per_s_min / item.gb_per_s_mean, item.gb_per_s_max / item.gb_per_s_mean
        bandwidth = Compared(
            unit="GB/s",
            measured=row.bandwidth,
            predicted=value,
            low=value * spread[0],
            high=value * spread[1],
        )
    return Comparison(
        row=row, target=target, prediction=item, bandwidth=bandwidth, latency=latency, numerator=how
    )


def _bandwidth(row: Measurement, item: Prediction) -> tuple[float, str]:
    """Return predicted GB/s by the row's metric, and how its bytes are counted."""
    if row.metric == SCALEOUT:
        if item.scaleout_gb_per_s is None:
            rule = "needs a group over several scale-up domains"
            raise InputError(f"{row.where}, metric", row.metric, rule)
        return item.scaleout_gb_per_s, "rows that reach a domain, own domain included"
    logical_bytes = item.gb_per_s_mean * 1e3 * item.time_us
    count, how = metric_bytes(row, logical_bytes)
    return count / 1e3 / item.time_us, how
