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
MOST_RATIO = 100
"""Above this the ports work for less than 1 % of the time, and a ratio to them says nothing."""


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
    sent = transfers.bytes_matrix().sum(axis=1)
    time_us = run.time_ps / 1e6
    per_second = 1e3 * max(time_us, 1e-9)
    return {
        "workload": name,
        "system": platform.name,
        "ranks": ranks,
        "transfers": transfers.num_transfers,
        "wire_bytes": int(sent.sum()),
        "local_bytes": int(transfers.size_bytes[transfers.src == transfers.dst].sum()),
        "time_us": time_us,
        "busiest_port_us": bound,
        "ratio_to_bound": time_us / bound if bound else None,
        "gb_per_s_per_rank": float(sent.mean()) / per_second,
        "gb_per_s_busiest_rank": float(sent.max()) / per_second,
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
    local = f", {format_size(facts['local_bytes'])} more stay on their card" if facts["local_bytes"] else ""
    head = (
        f"{name} of {ranks} ranks on {platform.name}: {facts['transfers']:,} transfers, "
        f"{format_size(facts['wire_bytes'])} on the wire in all{local}"
    )
    lines = [
        head,
        f"time {facts['time_us']:,.1f} us{_ratio_text(facts)}; launch and barriers not included",
        f"sent per rank {facts['gb_per_s_per_rank']:.4g} GB/s on average, "
        f"{facts['gb_per_s_busiest_rank']:.4g} GB/s by the busiest",
    ]
    rows = [(f"{port['busy']:.1%}", f"{port['gbytes']:.4g}", port["name"]) for port in facts["ports"]]
    return "\n".join([*lines, "", plain_table(("busy", "GB", "busiest ports"), rows)])


def _ratio_text(facts: dict[str, Any]) -> str:
    """Compare with the busiest port, unless latencies, doorbells and computation are nearly everything."""
    ratio = facts["ratio_to_bound"]
    if ratio is None:
        return ""
    if ratio > MOST_RATIO:
        need = f"{facts['busiest_port_us']:.3g} us"
        return f", nearly all of it fixed costs and computation: the busiest port needs {need}"
    return f", {ratio:.3f} x the busiest port's"
