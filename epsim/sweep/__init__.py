"""Sweeps: one function over a grid of its parameters, into one file; a killed sweep goes on where it was.

`make_plan` turns a `Sweep` (or `read_sweep` a TOML file) into points, `run_sweep` evaluates them and
writes the table, `sensitivity` and `pareto_front` read it.
"""

from epsim.sweep.analysis import Effect, pareto_front, parse_objective, sensitivity
from epsim.sweep.plan import Plan, Sweep, make_plan, read_sweep
from epsim.sweep.runner import run_sweep
from epsim.sweep.table import Table

__all__ = [
    "Effect",
    "Plan",
    "Sweep",
    "Table",
    "make_plan",
    "pareto_front",
    "parse_objective",
    "read_sweep",
    "run_sweep",
    "sensitivity",
]
