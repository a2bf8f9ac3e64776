"""What the processes of one run share: clock, cards, flows and the trace."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from epsim.platform.machine import Machine
from epsim.sim.card import Card, Chunk, EngineCosts, Flow, Jetty
from epsim.sim.clock import Clock
from epsim.sim.fabric import Fabric, Piece
from epsim.sim.lanes import Lanes
from epsim.sim.upsets import Jitter, upset_ports
from epsim.trace.trace import TraceBuilder
from topology import Policy, Router

DEFAULT_CREDIT_BYTES = 128 * 1024
DEFAULT_WINDOW_PACKETS = 2048
CHUNKS_OF_ROOM = 16
"""A buffer or window holds at least so many chunks: a coarse run must not wait where packets would flow."""


class Doorbell(NamedTuple):
    """What one doorbell gives to the engine.

    Args:
      time_ps: when.
      jetty: name, see `card.jetty_name`.
      transfers: (destination rank, bytes) per chunk, in the order of posting.
    """

    time_ps: int
    jetty: str
    transfers: tuple[tuple[int, int], ...]


class Stage:
    """Cards of all ranks, joined by the fabric.

    Args:
      machine: rates.
      pairs: [F, 2] int64, the (src, dst) ranks that exchange bytes; src != dst.
      policy: path choice.
      seed: of the flow hash.
      credit_bytes: room behind one link.
      window_bytes: most unacknowledged bytes of a card.
      overlaps: memory and wire at the same time.
      packet_bytes: payload of a packet.
      is_packets: chunks are packets, each on one path.
      chunk_bytes: the largest chunk; buffers and windows are widened to hold some.
      ack_ps: from delivery to completion.
      costs: what else the engine costs.
      is_fifo: see `Fabric`.
      chunks_of_room: see `CHUNKS_OF_ROOM`.
      jitter: see `upsets.Jitter`.
      stuck_receivers: ranks whose cards take nothing out of the buffers behind their ports.
      trace: where spans go; None = nowhere.

    Attributes:
      doorbells: of the run so far, in order; None (until somebody sets a list) = not kept.
    """

    def __init__(
        self,
        machine: Machine,
        pairs: npt.NDArray[np.int64],
        *,
        policy: Policy,
        seed: int,
        credit_bytes: int,
        window_bytes: int,
        overlaps: bool,
        packet_bytes: int,
        is_packets: bool,
        chunk_bytes: int,
        ack_ps: int,
        costs: EngineCosts,
        trace: TraceBuilder | None,
        is_fifo: bool = False,
        chunks_of_room: int = CHUNKS_OF_ROOM,
        jitter: float = 0.0,
        stuck_receivers: Sequence[int] = (),
    ) -> None:
        """Find the routes and build ports and cards."""
        self.clock = Clock()
        self.machine, self.trace, self.packet_bytes = machine, trace, packet_bytes
        self.fabric = Fabric(self.clock, self._delivered, is_fifo=is_fifo)
        if trace is not None:
            self.fabric.sent = []
        npus = machine.npus
        router = Router(machine.topology, npus)
        routes = router.find(npus[pairs[:, 0]], npus[pairs[:, 1]], policy, seed=seed)
        self.lanes = Lanes(
            machine.topology, routes, machine.link_bytes_per_s, credit_bytes, is_alone=is_packets
        )
        upset_ports(self.lanes, machine, npus[list(stuck_receivers)], credit_bytes, seed)
        room = chunks_of_room * (packet_bytes if is_packets else chunk_bytes)
        window_bytes = max(window_bytes, room)
        for port in self.lanes.ports:
            self.fabric.add(port)
            if port.credit is not None and port.credit < room:
                port.credit = port.room_bytes = room
        self.cards = [
            Card(
                self.clock, self.fabric, rank,
                memory_bytes_per_s=machine.memory_bytes_per_s * float(machine.card_speed[rank]),
                window_bytes=window_bytes, overlaps=overlaps, packet_bytes=packet_bytes,
                ack_ps=ack_ps, costs=costs, trace=trace,
                jitter=Jitter(jitter, seed, rank) if jitter else None,
            )
            for rank in range(machine.num_ranks)
        ]  # fmt: skip
        self._flows = self._make_flows(pairs, policy, is_packets)
        self._wake_engines()
        self.first_ring_ps = [-1] * machine.num_ranks
        self.last_ring_ps = [0] * machine.num_ranks
        self.received = [0] * machine.num_ranks
        self.last_ps = [0] * machine.num_ranks
        self.doorbells: list[Doorbell] | None = None

    def _make_flows(
        self, pairs: npt.NDArray[np.int64], policy: Policy, is_packets: bool
    ) -> dict[tuple[int, int], Flow]:
        egress = self.machine.egress_bytes_per_s() * self.machine.card_speed
        sprays = policy == "spray" and not is_packets
        flows = {}
        for (src, dst), lanes in zip(pairs.tolist(), self.lanes.of_flow, strict=True):
            send = 1e12 / float(egress[src])
            if sprays:
                # Equal parts over the first ports: the slowest part ends last.
                send = max(lane.parts / lane.of * lane.path[0].ps_per_byte for lane in lanes)
                send /= float(self.machine.card_speed[src])
            flows[src, dst] = Flow(src, dst, lanes, send, sprays)
        return flows

    def _wake_engines(self) -> None:
        """Let an engine go on when room behind one of its ports comes free."""
        for (src, _), flow in self._flows.items():
            for lane in flow.lanes:
                self.fabric.freed[id(lane.path[0])] = self.cards[src].kick

    def flow(self, src: int, dst: int) -> Flow:
        """Return how bytes get from one rank to another."""
        return self._flows[src, dst]

    def packets(self, num_bytes: int) -> list[int]:
        """Cut bytes into packets."""
        full, rest = divmod(num_bytes, self.packet_bytes)
        return [self.packet_bytes] * full + ([rest] if rest else [])

    def _delivered(self, piece: Piece) -> None:
        chunk: Chunk = piece.chunk
        chunk.pending -= 1
        dst = chunk.flow.dst
        self.received[dst] += piece.num_bytes
        if chunk.pending == 0:
            self.last_ps[dst] = self.clock.now_ps
            self.cards[chunk.flow.src].acknowledge(chunk)

    def ring(self, rank: int, jetty: Jetty, chunks: list[Chunk]) -> None:
        """Ring a doorbell of a rank; the last one ends the part that needs a core."""
        now = self.clock.now_ps
        self.last_ring_ps[rank] = now
        if self.first_ring_ps[rank] < 0:
            self.first_ring_ps[rank] = now
        if self.doorbells is not None and chunks:
            sent = tuple((chunk.flow.dst, chunk.num_bytes) for chunk in chunks)
            self.doorbells.append(Doorbell(now, jetty.name, sent))
        self.cards[rank].ring(jetty, chunks)

    def track(self, rank: int, name: str) -> int:
        """Return the track of a rank's resource, -1 without a trace."""
        return -1 if self.trace is None else self.trace.track(f"rank {rank}", name)

    def span(self, track: int, name: str, start_ps: int, end_ps: int) -> None:
        """Put a span on a track."""
        if self.trace is not None and end_ps > start_ps:
            self.trace.span(track, name, start_ps, end_ps)
