"""Who sends what in which order: the plan of one call, and the event simulator's plan for a routing.

R ranks, C vector cores (AIVs) of a rank, K top-k.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from epsim.model.closedform import Operation, OperationBytes
from epsim.platform.machine import make_machine, slope_of
from epsim.platform.platform import make_platform
from epsim.schedule.grain import Grain
from epsim.schedule.work import count_work
from epsim.sim.card import jetty_name
from epsim.sim.run import EventOptions, EventRun, run_operation
from epsim.trace.trace import Trace
from reference.config import EPConfig
from reference.topk import TopK


class Transfer(NamedTuple):
    """One request (SQE).

    Args:
      dst: rank.
      num_records: that it writes.
      num_bytes: on the wire.
    """

    dst: int
    num_records: int
    num_bytes: int

    def __str__(self) -> str:
        """Say what it moves."""
        return f"{self.num_records} records, {self.num_bytes} bytes to rank {self.dst}"


Doorbells = tuple[tuple[Transfer, ...], ...]
"""Transfers of one AIV, one tuple per doorbell, in order; doorbells without transfers are left out."""


@dataclass(frozen=True, kw_only=True)
class CallSchedule:
    """Order of one call.

    Args:
      doorbells: by (rank, AIV); an AIV without transfers is left out.
      order: what came before what, one text each, as `ENTRY`.
    """

    doorbells: Mapping[tuple[int, int], Doorbells]
    order: frozenset[str]


ENTRY = "rank {}: every rank has come to the entry barrier before the first doorbell"
PREPARED = "rank {}, AIV {}: descriptors and what they gather are complete before the doorbell"
COUNTED = "rank {}, AIV {}: counts of all ranks have come before the doorbell"
DRAINED = "rank {}: its transfers and copies are complete before it comes to the exit barrier"
EXIT = "rank {}: every rank has come to the exit barrier before the epilogue reads"


def differences(wanted: CallSchedule, have: CallSchedule) -> tuple[str, ...]:
    """Compare a schedule with the event simulator's.

    Args:
      wanted: of the simulator.
      have: of a run.

    Returns:
      One text per difference, () = same transfers, same doorbells, and all that the simulator orders is in
      order. What the simulator leaves open may be either way.
    """
    found: list[str] = []
    for rank, aiv in sorted(wanted.doorbells.keys() | have.doorbells.keys()):
        sides = wanted.doorbells.get((rank, aiv), ()), have.doorbells.get((rank, aiv), ())
        found += (f"rank {rank}, AIV {aiv}: {text}" for text in _changed(*sides))
    found += (f"not so: {fact}" for fact in sorted(wanted.order - have.order))
    return tuple(found)


def _changed(wanted: Doorbells, have: Doorbells) -> Iterator[str]:
    if wanted == have:
        return
    expected, sent = ([transfer for bell in side for transfer in bell] for side in (wanted, have))
    lost, extra = Counter(expected) - Counter(sent), Counter(sent) - Counter(expected)
    yield from (f"{transfer} are missing, {n} times" for transfer, n in sorted(lost.items()))
    yield from (f"{transfer} are too much, {n} times" for transfer, n in sorted(extra.items()))
    if lost or extra:
        return
    for idx, (one, other) in enumerate(zip(expected, sent, strict=True)):
        if one != other:
            yield f"transfer {idx} is {other}; in the simulator {one}"
            return
    numbers = [", ".join(str(len(bell)) for bell in side) for side in (have, wanted)]
    yield f"doorbells for {numbers[0]} transfers; in the simulator for {numbers[1]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedCall:
    """A call as the event simulator knows it.

    Args:
      config: the group.
      topk: routing.
      operation: which one.
      num_aivs: C.
      record_bytes: one record on the wire.
      payload_bytes: of it the row.
      rotates_by_aiv: as the kernels' rotate_by_aiv.
      rings_early: as the kernels' early_doorbells.
      system: where it runs, a preset; order and transfers do not depend on it.
    """

    config: EPConfig
    topk: TopK
    operation: Operation
    num_aivs: int
    record_bytes: int
    payload_bytes: int
    rotates_by_aiv: bool = False
    rings_early: bool = False
    system: str = "ubl128"

    def schedule(self) -> CallSchedule:
        """Run the simulator, a descriptor at a time, and return what it did.

        Raises:
          InputError: the group has more ranks than the system has cards.
        """
        platform = make_platform(self.system)
        machine = make_machine(platform, self.config.ep_size, slope_of(self.operation))
        options = EventOptions(
            grain=Grain(kind="sqe"), rotates_by_aiv=self.rotates_by_aiv, rings_early=self.rings_early,
            with_trace=True, with_doorbells=True,
        )  # fmt: skip
        run = run_operation(
            machine, platform.software, self.operation,
            count_work(self.config, self.topk, self.num_aivs),
            OperationBytes(logical=self.payload_bytes, wire=self.record_bytes, payload=self.payload_bytes),
            int(platform.hardware.packet_payload.value), options,
        )  # fmt: skip
        return CallSchedule(doorbells=self._doorbells(run), order=frozenset(self._order(run)))

    def _aivs(self) -> Iterator[tuple[int, int]]:
        return ((rank, aiv) for rank in range(self.config.ep_size) for aiv in range(self.num_aivs))

    def _doorbells(self, run: EventRun) -> dict[tuple[int, int], Doorbells]:
        found: dict[str, list[tuple[Transfer, ...]]] = {}
        for bell in run.doorbells or ():
            sent = (Transfer(dst, size // self.record_bytes, size) for dst, size in bell.transfers)
            found.setdefault(bell.jetty, []).append(tuple(sent))
        return {
            (rank, aiv): tuple(found[jetty_name(rank, aiv)])
            for rank, aiv in self._aivs()
            if jetty_name(rank, aiv) in found
        }

    def _order(self, run: EventRun) -> Iterator[str]:
        """Yield what holds, read off the run's timeline."""
        assert run.trace is not None
        spans = _Spans(run.trace)
        first = {bell.jetty: bell.time_ps for bell in reversed(run.doorbells or ())}
        for rank in range(self.config.ep_size):
            times = [first.get(jetty_name(rank, aiv)) for aiv in range(self.num_aivs)]
            rung = [time for time in times if time is not None]
            if rung and min(rung) >= spans.end(rank, "kernel", "entry barrier"):
                yield ENTRY.format(rank)
            resources = [f"AIV {aiv}" for aiv in range(self.num_aivs)]
            drained = max(spans.end(rank, of, what) for of in resources for what in ("drain", "local copy"))
            if rung and drained <= spans.start(rank, "kernel", "exit barrier"):
                yield DRAINED.format(rank)
            yield EXIT.format(rank)  # the run ends there: its epilogue is not played
        if self.operation == "combine" or self.rings_early:
            return
        # Local copies are left out: the simulator waits for them before it rings, our kernel after.
        steps = ("routing", "rebuild", "descriptors")
        routed = max(spans.end(rank, f"AIV {aiv}", "routing") for rank, aiv in self._aivs())
        for rank, aiv in self._aivs():
            time = first.get(jetty_name(rank, aiv))
            if time is None:
                continue
            if time >= max(spans.end(rank, f"AIV {aiv}", step) for step in steps):
                yield PREPARED.format(rank, aiv)
            if self.operation == "dispatch" and aiv < 2 and time >= routed:
                yield COUNTED.format(rank, aiv)


class _Spans:
    """Spans of a simulated run by rank, resource and phase."""

    def __init__(self, trace: Trace) -> None:
        rows = zip(trace.track, trace.name, trace.start_ps, trace.end_ps, strict=True)
        self._times: dict[tuple[str, str, str], tuple[int, int]] = {}
        for track, name, start, end in rows:
            key = (*trace.tracks[track], trace.names[name])
            before = self._times.get(key, (int(start), int(end)))
            self._times[key] = min(before[0], int(start)), max(before[1], int(end))

    def start(self, rank: int, resource: str, name: str) -> int:
        """Return its first start; a phase that took no time has none and stands at the end."""
        return self._times.get((f"rank {rank}", resource, name), (2**63 - 1, 0))[0]

    def end(self, rank: int, resource: str, name: str) -> int:
        """Return its last end, 0 = there was none."""
        return self._times.get((f"rank {rank}", resource, name), (0, 0))[1]
