"""Small cases for the exchange tests, and what other simulators would print for them."""

import csv
import io

import numpy as np

from epsim.exchange.case import ExchangeCase
from topology import leaf_spine, ubl128


def small_case(**changes):
    """Four ranks on two leaves, every pair with its own bytes."""
    matrix = np.arange(16).reshape(4, 4) * 1000
    fields = {
        "name": "small",
        "topology": leaf_spine(4, leaves=2, spines=2, switch_hop="100ns"),
        "npus": np.array([2, 0, 3, 1]),
        "bytes_matrix": matrix,
    }
    return ExchangeCase(**(fields | changes))


def two_cards(**changes):
    """Two ranks on one UBL128 of two cards, each way its own bytes."""
    fields = {
        "name": "pair",
        "topology": ubl128(2, server_size=2),
        "npus": np.arange(2),
        "bytes_matrix": np.array([[5, 300], [7000, 5]]),
    }
    return ExchangeCase(**(fields | changes))


def random_case(rng, topology, num_ranks, most_bytes=5_000_000):
    """Scatter ranks over a topology; about half of the pairs have bytes."""
    matrix = rng.integers(1, most_bytes, (num_ranks, num_ranks))
    matrix *= rng.integers(0, 2, matrix.shape)
    matrix[0, 1] = 1 + most_bytes  # never empty
    npus = rng.permutation(topology.num_npus)[:num_ranks]
    return ExchangeCase(name="random", topology=topology, npus=npus, bytes_matrix=matrix)


def ended_us(task):
    """When a task of a made-up result ends."""
    return f"{12 + task / 4:.6f}"


def task_statistics(traffic, *, change=lambda rows: rows, node="sourceNode"):
    """Make the results that ns-3-UB would write for a traffic.csv; `change` plants a fault in the rows."""
    rows = list(csv.DictReader(io.StringIO(traffic)))
    for task, row in enumerate(rows):
        row |= {"taskStartTime(us)": "0.5", "taskCompletesTime(us)": ended_us(task)}
        row[node] = row.pop("sourceNode")
    rows = change(rows)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def htsim_log(case, proto="Roce", change=lambda lines: lines):
    """Make the log that htsim would print; `change` plants a fault in its lines."""
    transfers = case.transfers()
    lines = ["Nodes: 4 Connections: 12", "Flow count 12"]
    for task, (src, dst, size) in enumerate(
        zip(transfers.src, transfers.dst, transfers.num_bytes, strict=True)
    ):
        name = f"Flow {proto}_{case.npus[src]}_{case.npus[dst]} {task + 40}"
        lines.append(f"{name} finished at {ended_us(task)} total bytes {size + 63}")
    return "\n".join(change(lines)) + "\n"
