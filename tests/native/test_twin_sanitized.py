"""Twin and kernels with the other compiler, all warnings being errors, under AddressSanitizer and UBSan.

g++ builds them for all other tests, clang here; where there is no clang, g++ does both.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.settings import JitSettings
from native.sources import FOLDERS
from native.twin import build_twin
from tests.native.jitkit import ROOT, STRICT
from tests.native.twinkit import KERNELS

CLANG = shutil.which("clang++")
COMPILER = CLANG or "g++"
# Its runtime must be in the process before Python's own memory is: it comes as a library.
SHARED = ("-shared-libasan",) if CLANG else ()
SANITIZED = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS = (*STRICT, *SANITIZED, *SHARED)
RUNTIME = "libclang_rt.asan-x86_64.so" if CLANG else "libasan.so"
MAIN = Path(__file__).parent / "twin_sanitized" / "main.cpp"
PROGRAMS = """
import pathlib, sys
from epsim.conform.program import Cached, Combine, Dispatch, Program
from epsim.conform.search import rerun
from native.backends.protocol import Schedule
from native.backends.twin import STRATEGIES, TwinBackend
from native.twin import Twin

topk = (((0, 3), (5, -1), (2, 1)), (), ((4, 0), (3, 5)))
shape = {"topk": topk, "experts": 6, "columns": 2, "capacity": 3, "hidden": 64, "weights": True}
programs = [
    Program(steps=(Dispatch(**shape, payload="fp8", packs=2, alignment=4, zero_padding=True, stats=True),
                   Cached(hidden=32), Combine(hidden=64, biases=2, weights=True)), aivs=2),
    Program(steps=(Dispatch(**shape, cpu_sync=False), Cached(hidden=32, payload="fp8_columns", weights=True),
                   Combine(hidden=32, biases=1)), aivs=3, multiple_reduction=False),
]
backend = TwinBackend(Twin(pathlib.Path(sys.argv[1])))
for program in programs:
    for seed, strategy in enumerate(STRATEGIES):
        broken = rerun(backend, program, seed=seed, schedule=Schedule(strategy=strategy, seed=seed))
        assert broken is None, broken
print("clean")
"""
"""Every kernel, with both payloads, both reductions and calls that overlap (odd seeds)."""


def build(jit_cache: Path, folders=FOLDERS) -> Path:
    """Compile a twin with the sanitizers; the machine itself is compiled once for both sets of kernels."""
    return build_twin(JitSettings(cache_dirs=(jit_cache,), cxx=COMPILER), folders, FLAGS)


def test_our_kernels_are_clean_under_the_sanitizers(jit_cache):
    """In a process of its own; what Python never frees is no leak of ours."""
    asked = [COMPILER, f"-print-file-name={RUNTIME}"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    library = build(jit_cache)
    assert b"__asan_report_load8" in library.read_bytes()  # else the run below would show nothing
    command = [sys.executable, "-c", PROGRAMS, str(library)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "clean\n"


@pytest.fixture(scope="module")
def program(jit_cache, tmp_path_factory):
    """Build a program that runs all kernels of the tests, and looks for leaks."""
    library = build(jit_cache, {**FOLDERS, "kernels": KERNELS})
    target = tmp_path_factory.mktemp("sanitized") / "program"
    words = ["-std=c++20", "-DEPSIM_TWIN", *FLAGS, f"-I{ROOT}/native", f"-I{ROOT}/native/include"]
    # The folder of the compiler's own runtime is not where programs look for libraries.
    asked = [COMPILER, f"-print-file-name={RUNTIME}"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    paths = [f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath,{Path(runtime).parent}"]
    command = [COMPILER, *words, str(MAIN), str(library), *paths, "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def test_kernels_that_break_rules_are_clean_and_leave_nothing(program):
    """Fibers, runs that are given up, memory of machines."""
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = re.fullmatch(r"(\d+) runs, (\d+) violations\n", result.stdout)
    assert counts is not None
    num_runs, num_violations = map(int, counts.groups())
    assert num_runs > num_violations > num_runs // 4  # both ways of ending are in it
