"""Run flows to completion: fair rates, the next end or start, fair rates again.

Inside times are float64 seconds since the first start; picoseconds only at the boundary.

Dimension legend: F flows, H resources of a flow, C resources, N NPUs, L links.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.bracket import NUM_STEPS, PS_PER_SECOND, Bracket, bracket_paths, check_epsilon
from epsim.flow.fast import Engine as Engine
from epsim.flow.fast import choose_solver
from epsim.flow.maxmin import UNIT_ROUNDOFF, Paths, binding_paths
from epsim.flow.problem import LINK, MAX_PS, Floats, FlowProblem
from epsim.flow.steps import Course, Plan, Progress

Mode = Literal["exact", "bounded"]
EXACT_FLOWS = 2**16
"""What callers that choose a mode solve exactly. Exact mode solves about once per flow, and a solve costs its
flows: 65,280 irregular ones take 27 s of processor time, 540,000 hours (benchmarks/bench_flow.py)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowResult:
    """When flows end and what held them up.

    Args:
      problem: what was simulated.
      finish_ps: [F] int64, rounded up; equals start_ps for flows that take no time.
      makespan_ps: the last of them, from time 0 of start_ps.
      bracket: two sides of the exact makespan, known without this simulation.
      error_bound_ps: the exact makespan differs from `makespan_ps` by at most this; 0 in exact mode,
        where only float rounding is left.
      held_s: [F, H] float64, seconds for which each flow was held back by each of its resources.
      num_solves: how often fair rates were found.
      engine: "numpy" or "numba".
    """

    problem: FlowProblem
    finish_ps: npt.NDArray[np.int64]
    makespan_ps: int
    bracket: Bracket
    error_bound_ps: int
    held_s: Floats
    num_solves: int
    engine: str

    @property
    def lower_bound_ps(self) -> int:
        """What the busiest resource needs; no schedule is faster."""
        return self.bracket.lower_ps

    @property
    def ratio_to_bound(self) -> float:
        """Makespan over the bound of the busiest resource; 1.0 when nothing moves."""
        return self.makespan_ps / self.lower_bound_ps if self.lower_bound_ps else 1.0

    @property
    def duration_s(self) -> float:
        """From the first start to the last end, seconds."""
        return (self.makespan_ps - int(self.problem.start_ps.min(initial=0))) / PS_PER_SECOND

    def resource_busy(self) -> Floats:
        """Utilisation of each resource between the first start and the last end, [C] in 0..1."""
        if not self.duration_s:
            return np.zeros(self.problem.num_resources)
        full = self.problem.capacity_bytes_per_s * self.duration_s
        return np.asarray(self.problem.resource_bytes() / full)

    def link_bytes(self, num_links: int) -> Floats:
        """Bytes over each link of a topology, [L] float64."""
        limits = self.problem.limits
        of_link = limits.kind == LINK
        carried = self.problem.resource_bytes()[limits.resource_idx] * limits.share
        total = np.bincount(limits.item_idx[of_link], weights=carried[of_link], minlength=num_links)
        return np.asarray(total, np.float64)

    def link_busy(self, link_bytes_per_s: Floats) -> Floats:
        """Utilisation of each link at the given rates, [L] in 0..1."""
        carried = self.link_bytes(len(link_bytes_per_s))
        return carried / (link_bytes_per_s * self.duration_s) if self.duration_s else carried

    def finish_by_src(self, num_npus: int) -> npt.NDArray[np.int64]:
        """When each NPU has sent everything, [N] int64 ps; 0 for one that sends nothing."""
        return _last(self.problem.src_npu, self.finish_ps, num_npus)

    def finish_by_dst(self, num_npus: int) -> npt.NDArray[np.int64]:
        """When each NPU has received everything, [N] int64 ps; 0 for one that receives nothing."""
        return _last(self.problem.dst_npu, self.finish_ps, num_npus)

    def binding(self) -> list[tuple[int, float]]:
        """List what held the last flow up: (resource, part of its time), the largest part first."""
        if not self.held_s.any():
            return []
        flow = int(self.finish_ps.argmax())
        parts = self.held_s[flow] / self.held_s[flow].sum()
        pairs = zip(self.problem.resource_idx[flow].tolist(), parts.tolist(), strict=True)
        return sorted(((r, part) for r, part in pairs if part > 0), key=lambda pair: (-pair[1], pair[0]))


def simulate(
    problem: FlowProblem,
    *,
    mode: Mode = "exact",
    epsilon: float = 0.01,
    engine: Engine = "auto",
    on_progress: Progress | None = None,
) -> FlowResult:
    """Share the resources max-min fairly until every flow has ended.

    Args:
      problem: the flows.
      mode: "exact" finds new rates whenever a flow ends or starts; "bounded" keeps them for a step of
        at most `epsilon` times the elapsed time, and flows that end on the way leave their share idle;
        no end is reported later than the upper side of the bracket.
      epsilon: for "bounded"; also the step of the bracket.
      engine: "numba" (extra `fast`), "numpy", or "auto" for the faster one that is installed. Both
        give the same bits.
      on_progress: called now and then with (flows that have ended, all flows).

    Raises:
      InputError: mode, epsilon or engine is none of these.
      MissingExtraError: numba was asked for and is not installed.
    """
    if mode not in ("exact", "bounded"):
        raise InputError("mode", mode, "must be exact or bounded")
    check_epsilon(epsilon)
    num_solves = problem.num_flows if mode == "exact" else NUM_STEPS / epsilon
    solver = choose_solver(engine, num_solves * problem.num_flows)
    paths = binding_paths(problem)
    bracket = bracket_paths(problem, paths, epsilon, solver)
    plan = _plan(problem, paths, bracket, epsilon if mode == "bounded" else 0.0)
    course = solver.run(paths, plan, on_progress)
    finish_ps = _finish_ps(problem, plan, course)
    if mode == "bounded":
        # Fair sharing is proved to be over by then, so this only takes error away.
        finish_ps = np.minimum(finish_ps, min(bracket.upper_ps, MAX_PS))
    makespan = int(finish_ps.max(initial=0))
    error = 0
    if mode == "bounded":
        error = max(makespan - bracket.lower_ps, bracket.upper_ps - makespan, 0)
    return FlowResult(
        problem=problem, finish_ps=finish_ps, makespan_ps=makespan, bracket=bracket,
        error_bound_ps=error, held_s=_held_by_resource(problem, paths, course.held),
        num_solves=course.num_solves, engine=solver.name,
    )  # fmt: skip


def _plan(problem: FlowProblem, paths: Paths, bracket: Bracket, epsilon: float) -> Plan:
    """Put flows in the order of their starts; seconds since the first one."""
    live = np.flatnonzero(problem.is_live)
    start_ps = problem.start_ps[live]
    order = np.argsort(start_ps, kind="stable")
    starts = (start_ps[order] - start_ps.min(initial=MAX_PS)) / PS_PER_SECOND
    busiest = np.flatnonzero(paths.kept == bracket.resource_idx)
    on_busiest = np.asarray(np.isin(paths.resource_idx, busiest).any(axis=1))
    return Plan(
        size=problem.size_bytes.astype(np.float64), order=live[order], starts=np.append(starts, np.inf),
        on_busiest=on_busiest, epsilon=epsilon,
    )  # fmt: skip


def _finish_ps(problem: FlowProblem, plan: Plan, course: Course) -> npt.NDArray[np.int64]:
    """Round ends up to picoseconds as `whole_ps` does, and add the start of time."""
    finish_ps = problem.start_ps.copy()
    exact = course.end * (PS_PER_SECOND * (1 - (course.solves + 8) * UNIT_ROUNDOFF))
    origin_ps = int(problem.start_ps[plan.order].min(initial=MAX_PS))
    # A coarse step of mode "bounded" may pass what the problem has proved for its last end.
    ends = np.minimum(np.ceil(exact[plan.order]), MAX_PS)
    finish_ps[plan.order] = origin_ps + ends.astype(np.int64)
    return finish_ps


def _held_by_resource(problem: FlowProblem, paths: Paths, held_s: Floats) -> Floats:
    """Spread seconds by column of `paths` over the problem's own columns, [F, H]."""
    held = np.zeros(problem.resource_idx.shape)
    original = np.append(paths.kept, -2)[paths.resource_idx]
    for column in range(original.shape[1]):
        held += np.where(problem.resource_idx == original[:, column, None], held_s[:, column, None], 0.0)
    return held


def _last(npu: npt.NDArray[np.int64], finish_ps: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    last = np.zeros(count, np.int64)
    known = npu >= 0
    np.maximum.at(last, npu[known], finish_ps[known])
    return last
