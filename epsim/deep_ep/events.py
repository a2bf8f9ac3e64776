"""`EventHandle` and `EventOverlap` on the CPU, where work is done when the call returns.

What waiting does beyond the stream, hooks above all, is that of `reference.events`.
"""

from reference.events import CompletedEvent, EventError, EventOverlap

__all__ = ["EventError", "EventHandle", "EventOverlap"]


class EventHandle(CompletedEvent):
    """An event recorded at its construction: work that came before it is done, so a wait returns at once."""
