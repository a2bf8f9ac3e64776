"""Progressive filling written for a compiler (numba, extra `fast`); plain Python runs it too, slowly.

The same operations in the same order as `epsim.flow.maxmin.solve`, with a heap of levels in place of
the search for the lowest. Levels only grow, so an old entry of the heap is too low, never too high,
and is put right when it comes up.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def _before(level: Floats, heap: Int64s, a: int, b: int) -> bool:
    """Order heap places by remembered level, then by resource number."""
    if level[heap[a]] != level[heap[b]]:
        return bool(level[heap[a]] < level[heap[b]])
    return bool(heap[a] < heap[b])


def _sink(level: Floats, heap: Int64s, size: int, place: int) -> None:
    """Move a place down until both below it come later."""
    while True:
        child = 2 * place + 1
        if child >= size:
            return
        if child + 1 < size and _before(level, heap, child + 1, child):
            child += 1
        if not _before(level, heap, child, place):
            return
        heap[place], heap[child] = heap[child], heap[place]
        place = child


def _index(table: Int32s, flows: Int64s, num_resources: int) -> tuple[Int64s, Int32s]:
    """List the places in `flows` of each resource: (first place [C+1], places)."""
    first = np.zeros(num_resources + 2, np.int64)
    width = table.shape[1]
    for n in range(len(flows)):
        for h in range(width):
            first[table[flows[n], h] + 1] += 1
    for c in range(num_resources + 1):
        first[c + 1] += first[c]
    place = first[:num_resources].copy()
    member = np.empty(first[num_resources], np.int32)
    for n in range(len(flows)):
        for h in range(width):
            c = table[flows[n], h]
            if c < num_resources:
                member[place[c]] = n
                place[c] += 1
    return first[: num_resources + 1], member


def _stop(
    table: Int32s, share: Floats, flows: Int64s, mine: Int32s, full: int, height: float,
    rate: Floats, stopped: Int32s, taken: Floats, count: Int64s, touched: Int64s,
) -> int:  # fmt: skip
    """Stop the rising flows of a full resource; returns how many resources they pass."""
    num_touched, num_resources = 0, len(taken)
    for n in mine:
        if rate[n] > 0:
            continue
        rate[n] = height
        for h in range(table.shape[1]):
            c = table[flows[n], h]
            if c == num_resources:
                continue
            if c == full:
                stopped[n] = h
            if taken[c] == 0:
                touched[num_touched] = c
                num_touched += 1
            taken[c] += share[flows[n], h]
            count[c] -= 1
    return num_touched


def fill(table: Int32s, share: Floats, capacity: Floats, flows: Int64s) -> tuple[Floats, Int32s]:
    """Find max-min fair rates; arguments and results as of `maxmin.solve`, with Paths taken apart."""
    num_resources = len(capacity)
    first, member = _index(table, flows, num_resources)
    count, weight = np.diff(first), weigh(table, share, flows, num_resources)
    left, level = capacity.copy(), np.full(num_resources, np.inf)
    heap = np.flatnonzero(count > 0)
    size = len(heap)
    level[heap] = left[heap] / weight[heap]
    known = level.copy()
    for n in range(size // 2 - 1, -1, -1):
        _sink(known, heap, size, n)
    rate, stopped = np.zeros(len(flows)), np.zeros(len(flows), np.int32)
    taken, touched = np.zeros(num_resources), np.empty(num_resources, np.int64)
    while size > 0:
        full = heap[0]
        if count[full] == 0:
            size -= 1
            heap[0] = heap[size]
            _sink(known, heap, size, 0)
            continue
        if level[full] > known[full]:
            known[full] = level[full]
            _sink(known, heap, size, 0)
            continue
        height = level[full]
        mine = member[first[full] : first[full + 1]]
        num_touched = _stop(
            table, share, flows, mine, full, height, rate, stopped, taken, count, touched
        )  # fmt: skip
        for c in touched[:num_touched]:
            left[c] -= height * taken[c]
            weight[c] -= taken[c]
            taken[c] = 0.0
            if count[c] > 0:
                level[c] = max(level[c], left[c] / weight[c])
    return rate, stopped


def weigh(table: Int32s, share: Floats, flows: Int64s, num_resources: int) -> Floats:
    """Sum the shares of some flows by resource, [C]."""
    weight = np.zeros(num_resources + 1)
    for n in flows:
        for h in range(table.shape[1]):
            weight[table[n, h]] += share[n, h]
    return weight[:num_resources]


def fair_need(
    table: Int32s, share: Floats, capacity: Floats, left: Floats, flows: Int64s
) -> tuple[Floats, Floats]:
    """Rate and remaining time of flows in the counting process, [n] each; see `bracket`."""
    weight = weigh(table, share, flows, len(capacity))
    rate, need = np.empty(len(flows)), np.empty(len(flows))
    for n in range(len(flows)):
        slowest = np.inf
        for h in range(table.shape[1]):
            c = table[flows[n], h]
            if c < len(capacity):
                slowest = min(slowest, capacity[c] / weight[c])
        rate[n] = slowest
        need[n] = left[n] / slowest
    return rate, need


def advance(
    active: Int64s,
    left: Floats,
    rate: Floats,
    stopped: Int32s,
    size: Int64s,
    held: Floats,
    step: float,
    nothing: float,
) -> tuple[Int64s, Floats, Int64s, Floats]:
    """Go on for a step; arguments and results as of `maxmin.advance`."""
    gone, lasts = np.empty(len(active), np.int64), np.empty(len(active))
    stay, rest = np.empty(len(active), np.int64), np.empty(len(active))
    num_gone, num_stay = 0, 0
    for n in range(len(active)):
        flow = active[n]
        last = min(left[n] / rate[n], step)
        held[flow, stopped[n]] += last
        after = left[n] - rate[n] * step
        if after <= size[flow] * nothing:
            gone[num_gone], lasts[num_gone] = flow, last
            num_gone += 1
        else:
            stay[num_stay], rest[num_stay] = flow, after
            num_stay += 1
    return gone[:num_gone], lasts[:num_gone], stay[:num_stay], rest[:num_stay]


@functools.cache
def compiled() -> dict[str, Callable[..., Any]]:
    """Compile `fill`, `fair_need` and `advance`, each at its first call; some seconds per process.

    Nothing is cached on disk: numba would write beside the installed package.
    """
    from numba import njit

    # Compiled code calls compiled code only, so the functions get globals in which all are.
    names = dict(globals())
    for function in (_before, _sink, _index, _stop, weigh, fill, fair_need, advance):
        names[function.__name__] = njit(FunctionType(function.__code__, names, function.__name__))
    return names
