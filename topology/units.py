"""Quantities with units: the only place that knows 8 bits in a byte and 10^9 in a giga.

Decimal prefixes are powers of 1000 and binary ones (Ki, Mi, Gi, Ti) powers of 1024, always. A rate
in bits says so (`bps`, `bit/s`, `b/s` with a small b), a rate in bytes too (`B/s`, `Bps`). Bytes,
bytes per second and picoseconds come back as exact integers, rounded half to even.
"""

import re
from fractions import Fraction
from typing import Literal

from topology.errors import TopologyError

Dimension = Literal["rate", "size", "time", "count", "ratio"]
"""rate: bytes/s; size: bytes; time: picoseconds; count and ratio: plain numbers."""

PS_PER_SECOND = 10**12

_PREFIX = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_TIME = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_SIZE_UNIT = re.compile(r"(Ki|Mi|Gi|Ti|Pi|[kKMGTP]?)(B|b|bit|bits|byte|bytes)")
_RATE_UNIT = re.compile(r"(Ki|Mi|Gi|Ti|Pi|[kKMGTP]?)(?:(B|b|bit|bits|byte|bytes)/s|(bps|Bps))")
_EXAMPLES = {
    "rate": 'a rate such as "400GB/s" or "3.2Tbps"',
    "size": 'a size such as "640MiB" or "7464B"',
    "time": 'a time such as "1.2us"',
    "count": "a plain number",
    "ratio": 'a plain number or a percentage such as "89.8%"',
}


def parse_rate(text: str, field: str = "rate") -> int:
    """Read a data rate.

    Args:
      text: number and unit, e.g. "3.2Tbps", "400GB/s", "400 Gbit/s"; a bare number is refused.
      field: the name used in the error.

    Returns:
      Bytes per second.

    Raises:
      TopologyError: not a rate, or negative.
    """
    number, unit = _split(text, field, "rate")
    match = _RATE_UNIT.fullmatch(unit)
    if not match:
        raise _wrong_unit(text, field, "rate", unit)
    prefix, per_second, short = match.groups()
    is_bits = (per_second or short) in ("b", "bit", "bits", "bps")
    return _exact(number * _PREFIX[prefix] / (8 if is_bits else 1))


def parse_size(text: str, field: str = "size") -> int:
    """Read a size in bytes; "640MiB" is 640 * 2^20, "640MB" is 640 * 10^6, "8Gbit" is 10^9.

    Raises:
      TopologyError: not a size, or negative.
    """
    number, unit = _split(text, field, "size")
    match = _SIZE_UNIT.fullmatch(unit)
    if not match:
        raise _wrong_unit(text, field, "size", unit)
    prefix, base = match.groups()
    return _exact(number * _PREFIX[prefix] / (8 if base in ("b", "bit", "bits") else 1))


def parse_time(text: str, field: str = "time") -> int:
    """Read a time in picoseconds: "1.2us" is 1,200,000.

    Raises:
      TopologyError: not a time, or negative.
    """
    number, unit = _split(text, field, "time")
    if unit not in _TIME:
        raise _wrong_unit(text, field, "time", unit)
    return _exact(number * _TIME[unit])


def format_rate(bytes_per_s: float) -> str:
    """Write a rate in decimal bytes per second, exact for integers: 400_000_000_000 -> "400GB/s"."""
    return _format(bytes_per_s, "B/s")


def format_size(num_bytes: float) -> str:
    """Write a size in decimal bytes, exact for integers: 7464 -> "7.464kB"."""
    return _format(num_bytes, "B")


def format_time(ps: float) -> str:
    """Write a time given in picoseconds, exact for integers: 1_200_000 -> "1.2us"."""
    for unit in ("s", "ms", "us", "ns"):
        if abs(ps) >= _TIME[unit]:
            return f"{_decimal(ps, _TIME[unit])}{unit}"
    return f"{_decimal(ps, 1)}ps"


def _format(value: float, unit: str) -> str:
    for prefix in ("P", "T", "G", "M", "k"):
        if abs(value) >= _PREFIX[prefix]:
            return f"{_decimal(value, _PREFIX[prefix])}{prefix}{unit}"
    return f"{_decimal(value, 1)}{unit}"


def _decimal(value: float, scale: int) -> str:
    """Divide by a power of ten without losing a digit of an integer."""
    if isinstance(value, int):
        whole, rest = divmod(abs(value), scale)
        digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0") if scale > 1 else ""
        return f"{'-' if value < 0 else ''}{whole}{'.' + digits if digits else ''}"
    return f"{value / scale:.6g}"


def _split(text: str, field: str, dimension: Dimension) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise TopologyError(field, text, f"must be {_EXAMPLES[dimension]}")
    number = Fraction(match[1].replace("_", ""))
    if number < 0:
        raise TopologyError(field, text, "must not be negative")
    return number, match[2]


def _wrong_unit(text: str, field: str, dimension: Dimension, unit: str) -> TopologyError:
    if not unit:
        return TopologyError(field, text, f"needs a unit; give {_EXAMPLES[dimension]}")
    return TopologyError(field, text, f"must be {_EXAMPLES[dimension]}, and {unit!r} is no unit of that kind")


def _exact(value: Fraction) -> int:
    return round(value)
