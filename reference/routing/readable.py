"""Looking at a path before opening it: a FIFO would wait for ever, a long name or a locked folder raise."""

import os
import stat
from pathlib import Path
from typing import Literal

PathKind = Literal["file", "folder", "other", "absent"]


def kind_of(path: str | Path) -> PathKind:
    """Tell what a path is; never raises and never opens it.

    Returns:
      "file" (an ordinary one, links followed), "folder", "other" (FIFO, device, socket), or "absent": there
      is none, or nobody may know, as below a locked folder. `read_regular` says why.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # a name too long, or with a NUL
        return "absent"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def read_regular(path: str | Path, most: int = -1) -> bytes:
    """Read an ordinary file.

    Args:
      path: links are followed.
      most: bytes to read; -1 = all.

    Raises:
      OSError: with a reason for people in `strerror`; no other kind.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, "Is a folder" if stat.S_ISDIR(mode) else "Is a FIFO or device, no ordinary file")
        with open(path, "rb") as stream:
            return stream.read(most)
    except ValueError as error:  # a NUL in the name
        raise OSError(0, str(error)) from None
