"""The twin under AddressSanitizer and UBSan: fibers, given-up runs and memory of machines are clean."""

import re
import subprocess
from pathlib import Path

import pytest
from twinkit import KERNELS

NATIVE = Path(__file__).parents[2] / "native"
MAIN = Path(__file__).parent / "twin_sanitized" / "main.cpp"
FLAGS = (
    "-std=c++20",
    "-O0",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-DEPSIM_TWIN",
    "-fno-sanitize-recover=all",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a program that runs all kernels of the tests, with both sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "kernels").symlink_to(KERNELS)
    # All of the twin as one source: a third of the time of compiling its files one by one.
    whole = folder / "whole.cpp"
    whole.write_text(
        "".join(f"#include <twin/{path.name}>\n" for path in sorted((NATIVE / "twin").glob("*.cpp")))
    )
    sources = [whole, MAIN, *sorted(KERNELS.glob("*.cpp"))]
    compiler = ["g++", *FLAGS, "-fsanitize=address,undefined"]
    includes = [f"-I{path}" for path in (NATIVE, NATIVE / "include", folder)]
    subprocess.run([*compiler, *includes, *map(str, sources), "-o", str(folder / "program")], check=True)
    return folder / "program"


def test_all_kernels_are_clean_under_the_sanitizers(program: Path) -> None:
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = re.fullmatch(r"(\d+) runs, (\d+) violations\n", result.stdout)
    assert counts is not None
    num_runs, num_violations = map(int, counts.groups())
    assert num_runs > num_violations > num_runs // 4  # both ways of ending are in it
