"""Ports beside the engine: the scale-out port of a card has its own pace.

The engine's time per byte is that of the scale-up ports. A chunk for the slower scale-out port only passes
through it: it is read from memory, then queues for that port. Left alone, such chunks would take the whole
window of unacknowledged bytes and hold back the fast ports, so a gate leaves half of it to them.
"""

from collections import deque

from epsim.sim.card import Card, Chunk, Jetty, Lane


class Gate:
    """Chunks of one card for one port.

    Args:
      card: whose engine takes them.
    """

    def __init__(self, card: Card) -> None:
        """Start empty."""
        self.card = card
        self.room_bytes = card.window_bytes // 2
        self.queue: deque[tuple[Jetty, Chunk]] = deque()
        self.num_taken = 0

    def take_lanes(self, lanes: tuple[Lane, ...], count: int) -> list[Lane]:
        """Return the lanes of the next chunks, in turn over all that leave through the port."""
        first = self.num_taken
        self.num_taken += count
        return [lanes[number % len(lanes)] for number in range(first, first + count)]

    def push(self, jetty: Jetty, chunks: list[Chunk]) -> None:
        """Let chunks wait for their turn."""
        self.queue.extend((jetty, chunk) for chunk in chunks)
        self._pump()

    def landed(self, num_bytes: int) -> None:
        """Take note that a chunk has arrived."""
        self.room_bytes += num_bytes
        self._pump()

    def _pump(self) -> None:
        while self.queue and self.queue[0][1].num_bytes <= self.room_bytes:
            jetty, chunk = self.queue.popleft()
            self.room_bytes -= chunk.num_bytes
            self.card.ring(jetty, [chunk])
