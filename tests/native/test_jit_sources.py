"""Tracked includes and digests: what cannot be tracked is refused, and no two structures share a digest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.errors import NativeInputError
from native.sources import FOLDERS, Snapshot, digest_of, includes_of
from tests.native.jitkit import put

GROUPS = st.lists(st.lists(st.binary(max_size=3), max_size=3), max_size=3)


@given(GROUPS, GROUPS)
def test_digests_are_equal_for_equal_structures_alone(left, right):
    assert (digest_of(*left) == digest_of(*right)) == (left == right)


@given(st.binary(max_size=6), st.integers(0, 6))
def test_a_field_cut_in_two_is_another_key(field, cut):
    assert digest_of([field[:cut], field[cut:]]) != digest_of([field])
    assert digest_of([field[:cut]], [field[cut:]]) != digest_of([field[:cut], field[cut:]])


@given(st.binary(max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_where_a_field_is_cut_is_in_the_key(field, left, right):
    pairs = [[field[:cut], field[cut:]] for cut in (left, right)]
    assert (digest_of(pairs[0]) == digest_of(pairs[1])) == (pairs[0] == pairs[1])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#include <vector>\n  #  include <kernels/a.hpp> // why\n", ["vector", "kernels/a.hpp"]),
        ("%:include <twin/a.hpp>", ["twin/a.hpp"]),
        ("#inc\\\nlude <twin/a.hpp>\r\n", ["twin/a.hpp"]),
        ("/* */ # /* odd */ include /**/ <twin/a.hpp>", ["twin/a.hpp"]),
        ('// #include "a"\n/*\n#include "b"\n*/\n', []),
        ('auto s = R"x(\n#include "b"\n)x";\n#include <twin/a.hpp>\n', ["twin/a.hpp"]),
        ('auto s = "/*";\n#include <twin/a.hpp>\nauto t = "*/";', ["twin/a.hpp"]),
        ("int n = 1'000; /*'*/\n#include <twin/a.hpp>\nchar c = '\"';", ["twin/a.hpp"]),
        ("char c = '\\''; // '\n#include <twin/a.hpp>", ["twin/a.hpp"]),
        ("#if 0\n#include <twin/a.hpp>\n#endif", ["twin/a.hpp"]),
        ("int include; // # include", []),
    ],
)
def test_includes_are_found_where_the_compiler_sees_them(text, names):
    assert includes_of(text, "kernel.cpp") == names


@pytest.mark.parametrize(
    "argument", ['"a.hpp"', "HEADER", "<a", "", "</etc/a.hpp>", "<kernels/../a.hpp>", "<../a.hpp>", "<a> <b>"]
)
def test_an_include_that_cannot_be_tracked_is_refused_by_name(argument):
    with pytest.raises(NativeInputError, match=r"^include in twin/x\.hpp is '.*': must ") as caught:
        includes_of(f"#include {argument}\n", "twin/x.hpp")
    assert argument in str(caught.value)


@pytest.mark.parametrize("directive", ["include_next <a>", "import <a>", "embed <a>"])
def test_other_ways_to_bring_in_files_are_refused(directive):
    with pytest.raises(NativeInputError, match="must have the form"):
        includes_of(f"#{directive}\n", "twin/x.hpp")


def test_a_closure_follows_our_includes_and_no_others(tmp_path):
    folders = put(
        tmp_path,
        {
            "kernels/a.hpp": "#include <twin/b.hpp>\n#include <twin/c.hpp>\n#include <kernel_operator.h>\n",
            "twin/b.hpp": "#include <twin/c.hpp>\n",
            "twin/c.hpp": "",
            "twin/alone.hpp": "",
        },
    )
    assert Snapshot(folders).closure("kernels/a.hpp") == ["kernels/a.hpp", "twin/b.hpp", "twin/c.hpp"]


def test_a_circle_is_refused_and_named(tmp_path):
    files = {f"twin/{a}.hpp": f"#pragma once\n#include <twin/{b}.hpp>\n" for a, b in ("ab", "bc", "cb")}
    with pytest.raises(
        NativeInputError, match=r"'twin/b.hpp -> twin/c.hpp -> twin/b.hpp': must not lead back"
    ):
        Snapshot(put(tmp_path, files)).closure("twin/a.hpp")


def test_a_file_that_includes_itself_is_refused(tmp_path):
    with pytest.raises(NativeInputError, match=r"twin/a.hpp -> twin/a.hpp"):
        Snapshot(put(tmp_path, {"twin/a.hpp": "#include <twin/a.hpp>"})).closure("twin/a.hpp")


def test_a_missing_file_of_ours_is_named(tmp_path):
    with pytest.raises(NativeInputError, match=r"source is 'twin/none.hpp': must be a readable file"):
        Snapshot(put(tmp_path, {"twin/a.hpp": "#include <twin/none.hpp>"})).closure("twin/a.hpp")


def test_a_snapshot_keeps_what_it_read_first(tmp_path):
    snapshot = Snapshot(put(tmp_path, {"twin/a.hpp": "old"}))
    snapshot.read("twin/a.hpp")
    put(tmp_path, {"twin/a.hpp": "new"})
    snapshot.write(["twin/a.hpp"], tmp_path / "copy")
    assert (tmp_path / "copy" / "twin" / "a.hpp").read_text() == "old"


SHIPPED = [
    f"{prefix}/{path.relative_to(folder).as_posix()}"
    for prefix, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.[hc]*"))
]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_file_of_ours_can_be_tracked(name):
    """No quoted include, no circle, none missing."""
    assert name in Snapshot().closure(name)
