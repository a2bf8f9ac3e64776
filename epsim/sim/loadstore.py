"""Load/store over UBMEM as a path of its own: a core's requests pass the URMA engine by.

A core sends requests one interval apart and waits for room when too many loads are unanswered (`ubmem`). The
bytes queue for the same ports as those of the engine; on a free network they come exactly one round trip
after their request, so a run of one core equals `UbmemCosts.read_ps` while its port is faster than the core.
Requests that leave in one go are one piece: a wave at most.
"""

from collections import deque
from collections.abc import Callable

import simpy

from epsim.schedule.ubmem import UbmemCosts
from epsim.sim.card import Card, Flow
from epsim.sim.clock import Clock
from epsim.sim.fabric import Fabric, Piece, Port


class Requests:
    """Requests of one core that leave one after the other.

    Args:
      core: that sent them.
      flow: how their bytes go.
      num_bytes: of all.
      num_requests: how many.
      on_arrival: called with the time when the last byte is there; None = more of the transfer follow.
    """

    __slots__ = ("core", "flow", "num_bytes", "num_requests", "on_arrival")

    def __init__(
        self,
        core: "Core",
        flow: Flow,
        num_bytes: int,
        num_requests: int,
        on_arrival: Callable[[int], None] | None,
    ) -> None:
        """Start unsent."""
        self.core, self.flow, self.num_bytes, self.num_requests = core, flow, num_bytes, num_requests
        self.on_arrival = on_arrival

    def __str__(self) -> str:
        """Name the requests by their ends."""
        return f"{self.num_bytes} bytes over UBMEM from rank {self.flow.src} to rank {self.flow.dst}"


class Core:
    """Loads or stores of one core.

    Args:
      clock: the time.
      fabric: what carries the bytes.
      cards: of all ranks; the owner's memory is read while the round trip runs.
      costs: of requests.
      is_load: loads wait for their answers, stores are posted.
    """

    def __init__(
        self, clock: Clock, fabric: Fabric, cards: list[Card], costs: UbmemCosts, *, is_load: bool
    ) -> None:
        """Start idle."""
        self.clock, self.fabric, self.cards, self.costs, self.is_load = clock, fabric, cards, costs, is_load
        self.queue: deque[Requests] = deque()
        self.free_ps = 0
        self.unanswered = 0
        self.num_sent = 0

    def request(self, flow: Flow, num_bytes: int, on_arrival: Callable[[int], None]) -> None:
        """Ask for bytes, after all that was asked for before."""
        costs = self.costs
        wave = costs.outstanding_limit
        total = costs.num_requests(num_bytes)
        for first in range(0, total, wave):
            count = min(wave, total - first)
            size = min(count * costs.request_bytes, num_bytes - first * costs.request_bytes)
            is_last = first + count == total
            self.queue.append(Requests(self, flow, size, count, on_arrival if is_last else None))
        self._pump()

    def _pump(self) -> None:
        """Send what there is room for."""
        limit, now = self.costs.outstanding_limit, self.clock.now_ps
        while self.queue:
            head = self.queue[0]
            if self.is_load and self.unanswered + head.num_requests > limit:
                return
            self.queue.popleft()
            start = max(now, self.free_ps)
            self.free_ps = start + head.num_requests * self.costs.issue_ps
            self.unanswered += head.num_requests
            self._send(head, start)

    def _send(self, requests: Requests, start_ps: int) -> None:
        """Put the bytes into the fabric so that a free one delivers the first after the round trip."""
        flow = requests.flow
        path = flow.lanes[self.num_sent % len(flow.lanes)].path
        self.num_sent += 1
        trip = self.costs.load_ps if self.is_load else self.costs.store_ps
        enter = start_ps + max(0, trip - free_ps(path, requests.num_bytes))
        self.clock.after(enter - self.clock.now_ps, self._enter, Piece(requests, path, requests.num_bytes))

    def _enter(self, event: simpy.Event) -> None:
        piece: Piece = event._value
        if self.is_load:
            self.cards[piece.chunk.flow.src].memory_job(piece.num_bytes, "UBMEM read")
        self.fabric.enter(piece)

    def delivered(self, requests: Requests) -> None:
        """Take note that the answer to the first request is there; the others follow an interval apart.

        Room for all of them may be given back at once: the core sends no faster than they come.
        """
        self.unanswered -= requests.num_requests
        if requests.on_arrival is not None:
            rest = (requests.num_requests - 1) * self.costs.issue_ps
            self.clock.after(rest, self._arrived, requests)
        self._pump()

    def _arrived(self, event: simpy.Event) -> None:
        requests: Requests = event._value
        assert requests.on_arrival is not None
        requests.on_arrival(self.clock.now_ps)


def free_ps(path: tuple[Port, ...], num_bytes: int) -> int:
    """Return how long bytes need over idle ports without a retry, as `fabric.Fabric` moves them."""
    head = tail = 0
    for port in path:
        end = max(head + int(num_bytes * port.ps_per_byte + 0.5), tail)
        head, tail = head + port.latency_ps, end + port.latency_ps
    return tail
