"""The journal of a sweep: every finished point on the disk at once, whatever happens to the process.

A file beside the output, only ever appended to. Each line is a CRC-32 in eight hex digits, a space and
a JSON text: first the header with the digest of the plan, then one record per point. A line that a kill
or a full disk has torn fails its sum, and its point is evaluated again.
"""

import contextlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epsim.errors import InputError
from epsim.sweep.plan import Plan

FORMAT = "epsim sweep journal 1"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finished point.

    Args:
      point: number of the point.
      digest: of what it asks.
      status: "ok"; "refused" by the function, as an impossible group is; "failed" by a fault of ours.
      cells: of the answer, in the order of the target's columns; empty unless ok.
      message: why it was refused or failed.
    """

    point: int
    digest: str
    status: str
    cells: list[Any]
    message: str


class Journal:
    """The journal of one output file, held by this process alone while the context lasts.

    Raises:
      InputError: another sweep writes this output, the journal belongs to another plan, or the disk is
        full; in one sentence.
    """

    def __init__(self, out: str | Path, plan: Plan) -> None:
        """Name the file; nothing is opened yet."""
        self.path = Path(f"{out}.journal.jsonl")
        self._lock_path = Path(f"{out}.lock")
        self._plan = plan
        self._file = -1
        self._is_empty = False

    def __enter__(self) -> "Journal":
        """Lock the output, and open the journal or start it."""
        import filelock

        self._lock = filelock.FileLock(self._lock_path)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise InputError("output file", _stem(self.path), "is being written by another sweep") from None
        except OSError as error:
            raise _refusal(self._lock_path, error) from None
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close and unlock; a journal without a point is removed, and the lock's file goes with it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._is_empty:
            self.remove()
        if not self.path.exists():
            # Whoever waits for the removed file notices that it has no name any more, and makes a new one.
            self._lock_path.unlink(missing_ok=True)
        self._lock.release()

    def append(self, records: Sequence[Record]) -> None:
        """Put records on the disk; they are there when this returns."""
        self._is_empty = False
        self._write(b"".join(_line(msgspec.structs.asdict(record)) for record in records))

    def records(self) -> list[Record]:
        """Read all whole records from the disk, each checked against the plan.

        Raises:
          InputError: a point is unknown, stands twice, or asks something else than the plan.
        """
        found = [msgspec.convert(raw, Record) for raw in _whole_lines(self.path) if "format" not in raw]
        check_known(self._plan, found, self.path)
        return found

    def remove(self) -> None:
        """Delete the journal: its rows are in the output."""
        self.path.unlink(missing_ok=True)

    def _open(self) -> None:
        header = {"format": FORMAT, "plan": self._plan.digest, "points": len(self._plan.point_ids)}
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _refusal(self.path, error) from None
        first = next(_whole_lines(self.path), None)
        if first is None:
            # New, or torn before the first line was whole: nothing in it is worth keeping.
            self._is_empty = True
            os.ftruncate(self._file, 0)
            self._write(_line(header))
            _sync_folder(self.path.parent)
        elif first != header:
            rule = "belongs to another sweep (grid, files or version of epsim): repeat that one, or delete it"
            raise InputError("journal", str(self.path), rule)
        else:
            # What comes next must not be glued to a torn last line.
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise _refusal(self.path, error) from None


def check_known(plan: Plan, records: Sequence[Record], path: Path) -> None:
    """Check that every record is of a point of the plan, and the only one of it.

    Raises:
      InputError: one is not.
    """
    points = set(plan.point_ids)
    for point, count in Counter(record.point for record in records).items():
        if count > 1:
            raise InputError("journal", str(path), f"holds point {point} {count} times: delete it")
    for record in records:
        if record.point not in points or record.digest != plan.point_digest(record.point):
            raise InputError("journal", str(path), f"holds a point {record.point} of another grid: delete it")


def check_complete(plan: Plan, records: Sequence[Record], path: Path) -> None:
    """Check that every point of the plan has exactly one record.

    Raises:
      InputError: a point has none or several, or a record belongs to no point.
    """
    check_known(plan, records, path)
    lost = sorted(set(plan.point_ids) - {record.point for record in records})
    if lost:
        rule = f"lacks {len(lost)} of {len(plan.point_ids)} points, first {lost[0]}: run the sweep again"
        raise InputError("journal", str(path), rule)


def _line(value: Any) -> bytes:  # noqa: ANN401
    # The standard library's codec: it keeps infinity and NaN, which msgspec would turn to null.
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _whole_lines(path: Path) -> Iterator[Any]:
    """Yield the JSON of every line whose sum is right."""
    with open(path, "rb") as file:
        for line in file:
            digits, space, text = line.rstrip(b"\n").partition(b" ")
            if space and digits == b"%08x" % zlib.crc32(text):
                yield json.loads(text)


def _stem(path: Path) -> str:
    return str(path).removesuffix(".journal.jsonl")


def _refusal(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(
        "journal", str(path), f"cannot be written: {reason}; what it holds is kept for the next run"
    )


def _sync_folder(folder: Path) -> None:
    """Make the journal's name survive a power cut, where folders can be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
