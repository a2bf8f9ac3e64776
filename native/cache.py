"""The cache on disk: entries appear whole or not at all, whatever is killed, full or raced.

    <root>/cache/<tag>.<digest>/   an entry: its files and `.committed`, the list of their sums
    <root>/staging/<tag>.<digest>.<random>/   a build that goes on, or that was killed
    <root>/locks/<tag>.<digest>.lock   held while that entry is built

A builder works in staging under the lock, syncs every file, and renames the folder into place. Readers take
no lock: they verify the sums, and treat an entry that fails as missing.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from native.errors import NativeEnvironmentError, NativeInputError

COMMITTED = ".committed"


@dataclass(frozen=True)
class Cache:
    """Roots of caches: all are read, the first one is written."""

    roots: tuple[Path, ...]

    def find(self, name: str) -> Path | None:
        """Return the first whole entry of that name, None when there is none."""
        return next((entry for root in self.roots if is_whole(entry := root / "cache" / name)), None)

    def find_or_build(self, name: str, build: Callable[[Path, Path], None]) -> Path:
        """Return an entry; when no root has it whole, build it once, also among processes.

        Args:
          name: "<tag>.<digest>".
          build: gets two empty folders: for the files of the entry, and for all else, which is removed.

        Raises:
          NativeEnvironmentError: the first root cannot be written.
          Exception: what `build` raises; nothing is left behind then.
        """
        found = self.find(name)
        if found is not None:
            return found
        try:
            with _locked(self.roots[0], name) as staging:
                return self.find(name) or _build(self.roots[0] / "cache" / name, staging, build)
        except OSError as error:
            raise NativeEnvironmentError(
                f"the compile cache {self.roots[0]} cannot be written ({error.strerror or error}): "
                "name another folder first in EPSIM_JIT_CACHE_DIR"
            ) from error


def entry_name(tag: str, digest: str) -> str:
    """Return the name of an entry.

    Raises:
      NativeInputError: a tag that is no plain file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", tag):
        raise NativeInputError("tag", tag, "must be 1 to 80 letters, digits, '_' or '-'")
    return f"{tag}.{digest}"


def is_whole(entry: Path) -> bool:
    """Whether an entry was published and all its files still have the sums of that moment."""
    try:
        lines = (entry / COMMITTED).read_text().splitlines()
        pairs = [line.split(" ", 1) for line in lines]
        return bool(pairs) and all(_sum(entry / name) == value for value, name in pairs)
    except (OSError, ValueError):  # unreadable, or a list that is damaged itself
        return False


def _sum(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=20).hexdigest()


@contextlib.contextmanager
def _locked(root: Path, name: str) -> Iterator[Path]:
    """Hold the lock of an entry and yield an empty staging folder, which is gone afterwards."""
    import filelock  # only a miss needs it

    for folder in ("cache", "locks", "staging"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root / "locks" / f"{name}.lock"):
        _sweep(root, name)
        staging = root / "staging" / f"{name}.{secrets.token_hex(8)}"
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _sweep(root: Path, own: str) -> None:
    """Remove what killed builds left: a staging folder whose lock nobody holds has no owner."""
    import filelock

    for folder in (root / "staging").iterdir():
        name = folder.name.rpartition(".")[0]
        if name == own:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with (
            contextlib.suppress(filelock.Timeout),
            filelock.FileLock(root / "locks" / f"{name}.lock", timeout=0),
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _build(entry: Path, staging: Path, build: Callable[[Path, Path], None]) -> Path:
    files, work = staging / "entry", staging / "work"
    files.mkdir()
    work.mkdir()
    build(files, work)
    names = sorted(path.name for path in files.iterdir())
    (files / COMMITTED).write_text("".join(f"{_sum(files / name)} {name}\n" for name in names))
    for name in (*names, COMMITTED, "."):
        _sync(files / name)
    if entry.exists():  # damaged, or it would have been found
        os.rename(entry, staging / "damaged")
    try:
        os.rename(files, entry)
    except OSError as error:
        # Where locks do not work (some network file systems) another process may have been first.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_whole(entry):
            raise
    _sync(entry.parent)
    return entry


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
