"""All our kernels on the twin against the reference: every cell, 400 programs of all sizes, 5 schedules each.

Nightly (HYPOTHESIS_PROFILE=nightly): fresh programs each day, up to 16 ranks, 10,000 schedules.
"""

import dataclasses
from datetime import date

import pytest
from hypothesis import settings

from epsim.conform import run_conformance
from epsim.conform.coverage import traits
from epsim.conform.outcome import PROFILES
from epsim.conform.program import Combine, Dispatch, Program
from native.backends.twin import STRATEGIES, TwinBackend
from native.settings import JitSettings
from native.twin import Twin, build_twin
from tests.native.jitkit import STRICT

IS_NIGHTLY = settings.get_current_profile_name() == "nightly"
PROFILE = dataclasses.replace(
    PROFILES["full"],
    examples_per_cell=96 if IS_NIGHTLY else 19,
    max_ranks=16 if IS_NIGHTLY else 8,
)
LEAST_EXAMPLES, LEAST_RUNS = (2000, 10_000) if IS_NIGHTLY else (400, 2000)
WANTED = (
    *(f"ranks {n}" for n in range(1, PROFILE.max_ranks + 1)),
    *(f"aivs {n}" for n in range(2, 9)),
    *(f"topk {n}" for n in range(1, 9)),
    *(f"hidden {n}" for n in (32, 64, 96, 160, 512, 7168)),
    *("alignment 1", "alignment 128", "biases 0", "biases 1", "biases 2"),
    *("bf16", "fp8", "fp8_columns", "cached", "no_sync", "rank_reduced", "one_rounding"),
    *("masked", "skewed", "rank_without_tokens"),
)
"""What issue 5 names, acceptance 1."""
SWITCHES = ("barrier_in_prologue", "rotate_by_aiv", "early_doorbells")


class AllCores(TwinBackend):
    """The twin with every number of AIVs from 2 to 8."""

    def capabilities(self):
        return dataclasses.replace(super().capabilities(), num_aivs=tuple(range(2, 9)))


@pytest.fixture(scope="module")
def twin(jit_cache):
    return Twin(build_twin(JitSettings(cache_dirs=(jit_cache,)), flags=STRICT))


@pytest.fixture(scope="module")
def outcome(twin):
    """Run the suite once; a failure at night prints its seeds."""
    return run_conformance(AllCores(twin), PROFILE, seed=date.today().toordinal() if IS_NIGHTLY else 0)


def test_every_property_holds_in_every_schedule(outcome):
    assert [failure.rerun for failure in outcome.failures] == []
    assert [(row.name, row.vacuous) for row in outcome.vacuous] == []
    assert sum(row.num_examples for row in outcome.cells) >= LEAST_EXAMPLES
    assert sum(row.num_runs for row in outcome.cells) >= LEAST_RUNS


def test_no_cell_is_left_out_but_for_the_other_layout(outcome):
    missing = {row.cell for row in outcome.cells if row.verdict == "unsupported"}
    assert all("deduplicated" in cell or "hybrid" in cell for cell in missing)
    assert len(outcome.cells) - len(missing) == 24


def test_every_size_and_kind_has_occurred(outcome):
    """In programs that ran to their ends; `traits` counts no other."""
    assert [name for name in WANTED if not outcome.traits[name]] == []


def test_a_size_that_has_not_occurred_is_seen(twin):
    small = dataclasses.replace(PROFILE, examples_per_cell=3, schedules=1, max_ranks=2, max_hidden=32)
    found = run_conformance(AllCores(twin), small, only=lambda cell: cell.scenario == "no_sync").traits
    missing = [name for name in WANTED if not found[name]]
    assert {"ranks 3", "hidden 64", "cached", "biases 0", "one_rounding"} <= set(missing)
    assert {"no_sync", "bf16", "fp8", "hidden 32"}.isdisjoint(missing)


def test_traits_of_a_program():
    step = Dispatch(
        topk=(((3, -1),), ((2, 3),), ()), experts=6, columns=2, capacity=4, hidden=32, cpu_sync=False
    )
    steps = (step, Combine(hidden=64, biases=2))
    wanted = {f"{name} {size}" for name, size in (("ranks", 3), ("aivs", 5), ("topk", 2), ("biases", 2))}
    wanted |= {"hidden 32", "hidden 64", "alignment 1", "bf16", "no_sync", "one_rounding"}
    wanted |= {"masked", "skewed", "rank_without_tokens"}
    assert traits(Program(steps=steps, aivs=5, multiple_reduction=False)) == wanted


@pytest.mark.parametrize("switched", [*[(name,) for name in SWITCHES], SWITCHES], ids="+".join)
def test_switches_change_no_result(twin, switched):
    backend = TwinBackend(twin, switches=dict.fromkeys(switched, 1))
    profile = dataclasses.replace(PROFILES["quick"], examples_per_cell=6, schedules=len(STRATEGIES))
    chosen = ("dispatch", "no_sync", "sequence")
    outcome = run_conformance(backend, profile, only=lambda cell: cell.scenario in chosen)
    assert [failure.rerun for failure in outcome.failures] == []
    assert sum(row.num_runs for row in outcome.cells) == 8 * 6 * len(STRATEGIES)
