"""Runs written for a compiler (numba, extra `fast`); plain Python runs them too, slowly.

The same operations on each number in the same order as `epsim.flow.steps.run` and `epsim.flow.maxmin`, but
only where something may have changed; `epsim.flow.filling` says how.

Dimension legend: F flows, H resources of a flow (C pads), C resources.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.flow import filling
from epsim.flow.filling import Fill, index, solve, unchanged
from epsim.flow.maxmin import UNIT_ROUNDOFF, Paths
from epsim.flow.steps import FINER, NEVER_SKIPPED

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

BYTES, RATE, SINCE, END = range(4)
STARTED, ACTIVE, SOLVES, GONE, TURNS = range(5)


class Motion(NamedTuple):
    """State of flows between solves.

    Args:
      flow: [F, 4] bytes left at a time, rate since, that time, and end at that rate.
      stopped: [F] int32, which of its resources stops a flow.
      held, held_since: [F, H] and [F], seconds for which each did, and since when the present one does.
      solves: [F] int64, as of `steps.Course`.
      soonest: [C] first end among the flows of a turn.
      gone: [F] int32, flows that ended in the last step.
    """

    flow: Floats
    stopped: Int32s
    held: Floats
    held_since: Floats
    solves: Int64s
    soonest: Floats
    gone: Int32s


def new_motion(paths: Paths, size: Floats) -> Motion:
    """Let nothing move yet."""
    num_flows = len(size)
    flow = np.zeros((num_flows, 4))
    flow[:, BYTES] = size
    return Motion(
        flow=flow, stopped=np.zeros(num_flows, np.int32), held=np.zeros(paths.resource_idx.shape),
        held_since=np.zeros(num_flows), solves=np.zeros(num_flows, np.int64),
        soonest=np.empty(len(paths.capacity)), gone=np.empty(num_flows, np.int32),
    )  # fmt: skip


def fill(s: Fill, rate: Floats, stopped: Int32s) -> None:
    """Find max-min fair rates of the active flows, [F] and results as of `maxmin.solve`."""
    index(s)
    zero = int(np.int64(0))
    for turn in range(solve(s, zero, zero)):
        for e in range(s.begin[turn], s.begin[turn + 1]):
            rate[s.frozen[e]], stopped[s.frozen[e]] = s.height[turn], s.column[e]


def _move(s: Fill, m: Motion, start: int, num_turns: int, now: float) -> None:
    """Give the flows of turns from `start` on their rates and ends."""
    for turn in range(start, num_turns):
        height, first = s.height[turn], np.inf
        for e in range(s.begin[turn], s.begin[turn + 1]):
            n = s.frozen[e]
            if m.flow[n, RATE] != height:
                m.flow[n, BYTES] -= m.flow[n, RATE] * (now - m.flow[n, SINCE])
                m.flow[n, SINCE], m.flow[n, RATE] = now, height
                m.flow[n, END] = now + m.flow[n, BYTES] / height
            first = min(first, m.flow[n, END])
            if s.column[e] != m.stopped[n]:
                m.held[n, m.stopped[n]] += now - m.held_since[n]
                m.stopped[n], m.held_since[n] = s.column[e], now
        m.soonest[turn] = first


def _next_step(s: Fill, m: Motion, num_turns: int, on_busiest: Bools, now: float, coarse: float) -> float:
    """Choose a step as `steps.next_step` does."""
    first = np.inf
    for turn in range(num_turns):
        first = min(first, m.soonest[turn])
    first = max(first - now, 0.0)
    if coarse <= first:
        return first
    num_ends, soon = 0, np.inf
    for e in range(s.begin[num_turns]):
        n = s.frozen[e]
        if on_busiest[n]:
            num_ends += 1
            soon = min(soon, m.flow[n, END] - now)
    finest = 0.0 if num_ends <= NEVER_SKIPPED else coarse / FINER
    return max(first, min(coarse, max(finest, soon)))


def _end(s: Fill, m: Motion, num_turns: int, limit: float, num_solves: int) -> int:
    """Take out the flows that end up to a time; returns how many."""
    num_gone = 0
    for turn in range(num_turns):
        if m.soonest[turn] > limit:
            continue
        for e in range(s.begin[turn], s.begin[turn + 1]):
            n = s.frozen[e]
            if m.flow[n, END] <= limit:
                m.held[n, m.stopped[n]] += m.flow[n, END] - m.held_since[n]
                s.active[n], m.solves[n], m.gone[num_gone] = False, num_solves, n
                num_gone += 1
    return num_gone


def run(
    s: Fill, m: Motion, order: Int64s, starts: Floats, on_busiest: Bools, epsilon: float,
    clock: Floats, tally: Int64s, most: int,
) -> bool:  # fmt: skip
    """Share fairly until every flow has ended, or for `most` solves; tells whether there is more to do.

    `clock` [1] and `tally` [5] hold where it stands; the other arguments are as of `steps.Plan`.
    """
    now, num_started, num_active, num_solves = clock[0], tally[STARTED], tally[ACTIVE], tally[SOLVES]
    num_gone, num_turns, last = tally[GONE], tally[TURNS], tally[SOLVES] + most
    zero = int(np.int64(0))  # a literal would make the compiler make functions twice
    while (num_active > 0 or num_started < len(order)) and num_solves < last:
        if num_active == 0:
            now = starts[num_started]
        num_before = num_started
        while starts[num_started] <= now:
            n = order[num_started]
            s.active[n], m.flow[n, SINCE], m.held_since[n] = True, now, now
            num_started += 1
        num_active += num_started - num_before
        start = zero
        if num_started > num_before:
            index(s)
        else:
            start = unchanged(s, m.gone, num_gone, num_turns)
        num_turns = solve(s, start, num_turns)
        num_solves += 1
        _move(s, m, start, num_turns, now)
        now += _next_step(s, m, num_turns, on_busiest, now, epsilon * now)
        now = min(now, starts[num_started])
        num_gone = _end(s, m, num_turns, now * (1 + (num_solves + 4) * UNIT_ROUNDOFF), num_solves)
        num_active -= num_gone
    clock[0], tally[STARTED], tally[ACTIVE], tally[SOLVES] = now, num_started, num_active, num_solves
    tally[GONE], tally[TURNS] = num_gone, num_turns
    return bool(num_active > 0 or num_started < len(order))


def fair_need(
    table: Int32s, share: Floats, capacity: Floats, flows: Int64s, left: Floats, level: Floats, rate: Floats,
    need: Floats,
) -> None:  # fmt: skip
    """Find rate and remaining time of flows in the counting process, [n]; `level` is [C + 1] zeros."""
    num_resources = len(capacity)
    for n in flows:
        for h in range(table.shape[1]):
            level[table[n, h]] += share[n, h]
    for c in range(num_resources):
        level[c] = capacity[c] / level[c] if level[c] > 0 else np.inf
    level[num_resources] = np.inf
    for place in range(len(flows)):
        slowest = np.inf
        for h in range(table.shape[1]):
            slowest = min(slowest, level[table[flows[place], h]])
        rate[place], need[place] = slowest, left[place] / slowest


@functools.cache
def compiled() -> dict[str, Callable[..., Any]]:
    """Compile `run`, `fill` and `fair_need`, each at its first call; some seconds per process.

    Nothing is cached on disk: numba would write beside the installed package, and read pickles back.
    """
    from numba import njit

    # Compiled code calls compiled code only, so the functions get globals in which all are. Those that
    # nobody calls from Python need no way in from there.
    names = vars(filling) | globals()
    inside: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    inner = (*filling.KERNELS, _move, _next_step, _end)
    for function in (*inner, run, fill, fair_need):
        jit = njit(error_model="numpy", **(inside if function in inner else {}))
        names[function.__name__] = jit(FunctionType(function.__code__, names, function.__name__))
    return names
