# ruff: noqa: T201 (a program)
"""`python -m tests.mutants`: judge all mutants of our kernels, print the table; `make mutants` does that."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from epsim.files import write_atomically
from native.settings import settings_from
from tests.mutants.battery import VARIANTS, Row, build, judge, rows
from tests.mutants.mutant import Mutant
from tests.mutants.page import PAGE, line, page
from tests.mutants.table import MUTANTS, find


def main(words: Sequence[str]) -> int:
    """Return 0 if every mutant was killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="mutants whose names hold this")
    parser.add_argument("--json", metavar="FILE", type=Path,
                        help="keep what was measured, mutant by mutant; what it has of a run before is not "
                             "judged again")  # fmt: skip
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--no-stubs", action="store_true", help="leave out the column about empty stubs")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once (default %(default)s)")
    parser.add_argument("--judge", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.judge:
        return _judge(*asked.judge)
    chosen = [m for m in MUTANTS if not asked.only or any(part in m.name for part in asked.only)]
    if not chosen or (asked.write and (asked.only or asked.no_stubs)):
        parser.error("no mutant has such a name" if not chosen else "the page needs all mutants and columns")
    kept = _kept(asked.json, has_stubs=not asked.no_stubs)
    new = [mutant for mutant in chosen if mutant not in kept]
    cache_dirs = settings_from(os.environ).cache_dirs
    if not asked.only and new:
        _check_our_own(cache_dirs)
    for number, row in enumerate(rows(new, cache_dirs, has_stubs=not asked.no_stubs, num_jobs=asked.jobs), 1):
        kept[row.mutant] = row
        if asked.json:
            write_atomically(asked.json, msgspec.json.encode(list(kept.values())).decode() + "\n")
        print(f"{number}/{len(new)} {' | '.join(line(row))}", flush=True)
    return _told([kept[mutant] for mutant in chosen], is_written=asked.write)


def _kept(file: Path | None, *, has_stubs: bool) -> dict[Mutant, Row]:
    """Return the rows of a run before, by mutant. One that has changed since is another mutant."""
    if file is None or not file.exists():
        return {}
    found = msgspec.json.decode(file.read_bytes(), type=list[Row])
    return {row.mutant: row for row in found if row.stubs is not None or not has_stubs}


def _check_our_own(cache_dirs: Sequence[Path]) -> None:
    """Run the variants on our own kernels: what fails on those kills nothing."""
    for name, variant in VARIANTS.items():
        verdict = judge(None, build(None, cache_dirs), variant, has_checks=True)
        if verdict.killed_by:
            sys.exit(f"our own kernels fail, variant {name!r}: {verdict.killed_by}; {verdict.rerun}")
        print(f"our own kernels pass {verdict.num_runs} runs, variant {name!r}", flush=True)


def _told(found: list[Row], *, is_written: bool) -> int:
    if is_written:
        PAGE.write_text(page(found))
    survivors = [row.mutant.name for row in found if not row.twin.killed_by]
    num_small = sum(row.twin.is_small for row in found)
    num_left = sum(row.stubs is not None and not row.stubs.killed_by for row in found)
    print(f"{len(found) - len(survivors)} of {len(found)} killed; {num_small} shrunk to 2 ranks and 2 tokens "
          f"in 10 s; {num_left} survive empty stubs")  # fmt: skip
    for name in survivors:
        print(f"survives: {name}", file=sys.stderr)
    return 1 if survivors else 0


def _judge(name: str, library: str, *checks: str) -> int:
    """Judge one in this process, for `judge_apart`."""
    mutant = find(name)
    verdict = judge(mutant, Path(library), VARIANTS[mutant.variant], has_checks=bool(checks))
    print(json.dumps(dataclasses.asdict(verdict)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
