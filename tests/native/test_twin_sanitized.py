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
    "-O1",
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
    sources = [MAIN, *sorted(KERNELS.glob("*.cpp")), *sorted((NATIVE / "twin").glob("*.cpp"))]
    includes = [f"-I{path}" for path in (NATIVE, NATIVE / "include", folder)]
    objects = [folder / f"{i}.o" for i in range(len(sources))]
    compiler = ["g++", *FLAGS, "-fsanitize=address,undefined"]
    running = [
        subprocess.Popen([*compiler, *includes, "-c", str(source), "-o", str(target)])
        for source, target in zip(sources, objects, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(sources)
    subprocess.run([*compiler, *map(str, objects), "-o", str(folder / "program")], check=True)
    return folder / "program"


def test_all_kernels_are_clean_under_the_sanitizers(program: Path) -> None:
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = re.fullmatch(r"(\d+) runs, (\d+) violations\n", result.stdout)
    assert counts is not None
    num_runs, num_violations = map(int, counts.groups())
    assert num_runs > num_violations > num_runs // 4  # both ways of ending are in it
