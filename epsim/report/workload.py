"""Workloads and their runs as tables for people and JSON for programs."""

from typing import Any

import numpy as np

from epsim.platform.platform import Platform
from epsim.report.prediction import plain_table
from epsim.schedule.transfers import Transfers
from epsim.schedule.workloads import WORKLOADS, WorkloadParameter
from epsim.sim.transfers import TransferRun
from topology.units import format_size, format_time

NUM_PORTS = 5


def catalogue_text() -> str:
    """Return all workloads with their parameters."""
    rows = []
    for workload in WORKLOADS.values():
        rows.append((workload.name, "", "", workload.help))
        rows += [("", p.name, _default(p), p.help) for p in workload.parameters]
    return plain_table(("workload", "parameter", "default", "what it is"), rows)


def _default(parameter: WorkloadParameter) -> str:
    value = parameter.default
    if isinstance(value, bool):
        return "yes" if value else "no"
    if parameter.kind == "size":
        return format_size(int(value))
    return format_time(int(value)) if parameter.kind == "time" else str(value)


def _facts(
    name: str, ranks: int, platform: Platform, transfers: Transfers, run: TransferRun
) -> dict[str, Any]:
    bound = run.busiest_port_ps / 1e6
    moved = float(transfers.size_bytes.sum())
    time_us = run.time_ps / 1e6
    return {
        "workload": name,
        "system": platform.name,
        "ranks": ranks,
        "transfers": transfers.num_transfers,
        "moved_bytes": int(moved),
        "time_us": time_us,
        "busiest_port_us": bound,
        "ratio_to_bound": time_us / bound if bound else None,
        "gb_per_s_per_rank": moved / ranks / max(time_us, 1e-9) / 1e3,
        "chunk_bytes": run.chunk_bytes,
        "num_events": run.num_events,
        "ports": _ports(run),
    }  # fmt: skip


def _ports(run: TransferRun) -> list[dict[str, Any]]:
    """Return the busiest ports."""
    order = np.argsort(-run.port_busy_ps, kind="stable")[:NUM_PORTS].tolist()
    return [
        {
            "name": run.port_names[i],
            "busy": float(run.port_busy_ps[i] / max(1, run.time_ps)),
            "gbytes": float(run.port_bytes[i] / 1e9),
        }
        for i in order
    ]


def run_json(name: str, ranks: int, platform: Platform, transfers: Transfers, run: TransferRun) -> str:
    """Return a run as JSON text."""
    import msgspec

    facts = _facts(name, ranks, platform, transfers, run)
    return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()


def run_text(name: str, ranks: int, platform: Platform, transfers: Transfers, run: TransferRun) -> str:
    """Return a run as plain text: times, rates, the busiest ports."""
    facts = _facts(name, ranks, platform, transfers, run)
    head = (
        f"{name} of {ranks} ranks on {platform.name}: {facts['transfers']:,} transfers, "
        f"{format_size(facts['moved_bytes'])} in all"
    )
    ratio = "" if facts["ratio_to_bound"] is None else f", {facts['ratio_to_bound']:.3f} x the busiest port's"
    lines = [
        head,
        f"time {facts['time_us']:,.1f} us{ratio}; launch and barriers not included",
        f"sent per rank {facts['gb_per_s_per_rank']:.1f} GB/s",
    ]
    rows = [(f"{port['busy']:.1%}", f"{port['gbytes']:.4g}", port["name"]) for port in facts["ports"]]
    return "\n".join([*lines, "", plain_table(("busy", "GB", "busiest ports"), rows)])
