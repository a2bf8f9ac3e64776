"""Flow level: bytes as fluid on the real links, shared max-min fairly; see docs/flow.md."""

from epsim.flow.bracket import Bracket, bracket_makespan
from epsim.flow.build import flow_problem
from epsim.flow.fluid import FlowResult, simulate
from epsim.flow.problem import FlowProblem, Limits

__all__ = [
    "Bracket",
    "FlowProblem",
    "FlowResult",
    "Limits",
    "bracket_makespan",
    "flow_problem",
    "simulate",
]
