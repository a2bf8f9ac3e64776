"""A conformance run as text for the terminal."""

from epsim.conform.evidence import PROPERTIES
from epsim.conform.outcome import CellRow, Failure, Outcome

NUM_LINES = 12
"""Lines of a failure that are shown; JSON and JUnit hold all."""


def outcome_text(outcome: Outcome) -> str:
    """Return a summary per property, what was not run and why, and every failure with its rerun line."""
    lines = [
        f"conformance of {outcome.backend}, profile {outcome.profile}, seed {outcome.seed}, "
        f"schedules from {outcome.schedule_seed}",
        "",
        f"{'property':<17} {'verdict':<15} {'examples':>8} {'runs':>6} {'compared':>11} {'crossed':>8} "
        f"{'unsupported':>11} {'time s':>7}",
    ]
    for row in outcome.properties:
        seen = row.evidence
        lines.append(
            f"{row.name:<17} {row.verdict:<15} {seen.num_examples:>8,} {seen.num_runs:>6,} "
            f"{seen.num_compared:>11,} {seen.num_crossed:>8,} {row.num_unsupported:>11} {seen.seconds:>7.2f}"
        )
    lines += ["", *_cell_lines(outcome.cells)]
    for failure in outcome.failures:
        lines += ["", *_failure_lines(failure)]
    for row in outcome.vacuous:
        lines += ["", f"{row.name} proved nothing: {row.vacuous} ({PROPERTIES[row.name]})"]
    return "\n".join([*lines, "", outcome.verdict_text])


def _cell_lines(cells: tuple[CellRow, ...]) -> list[str]:
    ran = sum(bool(row.num_examples) for row in cells)
    lines = [f"{ran} of {len(cells)} cells ran"]
    reasons: dict[str, list[str]] = {}
    for row in cells:
        if row.unsupported:
            reasons.setdefault(row.unsupported, []).append(row.cell)
    for reason, names in reasons.items():
        lines.append(f"unsupported: {reason}: {', '.join(names)}")
    return lines


def _failure_lines(failure: Failure) -> list[str]:
    program = failure.program
    size = f"{program.num_ranks} ranks, {program.most_tokens} tokens, {len(program.steps)} calls"
    lines = failure.text.splitlines()
    shown = lines[:NUM_LINES] + (
        [f"... {len(lines) - NUM_LINES} more lines"] if len(lines) > NUM_LINES else []
    )
    return [
        f"{failure.cell}: {failure.property} is broken ({PROPERTIES[failure.property]})",
        f"  smallest: {size}, {failure.seconds:.1f} s to shrink",
        *(f"  {line}" for line in shown),
        f"  rerun: {failure.rerun}",
    ]
