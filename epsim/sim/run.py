"""One operation, from launch to exit barrier, as discrete events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.model.closedform import Operation, OperationBytes
from epsim.platform.machine import Machine
from epsim.platform.profile import Software
from epsim.schedule.costs import TASK_TOKENS, StepCosts, barrier_ps
from epsim.schedule.grain import Cut, Grain
from epsim.schedule.work import Work
from epsim.sim import combine, dispatch
from epsim.sim.card import Card, EngineCosts, jetty_name
from epsim.sim.clock import Process
from epsim.sim.heat import link_load
from epsim.sim.meeting import Meeting
from epsim.sim.stage import CHUNKS_OF_ROOM, DEFAULT_CREDIT_BYTES, DEFAULT_WINDOW_PACKETS, Doorbell, Stage
from epsim.trace.trace import Trace, TraceBuilder
from topology import Policy

Barrier = Literal["exit", "epilogue"]


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """How to run.

    Args:
      grain: how coarsely the engine's work is cut.
      policy: path choice.
      seed: of the flow hash.
      exit_barrier: "exit" = at the end of the kernel (what the published figures measure), "epilogue" =
        the kernel ends with its last doorbell and the next one waits.
      costs: times of single steps.
      engine: what else the engine costs.
      credit_bytes: room behind one link.
      window_packets: most unacknowledged packets of a card.
      overlaps: memory and wire at the same time.
      rotates_by_aiv: see `dispatch.DispatchPlan`.
      rings_early: see `dispatch.DispatchPlan`.
      walks_by_home: see `combine.CombinePlan`.
      fifo_inputs: see `fabric.Fabric`.
      chunks_of_room: see `stage.CHUNKS_OF_ROOM`.
      jitter: service of a chunk varies by up to this part of it; see `upsets.Jitter`.
      dead_ranks: ranks that never start.
      stuck_receivers: ranks that never take what comes in.
      with_trace: keep spans.
      with_doorbells: keep every doorbell.
    """

    grain: Grain = field(default_factory=Grain)
    policy: Policy = "spray"
    seed: int = 0
    exit_barrier: Barrier = "exit"
    costs: StepCosts = field(default_factory=StepCosts)
    engine: EngineCosts = field(default_factory=EngineCosts)
    credit_bytes: int = DEFAULT_CREDIT_BYTES
    window_packets: int = DEFAULT_WINDOW_PACKETS
    overlaps: bool = False
    rotates_by_aiv: bool = False
    rings_early: bool = False
    walks_by_home: bool = False
    fifo_inputs: bool = False
    chunks_of_room: int = CHUNKS_OF_ROOM
    jitter: float = 0.0
    dead_ranks: tuple[int, ...] = ()
    stuck_receivers: tuple[int, ...] = ()
    with_trace: bool = False
    with_doorbells: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class EventRun:
    """What a run gave.

    Args:
      time_ps: from the first launch to the end of the exit barrier.
      first_ring_ps: [R] int64, the first doorbell of each rank.
      last_ring_ps: [R] int64, its last one: the end of what needs a core.
      arrival_ps: [R] int64, when each rank's last byte came in.
      received_bytes: [R] int64, from other ranks.
      drained_ps: [R] int64, when each rank's last completion was in.
      num_context_misses: [R] int64, see `card.EngineCosts`.
      num_chunks: that the engines served.
      num_events: that the clock saw.
      cut: the grain as used.
      port_names: ports, by name.
      port_bytes: [P] int64.
      port_busy_ps: [P] int64.
      port_bytes_per_s: [P] float64.
      engine_busy_ps: [R] int64.
      memory_busy_ps: [R] int64.
      held_ps: [R] int64, how long an engine had work and no room for it.
      trace: the timeline; None when it was not asked for.
      doorbells: each with its transfers, in order; None when they were not asked for.
    """

    time_ps: int
    first_ring_ps: npt.NDArray[np.int64]
    last_ring_ps: npt.NDArray[np.int64]
    arrival_ps: npt.NDArray[np.int64]
    received_bytes: npt.NDArray[np.int64]
    drained_ps: npt.NDArray[np.int64]
    num_context_misses: npt.NDArray[np.int64]
    num_chunks: int
    num_events: int
    cut: Cut
    port_names: tuple[str, ...]
    port_bytes: npt.NDArray[np.int64]
    port_busy_ps: npt.NDArray[np.int64]
    port_bytes_per_s: npt.NDArray[np.float64]
    engine_busy_ps: npt.NDArray[np.int64]
    memory_busy_ps: npt.NDArray[np.int64]
    held_ps: npt.NDArray[np.int64]
    trace: Trace | None
    doorbells: tuple[Doorbell, ...] | None


def run_operation(
    machine: Machine,
    software: Software,
    operation: Operation,
    work: Work,
    row: OperationBytes,
    packet_bytes: int,
    options: EventOptions,
    on_progress: Callable[[int, int], Any] | None = None,
) -> EventRun:
    """Simulate one dispatch, cached dispatch or combine.

    Args:
      machine: rates.
      software: times of launch, worker, barriers, posts.
      operation: which one.
      work: rows, as of dispatch.
      row: bytes per row.
      packet_bytes: payload of a packet.
      options: see `EventOptions`.
      on_progress: called now and then with (bytes delivered, all bytes).

    Raises:
      StuckError: the run cannot end; it says who waits for what.
    """
    is_combine = operation == "combine"
    rows = work.rows.T if is_combine else work.rows
    pairs = np.argwhere((rows > 0) & ~np.eye(work.num_ranks, dtype=bool)).astype(np.int64)
    records_per_sqe = 1 if is_combine else int(software.rows_per_descriptor_dispatch.value)
    count = combine.num_sqes(work) if is_combine else dispatch.num_sqes(work, records_per_sqe)
    per_visit = count / max(1, len(pairs) * work.num_aivs)
    if is_combine:
        per_visit = min(per_visit, TASK_TOKENS)
    cut = options.grain.fit(count, per_visit, work.num_aivs, keeps_pace=not is_combine)
    trace = TraceBuilder() if options.with_trace else None
    stage = Stage(
        machine, pairs,
        policy=options.policy, seed=options.seed, credit_bytes=options.credit_bytes,
        window_bytes=options.window_packets * packet_bytes, overlaps=options.overlaps,
        packet_bytes=packet_bytes, is_packets=cut.is_packets,
        chunk_bytes=cut.num_sqes * records_per_sqe * row.wire,
        ack_ps=options.costs.ack_ps, costs=options.engine, is_fifo=options.fifo_inputs,
        chunks_of_room=options.chunks_of_room, trace=trace, jitter=options.jitter,
        stuck_receivers=options.stuck_receivers,
    )  # fmt: skip
    if options.with_doorbells:
        stage.doorbells = []
    _warm(stage, pairs, work.num_aivs, cut)
    main = _Operation(stage, software, operation, work, row, cut, options)
    total = int(rows[tuple(pairs.T)].sum()) * row.wire
    end = main.run(None if on_progress is None else lambda: on_progress(sum(stage.received), total))
    return EventRun(
        time_ps=end,
        first_ring_ps=np.array(stage.first_ring_ps, np.int64),
        last_ring_ps=np.array(stage.last_ring_ps, np.int64),
        arrival_ps=np.array(stage.last_ps, np.int64),
        received_bytes=np.array(stage.received, np.int64),
        drained_ps=np.array(main.drained_ps, np.int64),
        num_context_misses=np.array([_misses(card) for card in stage.cards], np.int64),
        num_chunks=sum(card.num_chunks for card in stage.cards),
        num_events=stage.clock.num_events,
        cut=cut,
        port_names=tuple(port.name for port in stage.lanes.ports),
        port_bytes=np.array([port.num_bytes for port in stage.lanes.ports], np.int64),
        port_busy_ps=np.array([port.busy_ps for port in stage.lanes.ports], np.int64),
        port_bytes_per_s=np.array([1e12 / port.ps_per_byte for port in stage.lanes.ports]),
        engine_busy_ps=np.array([card.engine_busy_ps for card in stage.cards], np.int64),
        memory_busy_ps=np.array([card.memory_busy_ps for card in stage.cards], np.int64),
        held_ps=np.array([card.held_ps for card in stage.cards], np.int64),
        trace=None if trace is None else _trace(trace, stage, operation, options, end),
        doorbells=None if stage.doorbells is None else tuple(stage.doorbells),
    )


def _warm(stage: Stage, pairs: npt.NDArray[np.int64], num_aivs: int, cut: Cut) -> None:
    """Let the engines remember what the calls before have left, as after warm-ups."""
    for card in stage.cards:
        if card.contexts is not None:
            names = [jetty_name(card.rank, first) for first in range(0, num_aivs, cut.aivs_per_worker)]
            peers = pairs[pairs[:, 0] == card.rank, 1].tolist()
            card.contexts.warm([(name, dst) for dst in peers for name in names])


def _misses(card: Card) -> int:
    return 0 if card.contexts is None else card.contexts.num_misses


class _Operation:
    """The kernel of every rank, between its two barriers."""

    def __init__(
        self,
        stage: Stage,
        software: Software,
        operation: Operation,
        work: Work,
        row: OperationBytes,
        cut: Cut,
        options: EventOptions,
    ) -> None:
        """Prepare barriers and the plan of the operation."""
        self.stage, self.software, self.operation = stage, software, operation
        self.options = options
        ranks = work.num_ranks
        barrier = barrier_ps(software, ranks)
        self.entry = Meeting(stage.clock, "entry barrier", ranks, barrier)
        self.exit = Meeting(stage.clock, "exit barrier", ranks, barrier)
        costs = options.costs
        # AIV 0 adds to the counts of every expert, one remote atomic after the other.
        counting = costs.ubmem_one_way_ps + costs.ubmem_issue_ps * work.num_experts if ranks > 1 else 0
        self.counts = Meeting(stage.clock, "count exchange", ranks, counting)
        self.drained_ps = [0] * ranks
        post_ps = round(software.post_time.value * 1e12)
        self.plan: dispatch.DispatchPlan | combine.CombinePlan
        if operation == "combine":
            self.plan = combine.CombinePlan(
                work=work, record_bytes=row.wire, payload_bytes=row.payload, cut=cut, costs=costs,
                post_ps=post_ps, post_lanes=int(software.post_lanes_combine.value),
                walks_by_home=options.walks_by_home,
            )  # fmt: skip
        else:
            is_cached = operation == "cached-dispatch"
            self.plan = dispatch.DispatchPlan(
                work=work, record_bytes=row.wire,
                records_per_sqe=int(software.rows_per_descriptor_dispatch.value),
                cut=cut, costs=costs, post_ps=post_ps,
                post_lanes=int(software.post_lanes_dispatch.value), is_cached=is_cached,
                worker_ps=0 if is_cached else round(software.worker_time.value * 1e12),
                rotates_by_aiv=options.rotates_by_aiv, rings_early=options.rings_early,
            )  # fmt: skip

    def run(self, on_tick: Callable[[], None] | None) -> int:
        """Run to the end of the exit barrier, or to the last doorbell, and return that time."""
        clock = self.stage.clock
        for rank in range(self.stage.machine.num_ranks):
            if rank not in self.options.dead_ranks:
                clock.start(self._rank(rank))
        end = clock.run(self.exit.over, "the exit barrier", on_tick)
        return end if self.options.exit_barrier == "exit" else max(self.stage.last_ring_ps)

    def _rank(self, rank: int) -> Process:
        clock, stage = self.stage.clock, self.stage
        track = stage.track(rank, "kernel")
        yield clock.wait(int(stage.machine.start_ps[rank]))
        begin = clock.now_ps
        yield clock.wait(round(self.software.launch_time.value * 1e12))
        stage.span(track, "launch", begin, clock.now_ps)
        yield from self._meet(self.entry, rank, track)
        if isinstance(self.plan, combine.CombinePlan):
            yield from combine.combine_rank(stage, self.plan, rank)
        else:
            yield from dispatch.dispatch_rank(stage, self.plan, self.counts, rank)
        self.drained_ps[rank] = clock.now_ps
        yield from self._meet(self.exit, rank, track)

    def _meet(self, meeting: Meeting, rank: int, track: int) -> Process:
        clock = self.stage.clock
        begin = clock.now_ps
        clock.waits[f"rank {rank}"] = f"the {meeting.name}"
        yield meeting.arrive(rank)
        del clock.waits[f"rank {rank}"]
        self.stage.span(track, meeting.name, begin, clock.now_ps)


def _trace(
    builder: TraceBuilder, stage: Stage, operation: Operation, options: EventOptions, end_ps: int
) -> Trace:
    links = link_load(stage.lanes.ports, stage.fabric.sent or [], end_ps)
    meta = {"operation": operation, "level": "events", "grain": options.grain.text, "policy": options.policy}
    return builder.build(title=f"{operation}, {stage.machine.num_ranks} ranks", meta=meta, links=links)
