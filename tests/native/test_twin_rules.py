"""Each rule of the twin: a small kernel that breaks it is stopped on its line, its correct twin never is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from twinkit import KERNELS, STRATEGIES, build_case_twin, run_case

from native.twin import Twin

SEEDS = range(20)

RULES = {
    "unaligned_copy": "unaligned_access",
    "unaligned_word": "unaligned_access",
    "beyond_ub": "ub_out_of_range",
    "into_simt_cache": "simt_dcache_overrun",
    "one_too_far": "gm_out_of_bounds",
    "one_byte_too_far": "gm_out_of_bounds",
    "uninitialised_gm": "uninitialised_load",
    "padding_of_burst": "uninitialised_load",
    "uninitialised_copy": "uninitialised_load",
    "stale_scalar": "stale_scalar_cache",
    "stale_simt": "stale_simt_cache",
    "no_clean": "unflushed_line",
    "shared_line": "lost_update",
    "dirty_over_copy": "lost_update",
    "flag_id": "bad_argument",
    "set_twice": "double_notify",
    "wrong_event": "unmatched_wait",
    "queue_waits_for_ever": "unmatched_wait",
    "flag_left": "flag_left_set",
    "too_many_pending": "count_limit",
    "missing_arrival": "deadlock",
    "copy_then_lanes": "data_race",
    "lanes_then_copy": "data_race",
    "buffer_reused": "data_race",
    "overlap_in_pipe": "data_race",
    "flag_without_fence": "data_race",
    "no_core_barrier": "data_race",
    "arrive_on_wrong_pipe": "data_race",
    "no_syncthreads": "data_race",
    "no_syncwarp": "data_race",
    "lanes_leave": "missing_arrivals",
    "no_threadfence": "data_race",
    "trapped": "kernel_trap",
    "polls_for_ever": "deadlock",
}
"""Case -> the rule that every schedule of the broken kernel must report."""

SOMETIMES = ("bypass_order", "remote_order")
"""Cases in which two stores swap: seen only in the schedules where they do."""


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Build the twin with the kernels of these tests."""
    return build_case_twin(tmp_path_factory.getbasetemp() / "twin_jit")


def lines_of(case: str) -> set[tuple[str, int]]:
    """Return the lines of the sources that are marked with a case."""
    return {
        (source.name, number)
        for source in KERNELS.glob("*.cpp")
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if re.search(rf"// <- {case}$", line)
    }


def schedules() -> Iterator[dict[str, int | str]]:
    """Yield all strategies, each with twenty seeds."""
    for strategy in STRATEGIES:
        for seed in SEEDS:
            yield {"strategy": strategy, "seed": seed}


@pytest.mark.parametrize("case", RULES)
def test_broken_kernel_is_stopped_on_its_line(twin: Twin, case: str) -> None:
    for params in schedules():
        violation = run_case(twin, f"{case}_bad", params)
        assert violation is not None, params
        assert violation.rule == RULES[case], (params, str(violation))
        assert (Path(violation.file).name, violation.line) in lines_of(case), (params, str(violation))


@pytest.mark.parametrize("case", [*RULES, *SOMETIMES, "arrival_left"])
def test_correct_kernel_passes(twin: Twin, case: str) -> None:
    for params in [*schedules(), {"strategy": "inorder"}]:
        violation = run_case(twin, f"{case}_good", params)
        assert violation is None, (params, str(violation))


@pytest.mark.parametrize("case", SOMETIMES)
def test_swapped_stores_are_seen_in_some_schedules(twin: Twin, case: str) -> None:
    found = [run_case(twin, f"{case}_bad", params) for params in schedules()]
    stopped = [violation for violation in found if violation is not None]
    assert {violation.rule for violation in stopped} == {"kernel_trap"}
    assert {(Path(violation.file).name, violation.line) for violation in stopped} == lines_of(case)


def test_arrival_that_nobody_waits_for_is_told_at_the_end(twin: Twin) -> None:
    for params in schedules():
        violation = run_case(twin, "arrival_left_bad", params)
        assert violation is not None
        assert violation.rule == "flag_left_set"
        assert "1 arrivals, 0 waits" in violation.message


@pytest.mark.parametrize(
    "case", ["copy_then_lanes", "buffer_reused", "no_core_barrier", "set_twice", "no_clean"]
)
def test_plain_stubs_see_nothing(twin: Twin, case: str) -> None:
    """What the checks add: in order and without them, the broken kernels pass."""
    assert run_case(twin, f"{case}_bad", {"strategy": "inorder"}) is None
