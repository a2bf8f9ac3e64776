"""Our makespan beside those of other simulators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from epsim.errors import InputError
from epsim.exchange.case import ExchangeCase, Imported
from epsim.flow import FlowResult, flow_problem, simulate
from epsim.platform.machine import Machine
from topology.bound import link_bound
from topology.routes import Policy, Router

BOUND, FLOW, EVENTS = "busiest link", "flow", "events"
MOST_EVENTS = 20_000
"""Transfers that events take some seconds for."""
COMPILE_PAYS = 1024
"""Flows below which NumPy is done before a compiled solver is ready (about 2 s on two cores)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the comparison.

    Args:
      simulator: "epsim", or another's name.
      model: what carried the bytes: our level, or the other's transport.
      makespan_ps: when the last transfer ended.
      gap: makespan over that of our flow level, minus 1; over the bound of a case that has no flow.
    """

    simulator: str
    model: str
    makespan_ps: int
    gap: float


def our_makespans(case: ExchangeCase, policy: Policy = "spray", *, seed: int = 0) -> dict[str, int]:
    """Return what we say of a case, in ps: the bound of the busiest link, and the exact fluid.

    Neither has latency, headers or software in it: both are what the lines alone allow. The fluid knows
    starts but no phases, and is left out of a case that has them.

    Args:
      case: any.
      policy: how flows choose links.
      seed: of the flow hash.

    Raises:
      TopologyError: a pair has no path.
    """
    bound = link_bound(case.topology, case.bytes_matrix, npus=case.npus, policy=policy, seed=seed)
    found = {BOUND: bound.time_ps}
    if case.phase is None:
        found[FLOW] = simulate_case(case, policy, seed=seed).makespan_ps
    return found


def simulate_case(case: ExchangeCase, policy: Policy = "spray", *, seed: int = 0) -> FlowResult:
    """Run the exact fluid of a case without phases; its flows are the transfers, in their order."""
    transfers = case.transfers()
    problem = flow_problem(
        Router(case.topology, case.npus),
        case.npus[transfers.src],
        case.npus[transfers.dst],
        transfers.num_bytes,
        policy=policy,
        seed=seed,
        start_ps=0 if case.start_ps is None else case.start_ps[transfers.src],
    )
    return simulate(problem, engine="auto" if len(transfers) >= COMPILE_PAYS else "numpy")


def events_makespan(case: ExchangeCase, policy: Policy = "spray", *, seed: int = 0) -> int | None:
    """Return what the discrete events say of a case, in ps: its lines with their latencies, in chunks.

    As the other two levels it has neither headers nor software in it, nor memory; a rank has one queue per
    destination, which its engine serves in turn from the next rank on.

    Args:
      case: any.
      policy: how flows choose links.
      seed: of the flow hash.

    Returns:
      None for a case with phases, which is left out as at flow level, or with too many transfers.

    Raises:
      InputError: the events do not know such a network.
      TopologyError: a pair has no path.
    """
    from epsim.schedule.costs import StepCosts
    from epsim.schedule.transfers import Transfers
    from epsim.sim.transfers import TransferOptions, run_transfers

    found = case.transfers()
    count, size = len(found), case.num_ranks
    if case.phase is not None or count > MOST_EVENTS:
        return None
    zeros = np.zeros(count, np.int64)
    # All begin at their next neighbour: in the order of the ranks they would meet at one receiver.
    order = np.lexsort((found.src, (found.dst - found.src) % size))
    src, dst, num_bytes = found.src[order], found.dst[order], found.num_bytes[order]
    machine = Machine(
        topology=case.topology, npus=case.npus,
        link_bytes_per_s=np.asarray(case.topology.link_bytes_per_s(), np.float64),
        memory_bytes_per_s=np.inf, card_speed=np.ones(size),
        start_ps=np.zeros(size, np.int64) if case.start_ps is None else case.start_ps,
    )  # fmt: skip
    transfers = Transfers(
        num_ranks=size, src=src, dst=dst, size_bytes=num_bytes, lane=zeros, queue_idx=dst,
        memory_bytes=zeros, delay_ps=zeros, label_idx=zeros, labels=("case",),
        after_start=np.zeros(count + 1, np.int64), after=np.zeros(0, np.int64),
    )  # fmt: skip
    options = TransferOptions(policy=policy, seed=seed, costs=StepCosts(doorbell_ps=0, ack_ps=0))
    return run_transfers(machine, transfers, options).time_ps


def compare(ours: Mapping[str, int], imported: Sequence[Imported]) -> list[Row]:
    """Put results side by side.

    Args:
      ours: level -> makespan in ps, the bound among them; gaps are measured from flow, else from the bound.
      imported: results of others for the same case.

    Returns:
      Our rows, then theirs.

    Raises:
      InputError: there is nothing of ours, or a result beats the bound, so that it is of another case.
    """
    if not ours or min(ours.values()) <= 0:
        raise InputError("our makespans", dict(ours), "must be positive")
    for other in imported:
        bound_ps = ours.get(BOUND, 0)
        if other.makespan_ps + other.rounding_ps < bound_ps:
            rule = f"must be at least the {bound_ps} ps of the busiest link; are rates and units the same?"
            raise InputError(f"makespan of {other.simulator}", f"{other.makespan_ps} ps", rule)
    reference = ours.get(FLOW, min(ours.values()))
    named = [("epsim", level, ps) for level, ps in ours.items()]
    named += [(other.simulator, other.transport, other.makespan_ps) for other in imported]
    return [
        Row(simulator=simulator, model=model, makespan_ps=ps, gap=ps / reference - 1)
        for simulator, model, ps in named
    ]
