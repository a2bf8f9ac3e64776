"""The session and the dump of docs/debug.md, run as written; test_docs wants exit code 0."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from epsim.capture import FIELDS, CaptureOptions, read_capture
from epsim.cli import run
from epsim.diagnose import diagnose
from tests.epsim.planted import good_capture
from tests.test_docs import matches

PAGE = (Path(__file__).parents[2] / "docs" / "debug.md").read_text()
DUMP, *SESSION = re.findall(r"```(python|text)\n(.*?)```", PAGE, re.DOTALL)


def test_the_session_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    """Python blocks and commands, in order, in one folder; a wrong dump exits with 1."""
    monkeypatch.chdir(tmp_path)
    names, codes = {}, []
    for kind, block in SESSION:
        if kind == "python":
            exec(compile(block, "docs/debug.md", "exec"), names)
            continue
        command, _, expected = block.partition("\n")
        codes.append(run(shlex.split(command.removeprefix("$ epsim "))))
        assert matches(expected.strip("\n"), capsys.readouterr().out)
    assert codes == [0, 1, 0]


def test_the_dump_in_ten_lines_writes_a_capture(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None, raising=False)
    names = {}
    exec(compile(DUMP[1], "docs/debug.md", "exec"), names)
    capture = good_capture(2)
    group = {n: getattr(capture.group, n) for n in capture.group.__struct_fields__ if n != "expert_ranks"}
    for rank in (1, 0):
        tensors = {name: as_tensor(torch, array) for name, array in capture.ranks[rank].items()}
        names["dump"](tmp_path, rank, group, {"zero_padding": True}, **tensors, recv_sf=None)
    assert diagnose(read_capture(tmp_path)).verdict == "equal"


def as_tensor(torch, array):
    """Return an array as a tensor; NumPy has no bf16 that torch takes."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def test_the_page_names_every_field_and_option():
    """And shows the defaults that options have."""
    assert all(f"`{name}`" in PAGE for name in FIELDS)
    text = " ".join(PAGE.split())
    for name, value in {n: getattr(CaptureOptions(), n) for n in CaptureOptions.__struct_fields__}.items():
        assert re.search(rf"`{name}`[^`(]*\(`?{re.escape(json.dumps(value))}`?[:)]", text), name
