"""Output files are written whole or not at all, whatever fails on the way."""

import errno
import os
import stat

import pytest

from epsim.errors import InputError
from epsim.files import write_atomically, write_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("data", "expected"), [("caf\u00e9\r\n", b"caf\xc3\xa9\r\n"), (b"\x00\xff", b"\x00\xff"), ("", b"")]
)
def test_the_target_holds_exactly_the_data(tmp_path, data, expected):
    write_atomically(tmp_path / "out", data)
    assert (tmp_path / "out").read_bytes() == expected
    assert names(tmp_path) == ["out"]


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path):
    target = tmp_path / "out"
    target.write_text("old and longer")
    for mode in (0o640, 0o666, 0o600):
        target.chmod(mode)
        write_atomically(str(target), "new")
        assert target.read_text() == "new"
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_link_keeps_pointing_at_its_file(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_file_with_a_very_long_name_can_be_written(tmp_path):
    name = "n" * 255
    write_atomically(tmp_path / name, "x")
    assert names(tmp_path) == [name]


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_while_writing_leaves_nothing_behind(tmp_path):
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(InputError, match="cannot be written: File too large"):
            write_atomically(tmp_path / "out", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == []


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "existed"),
    [("fsync", True), ("fsync", False), ("replace", True), ("replace", False), ("chmod", True)],
)
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, function, existed):
    target = tmp_path / "out"
    if existed:
        target.write_text("old")
    monkeypatch.setattr(os, function, full_disk)
    with pytest.raises(InputError, match="cannot be written: No space left on device") as refused:
        write_atomically(target, "new" * 10_000)
    assert str(target) in str(refused.value)
    assert names(tmp_path) == ["out"] * existed
    assert not existed or target.read_text() == "old"


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, function):
    monkeypatch.setattr(os, function, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "out", "new")
    assert names(tmp_path) == []


def test_the_target_is_replaced_only_after_its_bytes_are_synced(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def log_fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        order.append((f"sync {kind}", os.fstat(descriptor).st_size if kind == "file" else None))
        fsync(descriptor)

    def log_replace(source, target):
        order.append(("replace", None))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "replace", log_replace)
    write_atomically(tmp_path / "out", "12345")
    assert order == [("sync file", 5), ("replace", None), ("sync folder", None)]


def test_a_folder_that_cannot_be_synced_does_not_matter(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write_atomically(tmp_path / "out", "x")
    assert (tmp_path / "out").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/out", "No such file or directory"),
        ("folder", "it is a folder"),
        ("folder/", "it is a folder"),
        ("new/", "the name ends as that of a folder"),
        ("plain/out", "Not a directory"),
        ("pipe", "it exists and is no ordinary file"),
        ("a\0b", "null"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_bad_target_is_refused_in_one_sentence(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    with pytest.raises(InputError, match=f"^output file is .*: cannot be written: .*{reason}") as refused:
        write_atomically(f"{tmp_path}/{name}", "x")
    assert "\n" not in str(refused.value)
    assert names(tmp_path) == before


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/null", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_device_is_refused_also_where_the_shell_made_it_a_file(name):
    with pytest.raises(InputError, match="cannot be written: it is a device, and no ordinary file"):
        write_atomically(name, "x")


@pytest.mark.parametrize("name", ["", "."])
def test_an_empty_name_is_called_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"must name a file; an empty name and \. are the current folder"):
        write_atomically(name, "x")
    assert names(tmp_path) == []


# Several files of one command.


def test_several_files_are_written_in_several_folders(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b").write_text("old")
    write_files([(tmp_path / "a", "1"), (tmp_path / "b", b"2"), (tmp_path / "sub" / "c", "3")])
    texts = {p.relative_to(tmp_path).as_posix(): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert texts == {"a": "1", "b": "2", "sub/c": "3"}
    write_files([])


def second_name(folder, how):
    """Make another name of folder/a."""
    target = folder / "a"
    if how == "same":
        return target
    if how == "relative":
        return folder / "sub" / ".." / "a"
    if how == "link to a new file":
        (folder / "link").symlink_to("a")
        return folder / "link"
    if how == "linked folder":
        (folder / "again").symlink_to(folder)
        return folder / "again" / "a"
    target.write_text("old")
    (folder / "link").hardlink_to(target)
    return folder / "link"


@pytest.mark.parametrize("how", ["same", "relative", "link to a new file", "linked folder", "hard link"])
def test_one_file_under_two_names_is_refused_before_anything_is_written(tmp_path, how):
    (tmp_path / "sub").mkdir()
    other = second_name(tmp_path, how)
    before = {p: p.read_text() for p in tmp_path.iterdir() if p.is_file()}
    with pytest.raises(InputError, match=r"is (named|the same file as '.*/a', both) for two"):
        write_files([(tmp_path / "a", "1"), (other, "2")])
    assert {p: p.read_text() for p in tmp_path.iterdir() if p.is_file()} == before


@pytest.mark.parametrize("name", ["folder", "pipe", "missing/out", "plain/out", "/dev/stdout", "n" * 300])
@pytest.mark.parametrize("place", [0, 1])
def test_a_bad_target_among_good_ones_stops_all(tmp_path, name, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    files = [(tmp_path / "good", "1"), (tmp_path / "fine", "2")]
    files.insert(place, (tmp_path / name, "x"))
    with pytest.raises(InputError, match="cannot be written"):
        write_files(files)
    assert names(tmp_path) == before


@pytest.mark.parametrize("is_root", [False, True])
def test_a_read_only_folder_stops_all(tmp_path, monkeypatch, is_root):
    """`access` says so beforehand; where it is wrong, as on a disk mounted read-only, staging does."""
    if is_root:
        monkeypatch.setattr(os, "access", lambda *_: True)
        fail_for(monkeypatch, "locked", errno.EROFS)
    else:
        monkeypatch.setattr(os, "access", lambda folder, _: "locked" not in str(folder))
    (tmp_path / "locked").mkdir()
    with pytest.raises(InputError, match=r"locked/b': cannot be written: .*(not writable|Read-only)"):
        write_files([(tmp_path / "a", "1"), (tmp_path / "locked" / "b", "2")])
    assert names(tmp_path) == ["locked"]


def fail_for(monkeypatch, word, code):
    """Let the opening of files whose path has this word fail."""
    real = open

    def opened(path, *rest):
        if word in str(path):
            raise OSError(code, os.strerror(code))
        return real(path, *rest)

    monkeypatch.setattr("builtins.open", opened)


@pytest.mark.parametrize("failure", [full_disk, interrupt])
@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_whatever_fails_at_any_file_leaves_all_old_ones_and_nothing_new(
    tmp_path, monkeypatch, failure, function, call
):
    for name in ("a", "c"):
        (tmp_path / name).write_text(f"old {name}")
    real, calls = getattr(os, function), []

    def counted(*arguments):
        calls.append(arguments)
        return failure() if len(calls) == call else real(*arguments)

    monkeypatch.setattr(os, function, counted)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        write_files([(tmp_path / name, "new") for name in "abc"])
    if failure is full_disk:
        assert f"{tmp_path / 'abc'[call - 1]}'" in str(caught.value)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old a", "c": "old c"}


def test_old_files_come_back_where_the_disk_has_no_hard_links(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old a")
    monkeypatch.setattr(os, "link", full_disk)
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: full_disk() if b.name == "b" else real(a, b))
    with pytest.raises(InputError, match="No space left"):
        write_files([(tmp_path / name, "new") for name in "ab"])
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old a"}
