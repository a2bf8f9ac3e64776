"""The cache on disk: damage is detected, roots are searched in order, and no failure leaves half an entry."""

import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from native.cache import COMMITTED, Cache, entry_name, is_whole
from native.errors import NativeEnvironmentError
from tests.native.jitkit import ROOT, answer, jit, left_in

NAME = "k.00"


def write_one(entry: Path, work: Path) -> None:
    """Stand for a compiler: one file of 3 bytes, and another outside of the entry."""
    (entry / "binary").write_bytes(b"one")
    (work / "scratch").write_bytes(b"gone afterwards")


def never(entry: Path, work: Path) -> None:
    """Stand for a build that must not happen."""
    raise AssertionError("built although an entry is whole")


def flip(path: Path) -> None:
    """Change one bit of the first byte, sparing length and name."""
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


DAMAGES = {
    "flipped bit": lambda entry: flip(entry / "binary"),
    "cut off": lambda entry: (entry / "binary").write_bytes(b"on"),
    "longer": lambda entry: (entry / "binary").write_bytes(b"one "),
    "file lost": lambda entry: (entry / "binary").unlink(),
    "mark lost": lambda entry: (entry / COMMITTED).unlink(),
    "mark empty": lambda entry: (entry / COMMITTED).write_text(""),
    "mark flipped": lambda entry: flip(entry / COMMITTED),
    "mark without name": lambda entry: (entry / COMMITTED).write_text("00"),
    "mark is no text": lambda entry: (entry / COMMITTED).write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_built_again(tmp_path, damage):
    cache = Cache((tmp_path,))
    entry = cache.find_or_build(NAME, write_one)
    assert is_whole(entry)
    assert cache.find_or_build(NAME, never) == entry
    damage(entry)
    assert cache.find(NAME) is None
    assert cache.find_or_build(NAME, write_one) == entry
    assert is_whole(entry)
    assert left_in(tmp_path) == ([NAME], [])


def test_an_entry_holds_its_files_and_nothing_else(tmp_path):
    entry = Cache((tmp_path,)).find_or_build(NAME, write_one)
    assert sorted(path.name for path in entry.iterdir()) == [COMMITTED, "binary"]


def test_all_roots_are_read_and_the_first_is_written(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shared = Cache((old,)).find_or_build(NAME, write_one)
    both = Cache((new, old))
    assert both.find_or_build(NAME, never) == shared
    flip(shared / "binary")
    assert both.find_or_build(NAME, write_one) == new / "cache" / NAME
    assert not is_whole(shared)  # only the first root is ever changed


def test_a_root_that_cannot_be_written_is_read_all_the_same(tmp_path):
    """A file lies where the folder should be: that stops root too, whom no mode bits stop."""
    (tmp_path / "blocked").write_text("")
    blocked = tmp_path / "blocked" / "root"
    found = Cache((tmp_path / "other",)).find_or_build(NAME, write_one)
    assert Cache((blocked, tmp_path / "other")).find_or_build(NAME, never) == found
    with pytest.raises(
        NativeEnvironmentError, match=r"^the compile cache .* cannot be written \(Not a directory"
    ):
        Cache((blocked,)).find_or_build(NAME, never)


def test_a_root_without_right_to_write_is_one_sentence(tmp_path):
    """As a user without rights, also where the tests run as root."""
    tmp_path.chmod(0o555)
    code = (
        "import filelock, os; from pathlib import Path; from native.cache import Cache\n"
        "os.getuid() or os.setuid(65534)\n"
        f"Cache((Path({str(tmp_path)!r}),)).find_or_build('k.00', print)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert "NativeEnvironmentError: the compile cache" in done.stderr
    assert "Permission denied" in done.stderr


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    """A limit on the size of files stops the write, as a full disk does."""
    code = (
        "import resource; from pathlib import Path; from native.cache import Cache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "build = lambda entry, work: (entry / 'binary').write_bytes(bytes(2000))\n"
        f"Cache((Path({str(tmp_path)!r}),)).find_or_build('k.00', build)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert "NativeEnvironmentError: the compile cache" in done.stderr
    assert "File too large" in done.stderr
    assert left_in(tmp_path) == ([], [])


def test_whatever_a_build_raises_leaves_nothing(tmp_path):
    def interrupted(entry: Path, work: Path) -> None:
        write_one(entry, work)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache((tmp_path,)).find_or_build(NAME, interrupted)
    assert left_in(tmp_path) == ([], [])


def test_a_publication_without_lock_is_taken_as_it_is(tmp_path):
    """Where locks do not work, another process may publish while this one builds."""

    def overtaken(entry: Path, work: Path) -> None:
        write_one(entry, work)
        os.rename(Cache((tmp_path / "other",)).find_or_build(NAME, write_one), tmp_path / "cache" / NAME)

    entry = Cache((tmp_path,)).find_or_build(NAME, overtaken)
    assert is_whole(entry)
    assert left_in(tmp_path) == ([NAME], [])


def test_all_is_on_the_disk_before_the_entry_appears(tmp_path, monkeypatch):
    """A crash of the machine right after the rename must find every byte, and the rename itself is synced."""
    steps = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (steps.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd))
    )
    monkeypatch.setattr(os, "rename", lambda old, new: (steps.append("rename"), rename(old, new)))
    Cache((tmp_path,)).find_or_build(NAME, write_one)
    assert steps == ["binary", COMMITTED, "entry", "rename", "cache"]


def test_what_killed_builds_left_is_swept_and_what_goes_on_is_not(tmp_path):
    Cache((tmp_path,)).find_or_build(NAME, write_one)
    for name in ("k.00.dead", "other.11.dead", "other.22.alive"):
        (tmp_path / "staging" / name).mkdir()
    with filelock.FileLock(tmp_path / "locks" / "other.22.lock"):
        Cache((tmp_path,)).find_or_build("k.33", write_one)
    assert left_in(tmp_path)[1] == ["other.22.alive"]


def test_a_damaged_binary_is_compiled_again(tmp_path):
    source = 'extern "C" int answer() { return 42; }'
    made = jit(tmp_path).kernel(source, tag="answer")
    made.write_bytes(made.read_bytes()[:-1])
    assert answer(jit(tmp_path).kernel(source, tag="answer")) == 42


def test_an_entry_is_named_by_tag_and_digest():
    assert entry_name("dispatch", "00ff") == "dispatch.00ff"
