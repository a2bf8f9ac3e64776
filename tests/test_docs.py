"""The commands in README and docs work as written and print what stands there."""

import re
import shlex
from pathlib import Path

import pytest

from epsim.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


def console_cases() -> list[tuple[str, str, str]]:
    """Return (page, command, expected output) of every console block."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            parts = COMMAND.split(block)
            pairs = zip(parts[1::2], parts[2::2], strict=True)
            found += [(page.name, command, output.strip("\n")) for command, output in pairs]
    return found


def matches(expected: str, printed: str) -> bool:
    """Compare line by line; a line of three dots stands for any lines."""
    pieces = [
        re.escape(line.rstrip()) + r"\n" if line != "..." else r"(?:.*\n)*?" for line in expected.split("\n")
    ]
    text = "".join(line.rstrip() + "\n" for line in printed.strip("\n").split("\n"))
    return re.fullmatch("".join(pieces), text) is not None


@pytest.mark.parametrize(("page", "command", "expected"), console_cases())
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
    assert words[0] == "epsim"
    assert run(words[1:]) == 0
    assert matches(expected, capsys.readouterr().out)


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
