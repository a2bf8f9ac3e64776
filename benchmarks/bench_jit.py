"""Run-time compilation: the first and the second start of one kernel and of the whole twin.

A second start is a new process: it finds the compiler, asks for its version, reads and hashes all sources,
and verifies the sums of the entry. The start of Python and its imports are not counted.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from native.instantiate import instantiate
from native.jit import Jit
from native.settings import JitSettings
from native.sources import FOLDERS
from native.toolchain import host_toolchain
from native.twin import build_twin, twin_sources

HEADER = (
    "#pragma once\ntemplate <int num_ranks, bool is_cached> int kernel() { return num_ranks * is_cached; }\n"
)
KINDS = ("kernel", "twin")


def start(kind, folder):
    """Return the seconds from the search for a compiler to the path of a binary."""
    settings = JitSettings(cache_dirs=(folder / "cache",))
    began = time.perf_counter()
    if kind == "twin":
        build_twin(settings)
    else:
        header = folder / "kernels" / "bench.hpp"
        header.parent.mkdir(exist_ok=True)
        header.write_text(HEADER)
        build = Jit(settings, host_toolchain(settings), {"kernels": header.parent})
        source = instantiate("kernels/bench.hpp", "kernel", {"num_ranks": 8, "is_cached": True})
        build.kernel(source, tag="bench")
    return time.perf_counter() - began


def elsewhere(kind, folder):
    """Return the seconds that a new process measures."""
    words = [sys.executable, "-m", "benchmarks.bench_jit", kind, folder]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def run():
    """Yield (name, seconds, target) for each start."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            if kind == "twin" and "twin/capi.cpp" not in twin_sources(FOLDERS):
                continue
            yield f"{kind}: first start, nothing cached (s)", elsewhere(kind, folder), "-"
            best = min(elsewhere(kind, folder) for _ in range(5))
            yield f"{kind}: second start, from the cache (s)", best, "<= 50 ms"


if __name__ == "__main__":
    print(start(sys.argv[1], Path(sys.argv[2])))
