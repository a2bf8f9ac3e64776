"""Simulated time: integer picoseconds, ties in the order of scheduling, an error for a stuck run."""

from collections.abc import Callable, Generator
from typing import Any

import simpy

Handler = Callable[[simpy.Event], None]
Process = Generator[simpy.Event, Any, None]


class StuckError(RuntimeError):
    """Nothing can happen any more and the goal is not reached.

    Attributes:
      now_ps: when the last event was.
      blocked: what waits, and for what; one sentence each.
    """

    def __init__(self, goal: str, now_ps: int, blocked: list[str]) -> None:
        """Say which goal was missed and who waits for what."""
        self.goal, self.now_ps, self.blocked = goal, now_ps, blocked
        shown = "; ".join(blocked[:MAX_NAMED]) or "nothing waits at all"
        more = f"; and {len(blocked) - MAX_NAMED} more" if len(blocked) > MAX_NAMED else ""
        super().__init__(f"stuck at {now_ps} ps before {goal}: {shown}{more}")


MAX_NAMED = 20
TICK_EVENTS = 16_384
"""Events between two reports of progress: some hundredths of a second."""


class Clock:
    """A SimPy environment that counts its events and knows what is waiting.

    Attributes:
      num_events: events scheduled so far.
      waits: who -> what it waits for, for those that cannot go on by themselves.
    """

    def __init__(self) -> None:
        """Start at 0 ps."""
        self.env = simpy.Environment()
        self.num_events = 0
        self.waits: dict[str, str] = {}
        self._reporters: list[Callable[[], list[str]]] = []

    @property
    def now_ps(self) -> int:
        """Now."""
        return int(self.env.now)

    def after(self, delay_ps: int, handler: Handler, value: object = None) -> None:
        """Call `handler` with an event that holds `value`, `delay_ps` from now."""
        self.num_events += 1
        event = simpy.Timeout(self.env, delay_ps, value)
        event.callbacks.append(handler)

    def wait(self, delay_ps: int) -> simpy.Event:
        """Return an event for a process to yield on."""
        self.num_events += 1
        return simpy.Timeout(self.env, delay_ps)

    def wait_until(self, time_ps: int) -> simpy.Event:
        """Return an event at a time that is not past."""
        return self.wait(max(0, time_ps - self.now_ps))

    def event(self) -> simpy.Event:
        """Return an event that somebody will succeed."""
        self.num_events += 1
        return simpy.Event(self.env)

    def start(self, process: Process) -> simpy.Process:
        """Run a process from now on."""
        self.num_events += 1
        return simpy.Process(self.env, process)

    def report_with(self, reporter: Callable[[], list[str]]) -> None:
        """Ask `reporter` for blocked transfers when the run is stuck."""
        self._reporters.append(reporter)

    def run(self, goal: simpy.Event, name: str, on_tick: Callable[[], None] | None = None) -> int:
        """Run until the goal and return its time.

        Args:
          goal: an event.
          name: of the goal, for the error.
          on_tick: called after every `TICK_EVENTS` events; must not change anything.

        Raises:
          StuckError: no event is left and the goal has not come.
        """
        step = self.env.step
        try:
            while not goal.processed:
                for _ in range(TICK_EVENTS):
                    step()
                    if goal.processed:
                        break
                if on_tick is not None:
                    on_tick()
        except simpy.core.EmptySchedule:
            raise StuckError(name, self.now_ps, self.blocked()) from None
        return self.now_ps

    def blocked(self) -> list[str]:
        """Say who waits for what, processes first."""
        lines = [f"{who} waits for {what}" for who, what in self.waits.items()]
        for reporter in self._reporters:
            lines += reporter()
        return lines
