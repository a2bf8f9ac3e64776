"""What an operation needs to know of its buffer, and the rule of one operation at a time."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from epsim.deep_ep.capacity import Room
from epsim.deep_ep.errors import UndefinedError
from epsim.deep_ep.events import EventHandle, EventOverlap
from epsim.deep_ep.exchange import Exchange
from epsim.deep_ep.watch import Watch
from reference.handle import DispatchMode

Finish = Callable[[], Any]


class Outstanding:
    """The deferred operation of a buffer that nobody has waited for yet, if any."""

    def __init__(self) -> None:
        """Start with none."""
        self._event: weakref.ref[EventOverlap] | None = None
        self._name = ""

    def check_idle(self, operation: str) -> None:
        """Refuse a further operation while one is outstanding.

        Raises:
          UndefinedError: both would use the same memory; on the device one would overwrite the other's. If
            nobody can wait for it any more, this is said once, and the buffer is free again.
        """
        if self._event is None:
            return
        if self._event() is not None:
            rule = f"one operation at a time: wait for it before {operation}"
            raise UndefinedError("buffer", f"busy with a deferred {self._name}, not waited for yet", rule)
        self._event = None
        rule = f"its results are lost, so keep the event; the buffer is free again, repeat the {operation}"
        raise UndefinedError("buffer", f"left with a deferred {self._name}, dropped without a wait", rule)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody still holds the event of an outstanding operation."""
        return self._event is not None and self._event() is not None

    def defer(self, operation: str, finish: Finish, watch: Watch) -> EventOverlap:
        """Return an event whose wait runs an operation's epilogue, once.

        Args:
          operation: its name.
          finish: the epilogue.
          watch: tensors that must not be written to until then; the event keeps them alive.
        """
        event = EventOverlap(EventHandle(), tuple(watch.tensors.values()))

        def hook() -> Any:  # noqa: ANN401 - the epilogue decides
            self._event = None
            watch.check(operation)
            return finish()

        event.register_hook_after_wait(hook)
        self._event, self._name = weakref.ref(event), operation
        return event


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """One EP buffer as its operations see it.

    Args:
      exchange: channel to the other ranks.
      room: limits of the buffer.
      mode: edition, domains, and how arrival is ordered; expand and cpu_sync are each call's own.
      num_max_tokens_per_rank: M that calls use when they give none.
      buffer_id: the same on all ranks, and of no other buffer; drawn by rank 0.
      outstanding: see its class.
    """

    exchange: Exchange
    room: Room
    mode: DispatchMode
    num_max_tokens_per_rank: int
    buffer_id: str
    outstanding: Outstanding = field(default_factory=Outstanding)

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return int(self.exchange.rank)

    @property
    def num_ranks(self) -> int:
        """R."""
        return int(self.exchange.num_ranks)

    @property
    def is_hybrid(self) -> bool:
        """Whether there are several scale-up domains."""
        return self.room.num_scaleup_ranks < self.num_ranks
