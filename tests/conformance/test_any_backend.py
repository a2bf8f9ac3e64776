"""Judges a backend cell by cell and property by property, as `epsim conform` does: for test reports."""

import dataclasses
import os

import pytest

from epsim.conform import run_conformance
from epsim.conform.backends.registry import find_backend
from epsim.conform.evidence import PROPERTIES
from epsim.conform.generate import cells
from epsim.conform.outcome import PROFILES
from native.settings import JitSettings, settings_from
from tests.native.jitkit import STRICT

FEW = dataclasses.replace(PROFILES["quick"], examples_per_cell=5, schedules=1)
"""Of the twin when nobody asks for more: tests/native/test_conform_twin.py judges it in earnest."""


@pytest.fixture(scope="module")
def outcome(backend_name, jit_cache):
    """Run the suite once."""
    if backend_name is None:
        settings, profile = JitSettings(cache_dirs=(jit_cache,), cxx_flags=STRICT), FEW
    else:
        settings, profile = settings_from(os.environ), PROFILES["quick"]
    backend = find_backend(backend_name or "twin", settings)
    yield run_conformance(backend, profile)
    backend.shutdown()


@pytest.mark.parametrize("name", [str(cell) for cell in cells(wide=False)])
def test_a_cell_holds(outcome, record_property, name):
    """A cell that the backend lacks is told in the report."""
    (row,) = (row for row in outcome.cells if row.cell == name)
    record_property("unsupported", row.unsupported or "")
    assert row.failure is None, f"{row.failure.text}\n{row.failure.rerun}"
    assert row.num_examples or row.unsupported


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_was_tested(outcome, name):
    """Those that do not apply to the backend have no row."""
    assert [row.vacuous for row in outcome.properties if row.name == name and row.vacuous] == []
