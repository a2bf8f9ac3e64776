"""What `epsim conform` refuses before any work: one sentence with field, value and rule, exit code 2."""

import dataclasses
import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.cli import run
from epsim.conform.admission import MAX_BYTES, check_program, check_size, needed_bytes
from epsim.conform.backends.reference import ReferenceBackend
from epsim.conform.generate import Sizes, cells, programs
from epsim.conform.program import read_program
from epsim.conform.search import rerun
from native.backends.protocol import Schedule
from native.backends.twin import TwinBackend

DISPATCH = {"op": "dispatch", "topk": [[[0, 1], [3, 2]], [[2, 0]]], "experts": 4, "columns": 2}
DISPATCH |= {"capacity": 2, "hidden": 32}
COMBINE = {"op": "combine", "hidden": 32}
FULL = Sizes(max_ranks=8, max_tokens=6, max_hidden=512, max_experts_per_rank=4, max_steps=6)


def line(dispatch=(), combine=(), **program):
    """Return the example of docs/native.md with other fields."""
    steps = [DISPATCH | dict(dispatch), COMBINE | dict(combine)]
    return json.dumps({"steps": steps, "aivs": 2} | program)


def refused(capsys, *words):
    """Run the command, which must refuse; return its sentence."""
    assert run(["conform", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("epsim: ").rstrip()


@pytest.mark.parametrize(
    "dispatch",
    [{"capacity": 10**8}, {"hidden": 10**9}, {"experts": 10**11}, {"alignment": 2**40}, {"capacity": 2**70}],
)
def test_an_example_that_no_memory_holds_is_refused(capsys, dispatch):
    said = refused(capsys, "--backend", "reference", "--example", line(dispatch))
    assert said.startswith("bytes of the example is ")
    assert f"must be at most {MAX_BYTES}" in said


def test_the_worst_case_counts_where_the_host_does_not_wait():
    sizes = {"capacity": 10**4, "hidden": 1024}
    waits, runs_on = (read_program(line(sizes | {"cpu_sync": sync})) for sync in (True, False))
    assert needed_bytes(runs_on) > needed_bytes(waits)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"dispatch": {"topk": [[[0, 1]], []], "columns": 1}}, "topk[0][0] is [0, 1]: must have 1 experts"),
        ({"dispatch": {"topk": [[[0, 2**70]], []]}}, "must be of the 4 experts"),
        ({"dispatch": {"foo": 1}}, "unknown field `foo` - at `$.steps[0]`"),
        ({"combine": {"foo": 1}}, "unknown field `foo`"),
        ({"foo": 1}, "unknown field `foo`"),
        ({"dispatch": {"experts": 4_000_000}}, "steps[0].experts is 4000000: must be at most 2048"),
        ({"dispatch": {"hidden": 33}}, "steps[0].hidden is 33: must be a multiple of 32, at most 7168"),
        ({"combine": {"hidden": 0}}, "steps[1].hidden is 0: must be a multiple of 32"),
        ({"aivs": 0}, "example.aivs is 0: must be 1 to 64 on this backend"),
        ({"aivs": 1000}, "example.aivs is 1000: must be 1 to 64 on this backend"),
        ({"combine": {"biases": 3}}, "steps[1].biases is 3: must be 0, 1 or 2"),
        ({"dispatch": {"payload": "fp8", "packs": 9}}, "steps[0].packs is 9: must be 1 to 1"),
        ({"dispatch": {"expand": False}}, "steps[0].expand is False: edition ascend has the expanded"),
        ({"dispatch": {"hidden": 64}, "combine": {"received": True}}, "must be 64, that of the received"),
    ],
)
def test_an_example_that_the_backend_cannot_run_is_no_broken_backend(capsys, changed, says):
    assert says in refused(capsys, "--backend", "reference", "--example", line(**changed))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--strategy", "foo"], "strategy is 'foo': must be one of shuffled, canonical"),
        (["--schedule-seed", "9" * 23], f"schedule_seed is {'9' * 23}: must be 0 to 9223372036854775807"),
        (["--seed", "9" * 23], "must be 0 to 9223372036854775807"),
        (["--profile", "soak"], "profile is 'soak': goes without --example"),
    ],
)
def test_options_that_an_example_cannot_follow_are_refused(capsys, words, says):
    assert says in refused(capsys, "--backend", "reference", "--example", line(), *words)


@pytest.mark.parametrize(
    ("backend", "says"),
    [("gloo", "aivs is 2: must be 16 to 64 in steps of 2"), ("gloo-nvidia", "hidden is 32: must be a mult")],
)
def test_the_libraries_have_limits_of_their_own(capsys, backend, says):
    pytest.importorskip("torch")
    assert says in refused(capsys, "--backend", backend, "--example", line())


def test_a_schedule_seed_needs_schedules(capsys, monkeypatch):
    """A library that runs as it runs has none."""

    class Plain(ReferenceBackend):
        def capabilities(self):
            return dataclasses.replace(super().capabilities(), strategies=())

    monkeypatch.setattr("epsim.conform.backends.registry.find_backend", lambda *_: Plain())
    for words in ([], ["--example", line()]):
        said = refused(capsys, "--backend", "cuda", "--schedule-seed", "3", *words)
        assert said == "schedule_seed is 3: must be 0: this backend has no schedules to choose from"
    assert "this backend has none" in refused(
        capsys, "--backend", "cuda", "--strategy", "pct", "--example", line()
    )


def test_an_example_without_a_strategy_uses_its_seed(monkeypatch):
    """On the first strategy of the backend."""
    seen = []

    class Watched(ReferenceBackend):
        def open(self, spec, schedule):
            seen.append(schedule)
            return super().open(spec, schedule)

    monkeypatch.setattr("epsim.conform.backends.registry.find_backend", lambda *_: Watched())
    assert run(["conform", "--backend", "reference", "--schedule-seed", "3", "--example", line()]) == 0
    assert seen == [Schedule(strategy="shuffled", seed=3)]


@pytest.mark.parametrize("target", ["/tmp", "/proc/x.xml", "/nowhere/x.xml"])
def test_a_file_that_cannot_be_written_is_refused_before_the_search(capsys, monkeypatch, target):
    monkeypatch.setattr("epsim.conform.backends.registry.find_backend", None)
    said = refused(capsys, "--backend", "reference", "--junit", target)
    assert said.startswith(f"output file is {target!r}: cannot be written: ")


def test_an_example_has_its_reports(tmp_path, capsys):
    junit = tmp_path / "one.xml"
    words = ["conform", "--backend", "reference", "--example", line(), "--junit", str(junit)]
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["is_passed"], told["profile"], told["cells"][0]["cell"]) == (True, "example", "example")
    assert ET.parse(junit).find("testsuite").get("tests") == "1"
    assert run(words) == 0
    assert capsys.readouterr().out == f"holds: all 2 calls\nwrote {junit}\n"


@pytest.mark.parametrize("cell", list(cells(wide=True)), ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_every_program_that_is_drawn_is_admitted(cell, data):
    """No rule here is stricter than the suite."""
    backends = ReferenceBackend(), ReferenceBackend(edition="nvidia-v2.5"), TwinBackend(None)
    able = [can for backend in backends if not cell.why_not(can := backend.capabilities())]
    if not able:
        return
    can = data.draw(st.sampled_from(able))
    program = data.draw(programs(cell, can, FULL))
    check_program(program, can)
    assert needed_bytes(program) < MAX_BYTES / 3


def test_a_program_at_the_limit_of_a_rule_runs():
    """Neither refused nor broken."""
    text = line({"hidden": 7168, "topk": [[[0, 2047]], []], "experts": 2048}, {"hidden": 64}, aivs=64)
    program = read_program(text)
    check_size(program)
    check_program(program, ReferenceBackend().capabilities())
    assert rerun(ReferenceBackend(), program, seed=2**63 - 1, schedule=Schedule()) is None
