"""Bytes of every port over time, from what each port sent when."""

from collections.abc import Sequence

import numpy as np

from epsim.sim.fabric import Port
from epsim.trace.trace import LinkLoad

NUM_BINS = 200


def link_load(
    ports: Sequence[Port], sent: Sequence[tuple[Port, int, int, int]], end_ps: int
) -> LinkLoad | None:
    """Spread what the ports sent over equal bins of time.

    Args:
      ports: those to show; idle ones are left out.
      sent: (port, first bit ps, last bit ps, bytes), in any order.
      end_ps: of the run.

    Returns:
      None when nothing was sent.
    """
    row = {id(port): i for i, port in enumerate(p for p in ports if p.num_bytes)}
    if not row or end_ps < NUM_BINS:
        return None
    edges = np.linspace(0, end_ps, NUM_BINS + 1).astype(np.int64)
    index = np.array([row[id(port)] for port, _, _, _ in sent], np.int64)
    start, end, size = (
        np.array(column, np.float64) for column in zip(*((s, e, b) for _, s, e, b in sent), strict=True)
    )
    end = np.maximum(end, start + 1)
    # A piece that spans bins counts in each by its time there: differences of a running sum at the edges.
    carried = np.zeros((len(row), NUM_BINS))
    first = np.searchsorted(edges, start, side="right") - 1
    last = np.searchsorted(edges, end, side="left") - 1
    for step in range(int((last - first).max(initial=0)) + 1):
        place = np.minimum(first + step, last)
        inside = np.minimum(end, edges[place + 1]) - np.maximum(start, edges[place])
        part = np.where(first + step <= last, size * inside / (end - start), 0.0)
        np.add.at(carried, (index, place), np.maximum(part, 0.0))
    shown = [port for port in ports if port.num_bytes]
    return LinkLoad(
        labels=tuple(port.name for port in shown),
        carried_bytes=carried,
        edges_ps=edges,
        capacity_bytes_per_s=np.array([1e12 / port.ps_per_byte for port in shown]),
    )
