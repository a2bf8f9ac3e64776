"""Two sides of the makespan without solving for rates: the busiest resource, and counting.

Below: no schedule ends before a resource has passed its bytes.
Above: a max-min fair flow gets at least the smallest of capacity / weight over its resources, weight
being the shares of the flows that are still there (the resource that stops it is full, and nobody on
it is faster). A process in which every flow gets just that, the counting process, is therefore never
ahead: by induction over time its active flows include those of the fair process, and more flows only
lower its rates. Noticing the end of a flow late lowers them too, so steps may be coarse.

The two sides often meet, and then the answer is proved exact without a simulation.
"""

import math
from dataclasses import dataclass

import numpy as np

from epsim.errors import InputError
from epsim.flow.fast import Engine, Solver, choose_solver
from epsim.flow.maxmin import UNIT_ROUNDOFF, Paths, binding_paths
from epsim.flow.problem import Floats, FlowProblem, Ints
from epsim.flow.steps import next_step

PS_PER_SECOND = 10**12

NUM_STEPS = 3
"""Steps times epsilon: the logarithm of last end over first end, about; only a guess of the work."""


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """The makespan of exact max-min fair sharing lies between two times.

    Args:
      lower_ps: no schedule ends earlier, from time 0 of start_ps.
      upper_ps: fair sharing ends no later.
      resource_idx: the busiest resource, which sets `lower_ps`; -1 when nothing moves.
      num_steps: of the counting process.
    """

    lower_ps: int
    upper_ps: int
    resource_idx: int
    num_steps: int

    @property
    def is_exact(self) -> bool:
        """Tell whether both sides meet."""
        return self.lower_ps == self.upper_ps


def check_epsilon(epsilon: float) -> None:
    """Refuse a step that is no fraction.

    Raises:
      InputError: not between 0 and 1.
    """
    if not 0 < epsilon < 1:
        raise InputError("epsilon", epsilon, "must be above 0 and below 1, a fraction of elapsed time")


def bracket_makespan(problem: FlowProblem, *, epsilon: float = 0.01, engine: Engine = "auto") -> Bracket:
    """Bound the makespan of a problem from both sides.

    Args:
      problem: the flows.
      epsilon: steps of the counting process as a fraction of elapsed time; raises `upper_ps` by that
        fraction at most.
      engine: as of `epsim.flow.fluid.simulate`.

    Raises:
      InputError: epsilon out of range, or no such engine.
      MissingExtraError: numba was asked for and is not installed.
    """
    check_epsilon(epsilon)
    solver = choose_solver(engine, NUM_STEPS / epsilon * problem.num_flows)
    return bracket_paths(problem, binding_paths(problem), epsilon, solver)


def bracket_paths(problem: FlowProblem, paths: Paths, epsilon: float, solver: Solver) -> Bracket:
    """Do the work of `bracket_makespan` once the resources that can bind are known."""
    live = np.flatnonzero(problem.is_live)
    idle_ps = int(problem.start_ps.max(initial=0))
    if not len(live):
        return Bracket(lower_ps=idle_ps, upper_ps=idle_ps, resource_idx=-1, num_steps=0)
    origin = int(problem.start_ps[live].min())
    start = (problem.start_ps[live] - origin) / PS_PER_SECOND
    seconds, busiest, num_terms = _busiest(problem, paths, live, start)
    lower = origin + whole_ps(seconds, num_terms)
    end, num_steps = _count(problem, paths, live, start, busiest, epsilon, solver)
    upper = origin + whole_ps(end, num_steps)
    resource = int(paths.kept[busiest])
    return Bracket(
        lower_ps=max(lower, idle_ps), upper_ps=max(upper, lower, idle_ps), resource_idx=resource,
        num_steps=num_steps,
    )  # fmt: skip


def whole_ps(seconds: float, num_operations: int) -> int:
    """Round up to picoseconds, after taking off what `num_operations` roundings may have added.

    An exact 242 ps that came out as 242.0000000001 is 242, not 243.
    """
    return math.ceil(seconds * PS_PER_SECOND * (1 - (num_operations + 4) * UNIT_ROUNDOFF))


def _busiest(problem: FlowProblem, paths: Paths, live: Ints, start: Floats) -> tuple[float, int, int]:
    """Find the largest of (start of a set of flows + their bytes / rate) over resources.

    Returns:
      Seconds, the resource, and how many roundings the sum took.
    """
    spare = len(paths.capacity) + 1
    # Latest start first: the running sum at an entry is what starts then or later.
    rows = live[np.argsort(-start, kind="stable")]
    began = np.sort(start)[::-1]
    cells = paths.resource_idx[rows].ravel()
    carried = (problem.size_bytes[rows, None] * paths.share[rows]).ravel()
    when = np.repeat(began, paths.resource_idx.shape[1])
    if began[-1] == began[0]:
        ends = np.bincount(cells, weights=carried, minlength=spare)[:-1] / paths.capacity
        return (
            float(ends.max() + began[0]),
            int(ends.argmax()),
            int(np.bincount(cells, minlength=spare)[:-1].max()),
        )
    order = np.argsort(cells, kind="stable")
    order = order[: int((cells < spare - 1).sum())]
    cells, carried, when = cells[order], carried[order], when[order]
    total = np.cumsum(carried)
    before = np.concatenate([[0.0], total])[np.searchsorted(cells, cells)]
    ends = when + (total - before) / paths.capacity[cells]
    place = int(ends.argmax())
    return float(ends[place]), int(cells[place]), len(cells)


def _count(
    problem: FlowProblem,
    paths: Paths,
    live: Ints,
    start: Floats,
    busiest: int,
    epsilon: float,
    solver: Solver,
) -> tuple[float, int]:
    """Run the counting process: (seconds until its last flow ends, steps)."""
    order = live[np.argsort(start, kind="stable")]
    began = np.append(np.sort(start), np.inf)
    size = problem.size_bytes.astype(np.float64)
    on_busiest = (paths.resource_idx == busiest).any(axis=1)
    active, left = np.zeros(0, np.int64), np.zeros(0)
    now, end, num_started, num_steps = 0.0, 0.0, 0, 0
    while len(active) or num_started < len(order):
        if not len(active):
            now = float(began[num_started])
        arrived = int(np.searchsorted(began, now, side="right"))
        new, num_started = order[num_started:arrived], arrived
        active, left = np.concatenate([active, new]), np.concatenate([left, size[new]])
        rate, need = solver.fair_need(paths, active, left)
        step = next_step(need, on_busiest[active], epsilon * now)
        next_start = float(began[num_started])
        starts_first = now + step >= next_start
        step = next_start - now if starts_first else step
        stays = need > step
        end = max(end, now + float(need[~stays].max(initial=0.0)))
        active, left = active[stays], (left - rate * step)[stays]
        now = next_start if starts_first else now + step
        num_steps += 1
    return end, num_steps
