"""Measures the bug catalogue and writes docs/bug-catalogue.md: `python -m tests.native.cataloguepage`."""

import functools
import tempfile
from collections import Counter
from pathlib import Path

from tests.native.catalogue_entries import KERNELS
from tests.native.catalogue_more import HOST, URMA
from tests.native.catalogue_rest import ELSEWHERE, NOT_REBUILT
from tests.native.cataloguekit import Entry, HostEntry, ends

PAGE = Path(__file__).parents[2] / "docs" / "bug-catalogue.md"
ENTRIES: list[Entry] = [*KERNELS, *URMA, *HOST]

HEAD = """# Known bugs, rebuilt

Bugs of other libraries for Ascend, from their fixes and reports (section 11 of our notes on Ascend, see
[sources](sources.md)). Each is rebuilt in a wrong and in a repaired form: kernels in
`tests/native/catalogue`, requests to URMA and calls on the host in `tests/native/catalogue_more.py`. They
are small programs with the same fault, no one's code; sizes that the notes do not give are chosen. The
repaired form passes every schedule.

"Caught by" is a rule of the CPU twin, or "comparison": what was delivered is not what was expected.
Schedules are four strategies (random, pct, delay_pipe, late) with ten seeds each, strategies in turn;
"3; 6 of 40" means that the third schedule was the first to catch it, and that six of 40 did. Calls on the
host have no schedule.

Written by `python -m tests.native.cataloguepage`, and checked by `tests/native/test_bug_catalogue.py`.
"""


@functools.cache
def wrong_ends(cache: Path, idx: int) -> list[str]:
    """Return how each schedule of the wrong form of `ENTRIES[idx]` ended, "" where nothing was seen."""
    return ends(cache, ENTRIES[idx], is_good=False)


def row(entry: Entry, found: list[str]) -> list[str]:
    """Return the cells of an entry.

    Raises:
      ValueError: no schedule caught it.
    """
    caught = [rule for rule in found if rule]
    if not caught:
        raise ValueError(f"{entry.id}: not caught in {len(found)} schedules")
    rules = Counter(caught).most_common()
    by = ", ".join(f"{rule} {count}" if len(rules) > 1 else rule for rule, count in rules)
    first = next(i for i, rule in enumerate(found, 1) if rule)
    after = "no schedule" if isinstance(entry, HostEntry) else f"{first}; {len(caught)} of {len(found)}"
    return [entry.id, entry.symptom, entry.rebuilt, by.replace("_", " "), after]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def page(cache: Path) -> str:
    """Run everything, return the text of the page."""
    rows = [row(entry, wrong_ends(cache, idx)) for idx, entry in enumerate(ENTRIES)]
    num_ids = len({entry.id for entry in ENTRIES})
    elsewhere = [[*cells[:3], f"`{cells[3]}`, `{cells[4]}`"] for cells in ELSEWHERE]
    return "\n".join(
        [
            HEAD,
            f"## {num_ids} entries in {len(ENTRIES)} programs\n",
            table(["entry", "symptom", "how rebuilt", "caught by", "after how many schedules"], rows),
            "## Rebuilt by other tests\n",
            table(["entry", "symptom", "how rebuilt", "test"], elsewhere),
            "## Not rebuilt\n",
            table(["entry", "reason"], [list(cells) for cells in NOT_REBUILT]),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(Path(tempfile.gettempdir()) / "epsim-jit"))
