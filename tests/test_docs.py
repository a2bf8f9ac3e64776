"""The commands and sessions in README and docs work as written and print what stands there."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from epsim.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="the drop-in for deep_ep needs torch")


def console_cases(program: str) -> list[tuple[str, str, str]]:
    """Return (page, command, expected output) of every command of `program` in a console block."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            parts = COMMAND.split(block)
            pairs = zip(parts[1::2], parts[2::2], strict=True)
            found += [(page.name, command, output.strip("\n")) for command, output in pairs]
    return [case for case in found if shlex.split(case[1])[0] == program]


def test_every_command_is_of_a_program_that_is_run() -> None:
    """A block with another program would stand there unchecked."""
    commands = [
        c for page in PAGES for block in BLOCK.findall(page.read_text()) for c in COMMAND.findall(block)
    ]
    assert len(commands) == len(console_cases("epsim")) + len(console_cases("python"))


def matches(expected: str, printed: str) -> bool:
    """Compare line by line; a line of three dots stands for any lines."""
    pieces = [
        re.escape(line.rstrip()) + r"\n" if line != "..." else r"(?:.*\n)*?" for line in expected.split("\n")
    ]
    text = "".join(line.rstrip() + "\n" for line in printed.strip("\n").split("\n"))
    return re.fullmatch("".join(pieces), text) is not None


@pytest.mark.parametrize(("page", "command", "expected"), console_cases("epsim"))
def test_console_block_prints_what_it_shows(
    page: str,
    command: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Run the command as a reader would, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert run(words[1:]) == 0
    assert matches(expected, capsys.readouterr().out)


@NEEDS_TORCH
@pytest.mark.parametrize(("page", "command", "expected"), console_cases("python"))
def test_example_program_prints_what_its_page_shows(page: str, command: str, expected: str) -> None:
    """Run it from the checkout; ranks print in any order, so lines are compared sorted."""
    # Unbuffered, print writes a line and its end apart, and those of two ranks mix.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(expected.splitlines())


def session_of(text: str, name: str) -> doctest.DocTest:
    """Return all pycon blocks of a page as one session; other lines are blank, so line numbers are right."""
    kept, end = [], 0
    for block in SESSION.finditer(text):
        kept += ["\n" * text.count("\n", end, block.start(1)), block[1]]
        end = block.end(1)
    return doctest.DocTestParser().get_doctest("".join(kept), {"__name__": "__main__"}, name, name, 0)


def faults_of(session: doctest.DocTest) -> list[str]:
    """Return what doctest has to say about every example that printed something else."""
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(session, out=said.append)
    return said


def pages_with_sessions() -> list[object]:
    """Return the pages that have pycon blocks; those with torch in them need it."""
    found = []
    for page in PAGES:
        blocks = "".join(SESSION.findall(page.read_text()))
        marks = [NEEDS_TORCH] if re.search(r"\btorch\b|epsim\.deep_ep", blocks) else []
        found += [pytest.param(page, id=page.name, marks=marks)] if blocks else []
    return found


@pytest.mark.parametrize("page", pages_with_sessions())
def test_session_prints_what_its_page_shows(page: Path) -> None:
    """The blocks of one page, in order, in one namespace."""
    assert faults_of(session_of(page.read_text(), page.name)) == []


def test_no_example_stands_outside_a_block_that_is_run() -> None:
    """A prompt in a block of another kind would never be checked."""
    for page in PAGES:
        assert ">>> " not in SESSION.sub("", page.read_text()), page.name


@pytest.mark.parametrize(
    ("text", "num_examples", "is_wrong"),
    [
        ("```pycon\n>>> a = 1\n```\ntext\n```pycon\n>>> a\n1\n```\n", 2, False),
        ("```pycon\n>>> 1 + 1\n3\n```\n", 1, True),
        ("```pycon\n>>> 1 + 1\n```\n", 1, True),
        ("```pycon\n>>> 1 / 0\nTraceback (most recent call last):\n    ...\nValueError: x\n```\n", 1, True),
        ("```python\n>>> 1 + 1\n3\n```\n", 0, False),
    ],
)
def test_a_wrong_result_in_a_session_is_found(text: str, num_examples: int, is_wrong: bool) -> None:
    """A wrong value, a value that is not shown, another error; and one session over all blocks."""
    session = session_of(text, "page")
    assert len(session.examples) == num_examples
    assert bool(faults_of(session)) is is_wrong
    if is_wrong:
        assert 'File "page", line 2' in faults_of(session)[0]


def test_every_page_link_leads_somewhere() -> None:
    """Follow relative links of README and docs."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [("a\n...\nc", "a\nb\nc", True), ("a\nb", "a\nc", False), ("a", "a\nb", False), ("...", "", True)],
)
def test_the_comparison_itself(expected: str, printed: str, same: bool) -> None:
    """A wrong line, a missing line and a surplus line are differences."""
    assert matches(expected, printed) is same
