"""`pytest tests/conformance --backend npu`: which backend the suite judges; without the option the twin."""

import pytest

from epsim.conform.backends.registry import BACKENDS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --backend, known where this folder is named on the command line."""
    parser.addoption("--backend", choices=tuple(BACKENDS), help="whom tests/conformance judges")


@pytest.fixture(scope="session")
def backend_name(pytestconfig: pytest.Config) -> str | None:
    """Return what was asked for, None = nothing."""
    name: str | None = pytestconfig.getoption("--backend", default=None)
    return name
