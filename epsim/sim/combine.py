"""Combine, step by step, as the kernel does it (deepep-ascend.md section 4.5).

Every AIV walks tasks of eight tokens, one per home rank in turn, starting at its own place: it sums rows that
have several local experts on the chip, posts one descriptor per row, and rings after eight remote tasks. So
the network works from the first doorbell on, while later tasks are still being summed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epsim.schedule.costs import TASK_TOKENS, TASKS_PER_DOORBELL, StepCosts
from epsim.schedule.grain import Cut
from epsim.schedule.work import Int64, Work
from epsim.sim.card import Chunk, Jetty, jetty_name
from epsim.sim.clock import Process
from epsim.sim.stage import Stage


@dataclass(frozen=True, kw_only=True)
class CombinePlan:
    """What a combine is made of, besides its work.

    Args:
      work: rows of the dispatch that it answers.
      record_bytes: one record on the wire.
      payload_bytes: what a sum reads and writes per row.
      cut: how coarsely.
      costs: times of steps.
      post_ps: one lane posts one descriptor.
      post_lanes: lanes of an AIV that post at once.
      walks_by_home: finish one home rank before the next, all AIVs in the same order, as dispatch does (for
        experiments; the kernel goes round).
    """

    work: Work
    record_bytes: int
    payload_bytes: int
    cut: Cut
    costs: StepCosts
    post_ps: int
    post_lanes: int
    walks_by_home: bool = False


class Task(NamedTuple):
    """Tokens of one home rank that a worker takes at once.

    Args:
      home: rank.
      num_rows: rows to return.
      memory_bytes: what the sums, and local rows, read and write.
    """

    home: int
    num_rows: int
    memory_bytes: int


def num_sqes(work: Work) -> int:
    """Count the descriptors of a combine, all ranks: one per remote row."""
    rows = work.rows
    return int(rows.sum() - rows.trace())


def combine_rank(stage: Stage, plan: CombinePlan, rank: int) -> Process:
    """Run all workers of one rank from the end of the entry barrier until its last completion."""
    num_workers = plan.work.num_aivs // plan.cut.aivs_per_worker
    workers = [stage.clock.start(_worker(stage, plan, rank, worker)) for worker in range(num_workers)]
    yield from workers


def tasks_of(plan: CombinePlan, rank: int, worker: int) -> Iterator[Task]:
    """Yield a worker's tasks in its order: round robin over home ranks with work."""
    work, cut = plan.work, plan.cut
    size, num_aivs = work.num_ranks, work.num_aivs
    first = worker * cut.aivs_per_worker
    full = TASK_TOKENS * cut.aivs_per_worker
    shift = 0 if plan.walks_by_home else first
    homes = [(rank + shift + 1 + step) % size for step in range(size)]
    shares = _shares(work.rows[:, rank], first, cut.aivs_per_worker, num_aivs)
    queues = []
    for home in homes:
        rows = int(shares[home])
        queues.append([full] * (rows // full) + ([rows % full] if rows % full else []))
    memory = [_Memory(plan, rank, home) for home in homes]
    turns = [(turn, i) for i, queue in enumerate(queues) for turn in range(len(queue))]
    for turn, i in turns if plan.walks_by_home else sorted(turns):
        rows = queues[i][turn]
        yield Task(homes[i], rows, memory[i].take(rows))


def _shares(rows: Int64, first: int, num_of: int, num_aivs: int) -> Int64:
    """Count the rows of every home rank, [R], that `num_of` AIVs from `first` on take.

    An AIV takes every C-th row from a start that depends on the home rank, which levels the jetties.
    """
    home = np.arange(len(rows))[:, None]
    start = (np.arange(first, first + num_of) + home * -(-num_aivs // len(rows))) % num_aivs
    return np.asarray(np.maximum(0, -(-(rows[:, None] - start) // num_aivs)).sum(axis=1), np.int64)


def _tasks_per_aiv(plan: CombinePlan, rank: int, first: int) -> float:
    """Return the mean number of tasks of the AIVs that act as one."""
    rows, num_of = plan.work.rows[:, rank], plan.cut.aivs_per_worker
    shares = (_shares(rows, aiv, 1, plan.work.num_aivs) for aiv in range(first, first + num_of))
    return float(sum(int((-(-share // TASK_TOKENS)).sum()) for share in shares)) / num_of


class _Memory:
    """Bills the memory bytes of one home rank's rows in equal parts, whole bytes and nothing lost.

    Which rows have several local experts is spread evenly: the stream is sorted by source, not by hits.
    """

    def __init__(self, plan: CombinePlan, rank: int, home: int) -> None:
        work = plan.work
        self.rows = int(work.rows[home, rank])
        summed = int(work.summed_rows[home, rank]) if self.rows else 0
        self.total = (summed + int(work.summed_reads[home, rank])) * plan.payload_bytes
        if home == rank:
            self.total += self.rows * plan.record_bytes
        # A worker sees its own rows only, so each bills its part of the whole.
        self.billed = 0.0

    def take(self, num_rows: int) -> int:
        """Return the bytes of the next rows."""
        before = int(self.billed)
        self.billed += self.total * num_rows / max(1, self.rows)
        return int(self.billed) - before


def _worker(stage: Stage, plan: CombinePlan, rank: int, worker: int) -> Process:
    clock, card = stage.clock, stage.cards[rank]
    first = worker * plan.cut.aivs_per_worker
    track = stage.track(rank, f"AIV {first}")
    jetty = Jetty(jetty_name(rank, first))
    tasks = list(tasks_of(plan, rank, worker))
    # AIVs that act as one keep an AIV's pace: one has fewer tasks than all of them together meet homes.
    pace = _tasks_per_aiv(plan, rank, first) / max(1, len(tasks))
    # Fetching the next tasks runs beside the sums (two stages), so a task costs the longer of the two.
    fetch_ps = int(-(-TASK_TOKENS // plan.post_lanes) * plan.post_ps * pace)
    per_doorbell = max(1, round(TASKS_PER_DOORBELL / pace)) if pace else TASKS_PER_DOORBELL
    ready: list[Chunk] = []
    num_remote = 0
    begin = clock.now_ps
    for task in tasks:
        end = clock.now_ps + fetch_ps
        if task.memory_bytes:
            end = max(end, card.memory_job(task.memory_bytes, "sum" if task.home != rank else "local rows"))
        yield clock.wait_until(end)
        if task.home == rank:
            continue
        ready += _cut(stage, plan, rank, task)
        num_remote += 1
        if num_remote % per_doorbell == 0:
            stage.ring(rank, jetty, ready)
            ready = []
    yield clock.wait(plan.costs.doorbell_ps)
    stage.span(track, "tasks", begin, clock.now_ps)
    stage.ring(rank, jetty, ready)
    begin = clock.now_ps
    yield card.drain(jetty)
    stage.span(track, "drain", begin, clock.now_ps)


def _cut(stage: Stage, plan: CombinePlan, rank: int, task: Task) -> list[Chunk]:
    """Cut the rows of a task into chunks: a descriptor per row."""
    flow, size = stage.flow(rank, task.home), plan.record_bytes
    if plan.cut.is_packets:
        return [
            Chunk(flow, packet, int(i == 0))
            for _ in range(task.num_rows)
            for i, packet in enumerate(stage.packets(size))
        ]
    full = min(plan.cut.num_sqes, task.num_rows)
    counts = [full] * (task.num_rows // full) + ([task.num_rows % full] if task.num_rows % full else [])
    return [Chunk(flow, count * size, count) for count in counts]
