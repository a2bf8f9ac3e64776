"""Runs of the CPU twin as timelines: its operations in the order of their schedule.

The twin has no time. It counts the steps of its scheduler, and a step is drawn as one nanosecond so that
every viewer shows it; lengths say in what order things happened and what could have gone on meanwhile,
nothing else.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from epsim.errors import InputError
from epsim.trace.reading import read_file
from epsim.trace.trace import NO_PEER, Trace, TraceBuilder

STEP_PS = 1_000
"""Of a step of the scheduler: a nanosecond, the least that Perfetto shows."""
TIME = "1 ns is a step of the twin's scheduler: an order, no duration"
_SPANS = {"launch": "kernel_end", "vf_begin": "vf_end", "urma_post": "urma_done"}
"""Events that begin something, and what ends it."""
_HIDDEN = frozenset({"alloc", *_SPANS.values()})


class TwinEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"num_bytes": "bytes"}):
    """One operation of the twin (native/twin/trace.hpp).

    Args:
      step: of the scheduler; rises along the list.
      kind: "alloc", "launch", "kernel_end" of the host; "vf_begin", "vf_end", "copy_in", "copy_out",
        "notify", "wait", "store" (past the cache), "atomic" of a core; "doorbell", "urma_post", "urma_done",
        "cqe" of a queue.
      rank, aiv, lane: whose; -1 where it means nothing.
      pipe: name; "UBMEM" is a store that landed late.
      address: in global memory, 0 = none.
      num_bytes: moved.
      extra: by kind: flag id, threads, blocks, value, head of the doorbell, request.
      file, line: in the kernel's source; the name of a kernel or of an allocation in events of the host.
    """

    step: int
    kind: str
    rank: int
    aiv: int
    pipe: str
    lane: int
    address: int
    num_bytes: int
    extra: int
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line, without folders."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def request(self) -> int:
        """Number of a request in its queue, of "urma_post", "urma_done" and "cqe"."""
        return self.extra & 0xFFFFFFFF

    @property
    def jetty(self) -> int:
        """Queue of the rank, of "doorbell" and of what follows it."""
        return self.extra >> 48

    @property
    def num_sges(self) -> int:
        """Gather elements of a request."""
        return self.extra >> 32 & 0xFF

    @property
    def is_nop(self) -> bool:
        """Whether a request moves nothing by intention."""
        return bool(self.extra >> 45 & 1)


def read_twin_events(path: str | Path) -> list[TwinEvent]:
    """Read what `TwinMachine.trace` wrote: one JSON text per line, in the order of the schedule.

    Raises:
      InputError: the file cannot be read, or a line is no event.
    """
    try:
        return msgspec.json.Decoder(TwinEvent).decode_lines(read_file(path))
    except msgspec.MsgspecError as error:
        raise InputError("trace", Path(path).name, f"must be a trace of the twin ({error})") from None


def rank_of(address: int) -> int:
    """Return whose memory a simulated address is in, -1 = nobody's."""
    return (address >> 40) - 1


def twin_trace(events: Sequence[TwinEvent], title: str) -> Trace:
    """Draw a run.

    Kernels, lane functions and requests are spans from their beginning to their end; what the run did not end
    (after a violation) goes on to the last step. Everything else is one step long.

    Args:
      events: in order.
      title: one line that says what ran.
    """
    builder = TraceBuilder()
    last = events[-1].step + 1 if events else 0
    ends = _ends(events)
    for idx, event in enumerate(events):
        if event.kind in _HIDDEN:
            continue
        end = ends.get(idx, last) if event.kind in _SPANS else event.step + 1
        track = builder.track(f"rank {event.rank}", _track(event))
        peer = rank_of(event.address) if event.kind != "launch" and event.address else NO_PEER
        builder.span(
            track, _name(event), event.step * STEP_PS, max(end, event.step + 1) * STEP_PS,
            size_bytes=event.num_bytes, peer=NO_PEER if peer == event.rank else peer,
        )  # fmt: skip
    return builder.build(title=title, meta={"time": TIME, "steps": str(last), "level": "twin"})


def _ends(events: Iterable[TwinEvent]) -> dict[int, int]:
    """Return the step at which the span that event i begins has ended, by i."""
    begun: dict[tuple[object, ...], list[int]] = {}
    found: dict[int, int] = {}
    begins = {end: begin for begin, end in _SPANS.items()}
    for idx, event in enumerate(events):
        if event.kind in _SPANS:
            begun.setdefault((event.kind, *_key(event)), []).append(idx)
        elif event.kind in begins:
            found[begun[begins[event.kind], *_key(event)].pop(0)] = event.step
    return found


def _key(event: TwinEvent) -> tuple[int, ...]:
    """Return what a beginning and its end have in common; V is in order, requests have numbers."""
    if event.kind.startswith("urma"):
        return event.rank, event.jetty, event.request
    return event.rank, event.aiv


def _track(event: TwinEvent) -> str:
    if event.pipe == "HOST":
        return "stream"
    if event.pipe == "URMA":
        return f"jetty {event.jetty}"
    return f"AIV {event.aiv}, {event.pipe}"


def _name(event: TwinEvent) -> str:
    if event.kind == "launch":
        return event.file
    if event.kind == "urma_post":
        return "NOP" if event.is_nop else "write"
    if event.kind == "vf_begin":
        return f"lanes of {event.place}"
    return event.kind
