"""A finished sweep as text and JSON for people and programs: best and worst point, what moves the answer."""

import json
import math
from collections.abc import Sequence
from typing import Any

from epsim.report.prediction import plain_table
from epsim.sweep.analysis import Effect, Objective, Sensitivity, best_and_worst, pareto_front, sensitivity
from epsim.sweep.table import Table

MAX_EFFECTS = 15
NUM_ERRORS = 3
"""Standard errors behind +-: what straight pieces miss is not normal. Of 1,380 shares of samples of 40 to
500 points of three grids (60 seeds each), 2.7 % were off the full grid's by more than two errors, 0.5 % by
more than three, all of these in samples of up to 200 points."""


def sweep_text(table: Table, objectives: Sequence[Objective]) -> str:
    """Return the summary of a sweep as plain text.

    Args:
      table: of the sweep.
      objectives: the first one decides best, worst and sensitivity; two or more have a front.
    """
    refused = [row for row, status in enumerate(table.column("status")) if status == "refused"]
    parts = [f"{len(table.rows)} points, {len(refused)} refused"]
    if refused:
        parts.append(f"first refusal: {table.column('message')[refused[0]]}")
    ends = best_and_worst(table, objectives[0])
    if ends is None:
        return "\n".join(parts)
    parts += [_ends_text(table, objectives, ends)]
    found = sensitivity(table, objectives[0].column)
    if found.effects:
        parts += [_sensitivity_text(found), *_caveats(found)]
    if len(objectives) > 1:
        names = " and ".join(objective.text for objective in objectives)
        parts.append(f"{len(pareto_front(table, objectives))} points are beaten by no other in {names}")
    return "\n".join(parts)


def sweep_json(table: Table, objectives: Sequence[Objective]) -> str:
    """Return the same summary as JSON text; `front` lists numbers of points."""
    first = objectives[0]
    ends = best_and_worst(table, first)
    points = table.column("point")
    return json.dumps(
        {
            "points": len(table.rows),
            "refused": table.column("status").count("refused"),
            "objectives": [objective.text for objective in objectives],
            "best": None if ends is None else _row(table, ends[0]),
            "worst": None if ends is None else _row(table, ends[1]),
            "sensitivity": None if ends is None else _sensitivity_object(sensitivity(table, first.column)),
            "front": [points[row] for row in pareto_front(table, objectives)]
            if len(objectives) > 1
            else None,
        },
        indent=2,
    )


def _row(table: Table, row: int) -> dict[str, Any]:
    return dict(zip(table.columns, table.rows[row], strict=True))


def _sensitivity_object(found: Sensitivity) -> dict[str, Any]:
    effects = [
        {
            "name": effect.name,
            "levels": effect.levels,
            "means": [mean if math.isfinite(mean) else None for mean in effect.means],
            "size": None if effect.note else effect.size,
            "size_error": None if effect.note else effect.error,
            "share_error": None if effect.note else effect.share_error,
            "elasticity": effect.elasticity,
            "elasticity_error": effect.elasticity_error,
            "knots": effect.num_knots or None,
            "note": effect.note,
        }
        for effect in found.effects
    ]
    return {
        "column": found.column, "mean": found.mean, "used": found.num_used, "points": found.num_points,
        "method": _method(found), "free_numbers": found.num_free,
        "explained": found.explained, "effects": effects,
    }  # fmt: skip


def _method(found: Sensitivity) -> str:
    return "average" if found.is_average else "product fit" if found.is_product else "additive fit"


def _ends_text(table: Table, objectives: Sequence[Objective], ends: tuple[int, int]) -> str:
    varied = [name for name, values in table.plan.axes.items() if len(values) > 1]
    answers = [objective.column for objective in objectives if objective.column not in varied]
    words = [name for name in ("bound", "binding", "confidence") if name in table.columns]
    names = ["point", *varied, *dict.fromkeys([*answers, *words])]
    rows = [
        [label, *(_word(_row(table, row)[name]) for name in names)]
        for label, row in zip(("best", "worst"), ends, strict=True)
    ]
    return plain_table([objectives[0].text, *names], rows)


def _sensitivity_text(found: Sensitivity) -> str:
    rows = [_effect_row(effect, found) for effect in found.effects[:MAX_EFFECTS]]
    return plain_table(
        ["parameter", f"lowest mean {found.column}", "at", "highest", "at", "moves it by", "elasticity"], rows
    )


def _effect_row(effect: Effect, found: Sensitivity) -> list[str]:
    if effect.note:
        return [effect.name, "", "", "", "", effect.note, ""]
    known = [pair for pair in zip(effect.means, effect.levels, strict=True) if math.isfinite(pair[0])]
    (low, low_level), (high, high_level) = min(known), max(known)
    mean = abs(found.mean)
    share = f"{effect.size / mean:.1%}" if mean else f"{effect.size:.6g}"
    elasticity = "" if effect.elasticity is None else f"{effect.elasticity:+.2f}"
    if not found.is_average:
        share += (
            f" +-{NUM_ERRORS * effect.share_error:.1%}" if mean else f" +-{NUM_ERRORS * effect.error:.6g}"
        )
        if effect.elasticity_error is not None:
            elasticity += f" +-{NUM_ERRORS * effect.elasticity_error:.2f}"
    return [effect.name, f"{low:.6g}", low_level, f"{high:.6g}", high_level, share, elasticity]


def _caveats(found: Sensitivity) -> list[str]:
    if found.is_average:
        how = "Means are averages over the full grid of the other parameters"
        if found.explained is None:
            return [f"{how}."]
        share = f"{found.explained:.1%}"
        return [f"{how}; one term per parameter explains {share} of the variance, interaction the rest."]
    if any(effect.note.startswith(("too few", "not fitted")) for effect in found.effects):
        return ["The grid has gaps, and one term per parameter was not fitted to what is there."]
    how = "factor" if found.is_product else "term"
    lines = [
        f"The grid has gaps: means are a fit of one {how} per parameter, {found.num_free} free numbers to "
        f"{found.num_used} points; +- is three standard errors."
    ]
    for effect in found.effects:
        if effect.num_knots:
            pieces = "a slope" if effect.num_knots == 2 else f"{effect.num_knots - 1} straight pieces"
            lines.append(
                f"{effect.name}: {len(effect.levels)} values, few points at each, fitted by {pieces}."
            )
    if found.explained is not None:
        lines.append(
            f"The fit explains {found.explained:.1%} of the variance (adjusted R^2), interaction the rest."
        )
    return lines


def _word(cell: Any) -> str:  # noqa: ANN401
    return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
