"""Two ranks in turn: payload, then flag, in every way that the protocol knows, and in ways that lose it."""

import numpy as np
import pytest

from tests.native.urmakit import (
    NUM_BYTES,
    STRATEGIES,
    STRONG,
    Fabric,
    Queue,
    build_script_twin,
    rules_over,
)

PAYLOAD = 192
FLAG = 2048
RELAXED = {"order": 1, "completion": 1}


@pytest.fixture(scope="module")
def twin(jit_cache):
    """Load the twin with the script kernel."""
    return build_script_twin(jit_cache)


def flag_value(fabric: Fabric, rank: int, turn: int) -> int:
    """Return the word of the source that a rank sends as flag of a turn."""
    return int(fabric.content[rank][FLAG:].view("<u4")[2 * turn])


def strong_flag(queue: Queue, turn: int) -> None:
    """Send payload and flag in one batch, the flag after all before it."""
    queue.write(0, PAYLOAD).write(FLAG + 8 * turn, 8, **STRONG).ring().drain()


def relaxed_flag(queue: Queue, turn: int) -> None:
    """Send payload and flag in one batch without an order."""
    queue.write(0, PAYLOAD).write(FLAG + 8 * turn, 8, **RELAXED).ring().drain()


def drained_flag(queue: Queue, turn: int) -> None:
    """Send the payload, wait for it, then send the flag (B-OT4)."""
    queue.write(0, PAYLOAD, **RELAXED).ring().drain()
    queue.write(FLAG + 8 * turn, 8, **RELAXED).ring().drain()


def notified(queue: Queue, turn: int) -> None:
    """Send the payload with a notify behind it."""
    value = flag_value(queue.fabric, queue.rank, turn)
    queue.post(queue.notify(0, PAYLOAD, FLAG + 8 * turn, value, **RELAXED)).ring().drain()


def two_notified(queue: Queue, turn: int) -> None:
    """Send half of the payload before the write with notify, which does not wait for it."""
    value = flag_value(queue.fabric, queue.rank, turn)
    sqe = queue.notify(0, PAYLOAD // 2, FLAG + 8 * turn, value, **RELAXED)
    queue.write(PAYLOAD // 2, PAYLOAD // 2)
    queue.post(sqe, wqebb_idx=queue.head).ring().drain()


def ping_pong(send, num_turns: int = 6):
    """Return a run in which two ranks answer each other, each payload over the last one."""

    def build(fabric):
        queues = [fabric.queue(rank) for rank in range(2)]
        for turn in range(num_turns):
            sender, receiver = queues[turn % 2], queues[1 - turn % 2]
            send(sender, turn)
            value = flag_value(fabric, sender.rank, turn)
            window = fabric.windows[receiver.rank]
            receiver.script.poll(window + FLAG + 8 * turn, value).read(window, PAYLOAD)

    return build


ORDERED = [strong_flag, drained_flag, notified]


@pytest.mark.parametrize("send", ORDERED)
def test_payload_is_there_when_the_flag_is(twin, send):
    assert rules_over(twin, ping_pong(send), sq_depth=8, cq_depth=4) == {""}


@pytest.mark.parametrize("send", [relaxed_flag, two_notified])
def test_a_flag_that_overtakes_its_payload(twin, send):
    assert rules_over(twin, ping_pong(send), sq_depth=8, cq_depth=4) == {"data_race"}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("send", ORDERED)
def test_windows_hold_what_was_sent(twin, send, strategy):
    fabric = Fabric(twin, 5, strategy)
    ping_pong(send)(fabric)
    fabric.run()
    for rank in range(2):
        window, other = np.zeros(NUM_BYTES, np.uint8), fabric.content[1 - rank]
        window[:PAYLOAD] = other[:PAYLOAD]
        for turn in range(1 - rank, 6, 2):
            at = FLAG + 8 * turn
            window[at : at + 8] = other[at : at + 8]
        found = fabric.window(rank)
        if send is notified:  # a flag of 4 bytes
            for turn in range(1 - rank, 6, 2):
                window[FLAG + 8 * turn + 4 : FLAG + 8 * turn + 8] = 0
        np.testing.assert_array_equal(found, window)


def test_a_seed_is_a_schedule(twin):
    def hashes(seeds):
        found = []
        for seed in seeds:
            fabric = Fabric(twin, seed, "random")
            ping_pong(strong_flag)(fabric)
            fabric.run()
            found.append(fabric.machine.stats()["hash"])
        return found

    assert hashes([3] * 5) == hashes([3]) * 5
    assert len(set(hashes(range(5)))) > 1
