"""One dispatch or combine at flow level: serial steps before and after, bytes as fluid between.

Per rank: what comes before the first byte (`schedule.before`), then all its flows at once, each through the
card's engine, ports, planes and trunks; then the slowest rank's last byte, its completion and the exit
barrier. A card's engine reads and sends in turn, so its limit is 1 / (1 / egress rate + 1 / memory rate).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epsim.flow.build import flow_problem
from epsim.flow.fluid import Engine, FlowResult, Mode, simulate
from epsim.flow.problem import LINK, FlowProblem
from epsim.machine import Machine
from topology import Policy, Router

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowRun:
    """What the flow level gave.

    Args:
      time_ps: from the first launch to the end of the exit barrier.
      bound_ps: what the busiest link needs for its bytes alone.
      before_ps: [R] int64, launch to first byte.
      finish_ps: [R] int64, when each rank has sent and received everything.
      result: the fluid simulation.
    """

    time_ps: int
    bound_ps: int
    before_ps: Int64
    finish_ps: Int64
    result: FlowResult


def run_flows(
    machine: Machine,
    bytes_matrix: Int64,
    before_ps: Int64,
    after_ps: int,
    *,
    policy: Policy = "spray",
    seed: int = 0,
    mode: Mode = "exact",
    epsilon: float = 0.01,
    engine: Engine = "auto",
) -> FlowRun:
    """Simulate the bytes of one operation.

    Args:
      machine: rates.
      bytes_matrix: [R, R] int64 bytes on the wire, [src rank, dst rank]; the diagonal stays on the card.
      before_ps: [R] int64, launch to first byte of each rank.
      after_ps: from the last completion to the end of the exit barrier.
      policy: path choice.
      seed: of the flow hash.
      mode: see `fluid.simulate`.
      epsilon: see `fluid.simulate`.
      engine: see `fluid.simulate`.
    """
    problem, latency = machine_problem(machine, bytes_matrix, before_ps, policy, seed)
    result = simulate(problem, mode=mode, epsilon=epsilon, engine=engine)
    npus = machine.npus
    count = machine.topology.num_npus
    sent, came = result.finish_by_src(count)[npus], result.finish_by_dst(count)[npus]
    finish = np.maximum.reduce([sent, came, machine.start_ps + before_ps])
    return FlowRun(
        time_ps=int(finish.max()) + latency + after_ps,
        bound_ps=link_bound_ps(problem),
        before_ps=before_ps,
        finish_ps=np.asarray(finish, np.int64),
        result=result,
    )


def machine_problem(
    machine: Machine, bytes_matrix: Int64, before_ps: Int64, policy: Policy, seed: int
) -> tuple[FlowProblem, int]:
    """Return the flows of a byte matrix on a machine, and the latency of the slowest path in use."""
    matrix = bytes_matrix.copy()
    np.fill_diagonal(matrix, 0)
    src, dst = np.nonzero(matrix)
    npus, topology = machine.npus, machine.topology
    router = Router(topology, npus)
    send = np.full(topology.num_npus, np.inf)
    egress = machine.egress_bytes_per_s()
    send[npus] = machine.card_speed / (1 / egress + 1 / machine.memory_bytes_per_s)
    # Cards outside the group send nothing; any positive rate will do.
    send[~np.isfinite(send)] = 1.0
    problem = flow_problem(
        router, npus[src], npus[dst], matrix[src, dst],
        policy=policy, seed=seed, link_bytes_per_s=machine.link_bytes_per_s, send_bytes_per_s=send,
        start_ps=(machine.start_ps + before_ps)[src],
    )  # fmt: skip
    latency = 0
    if len(src):
        # Paths of one group differ by tiers only; a few hundred pairs over the whole group show them all.
        some = np.unique(np.linspace(0, len(src) - 1, 512).astype(np.int64))
        latency = int(router.find(npus[src[some]], npus[dst[some]]).latency_ps(topology).max())
    return problem, latency


def link_bound_ps(problem: FlowProblem) -> int:
    """Return what the busiest link needs for its bytes, rounded down to a picosecond."""
    limits = problem.limits
    is_link = limits.kind == LINK
    carried = problem.resource_bytes()[limits.resource_idx[is_link]] * limits.share[is_link]
    seconds = carried / limits.bytes_per_s[is_link]
    return int(seconds.max(initial=0.0) * 1e12)
