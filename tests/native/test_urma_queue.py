"""Queues of a jetty: who may write blocks and when, what a doorbell may say, how completions are taken."""

import numpy as np
import pytest

from tests.native.urmakit import (
    COPY,
    LANES,
    NUM_BYTES,
    STRONG,
    SYNC,
    Fabric,
    Queue,
    build_script_twin,
    rules_over,
)

DEPTH = 8


@pytest.fixture(scope="module")
def twin(jit_cache):
    """Load the twin with the script kernel."""
    return build_script_twin(jit_cache)


def publish(queue: Queue, head: int) -> Queue:
    """Store the head, without a fence."""
    queue.script.store(queue.info["sq_head_address"], head | queue.num_expected << 32)
    return queue


def late_words(queue: Queue) -> Queue:
    """Write a request after the last fence before its doorbell."""
    publish(queue, 1).script.fence()
    return queue.write(0).bell(1)


def laps(fabric: Fabric, *, closing: dict[str, int], num_batches: int = 8) -> None:
    """Fill the ring of 8 blocks again and again, three requests at a time, drained after each batch."""
    queue = fabric.queue()
    for i in range(num_batches):
        offset = 192 * i
        queue.write(offset).write(offset + 64).write(offset + 128, **closing).ring().drain()


def test_rings_are_lapped(twin):
    assert rules_over(twin, lambda f: laps(f, closing=STRONG), sq_depth=DEPTH, cq_depth=2) == {""}
    fabric = Fabric(twin, sq_depth=DEPTH, cq_depth=2)
    laps(fabric, closing=STRONG)
    fabric.run()
    np.testing.assert_array_equal(fabric.window(1)[:1536], fabric.content[0][:1536])


def test_blocks_are_free_only_when_their_completion_was_seen(twin):
    def undrained(fabric):
        queue = fabric.queue()
        for i in range(9):
            queue.write(64 * i, **STRONG).ring()

    closing = {"order": 1, "completion": 1}  # says nothing of the two before it
    assert rules_over(twin, lambda f: laps(f, closing=closing), sq_depth=DEPTH) == {"sq_overflow"}
    assert rules_over(twin, undrained, sq_depth=DEPTH) == {"sq_overflow"}


def test_more_blocks_than_the_ring_has(twin):
    def build(num_requests):
        def run(fabric):
            queue = fabric.queue()
            for i in range(num_requests):
                queue.write(64 * i)
            queue.ring()

        return run

    assert rules_over(twin, build(DEPTH), sq_depth=DEPTH) == {""}
    assert rules_over(twin, build(DEPTH + 1), sq_depth=DEPTH) == {"sq_overflow"}


@pytest.mark.parametrize("sync", [False, True])
def test_blocks_written_by_another_aiv(twin, sync):
    """One shared queue, the requests of one AIV at places that the other one chose (B-YU5)."""

    def build(fabric):
        helper = fabric.queue(0, 1, jetty=0)
        helper.head = 1
        helper.write(64).script.fence()
        owner = fabric.queue(0, 0).write(0)
        if sync:
            for rank, aiv in np.ndindex(2, 2):
                fabric.script(rank, aiv).add(SYNC)
        owner.head = 2
        owner.ring()

    # Without the other AIV's words the block is of the lap before: the schedule decides which rule breaks.
    rules = rules_over(twin, build, range(8), aivs=2)
    assert rules == {""} if sync else {"sq_two_producers"} <= rules <= {"sq_two_producers", "sqe_bad_owner"}


@pytest.mark.parametrize("sync", [False, True])
def test_doorbells_of_two_aivs(twin, sync):
    def build(fabric):
        fabric.queue(0, 0).write(0).ring()
        if sync:
            for rank, aiv in np.ndindex(2, 2):
                fabric.script(rank, aiv).add(SYNC)
        second = fabric.queue(0, 1, jetty=0)
        second.head = int(sync)
        second.write(64).ring()

    rules = rules_over(twin, build, range(8), aivs=2)
    assert rules == {""} if sync else "sq_two_producers" in rules and "" not in rules


DOORBELLS = {
    "beyond the head": ("doorbell_beyond_head", lambda q: q.write(0).ring(2)),
    "before the head is published": ("doorbell_beyond_head", lambda q: q.write(0).ring(1, published=0)),
    "backwards": ("doorbell_beyond_head", lambda q: q.write(0).ring().ring(0)),
    "with the head set back": ("doorbell_beyond_head", lambda q: q.write(0).ring().ring(published=0)),
    "with completions in its upper half": ("bad_argument", lambda q: q.write(0).ring(1 | 1 << 32)),
    "before the last request is written": ("sqe_bad_owner", lambda q: q.write(0).ring(2, published=2)),
    "head without a fence": ("doorbell_beyond_head", lambda q: publish(q.write(0), 1).bell(1)),
}


@pytest.mark.parametrize("name", DOORBELLS)
def test_bad_doorbells_are_refused(twin, name):
    rule, run = DOORBELLS[name]
    assert rules_over(twin, lambda fabric: run(fabric.queue())) == {rule}


def test_requests_must_be_complete_at_the_doorbell(twin):
    """A store that has not landed leaves the block of the lap before."""
    rules = rules_over(twin, lambda fabric: late_words(fabric.queue()), range(8))
    assert {"data_race"} <= rules <= {"data_race", "sqe_bad_owner"}


def test_doorbells_may_come_in_parts_and_twice(twin):
    def build(fabric):
        fabric.queue().write(0).write(64).ring(1).bell(2).bell(2)

    assert rules_over(twin, build) == {""}


def recount(queue: Queue, change: int) -> Queue:
    """Ring for one write with completion, but count another number of completions."""
    queue.write(0, **STRONG)
    queue.num_expected += change
    return queue.ring()


def give_back(queue: Queue, value: int) -> Queue:
    """Ring the CQ doorbell."""
    queue.script.store(queue.info["cq_doorbell_address"], value).fence()
    return queue


def three_completions(queue: Queue) -> Queue:
    """Ask for three completions at once."""
    return queue.write(0, **STRONG).write(64, **STRONG).write(128, **STRONG).ring()


COMPLETIONS = {
    "more than the queue holds": lambda q: three_completions(q),
    "not given back": lambda q: three_completions(q.write(0, **STRONG).ring().take()),
    "one too few is counted": lambda q: recount(q, -1),
    "one too many is counted": lambda q: recount(q, 1),
    "none is there": lambda q: give_back(q, 1),
    "given back before it was read": lambda q: give_back(q.write(0, **STRONG).ring(), 1),
    "given back twice": lambda q: give_back(q.write(0, **STRONG).ring().drain(), 2),
    "backwards": lambda q: give_back(q.write(0, **STRONG).ring().drain(), 0),
    "more than 24 bits": lambda q: give_back(q.write(0, **STRONG).ring().take(), 1 | 1 << 24),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_misuse_of_completions_is_refused(twin, name):
    assert rules_over(twin, lambda f: COMPLETIONS[name](f.queue()), cq_depth=2) == {"cq_misuse"}


def test_completions_taken_by_two_aivs(twin):
    def build(sync):
        def run(fabric):
            first = fabric.queue(0, 0).write(0, **STRONG).write(64, **STRONG).ring()
            first.take()
            give_back(first, 1)
            second = fabric.queue(0, 1, jetty=0)
            if sync:
                for rank, aiv in np.ndindex(2, 2):
                    fabric.script(rank, aiv).add(SYNC)
            second.num_expected = 2
            second.take()
            give_back(second, 2)

        return run

    assert "cq_misuse" in rules_over(twin, build(False), range(8), aivs=2)
    assert rules_over(twin, build(True), aivs=2) == {""}


SOURCES = {
    "stored and fenced": ({""}, lambda s, at, _: s.store(at, 7).fence()),
    "stored without a fence": ({"data_race"}, lambda s, at, _: s.fence().store(at, 7)),
    "copied and waited for": ({""}, lambda s, at, spare: s.add(COPY, at, spare, 64 | 1 << 32)),
    "copied, not waited for": ({"data_race"}, lambda s, at, spare: s.add(COPY, at, spare, 64)),
    "written by lanes nobody waits for": ({"data_race"}, lambda s, at, _: s.add(LANES, at, 8, 1)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_must_be_complete_at_the_doorbell(twin, name):
    rules, write_source = SOURCES[name]

    def build(fabric):
        queue = publish(fabric.queue().write(0), 1)
        queue.script.fence()
        write_source(queue.script, fabric.sources[0], fabric.sources[0] + 2048)
        queue.bell(1)

    assert rules_over(twin, build) == rules


@pytest.mark.parametrize("drained", [False, True])
def test_sources_stay_until_the_completion(twin, drained):
    """The next generation must not start on an unfinished queue (B-YU8)."""

    def build(fabric):
        queue = fabric.queue().write(0, **STRONG).ring()
        if drained:
            queue.drain()
        queue.script.store(fabric.sources[0] + 8, 1).fence()

    assert rules_over(twin, build) == ({""} if drained else {"data_race"})


def test_the_far_end_of_a_window_is_reached_by_the_last_byte(twin):
    def build(fabric):
        fabric.queue().write(NUM_BYTES - 64, **STRONG).ring().drain()

    assert rules_over(twin, build) == {""}
