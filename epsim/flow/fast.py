"""The choice between NumPy and compiled code; both do the same operations and give the same bits."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from epsim.errors import InputError, MissingExtraError
from epsim.flow import kernels
from epsim.flow.maxmin import Int64s, Paths, Rates, advance, fair_need, solve
from epsim.flow.problem import Floats, Ints

Engine = Literal["auto", "numpy", "numba"]
WORTH_COMPILING = 5e6
"""Rates that NumPy finds in about the 2 s that compiling takes (benchmarks/bench_flow.py)."""

ENGINES: tuple[str, ...] = get_args(Engine)


@dataclass(frozen=True, kw_only=True)
class Solver:
    """The costly steps of a simulation.

    Args:
      name: "numpy" or "numba".
      solve: as `maxmin.solve`.
      fair_need: as `maxmin.fair_need`.
      advance: as `maxmin.advance`.
    """

    name: str
    solve: Callable[[Paths, Ints], Rates]
    fair_need: Callable[[Paths, Ints, Floats], tuple[Floats, Floats]]
    advance: Callable[..., tuple[Int64s, Floats, Int64s, Floats]]


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
        return Solver(name="numpy", solve=solve, fair_need=fair_need, advance=advance)
    step = kernels.compiled()["advance"]
    return Solver(name="numba", solve=_solve_compiled, fair_need=_fair_need_compiled, advance=step)


def _solve_compiled(paths: Paths, flows: Ints) -> Rates:
    fill = kernels.compiled()["fill"]
    rates: Rates = fill(paths.resource_idx, paths.share, paths.capacity, np.asarray(flows, np.int64))
    return rates


def _fair_need_compiled(paths: Paths, flows: Ints, left: Floats) -> tuple[Floats, Floats]:
    some = np.asarray(flows, np.int64)
    compiled = kernels.compiled()["fair_need"]
    found: tuple[Floats, Floats] = compiled(paths.resource_idx, paths.share, paths.capacity, left, some)
    return found
