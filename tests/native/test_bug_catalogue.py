"""Known bugs of other libraries: each wrong form is caught, no repaired form is, and the page says so."""

import pytest

from tests.native.catalogue_rest import ALL_IDS, ELSEWHERE, NOT_REBUILT
from tests.native.cataloguekit import HostEntry, KernelEntry, end_of, ends
from tests.native.cataloguepage import ENTRIES, PAGE, page, row, wrong_ends
from tests.native.jitkit import ROOT

NAMES = [entry.name if isinstance(entry, KernelEntry) else entry.id for entry in ENTRIES]


@pytest.mark.parametrize("idx", range(len(ENTRIES)), ids=NAMES)
def test_the_wrong_form_is_caught_by_its_rules(jit_cache, idx):
    found = set(wrong_ends(jit_cache, idx))
    assert set() < found - {""} <= ENTRIES[idx].rules


@pytest.mark.parametrize("idx", range(len(ENTRIES)), ids=NAMES)
def test_the_repaired_form_passes_every_schedule(jit_cache, idx):
    entry = ENTRIES[idx]
    assert set(ends(jit_cache, entry, is_good=True)) == {""}
    if not isinstance(entry, HostEntry):
        assert end_of(jit_cache, entry, "inorder", 0, is_good=True) == ""


def test_the_page_is_what_was_measured(jit_cache):
    """If the twin's schedules have changed: `python -m tests.native.cataloguepage`."""
    assert PAGE.read_text() == page(jit_cache)


def test_an_entry_that_nothing_catches_has_no_row(jit_cache):
    assert row(ENTRIES[0], ["", "data_race"])[3:] == ["data race", "2; 1 of 2"]
    with pytest.raises(ValueError, match="B-YU1: not caught in 40 schedules"):
        row(ENTRIES[0], ends(jit_cache, ENTRIES[0], is_good=True))


def test_every_entry_of_the_catalogue_is_accounted_for():
    rebuilt = {entry.id for entry in ENTRIES} | {cells[0] for cells in ELSEWHERE}
    missing = {cells[0] for cells in NOT_REBUILT}
    assert rebuilt | missing == ALL_IDS
    assert not rebuilt & missing


@pytest.mark.parametrize(("file", "test"), [cells[3:] for cells in ELSEWHERE])
def test_tests_that_are_named_exist(file, test):
    assert f"def {test}(" in (ROOT / file).read_text()
