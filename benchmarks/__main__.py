"""Run the measurements and print name, figure and target; a target that is missed is marked, never fatal.

`python -m benchmarks` runs all files, `python -m benchmarks predict topology` those named. A row's value is
a text with its unit, or a number whose unit the name ends with: "(s)" or "(bytes)".
"""

import importlib
import platform
import sys
import time
from pathlib import Path

import numpy as np

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def shown(name, value):
    """Return name and value with the unit beside the number."""
    if isinstance(value, str):
        return name, value
    if name.endswith("(bytes)"):
        return name.removesuffix("(bytes)").rstrip(), f"{value / 2**20:.0f} MiB"
    name = name.removesuffix("(s)").rstrip()
    return name, f"{value:.3f} s" if value >= 0.1 else f"{value * 1e3:.2f} ms"


def main(chosen):
    """Run the chosen files; return an exit code."""
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        print(f"benchmarks: no bench_{unknown[0]}.py; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    start = time.perf_counter()
    for name in chosen or NAMES:
        print(f"\n{name:64s} {'measured':>12s}   target")
        for row in importlib.import_module(f"benchmarks.bench_{name}").run():
            label, value = shown(*row[:2])
            print(f"  {label:62s} {value:>12s}   {row[2]}", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
