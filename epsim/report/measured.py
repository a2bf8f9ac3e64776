"""Measurements beside predictions as tables for people, JSON and CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from epsim.calibration.result import Calibration, FittedParameter, LeftOut, flat, rms, worst
from epsim.model.scaling import CANDIDATES, falls
from epsim.platform.quantity import Quantity
from epsim.report.prediction import plain_table
from epsim.validate import Compared, Comparison, Validation
from topology.source import Source

VALIDATION_COLUMNS = (
    "row",
    "limited by",
    "measured",
    "unit",
    "predicted",
    "error",
    "mean is",
    "min..max over ranks",
    "width",
)


def validation_text(validation: Validation) -> str:
    """Return all comparisons: rows that a fit used first, then the others, then what is missing where."""
    parts = []
    marked = "rows marked calibrate"
    if validation.is_packaged_fit:
        marked += ": the packaged fit has used them, so they test its form and not its numbers"
    for title, rows in (
        (marked, validation.calibrated),
        ("rows that a packaged profile took a number from: not independent", validation.derived),
        ("independent rows: no packaged fit or profile has used them", validation.independent),
    ):
        if rows:
            parts += [title, plain_table(VALIDATION_COLUMNS, [cells for c in rows for cells in _cells(c)])]
    return "\n".join([*parts, *_explanations(validation), _verdict(validation)])


def _cells(c: Comparison) -> list[tuple[str, ...]]:
    """Return one line per published figure of a row."""
    found: list[tuple[str, ...]] = []
    for index, figure in enumerate(x for x in (c.bandwidth, c.latency) if x is not None):
        head = (c.row.id, c.prediction.bound) if index == 0 else ("", "")
        found.append(
            (
                *head,
                figure.measured.text,
                figure.unit,
                f"{figure.predicted:,.1f}",
                f"{figure.error:+.1%}",
                _where(figure),
                f"{figure.low:.1f}..{figure.high:.1f}" if figure.high > figure.low else "",
                "" if figure.width_ratio is None else f"x{figure.width_ratio:.2f}",
            )
        )
    return found


def _where(figure: Compared) -> str:
    if figure.is_inside:
        return "inside"
    return "below" if figure.predicted < figure.measured.low else "above"


def _explanations(validation: Validation) -> list[str]:
    """Group rows by what they have in common, so that a sentence stands once."""
    said: dict[str, list[str]] = {}
    for c in validation.comparisons:
        for sentence in c.missing:
            said.setdefault(sentence, []).append(f"{c.row.id} ({c.worst_error:+.0%})")
    noted: dict[str, list[str]] = {}
    for c in validation.comparisons:
        for sentence in (*c.notes, *_said(c)):
            noted.setdefault(sentence, []).append(c.row.id)
    lines = []
    for title, groups in (
        ("errors above 10 %, and which terms are missing", said),
        ("how figures were compared", noted),
    ):
        if groups:
            lines.append(title)
            lines += [f"  {sentence}:\n    {', '.join(ids)}" for sentence, ids in groups.items()]
            lines.append("")
    if fallen := falls(validation.comparisons):
        lines.append("GB/s that fall as the group grows, and what is left after rows that stay at home")
        lines += [f"  {pair}: {sentence}" for pair, sentence in fallen.items()]
        lines += [f"  {CANDIDATES}", ""]
    return lines


def _said(c: Comparison) -> tuple[str, ...]:
    """Return what was chosen for a row, and why it is not independent."""
    return (*c.target.says, *((c.target.derived_from,) if c.target.derived_from else ()))


def _verdict(validation: Validation) -> str:
    rows, outside = validation.calibrated, validation.outside
    if not rows:
        return "no row is marked calibrate, so nothing to pass or fail"
    if outside:
        return f"FAILED: predicted mean outside the published range in {', '.join(c.row.id for c in outside)}"
    return (
        f"OK: predicted mean inside the published range in {len(rows)} of {len(rows)} rows marked calibrate"
    )


def validation_records(validation: Validation) -> list[dict[str, Any]]:
    """Return one flat record per published figure, for JSON and CSV."""
    return [
        {
            "id": c.row.id,
            "use": c.row.use,
            "op": c.row.op,
            "ep_size": c.row.ep_size,
            "system": c.target.system,
            "software": c.prediction.software,
            "bound": c.prediction.bound,
            "confidence": c.prediction.confidence,
            "unit": figure.unit,
            "metric": c.row.metric,
            "numerator": c.numerator,
            "measured_min": figure.measured.low,
            "measured_max": figure.measured.high,
            "predicted": figure.predicted,
            "predicted_min": figure.low,
            "predicted_max": figure.high,
            "error": figure.error,
            "inside": figure.is_inside,
            "overlaps": figure.overlaps,
            "width_ratio": figure.width_ratio,
            "missing": "; ".join(c.missing),
            "notes": "; ".join((*c.notes, *_said(c))),
            "conditions": c.row.conditions,
            "source": c.row.source,
        }
        for c in validation.comparisons
        for figure in (c.bandwidth, c.latency)
        if figure is not None
    ]


def calibration_text(fit: Calibration) -> str:
    """Return parameters, residuals, left-out errors, knee scan and correlations."""
    sizes = sorted({row.ep_size for row in fit.residuals})
    lines = [
        f"{fit.software.name} on {fit.hardware.name}: {len(fit.parameters)} numbers fitted to "
        f"{len(fit.residuals)} rows of {fit.measurements}, EP {', '.join(map(str, sizes))}",
        plain_table(("parameter", "start", "fitted", "spread", "5..95 %"), _parameter_rows(fit)),
        _knee_text(fit),
        "",
        plain_table(
            ("row", "measured", "unit", "fitted", "error", "mean is"),
            [
                (
                    row.id,
                    row.measured.text,
                    row.unit,
                    f"{row.predicted:,.2f}",
                    f"{row.error:+.2%}",
                    "inside" if row.is_inside else "OUTSIDE",
                )
                for row in fit.residuals
            ],
        ),
        f"rms {fit.rms:.2%}, worst {fit.worst:.2%}, {fit.num_inside} of {len(fit.residuals)} inside their "
        "ranges",
        "",
        *_left_out_lines("one group size left out, knee held at that of all rows", fit.left_out),
        *_left_out_lines("one group size left out, knee chosen again without it", fit.left_out_knee),
        *_correlation_lines(fit),
    ]
    return "\n".join(lines)


def _parameter_rows(fit: Calibration) -> list[tuple[str, ...]]:
    return [
        (
            p.name,
            _text(p, p.start),
            _text(p, p.value),
            f"+-{_text(p, p.deviation)}",
            f"{_text(p, p.low)}..{_text(p, p.high)}",
        )
        if fit.num_draws
        else (p.name, _text(p, p.start), _text(p, p.value), "", "")
        for p in fit.parameters
    ]


def _text(parameter: FittedParameter, value: float) -> str:
    if parameter.dimension == "rate":
        return f"{value / 1e9:.4g}GB/s"
    if parameter.dimension in ("count", "ratio"):
        return f"{value:.4g}"
    return Quantity(
        value=float(f"{value:.4g}"), dimension=parameter.dimension, source=Source("fitted", "shown")
    ).text


def _knee_text(fit: Calibration) -> str:
    if not fit.knee_scan:
        return f"knee at {fit.knee:g} ranks"
    near = sorted(fit.knee_scan, key=lambda pair: pair[1])[:4]
    shown = ", ".join(f"{knee:g}: {error:.3%}" for knee, error in sorted(near))
    first, last = fit.knee_scan[0][0], fit.knee_scan[-1][0]
    return f"knee at {fit.knee:g} ranks, best of {first:g} to {last:g}; rms around it {shown}"


def _left_out_lines(title: str, groups: tuple[LeftOut, ...]) -> list[str]:
    if not groups:
        return []
    rows = [
        (
            f"EP{group.ep_size}",
            f"{group.knee:g}",
            row.op,
            f"{row.predicted:,.2f}",
            row.measured.text,
            f"{row.error:+.2%}",
        )
        for group in groups
        for row in group.residuals
    ]
    every = flat(groups)
    return [
        title,
        plain_table(("left out", "knee", "operation", "predicted", "measured", "error"), rows),
        f"rms {rms(every):.2%}, worst {worst(every):.2%}",
        "",
    ]


def _correlation_lines(fit: Calibration) -> list[str]:
    if fit.num_draws < 2:
        return []
    names = [p.name for p in fit.parameters]
    rows = [
        (name, *(f"{value:+.2f}" for value in line))
        for name, line in zip(names, fit.correlation.tolist(), strict=True)
    ]
    return [
        f"correlations over {fit.num_draws} fits to targets drawn evenly inside the ranges (seed {fit.seed}, "
        "knee held)",
        plain_table(("", *names), rows),
    ]


def calibration_records(fit: Calibration) -> list[dict[str, Any]]:
    """Return one flat record per prediction: of the fit, and of the fits that left a group size out."""
    groups = [
        ("fit", fit.knee, fit.residuals),
        *(("left out, knee held", group.knee, group.residuals) for group in fit.left_out),
        *(("left out, knee chosen again", group.knee, group.residuals) for group in fit.left_out_knee),
    ]
    return [
        {
            "kind": kind,
            "knee": knee,
            "id": row.id,
            "op": row.op,
            "ep_size": row.ep_size,
            "unit": row.unit,
            "measured_min": row.measured.low,
            "measured_max": row.measured.high,
            "predicted": row.predicted,
            "error": row.error,
            "inside": row.is_inside,
        }
        for kind, knee, rows in groups
        for row in rows
    ]


def calibration_summary(fit: Calibration) -> dict[str, Any]:
    """Return the whole fit as plain values; what was not computed is null."""
    return {
        "measurements": fit.measurements,
        "hardware": fit.hardware.name,
        "software": fit.software.name,
        "parameters": [
            {
                "name": p.name,
                "start": p.start,
                "value": p.value,
                "deviation": p.deviation if fit.num_draws else None,
                "low": p.low if fit.num_draws else None,
                "high": p.high if fit.num_draws else None,
            }
            for p in fit.parameters
        ],
        "knee": fit.knee,
        "knee_scan": [{"knee": knee, "rms": error} for knee, error in fit.knee_scan],
        "rms": fit.rms,
        "worst": fit.worst,
        "inside": fit.num_inside,
        "rows": len(fit.residuals),
        "left_out": _left_out_summary(fit.left_out),
        "left_out_knee_chosen_again": _left_out_summary(fit.left_out_knee),
        "correlation": fit.correlation.tolist() if fit.num_draws > 1 else None,
        "records": calibration_records(fit),
    }


def _left_out_summary(groups: tuple[LeftOut, ...]) -> dict[str, float] | None:
    return {"rms": rms(flat(groups)), "worst": worst(flat(groups))} if groups else None


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Return records of equal keys as CSV; None is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()
