"""Named arrays of every rank, out of the containers that results come in."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError
from reference.formats.dtypes import is_float

Fields = dict[str, npt.NDArray[Any]]
"""Arrays of one rank by name, in the order in which they were given."""

WHOLE_ARRAY = "array"
"""Name of the only field of a rank that is given as one bare array."""


def fields_by_rank(side: str, given: object) -> dict[int, Fields]:
    """Return the arrays of each rank.

    Args:
      side: name that an error shows.
      given: per rank a dataclass, a mapping of names or one array: as a list (place = rank), or as a
        mapping of rank numbers. A single dataclass, mapping of names or array counts as rank 0. Fields
        may be arrays, numbers, texts, enums, lists of numbers, None (absent), tuples, or again
        dataclasses and mappings; nested names are joined by ".", members of a tuple are "name[0]".

    Raises:
      ConfigError: something else, or an array of a dtype that has no defined equality.
    """
    if isinstance(given, Mapping) and given and all(isinstance(key, int | np.integer) for key in given):
        ranks = {int(rank): value for rank, value in sorted(given.items())}
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        ranks = dict(enumerate(given))
    else:
        ranks = {0: given}
    found: dict[int, Fields] = {}
    for rank, value in ranks.items():
        found[rank] = {}
        _collect(found[rank], f"{side}[{rank}]", WHOLE_ARRAY if _is_leaf(value) else "", value)
    return found


def _is_leaf(value: object) -> bool:
    return not (isinstance(value, Mapping) or _is_dataclass(value))


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _collect(into: Fields, side: str, name: str, value: object) -> None:
    """Add the arrays below `value`; `name` is where it stands, "" at the top."""
    if value is None:
        return
    if isinstance(value, Mapping) or _is_dataclass(value):
        prefix = f"{name}." if name else ""
        for key, member in _members(value).items():
            _collect(into, side, f"{prefix}{key}", member)
    elif isinstance(value, tuple) and not _is_numbers(value):
        for place, member in enumerate(value):
            _collect(into, side, f"{name}[{place}]", member)
    else:
        into[name] = _leaf(f"{side}.{name}", value)


def _members(value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return {str(key): member for key, member in value.items()}
    # Not dataclasses.asdict: that copies every array.
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]


def _is_numbers(value: Sequence[object]) -> bool:
    return all(isinstance(member, bool | int | float | np.number | str) for member in value)


def _leaf(where: str, value: object) -> npt.NDArray[Any]:
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, list | tuple) and not value:
        return np.empty(0, np.int64)
    try:
        array = np.asarray(value)
    except ValueError:
        raise ConfigError(where, type(value).__name__, "must be an array, a number, a text or None") from None
    if array.dtype.kind not in "biuSU" and not is_float(array.dtype):
        shown = f"{type(value).__name__} of {array.dtype}"
        raise ConfigError(where, shown, "must be an array, a number, a text or None")
    return array
