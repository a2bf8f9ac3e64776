"""The conformance command: programs on one line, JUnit, missing backends, the drop-in in processes."""

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.cli import run
from epsim.conform import run_conformance
from epsim.conform.backends.libraries import gloo_backend
from epsim.conform.backends.reference import ReferenceBackend
from epsim.conform.backends.registry import BACKENDS
from epsim.conform.generate import Sizes, cells, programs
from epsim.conform.junit import junit_xml
from epsim.conform.outcome import PROFILES
from epsim.conform.program import program_text, read_program
from epsim.conform.search import rerun
from epsim.errors import InputError
from epsim.report.conform import outcome_text
from epsim.testing import ep_configs, marked_rows, payloads, read_columns, read_identity, routings
from epsim.testing.identity import BF16, E4M3, column_count
from native.backends.protocol import Schedule
from tests.meta.faulty_backend import FaultyBackend

ROOT = Path(__file__).parents[2]
TINY = dataclasses.replace(PROFILES["quick"], examples_per_cell=4, schedules=1)


@given(
    src=st.integers(0, 255),
    tokens=st.integers(1, 40),
    hidden=st.sampled_from((32, 33, 160)),
    call=st.integers(0, 1023),
    dtype=st.sampled_from((BF16, E4M3)),
    kind=st.sampled_from(("plain", "special")),
)
def test_rows_name_themselves(src, tokens, hidden, call, dtype, kind):
    """Source, token, call and column can be read back, NaN, zeros and denormals among them or not."""
    rows = marked_rows(src, tokens, hidden, dtype, call=call, kind=kind)
    found = read_identity(rows[-1])
    assert (found.src, found.token, found.call) == (src, tokens - 1, call)
    columns = read_columns(rows)
    ordinary = columns >= 0
    assert ordinary.all() == (kind == "plain")
    assert (columns == np.arange(hidden) % column_count(dtype))[ordinary].all()
    assert len({row.tobytes() for row in rows}) == tokens


def test_special_rows_hold_what_goes_wrong():
    """NaN, -0 and denormals are in every row, also in the shortest."""
    for dtype, least in ((BF16, 2.0**-126), (E4M3, 2.0**-6)):
        values = marked_rows(0, 5, 32, dtype, kind="special").astype(np.float32)
        for what in (
            np.isnan(values),
            (values == 0) & np.signbit(values),
            (values != 0) & (abs(values) < least),
        ):
            assert what.any(axis=1).all()


@given(data=st.data())
def test_strategies_draw_what_is_legal(data):
    """Groups, routings and payloads fit each other."""
    config = data.draw(ep_configs())
    topk = data.draw(routings(config))
    topk.check_against(config)
    x, scales = data.draw(payloads(topk, config.hidden, num_packs=2))
    assert [len(rows) for rows in x] == [len(rows) for rows in scales] == list(topk.tokens_per_rank)


def test_routings_can_be_skewed_to_one_rank():
    """All choices are on one rank."""

    @settings(max_examples=20)
    @given(data=st.data())
    def check(data):
        config = data.draw(ep_configs(num_ranks=(3,)))
        ids = np.concatenate([i.ravel() for i in data.draw(routings(config, skewed=True)).topk_idx])
        assert len(set(config.expert_ranks()[ids[ids >= 0]])) <= 1

    check()


@pytest.mark.parametrize("cell", list(cells(wide=True)), ids=str)
def test_every_program_is_its_line(cell):
    """What is printed is what runs again."""
    capabilities = ReferenceBackend(edition="nvidia-v2.5").capabilities()

    @settings(max_examples=3)
    @given(program=programs(cell, capabilities, Sizes()))
    def check(program):
        assert read_program(program_text(program)) == program

    check()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a program"),
        ('{"steps":[]}', "must begin with a dispatch"),
        ('{"steps":[{"op":"combine","hidden":32}]}', "must begin with a dispatch"),
        ('{"steps":[{"op":"send"}]}', "must be a program"),
    ],
)
def test_a_line_that_is_no_program_is_refused(text, says):
    """In one sentence."""
    with pytest.raises(InputError, match=says):
        read_program(text)


def test_a_failure_is_in_every_report(tmp_path):
    """Text, JSON and JUnit have the property, the place and the rerun line."""
    outcome = run_conformance(
        FaultyBackend(fault="rows_swapped"), TINY, only=lambda cell: cell.scenario == "dispatch"
    )
    failure = outcome.failures[0]
    suites = ET.fromstring(junit_xml(outcome))
    found = suites.find(".//failure[@type='identity']")
    assert failure.rerun in found.text
    assert suites.find(".//skipped") is not None
    assert failure.rerun in outcome_text(outcome)
    assert f"FAILED: {len(outcome.failures)} cells" in outcome_text(outcome)
    assert json.loads(json.dumps(outcome.to_dict()))["cells"][0]["failure"]["rerun"] == failure.rerun


def test_the_command_passes_and_writes_its_reports(tmp_path, capsys, monkeypatch):
    """Exit code 0, JSON on the terminal, JUnit in the file; a rerun line works as printed."""
    junit = tmp_path / "conform.xml"
    line = '{"steps":[{"op":"dispatch","topk":[[[0]],[]],"experts":2,"columns":1,"capacity":1,"hidden":32}]}'
    assert run(["conform", "--backend", "reference", "--example", line, "--strategy", "shuffled"]) == 0
    assert "holds: all 1 calls" in capsys.readouterr().out
    less = dataclasses.replace(PROFILES["quick"], examples_per_cell=8, schedules=1)
    monkeypatch.setattr("epsim.conform.search.find_profile", lambda _: less)
    assert run(["conform", "--backend", "reference", "--junit", str(junit), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_passed"]
    assert ET.parse(junit).getroot().find("testsuite").get("failures") == "0"


@pytest.mark.parametrize(
    ("backend", "process", "tells"), [("npu", "1", False), ("npu", "0", True), ("reference", "1", True)]
)
def test_under_torchrun_the_first_process_tells(tmp_path, capsys, monkeypatch, backend, process, tells):
    """All processes of the NPU backend know the result; one prints it and writes the file."""
    monkeypatch.setattr("epsim.conform.backends.registry.find_backend", lambda *_: ReferenceBackend())
    monkeypatch.setattr("epsim.conform.search.find_profile", lambda _: TINY)
    monkeypatch.setenv("RANK", process)
    junit = tmp_path / "conform.xml"
    assert run(["conform", "--backend", backend, "--junit", str(junit)]) in (0, 1)
    assert bool(capsys.readouterr().out) is junit.exists() is tells


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--backend", "reference", "--seed", "-1"], 2, "seed is -1: must be 0 to 92"),
        (["--backend", "reference", "--strategy", "pct"], 2, "goes with --example"),
        (["--backend", "reference", "--junit", "/nowhere/x.xml"], 2, "cannot be written: No such file"),
        (["--backend", "reference", "--example", "x"], 2, "must be a program"),
        (["--backend", "npu"], 3, "kernels on an NPU cannot run here"),
        (["--backend", "npu-deep-ep"], 3, "hardware-status.md"),
        (["--backend", "cuda"], 3, "hardware-status.md"),
    ],
)
def test_refusals_are_one_sentence(words, code, says, capsys):
    """Bad input is 2, a missing library 3."""
    assert run(["conform", *words]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_without_hypothesis_the_command_says_what_to_install():
    """One sentence, exit code 3; everything else of epsim works."""
    code = """
import sys
sys.modules["hypothesis"] = None
from epsim.cli import run
raise SystemExit(run(["conform", "--backend", "reference"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 3
    assert done.stderr == "epsim: conformance needs hypothesis: python -m pip install 'epsim[conform]'\n"


def test_the_command_knows_every_backend():
    """The choice of the command line is the registry."""
    from typing import get_args, get_type_hints

    from epsim.cli.conform import conform

    assert set(get_args(get_type_hints(conform)["backend"])) == set(BACKENDS)


def test_the_drop_in_keeps_the_contract_between_processes():
    """Some programs of every kind on real gloo processes; a refusal of theirs is a finding, not a hang."""
    pytest.importorskip("torch")
    backend = gloo_backend(max_ranks=2)
    try:
        outcome = run_conformance(backend, dataclasses.replace(TINY, least_crossed=1))
        assert outcome.failures == ()
        line = (
            '{"steps":[{"op":"dispatch","topk":[[[0]]],"experts":1,"columns":1,"capacity":1,"hidden":100}]}'
        )
        broken = rerun(backend, read_program(line), seed=0, schedule=Schedule())
        assert broken is not None
        assert broken.property == "runs"
        assert "UndefinedError" in broken.text
    finally:
        backend.shutdown()
