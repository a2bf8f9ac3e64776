"""Bad input of `epsim simulate` and `epsim workload` through the real command line, as in test_bad_input."""

import os
import re
import shlex
import sys

import pytest

from epsim.cli import run
from epsim.errors import InputError
from epsim.simulate import simulate
from tests.epsim.test_bad_input import contents

OPTIONS = {"--ep": "4", "--tokens": "8", "--op": "dispatch"}
SIMULATE = {
    "--system ubl129": "system is 'ubl129'",
    "--system sm100": "system is 'sm100': has no graph to simulate on",
    "--system a3": "epsim predict answers it",
    "--ep 0": "ep is 0: must be a whole number of at least 1",
    "--ep -4": "ep",
    "--ep 7": "ep_size 7 must divide it",
    "--ep 256": "ep is 256: must not exceed the 128 cards",
    "--ep ''": "ep is ''",
    "--tokens 0": "tokens is 0: must be a whole number of at least 1",
    "--tokens 99999999999": "num_max_tokens_per_rank is 99999999999",
    "--op scatter": "operation is 'scatter'",
    "--op ''": "operation is ''",
    "--level fluid": "fluid",
    "--grain fine": "grain is 'fine': must be packet, sqe, chunk or chunk:N",
    "--grain chunk:0": "from 1 to 1,048,576",
    "--grain sqe:4": "grain is 'sqe:4'",
    "--grain packet --level flow": "grain is 'packet': belongs to --level events",
    "--mode bounded": "mode is 'bounded': belongs to --level flow",
    "--level flow --epsilon 0.5": "epsilon is 0.5: belongs to --level flow --mode bounded",
    "--level flow --mode bounded --epsilon nan": "epsilon is nan",
    "--level flow --mode bounded --epsilon 0": "epsilon is 0.0",
    "--level flow --exit-barrier epilogue": "exit-barrier is 'epilogue': belongs to --level events",
    "--level flow --check-grain": "check-grain is 'yes': belongs to --level events",
    "--check-grain --json": "check-grain is 'with --json'",
    "--level flow --trace a.json": "trace is 'a.json': belongs to --level events",
    "--level flow --plot a.svg": "plot is 'a.svg': belongs to --level events",
    "--trace a.txt": "trace is 'a.txt': must end in .json or .html",
    "--plot a.pdf": "plot is 'a.pdf': must end in .png or .svg",
    "--trace a.json --ep 4,8": "trace is 'a.json': a timeline shows one run",
    "--plot a.svg --op dispatch,combine": "plot is 'a.svg': a timeline shows one run",
    "--trace no/such/a.html": "output file is 'no/such/a.html': cannot be written",
    "--trace a.html --plot no/such/a.svg": "output file is 'no/such/a.svg': cannot be written",
    "--hardware 951": "hardware profile is '951'",
    "--software 950dt": "software profile is '950dt'",
    "--set hbm_efficiency=nan": "hbm_efficiency is nan",
    "--set wire_efficiency=0": "wire_efficiency is 0.0",
    "--set launch_time=-1us": "launch_time is '-1us': must not be negative",
    "--set launch_time=1e9s": "longest time is '1e+09 s': must be at most 1,000,000 s",
    "--set launch_time=1e300s --level flow": "longest time is '1e+300 s': must be at most 1,000,000 s",
    "--set hbm_rate=1B/s --tokens 16384": "use fewer tokens or faster rates",
    "--ep 4,4": "ep is 4: is there twice",
    "--op combine,combine": "operation is 'combine': is there twice",
    "--masked-ratio nan": "masked_ratio is nan",
    "--routing zipf:nan": "routing is 'zipf:nan'",
    "--seed -1": "seed is -1",
    "--policy fastest": "fastest",
    "--port-rate 400Gbps": "goes with an HCCL file",
}

WORKLOAD = {
    "all-to-all": "workload is 'all-to-all': must be one of all-gather",
    "--json": "name is 'not given'",
    "--with size=1GiB": "name is 'not given'",
    "--ranks 3": "name is 'not given'",
    "--ranks 8": "name is 'not given'",
    "--system ubl128": "name is 'not given'",
    "--seed 0": "name is 'not given'",
    "--chunk 1MiB": "name is 'not given'",
    "--set hbm_rate=1TB/s": "name is 'not given'",
    "all-reduce --ranks 0": "ranks is 0: must lie between 1 and the 128 cards",
    "all-reduce --ranks -1": "ranks is -1: must lie between 1 and the 128 cards",
    "all-reduce --ranks 129": "ranks is 129: must lie between 1 and the 128 cards",
    "all-reduce --system sm90": "system is 'sm90': has no graph",
    "all-reduce --with sise=1MiB": "sise is '1MiB': is no parameter of all-reduce",
    "all-reduce --with size": "must have the form NAME=VALUE",
    "all-reduce --with size=1MiB --with size=2MiB": "gives size a second time",
    "all-reduce --with size=1parsec": "size is '1parsec'",
    "all-reduce --with size=100": "size is '100': needs a unit",
    "all-reduce --with size=-1MiB": "size is '-1MiB': must not be negative",
    "all-reduce --with size=1e30B": "must be a whole number in 0..",
    "all-reduce --with algorithm=tree": "algorithm is 'tree': must be one of direct, ring",
    "all-reduce --with num_buckets=0": "num_buckets is 0",
    "all-reduce --with num_buckets=99999999999": "num_buckets is 99999999999: must be a whole number in",
    "pp --with forward=nans": "forward is 'nans'",
    "pp --with forward=1e30s": "must be a whole number in 0..",
    "pp --with forward=1000s --with microbatches=600": "must stay below 53 days",
    "pp --with order=lifo": "order is 'lifo': must be one of gpipe, 1f1b",
    "pp --with sends_block=maybe": "sends_block is 'maybe': must be yes or no",
    "pp --with microbatches=1000000": "microbatches is 1000000",
    "pp --chunk 5": "chunk is '5': needs a unit",
    "pp --chunk 1B": "chunk bytes is 1: cuts these transfers into",
    "pp --seed -1": "seed is -1",
    "pp --seed 4": "goes with --policy flow-hash",
    "pp --set hbm_rate=nan": "hbm_rate is 'nan'",
    "pp --set hbm_rate=1B/s": "must stay below 53 days",
    "pp --trace a.txt": "trace is 'a.txt': must end in .json or .html",
    "pp --trace no/such/a.json": "output file is 'no/such/a.json': cannot be written",
    "hybrid-dispatch --with pod_size=0": "pod_size is 0",
    "hybrid-dispatch --system clos:256 --ranks 256 --with pod_size=100": "pod_size is 100: must divide 128",
    "hybrid-combine --system clos:256 --ranks 256 --with pod_size=300": "pod_size is 300: must divide 128",
    "engram-fetch --with cores=1000": "cores is 1000: must be at most 64, the vector cores of a card",
    "all-gather --with blocks=65": "blocks is 65: must be at most 64",
    "all-gather --set num_aivs=32": "blocks is 64: must be at most 32",
    "hybrid-dispatch --with experts=9": "ep_size 8 must divide it",
    "hybrid-dispatch --with routing=bad": "routing is 'bad'",
    "engram-fetch --with entries_per_rank=0": "entries_per_rank is 0",
    "cp-ring --with buffers=0": "buffers is 0",
}


def small(words=""):
    """Return a small case with its options replaced by those in `words`."""
    given = shlex.split(words)
    usual = [part for name, value in OPTIONS.items() if name not in given for part in (name, value)]
    return ["simulate", *usual, *given]


CASES = [
    *((small(words), text) for words, text in SIMULATE.items()),
    *((["workload", *shlex.split(words)], text) for words, text in WORKLOAD.items()),
]


def refused(words, folder, capfd):
    """Return what a command that must fail says, after a check that it left nothing behind."""
    before = contents(folder)
    code = run(words)
    printed = capfd.readouterr()
    assert (code, printed.out) == (2, "")
    assert re.fullmatch(r"epsim: \S[^\n]*\S\n", printed.err), printed.err
    assert contents(folder) == before
    return printed.err


@pytest.mark.parametrize(("words", "text"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bad_input_of_a_simulation_gets_one_sentence(words, text, tmp_path, monkeypatch, capfd):
    """Exit code 2, field and value named, nothing on stdout, no file left."""
    monkeypatch.chdir(tmp_path)
    assert text in refused(words, tmp_path, capfd)


def test_the_small_cases_are_sound(capfd):
    """The same words without the bad ones succeed, so each bad word was refused for itself."""
    assert run(small()) == 0
    assert capfd.readouterr().err == ""


def test_an_old_timeline_survives_a_picture_that_cannot_be_written(tmp_path, monkeypatch, capfd):
    """Both files or none: the timeline of the run before stays as it was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.html").write_text("old")
    assert "no/such/a.svg" in refused(small("--trace a.html --plot no/such/a.svg"), tmp_path, capfd)


def test_two_outputs_to_one_file_are_refused(tmp_path, monkeypatch, capfd):
    """A link makes one file of two names whose suffixes differ."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.html").write_text("old")
    (tmp_path / "a.svg").symlink_to("a.html")
    assert "is the same file as 'a.html'" in refused(small("--trace a.html --plot a.svg"), tmp_path, capfd)


@pytest.mark.parametrize("words", [small(), ["workload", "pp", "--ranks", "2"]])
def test_a_full_disk_leaves_no_timeline(words, tmp_path, monkeypatch, capfd):
    """The disk is full when the file is to reach it."""

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused([*words, "--trace", "a.json"], tmp_path, capfd)


def test_a_picture_without_matplotlib_is_exit_code_3(tmp_path, monkeypatch, capfd):
    """The install command is named, and the timeline is not written either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code = run(small("--trace a.json --plot a.svg"))
    printed = capfd.readouterr()
    assert (code, printed.out, contents(tmp_path)) == (3, "", {})
    assert "pip install 'epsim[plot]'" in printed.err


def test_more_transfers_than_memory_holds_are_refused(monkeypatch, tmp_path, capfd):
    """The limit is met while they are made, so memory never grows beyond it."""
    monkeypatch.setattr("epsim.schedule.transfers.MAX_TRANSFERS", 100)
    assert run(["workload", "all-gather", "--ranks", "8"]) == 0
    capfd.readouterr()
    assert "too many to simulate" in refused(["workload", "all-gather", "--ranks", "16"], tmp_path, capfd)


@pytest.mark.parametrize("level", ["flow", "events"])
@pytest.mark.parametrize("fault", ["rank-late:0@1e30s", "rank-slow:0@1e-300", "link-slow:npu3/plane2@1e-12"])
def test_faults_that_last_beyond_64_bits_are_refused(level, fault):
    """Before any work, and not as an overflow in the middle."""
    with pytest.raises(InputError, match=f"^fault is '{fault}': must be written as"):
        simulate(level=level, ep=4, tokens=8, faults=[fault])


@pytest.mark.parametrize("level", ["flow", "events"])
def test_faults_that_last_too_long_together_are_named(level):
    faults = [f"rank-late:0@{1e-6 * 10**15:.0f}us", "rank-slow:1@1e-6"]
    with pytest.raises(
        InputError, match=r"^fault is 'rank-late.*, rank-slow:1@1e-06': makes this last up to"
    ):
        simulate(level=level, ep=4, tokens=1 << 20, faults=faults, settings={"hbm_rate": "100MB/s"})
