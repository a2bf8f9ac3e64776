"""One compile cache for all tests of native code, kept between runs: its keys make an old entry harmless."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def jit_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root; sources of the twin compile once for every test that builds it with equal flags."""
    return tmp_path_factory.getbasetemp().parent / "epsim-jit"
