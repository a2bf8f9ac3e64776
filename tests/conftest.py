"""Profiles of hypothesis, and a header that says what this run can and cannot test.

`HYPOTHESIS_PROFILE=nightly` searches with free seeds; `CI=true` alone picks ci, where a run repeats
exactly. A failure found at night prints a `@reproduce_failure` line that fails anywhere.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

OPTIONAL = ("matplotlib", "torch", "torch_npu", "ray", "deep_ep")

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=_SLOW_MACHINE
)
# Two shared cores stall for longer than the default deadline of 200 ms, which says nothing of the code.
settings.register_profile("dev", deadline=None, print_blob=True)

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile and register markers."""
    settings.load_profile(PROFILE)
    config.addinivalue_line("markers", "hardware: needs a device that this machine may lack; skipped there")


def pytest_report_header() -> str:
    """Name what decides which tests ran: profile, numpy, optional packages."""
    extras = ", ".join(f"{name} {'yes' if find_spec(name) else 'no'}" for name in OPTIONAL)
    return f"epsim: hypothesis profile {PROFILE}; numpy {np.__version__}; optional: {extras}"


@pytest.fixture(scope="session")
def jit_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the one cache of native code, kept between runs: its keys make an old entry harmless.

    Sources of the twin compile once for all tests that build it with equal flags, in any process of xdist.
    """
    base = tmp_path_factory.getbasetemp()
    return base.parents[base.name.startswith("popen-")] / "epsim-jit"
