"""Progressive filling that is resumed, written for a compiler (numba, extra `fast`).

Resources fill up in turns, the lowest level first, as in `epsim.flow.maxmin.solve`. When a few flows end, the
turns before the first one of a resource of theirs stay as they were: such a resource had not been the
lowest before, and with fewer flows it rises more. That is argued, and also checked: `_replay` takes
each resource of an ended flow through those turns again and compares its level with theirs; if it would have
been the lowest anywhere, everything is filled again. Other resources do not notice before that turn.

Levels wait in a heap. They only grow, so an old entry of the heap is too low, never too high, and is put
right when it comes up.

Dimension legend: F flows, H resources of a flow (C pads), C resources, E flows on resources, K savings.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.flow.maxmin import Paths

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

RISING = 2**31 - 1  # a turn that never comes
COUNT, WEIGHT, LEFT, LEVEL = range(4)

NUM_SAVED = 32
"""K: a choice; a solve starts at most a 32nd of its turns too early, and saving takes little of its time."""
FEW = 16
"""A choice: after more ends at once everything is filled again."""


class Fill(NamedTuple):
    """State of progressive filling, kept from one solve to the next.

    Args:
      table, share, capacity: as of `maxmin.Paths`.
      active: [F] flows that take part.
      turn: [F] when each flow stopped rising.
      first, last: [C + 1] and [C], where the flows of a resource are in `member` and `portion`.
      member, portion: [E] flow and its share, ascending flows in each resource.
      now: [C, 4] count and weight of rising flows, capacity left, and level.
      known: [C] levels that `heap` is ordered by.
      taken: [C] what the flows of this turn weigh, zero between turns; `touched` lists where.
      full, height: [C] resource and level of each turn; `place` [C] is the turn of each resource.
      begin: [C + 1] where the flows of a turn are in `frozen` and `column`.
      frozen, column: [F] flow, and which of its resources stopped it.
      saved: [K, C, 4] `now` before every so many turns.
      head, chain: [C + 1] and [F], lists of `_replay`.
    """

    table: Int32s
    share: Floats
    capacity: Floats
    active: Bools
    turn: Int32s
    first: Int64s
    last: Int64s
    member: Int32s
    portion: Floats
    now: Floats
    known: Floats
    heap: Int64s
    taken: Floats
    touched: Int64s
    full: Int64s
    height: Floats
    place: Int64s
    begin: Int64s
    frozen: Int32s
    column: Int32s
    saved: Floats
    head: Int64s
    chain: Int64s


def new_fill(paths: Paths, num_live: int) -> Fill:
    """Make room for `num_live` flows at a time; nothing takes part yet."""
    num_flows, num_resources = len(paths.resource_idx), len(paths.capacity)
    num_cells = num_live * paths.resource_idx.shape[1]
    return Fill(
        table=paths.resource_idx, share=paths.share, capacity=paths.capacity,
        active=np.zeros(num_flows, np.bool_), turn=np.full(num_flows, RISING, np.int32),
        first=np.zeros(num_resources + 1, np.int64), last=np.zeros(num_resources, np.int64),
        member=np.empty(num_cells, np.int32), portion=np.empty(num_cells),
        now=np.zeros((num_resources, 4)), known=np.empty(num_resources),
        heap=np.empty(num_resources, np.int64), taken=np.zeros(num_resources),
        touched=np.empty(num_resources, np.int64), full=np.empty(num_resources, np.int64),
        height=np.empty(num_resources), place=np.full(num_resources, RISING, np.int64),
        begin=np.zeros(num_resources + 1, np.int64), frozen=np.empty(num_live, np.int32),
        column=np.empty(num_live, np.int32), saved=np.empty((NUM_SAVED, num_resources, 4)),
        head=np.full(num_resources + 1, -1, np.int64), chain=np.empty(num_live, np.int64),
    )  # fmt: skip


def index(s: Fill) -> None:
    """List the active flows of each resource."""
    num_resources = len(s.capacity)
    for c in range(num_resources):
        s.last[c] = 0
    for n in range(len(s.active)):
        if not s.active[n]:
            continue
        for h in range(s.table.shape[1]):
            if s.table[n, h] < num_resources:
                s.last[s.table[n, h]] += 1
    for c in range(num_resources):
        s.first[c + 1] = s.first[c] + s.last[c]
        s.last[c] = s.first[c]
    for n in range(len(s.active)):
        if not s.active[n]:
            continue
        for h in range(s.table.shape[1]):
            c = s.table[n, h]
            if c < num_resources:
                s.member[s.last[c]], s.portion[s.last[c]] = n, s.share[n, h]
                s.last[c] += 1


def _settle(s: Fill, c: int) -> None:
    """Take ended flows off the list of a resource, and begin with none of the others stopped."""
    place, weight = s.first[c], 0.0
    for e in range(s.first[c], s.last[c]):
        if s.active[s.member[e]]:
            s.member[place], s.portion[place] = s.member[e], s.portion[e]
            weight += s.portion[e]
            place += 1
    s.last[c] = place
    count = place - s.first[c]
    s.now[c, COUNT], s.now[c, WEIGHT], s.now[c, LEFT] = count, weight, s.capacity[c]
    s.now[c, LEVEL] = s.capacity[c] / weight if count > 0 else np.inf


def _take(s: Fill, c: int, height: float, taken: float) -> None:
    """Account for flows on a resource that stopped at a level; their count is accounted for already."""
    s.now[c, LEFT] -= height * taken
    s.now[c, WEIGHT] -= taken
    if s.now[c, COUNT] > 0:
        s.now[c, LEVEL] = max(s.now[c, LEVEL], s.now[c, LEFT] / s.now[c, WEIGHT])


def _replay(s: Fill, c: int, stop: int) -> bool:
    """Take a resource through the turns before `stop`; False when one of them would have been its own."""
    _settle(s, c)
    for place in range(s.last[c] - s.first[c] - 1, -1, -1):
        turn = s.turn[s.member[s.first[c] + place]]
        if turn < stop:
            s.chain[place], s.head[turn] = s.head[turn], place
    stride, good = len(s.capacity) // NUM_SAVED + 1, True
    for turn in range(stop + 1):
        if turn % stride == 0:
            for item in range(4):
                s.saved[turn // stride, c, item] = s.now[c, item]
        place = s.head[turn]
        s.head[turn] = -1
        if turn < stop and s.now[c, COUNT] > 0:
            lower = s.now[c, LEVEL] < s.height[turn]
            good = good and not (lower or (s.now[c, LEVEL] == s.height[turn] and c < s.full[turn]))
        taken = 0.0
        while place >= 0:
            taken += s.portion[s.first[c] + place]
            s.now[c, COUNT] -= 1
            place = s.chain[place]
        if taken > 0:
            _take(s, c, s.height[turn], taken)
    return good


def unchanged(s: Fill, gone: Int32s, num_gone: int, num_turns: int) -> int:
    """Count the turns, rounded down to what is saved, that stay as they were although flows ended."""
    stride, num_resources = len(s.capacity) // NUM_SAVED + 1, len(s.capacity)
    if num_gone > FEW:
        return 0
    stop = num_turns
    for n in gone[:num_gone]:
        for h in range(s.table.shape[1]):
            if s.table[n, h] < num_resources:
                stop = min(stop, s.place[s.table[n, h]])
    stop -= stop % stride
    if stop == 0:
        return 0
    for n in gone[:num_gone]:
        for h in range(s.table.shape[1]):
            c = int(np.int64(s.table[n, h]))
            if c < num_resources and not _replay(s, c, stop):
                return 0
    return stop


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


def _rewind(s: Fill, start: int, num_turns: int) -> int:
    """Go back to the state before turn `start` and heap the levels; returns the size of the heap."""
    for turn in range(start, num_turns):
        s.place[s.full[turn]] = RISING
        for e in range(s.begin[turn], s.begin[turn + 1]):
            s.turn[s.frozen[e]] = RISING
    size, row = 0, start // (len(s.capacity) // NUM_SAVED + 1)
    for c in range(len(s.capacity)):
        if start == 0:
            _settle(s, c)
        else:
            for item in range(4):
                s.now[c, item] = s.saved[row, c, item]
        if s.now[c, COUNT] > 0:
            s.known[c] = s.now[c, LEVEL]
            s.heap[size] = c
            size += 1
    for n in range(size // 2 - 1, -1, -1):
        _sink(s.known, s.heap, size, n)
    return size


def _stop(s: Fill, full: int, turn: int) -> int:
    """Stop the rising flows of a full resource; returns how many resources they pass."""
    num_touched, num_resources, size = 0, len(s.capacity), s.begin[turn]
    for e in range(s.first[full], s.last[full]):
        n = s.member[e]
        if s.turn[n] != RISING:
            continue
        s.turn[n], s.frozen[size] = turn, n
        for h in range(s.table.shape[1]):
            c = s.table[n, h]
            if c == num_resources:
                continue
            if c == full:
                s.column[size] = h
            if s.taken[c] == 0:
                s.touched[num_touched] = c
                num_touched += 1
            s.taken[c] += s.share[n, h]
            s.now[c, COUNT] -= 1
        size += 1
    s.begin[turn + 1] = size
    return num_touched


def _save(s: Fill, row: int) -> None:
    """Keep the state before a turn."""
    for c in range(len(s.capacity)):
        for item in range(4):
            s.saved[row, c, item] = s.now[c, item]


def solve(s: Fill, start: int, num_turns: int) -> int:
    """Fill from turn `start` on; returns how many turns there are now."""
    size, turn, stride = _rewind(s, start, num_turns), start, len(s.capacity) // NUM_SAVED + 1
    top = int(np.int64(0))  # a literal would make the compiler make functions twice
    while size > 0:
        full = s.heap[top]
        if s.now[full, COUNT] == 0:
            size -= 1
            s.heap[top] = s.heap[size]
            _sink(s.known, s.heap, size, top)
            continue
        height = s.now[full, LEVEL]
        if height > s.known[full]:
            s.known[full] = height
            _sink(s.known, s.heap, size, top)
            continue
        if turn % stride == 0:
            _save(s, turn // stride)
        s.full[turn], s.height[turn], s.place[full] = full, height, turn
        for place in range(_stop(s, full, turn)):
            c = s.touched[place]
            _take(s, c, height, s.taken[c])
            s.taken[c] = 0.0
        turn += 1
    return turn


KERNELS = (index, _settle, _take, _replay, unchanged, _before, _sink, _rewind, _stop, _save, solve)
