"""The page about the mutants, docs/mutants.md: `python -m tests.mutants --write`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.battery import Row, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"

HEAD = ["mutant", "what it stands for", "killed by", "after runs", "shrunk to", "seconds", "empty stubs"]
TEXT = """# Mutants of our kernels

Each is one change of one of our kernels that stands for a real mistake. The conformance suite (profile
quick) runs on the twin with the changed kernel, stops at the first failure and shrinks it.

- "killed by": the rule of the twin that stopped the run, or the property of the suite that did not hold.
- "after runs": programs times schedules up to the first failure.
- "shrunk to": ranks x tokens of all ranks together of the smallest program that was found.
- "seconds": of processor time, for search and shrinking, on the machine that wrote this page.
- "empty stubs": the same suite on the twin with strategy `inorder`: asynchronous work is done at once and
  nothing is checked, which is what a twin of empty stubs shows. "survives" = all its results were right.

Ranks have 1, 2, 3, 4, 5 or 8 AIVs. A mutant of combine runs the scenarios that have a combine, one that
hurts the next dispatch those with several: elsewhere it behaves as the unchanged kernel. Some mistakes need
more than the quick profile reaches, as its queues never come round; behind their names is the variant that
reaches them (`tests/mutants/battery.py`). Our own kernels pass all variants.

Written by `python -m tests.mutants --write` (`make mutants` prints it); `tests/native/test_mutants.py`
checks that every patch still applies, and that this page names every mutant.
"""


def _words(verdict: Verdict | None) -> str:
    return (verdict.killed_by.replace("_", " ") or "survives") if verdict else ""


def line(row: Row) -> list[str]:
    """Return the cells of a mutant."""
    twin, mutant = row.twin, row.mutant
    name = mutant.name + (f" ({mutant.variant})" if mutant.variant else "")
    size = f"{twin.ranks} x {twin.tokens}" if twin.killed_by else ""
    seconds = f"{twin.seconds:.1f}"
    return [name, mutant.bug, _words(twin), str(twin.num_runs), size, seconds, _words(row.stubs)]


def page(found: Sequence[Row]) -> str:
    """Return the text of the page."""
    lines = [HEAD, ["---"] * len(HEAD), *map(line, found)]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    killed = [row for row in found if row.twin.killed_by]
    left = sum(_words(row.stubs) == "survives" for row in found)
    small = sum(row.twin.is_small for row in killed)
    rules = Counter(_words(row.twin) for row in killed).most_common()
    by = ", ".join(f"{name} {count}" for name, count in rules)
    summary = [
        "## Result\n",
        f"{len(killed)} of {len(found)} mutants are killed. Of these, {small} shrink to at most two ranks",
        f"and two tokens, found within ten seconds. Under empty stubs {left} survive.\n",
        f"Killed by: {by}.\n",
    ]
    return "\n".join([TEXT, *summary, *table]) + "\n"
