"""Scale: 262,144 cards as many groups, as one all-to-all, and as classes of equal ranks.

Each row runs in a fresh process that builds the topology first, so that its peak memory is its own.
`run()` yields (name, seconds or bytes, target): wall time and processor time of the call, on a machine that
others may be using, and the peak of the whole process, topology included.
"""

import json
import subprocess
import sys

CARDS = 262_144

_PROGRAM = """
import json, re, time
import numpy as np
from epsim.flow.groups import bound_groups, place_groups
from epsim.flow.projection import balanced_law, project_law, uniform_law
from epsim.flow.symmetry import ClassLaw, solve_classes, uniform_classes
from topology import clos, with_link_rate
from topology.source import Source

CARDS = {cards}
topology = clos(CARDS)
{prepare}
wall, cpu = time.perf_counter(), time.process_time()
{call}
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([wall, cpu, peak]))
"""

_GROUPS = """
matrix = np.random.default_rng(0).integers(1, 200_000, (128, 128))
npus = place_groups(topology, CARDS // 128, 128, "{placement}")
"""
_SKEW = "offered = np.random.default_rng(0).integers(1, 10**6, CARDS)"
_HOT = "kind = (np.arange(CARDS) % 128 == 0).astype(int)"
_HOT_BYTES = "np.array([[7168, 28672], [7168, 28672]])"
_SLOW = """
topology = with_link_rate(topology, topology.links_of(7), 25_000_000_000, Source("given", "benchmark"))
"""

ROWS = (
    *(
        (
            f"2,048 groups of 128, {placement}, {policy}: link bound",
            _GROUPS.format(placement=placement),
            f'bound_groups(topology, npus, matrix, policy="{policy}")',
            "<= 10 s, goal 1.5 s", "<= 4 GiB, goal 1 GiB",
        )
        for placement in ("random", "packed")
        for policy in ("flow-hash", "spray")
    ),
    (
        "one all-to-all, uniform: projection", "", "project_law(topology, uniform_law(CARDS, 7168))",
        "<= 10 s", "<= 4 GiB",
    ),
    (
        "one all-to-all, each rank its own bytes: projection", _SKEW,
        "project_law(topology, balanced_law(offered, offered[::-1].copy()))", "<= 10 s", "<= 4 GiB",
    ),
    (
        "one all-to-all, uniform: exact transfer on classes", "",
        "solve_classes(topology, uniform_classes(CARDS, 7168))", "<= 10 s", "<= 4 GiB",
    ),
    (
        "one hot rank in each 128: exact transfer on classes", _HOT,
        f"solve_classes(topology, ClassLaw(kind, {_HOT_BYTES}))", "<= 10 s", "<= 4 GiB",
    ),
    (
        "one slow card: exact transfer on classes", _SLOW,
        "solve_classes(topology, uniform_classes(CARDS, 7168))", "<= 10 s", "<= 4 GiB",
    ),
)  # fmt: skip


def measure(prepare, call):
    """Run one call in a fresh process: (wall seconds, processor seconds, peak bytes)."""
    program = _PROGRAM.format(cards=CARDS, prepare=prepare, call=call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def run():
    """Yield (name, seconds or bytes, target) rows."""
    for name, prepare, call, seconds, memory in ROWS:
        wall, cpu, peak = measure(prepare, call)
        yield f"{name} (s)", wall, seconds
        yield f"{name}, processor (s)", cpu, seconds
        yield f"{name}, peak (bytes)", peak, memory


if __name__ == "__main__":
    for row_name, value, target in run():
        print(f"{row_name:75s} {value:14.4g}   {target}")
