"""The program for the first hours on hardware, as far as it goes without one."""

import importlib.util
import types

import ml_dtypes
import npukit
import pytest
import runtimekit as kit

from native.backends.npu import NpuSession
from native.backends.protocol import Combined, Dispatched


@pytest.fixture
def steps(monkeypatch):
    path = kit.ROOT / "examples" / "npu_steps.py"
    found = importlib.util.spec_from_file_location("npu_steps", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "SETTINGS", kit.settings())
    return module


def test_unknown_step(steps, capsys):
    assert steps.main(["fly"]) == 2
    assert "missing, runtime, kernels, domain, dispatch, conform" in capsys.readouterr().out


def test_missing_is_told_with_its_exit_code(steps, capsys, monkeypatch):
    monkeypatch.setattr(steps, "what_is_missing", lambda settings: "torch_npu finds no NPU")
    assert steps.main(["missing"]) == 3
    assert capsys.readouterr().out == "torch_npu finds no NPU\n"


def test_runtime_is_compiled_and_asks_the_device(steps, capsys, tmp_path):
    kit.Bench(tmp_path)  # forgets what other tests told the device
    assert steps.main(["runtime"]) == 0
    assert "vector cores, bytes of unified buffer: 64 253952" in capsys.readouterr().out


def test_kernels_need_a_device_compiler(steps, capsys):
    assert steps.main(["kernels"]) == 3
    assert "has no bin/bisheng" in capsys.readouterr().out


def test_domain_opens_and_closes(steps, capsys, monkeypatch, tmp_path):
    bench = kit.Bench(tmp_path)
    monkeypatch.setattr(steps, "npu_backend", lambda settings: npukit.backend_of(bench, 2))
    assert steps.main(["domain"]) == 0
    assert capsys.readouterr().out.count("opened and closed") == 3
    assert (bench.calls().count("HcclCommMemReg"), bench.num_held(), bench.broken_rules()) == (1, 0, [])


@pytest.mark.parametrize("damage", [False, True])
def test_dispatch_is_judged_by_the_reference(steps, capsys, monkeypatch, tmp_path, damage):
    from epsim.conform.backends.reference import ReferenceBackend

    bench = kit.Bench(tmp_path)
    monkeypatch.setattr(steps, "npu_backend", lambda settings: npukit.backend_of(bench, 2))
    right = ReferenceBackend()
    session = right.open(steps.spec(2), steps.Schedule())

    def combined(self, before: Dispatched, call) -> tuple[Combined, ...]:
        results = session.combine(before, call)
        if damage:
            results[1].combined_x[3, 5] += ml_dtypes.bfloat16(1)
        return results

    monkeypatch.setattr(NpuSession, "dispatch", lambda self, call: session.dispatch(call))
    monkeypatch.setattr(NpuSession, "combine", combined)
    assert steps.main(["dispatch"]) == int(damage)
    assert ("wrong: [1]" if damage else "equal the reference") in capsys.readouterr().out


@pytest.mark.parametrize("is_passed", [True, False])
def test_conformance_suite_gets_the_backend(steps, monkeypatch, capsys, tmp_path, is_passed):
    backend = npukit.backend_of(kit.Bench(tmp_path), 2)
    given = []

    def run(*arguments):
        given.append(arguments)
        return types.SimpleNamespace(is_passed=is_passed)

    monkeypatch.setattr(steps, "npu_backend", lambda settings: backend)
    monkeypatch.setattr("epsim.conform.run_conformance", run)
    monkeypatch.setattr("epsim.report.conform.outcome_text", lambda outcome: "the table")
    assert steps.main(["conform"]) == int(not is_passed)
    [(judged, profile)] = given
    assert (judged, profile.name, profile.max_ranks) == (backend, "quick", 2)
    assert capsys.readouterr().out == "the table\n"
