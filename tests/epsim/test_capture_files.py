"""Which files make a capture: none of another run, either format, and few descriptors for many of them."""

import gc
import json
import os

import pytest

from epsim.capture import INDEX, read_capture, write_capture
from epsim.debug import files
from epsim.diagnose import diagnose
from tests.epsim.planted import good_capture


@pytest.fixture(scope="module")
def capture():
    """Return a right capture of two ranks."""
    return good_capture(2)


def test_files_of_a_larger_run_are_not_mixed_with_a_new_one(capture, tmp_path):
    """Nothing is written, and what was there stays."""
    write_capture(tmp_path, good_capture(3))
    old = (tmp_path / INDEX).read_bytes()
    with pytest.raises(ValueError, match=r"files is 'rank2.safetensors'"):
        write_capture(tmp_path, capture)
    assert (tmp_path / INDEX).read_bytes() == old


def test_ranks_may_come_in_either_format(capture, tmp_path):
    write_capture(tmp_path, capture)
    files.write_arrays(tmp_path / "rank1.npz", capture.ranks[1])
    (tmp_path / "rank1.safetensors").unlink()
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(index | {"files": None}))
    assert diagnose(read_capture(tmp_path)).verdict == "equal"


@pytest.mark.parametrize("name", ["rankings.npz", "weights.safetensors", "rank0.log"])
def test_other_files_may_stand_beside(capture, tmp_path, name):
    write_capture(tmp_path, capture)
    (tmp_path / name).write_bytes(b"")
    assert diagnose(read_capture(tmp_path)).verdict == "equal"


@pytest.mark.parametrize(("small_bytes", "num_open"), [(1 << 20, 0), (0, 1)])
def test_a_file_holds_one_descriptor_at_most(capture, tmp_path, monkeypatch, small_bytes, num_open):
    """One per array would end at 60 ranks where 1024 is the limit."""
    write_capture(tmp_path, capture)
    monkeypatch.setattr(files, "SMALL_BYTES", small_bytes)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    arrays = files.read_arrays(tmp_path / "rank0.safetensors")
    assert len(os.listdir("/proc/self/fd")) - before == num_open
    assert len(arrays) > 10


def test_a_file_that_cannot_be_opened_is_not_called_damaged(capture, tmp_path, monkeypatch):
    def refused(path):
        raise OSError(24, "Too many open files")

    write_capture(tmp_path, capture)
    monkeypatch.setattr(files, "_read_safetensors", refused)
    with pytest.raises(ValueError, match=r"is 'unreadable': cannot be opened: Too many open files"):
        read_capture(tmp_path)
