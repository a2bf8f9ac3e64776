"""Types of what a caller gives: a wrong one is refused by name, before it fails inside as something else."""

from collections.abc import Sequence

import numpy as np

from reference.errors import ConfigError


def check_type(field: str, value: object, kind: type) -> None:
    """Refuse a value of another type.

    Raises:
      ConfigError: names the field, the type and the right one.
    """
    if not isinstance(value, kind):
        raise ConfigError(field, _named(value), f"must be an instance of {kind.__name__}")


def check_each(field: str, values: object, kind: type) -> None:
    """Refuse what is no sequence of values of one type, one per rank.

    Args:
      field: name that an error shows.
      values: anything; an array stands for a sequence along its first axis.
      kind: of each value.

    Raises:
      ConfigError: names the field, the rank, the type and the right one.
    """
    what = "NumPy array" if kind is np.ndarray else kind.__name__
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise ConfigError(field, _named(values), f"must be a sequence with one {what} per rank")
    for rank, value in enumerate(values):
        if not isinstance(value, kind):
            raise ConfigError(f"{field}[rank {rank}]", _named(value), f"must be a {what}")


def _named(value: object) -> str:
    return type(value).__name__
