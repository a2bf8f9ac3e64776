"""The choice between NumPy and compiled code; both do the same operations and give the same bits."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from epsim.errors import InputError, MissingExtraError
from epsim.flow import kernels
from epsim.flow.filling import new_fill
from epsim.flow.maxmin import Paths, Rates, fair_need, solve
from epsim.flow.problem import Floats, Ints
from epsim.flow.steps import Course, Plan, Progress, run

Engine = Literal["auto", "numpy", "numba"]
WORTH_COMPILING = 5e6
"""Rates that NumPy finds in about the 4 s that compiling takes (benchmarks/bench_flow.py)."""

AT_ONCE = 64
"""Solves between two reports: a second for a million flows, less than one report for a thousand."""

ENGINES: tuple[str, ...] = get_args(Engine)


@dataclass(frozen=True, kw_only=True)
class Solver:
    """The costly steps of a simulation.

    Args:
      name: "numpy" or "numba".
      solve: as `maxmin.solve`.
      fair_need: as `maxmin.fair_need`.
      run: as `steps.run`.
    """

    name: str
    solve: Callable[[Paths, Ints], Rates]
    fair_need: Callable[[Paths, Ints, Floats], tuple[Floats, Floats]]
    run: Callable[[Paths, Plan, Progress | None], Course]


def has_numba() -> bool:
    """Tell whether the extra `fast` is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def choose_solver(engine: str, num_rates: float = 0) -> Solver:
    """Find the solver of an engine.

    Args:
      engine: "numpy", "numba", or "auto": numba where it is installed and either compiled already in
        this process or likely to save more than compiling costs. The results do not depend on it.
      num_rates: about how many times a rate of a flow will be found.

    Raises:
      InputError: no such engine.
      MissingExtraError: numba was asked for and is not installed.
    """
    if engine not in ENGINES:
        raise InputError("engine", engine, f"must be one of {', '.join(ENGINES)}")
    if engine == "numba" and not has_numba():
        raise MissingExtraError("the engine numba is not installed: python -m pip install 'epsim[fast]'")
    is_compiled = kernels.compiled.cache_info().currsize > 0
    small = engine == "auto" and num_rates < WORTH_COMPILING and not is_compiled
    if engine == "numpy" or small or not has_numba():
        return Solver(name="numpy", solve=solve, fair_need=fair_need, run=run)
    return looping_solver("numba", kernels.compiled())


def looping_solver(name: str, loops: Mapping[str, Callable[..., Any]]) -> Solver:
    """Make a solver of the functions of `epsim.flow.kernels`, compiled or not (tests run both)."""

    def solve_looping(paths: Paths, flows: Ints) -> Rates:
        state = new_fill(paths, len(flows))
        state.active[flows] = True
        rate, stopped = np.zeros(len(state.active)), np.zeros(len(state.active), np.int32)
        loops["fill"](state, rate, stopped)
        return rate[flows], stopped[flows]

    def need_looping(paths: Paths, flows: Ints, left: Floats) -> tuple[Floats, Floats]:
        level, rate, need = (np.zeros(n) for n in (len(paths.capacity) + 1, len(flows), len(flows)))
        some = np.asarray(flows, np.int64)
        loops["fair_need"](paths.resource_idx, paths.share, paths.capacity, some, left, level, rate, need)
        return rate, need

    def run_looping(paths: Paths, plan: Plan, on_progress: Progress | None = None) -> Course:
        motion, state = kernels.new_motion(paths, plan.size), new_fill(paths, len(plan.order))
        clock, tally = np.zeros(1), np.zeros(5, np.int64)
        what = (state, motion, plan.order, plan.starts, plan.on_busiest, plan.epsilon, clock, tally, AT_ONCE)
        goes_on = True
        while goes_on:
            goes_on = loops["run"](*what)
            if on_progress is not None:
                on_progress(int(tally[kernels.STARTED] - tally[kernels.ACTIVE]), len(plan.order))
        end, num_solves = motion.flow[:, kernels.END], int(tally[kernels.SOLVES])
        return Course(end=end, solves=motion.solves, held=motion.held, num_solves=num_solves)

    return Solver(name=name, solve=solve_looping, fair_need=need_looping, run=run_looping)
