"""Runs a set of transfers on the machine: any workload, the same cards, ports and switches.

A transfer that waits for nothing more is posted: a doorbell later its chunks are in its queue, a jetty of the
card's URMA engine or a core's load/store path. When its last byte is there, the receiver's memory works off
what comes with it, its delay passes, and those that wait for it may go on.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import simpy

from epsim.errors import InputError
from epsim.platform.machine import Machine
from epsim.schedule.costs import StepCosts
from epsim.schedule.transfers import LOAD, NEVER, Transfers, pieces_of
from epsim.schedule.ubmem import UbmemCosts
from epsim.sim.card import Chunk, EngineCosts, Flow, Jetty
from epsim.sim.fabric import Piece
from epsim.sim.gate import Gate
from epsim.sim.heat import link_load
from epsim.sim.loadstore import Core, Requests
from epsim.sim.stage import CHUNKS_OF_ROOM, DEFAULT_CREDIT_BYTES, DEFAULT_WINDOW_PACKETS, Stage
from epsim.trace.trace import Trace, TraceBuilder
from topology import NETLAYER_SCALEOUT, Policy
from topology.framing import DEFAULT_MTU

Int64 = npt.NDArray[np.int64]
LEAST_CHUNK_BYTES = 16 * 1024
AUTO_CHUNKS = 16_000
"""Chunks that the automatic cut aims at: a second or less of Python."""
MAX_CHUNKS = 4_000_000
"""Chunks that a given cut may leave: some minutes of Python."""
MAX_PS = 2**62
"""What all times together may come to, 53 days: results are 64-bit picoseconds."""


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How to run.

    Args:
      chunk_bytes: what the engine takes at once at most; 0 = chosen so that there are about
        `AUTO_CHUNKS` chunks.
      policy: path choice.
      seed: of the flow hash.
      costs: times of doorbell and completion.
      ubmem: constants of load/store.
      packet_bytes: payload of a packet.
      credit_bytes: room behind one link.
      window_packets: most unacknowledged packets of a card.
      overlaps: memory and wire at the same time.
      with_trace: keep spans.

    Raises:
      InputError: chunk or packet bytes are out of range.
    """

    chunk_bytes: int = 0
    policy: Policy = "spray"
    seed: int = 0
    costs: StepCosts = field(default_factory=StepCosts)
    ubmem: UbmemCosts = field(default_factory=UbmemCosts)
    packet_bytes: int = DEFAULT_MTU
    credit_bytes: int = DEFAULT_CREDIT_BYTES
    window_packets: int = DEFAULT_WINDOW_PACKETS
    overlaps: bool = False
    with_trace: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be cut."""
        if self.chunk_bytes < 0:
            raise InputError("chunk bytes", self.chunk_bytes, "must be at least 0")
        if self.packet_bytes < 1:
            raise InputError("packet bytes", self.packet_bytes, "must be at least 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class TransferRun:
    """What a run gave; N transfers, R ranks, P ports.

    Args:
      time_ps: end of the last transfer.
      ready_ps: [N] int64, when each transfer waited for nothing more.
      arrival_ps: [N] int64, when its last byte was there.
      finish_ps: [N] int64, when it was done.
      chunk_bytes: the cut as used.
      num_chunks: that the engines served.
      num_events: that the clock saw.
      port_names: ports, by name.
      port_bytes: [P] int64.
      port_busy_ps: [P] int64.
      port_bytes_per_s: [P] float64.
      engine_busy_ps: [R] int64.
      memory_busy_ps: [R] int64.
      trace: the timeline; None when it was not asked for.
    """

    time_ps: int
    ready_ps: Int64
    arrival_ps: Int64
    finish_ps: Int64
    chunk_bytes: int
    num_chunks: int
    num_events: int
    port_names: tuple[str, ...]
    port_bytes: Int64
    port_busy_ps: Int64
    port_bytes_per_s: npt.NDArray[np.float64]
    engine_busy_ps: Int64
    memory_busy_ps: Int64
    trace: Trace | None

    @property
    def busiest_port_ps(self) -> float:
        """What the busiest port needs for its bytes alone; no schedule is faster."""
        return float((self.port_bytes / self.port_bytes_per_s).max(initial=0.0)) * 1e12


def run_transfers(
    machine: Machine, transfers: Transfers, options: TransferOptions | None = None
) -> TransferRun:
    """Simulate transfers to the end of the last one.

    Args:
      machine: rates; its ranks must be those of the transfers.
      transfers: what is to be done.
      options: see `TransferOptions`.

    Raises:
      InputError: the machine has another number of ranks, the cut is too fine, or times are too long.
      TopologyError: two ranks that exchange bytes have no path.
      StuckError: the run cannot end; it says who waits for what.
    """
    if machine.num_ranks != transfers.num_ranks:
        raise InputError("ranks", transfers.num_ranks, f"must be those of the machine, {machine.num_ranks}")
    _check_time(machine, transfers)
    return _Run(machine, transfers, TransferOptions() if options is None else options).run()


def _check_time(machine: Machine, transfers: Transfers) -> None:
    """Refuse what would not fit 64 bits even if everything came one after the other."""
    slowest = float(machine.link_bytes_per_s.min(initial=np.inf))
    memory = machine.memory_bytes_per_s * float(machine.card_speed.min())
    moved, worked = float(transfers.size_bytes.sum()), float(transfers.memory_bytes.sum())
    delays = float(transfers.delay_ps.sum(dtype=np.float64))
    total_ps = delays + machine.entry_ps + 1e12 * (moved / slowest + (2 * moved + worked) / memory)
    if total_ps > MAX_PS:
        rule = "must stay below 53 days, or picoseconds leave 64 bits"
        raise InputError("time of all transfers", f"{total_ps / 1e12:.3g} s", rule)


def _chunk_bytes(transfers: Transfers, options: TransferOptions) -> int:
    """Return the given cut, or the finest power of two that leaves about `AUTO_CHUNKS` chunks."""
    size = LEAST_CHUNK_BYTES
    sizes = transfers.size_bytes[transfers.is_remote]
    if options.chunk_bytes:
        count = int((-(-sizes // options.chunk_bytes)).sum())
        if count > MAX_CHUNKS:
            rule = f"cuts these transfers into {count:,} chunks; at most {MAX_CHUNKS:,} are simulated"
            raise InputError("chunk bytes", options.chunk_bytes, rule)
        return options.chunk_bytes
    budget = max(AUTO_CHUNKS, 2 * len(sizes))
    while int((-(-sizes // size)).sum()) > budget:
        size *= 2
    return size


class _Run:
    """State of one run: who still waits for how many."""

    def __init__(self, machine: Machine, transfers: Transfers, options: TransferOptions) -> None:
        self.machine, self.transfers, self.options = machine, transfers, options
        self.chunk_bytes = _chunk_bytes(transfers, options)
        self.builder = TraceBuilder() if options.with_trace else None
        ends = np.stack([transfers.src, transfers.dst], axis=1)[transfers.is_remote]
        largest = min(self.chunk_bytes, int(transfers.size_bytes[transfers.is_remote].max(initial=1)))
        self.stage = Stage(
            machine, np.unique(ends, axis=0),
            policy=options.policy, seed=options.seed, credit_bytes=options.credit_bytes,
            window_bytes=options.window_packets * options.packet_bytes, overlaps=options.overlaps,
            packet_bytes=options.packet_bytes, is_packets=False, chunk_bytes=largest,
            ack_ps=options.costs.ack_ps, costs=EngineCosts(), is_fifo=False,
            chunks_of_room=CHUNKS_OF_ROOM, trace=self.builder,
        )  # fmt: skip
        self.clock = self.stage.clock
        self.deliver_chunk = self.stage.fabric.delivered
        self.stage.fabric.delivered = self._delivered
        self.clock.report_with(self._blocked)
        self.flows: dict[tuple[int, int], Flow] = {}
        self.slow = self._scaleout_ports()
        self.gates: dict[tuple[int, int], Gate] = {}
        self.jetties: dict[tuple[int, int], Jetty] = {}
        self.cores: dict[tuple[int, int, bool], Core] = {}
        count = transfers.num_transfers
        self.missing = np.diff(transfers.after_start).tolist()
        self.chunks_left = [0] * count
        self.ready_ps, self.arrival_ps, self.finish_ps = ([-1] * count for _ in range(3))
        self.num_left = count
        self.goal = self.clock.event()

    def run(self) -> TransferRun:
        """Run to the end."""
        begin = [number for number, count in enumerate(self.missing) if count == 0]
        for number in begin:
            self._ready(number)
        if self.num_left:
            self.clock.run(self.goal, f"the end of {self.transfers.num_transfers} transfers")
        ports, cards = self.stage.lanes.ports, self.stage.cards
        return TransferRun(
            time_ps=max(self.finish_ps, default=0),
            ready_ps=np.array(self.ready_ps, np.int64),
            arrival_ps=np.array(self.arrival_ps, np.int64),
            finish_ps=np.array(self.finish_ps, np.int64),
            chunk_bytes=self.chunk_bytes,
            num_chunks=sum(card.num_chunks for card in cards),
            num_events=self.clock.num_events,
            port_names=tuple(port.name for port in ports),
            port_bytes=np.array([port.num_bytes for port in ports], np.int64),
            port_busy_ps=np.array([port.busy_ps for port in ports], np.int64),
            port_bytes_per_s=np.array([1e12 / port.ps_per_byte for port in ports]),
            engine_busy_ps=np.array([card.engine_busy_ps for card in cards], np.int64),
            memory_busy_ps=np.array([card.memory_busy_ps for card in cards], np.int64),
            trace=self._trace(),
        )

    def _scaleout_ports(self) -> set[int]:
        """Return the ports of the scale-out network where cards have a faster one, by identity."""
        layers = self.machine.topology.link_netlayer
        used = [int(layers[links[0]]) for links in self.stage.lanes.links_of]
        if NETLAYER_SCALEOUT not in used or min(used) == NETLAYER_SCALEOUT:
            return set()
        ports = zip(self.stage.lanes.ports, used, strict=True)
        return {id(port) for port, layer in ports if layer == NETLAYER_SCALEOUT}

    def _flow(self, src: int, dst: int) -> Flow:
        """Return how bytes go; those for a port beside the engine cost it no time but the read."""
        flow = self.flows.get((src, dst))
        if flow is None:
            flow = self.stage.flow(src, dst)
            if id(flow.lanes[0].path[0]) in self.slow:
                flow = flow._replace(sprays=False, send_ps_per_byte=0.0)
            self.flows[src, dst] = flow
        return flow

    def _ready(self, number: int) -> None:
        """Start a transfer that waits for nothing more, once its issuer has entered."""
        transfers, now = self.transfers, self.clock.now_ps
        start = max(now, int(self.machine.start_ps[transfers.issuer[number]]))
        self.ready_ps[number] = start
        if transfers.is_remote[number]:
            is_urma = transfers.lane[number] == 0
            start += self.options.costs.doorbell_ps if is_urma else 0
            self.clock.after(start - now, self._post if is_urma else self._access, number)
        else:
            self.clock.after(start - now, self._work_locally, number)

    def _post(self, event: simpy.Event) -> None:
        """Ring the doorbell of a transfer's chunks."""
        number, transfers = event._value, self.transfers
        src, dst = int(transfers.src[number]), int(transfers.dst[number])
        flow = self._flow(src, dst)
        sizes = pieces_of(int(transfers.size_bytes[number]), self.chunk_bytes)
        self.chunks_left[number] = len(sizes)
        queue = int(transfers.queue_idx[number])
        jetty = self.jetties.setdefault((src, queue), Jetty(f"queue {queue} of rank {src}"))
        card, port = self.stage.cards[src], flow.lanes[0].path[0]
        if id(port) not in self.slow:
            landed = partial(self._landed, number)
            card.ring(jetty, [Chunk(flow, size, 1, landed) for size in sizes])
            return
        gate = self.gates.get((src, id(port)))
        if gate is None:
            gate = self.gates[src, id(port)] = Gate(card)
        lanes = gate.take_lanes(flow.lanes, len(sizes))
        gate.push(jetty, [
            Chunk(flow._replace(lanes=(lane,)), size, 1, partial(self._through, number, gate, size))
            for size, lane in zip(sizes, lanes, strict=True)
        ])  # fmt: skip

    def _access(self, event: simpy.Event) -> None:
        """Load or store a transfer's bytes."""
        number, transfers = event._value, self.transfers
        is_load = int(transfers.lane[number]) == LOAD
        key = (int(transfers.issuer[number]), int(transfers.queue_idx[number]), is_load)
        if key not in self.cores:
            stage = self.stage
            self.cores[key] = Core(self.clock, stage.fabric, stage.cards, self.options.ubmem, is_load=is_load)
        flow = self._flow(int(transfers.src[number]), int(transfers.dst[number]))
        self.cores[key].request(flow, int(transfers.size_bytes[number]), partial(self._arrived, number))

    def _work_locally(self, event: simpy.Event) -> None:
        """Copy what stays on the card."""
        number = event._value
        src, dst = int(self.transfers.src[number]), int(self.transfers.dst[number])
        size = int(self.transfers.size_bytes[number]) if src == dst else 0
        if size == 0:
            self._arrived(number, self.clock.now_ps)
            return
        end = self.stage.cards[dst].memory_job(size, "local copy")
        self.clock.after(end - self.clock.now_ps, self._copied, number)

    def _copied(self, event: simpy.Event) -> None:
        self._arrived(event._value, self.clock.now_ps)

    def _delivered(self, piece: Piece) -> None:
        """Hand a piece that is at its end to whoever sent it."""
        if isinstance(piece.chunk, Requests):
            piece.chunk.core.delivered(piece.chunk)
        else:
            self.deliver_chunk(piece)

    def _through(self, number: int, gate: Gate, size: int, time_ps: int) -> None:
        gate.landed(size)
        self._landed(number, time_ps)

    def _landed(self, number: int, time_ps: int) -> None:
        """Take note of one chunk of a transfer."""
        self.chunks_left[number] -= 1
        if self.chunks_left[number] == 0:
            self._arrived(number, time_ps)

    def _arrived(self, number: int, time_ps: int) -> None:
        """Let the receiver work off what has come."""
        self.arrival_ps[number] = time_ps
        transfers, dst = self.transfers, int(self.transfers.dst[number])
        moved, delay = int(transfers.memory_bytes[number]), int(transfers.delay_ps[number])
        end = (
            self.stage.cards[dst].memory_job(moved, transfers.labels[transfers.label_idx[number]])
            if moved
            else time_ps
        )
        if self.builder is not None and delay:
            track = self.stage.track(dst, "work")
            self.stage.span(track, transfers.labels[transfers.label_idx[number]], end, end + delay)
        self.clock.after(end + delay - self.clock.now_ps, self._done, number)

    def _done(self, event: simpy.Event) -> None:
        """End a transfer and start those that waited for it alone."""
        number = event._value
        self.finish_ps[number] = self.clock.now_ps
        self.num_left -= 1
        for follower in self.transfers.followers[number]:
            self.missing[follower] -= 1
            if self.missing[follower] == 0:
                self._ready(follower)
        if self.num_left == 0:
            self.goal.succeed()

    def _blocked(self) -> list[str]:
        """Say what every transfer that cannot start waits for, the first causes first."""
        transfers = self.transfers
        causes: list[str] = []
        others: list[str] = []
        for number, ready in enumerate(self.ready_ps):
            if ready >= 0:
                continue
            waits = [n for n in transfers.waits_of(number) if n == NEVER or self.finish_ps[n] < 0]
            text = f"{transfers.describe(number)} waits for {' and '.join(map(transfers.describe, waits))}"
            is_cause = any(n == NEVER or self.ready_ps[n] >= 0 for n in waits)
            (causes if is_cause else others).append(text)
        return causes + others

    def _trace(self) -> Trace | None:
        if self.builder is None:
            return None
        end = max(self.finish_ps, default=0)
        links = link_load(self.stage.lanes.ports, self.stage.fabric.sent or [], end)
        count = f"{self.transfers.num_transfers} transfers"
        meta = {"level": "events", "policy": self.options.policy, "chunk bytes": str(self.chunk_bytes)}
        title = f"{count}, {self.machine.num_ranks} ranks"
        return self.builder.build(title=title, meta=meta, links=links)
