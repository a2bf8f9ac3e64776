"""One sourced number of a profile, and the rules that it must keep."""

from dataclasses import dataclass

from epsim.errors import InputError
from topology.errors import TopologyError
from topology.source import Source
from topology.units import (
    PS_PER_SECOND,
    Dimension,
    format_rate,
    format_size,
    parse_rate,
    parse_size,
    parse_time,
)

_SHOW_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number in SI units with its origin.

    Args:
      value: bytes/s for a rate, bytes for a size, seconds for a time, else a plain number.
      dimension: see `topology.units.Dimension`.
      source: where it came from.
    """

    value: float
    dimension: Dimension
    source: Source

    @property
    def text(self) -> str:
        """The number with its unit, as a user would write it."""
        if self.dimension == "rate":
            return format_rate(self.value)
        if self.dimension == "size":
            return format_size(self.value)
        if self.dimension == "time":
            for scale, unit in _SHOW_TIME:
                if self.value >= scale:
                    return f"{self.value / scale:.6g}{unit}"
            return f"{self.value * 1e12:.6g}ps"
        return f"{self.value:.6g}"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The declaration of one profile entry.

    Args:
      dimension: what its unit must measure.
      meaning: one line for people.
      least: smallest legal value, SI.
      most: largest legal value, SI; None = no ceiling.
      whole: whether only whole numbers are legal.
    """

    dimension: Dimension
    meaning: str
    least: float = 0.0
    most: float | None = None
    whole: bool = False

    def read(self, field: str, text: str | float, source: Source) -> Quantity:
        """Read a value that a person wrote.

        Args:
          field: the name that an error shows.
          text: number and unit, as "4TB/s", "1.9us" or "23"; a bare number only where none is needed.
          source: its origin.

        Raises:
          InputError: the unit is of another kind, or the value is out of range.
        """
        try:
            value = float(self._parse(field, text))
        except TopologyError as error:
            raise InputError(error.field, error.value, error.rule) from None
        except OverflowError:
            raise InputError(field, text, "must be finite, and this is beyond any number") from None
        return self.check(field, Quantity(value=value, dimension=self.dimension, source=source))

    def check(self, field: str, quantity: Quantity) -> Quantity:
        """Return the quantity if it keeps the rules, else raise InputError."""
        value = quantity.value
        if not value >= self.least or value == float("inf"):
            raise InputError(field, value, f"must be at least {self.least:g}, and finite")
        if self.whole and value != int(value):
            raise InputError(field, value, "must be a whole number")
        if self.most is not None and value > self.most:
            raise InputError(field, value, f"must be at most {self.most:g}")
        return quantity

    def _parse(self, field: str, text: str | float) -> float:
        if self.dimension in ("count", "ratio"):
            return _plain_number(field, text)
        if not isinstance(text, str):
            example = {"rate": "4TB/s", "size": "2KiB", "time": "1.9us"}[self.dimension]
            raise InputError(field, text, f'needs a unit in quotes, as "{example}"')
        if self.dimension == "rate":
            return parse_rate(text, field)
        if self.dimension == "size":
            return parse_size(text, field)
        return parse_time(text, field) / PS_PER_SECOND


def _plain_number(field: str, text: str | float) -> float:
    if isinstance(text, bool):
        raise InputError(field, text, "must be a plain number")
    try:
        # A percentage is a ratio that people write.
        if isinstance(text, str) and text.strip().endswith("%"):
            return float(text.strip().removesuffix("%")) / 100
        return float(text)
    except ValueError:
        raise InputError(field, text, "must be a plain number, without a unit") from None


def given(text: str) -> Source:
    """Return the origin of a number that the user stated."""
    return Source("given", text)
