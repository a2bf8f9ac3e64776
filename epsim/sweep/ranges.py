"""Values of an axis as a person writes them: words, lists and ranges such as 128..16384/x2."""

import re
from decimal import Context, Decimal
from typing import Any

from epsim.errors import InputError

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*((?:[^\W\d].*?)?)\.\.({_NUMBER})\s*(.*?)/(x|\+|lin|log)({_NUMBER})")
_LIKE_RANGE = re.compile(rf"{_NUMBER}[^.]*\.\.[^.].*")
_RULE = "must be a range such as 128..16384/x2, 0..0.2/+0.05, 1TB/s..4TB/s/lin4 or 8..128/log5"
_DIGITS = Context(prec=12)
"""Far beyond what a figure means, and short enough to read: 1/3 of a range is 0.333333333333."""

MAX_VALUES = 100_000
"""Values of one axis; a longer one is a slip of the pen, as a step in the wrong unit."""


def read_words(name: str, text: str) -> list[Any]:
    """Read the values of a flag: words separated by commas, each a number, true, false, a text or a range.

    Raises:
      InputError: an empty word, or a range that breaks a rule.
    """
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise InputError(name, text, "must be values separated by commas")
    return [value for word in words for value in expand(name, _word(word))]


def expand(name: str, value: Any) -> list[Any]:  # noqa: ANN401 - whatever TOML holds
    """Return the values that one entry of an axis stands for: those of a range, else itself.

    A range is FROM..TO/HOW, both ends with the same unit or none. HOW: xF multiplies by F, +S adds S (in
    the ends' unit) as long as TO is not passed; linN and logN give N values with both ends, evenly spaced
    or with equal ratios. Whole ends without a unit give whole numbers.

    Raises:
      InputError: it looks like a range and is none, or it never ends.
    """
    if not isinstance(value, str) or not _LIKE_RANGE.fullmatch(value):
        return [value]
    match = _RANGE.fullmatch(value)
    if match is None:
        raise InputError(name, value, _RULE)
    low, unit, high, high_unit, how, step = match.groups()
    if unit != high_unit:
        raise InputError(name, value, "must have the same unit at both ends")
    numbers = _numbers(name, value, Decimal(low), Decimal(high), how, Decimal(step))
    if unit:
        return list(dict.fromkeys(f"{_plain(number)}{unit}" for number in numbers))
    if re.fullmatch(r"[+-]?\d+", low) and re.fullmatch(r"[+-]?\d+", high) and _keeps_whole(how, step):
        return list(dict.fromkeys(round(number) for number in numbers))
    return list(dict.fromkeys(float(number) for number in numbers))


def _keeps_whole(how: str, step: str) -> bool:
    """0..1/+0.25 is meant in quarters, whatever its ends."""
    return how != "+" or bool(re.fullmatch(r"\+?\d+", step))


def _numbers(name: str, text: str, low: Decimal, high: Decimal, how: str, step: Decimal) -> list[Decimal]:
    if low > high:
        raise InputError(name, text, "must not fall: the first end is the smaller one")
    if how in ("x", "log") and low <= 0:
        raise InputError(name, text, "must start above 0 to be multiplied")
    if how in ("lin", "log"):
        return _evenly(name, text, low, high, how, step)
    if step <= (1 if how == "x" else 0):
        raise InputError(name, text, "must move on: x needs more than 1, and + more than 0")
    found = [low]
    while (value := found[-1] * step if how == "x" else found[-1] + step) <= high:
        if len(found) == MAX_VALUES:
            raise InputError(name, text, f"must give at most {MAX_VALUES:,} values")
        found.append(value)
    return found


def _evenly(name: str, text: str, low: Decimal, high: Decimal, how: str, step: Decimal) -> list[Decimal]:
    if step != int(step) or not 2 <= step <= MAX_VALUES:
        raise InputError(name, text, f"must ask for 2 to {MAX_VALUES:,} values")
    last = int(step) - 1
    # The ends as written, not as a root and a power of theirs.
    inner = [
        low + (high - low) * idx / last if how == "lin" else low * (high / low) ** (Decimal(idx) / last)
        for idx in range(1, last)
    ]
    return [low, *(_DIGITS.plus(value) for value in inner), high]


def _plain(number: Decimal) -> str:
    """Write it without an exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _word(text: str) -> Any:  # noqa: ANN401
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(_NUMBER, text) else text
