"""Schedules of calls on the CPU twin, read off its trace, compared with the event simulator's."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from epsim.conform.program import Cached, Combine, Dispatch, Program, Step
from epsim.conform.schedules import (
    COUNTED,
    DRAINED,
    ENTRY,
    EXIT,
    PREPARED,
    CallSchedule,
    Doorbells,
    SimulatedCall,
    Transfer,
    differences,
)
from epsim.errors import InputError
from epsim.trace.twin import TwinEvent, rank_of
from reference.memory.layout import combine_record, dispatch_record
from reference.memory.workspace import workspace_field

SENDERS = ("dispatch", "combine")
"""Kernels that begin a call; `<name>_epilogue` ends it."""
SGES_PER_RECORD = 2
"""Payload and metadata (deepep-ascend.md sections 4.3 and 4.5)."""
Range = tuple[int, int]
"""Positions in the list of events, [begin, end)."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """Where the launches of one call lie, by rank."""

    kernel: str
    send: tuple[Range, ...]
    epilogue: tuple[Range, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TwinRun:
    """A traced run of our EP kernels on the twin.

    Args:
      events: all of it, in order.
      num_ranks: R.
      num_aivs: C.
    """

    events: Sequence[TwinEvent]
    num_ranks: int
    num_aivs: int

    @cached_property
    def calls(self) -> tuple[_Call, ...]:
        """The calls that every rank has finished."""
        sent: list[list[tuple[str, Range]]] = [[] for _ in range(self.num_ranks)]
        ended: list[list[Range]] = [[] for _ in range(self.num_ranks)]
        begin = [0] * self.num_ranks
        for idx, event in enumerate(self.events):
            if event.kind == "launch":
                begin[event.rank] = idx
            elif event.kind == "kernel_end" and event.file in SENDERS:
                sent[event.rank].append((event.file, (begin[event.rank], idx)))
            elif event.kind == "kernel_end":
                ended[event.rank].append((begin[event.rank], idx))
        whole = zip(zip(*sent, strict=False), zip(*ended, strict=False), strict=False)
        return tuple(
            _Call(kernel=ranks[0][0], send=tuple(where for _, where in ranks), epilogue=tuple(epilogues))
            for ranks, epilogues in whole
        )

    def schedule(self, call_idx: int, *, exchanges_counts: bool = False) -> CallSchedule:
        """Return transfers and order of one call.

        Args:
          call_idx: counted from 0.
          exchanges_counts: whether it is a fresh dispatch.

        Raises:
          InputError: the run has no such finished call.
        """
        if not 0 <= call_idx < len(self.calls):
            raise InputError("call", call_idx, f"must be below the {len(self.calls)} calls that have ended")
        call = self.calls[call_idx]
        doorbells = {
            (rank, aiv): bells
            for rank in range(self.num_ranks)
            for aiv in range(self.num_aivs)
            if (bells := self._doorbells(call.send[rank], rank, aiv))
        }
        order = frozenset(self._order(call, exchanges_counts))
        return CallSchedule(doorbells=doorbells, order=order)

    def _doorbells(self, where: Range, rank: int, aiv: int) -> Doorbells:
        bells: list[list[Transfer]] = []
        for idx in self._mine[rank, aiv]:
            event = self.events[idx]
            if not where[0] <= idx < where[1]:
                continue
            if event.kind == "doorbell":
                bells.append([])
            elif event.kind == "urma_post" and not event.is_nop:
                records = event.num_sges // SGES_PER_RECORD
                bells[-1].append(Transfer(rank_of(event.address), records, event.num_bytes))
        return tuple(tuple(bell) for bell in bells if bell)

    @cached_property
    def _mine(self) -> Mapping[tuple[int, int], list[int]]:
        """Positions of the events of every AIV, and of the requests that it rang for."""
        found: dict[tuple[int, int], list[int]] = {
            (rank, aiv): [] for rank in range(self.num_ranks) for aiv in range(-1, self.num_aivs)
        }
        for idx, event in enumerate(self.events):
            found[event.rank, event.aiv].append(idx)
        return found

    # --- words of the window -------------------------------------------------------------------------

    @cached_property
    def _windows(self) -> Mapping[int, tuple[int, int]]:
        """Base and size by rank."""
        allocs = (event for event in self.events if event.kind == "alloc" and event.file == "window")
        return {event.rank: (event.address, event.num_bytes) for event in allocs}

    def _told(self, field: str, kind: str, src: int, dst: int) -> list[int]:
        """Return the positions of the stores or atomics of one rank into an array of another's window."""
        words = workspace_field(field)
        begin = self._windows[dst][0] + words.offset
        return [
            idx
            for idx, event in enumerate(self.events)
            if event.kind == kind and event.rank == src and begin <= event.address < begin + words.num_bytes
            if kind == "atomic" or event.extra  # a zero clears the word for its next use
        ]

    @cached_property
    def _signals(self) -> Mapping[tuple[int, int], list[int]]:
        """Position of the signal of every barrier, in order, by (src, dst)."""
        ranks = range(self.num_ranks)
        return {(s, d): self._told("barrier_signals", "atomic", s, d) for s in ranks for d in ranks}

    # --- order ---------------------------------------------------------------------------------------

    def _order(self, call: _Call, exchanges_counts: bool) -> Iterator[str]:
        for rank in range(self.num_ranks):
            # A call has two barriers; the number of the first is that of all barriers before.
            entry = bisect_left(self._signals[rank, rank], call.send[rank][0])
            first = [self._first(call.send[rank], rank, aiv) for aiv in range(self.num_aivs)]
            rung = [idx for idx in first if idx is not None]
            if rung and self._all_told(entry, rank) < min(rung):
                yield ENTRY.format(rank)
            if rung and self._last_effect(call.send[rank], rank) < self._signal(rank, entry + 1):
                yield DRAINED.format(rank)
            reads = [i for i in self._inside(call.epilogue[rank], rank) if self.events[i].kind == "copy_in"]
            if self._all_told(entry + 1, rank) < min(reads, default=len(self.events)):
                yield EXIT.format(rank)
            for aiv, idx in enumerate(first):
                if idx is None or call.kernel == "combine":
                    continue
                if self._last_preparation(call.send[rank], rank, aiv) < idx:
                    yield PREPARED.format(rank, aiv)
                if exchanges_counts and aiv < 2 and self._counts_told(call, rank, aiv) < idx:
                    yield COUNTED.format(rank, aiv)

    def _inside(self, where: Range, rank: int) -> list[int]:
        """Return the positions of a rank's events in a launch."""
        aivs = range(self.num_aivs)
        return sorted(i for aiv in aivs for i in self._mine[rank, aiv] if where[0] <= i < where[1])

    def _first(self, where: Range, rank: int, aiv: int) -> int | None:
        """Return the position of an AIV's first doorbell that has transfers, None = it has none."""
        bell = None
        for idx in self._mine[rank, aiv]:
            event = self.events[idx]
            if where[0] <= idx < where[1] and event.kind == "doorbell":
                bell = idx
            elif where[0] <= idx < where[1] and event.kind == "urma_post" and not event.is_nop:
                return bell
        return None

    def _signal(self, rank: int, barrier: int) -> int:
        """Return when a rank first told anyone that it had come to a barrier; the end if it never did."""
        numbers = (self._signals[rank, dst][barrier : barrier + 1] for dst in range(self.num_ranks))
        return min((idx for number in numbers for idx in number), default=len(self.events))

    def _all_told(self, barrier: int, rank: int) -> int:
        """Return when the last rank told `rank` that it had come to a barrier; the end if one never did."""
        told = [self._signals[src, rank][barrier : barrier + 1] for src in range(self.num_ranks)]
        return max(number[0] if number else len(self.events) for number in told)

    def _last_effect(self, where: Range, rank: int) -> int:
        """Return when the last copy or request of a launch was done and, if it asked for that, told."""
        wanted: set[tuple[int, int]] = set()
        last = -1
        for idx, event in enumerate(self.events):
            if event.rank != rank:
                continue
            is_inside, key = where[0] <= idx < where[1], (event.jetty, event.request)
            if event.kind == "urma_post" and is_inside:
                wanted.add(key)
            is_copied = event.kind == "copy_out" and is_inside
            if is_copied or (event.kind in ("urma_done", "cqe") and key in wanted):
                last = idx
        return last

    def _last_preparation(self, where: Range, rank: int, aiv: int) -> int:
        """Return the end of an AIV's last lane function or copy to memory that descriptors may name.

        The lane functions of barriers and copies to the own window are left out.
        """
        signals = {idx for dst in range(self.num_ranks) for idx in self._signals[rank, dst]}
        last, is_barrier = -1, False
        for idx in self._mine[rank, aiv]:
            if not where[0] <= idx < where[1]:
                continue
            event = self.events[idx]
            is_barrier = (is_barrier and event.kind != "vf_begin") or idx in signals
            is_stored = event.kind == "copy_out" and not self._in_window(event)
            if is_stored or (event.kind == "vf_end" and not is_barrier):
                last = idx
        return last

    def _in_window(self, event: TwinEvent) -> bool:
        begin, num_bytes = self._windows[event.rank]
        return begin <= event.address < begin + num_bytes

    def _counts_told(self, call: _Call, rank: int, aiv: int) -> int:
        """Return when the last rank told `rank` its counts, per expert to AIV 0 and per rank to AIV 1."""
        both = (("remote_expert_histogram", "atomic"), ("remote_rank_histogram", "store"))
        last = -1
        for field, kind in both[aiv : aiv + 1] if self.num_aivs > 1 else both:
            for src in range(self.num_ranks):
                begin, end = call.send[src]
                told = [i for i in self._told(field, kind, src, rank) if begin <= i < end]
                last = max(last, max(told, default=len(self.events)))
        return last


def program_differences(
    program: Program, events: Sequence[TwinEvent], *, rotates_by_aiv: bool = False, rings_early: bool = False
) -> tuple[str, ...]:
    """Compare every call of a program that ran on the twin with the event simulator's schedule.

    Args:
      program: what ran.
      events: its trace.
      rotates_by_aiv: the simulator's answer to the kernels' rotate_by_aiv.
      rings_early: the same to early_doorbells.

    Returns:
      One text per difference, () = none.

    Raises:
      InputError: a combine without sums on the way, which the simulator does not have, or a call is not in
        the trace.
    """
    run = TwinRun(events=events, num_ranks=program.num_ranks, num_aivs=program.aivs)
    # On odd schedule seeds the backend lets a cached dispatch that nobody wants follow each call.
    step_calls = 2 if len(run.calls) == 2 * len(program.steps) else 1
    found: list[str] = []
    for idx, step in enumerate(program.steps):
        wanted = _simulated(program, step, rotates_by_aiv, rings_early).schedule()
        is_fresh = isinstance(step, Dispatch)
        have = run.schedule(idx * step_calls, exchanges_counts=is_fresh)
        found += (f"call {idx}, {text}" for text in differences(wanted, have))
    return tuple(found)


def _simulated(program: Program, step: Step, rotates_by_aiv: bool, rings_early: bool) -> SimulatedCall:
    fresh = program.dispatches()
    made = step if isinstance(step, Dispatch) else fresh[step.of % len(fresh)]
    config = made.config()
    if isinstance(step, Combine):
        if not program.multiple_reduction:
            raise InputError("multiple_reduction", False, "must be on: the simulator sums before it returns")
        record, row_bytes = combine_record(step.hidden, config.num_topk), 2 * step.hidden
    else:
        is_bf16 = step.payload == "bf16"
        record = dispatch_record(
            step.hidden, config.num_topk, "bf16" if is_bf16 else "fp8",
            num_scale_packs=0 if is_bf16 else step.packs, fresh=isinstance(step, Dispatch),
        )  # fmt: skip
        row_bytes = step.hidden * (2 if is_bf16 else 1)
    return SimulatedCall(
        config=config,
        topk=made.routing(0, weights=False),
        operation="combine"
        if isinstance(step, Combine)
        else ("cached-dispatch" if isinstance(step, Cached) else "dispatch"),
        num_aivs=program.aivs,
        record_bytes=record.num_bytes,
        payload_bytes=row_bytes,
        rotates_by_aiv=rotates_by_aiv,
        rings_early=rings_early,
    )
