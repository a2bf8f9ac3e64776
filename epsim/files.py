"""Writing results: a file is written whole or not at all."""

import os
import secrets
import stat
from pathlib import Path

from epsim.errors import InputError


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
    payload = data.encode() if isinstance(data, str) else data
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.tmp")
        _write_new(temporary, payload, mode)
        try:
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("output file", str(path), f"cannot be written: {reason}") from error


def _mode(target: Path) -> int | None:
    """Permissions of the old file, None when there is none."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(0, "it exists and is no ordinary file")
    return stat.S_IMODE(found)


def _write_new(path: Path, payload: bytes, mode: int | None) -> None:
    # Mode "x": never write through a file or link that somebody put there.
    with open(path, "xb") as file:
        try:
            if mode is not None:
                os.chmod(path, mode)
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:  # also an interrupt must not leave half a file behind
            path.unlink(missing_ok=True)
            raise


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
