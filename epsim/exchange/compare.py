"""Our makespan beside those of other simulators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epsim.errors import InputError
from epsim.exchange.case import ExchangeCase, Imported
from epsim.flow import FlowResult, flow_problem, simulate
from topology.bound import link_bound
from topology.routes import Policy, Router

BOUND, FLOW = "busiest link", "flow"
COMPILE_PAYS = 1024
"""Flows below which NumPy is done before a compiled solver is ready (about 2 s on two cores)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the comparison.

    Args:
      simulator: "epsim", or another's name.
      model: what carried the bytes: our level, or the other's transport.
      makespan_ps: when the last transfer ended.
      gap: makespan over that of our best level, minus 1.
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


def compare(ours: Mapping[str, int], imported: Sequence[Imported]) -> list[Row]:
    """Put results side by side.

    Args:
      ours: level -> makespan in ps, the bound among them; the last one is what gaps are measured from.
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
    reference = list(ours.values())[-1]
    named = [("epsim", level, ps) for level, ps in ours.items()]
    named += [(other.simulator, other.transport, other.makespan_ps) for other in imported]
    return [
        Row(simulator=simulator, model=model, makespan_ps=ps, gap=ps / reference - 1)
        for simulator, model, ps in named
    ]
