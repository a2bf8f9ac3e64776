"""One run from start to end in plain NumPy: fair rates, the next end or start, fair rates again.

Compiled code (`epsim.flow.kernels`) does the same operations on each flow in the same order.

Dimension legend: F flows, n flows that take part, H resources of a flow.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.flow.maxmin import UNIT_ROUNDOFF, Int64s, Paths, solve
from epsim.flow.problem import Floats

Progress = Callable[[int, int], Any]
"""Called with (flows that have ended, all flows that take time)."""
NEVER_SKIPPED = 256
FINER = 16
"""A choice: 256 extra solves are affordable at any size, a thousand at a million flows are not."""


class Plan(NamedTuple):
    """When flows start and which ends may be skipped.

    Args:
      size: [F] float64, bytes.
      order: [n] int64, the flows that take time, first start first.
      starts: [n + 1] float64, their starts in seconds since the first, and infinity.
      on_busiest: [F] bool, flows of the busiest resource.
      epsilon: steps as a fraction of elapsed time; 0 = exact.
    """

    size: Floats
    order: Int64s
    starts: Floats
    on_busiest: npt.NDArray[np.bool_]
    epsilon: float


class Course(NamedTuple):
    """What became of a run.

    Args:
      end: [F] float64, seconds since the first start; 0 for flows that take no time.
      solves: [F] int64, how often rates had been found when the flow ended.
      held: [F, H] float64, seconds for which each column of `Paths` held a flow back.
      num_solves: how often rates were found.
    """

    end: Floats
    solves: Int64s
    held: Floats
    num_solves: int


def next_step(need: Floats, on_busiest: npt.NDArray[np.bool_], coarse: float) -> float:
    """Choose how long to go on at fixed rates.

    The busiest resource most likely sets the makespan, so what it wastes counts: the ends of its last
    few hundred flows are never skipped, and earlier ones, whose shares are small, by a finer step.

    Args:
      need: [n] seconds that each flow still takes at its rate.
      on_busiest: [n] flows of the busiest resource.
      coarse: seconds that may be skipped elsewhere; 0 = none.
    """
    first = max(float(need.min()), 0.0)
    if coarse <= first:
        return first
    ends = need[on_busiest]
    finest = 0.0 if len(ends) <= NEVER_SKIPPED else coarse / FINER
    return max(first, min(coarse, max(finest, float(ends.min(initial=np.inf)))))


def run(paths: Paths, plan: Plan, on_progress: Progress | None = None) -> Course:
    """Share fairly until every flow has ended.

    What a flow has left is brought up to date when its rate changes, and its end follows from that.
    """
    num_flows = len(plan.size)
    is_active = np.zeros(num_flows, np.bool_)
    left, rate = plan.size.copy(), np.zeros(num_flows)
    since, end, held_since = np.zeros(num_flows), np.zeros(num_flows), np.zeros(num_flows)
    stopped, solves = np.zeros(num_flows, np.int32), np.zeros(num_flows, np.int64)
    held = np.zeros(paths.resource_idx.shape)
    now, num_started, num_solves, num_active = 0.0, 0, 0, 0
    while num_active or num_started < len(plan.order):
        if not num_active:
            now = float(plan.starts[num_started])
        arrived = int(np.searchsorted(plan.starts, now, side="right"))
        new, num_started = plan.order[num_started:arrived], arrived
        is_active[new], since[new], held_since[new] = True, now, now
        active = np.flatnonzero(is_active)
        fresh, column = solve(paths, active)
        num_solves += 1
        turns = fresh != rate[active]
        some = active[turns]
        left[some] -= rate[some] * (now - since[some])
        since[some], rate[some] = now, fresh[turns]
        end[some] = now + left[some] / rate[some]
        moves = column != stopped[active]
        some = active[moves]
        held[some, stopped[some]] += now - held_since[some]
        stopped[some], held_since[some] = column[moves], now
        step = next_step(end[active] - now, plan.on_busiest[active], plan.epsilon * now)
        now = min(now + step, float(plan.starts[num_started]))
        gone = active[end[active] <= horizon(now, num_solves)]
        held[gone, stopped[gone]] += end[gone] - held_since[gone]
        is_active[gone], solves[gone] = False, num_solves
        num_active = len(active) - len(gone)
        if on_progress is not None:
            on_progress(num_started - num_active, len(plan.order))
    return Course(end=end, solves=solves, held=held, num_solves=num_solves)


def horizon(now: float, num_solves: int) -> float:
    """Tell which ends count as now: each solve so far may have rounded a time by one part in 2^53."""
    return now * (1 + (num_solves + 4) * UNIT_ROUNDOFF)
