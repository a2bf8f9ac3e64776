"""`epsim sweep` as a process: killed, out of disk, with several workers and on Ray; and what it prints."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from epsim.cli import run

POINTS = ["--grid", "tokens=64..1024/+4", "--grid", "ep=8,256", "--grid", "operations=combine"]
NUM_POINTS = 2 * 241
NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra cluster)")
NEEDS_ARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
COMMAND = (sys.executable, "-m", "epsim", "sweep", *POINTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of the table that one undisturbed process writes."""
    out = tmp_path_factory.mktemp("whole") / "t.csv"
    assert run(["sweep", *POINTS, "--jobs", "1", "--out", str(out)]) == 0
    return out.read_bytes()


def children_of(pid):
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def num_lines_of(path):
    """Return how many lines a file has, none when it is not there."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for(condition):
    """Wait until something is true; a minute is far beyond what it takes."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def stop_at(out, num_lines, jobs, stop):
    """Start a sweep, send it a signal once its journal has so many lines; return exit code and children."""
    journal = out.with_name(f"{out.name}.journal.jsonl")
    command = [*COMMAND, "--jobs", jobs, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with process:
        wait_for(lambda: process.poll() is not None or num_lines_of(journal) >= num_lines)
        process.send_signal(signal.SIGSTOP)  # it must not end while its children are listed
        assert process.poll() is None, process.stderr.read()
        children = children_of(process.pid)
        process.send_signal(stop)
        process.send_signal(signal.SIGCONT)
        process.stderr.read()
    return process.returncode, children


@pytest.mark.parametrize(("kill_points", "jobs"), [((1, 20), "1"), ((30, 200), "2")])
def test_a_killed_sweep_loses_and_doubles_nothing(whole, tmp_path, kill_points, jobs):
    """Killed twice at different points, then finished by another number of processes; no worker stays."""
    out = tmp_path / "t.csv"
    for num_lines in kill_points:
        code, children = stop_at(out, num_lines, jobs, signal.SIGKILL)
        assert (code, out.exists()) == (-signal.SIGKILL, False)
        wait_for(lambda children=children: not any(map(is_running, children)))
    assert run(["sweep", *POINTS, "--jobs", "1", "--out", str(out)]) == 0
    assert out.read_bytes() == whole
    assert os.listdir(tmp_path) == ["t.csv"]
    points = [line.split(b",")[0] for line in whole.splitlines()[1:]]
    assert points == [str(number).encode() for number in range(NUM_POINTS)]


def test_an_interrupted_sweep_says_so_and_goes_on(whole, tmp_path):
    out = tmp_path / "t.csv"
    code, children = stop_at(out, 20, "2", signal.SIGINT)
    assert (code, out.exists()) == (130, False)
    wait_for(lambda: not any(map(is_running, children)))
    assert run(["sweep", *POINTS, "--jobs", "1", "--out", str(out)]) == 0
    assert out.read_bytes() == whole


def test_a_full_disk_is_one_sentence_and_the_sweep_goes_on(whole, tmp_path):
    """The system refuses the journal's bytes beyond 40,000."""
    out = tmp_path / "t.csv"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000));"
        "from epsim.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    words = ["sweep", *POINTS, "--jobs", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot be written: File too large" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["t.csv.journal.jsonl", "t.csv.lock"]
    assert run(words) == 0
    assert out.read_bytes() == whole


def test_two_processes_write_the_same_file(whole, tmp_path):
    out = tmp_path / "t.csv"
    assert run(["sweep", *POINTS, "--jobs", "2", "--out", str(out)]) == 0
    assert out.read_bytes() == whole


@NEEDS_RAY
def test_ray_writes_the_same_file(whole, tmp_path):
    """A real cluster of two cores on this machine; its start takes most of the time."""
    command = [*COMMAND, "--engine", "ray", "--jobs", "2", "--out", "t.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.csv").read_bytes() == whole


@NEEDS_RAY
def test_a_ray_cluster_that_is_not_there_is_refused(tmp_path):
    command = [*COMMAND, "--engine", "ray", "--address", "127.0.0.1:1", "--out", "t.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "no Ray cluster answers" in done.stderr


SMALL = ["--grid", "ep=8,16", "--grid", "set.hbm_rate=1TB/s,4TB/s", "--grid", "num_experts=256,20"]


@NEEDS_ARROW
def test_parquet_holds_what_csv_holds(tmp_path, capsys):
    from pyarrow import csv, parquet

    for name in ("t.csv", "t.parquet", "again.parquet"):
        assert run(["sweep", *SMALL, "--out", str(tmp_path / name)]) == 0
    table = parquet.read_table(tmp_path / "t.parquet")
    options = csv.ConvertOptions(column_types=table.schema, strings_can_be_null=True)
    assert csv.read_csv(tmp_path / "t.csv", convert_options=options).equals(table)
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def test_summary_and_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plots = ["--plot-pareto", "f.svg", "--plot-sensitivity", "s.png"]
    goals = ["--objective", "time_us", "--objective", "min:set.hbm_rate"]
    assert run(["sweep", *SMALL, *goals, *plots, "--out", "t.csv"]) == 0
    text = capsys.readouterr().out
    assert "16 points, 8 refused" in text
    assert "first refusal: num_experts is 20" in text
    for line in ("wrote t.csv", "wrote f.svg", "wrote s.png", "beaten by no other", "moves it by"):
        assert line in text
    assert run(["sweep", *SMALL, *goals, "--json", "--out", "t.csv"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["points"], summary["refused"]) == (16, 8)
    assert summary["best"]["time_us"] < summary["worst"]["time_us"]
    assert {effect["name"] for effect in summary["sensitivity"]["effects"]} >= {"ep", "operations"}
    assert len(summary["front"]) >= 2


def test_a_file_with_flags_that_beat_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(
        'zip = [["ep", "tokens"]]\n[grid]\nep = [8, 16, 32]\ntokens = [1, 2]\n'
    )
    assert run(["sweep", "plan.toml", "--out", "t.csv"]) == 2
    assert "equally many" in capsys.readouterr().err
    assert run(["sweep", "plan.toml", "--grid", "ep=8,16", "--out", "t.csv"]) == 0
    assert "4 points, 0 refused" in capsys.readouterr().out
    assert run(["sweep", "plan.toml", "--grid", "tokens=7,8,9", "--zip", "tokens+ep", "--out", "t.csv"]) == 0
    assert run(["sweep", "plan.toml", "--grid", "tokens=7,8,9", "--sample", "3", "--out", "t.csv"]) == 0
    assert "3 points" in capsys.readouterr().out


def test_a_sweep_of_which_nothing_is_possible_fails(tmp_path, capsys):
    """The table is there, with the reasons, and the exit code says that there is no answer in it."""
    out = tmp_path / "t.csv"
    assert run(["sweep", "--grid", "num_experts=20", "--grid", "ep=16", "--out", str(out)]) == 1
    assert "2 points, 2 refused" in capsys.readouterr().out
    assert out.read_text().count("refused") == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--grid", "epp=8"], ["--grid", "ep"], ["--grid", "ep=8", "--grid", "ep=16"], ["--grid", "ep=8,,16"],
        ["no.toml"], [], ["--grid", "ep=8", "--objective", "fingerprint"], ["--grid", "ep=8", "--jobs", "0"],
        ["--grid", "ep=8", "--objective", "nothing"], ["--grid", "ep=8", "--plot-pareto", "f.png"],
        ["--grid", "ep=8", "--plot-sensitivity", "f.gif"], ["--grid", "ep=8", "--address", "auto"],
        ["--grid", "ep=8", "--grid", "routing=zipf:1", "--seed", "9"], ["--grid", "ep=8", "--seed", "0"],
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_before_any_work(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", *words, "--out", "t.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_missing_package_is_said_with_its_cure(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["sweep", "--grid", "ep=8", "--engine", "ray", "--out", str(tmp_path / name)]) == 3
    extra = {"t.csv": "epsim[cluster]", "t.parquet": "epsim[parquet]"}[name]
    assert f"pip install '{extra}'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self):
        return True


def test_progress_and_time_left_are_for_terminals_alone(tmp_path, monkeypatch, capsys):
    words = ["sweep", "--grid", "ep=8,16", "--jobs", "1", "--out", str(tmp_path / "t.csv")]
    assert run(words) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(words) == 0
    assert "4/4" in terminal.getvalue()
    assert "0:00:00" in terminal.getvalue()


def test_help_answers_without_numpy():
    code = "import sys; from epsim.cli import run; run(['sweep', '--help']); sys.exit('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "128..16384/x2" in done.stdout) == (0, True)
