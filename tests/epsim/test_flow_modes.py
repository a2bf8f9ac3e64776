"""Which mode the flow level takes by itself, its progress, and the bytes of what it names."""

import sys

import numpy as np
import pytest

from epsim.cli import run
from epsim.cli.caseoptions import CaseOptions
from epsim.cli.simulate import _counted
from epsim.flow import fast, kernels, operation
from epsim.flow.fast import looping_solver
from epsim.flow.fluid import EXACT_FLOWS
from epsim.flow.maxmin import binding_paths
from epsim.flow.steps import Plan
from epsim.flow.steps import run as plain_run
from epsim.simulate import FlowOptions, simulate
from tests.epsim.test_cli_simulate_views import Terminal
from tests.epsim.test_flow_fluid import skewed

CASE = {"level": "flow", "ep": 8, "tokens": 64, "operations": ("dispatch",)}
WORDS = ["simulate", *["--level", "flow", "--ep", "8", "--tokens", "64", "--op", "dispatch"]]


def test_many_flows_are_bounded_unless_exact_is_asked_for(monkeypatch):
    # Which engine auto takes depends on whether an earlier test has compiled numba.
    monkeypatch.setattr(fast, "has_numba", lambda: False)
    [usual] = simulate(**CASE)
    assert usual.method == "exact, numpy"
    assert EXACT_FLOWS < 1024 * 1023
    monkeypatch.setattr(operation, "EXACT_FLOWS", 55)
    [chosen], [exact], [bounded] = (
        simulate(**CASE, flow=FlowOptions(mode=mode)) for mode in ("auto", "exact", "bounded")
    )
    assert "us off (chosen for 56 flows; exact takes far longer)" in chosen.method
    assert exact.method == usual.method
    assert "chosen" not in bounded.method
    assert chosen.time_us == bounded.time_us
    off_us = float(chosen.method.split("at most ")[1].split(" us")[0])
    assert abs(chosen.time_us - exact.time_us) <= off_us + 1e-6  # a picosecond: times are whole ones


def plan_of(problem):
    """Let all flows start at once."""
    live = np.flatnonzero(problem.is_live)
    never = np.zeros(problem.num_flows, np.bool_)
    size = problem.size_bytes.astype(float)
    return Plan(size=size, order=live, starts=np.append(live * 0.0, np.inf), on_busiest=never, epsilon=0.0)


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_a_run_in_slices_is_the_same_run(at_once, monkeypatch):
    monkeypatch.setattr(fast, "AT_ONCE", at_once)
    problem, seen = skewed(8), []
    paths, plan = binding_paths(problem), plan_of(problem)
    sliced = looping_solver("plain", vars(kernels)).run(paths, plan, lambda *pair: seen.append(pair))
    whole = plain_run(paths, plan)
    assert sliced.end.tobytes() == whole.end.tobytes()
    assert sliced.held.tobytes() == whole.held.tobytes()
    assert sliced.num_solves == whole.num_solves
    assert seen == sorted(seen)
    assert len(seen) == -(-whole.num_solves // at_once)
    assert seen[-1] == (len(plan.order),) * 2


def test_progress_counts_flows(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(WORDS) == 0
    assert "flows" in terminal.getvalue()


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({}, "flows"),
        ({"ep": "8,512"}, "flows"),
        ({"ep": "256", "mode": "exact"}, "flows"),
        ({"ep": "8,512", "mode": "exact"}, "flows (--mode bounded takes seconds)"),
        ({"level": "events"}, "bytes"),
    ],
)
def test_a_long_exact_run_is_told_of_the_faster_mode(options, counted):
    assert _counted(CaseOptions(**{"level": "flow"} | options)) == counted


@pytest.mark.parametrize("faults", [(), ("link-slow:npu3/plane2@0.5",), ("plane-lost:2",)])
def test_a_card_carries_all_it_sends_at_both_levels(faults):
    """Row sums of the byte matrix are what a send limit carries, not one plane's part of them."""
    [flow], [events] = (simulate(**{**CASE, "level": level}, faults=faults) for level in ("flow", "events"))
    engines = {port.name.rpartition(" ")[2]: port.gbytes for port in events.ports if "engine" in port.name}
    limits = {
        port.name.split("npu")[1].split()[0]: port.gbytes for port in flow.ports if "send limit" in port.name
    }
    both = limits.keys() & engines.keys()
    assert both
    assert {card: limits[card] for card in both} == {card: engines[card] for card in both}


def test_links_used_alike_carry_together_what_the_bundle_of_events_does():
    [flow] = simulate(**CASE)
    [events] = simulate(**{**CASE, "level": "events"})
    link = next(port for port in flow.ports if port.name.startswith("link"))
    card = link.name.split("-> ")[1].split(")")[0]
    bundle = next(port for port in events.ports if f"-> {card} (8 links)" in port.name)
    assert link.name.endswith("and 7 more used alike")
    # Eighths of whole numbers of bytes add up without rounding; only the division by 1e9 may round.
    assert link.gbytes == pytest.approx(bundle.gbytes, rel=2**-50)
