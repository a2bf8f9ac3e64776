"""The protocol of dispatch as a model small enough to try every interleaving: counts, flags, slots.

Each rank runs a short program once per round. Whatever crosses ranks is in flight until it lands, in any
order: the adds of a barrier, count words, fetched descriptors, the payload of a slot. A round's number is
its payload and its count, so whoever reads a word of another round is caught in the act.
Mechanism: deepep-ascend.md sections 4.1 to 4.4. `RULES` are the ordering rules that the kernels keep; with
any one of them taken away some interleaving must go wrong, or the rule would be superstition.
"""

from collections.abc import Iterator
from typing import NamedTuple

from epsim.conform.interleavings import Outcome, explore

RULES = {
    "entry-wait": "nobody sends before every rank has come to this call",
    "descriptor-before-doorbell": "descriptors are written before the doorbell",
    "strong-last": "the completion of the last descriptor covers all earlier ones",
    "drain": "own writes are complete before a rank comes to the exit barrier",
    "exit-wait": "nobody reads slots before every rank has drained",
    "arrival-check": "a count is read once it has arrived",
    "count-cleared": "a count word is cleared by its reader",
    "clear-before-entry": "a count word is cleared before the rank comes to its next call",
    "two-words": "barriers alternate between two signal words",
    "sign-flip": "every second use of a signal word counts down again",
    "read-before-entry": "slots are read before the rank comes to its next call",
}
PROGRAM = (
    "entry-add", "entry-wait", "counts", "describe", "doorbell", "count-wait", "drain", "exit-add",
    "exit-wait", "read", "next",
)  # fmt: skip
_MAX_STATES = 3_000_000


class Rank(NamedTuple):
    """One rank: its next step and round, the barriers it has passed, and the rounds of its queue."""

    pc: int = 0
    round: int = 1
    barriers: int = 0
    described: int = 0
    complete: int = 0


class World(NamedTuple):
    """All ranks, their memories, and what is in flight; words are [owner][source], 0 = nothing arrived."""

    ranks: tuple[Rank, ...]
    signals: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]
    flight: tuple[tuple[str, int, int, int], ...] = ()
    """Sorted messages (kind, destination, source, value)."""


Steps = Iterator[tuple[str, World | None]]


def check_protocol(
    *, num_ranks: int = 2, num_rounds: int = 2, has_counts: bool = True, without: str = ""
) -> Outcome:
    """Try every interleaving of a few ranks and rounds.

    Args:
      num_ranks: 2 or 3.
      num_rounds: calls one after the other on one buffer.
      has_counts: False leaves the count words out, as cached calls do; with three ranks the states of counts
        and slots together are too many.
      without: a key of `RULES` to take away, "" for none.

    Raises:
      ValueError: an unknown rule, or more states than the search holds.
    """
    model = _Model(num_ranks, num_rounds, has_counts, without)
    return explore(model.start(), model.steps, model.is_end, max_states=_MAX_STATES)


class _Model:
    """The steps that each state allows."""

    def __init__(self, num_ranks: int, num_rounds: int, has_counts: bool, without: str) -> None:
        if without and without not in RULES:
            raise ValueError(f"without: {without!r} is none of {', '.join(RULES)}")
        self.num_ranks, self.num_rounds, self.without = num_ranks, num_rounds, without
        self.program = [action for action in PROGRAM if has_counts or not action.startswith("count")]
        if without == "descriptor-before-doorbell":
            self._move("describe", behind="doorbell")
        if without == "read-before-entry":
            self._move("read", behind="entry-wait")

    def _move(self, action: str, *, behind: str) -> None:
        self.program.remove(action)
        self.program.insert(self.program.index(behind) + 1, action)

    def start(self) -> World:
        n = self.num_ranks
        return World((Rank(),) * n, ((0, 0),) * n, ((0,) * n,) * n, ((0,) * n,) * n)

    def is_end(self, world: World) -> bool:
        return not world.flight and all(rank.round > self.num_rounds for rank in world.ranks)

    def steps(self, world: World) -> Steps:
        """Yield what may happen next: any message lands, or any rank takes its next step.

        A step that nothing else can hinder, and that hinders nothing else, is taken alone: whatever else may
        happen, happens after it just as well (an ample set of partial-order reduction).
        """
        for r in range(self.num_ranks):
            if self._is_free(world, r):
                yield from self._step(world, r)
                return
        for message in sorted(set(world.flight)):
            yield from self._land(world, message)
        for r in range(self.num_ranks):
            yield from self._step(world, r)

    def _step(self, world: World, r: int) -> Steps:
        rank = world.ranks[r]
        if rank.round <= self.num_rounds:
            action = self.program[rank.pc].replace("-", "_")
            yield from getattr(self, f"_{action}")(world, r)

    def _is_free(self, world: World, r: int) -> bool:
        """Whether a rank's next step only sends, or only moves its own program on."""
        rank = world.ranks[r]
        if rank.round > self.num_rounds:
            return False
        action = self.program[rank.pc]
        if action == "counts":
            return self.without != "clear-before-entry"
        if action == "describe":
            return not any(message[0] == "fetch" and message[2] == r for message in world.flight)
        return action in ("entry-add", "exit-add", "doorbell", "next")

    def _land(self, world: World, message: tuple[str, int, int, int]) -> Steps:
        kind, dst, src, value = message
        rest = list(world.flight)
        rest.remove(message)
        world = world._replace(flight=tuple(rest))
        words = f"{kind} {value} of rank {src} lands at rank {dst}"
        if kind == "fetch":
            if world.ranks[src].described != value:
                yield f"rank {src}'s queue fetches a descriptor of round {value} that is not there yet", None
                return
            yield words, _send(world, [("payload", q, src, value) for q in self._peers(src)])
        elif kind == "payload":
            after = world._replace(slots=_set(world.slots, dst, src, value))
            yield words, self._completed(after, src, dst, value)
        elif kind == "count":
            yield words, world._replace(counts=_set(world.counts, dst, src, value))
        else:
            word = 0 if kind == "add0" else 1
            yield (
                words,
                world._replace(signals=_set(world.signals, dst, word, world.signals[dst][word] + value)),
            )

    def _completed(self, world: World, src: int, dst: int, value: int) -> World:
        """Complete the queue once all payload has landed; without the rule, once the last one has."""
        if self.without == "strong-last":
            is_complete = dst == self._peers(src)[-1]
        else:
            is_complete = not any(m[0] == "payload" and m[2] == src for m in world.flight)
        return _rank(world, src, complete=value) if is_complete else world

    def _peers(self, r: int) -> list[int]:
        return [(r + i) % self.num_ranks for i in range(1, self.num_ranks)]

    def _done(self, world: World, r: int, **changes: int) -> tuple[str, World]:
        rank = world.ranks[r]
        words = f"rank {r} round {rank.round}: {self.program[rank.pc]}"
        return words, _rank(world, r, pc=rank.pc + 1, **changes)

    def _signal(self, rank: Rank) -> tuple[int, int, int]:
        """Return word, addend and the value to wait for of a rank's present barrier."""
        word, turn = rank.barriers % 2, rank.barriers // 2
        if self.without == "two-words":
            word, turn = 0, rank.barriers
        is_up = turn % 2 == 0 or self.without == "sign-flip"
        return word, (1 if is_up else -1), (self.num_ranks if is_up else 0)

    def _entry_add(self, world: World, r: int) -> Steps:
        word, addend, _ = self._signal(world.ranks[r])
        yield self._done(_send(world, [(f"add{word}", q, r, addend) for q in range(self.num_ranks)]), r)

    _exit_add = _entry_add

    def _wait(self, world: World, r: int, rule: str) -> Steps:
        rank = world.ranks[r]
        word, _, wanted = self._signal(rank)
        if world.signals[r][word] == wanted or self.without == rule:
            yield self._done(world, r, barriers=rank.barriers + 1)

    def _entry_wait(self, world: World, r: int) -> Steps:
        yield from self._wait(world, r, "entry-wait")

    def _exit_wait(self, world: World, r: int) -> Steps:
        yield from self._wait(world, r, "exit-wait")

    def _counts(self, world: World, r: int) -> Steps:
        if self.without == "clear-before-entry":
            world = world._replace(counts=_set_row(world.counts, r, (0,) * self.num_ranks))
        value = world.ranks[r].round
        yield self._done(_send(world, [("count", q, r, value) for q in range(self.num_ranks)]), r)

    def _describe(self, world: World, r: int) -> Steps:
        yield self._done(world, r, described=world.ranks[r].round)

    def _doorbell(self, world: World, r: int) -> Steps:
        yield self._done(_send(world, [("fetch", r, r, world.ranks[r].round)]), r)

    def _count_wait(self, world: World, r: int) -> Steps:
        row, value = world.counts[r], world.ranks[r].round
        if not all(row) and self.without != "arrival-check":
            return
        for src, count in enumerate(row):
            if count != value:
                yield f"rank {r} reads count {count} of rank {src} in round {value}", None
                return
        if self.without not in ("count-cleared", "clear-before-entry"):
            world = world._replace(counts=_set_row(world.counts, r, (0,) * self.num_ranks))
        yield self._done(world, r)

    def _drain(self, world: World, r: int) -> Steps:
        if world.ranks[r].complete == world.ranks[r].round or self.without == "drain":
            yield self._done(world, r)

    def _read(self, world: World, r: int) -> Steps:
        value = world.ranks[r].round - (self.without == "read-before-entry")
        for src in self._peers(r):
            if value and world.slots[r][src] != value:
                yield f"rank {r} reads payload {world.slots[r][src]} of rank {src} for round {value}", None
                return
        yield self._done(world, r)

    def _next(self, world: World, r: int) -> Steps:
        words, after = self._done(world, r)
        yield words, _rank(after, r, pc=0, round=world.ranks[r].round + 1)


def _set_row(table: tuple[tuple[int, ...], ...], i: int, row: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*table[:i], row, *table[i + 1 :])


def _set(table: tuple[tuple[int, ...], ...], i: int, j: int, value: int) -> tuple[tuple[int, ...], ...]:
    return _set_row(table, i, (*table[i][:j], value, *table[i][j + 1 :]))


def _rank(world: World, r: int, **changes: int) -> World:
    ranks = world.ranks
    return world._replace(ranks=(*ranks[:r], ranks[r]._replace(**changes), *ranks[r + 1 :]))


def _send(world: World, messages: list[tuple[str, int, int, int]]) -> World:
    return world._replace(flight=tuple(sorted([*world.flight, *messages])))
