"""The same seed gives the same trace, byte for byte, whatever the process and its hash seed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from epsim.sim.run import EventOptions
from epsim.simulate import simulate

CODE = """
from epsim.sim.run import EventOptions
from epsim.simulate import simulate
for item in simulate(level="events", ep=8, tokens=200, seed=3, routing="zipf:0.7",
                     events=EventOptions(with_trace=True)):
    print(item.trace.digest(), item.time_us)
"""


def traces(seed):
    options = EventOptions(with_trace=True)
    items = simulate(level="events", ep=8, tokens=200, seed=seed, routing="zipf:0.7", events=options)
    return [f"{item.trace.digest()} {item.time_us}" for item in items]


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_other_processes_and_hash_seeds_change_nothing(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={"PYTHONHASHSEED": hash_seed, "PATH": ""}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split("\n")[:-1] == traces(3)


def test_another_seed_changes_the_trace():
    assert traces(3) != traces(4)


PLATFORM_WORDS = {"int", "int_", "intp", "uint", "long", "ulong"}


def platform_words(source):
    """Find array types whose width depends on the platform: dtype=int, astype(int), np.intp and the like."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            words = [k.value for k in node.keywords if k.arg == "dtype"]
            words += node.args[:1] if called == "astype" else node.args[1:2] if called in MAKERS else []
            texts = [ast.unparse(word) for word in words]
            found += [text for text in texts if text.split(".")[-1] in PLATFORM_WORDS]
    return found


MAKERS = {"zeros", "ones", "empty", "array", "asarray"}


@pytest.mark.parametrize("folder", ["sim", "schedule"])
def test_no_array_depends_on_the_word_size(folder):
    for path in sorted(Path("epsim", folder).glob("*.py")):
        assert platform_words(path.read_text()) == [], path


def test_a_platform_word_is_found():
    assert platform_words("import numpy as np\nx = np.zeros(3, int)\ny = x.astype(np.intp)") != []
