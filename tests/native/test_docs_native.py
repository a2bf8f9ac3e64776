"""The examples of docs/native.md, run as written: what is wrong, the repair, and the command of a rerun."""

import re
import shlex
from pathlib import Path

import pytest

from epsim.cli import run
from epsim.trace.twin import read_twin_events, twin_trace
from tests.native.jitkit import STRICT
from tests.test_docs import matches

PAGE = (Path(__file__).parents[2] / "docs" / "native.md").read_text()
BLOCKS = {
    kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("cpp", "python", "diff", "text")
}


def repaired(source: str, diff: str) -> str:
    """Apply a diff of one place: its unmarked line, then the added ones."""
    lines = diff.splitlines()
    kept = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] + "\n" for line in lines)
    assert source.count(kept) == 1
    return source.replace(kept, new)


@pytest.fixture
def folder(tmp_path, monkeypatch, jit_cache):
    """Stand in an empty folder, with the compile cache of the other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPSIM_JIT_CACHE_DIR", str(jit_cache))
    monkeypatch.setenv("EPSIM_JIT_CXXFLAGS", " ".join(STRICT))
    return tmp_path


def check_example(folder, capsys, number, source_name, script_name):
    """Run an example of the page as it stands and repaired; the page shows what both print."""
    source, script, diff = (BLOCKS[kind][number] for kind in ("cpp", "python", "diff"))
    (folder / "kernels").mkdir()
    texts = BLOCKS["text"][2 * number : 2 * number + 2]
    for text, shown in zip((source, repaired(source, diff)), texts, strict=True):
        command, _, expected = shown.partition("\n")
        assert command == f"$ python {script_name}"
        (folder / "kernels" / source_name).write_text(text)
        exec(compile(script, script_name, "exec"), {})
        assert matches(expected.strip("\n"), capsys.readouterr().out)


def test_the_example_is_caught_and_its_repair_holds(folder, capsys):
    """Both runs print what the page shows, and the last one leaves operations to draw."""
    check_example(folder, capsys, 0, "twice.cpp", "run.py")
    drawn = twin_trace(read_twin_events(folder / "operations"), "twice")
    assert {"twice", "copy_in", "copy_out"} <= set(drawn.names)


def test_the_example_of_two_ranks_is_wrong_at_times_and_its_repair_never(folder, capsys):
    check_example(folder, capsys, 1, "swap.cpp", "ranks.py")


def params_of(text):
    """Return (name, names of parameters) of calls and definitions `asc_x(T a, U b = c)`."""
    found = set()
    for name, params in re.findall(r"\b(asc_\w+)(?:<\w+>)?\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text):
        # Commas of template arguments are none of parameters.
        plain = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", params))
        words = [param.partition("=")[0].split() for param in plain.split(",") if param.strip()]
        found.add((name, tuple(word[-1] for word in words if word[-1] != "here")))
    return found


def test_the_signatures_are_those_of_the_twin():
    """Names of calls and parameters, as the headers have them."""
    headers = (Path(__file__).parents[2] / "native" / "twin").glob("asc_*.hpp")
    real = params_of("\n".join(path.read_text() for path in headers))
    table = PAGE.partition("Signatures of what kernels use most")[2].partition("\n\nPointers")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    shown = set().union(*(params_of(row.split(" | ")[0]) for row in rows))
    assert len(shown) >= 20
    assert shown - real == set()


def test_the_rerun_prints_what_the_page_shows(folder, capsys):
    command, _, expected = BLOCKS["text"][4].partition("\n")
    assert run(shlex.split(command.removeprefix("$ epsim "))) == 0
    assert matches(expected.strip("\n"), capsys.readouterr().out)
    assert (folder / "run.html").exists()
    assert len(BLOCKS["text"]) == 5
