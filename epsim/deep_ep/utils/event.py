"""Upstream's home of the events."""

from epsim.deep_ep.events import EventError, EventHandle, EventOverlap

__all__ = ["EventError", "EventHandle", "EventOverlap"]
