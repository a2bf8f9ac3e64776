"""What a conformance run found: rows per property and per cell, a failure of each cell, the verdict."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from epsim.conform.evidence import PROPERTIES, Evidence, PropertyName
from epsim.conform.program import Program, program_text
from native.backends.protocol import Schedule


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How much is tried.

    Args:
      name: as users write it.
      examples_per_cell: programs of each cell.
      schedules: of each program, if the backend can choose.
      max_ranks, max_tokens, max_hidden, max_experts_per_rank, max_steps: see `generate.Sizes`.
      wide: also programs of hidden 7168.
      many: also programs of many tokens.
      least_crossed: rows that must cross a rank before a property counts as proved.
    """

    name: str
    examples_per_cell: int
    schedules: int
    max_ranks: int
    max_tokens: int
    max_hidden: int
    max_experts_per_rank: int
    max_steps: int
    wide: bool
    least_crossed: int
    many: bool = True


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="quick",
            examples_per_cell=24,
            schedules=2,
            max_ranks=4,
            max_tokens=4,
            max_hidden=128,
            max_experts_per_rank=3,
            max_steps=4,
            wide=False,
            least_crossed=10,
        ),
        Profile(
            name="full",
            examples_per_cell=25,
            schedules=5,
            max_ranks=8,
            max_tokens=6,
            max_hidden=512,
            max_experts_per_rank=4,
            max_steps=6,
            wide=True,
            least_crossed=50,
        ),
        # 100,000 runs and more: false alarms come of the order, not of the size, so that programs stay small.
        Profile(
            name="soak",
            examples_per_cell=1000,
            schedules=5,
            max_ranks=4,
            max_tokens=4,
            max_hidden=128,
            max_experts_per_rank=3,
            max_steps=4,
            wide=True,
            least_crossed=1000,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A property that broke, shrunk.

    Args:
      cell: where.
      property: which.
      text: what is wrong, with place and values.
      program: the smallest program that shows it.
      seed: of its data.
      schedule: the order in which it shows.
      rerun: one line for the shell that shows it again.
      seconds: from the first sight to the smallest program.
    """

    cell: str
    property: PropertyName
    text: str
    program: Program
    seed: int
    schedule: Schedule
    rerun: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {
            "cell": self.cell,
            "property": self.property,
            "text": self.text,
            "program": program_text(self.program),
            "data_seed": self.seed,
            "schedule": vars(self.schedule),
            "rerun": self.rerun,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell.

    Args:
      cell: its name.
      num_examples: programs that ran.
      num_runs: programs times schedules.
      unsupported: why the backend did not run it, or some of its programs; None = it ran all.
      seconds: all of it.
      failure: None = none.
    """

    cell: str
    num_examples: int
    num_runs: int
    unsupported: str | None
    seconds: float
    failure: Failure | None = None

    @property
    def verdict(self) -> str:
        """Passed, failed or unsupported."""
        if self.failure:
            return "failed"
        return "passed" if self.num_examples else "unsupported"


@dataclass(frozen=True, kw_only=True)
class PropertyRow:
    """One property over the whole run.

    Args:
      name: of the property.
      evidence: what it rests on.
      num_failures: cells in which it broke.
      num_unsupported: cells that the backend did not run.
      vacuous: why it proves nothing; None = it proves something, or has failed.
    """

    name: PropertyName
    evidence: Evidence
    num_failures: int
    num_unsupported: int
    vacuous: str | None

    @property
    def verdict(self) -> str:
        """Passed, failed, proved nothing, or not reached by a run that ended early."""
        if self.num_failures:
            return "failed"
        if self.vacuous:
            return "proved nothing"
        return "passed" if self.evidence.num_compared else "not reached"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A whole run.

    Args:
      backend, profile: names.
      seed: of programs and data.
      schedule_seed: first of the schedules' seeds.
      properties: in the order of the data flow; those that do not apply to the backend are left out.
      cells: in order.
      num_cells: how many were to be tried; a run that was interrupted has fewer rows.
      traits: how many programs that hold had what `coverage.traits` names; a Counter, 0 where none had it.
      seconds: all of it.
    """

    backend: str
    profile: str
    seed: int
    schedule_seed: int
    properties: tuple[PropertyRow, ...]
    cells: tuple[CellRow, ...]
    num_cells: int
    traits: Counter[str]
    seconds: float

    @property
    def failures(self) -> tuple[Failure, ...]:
        """One per cell that failed."""
        return tuple(row.failure for row in self.cells if row.failure)

    @property
    def vacuous(self) -> tuple[PropertyRow, ...]:
        """Properties that proved nothing."""
        return tuple(row for row in self.properties if row.verdict == "proved nothing")

    @property
    def is_whole(self) -> bool:
        """Whether all cells were tried."""
        return len(self.cells) == self.num_cells

    @property
    def stopped_text(self) -> str:
        """What to say of a run that is not whole."""
        return f"interrupted after {len(self.cells)} of {self.num_cells} cells"

    def __str__(self) -> str:
        """Say in a line whether it passed and how much was tried, then a line for each failure."""
        lines = [f"conformance of {self.backend}, profile {self.profile}: {self.verdict_text}"]
        lines += [
            f"{one.cell}: {one.property}: {next(iter(one.text.splitlines()), '')}" for one in self.failures
        ]
        return "\n".join(lines)

    @property
    def verdict_text(self) -> str:
        """Passed or not, and how much was tried."""
        examples, runs = (
            sum(getattr(row, name) for row in self.cells) for name in ("num_examples", "num_runs")
        )
        tried = f"{examples:,} examples, {runs:,} runs, {self.seconds:.1f} s"
        if self.is_passed:
            return f"PASSED: {tried}"
        if not self.is_whole:
            tried = f"{self.stopped_text}; {tried}"
        if not self.failures and not self.vacuous:
            return tried
        return f"FAILED: {len(self.failures)} cells, {len(self.vacuous)} properties proved nothing; {tried}"

    @property
    def is_passed(self) -> bool:
        """Whether all held, and all were really tested."""
        return self.is_whole and not self.failures and not self.vacuous

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {
            "backend": self.backend,
            "profile": self.profile,
            "seed": self.seed,
            "schedule_seed": self.schedule_seed,
            "is_passed": self.is_passed,
            "num_cells": self.num_cells,
            "seconds": self.seconds,
            "traits": dict(sorted(self.traits.items())),
            "properties": [
                {
                    "name": row.name,
                    "meaning": PROPERTIES[row.name],
                    "verdict": row.verdict,
                    "vacuous": row.vacuous,
                    "num_failures": row.num_failures,
                    "num_unsupported": row.num_unsupported,
                    **vars(row.evidence),
                }
                for row in self.properties
            ],
            "cells": [
                vars(row)
                | {"verdict": row.verdict, "failure": row.failure.to_dict() if row.failure else None}
                for row in self.cells
            ],
        }
