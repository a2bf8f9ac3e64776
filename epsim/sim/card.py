"""A card: its memory, its URMA engine and the jetties that feed the engine.

The engine takes chunks (one or more descriptors of one jetty to one destination) round robin over the
jetties that have work, with a bounded number of bytes on their way. A chunk is first read from memory and
then sent; memory and wire do not overlap, because the published figures add up that way (network.md section
10.3: left free, the exponent of overlap is 0.96, 1 meaning none). Local copies and sums of the AIVs wait in
the same line. With `overlaps` the two run side by side instead.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from epsim.sim.clock import Clock
from epsim.sim.contexts import Contexts, Replacement
from epsim.sim.fabric import Fabric, Piece, Port
from epsim.sim.upsets import Jitter
from epsim.trace.trace import TraceBuilder


class Lane(NamedTuple):
    """One of the paths that a flow uses.

    Args:
      path: ports in order, the sender's own first.
      parts: numerator of its share of the flow's bytes.
      of: denominator.
    """

    path: tuple[Port, ...]
    parts: int
    of: int


class Flow(NamedTuple):
    """How bytes get from one card to another.

    Args:
      src: rank.
      dst: rank.
      lanes: paths.
      send_ps_per_byte: of the engine while it sends to this destination.
      sprays: every chunk is cut over all lanes, and the engine's own time is that of the first ports; else
        each chunk takes the next lane and queues for its first port.
    """

    src: int
    dst: int
    lanes: tuple[Lane, ...]
    send_ps_per_byte: float
    sprays: bool


class Chunk:
    """What the engine takes at once."""

    __slots__ = ("flow", "jetty", "num_bytes", "num_descriptors", "on_arrival", "pending")

    def __init__(self, flow: Flow, num_bytes: int, num_descriptors: int, on_arrival: Any = None) -> None:  # noqa: ANN401
        """Start untaken; `on_arrival` is called with the time when all of it is delivered."""
        self.flow, self.num_bytes, self.num_descriptors = flow, num_bytes, num_descriptors
        self.on_arrival = on_arrival
        self.pending = 0
        self.jetty: Jetty | None = None

    def __str__(self) -> str:
        """Name the chunk by its ends."""
        return f"{self.num_bytes} bytes from rank {self.flow.src} to rank {self.flow.dst}"


class Jetty:
    """A send queue that one AIV (or several that act as one) fills, and its completions."""

    __slots__ = ("drained", "is_listed", "name", "outstanding", "queue")

    def __init__(self, name: str) -> None:
        """Start empty."""
        self.name = name
        self.queue: deque[Chunk] = deque()
        self.outstanding = 0
        self.is_listed = False
        self.drained: simpy.Event | None = None


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """What the engine may cost beyond reading and sending; all off by default, for experiments.

    Nothing of the kind is visible in the published figures up to EP32 (network.md section 10.2: the
    operation is limited by bytes, not by descriptors); docs/fan-out.md tries them beyond.

    Args:
      descriptor_ps: per descriptor fetched.
      context_slots: (jetty, destination) pairs that the engine remembers; 0 = all.
      context_miss_ps: per pair that it has to look up again.
      context_replacement: see `contexts.Contexts`.
      hides_lookups: a look-up runs while the descriptor before is being sent, and only the rest of it costs.
    """

    descriptor_ps: int = 0
    context_slots: int = 0
    context_miss_ps: int = 0
    context_replacement: Replacement = "oldest"
    hides_lookups: bool = False


class Card:
    """Memory and engine of one rank.

    Args:
      clock: the time.
      fabric: where chunks go.
      rank: whose.
      memory_bytes_per_s: see `machine.Machine`.
      window_bytes: most bytes sent and not acknowledged.
      overlaps: memory and wire at the same time.
      packet_bytes: what a switch must have of a chunk before it passes it on.
      ack_ps: from delivery to the completion at the sender.
      costs: what else the engine costs.
      jitter: of the service of a chunk; None = none.
      trace: gets a span per chunk and per memory job; None = no trace.

    Attributes:
      held_ps: how long a chunk was ready and had no room behind its ports or in the window.
    """

    def __init__(
        self,
        clock: Clock,
        fabric: Fabric,
        rank: int,
        *,
        memory_bytes_per_s: float,
        window_bytes: int,
        overlaps: bool,
        packet_bytes: int,
        ack_ps: int,
        costs: EngineCosts,
        trace: TraceBuilder | None,
        jitter: Jitter | None = None,
    ) -> None:
        """Start idle."""
        self.clock, self.fabric, self.rank = clock, fabric, rank
        self.memory_ps_per_byte = 1e12 / memory_bytes_per_s
        self.window = window_bytes
        self.window_bytes = window_bytes
        self.overlaps = overlaps
        self.packet_bytes = packet_bytes
        self.ack_ps = ack_ps
        self.memory_free_ps = 0
        self.memory_busy_ps = 0
        self.engine_busy_ps = 0
        self.active: deque[Jetty] = deque()
        self.is_busy = False
        self.held_ps = 0
        self.held_since_ps = -1
        self.num_chunks = 0
        self.costs = costs
        self.contexts: Contexts | None = None
        if costs.context_slots:
            self.contexts = Contexts(costs.context_slots, costs.context_replacement, rank)
        self.descriptor_send_ps = 0
        self.jitter = jitter
        self.trace = trace
        self.tracks = None if trace is None else _tracks(trace, rank)
        clock.report_with(self._blocked)

    def memory_job(self, num_bytes: int, name: str) -> int:
        """Queue bytes for the memory and return when they are done."""
        start = max(self.clock.now_ps, self.memory_free_ps)
        end = start + int(num_bytes * self.memory_ps_per_byte + 0.5)
        self.memory_free_ps = end
        self.memory_busy_ps += end - start
        if self.trace is not None and self.tracks is not None and end > start:
            self.trace.span(self.tracks[1], name, start, end, size_bytes=num_bytes)
        return end

    def ring(self, jetty: Jetty, chunks: list[Chunk]) -> None:
        """Ring the doorbell: the engine may take these chunks from now on."""
        if not chunks:
            return
        for chunk in chunks:
            chunk.jetty = jetty
        jetty.queue.extend(chunks)
        jetty.outstanding += len(chunks)
        if not jetty.is_listed:
            jetty.is_listed = True
            self.active.append(jetty)
        self.kick()

    def drain(self, jetty: Jetty) -> simpy.Event:
        """Return an event for the moment when all that was rung has completed."""
        event = self.clock.event()
        if jetty.outstanding == 0:
            event.succeed()
        else:
            jetty.drained = event
        return event

    def kick(self) -> None:
        """Let the engine take its next chunk, if it is free and may."""
        if self.is_busy or not self.active:
            return
        jetty = self.active[0]
        chunk = jetty.queue[0]
        lanes = self._lanes(chunk)
        # A window that is all free takes any chunk, or a large one could never go.
        may_go = self.window >= chunk.num_bytes or self.window == self.window_bytes
        if may_go and chunk.flow.sprays:
            may_go = all(self.fabric.can_take(lane.path[0], size) for lane, size in lanes)
        self._note_hold(may_go)
        if not may_go:
            return
        self.active.popleft()
        jetty.queue.popleft()
        if jetty.queue:
            self.active.append(jetty)
        else:
            jetty.is_listed = False
        self._serve(chunk, lanes)

    def _note_hold(self, may_go: bool) -> None:
        """Add up the time in which the engine had a chunk and no room for it."""
        now = self.clock.now_ps
        if not may_go and self.held_since_ps < 0:
            self.held_since_ps = now
        elif may_go and self.held_since_ps >= 0:
            self.held_ps += now - self.held_since_ps
            self.held_since_ps = -1

    def _lanes(self, chunk: Chunk) -> list[tuple[Lane, int]]:
        """Cut a chunk over the lanes of its flow; the last one takes what does not divide."""
        lanes = chunk.flow.lanes
        if not chunk.flow.sprays:
            return [(lanes[self.num_chunks % len(lanes)], chunk.num_bytes)]
        if len(lanes) == 1:
            return [(lanes[0], chunk.num_bytes)]
        sizes = [chunk.num_bytes * lane.parts // lane.of for lane in lanes]
        sizes[-1] += chunk.num_bytes - sum(sizes)
        return list(zip(lanes, sizes, strict=True))

    def _serve(self, chunk: Chunk, lanes: list[tuple[Lane, int]]) -> None:
        """Read the chunk and send it; everything that follows is known by then."""
        now, size = self.clock.now_ps, chunk.num_bytes
        read = int(size * self.memory_ps_per_byte + 0.5)
        send = int(size * chunk.flow.send_ps_per_byte + 0.5)
        extra = self._extra_ps(chunk)
        self.descriptor_send_ps = send // max(1, chunk.num_descriptors)
        send += extra
        if chunk.flow.sprays:
            send += _retries_ps(lanes)
        if self.jitter is not None:
            read = max(0, read + self.jitter.draw(read + send))
        have = max(now, self.memory_free_ps) + read
        if self.overlaps:
            begin, end = max(now, have - send), max(now + send, have)
            self.memory_free_ps = have
        else:
            begin, end = have, have + send
            self.memory_free_ps = end
        self.memory_busy_ps += read
        self.engine_busy_ps += send
        self.is_busy = True
        self.window -= size
        self.num_chunks += 1
        chunk.pending = len(lanes)
        if self.trace is not None and self.tracks is not None:
            start = min(begin, have - read)
            self.trace.span(self.tracks[0], "send", start, end, size_bytes=size, peer=chunk.flow.dst)
        for lane, part in lanes:
            self._launch(Piece(chunk, lane.path, part), begin, end)
        self.clock.after(end - now, self._served)

    def _launch(self, piece: Piece, begin: int, end: int) -> None:
        """Give a piece to the fabric; a sprayed one has its first port behind it when the engine is done."""
        port = piece.path[0]
        if not piece.chunk.flow.sprays:
            self.clock.after(end - self.clock.now_ps, self._enter, piece)
            return
        tail = end + port.latency_ps
        first = int(min(piece.num_bytes, self.packet_bytes) * port.ps_per_byte)
        head = tail if len(piece.path) == 1 else min(tail, begin + port.latency_ps + first)
        port.busy_ps += int(piece.num_bytes * port.ps_per_byte + 0.5)
        self.fabric.enter_behind(piece, head, tail)

    def _enter(self, event: simpy.Event) -> None:
        self.fabric.enter(event._value)

    def _extra_ps(self, chunk: Chunk) -> int:
        """Return what descriptors and forgotten contexts cost."""
        costs = self.costs
        extra = costs.descriptor_ps * chunk.num_descriptors
        if self.contexts is not None:
            assert chunk.jetty is not None
            if not self.contexts.find((chunk.jetty.name, chunk.flow.dst)):
                hidden = self.descriptor_send_ps if costs.hides_lookups else 0
                extra += max(0, costs.context_miss_ps - hidden)
        return extra

    def _served(self, _event: simpy.Event) -> None:
        self.is_busy = False
        self.kick()

    def acknowledge(self, chunk: Chunk) -> None:
        """Take note that a chunk of this card is delivered; its completion comes one way later."""
        if chunk.on_arrival is not None:
            chunk.on_arrival(self.clock.now_ps)
        self.clock.after(self.ack_ps, self._completed, chunk)

    def _completed(self, event: simpy.Event) -> None:
        chunk: Chunk = event._value
        jetty = chunk.jetty
        assert jetty is not None
        self.window += chunk.num_bytes
        jetty.outstanding -= 1
        if jetty.outstanding == 0 and jetty.drained is not None:
            jetty.drained.succeed()
            jetty.drained = None
        self.kick()

    def _blocked(self) -> list[str]:
        """Say what the engine's next chunk waits for."""
        if self.is_busy or not self.active:
            return []
        chunk = self.active[0].queue[0]
        if self.window < chunk.num_bytes:
            need = f"acknowledgements, {self.window} of {self.window_bytes} bytes of its window are free"
        else:
            port = chunk.flow.lanes[0].path[0]
            need = f"room behind {port.name} (free {port.credit} of {port.room_bytes} bytes)"
        return [f"{chunk} in {self.active[0].name} waits for {need}"]


def _retries_ps(lanes: list[tuple[Lane, int]]) -> int:
    """Return what retries on the first ports cost: the slowest lane of a sprayed chunk sets its end."""
    extra = 0
    for lane, size in lanes:
        upset = lane.path[0].upset
        if upset is not None:
            extra = max(extra, upset(size))
    return extra


def jetty_name(rank: int, aiv: int) -> str:
    """Name the jetty of an AIV, or of the first AIV of a worker."""
    return f"jetty {aiv} of rank {rank}"


def _tracks(trace: TraceBuilder, rank: int) -> tuple[int, int]:
    group = f"rank {rank}"
    return trace.track(group, "URMA engine"), trace.track(group, "memory")
