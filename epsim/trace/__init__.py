"""Timelines: one type for simulated and measured runs, its exports, its imports and its pictures."""

from epsim.trace.trace import LinkLoad, Trace, TraceBuilder

__all__ = ["LinkLoad", "Trace", "TraceBuilder"]
