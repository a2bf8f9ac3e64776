"""What all readers of timelines share: files, JSON without surprises, and exact times."""

import json
import re
from decimal import Decimal
from pathlib import Path

from epsim.errors import InputError
from reference.routing.readable import read_regular

UNITS_PS = {"us": 1_000_000, "ns": 1_000, "ps": 1}
"""Picoseconds in a unit."""
_LONGEST_PS = 2**63 - 1


def read_file(path: str | Path) -> bytes:
    """Read an ordinary file.

    Raises:
      InputError: it cannot be read.
    """
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError("trace", str(path), f"cannot be read: {error.strerror}") from None


def parse_json(data: bytes, name: str) -> object:
    """Parse JSON; numbers with a point become Decimal, so that no digit is lost.

    Raises:
      InputError: the text is no JSON, or holds NaN or Infinity, which JSON has not.
    """
    try:
        parsed: object = json.loads(data, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(name, f"{len(data)} bytes", f"must be JSON in UTF-8: {error}") from None
    return parsed


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def time_ps(field: str, value: object, unit_ps: int) -> int:
    """Convert a time to picoseconds, exactly where it has no finer digits; half a ps goes to even.

    Args:
      field: for the error message.
      value: int, Decimal, or a text that holds a decimal number.
      unit_ps: length of the unit.

    Raises:
      InputError: it is no number, or beyond 64 bits of ps (106 days).
    """
    if isinstance(value, str) and re.fullmatch(
        r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", value
    ):
        value = Decimal(value)
    # An exponent of a thousand digits would cost a thousand digits: the size is looked at first.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | Decimal)
        or not -400 < Decimal(value).adjusted() < 40
    ):
        raise InputError(field, value, "must be a decimal number")
    return round(value * unit_ps)


def from_zero(field: str, time: int, zero_ps: int) -> int:
    """Return a time from the start of the run.

    Args:
      field: for the error message.
      time: ps on the clock of the file.
      zero_ps: start of the run on the same clock.

    Raises:
      InputError: the distance is beyond 64 bits of ps.
    """
    if not 0 <= time - zero_ps <= _LONGEST_PS:
        raise InputError(field, f"{time} ps", "must lie within 106 days after the start of the run")
    return time - zero_ps


def whole(field: str, value: object, least: int) -> int:
    """Return an integer that is at least `least`; a text of digits counts.

    Raises:
      InputError: it is no such integer.
    """
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LONGEST_PS:
        raise InputError(field, value, f"must be a whole number of at least {least}")
    return value
