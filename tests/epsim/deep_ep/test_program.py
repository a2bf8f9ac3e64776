"""The program written for the public `deep_ep` runs on the drop-in, in several processes and by torchrun."""

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch.distributed as dist

from tests.epsim.deep_ep import program
from tests.epsim.deep_ep.spawning import run_ranks

ROOT = Path(__file__).parents[3]
EVERY_FIFTH = program.MATRIX[::5]


def run_program(rank, num_ranks, points):
    return program.run(dist.group.WORLD, "cpu", points=points)


@pytest.mark.parametrize(
    ("num_ranks", "points"), [(2, program.MATRIX), (4, EVERY_FIFTH), (8, program.MATRIX[:1])]
)
def test_the_program_finds_every_property_of_upstreams_test(num_ranks, points):
    """Two buffers, with and without CPU sync, deferred and not."""
    assert run_ranks(run_program, num_ranks, points) == [4 * len(points)] * num_ranks


def test_the_program_uses_public_names_only():
    """One import to change; no other module of ours, and no name that the library does not have."""
    tree = ast.parse(Path(program.__file__).read_text())
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [line for line in imported if "epsim" in line] == ["import epsim.deep_ep as deep_ep"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "deep_ep"
    }
    assert used == {"EPBuffer", "topk_idx_t"}


def test_the_program_runs_under_torchrun():
    """As a user starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    done = subprocess.run(
        [*command, program.__file__],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert "72 points on 2 ranks: all equal" in done.stdout, done.stderr[-2000:]
