"""Discrete events: cards, jetties, ports and switches in integer picoseconds (SimPy lives here only)."""
