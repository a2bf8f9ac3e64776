"""Topology: build, index, check and bound, from 128 cards to 262,144.

`run()` yields (name, seconds or bytes, target). Seconds are the best of several runs on a shared
machine; memory is what the build itself adds to the peak of a fresh process.
"""

import subprocess
import sys
import time

import numpy as np

from topology import Router, check, clos, leaf_spine, link_bound, summarize, ubl128, without_links

LARGEST = 262_144

# VmHWM starts anew in a fresh program; ru_maxrss would remember the parent's.
_PEAK = """
import re
from topology import clos
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
topology = clos({num_npus})
print(peak() - before)
"""


def best_of(repeats, call):
    """Time `call` several times; return (fastest seconds, its last result)."""
    fastest, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, result


def build_peak_bytes(num_npus):
    """Measure what a build adds to the peak memory of a process that does nothing else."""
    program = _PEAK.format(num_npus=num_npus)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def run():
    """Yield (name, seconds or bytes, target) rows."""
    seconds, largest = best_of(3, lambda: clos(LARGEST))
    yield f"clos: build {LARGEST:,} cards (s)", seconds, "<= 3 s, goal 0.5 s"
    yield "clos: peak of that build (bytes)", build_peak_bytes(LARGEST), "<= 1 GiB, goal 200 MB"
    yield f"clos: summarize {LARGEST:,} cards (s)", best_of(2, lambda: summarize(largest))[0], "<= 3 s"
    yield f"clos: check {LARGEST:,} healthy cards (s)", best_of(2, lambda: check(largest))[0], "<= 10 s"
    broken = without_links(largest, np.array([1_000_003]))
    yield f"clos: check {LARGEST:,} cards, one link lost (s)", best_of(1, lambda: check(broken))[0], "<= 20 s"

    matrix = np.random.default_rng(0).integers(0, 200_000, (128, 128))
    for name, topology in (("ubl128", ubl128()), ("leaf-spine 16 x 8 x 8", leaf_spine())):
        for policy in ("spray", "flow-hash"):
            seconds, _ = best_of(20, lambda t=topology, p=policy: link_bound(t, matrix, policy=p))
            yield f"{name}: bound of 128 ranks, {policy} (s)", seconds, "<= 20 ms, goal 2 ms"

    matrix = np.random.default_rng(0).integers(0, 20_000, (1024, 1024))
    for name, npus in (
        ("8 supernodes", np.arange(1024)), ("one card in each of 1,024 supernodes", np.arange(1024) * 256)
    ):  # fmt: skip
        seconds, _ = best_of(2, lambda n=npus: link_bound(largest, matrix, npus=n))
        yield f"clos: bound of 1,024 ranks over {name} (s)", seconds, "<= 2 s"

    router = Router(ubl128())
    src, dst = np.divmod(np.arange(128 * 128), 128)
    yield "ubl128: spray routes of 16,384 flows (s)", best_of(5, lambda: router.find(src, dst))[0], "none"


if __name__ == "__main__":
    for row_name, value, target in run():
        print(f"{row_name:60s} {value:14.4g}   {target}")
