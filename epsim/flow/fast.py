"""The choice between NumPy and compiled code; both do the same operations and give the same bits."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from epsim.errors import InputError, MissingExtraError
from epsim.flow.maxmin import Paths, Rates, fair_need, solve
from epsim.flow.problem import Floats, Ints

Engine = Literal["auto", "numpy", "numba"]
ENGINES: tuple[str, ...] = get_args(Engine)


@dataclass(frozen=True, kw_only=True)
class Solver:
    """The two costly steps of a simulation.

    Args:
      name: "numpy" or "numba".
      solve: as `maxmin.solve`.
      fair_need: as `maxmin.fair_need`.
    """

    name: str
    solve: Callable[[Paths, Ints], Rates]
    fair_need: Callable[[Paths, Ints, Floats], tuple[Floats, Floats]]


def has_numba() -> bool:
    """Tell whether the extra `fast` is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def choose_solver(engine: str) -> Solver:
    """Find the solver of an engine; "auto" is numba where it is installed.

    Raises:
      InputError: no such engine.
      MissingExtraError: numba was asked for and is not installed.
    """
    if engine not in ENGINES:
        raise InputError("engine", engine, f"must be one of {', '.join(ENGINES)}")
    if engine == "numba" and not has_numba():
        raise MissingExtraError("the engine numba is not installed: python -m pip install 'epsim[fast]'")
    if engine == "numpy" or not has_numba():
        return Solver(name="numpy", solve=solve, fair_need=fair_need)
    return Solver(name="numba", solve=_solve_compiled, fair_need=_fair_need_compiled)


def _solve_compiled(paths: Paths, flows: Ints) -> Rates:
    from epsim.flow.kernels import fill

    return fill(paths.resource_idx, paths.share, paths.capacity, np.asarray(flows, np.int64))


def _fair_need_compiled(paths: Paths, flows: Ints, left: Floats) -> tuple[Floats, Floats]:
    from epsim.flow import kernels

    some = np.asarray(flows, np.int64)
    return kernels.fair_need(paths.resource_idx, paths.share, paths.capacity, left, some)
