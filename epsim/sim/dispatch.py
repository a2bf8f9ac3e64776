"""Dispatch, step by step, as the kernel does it (deepep-ascend.md sections 4.2 and 4.3).

Every AIV prepares all of its work before one doorbell: routing, slots, descriptors, local copies. AIV 0 and
1 ring theirs only after the counts of all ranks have come. From then on the engine works alone.
"""

from dataclasses import dataclass

import numpy as np
import simpy

from epsim.schedule.costs import StepCosts
from epsim.schedule.grain import Cut
from epsim.schedule.work import Work
from epsim.sim.card import Chunk, Jetty, jetty_name
from epsim.sim.clock import Process
from epsim.sim.meeting import Meeting
from epsim.sim.stage import Stage

EARLY_SQES = 32
"""Descriptors between two doorbells that ring early (native/kernels/ep/dispatch.hpp, kEarlyRequests)."""


@dataclass(frozen=True, kw_only=True)
class DispatchPlan:
    """What a dispatch is made of, besides its work.

    Args:
      work: rows by AIV and destination.
      record_bytes: one record on the wire.
      records_per_sqe: records that one descriptor gathers at most, as the software's profile says.
      cut: how coarsely.
      costs: times of steps.
      post_ps: one lane posts one descriptor.
      post_lanes: lanes of an AIV that post at once.
      is_cached: a handle is given: no routing, no counts.
      worker_ps: start of the SIMT worker.
      rotates_by_aiv: each AIV starts at its own destination (a note in the kernel asks for it; upstream
        starts all at the next rank).
      rings_early: ring after every `EARLY_SQES` descriptors; counts and local copies come after the last, as
        in our kernels with early_doorbells. Upstream rings once, after everything.
    """

    work: Work
    record_bytes: int
    records_per_sqe: int
    cut: Cut
    costs: StepCosts
    post_ps: int
    post_lanes: int
    is_cached: bool
    worker_ps: int
    rotates_by_aiv: bool = False
    rings_early: bool = False


def num_sqes(work: Work, records_per_sqe: int) -> int:
    """Count the descriptors of a dispatch, all ranks, with so many records in one at most."""
    records = work.records.copy()
    ranks = np.arange(work.num_ranks)
    records[ranks, :, ranks] = 0
    return int((-(-records // records_per_sqe)).sum())


def dispatch_rank(stage: Stage, plan: DispatchPlan, counts: Meeting, rank: int) -> Process:
    """Run all workers of one rank from the end of the entry barrier until its last completion."""
    num_workers = plan.work.num_aivs // plan.cut.aivs_per_worker
    published = _Published(counts, rank, num_workers)
    workers = [
        stage.clock.start(_worker(stage, plan, published, rank, worker)) for worker in range(num_workers)
    ]
    yield from workers


class _Published:
    """Counts of one rank go to the others when its last AIV has published its histogram."""

    def __init__(self, counts: Meeting, rank: int, num_workers: int) -> None:
        self.counts, self.rank, self.missing = counts, rank, num_workers

    def publish(self) -> simpy.Event:
        """Take note of one worker and return the event at which all counts have come."""
        self.missing -= 1
        if self.missing == 0:
            self.counts.arrive(self.rank)
        return self.counts.over


def _worker(stage: Stage, plan: DispatchPlan, published: _Published, rank: int, worker: int) -> Process:
    clock, costs, work = stage.clock, plan.costs, plan.work
    first = worker * plan.cut.aivs_per_worker
    records = work.records[rank, first : first + plan.cut.aivs_per_worker]  # [aivs, R]
    track = stage.track(rank, f"AIV {first}")
    begin = clock.now_ps
    yield clock.wait(plan.worker_ps + _prepare_ps(plan, rank))
    stage.span(track, "routing" if not plan.is_cached else "rebuild", begin, clock.now_ps)
    all_counts = None if plan.is_cached else published.publish()
    per_peer = -(-records // plan.records_per_sqe)
    per_peer[:, rank] = 0
    # The slowest AIV of the worker sets its pace; all of them have nearly the same.
    post_ps = -(-int(per_peer.sum(axis=1).max()) // plan.post_lanes) * plan.post_ps
    begin = clock.now_ps
    jetty = Jetty(jetty_name(rank, first))
    chunks = _chunks(stage, plan, rank, first, records, per_peer.sum(axis=0))
    if plan.rings_early:
        yield from _ring_early(stage, plan, rank, jetty, chunks, post_ps)
        chunks = []
    copied = stage.cards[rank].memory_job(int(records[:, rank].sum()) * plan.record_bytes, "local copy")
    if begin + post_ps > clock.now_ps:
        yield clock.wait_until(begin + post_ps)
    stage.span(track, "descriptors", begin, clock.now_ps)
    if copied > clock.now_ps:
        wait = clock.now_ps
        yield clock.wait_until(copied)
        stage.span(track, "local copy", wait, clock.now_ps)
    if all_counts is not None and first < 2 and not all_counts.processed:
        wait = clock.now_ps
        stage.clock.waits[f"AIV {first} of rank {rank}"] = "the counts of all ranks"
        yield all_counts
        del stage.clock.waits[f"AIV {first} of rank {rank}"]
        stage.span(track, "counts of all ranks", wait, clock.now_ps)
    yield clock.wait(costs.doorbell_ps)
    stage.ring(rank, jetty, chunks)
    begin = clock.now_ps
    yield stage.cards[rank].drain(jetty)
    stage.span(track, "drain", begin, clock.now_ps)


def _ring_early(
    stage: Stage, plan: DispatchPlan, rank: int, jetty: Jetty, chunks: list[Chunk], post_ps: int
) -> Process:
    """Post the chunks in `post_ps`, and ring whenever an AIV has posted `EARLY_SQES` descriptors."""
    total = max(1, sum(chunk.num_descriptors for chunk in chunks))
    for batch in _batches(chunks, EARLY_SQES * plan.cut.aivs_per_worker):
        part = sum(chunk.num_descriptors for chunk in batch)
        yield stage.clock.wait(post_ps * part // total + plan.costs.doorbell_ps)
        stage.ring(rank, jetty, batch)


def _batches(chunks: list[Chunk], num_sqes: int) -> list[list[Chunk]]:
    """Cut chunks where a new descriptor begins and `num_sqes` or more have been posted."""
    found: list[list[Chunk]] = []
    posted = num_sqes
    for chunk in chunks:
        if posted >= num_sqes and chunk.num_descriptors:
            found.append([])
            posted = 0
        found[-1].append(chunk)
        posted += chunk.num_descriptors
    return found


def _prepare_ps(plan: DispatchPlan, rank: int) -> int:
    """Return the time until an AIV knows its slots."""
    costs = plan.costs
    if plan.is_cached:
        return costs.clean_ps + costs.rebuild_ps
    tokens = -(-int(plan.work.num_tokens[rank]) // plan.work.num_aivs)
    return costs.clean_ps + costs.routing(tokens) + costs.slots_ps


def _chunks(
    stage: Stage, plan: DispatchPlan, rank: int, first: int, records: np.ndarray, sqes: np.ndarray
) -> list[Chunk]:
    """Cut the records of a worker into chunks, in the order in which the kernel posts them."""
    size = plan.work.num_ranks
    total = records.sum(axis=0)
    found: list[Chunk] = []
    shift = first if plan.rotates_by_aiv else 0
    for step in range(size - 1):
        peer = (rank + 1 + (step + shift) % (size - 1)) % size
        if total[peer]:
            found += _cut(stage, plan, rank, peer, int(total[peer]), int(sqes[peer]))
    return found


def _cut(
    stage: Stage, plan: DispatchPlan, rank: int, peer: int, num_records: int, num_sqes: int
) -> list[Chunk]:
    flow = stage.flow(rank, peer)
    cut = plan.cut
    if cut.aivs_per_worker == 1:
        full = plan.records_per_sqe * cut.num_sqes
        counts = [full] * (num_records // full) + ([num_records % full] if num_records % full else [])
    else:
        pieces = -(-num_sqes // cut.num_sqes)
        counts = [num_records * (i + 1) // pieces - num_records * i // pieces for i in range(pieces)]
    if cut.is_packets:
        return [
            Chunk(flow, size, int(i == 0))
            for count in counts
            for i, size in enumerate(stage.packets(count * plan.record_bytes))
        ]
    if cut.aivs_per_worker == 1:
        return [Chunk(flow, count * plan.record_bytes, -(-count // plan.records_per_sqe)) for count in counts]
    per_chunk = round(num_sqes / len(counts))
    return [Chunk(flow, count * plan.record_bytes, per_chunk) for count in counts]
