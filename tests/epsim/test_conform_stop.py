"""Ending `epsim conform` early: what was found is kept, by SIGINT, SIGTERM and SIGKILL alike; progress."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import pytest

from epsim.cli import run
from epsim.cli.interrupts import Terminated
from epsim.conform import run_conformance
from epsim.conform.backends.reference import ReferenceBackend
from epsim.conform.junit import junit_xml
from epsim.conform.outcome import PROFILES
from epsim.conform.search import SearchStopped
from tests.meta.faulty_backend import FaultyBackend

COMMAND = [sys.executable, "-m", "epsim", "conform"]
MAX_WAIT_SECS = 60
FEW = dataclasses.replace(PROFILES["quick"], examples_per_cell=8, schedules=1)


def num_cells_in(junit):
    """Return how many cells a JUnit file has; it is whole whenever it is there."""
    return len(ET.parse(junit).findall("testsuite[1]/testcase")) if junit.exists() else 0


def stop_by(number, junit, *words):
    """Start a search, send it a signal once a cell is in its file; return exit code and both outputs."""
    command = [*COMMAND, "--junit", str(junit), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + MAX_WAIT_SECS
        while not num_cells_in(junit) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=MAX_WAIT_SECS)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_search_tells_what_it_has_found(tmp_path, number, code):
    junit = tmp_path / "s.xml"
    found, out, err = stop_by(number, junit, "--backend", "reference", "--json")
    assert found == code
    told = json.loads(out)
    done = len(told["cells"])
    assert 0 < done < told["num_cells"]
    assert not told["is_passed"]
    assert err.splitlines()[-1] == f"epsim: interrupted after {done} of {told['num_cells']} cells"
    (error,) = ET.parse(junit).findall(".//error")
    assert error.get("message") == f"interrupted after {done} of {told['num_cells']} cells"


def test_an_interrupted_search_prints_its_table(tmp_path):
    code, out, err = stop_by(signal.SIGINT, tmp_path / "s.xml", "--backend", "reference")
    assert code == 130
    assert "\nmetadata          passed " in out
    assert out.splitlines()[-1].startswith("interrupted after ")
    assert "Traceback" not in err


def test_a_killed_search_leaves_the_cells_that_it_has_done(tmp_path):
    junit = tmp_path / "s.xml"
    assert stop_by(signal.SIGKILL, junit, "--backend", "reference")[0] == -signal.SIGKILL
    assert num_cells_in(junit) >= 2  # a cell, and the error that the others are missing


def test_processes_of_a_search_end_without_a_word(tmp_path):
    """Not even of a pipe that nobody reads."""
    pytest.importorskip("torch")
    code, _, err = stop_by(signal.SIGTERM, tmp_path / "s.xml", "--backend", "gloo")
    assert code == 143
    assert [line for line in err.splitlines() if not line.startswith(("cells: ", "epsim: "))] == []


def group_of(pid):
    """Return the processes of a process group that do not wait to be buried."""
    table = subprocess.run(
        ["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in table.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


def wait_until(holds):
    end = time.monotonic() + MAX_WAIT_SECS
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    assert holds()


def test_an_interrupt_while_processes_start_leaves_none():
    """A terminal sends it to all of them; some have not heard of each other yet."""
    pytest.importorskip("torch")
    words = [*COMMAND, "--backend", "gloo"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, start_new_session=True, **quiet) as process:
        wait_until(lambda: len(group_of(process.pid)) >= 3)  # the tracker and the server of processes
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(MAX_WAIT_SECS) == 130
    wait_until(lambda: not group_of(process.pid))


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupt_outside_a_search_is_one_sentence(capsys, monkeypatch, kind, code):
    """As while the twin is compiled."""

    def stopped(*_):
        raise kind

    monkeypatch.setattr("epsim.conform.backends.registry.find_backend", stopped)
    assert run(["conform", "--backend", "twin"]) == code
    assert capsys.readouterr() == ("", "epsim: interrupted\n")


class StopsLate(FaultyBackend):
    """Interrupted while a failure is made smaller."""

    def open(self, spec, schedule):
        self.__dict__.setdefault("opened", []).append(spec)
        if len(self.opened) == 40:
            raise KeyboardInterrupt
        return super().open(spec, schedule)


def test_a_failure_that_is_being_shrunk_is_not_lost():
    with pytest.raises(SearchStopped, match="interrupted after 1 of") as stopped:
        run_conformance(StopsLate(fault="rows_swapped"), only=lambda cell: cell.has("bf16"))
    outcome = stopped.value.outcome
    assert outcome.failures[0].rerun
    assert not outcome.is_passed


def test_what_is_kept_after_each_cell_stays_as_it_was():
    """One more cell each time; the last is what the search returns."""
    kept = []
    few = PROFILES["quick"]
    outcome = run_conformance(
        ReferenceBackend(), few, only=lambda cell: cell.scenario == "round_trip",
        keep=lambda found: kept.append((found, junit_xml(found))),
    )  # fmt: skip
    assert [len(found.cells) for found, _ in kept] == [1, 2, 3, 4]
    assert all(junit_xml(found) == text for found, text in kept)
    assert [found.is_whole for found, _ in kept] == [False, False, False, True]
    assert kept[-1][0].cells == outcome.cells
    assert kept[0][0].properties[0].evidence.num_runs < outcome.properties[0].evidence.num_runs


def test_without_a_terminal_a_line_now_and_then_shows_progress(capsys, monkeypatch):
    """None in a short run; and the answer on stdout is the same."""
    monkeypatch.setattr("epsim.conform.search.find_profile", lambda _: FEW)
    assert run(["conform", "--backend", "reference", "--json"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("epsim.cli.progress.PLAIN_SECS", 0.0)
    assert run(["conform", "--backend", "reference", "--json"]) == 0
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    num_cells = json.loads(shown.out)["num_cells"]
    assert all(re.fullmatch(rf"cells: \d+ of {num_cells} after \d+ s", line) for line in lines)
    assert len(lines) > num_cells
