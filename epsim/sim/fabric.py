"""Ports and switches: first in first out, lossless, held back by credits.

A port is one transmitter: a link, or a bundle of links that every flow through it uses in equal parts. What
it sends needs room in the buffer at the far end of the link (its credit); the room comes back one link
latency after the last byte has left that buffer. Virtual cut-through: a piece may leave a switch before its
tail has come in, and never ends there before its tail arrives. Its wait for the tail holds nobody else: a
piece is many packets, and those of others pass between. A port gives a piece its whole service when the head
goes, so another piece may be early by the services of those whose tails were still on their way.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import simpy

from epsim.sim.clock import Clock


class Port:
    """One transmitter with its queue.

    Args:
      name: for people.
      bytes_per_s: payload rate.
      latency_ps: of the link behind it, the crossing of the next switch included.
      credit_bytes: room at the far end; None = never full.

    Attributes:
      busy_ps: what its bytes took at its rate, retries included; waits for room or for a tail are none of it.
      upset: bytes sent -> ps that retries take besides; None = no retries.
      drains: the card behind it takes what comes in; else its buffer stays full (a fault).
    """

    __slots__ = ("busy_ps", "credit", "drains", "free_ps", "latency_ps", "name", "num_bytes", "ps_per_byte",
                 "queue", "room_bytes", "upset", "waking")  # fmt: skip

    def __init__(self, name: str, bytes_per_s: float, latency_ps: int, credit_bytes: int | None) -> None:
        """Start idle and empty."""
        self.name = name
        self.ps_per_byte = 1e12 / bytes_per_s
        self.latency_ps = latency_ps
        self.room_bytes = credit_bytes
        self.credit = credit_bytes
        self.queue: deque[Piece] = deque()
        self.free_ps = 0
        self.busy_ps = 0
        self.num_bytes = 0
        self.waking = False
        self.upset: Callable[[int], int] | None = None
        self.drains = True

    def service_ps(self, num_bytes: int) -> int:
        """Return how long `num_bytes` occupy the port, retries of a lossy link included."""
        service = int(num_bytes * self.ps_per_byte + 0.5)
        return service if self.upset is None else service + self.upset(num_bytes)


class Piece:
    """Bytes of a chunk on one path."""

    __slots__ = ("chunk", "hop", "num_bytes", "path", "tail_ps")

    def __init__(self, chunk: Any, path: tuple[Port, ...], num_bytes: int) -> None:  # noqa: ANN401
        """Start before the first hop."""
        self.chunk, self.path, self.num_bytes = chunk, path, num_bytes
        self.hop = 0
        self.tail_ps = 0


class Fabric:
    """Moves pieces over their paths.

    Args:
      clock: the time.
      delivered: called with each piece when its last byte is at the end of its path.
      is_fifo: a switch has one queue per input, and its head holds back all behind it; else one queue per
        output, and an input is held back only when its buffer is full.
    """

    def __init__(self, clock: Clock, delivered: Callable[[Piece], None], *, is_fifo: bool = False) -> None:
        """Start with no ports."""
        self.is_fifo = is_fifo
        self.inputs: dict[int, deque[Piece]] = defaultdict(deque)
        self.clock = clock
        self.delivered = delivered
        self.ports: list[Port] = []
        self.freed: dict[int, Callable[[], None]] = {}
        self.held: list[Piece] = []
        self.sent: list[tuple[Port, int, int, int]] | None = None
        clock.report_with(self._blocked)

    def add(self, port: Port) -> Port:
        """Make a port part of the fabric, so that a stuck run can name it."""
        self.ports.append(port)
        return port

    def can_take(self, port: Port, num_bytes: int) -> bool:
        """Tell whether the far end of a port has room.

        What is larger than the whole buffer may go when the buffer is empty, or it never could.
        """
        credit = port.credit
        return credit is None or credit >= num_bytes or credit == port.room_bytes

    def enter(self, piece: Piece) -> None:
        """Put a piece into the queue of its first port."""
        piece.tail_ps = self.clock.now_ps
        port = piece.path[0]
        port.queue.append(piece)
        self._pump(port)

    def enter_behind(self, piece: Piece, head_ps: int, tail_ps: int) -> None:
        """Take a piece whose first hop the sender has served itself.

        Args:
          piece: its credit on the first port is taken here.
          head_ps: when its first byte reaches the next hop.
          tail_ps: when its last byte does.
        """
        port = piece.path[0]
        if port.credit is not None:
            port.credit -= piece.num_bytes
        port.num_bytes += piece.num_bytes
        piece.tail_ps = tail_ps
        if self.sent is not None:
            begin = tail_ps - port.latency_ps - int(piece.num_bytes * port.ps_per_byte)
            self.sent.append((port, max(0, begin), tail_ps - port.latency_ps, piece.num_bytes))
        self.clock.after(max(0, head_ps - self.clock.now_ps), self._arrived, piece)

    def _pump(self, port: Port) -> None:
        """Send what the port may send now."""
        clock = self.clock
        queue = port.queue
        now = clock.now_ps
        while queue:
            if port.free_ps > now:
                if not port.waking:
                    port.waking = True
                    clock.after(port.free_ps - now, self._woken, port)
                return
            piece = queue[0]
            if not self.can_take(port, piece.num_bytes):
                return
            queue.popleft()
            self._transmit(port, piece, now)

    def _transmit(self, port: Port, piece: Piece, now: int) -> None:
        size = piece.num_bytes
        if port.credit is not None:
            port.credit -= size
        served = now + port.service_ps(size)
        end = max(served, piece.tail_ps)
        # While the tail is on its way, packets of others pass between: the port is charged its own time.
        port.busy_ps += served - now
        port.num_bytes += size
        port.free_ps = served
        if self.sent is not None:
            self.sent.append((port, now, served, size))
        if piece.hop:
            before = piece.path[piece.hop - 1]
            if self.is_fifo:
                self.clock.after(end - now, self._next_of_input, before)
            if before.credit is not None:
                self.clock.after(end - now + before.latency_ps, self._returned, (before, size))
        piece.tail_ps = end + port.latency_ps
        is_last = piece.hop + 1 == len(piece.path)
        # A switch may pass the head on at once; a card has a piece only when it has all of it.
        delay = end - now + port.latency_ps if is_last else port.latency_ps
        self.clock.after(delay, self._arrived, piece)

    def _next_of_input(self, event: simpy.Event) -> None:
        """Let the next piece of an input queue try its output, now that the head has gone."""
        waiting = self.inputs[id(event._value)]
        waiting.popleft()
        if waiting:
            port = waiting[0].path[waiting[0].hop]
            port.queue.append(waiting[0])
            self._pump(port)

    def _woken(self, event: simpy.Event) -> None:
        port: Port = event._value
        port.waking = False
        self._pump(port)

    def _returned(self, event: simpy.Event) -> None:
        port, size = event._value
        self.give_back(port, size)

    def give_back(self, port: Port, size: int) -> None:
        """Return room at the far end of a port."""
        assert port.credit is not None
        port.credit += size
        self._pump(port)
        freed = self.freed.get(id(port))
        if freed is not None:
            freed()

    def _arrived(self, event: simpy.Event) -> None:
        piece: Piece = event._value
        piece.hop += 1
        if piece.hop < len(piece.path):
            if self.is_fifo:
                waiting = self.inputs[id(piece.path[piece.hop - 1])]
                waiting.append(piece)
                if len(waiting) > 1:
                    return
            port = piece.path[piece.hop]
            port.queue.append(piece)
            self._pump(port)
            return
        last = piece.path[-1]
        if not last.drains:
            self.held.append(piece)
            return
        if last.credit is not None:
            self.clock.after(last.latency_ps, self._returned, (last, piece.num_bytes))
        self.delivered(piece)

    def _blocked(self) -> list[str]:
        held: dict[str, list[Piece]] = defaultdict(list)
        for piece in self.held:
            held[piece.path[-1].name].append(piece)
        return [
            f"nobody drains what came in over {name}: {sum(piece.num_bytes for piece in pieces)} bytes, "
            f"the first of {pieces[0].chunk}"
            for name, pieces in held.items()
        ] + [
            f"{port.queue[0].chunk} in {port.name} waits for room of {port.queue[0].num_bytes} bytes "
            f"(free {port.credit} of {port.room_bytes}), {len(port.queue)} in the queue"
            for port in self.ports
            if port.queue
        ]
