"""Which file of a folder is which rank's; a folder that leaves a doubt is refused."""

import re
from pathlib import Path

from epsim.debug.files import SUFFIXES
from epsim.errors import InputError

_LOOKS_LIKE_RANK = re.compile(r"rank([^a-z].*)?\.(safetensors|npz)", re.IGNORECASE | re.DOTALL)
_RANK_FILE = re.compile(r"rank(0|[1-9][0-9]*)\.(safetensors|npz)")


def rank_files(folder: Path, ep_size: int, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the name of each rank's file.

    Args:
      folder: that holds them.
      ep_size: ranks of the group.
      names: [R] what capture.json says; None = rank0.safetensors or rank0.npz, and so on.

    Raises:
      InputError: a rank has no file, or two; the folder holds a rank file more; a name is none.
    """
    if names is None:
        names = _found(folder, ep_size)
    elif len(names) != ep_size:
        raise InputError("files", f"{len(names)} names", f"must be one per rank, ep_size is {ep_size}")
    first: dict[str, int] = {}
    for rank, name in enumerate(names):
        if Path(name).name != name:
            raise InputError(f"files[{rank}]", name, "must be a plain name in the folder of capture.json")
        if first.setdefault(name, rank) != rank:
            raise InputError(
                f"files[{rank}]", name, f"must be a file of its own, rank {first[name]} has this"
            )
        if not (folder / name).is_file():
            raise InputError("files", name, f"the file of rank {rank} is missing in {folder}")
    check_others(folder, names)
    return names


def check_others(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder with rank files besides those named: they are of another run, or the group is larger.

    Raises:
      InputError: names the first of them.
    """
    others = sorted(set(_rank_like(folder)) - set(names))
    if others:
        more = f", nor {len(others) - 1:,} more" if len(others) > 1 else ""
        rule = (
            f"is in {folder}, but is none of the capture's {len(names)} files{more}; remove what is not its"
        )
        raise InputError("files", others[0], rule)


def _found(folder: Path, ep_size: int) -> tuple[str, ...]:
    """Return the file of each rank by its name; a missing one as it would be called."""
    found: dict[int, str] = {}
    for name in _rank_like(folder):
        match = _RANK_FILE.fullmatch(name)
        if match is None:
            rule = f"must be rankN.safetensors or rankN.npz with N from 0 to {ep_size - 1}"
            raise InputError("files", name, rule)
        other = found.setdefault(int(match[1]), name)
        if other != name:
            raise InputError("files", name, f"must be the only file of rank {match[1]}, {other} is there too")
    beyond = max(found, default=0)
    if beyond >= ep_size:
        rule = (
            f"must be the number of ranks, but {folder} holds {len(found):,} rank files up to {found[beyond]}"
        )
        raise InputError("group.ep_size", ep_size, rule)
    suffix = Path(next(iter(found.values()), SUFFIXES[0])).suffix or SUFFIXES[0]
    return tuple(found.get(rank, f"rank{rank}{suffix}") for rank in range(ep_size))


def _rank_like(folder: Path) -> list[str]:
    """Return the names in a folder that look like those of rank files, in order."""
    try:
        return sorted(path.name for path in folder.iterdir() if _LOOKS_LIKE_RANK.fullmatch(path.name))
    except OSError as error:
        raise InputError("capture", str(folder), f"cannot be read: {error.strerror}") from None
