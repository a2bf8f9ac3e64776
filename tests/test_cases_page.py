"""docs/cases.md says of every public case where it is tested, or why not; what it says is so."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CASES = re.findall(
    r"^\| (G\d\d) \| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "cases.md").read_text(), re.MULTILINE
)
REASONS = ("no part: ", "no test names it yet")


def names_case(source: str, case: str) -> bool:
    """Tell whether a test module names a case below its own docstring, as `G07` or in `test_g07_..`."""
    tree = ast.parse(source)
    has_docstring = ast.get_docstring(tree) is not None
    below = source.splitlines()[(tree.body[0].end_lineno or 0) if has_docstring else 0 :]
    return re.search(rf"(?<![^\W_]){case}(?!\d)", "\n".join(below), re.IGNORECASE) is not None


def test_every_case_stands_there_once_and_in_order() -> None:
    """G01 to G71."""
    assert [case for case, _, _ in CASES] == [f"G{number:02}" for number in range(1, 72)]


@pytest.mark.parametrize(("case", "about", "where"), CASES, ids=[case for case, _, _ in CASES])
def test_a_case_is_named_where_the_page_says(case: str, about: str, where: str) -> None:
    """Every file exists and names the case; without one there is a reason."""
    files = re.findall(r"`(tests/[^`]+)`", where)
    assert about.strip()
    assert files or where.startswith(REASONS), where
    for file in files:
        assert (ROOT / file).is_file(), file
        assert names_case((ROOT / file).read_text(), case), f"{file} does not name {case}"


@pytest.mark.parametrize(
    ("source", "is_named"),
    [
        ('"""Cases G06 and others."""\nx = 1\n', False),
        ('"""Others."""\n# cases.md G06.\n', True),
        ("def test_g06_idle(): ...\n", True),
        ("def test_g05_g06(): ...\n", True),
        ("def test_g061(): ...\nag06 = 1\n", False),
        ("", False),
    ],
)
def test_the_search_itself(source: str, is_named: bool) -> None:
    """A docstring of the module that lists cases tests none of them."""
    assert names_case(source, "G06") is is_named
