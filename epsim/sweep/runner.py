"""Running a sweep: points not yet in the journal are evaluated, then the table is written whole."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from epsim.errors import InputError
from epsim.files import write_files
from epsim.sweep.engines import EngineName, SweepError, make_engine, run_points
from epsim.sweep.journal import Journal, Record, check_complete
from epsim.sweep.plan import Plan
from epsim.sweep.table import SUFFIXES, Table, import_arrow, make_table

Progress = Callable[[int, int], None]
"""Called with the points that are done and those that there are."""

SYNC_SECONDS = 0.2
"""Finished points wait at most so long for the next ones before they are synced to the disk together."""


def run_sweep(
    plan: Plan,
    out: str | Path,
    *,
    engine: EngineName = "local",
    jobs: int | None = None,
    address: str | None = None,
    on_progress: Progress | None = None,
    more_files: Callable[[Table], Sequence[tuple[str | Path, bytes | str]]] | None = None,
) -> Table:
    """Evaluate a plan and write its table.

    Finished points are kept in OUT.journal.jsonl until the table is written, so the same call after a
    kill, a crash or a full disk goes on where the last one was. The table does not depend on engine, jobs
    or the number of tries. With processes, a program that calls this guards its top level by
    `if __name__ == "__main__"`, as `multiprocessing` asks.

    Args:
      plan: the points.
      out: .csv or .parquet file.
      engine: "local" (processes) or "ray".
      jobs: processes, or cores of a local Ray cluster; None = one per core.
      address: of a running Ray cluster.
      on_progress: called now and then with (done, all).
      more_files: from the table to files that are written together with it, or not at all.

    Returns:
      the table.

    Raises:
      InputError: a file cannot be written, or the journal belongs to another plan.
      MissingExtraError: Ray or pyarrow is needed and not installed.
      SweepError: a point failed by a fault of epsim, or a worker died.
    """
    check_output(out)
    with Journal(out, plan) as journal:
        done = {record.point for record in journal.records()}
        left = [point for point in plan.point_ids if point not in done]
        report = on_progress or (lambda done, num_points: None)
        report(len(done), len(plan.point_ids))
        if left:
            _evaluate(plan, journal, left, (engine, jobs, address), report)
        records = journal.records()
        check_complete(plan, records, journal.path)
        table = make_table(plan, records)
        data = table.to_csv() if Path(out).suffix == ".csv" else table.to_parquet()
        write_files([(out, data), *(more_files(table) if more_files else ())])
        journal.remove()
    return table


def check_output(out: str | Path) -> None:
    """Check the name of a table before any work.

    Raises:
      InputError: another suffix, or no such folder.
      MissingExtraError: Parquet needs pyarrow.
    """
    if Path(out).suffix not in SUFFIXES:
        raise InputError("out", str(out), f"must end in {' or '.join(SUFFIXES)}")
    if not Path(out).parent.is_dir():
        raise InputError("out", str(out), "its folder does not exist")
    if Path(out).suffix == ".parquet":
        import_arrow()


def _evaluate(
    plan: Plan,
    journal: Journal,
    left: Sequence[int],
    where: tuple[EngineName, int | None, str | None],
    report: Progress,
) -> None:
    """Evaluate points into the journal.

    Raises:
      SweepError: a point failed; all others that were under way are in the journal.
    """
    name, jobs, address = where
    num_before = len(plan.point_ids) - len(left)
    failure: tuple[int, str] | None = None
    waiting: list[Record] = []
    num_saved, last_sync = 0, time.monotonic()
    engine = make_engine(name, len(left), jobs=jobs, address=address)
    try:
        for outcomes in run_points(engine, plan.target_name, ((point, plan.values(point)) for point in left)):
            failure = failure or next(
                ((n, text) for n, status, _, text in outcomes if status == "failed"), None
            )
            waiting += [_record(plan, *outcome) for outcome in outcomes if outcome[1] != "failed"]
            if time.monotonic() - last_sync >= SYNC_SECONDS:
                num_saved += _save(journal, waiting)
                last_sync = time.monotonic()
                report(num_before + num_saved, len(plan.point_ids))
    finally:
        try:
            num_saved += _save(journal, waiting)
        finally:
            engine.close()
    report(num_before + num_saved, len(plan.point_ids))
    if failure:
        asked = ", ".join(f"{key}={value}" for key, value in plan.values(failure[0]).items())
        raise SweepError(f"point {failure[0]} ({asked}) failed by a fault of epsim:\n{failure[1]}")


def _record(plan: Plan, point: int, status: str, cells: list[Any], message: str) -> Record:
    digest = plan.point_digest(point)
    return Record(point=point, digest=digest, status=status, cells=cells, message=message)


def _save(journal: Journal, waiting: list[Record]) -> int:
    """Append what waits, and forget it; return how many."""
    if not waiting:
        return 0
    saved = list(waiting)
    # Forgotten first: after a full disk they must not be written a second time.
    waiting.clear()
    journal.append(saved)
    return len(saved)
