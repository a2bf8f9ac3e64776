"""Barriers and count exchanges: everybody waits for the last one."""

import simpy

from epsim.sim.clock import Clock


class Meeting:
    """An all-to-all signal over load/store: it is over `latency_ps` after the last rank has come.

    Args:
      clock: the time.
      name: for people.
      num_ranks: how many must come.
      latency_ps: from the last arrival to everybody's going on.
    """

    def __init__(self, clock: Clock, name: str, num_ranks: int, latency_ps: int) -> None:
        """Start with nobody."""
        self.clock, self.name = clock, name
        self.missing = set(range(num_ranks))
        self.latency_ps = latency_ps
        self.over = clock.event()
        self.last_ps = 0
        self.over_ps = 0
        clock.report_with(self._blocked)

    def arrive(self, rank: int) -> simpy.Event:
        """Take note of a rank and return the event to wait for."""
        self.missing.remove(rank)
        if not self.missing:
            self.last_ps = self.clock.now_ps
            self.over_ps = self.last_ps + self.latency_ps
            self.clock.after(self.latency_ps, self._end)
        return self.over

    def _end(self, _event: simpy.Event) -> None:
        self.over.succeed()

    def _blocked(self) -> list[str]:
        num_here = len(self.over.callbacks or ())
        if not self.missing or not num_here:
            return []
        ranks = sorted(self.missing)
        named = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
        return [f"{self.name} waits for rank{'s' if len(ranks) > 1 else ''} {named}"]
