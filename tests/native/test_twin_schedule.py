"""Schedules of the twin: replay, strategies, the deadlock report, traces, cost."""

import json
import sys
import time
from pathlib import Path

import pytest
from twinkit import STRATEGIES, build_case_twin, make_machine, run_case

from native.errors import NativeInputError
from native.twin import Twin


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Build the twin with the kernels of these tests."""
    return build_case_twin(tmp_path_factory.getbasetemp() / "twin_jit")


def traced_run(twin: Twin, strategy: str, seed: int, path: Path) -> tuple[bytes, str]:
    """Run a kernel with much freedom of order; return its trace and the hash of its schedule."""
    with make_machine(
        twin, "no_core_barrier_good", {"strategy": strategy, "seed": seed, "trace": 1}
    ) as machine:
        machine.run()
        machine.trace(path)
        return path.read_bytes(), machine.stats()["hash"]


def test_one_seed_is_one_trace_a_hundred_times(twin: Twin, tmp_path: Path) -> None:
    runs = {traced_run(twin, "random", 7, tmp_path / "trace") for _ in range(100)}
    assert len(runs) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_seeds_differ(twin: Twin, tmp_path: Path, strategy: str) -> None:
    hashes = {traced_run(twin, strategy, seed, tmp_path / "trace")[1] for seed in range(20)}
    assert len(hashes) == 20


def test_strategies_differ(twin: Twin, tmp_path: Path) -> None:
    hashes = {traced_run(twin, strategy, 0, tmp_path / "trace")[1] for strategy in (*STRATEGIES, "inorder")}
    assert len(hashes) == 5


def test_a_violation_is_replayed(twin: Twin) -> None:
    def report(seed: int) -> str:
        violation = run_case(twin, "no_core_barrier_bad", {"seed": seed})
        assert violation is not None
        return json.dumps(violation.report)

    assert {report(3) for _ in range(20)} == {report(3)}
    assert len({report(seed) for seed in range(20)}) > 1


def test_late_copies_wait_until_no_fiber_can_go_on(twin: Twin, tmp_path: Path) -> None:
    """Queue everything of buffer_reused before the first copy is done."""
    with make_machine(twin, "buffer_reused_good", {"strategy": "late", "trace": 1}) as machine:
        machine.run()
        machine.trace(tmp_path / "trace")
    events = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    kinds = [event["kind"] for event in events if event["kind"] != "launch"]
    first_copy = min(i for i, kind in enumerate(kinds) if kind.startswith("copy"))
    assert kinds[:first_copy].count("notify") == 4 * 4  # AIVs x (2 rounds x 2 flags)


def test_deadlock_names_every_fiber_and_what_it_waits_for(twin: Twin) -> None:
    violation = run_case(twin, "missing_arrival_bad", {})
    assert violation is not None
    assert violation.rule == "deadlock"
    waiting = {(place["rank"], place["aiv"], place["what"]) for place in violation.others}
    text = "waits for all AIVs to arrive at cross-core flag 6"
    assert waiting == {(0, 0, text), (1, 0, text)}


def test_livelock_ends_after_max_steps(twin: Twin) -> None:
    violation = run_case(twin, "no_threadfence_good", {"max_steps": 5})
    assert violation is not None
    assert violation.rule == "livelock"


@pytest.mark.parametrize(
    "params",
    [
        {"strategy": "best"},
        {"ranks": 0},
        {"ub_bytes": 1 << 20},
        {"pct_steps": 0},
        {"colour": 1},
        {"seed": "x"},
    ],
)
def test_bad_parameters_are_refused(twin: Twin, params: dict[str, int | str]) -> None:
    with pytest.raises(NativeInputError):
        make_machine(twin, "trapped_good", params)


def test_trace_must_be_asked_for(twin: Twin, tmp_path: Path) -> None:
    with make_machine(twin, "trapped_good", {}) as machine:
        machine.run()
        with pytest.raises(NativeInputError, match="keeps no trace"):
            machine.trace(tmp_path / "trace")


def test_cost_of_a_run(twin: Twin, capsys: pytest.CaptureFixture[str]) -> None:
    """Show the time in the log; it is the machine's, not ours, to promise."""
    start = time.process_time()
    for seed in range(20):
        assert run_case(twin, "no_threadfence_good", {"seed": seed}) is None
    with capsys.disabled():
        sys.stdout.write(
            f"twin: {(time.process_time() - start) / 20 * 1e3:.2f} ms per run of a small kernel\n"
        )
