"""Hypothesis is an optional extra: the one place that imports it for everybody else."""

from types import ModuleType

from epsim.errors import MissingExtraError


def load_hypothesis() -> ModuleType:
    """Return hypothesis with its strategies.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        import hypothesis
        import hypothesis.strategies
    except ImportError:
        raise MissingExtraError(
            "conformance needs hypothesis: python -m pip install 'epsim[conform]'"
        ) from None
    return hypothesis
