"""The example of docs/native.md, run as written: its violation, its repair, and the command of a rerun."""

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


def test_the_example_is_caught_and_its_repair_holds(folder, capsys):
    """Both runs print what the page shows, and the last one leaves operations to draw."""
    [source], [script], [diff], texts = (BLOCKS[kind] for kind in ("cpp", "python", "diff", "text"))
    (folder / "kernels").mkdir()
    for text, shown in zip((source, repaired(source, diff)), texts, strict=False):
        command, _, expected = shown.partition("\n")
        assert command == "$ python run.py"
        (folder / "kernels" / "twice.cpp").write_text(text)
        exec(compile(script, "run.py", "exec"), {})
        assert matches(expected.strip("\n"), capsys.readouterr().out)
    drawn = twin_trace(read_twin_events(folder / "operations"), "twice")
    assert {"twice", "copy_in", "copy_out"} <= set(drawn.names)


def test_the_rerun_prints_what_the_page_shows(folder, capsys):
    command, _, expected = BLOCKS["text"][2].partition("\n")
    assert run(shlex.split(command.removeprefix("$ epsim "))) == 0
    assert matches(expected.strip("\n"), capsys.readouterr().out)
    assert (folder / "run.html").exists()
    assert len(BLOCKS["text"]) == 3
