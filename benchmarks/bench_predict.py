"""Predictions: what a command costs from a cold start, and what a call costs in a running process.

Cold figures are the shortest of several fresh processes, so the files are in the page cache.
"""

import itertools
import subprocess
import sys
import time

import epsim
from epsim.platform.systems import load_system

REPEATS = 5


def fresh(*arguments):
    """Return the shortest wall time of a few fresh interpreters, in seconds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def timed(call):
    """Return wall seconds and the result of one call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def sweep():
    """Predict 1,000 configurations: 5 group sizes x 2 models x 2 dtypes x 50 settings."""
    rates = [f"{1000 + 200 * step}GB/s" for step in range(10)]
    slopes = [0.0, 0.02, 0.04, 0.06, 0.08]
    count = 0
    for model, dtype, rate, slope in itertools.product(("v3", "v4-flash"), ("fp8", "bf16"), rates, slopes):
        settings = {"hbm_rate": rate, "fanout_slope_dispatch": slope}
        count += len(
            epsim.predict(
                model=model,
                dtype=dtype,
                ep=(8, 16, 32, 64, 128),
                operations=("dispatch",),
                settings=settings,
            )
        )
    assert count == 1000, count


def one_by_one():
    """Predict as many configurations, each in a call of its own with its own token count."""
    for tokens, ep in itertools.product(range(100, 20_100, 100), (8, 16, 32, 64, 128)):
        epsim.predict(ep=ep, tokens=tokens, operations=("combine",))


def spread_out(system):
    """EP1024 over 8 supernodes, both operations."""
    return epsim.predict(system, ep=1024, num_experts=1024, ranks_per_supernode=128)


def run():
    """Yield (name, value, target) rows."""
    yield "an empty interpreter (s)", fresh("-c", "pass"), "(below all others)"
    yield "import epsim, cold (s)", fresh("-c", "import epsim"), "<= 0.25 s"
    yield "epsim --help, cold (s)", fresh("-m", "epsim", "--help"), ""
    exact = ("-m", "epsim", "predict", "--ep", "8,16,32,64,128")
    yield "epsim predict, ten rows, exact counts, cold (s)", fresh(*exact), "<= 0.7 s"
    seconds, _ = timed(lambda: epsim.predict(draws="auto"))
    yield "ten rows with sampled routing, draws=auto (s)", seconds, "<= 8 s"
    yield "sweep of 1,000 closed forms (s)", timed(sweep)[0], "<= 20 s, goal 3 s"
    yield "1,000 calls of one closed form each (s)", timed(one_by_one)[0], "<= 20 s, goal 3 s"
    seconds, system = timed(lambda: load_system("clos:262144").topology)
    yield "clos: build 262,144 cards (s)", seconds, "<= 3 s"
    yield "EP1024 over 8 supernodes of that graph (s)", timed(lambda: spread_out(system))[0], "<= 2 s"
    yield "the same from the name, build included (s)", timed(lambda: spread_out("clos:262144"))[0], ""
    named = ("-m", "epsim", "predict", "--system", "clos:262144", "--ep", "1024", "--experts", "1024")
    yield "the same on the command line, cold (s)", fresh(*named), ""
