"""Explicit-state search: every interleaving of a small model, the shortest counterexample first."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Args:
      num_states: distinct states that were reached.
      fault: "" when every interleaving ends well; else what goes wrong first.
      path: the steps that lead there, one line each; empty without a fault.
    """

    num_states: int
    fault: str = ""
    path: tuple[str, ...] = ()


def explore(
    start: State,
    steps: Callable[[State], Iterator[tuple[str, State | None]]],
    is_end: Callable[[State], bool],
    *,
    max_states: int,
) -> Outcome:
    """Walk all states breadth first until one is wrong.

    Args:
      start: the first state.
      steps: of a state, each possible step as (words, state after it); None as state means that the step
        itself is the fault which the words name.
      is_end: whether a state without steps is a good end; any other such state is a deadlock.
      max_states: more states than that are refused: a search that stops early proves nothing.

    Raises:
      ValueError: the model has more than `max_states` states.
    """
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        is_stuck = True
        for words, after in steps(state):
            is_stuck = False
            if after is None:
                return Outcome(len(came_from), words, (*_path(came_from, state), words))
            if after not in came_from:
                came_from[after] = (state, words)
                queue.append(after)
        if is_stuck and not is_end(state):
            return Outcome(len(came_from), "deadlock: nobody can go on", _path(came_from, state))
        if len(came_from) > max_states:
            raise ValueError(f"the model has more than {max_states} states")
    return Outcome(len(came_from))


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    """Return the steps from the start to a state."""
    lines = []
    before = came_from[state]
    while before is not None:
        state, words = before
        lines.append(words)
        before = came_from[state]
    return tuple(reversed(lines))
