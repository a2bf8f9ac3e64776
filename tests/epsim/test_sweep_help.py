"""`epsim sweep --help` and docs/sweep.md say what each target takes."""

import re
from pathlib import Path

import pytest

from epsim.cli import run
from epsim.sweep.targets import TARGETS

PAGE = Path(__file__).parents[2] / "docs" / "sweep.md"


def listed(text, both, predict, simulate):
    """Return the parameters per target that stand between three words and the next full stop or line."""
    found = []
    for start, end in (both, predict, simulate):
        part = text.partition(start)[2].partition(end)[0]
        found.append(set(re.findall(r"\w+", part)))
    return {"predict": found[0] | found[1], "simulate": found[0] | found[2]}


def wanted():
    """Return the parameters of each target."""
    return {name: set(target.parameters) for name, target in TARGETS.items()}


def test_help_lists_targets_and_their_parameters(capsys):
    assert run(["sweep", "--help"]) == 0
    text = re.sub(r"[\s\u2502]+", " ", capsys.readouterr().out)
    assert f"[choices: {', '.join(TARGETS)}]" in text
    ends = (("Both targets take ", "."), ("Only predict: ", "."), ("Only simulate: ", "."))
    assert listed(text, *ends) == wanted()
    # Planted: a parameter that is not told.
    assert listed(text.replace(" fault.", "."), *ends) != wanted()


def test_the_page_lists_the_same():
    text = re.sub(r"\(one spec.*?\)\)", "", PAGE.read_text())
    ends = (("| both |", "|"), ("| `predict` |", "|"), ("| `simulate` |", "|"))
    assert listed(text, *ends) == wanted()
    assert "$ epsim sweep --target simulate" in text


@pytest.mark.parametrize("word", ["predcit", "whatif"])
def test_another_target_is_refused_with_the_choices(word, capsys):
    assert run(["sweep", "--target", word, "--grid", "ep=8", "--out", "a.csv"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in TARGETS)
