"""Run flows to completion: fair rates, the next end or start, fair rates again.

Inside times are float64 seconds since the first start; picoseconds only at the boundary.

Dimension legend: F flows, H resources of a flow, C resources, N NPUs, L links.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.bracket import NUM_STEPS, PS_PER_SECOND, Bracket, bracket_paths, check_epsilon, next_step
from epsim.flow.fast import Engine as Engine
from epsim.flow.fast import Solver, choose_solver
from epsim.flow.maxmin import UNIT_ROUNDOFF, Paths, binding_paths
from epsim.flow.problem import LINK, Floats, FlowProblem

Mode = Literal["exact", "bounded"]


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
    problem: FlowProblem, *, mode: Mode = "exact", epsilon: float = 0.01, engine: Engine = "auto"
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
    run = _Run(problem, paths, bracket, solver, epsilon if mode == "bounded" else 0.0)
    finish_ps = run.finish_ps
    if mode == "bounded":
        # Fair sharing is proved to be over by then, so this only takes error away.
        finish_ps = np.minimum(finish_ps, bracket.upper_ps)
    makespan = int(finish_ps.max(initial=0))
    error = 0
    if mode == "bounded":
        error = max(makespan - bracket.lower_ps, bracket.upper_ps - makespan, 0)
    return FlowResult(
        problem=problem, finish_ps=finish_ps, makespan_ps=makespan, bracket=bracket,
        error_bound_ps=error, held_s=run.held_by_resource(), num_solves=run.num_solves, engine=solver.name,
    )  # fmt: skip


class _Run:
    """One simulation; the constructor runs it.

    Attributes:
      finish_ps: [F] int64.
      held: [F, H'] float64, seconds by column of `paths`.
      num_solves: solver calls.
    """

    def __init__(
        self, problem: FlowProblem, paths: Paths, bracket: Bracket, solver: Solver, epsilon: float
    ) -> None:
        """Run until every flow has ended."""
        self.problem, self.paths, self.solver, self.epsilon = problem, paths, solver, epsilon
        self.finish_ps = problem.start_ps.copy()
        self.held = np.zeros(paths.resource_idx.shape)
        self.num_solves = 0
        live = np.flatnonzero(problem.is_live)
        if not len(live):
            return
        self.origin_ps = int(problem.start_ps[live].min())
        self.pending = live[np.argsort(problem.start_ps[live], kind="stable")]
        starts = (problem.start_ps[self.pending] - self.origin_ps) / PS_PER_SECOND
        self.starts = np.append(starts, np.inf)
        busiest = np.flatnonzero(paths.kept == bracket.resource_idx)
        self.on_busiest = (paths.resource_idx == busiest).any(axis=1)
        self.active: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.left: Floats = np.zeros(0)
        self.num_started, self.now = 0, 0.0
        while len(self.active) or self.num_started < len(live):
            self._begin()
            self._advance(*solver.solve(paths, self.active))

    def _begin(self) -> None:
        """Take in the flows whose time has come; sleep to the next start when nothing moves."""
        if not len(self.active):
            self.now = float(self.starts[self.num_started])
        arrived = int(np.searchsorted(self.starts, self.now, side="right"))
        if arrived > self.num_started:
            new = self.pending[self.num_started : arrived]
            self.active = np.concatenate([self.active, new])
            self.left = np.concatenate([self.left, self.problem.size_bytes[new]])
            self.num_started = arrived

    def _advance(self, rate: Floats, stopped: npt.NDArray[np.int32]) -> None:
        """Go on at these rates until the step ends."""
        self.num_solves += 1
        need = self.left / rate
        step = next_step(need, self.on_busiest[self.active], self.epsilon * self.now)
        next_start = float(self.starts[self.num_started])
        starts_first = self.now + step >= next_start
        if starts_first:
            step = next_start - self.now
        # Each solve so far may have rounded what is left by an ulp of the size: less than that is nothing.
        nothing = (self.num_solves + 4) * UNIT_ROUNDOFF
        size = self.problem.size_bytes
        ended, lasts, self.active, self.left = self.solver.advance(
            self.active, self.left, rate, stopped, size, self.held, step, nothing
        )
        self._finish(ended, self.now + lasts)
        self.now = next_start if starts_first else self.now + step

    def _finish(self, flows: npt.NDArray[np.int64], seconds: Floats) -> None:
        """Round ends up to picoseconds as `whole_ps` does, and add the start of time."""
        exact = seconds * (PS_PER_SECOND * (1 - (self.num_solves + 8) * UNIT_ROUNDOFF))
        self.finish_ps[flows] = self.origin_ps + np.ceil(exact).astype(np.int64)

    def held_by_resource(self) -> Floats:
        """Spread `held` over the problem's own columns, [F, H]."""
        held = np.zeros(self.problem.resource_idx.shape)
        original = np.append(self.paths.kept, -2)[self.paths.resource_idx]
        for column in range(original.shape[1]):
            held += np.where(
                self.problem.resource_idx == original[:, column, None], self.held[:, column, None], 0.0
            )
        return held


def _last(npu: npt.NDArray[np.int64], finish_ps: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    last = np.zeros(count, np.int64)
    known = npu >= 0
    np.maximum.at(last, npu[known], finish_ps[known])
    return last
