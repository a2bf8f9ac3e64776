"""Whole numbers on the command line: 8.5 is refused, never rounded; and lists of cards."""

import re
from collections.abc import Sequence
from typing import Any

from cyclopts import Parameter, Token

MAX_CARDS = 1 << 20
"""Far beyond any group, and little enough to be listed."""


def whole(_type: Any, tokens: Sequence[Token]) -> int:  # noqa: ANN401
    """Convert one word.

    Raises:
      ValueError: it is no whole number; cyclopts names the option.
    """
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        raise ValueError(f'"{text}" must be a whole number')
    return int(text)


Whole = Parameter(converter=whole)
"""Goes with every option that is an int."""


def parse_cards(field: str, text: str) -> tuple[int, ...]:
    """Read cards: numbers and ranges START:STOP or START:STOP:STEP (STOP is not in it), with commas between.

    Raises:
      InputError: anything else, or more than `MAX_CARDS`.
    """
    from epsim.errors import InputError

    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9})(?::([1-9]\d{0,8}))?)?", word.strip(), re.ASCII)
        if match is None:
            raise InputError(field, text, "must be cards and ranges such as 0,8,16 or 0:128:16")
        start, stop, step = int(match[1]), match[2], int(match[3] or 1)
        cards = range(start, start + 1 if stop is None else int(stop), step)
        if not cards or len(found) + len(cards) > MAX_CARDS:
            raise InputError(field, text, f"must name cards, at most {MAX_CARDS:,}; {word.strip()} does not")
        found += cards
    return tuple(found)
