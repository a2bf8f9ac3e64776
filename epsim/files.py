"""Writing results: files are written whole or not at all, and those of one command all or none."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epsim.errors import InputError


@dataclass(frozen=True, kw_only=True)
class _Staged:
    """One file on its way.

    Args:
      path: as the user named it.
      target: the same with links followed.
      payload: its bytes.
      mode: permissions of the old file, None when there is none.
      identity: device and inode of the old file, None when there is none.
    """

    path: str
    target: Path
    payload: bytes
    mode: int | None
    identity: tuple[int, int] | None

    def beside(self) -> Path:
        """Return a new name in the folder of the target, so that a rename stays on its disk."""
        return self.target.with_name(f".{self.target.name[:200]}.{secrets.token_hex(8)}.tmp")


def write_atomically(path: str | Path, data: bytes | str) -> None:
    """Put `data` at `path`, replacing what was there only once everything is on the disk.

    The bytes go to a new file beside the target, reach the disk, and are renamed over it. Whatever
    fails on the way, the old file stays as it was and no other one is left.

    Args:
      path: the target; a link is followed, so that it keeps pointing at its file.
      data: bytes, or text that is written as UTF-8.

    Raises:
      InputError: the directory is missing or not writable, the target is a directory or a device, or
        the disk is full; in one sentence, with the path.
    """
    write_files([(path, data)])


def check_outputs(paths: Sequence[str | Path | None]) -> None:
    """Refuse targets that cannot be written, before a command starts its work; nothing is written.

    Args:
      paths: targets; None = not asked for.

    Raises:
      InputError: as `write_files`, but for what only writing shows, as a full disk.
    """
    _refuse_twins([_checked(path, b"") for path in paths if path is not None])


def write_files(files: Sequence[tuple[str | Path, bytes | str]]) -> None:
    """Write all files of a command, or none.

    All targets are checked before the first byte is written. Then every file is written beside its
    target and synced, and only when all are on the disk are they renamed; a rename that fails takes
    those before it back.

    Args:
      files: pairs of a target and its content, as of `write_atomically`; may be empty.

    Raises:
      InputError: as `write_atomically`, or two targets are one file, under whatever names.
    """
    staged = [_checked(path, data) for path, data in files]
    _refuse_twins(staged)
    made: list[Path] = []
    try:
        for item in staged:
            made.append(item.beside())
            with _naming(item):
                _write_new(made[-1], item.payload, item.mode)
        _rename_all(staged, list(made), made)
    finally:
        for leftover in made:
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
    for folder in dict.fromkeys(item.target.parent for item in staged):
        _sync_directory(folder)


@contextlib.contextmanager
def _naming(item: _Staged) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refusal(item.path, error) from error


def _refusal(path: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError("output file", path, f"cannot be written: {reason}")


def _checked(path: str | Path, data: bytes | str) -> _Staged:
    """Look at a target before anything is written."""
    name = str(path)
    if name in ("", "."):
        raise InputError("output file", name, "must name a file; an empty name and . are the current folder")
    try:
        target = Path(os.path.realpath(path))
        mode, identity = _old_file(name, target)
        _check_folder(name, target.parent)
    except (OSError, ValueError) as error:
        raise _refusal(name, error) from error
    payload = data.encode() if isinstance(data, str) else data
    return _Staged(path=name, target=target, payload=payload, mode=mode, identity=identity)


def _old_file(name: str, target: Path) -> tuple[int | None, tuple[int, int] | None]:
    """Return permissions and identity of the file to be replaced; refuse what is no file."""
    # /dev/stdout leads to whatever the shell made of it, a file too, and that file is not ours to replace.
    folder = os.path.realpath(os.path.dirname(name) or ".")
    if folder == "/dev" or f"{folder}/".startswith("/proc/"):
        raise OSError(0, "it is a device, and no ordinary file")
    try:
        found = target.stat()
    except FileNotFoundError:
        return None, None
    if stat.S_ISDIR(found.st_mode):
        raise OSError(0, "it is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it exists and is no ordinary file")
    return stat.S_IMODE(found.st_mode), (found.st_dev, found.st_ino)


def _check_folder(name: str, folder: Path) -> None:
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise OSError(0, "Not a directory")
    if name.endswith(os.sep):
        raise OSError(0, "the name ends as that of a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(0, f"folder {str(folder)!r} is not writable")


def _refuse_twins(staged: Sequence[_Staged]) -> None:
    """Refuse two outputs to one file: the second would silently replace the first."""
    seen: dict[object, str] = {}
    for item in staged:
        for key in {item.target, item.identity} - {None}:
            if key in seen:
                other = "is named" if seen[key] == item.path else f"is the same file as {seen[key]!r}, both"
                raise InputError("output file", item.path, f"{other} for two outputs")
            seen[key] = item.path


def _write_new(path: Path, payload: bytes, mode: int | None) -> None:
    # Mode "x": never write through a file or link that somebody put there.
    with open(path, "xb") as file:
        if mode is not None:
            os.chmod(path, mode)
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _rename_all(staged: Sequence[_Staged], temporaries: Sequence[Path], made: list[Path]) -> None:
    """Rename every temporary file to its target; when one fails, put back what the others replaced.

    Args:
      staged: the files.
      temporaries: one per file.
      made: gets the names of kept old files, for the caller to remove.
    """
    old: list[Path | None] = []
    for item in staged[:-1]:  # after the last rename nothing can fail
        old.append(None if item.mode is None else item.beside())
        if (keep := old[-1]) is not None:
            made.append(keep)
            with _naming(item):
                _keep(item.target, keep)
    done = 0
    try:
        for item, temporary in zip(staged, temporaries, strict=True):
            with _naming(item):
                os.replace(temporary, item.target)
            done += 1
    except BaseException:
        for item, backup in zip(staged[:done], old[:done], strict=True):
            if backup is None:
                item.target.unlink(missing_ok=True)
            else:
                os.replace(backup, item.target)
        raise


def _keep(target: Path, backup: Path) -> None:
    """Give an old file a second name; copy it where the file system has no links."""
    try:
        os.link(target, backup)
    except OSError:
        shutil.copy2(target, backup)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a crash, where directories can be synced."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some file systems refuse it; the file is in place all the same
        pass
    finally:
        os.close(descriptor)
