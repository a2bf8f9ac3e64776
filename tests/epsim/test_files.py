"""Output files are written whole or not at all, whatever fails on the way."""

import errno
import os
import stat

import pytest

from epsim.errors import InputError
from epsim.files import write_atomically


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
        ("folder", "it exists and is no ordinary file"),
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
