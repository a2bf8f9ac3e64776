"""One dispatch or combine at flow level: serial steps before and after, bytes as fluid between.

Per rank: what comes before the first byte (`schedule.before`), then all its flows at once, each through the
card's engine, ports, planes and trunks; then the slowest rank's last byte, its completion and the exit
barrier. A card's engine reads and sends in turn, so its limit is 1 / (1 / egress rate + 1 / memory rate).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from epsim.flow.build import flow_problem
from epsim.flow.fluid import EXACT_FLOWS, Engine, FlowResult, Mode, simulate
from epsim.flow.problem import LINK, FlowProblem
from epsim.flow.steps import Progress
from epsim.platform.machine import Machine
from topology import Policy, Router

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowRun:
    """What the flow level gave.

    Args:
      time_ps: from the first launch to the end of the exit barrier.
      bound_ps: what the busiest link needs for its bytes alone.
      before_ps: [R] int64, from the entry of the last rank to first byte.
      finish_ps: [R] int64, when each rank has sent and received everything.
      result: the fluid simulation.
      mode: of it.
    """

    time_ps: int
    bound_ps: int
    before_ps: Int64
    finish_ps: Int64
    result: FlowResult
    mode: Mode


def run_flows(
    machine: Machine,
    bytes_matrix: Int64,
    before_ps: Int64,
    after_ps: int,
    *,
    policy: Policy = "spray",
    seed: int = 0,
    mode: Mode | Literal["auto"] = "auto",
    epsilon: float = 0.01,
    engine: Engine = "auto",
    on_progress: Progress | None = None,
) -> FlowRun:
    """Simulate the bytes of one operation.

    Args:
      machine: rates.
      bytes_matrix: [R, R] int64 bytes on the wire, [src rank, dst rank]; the diagonal stays on the card.
      before_ps: [R] int64, launch to first byte of each rank.
      after_ps: from the last completion to the end of the exit barrier.
      policy: path choice.
      seed: of the flow hash.
      mode: see `fluid.simulate`; "auto" is exact for up to `EXACT_FLOWS` flows, bounded for more.
      epsilon: see `fluid.simulate`.
      engine: see `fluid.simulate`.
      on_progress: see `fluid.simulate`.
    """
    problem, latency = machine_problem(machine, bytes_matrix, machine.entry_ps + before_ps, policy, seed)
    if mode == "auto":
        mode = "bounded" if problem.num_flows > EXACT_FLOWS else "exact"
    result = simulate(problem, mode=mode, epsilon=epsilon, engine=engine, on_progress=on_progress)
    npus = machine.npus
    count = machine.topology.num_npus
    sent, came = result.finish_by_src(count)[npus], result.finish_by_dst(count)[npus]
    finish = np.maximum.reduce([sent, came, machine.entry_ps + before_ps])
    return FlowRun(
        time_ps=int(finish.max()) + latency + after_ps,
        bound_ps=link_bound_ps(problem, machine),
        before_ps=before_ps,
        finish_ps=np.asarray(finish, np.int64),
        result=result,
        mode=mode,
    )


def machine_problem(
    machine: Machine, bytes_matrix: Int64, start_ps: Int64, policy: Policy, seed: int
) -> tuple[FlowProblem, int]:
    """Return the flows of a byte matrix on a machine, and the latency of the slowest path in use.

    Args:
      machine: rates; lossy links count with what they give in the mean.
      bytes_matrix: [R, R] int64, [src rank, dst rank]; the diagonal stays on the card.
      start_ps: [R] int64, when the flows of each rank start.
      policy: path choice.
      seed: of the flow hash.
    """
    machine = machine.with_mean_rates()
    matrix = bytes_matrix.copy()
    np.fill_diagonal(matrix, 0)
    src, dst = np.nonzero(matrix)
    npus, topology = machine.npus, machine.topology
    router = Router(topology, npus)
    # Cards outside the group send nothing; any positive rate will do.
    send = np.ones(topology.num_npus)
    egress = machine.egress_bytes_per_s()
    # A card that lost all its links is refused by name with its routes, or sends nothing.
    egress[egress == 0] = 1.0
    send[npus] = machine.card_speed / (1 / egress + 1 / machine.memory_bytes_per_s)
    problem = flow_problem(
        router, npus[src], npus[dst], matrix[src, dst],
        policy=policy, seed=seed, link_bytes_per_s=machine.link_bytes_per_s, send_bytes_per_s=send,
        start_ps=start_ps[src],
        send_share=_send_share(machine, router, egress, src, dst) if policy == "spray" else None,
    )  # fmt: skip
    latency = 0
    if len(src):
        # Paths of one group differ by tiers only; a few hundred pairs over the whole group show them all.
        some = np.unique(np.linspace(0, len(src) - 1, 512).astype(np.int64))
        latency = int(router.find(npus[src[some]], npus[dst[some]]).latency_ps(topology).max())
    return problem, latency


def _send_share(machine: Machine, router: Router, egress: Floats, src: Int64, dst: Int64) -> Floats | None:
    """Return [F] engine time per byte of each flow over that of a flow that uses all ports of its card.

    Equal parts go over the ports that lead to the destination, and the slowest part ends last, as in the
    events. A flow of a slower netlayer counts as if it had all ports; None = all of them have.
    """
    if not machine.has_uneven_links:
        return None
    npus = machine.npus
    routes = router.find(npus[src], npus[dst])
    first = routes.hop == 0
    wire = np.zeros(len(src))
    np.maximum.at(
        wire, routes.flow_idx[first], (routes.share / machine.link_bytes_per_s[routes.link_idx])[first]
    )
    fastest = router.layers[0].layer.netlayer
    wire = np.where(routes.netlayer == fastest, wire, 1 / egress[src])
    read = 1 / machine.memory_bytes_per_s
    return np.asarray((read + wire) / (read + 1 / egress[src]))


def link_bound_ps(problem: FlowProblem, machine: Machine) -> int:
    """Return what the busiest link needs for its bytes alone, none resent, rounded down to a picosecond."""
    limits = problem.limits
    is_link = limits.kind == LINK
    carried = problem.resource_bytes()[limits.resource_idx[is_link]] * limits.share[is_link]
    seconds = carried / machine.link_bytes_per_s[limits.item_idx[is_link]]
    return int(seconds.max(initial=0.0) * 1e12)
