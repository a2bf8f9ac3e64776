"""Nothing is ordered but what flags order: closing requests cover earlier ones, others cover themselves."""

import numpy as np
import pytest

from tests.native.urmakit import NUM_BYTES, STRATEGIES, STRONG, Fabric, build_script_twin, rules_over

FLAG = NUM_BYTES - 8
BATCH = [(0, 64), (64, 64), (128, 256)]


@pytest.fixture(scope="module")
def twin(jit_cache):
    """Load the twin with the script kernel."""
    return build_script_twin(jit_cache)


def told(fabric: Fabric, *offsets: int) -> None:
    """Rank 0 tells rank 1 by UBMEM, which then reads 64 bytes at each offset."""
    fabric.script(0).store(fabric.windows[1] + FLAG, 1).fence()
    reader = fabric.script(1).poll(fabric.windows[1] + FLAG, 1)
    for offset in offsets:
        reader.read(fabric.windows[1] + offset)


def batch(earlier: dict[str, int], closing: dict[str, int], *, nop: bool = False):
    """Return a run: three writes, a closing request with completion, drain, tell, read all."""

    def build(fabric):
        queue = fabric.queue()
        for offset, num_bytes in BATCH:
            queue.write(offset, num_bytes, **earlier)
        if nop:
            queue.nop(completion=1, **closing)
        else:
            queue.write(512, completion=1, **closing)
        queue.ring().drain()
        told(fabric, *(offset for offset, _ in BATCH), *([] if nop else [512]))

    return build


COVERED = {
    "relaxed, then strong with fence": batch({"order": 1}, {"order": 5, "fence": 1}),
    "none, then strong with fence": batch({"order": 0}, {"order": 5, "fence": 1}),
    "relaxed, then strong": batch({"order": 1}, {"order": 5}),
    "relaxed, then a NOP of order 2": batch({"order": 1}, {"order": 2}, nop=True),
    "none, then a NOP with fence": batch({"order": 0}, {"order": 2, "fence": 1}, nop=True),
    "strong, then strong": batch({"order": 5}, {"order": 5}),
}
UNCOVERED = {
    "relaxed, then relaxed": batch({"order": 1}, {"order": 1}),
    "relaxed, then relaxed with fence": batch({"order": 1}, {"order": 1, "fence": 1}),
    "none, then strong": batch({"order": 0}, {"order": 5}),
    "none, then a NOP of order 2": batch({"order": 0}, {"order": 2}, nop=True),
    "relaxed, then a NOP of order 0": batch({"order": 1}, {"order": 0}, nop=True),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_closing_request_covers_what_it_waits_for(twin, name):
    assert rules_over(twin, COVERED[name]) == {""}


@pytest.mark.parametrize("name", UNCOVERED)
def test_a_completion_covers_nothing_else(twin, name):
    assert rules_over(twin, UNCOVERED[name]) == {"data_race"}


def test_a_strong_request_without_fence_covers_those_with_an_order(twin):
    def build(offset):
        def run(fabric):
            queue = fabric.queue()
            queue.write(0, order=1).write(64, order=0).write(128, order=1)
            queue.write(192, order=5, completion=1).ring().drain()
            told(fabric, offset)

        return run

    assert rules_over(twin, build(128)) == {""}
    assert rules_over(twin, build(64)) == {"data_race"}


@pytest.mark.parametrize(
    ("second", "rules"), [({"order": 1}, {"data_race"}), ({"order": 5, "fence": 1}, {""})]
)
def test_two_writes_to_one_place(twin, second, rules):
    def build(fabric):
        fabric.queue().write(0, order=1).write(32, **second).ring()

    assert rules_over(twin, build) == rules


def test_later_writes_overtake_a_strong_one(twin):
    def build(fabric):
        fabric.queue().write(0, **STRONG).write(32, order=1).ring()

    assert rules_over(twin, build) == {"data_race"}


def test_nothing_is_ordered_across_queues(twin):
    def build(with_drain):
        def run(fabric):
            other = fabric.queue(0, 1)
            other.write(64, **STRONG).ring()
            if with_drain:
                other.drain()
            other.script.add(5)
            queue = fabric.queue(0, 0)
            queue.script.add(5)
            queue.write(0, **STRONG).ring().drain()
            told(fabric, 0, 64)
            for aiv in range(2):
                fabric.script(1, aiv).add(5)

        return run

    assert rules_over(twin, build(with_drain=False), aivs=2) == {"data_race"}
    assert rules_over(twin, build(with_drain=True), aivs=2) == {""}


def orders_seen(twin, tmp_path, kind, **flags):
    """Return the orders in which four writes reach a kind of event, over seeds and strategies."""
    seen = set()
    for strategy in STRATEGIES:
        for seed in range(8):
            fabric = Fabric(twin, seed, strategy, trace=1)
            queue = fabric.queue()
            for i in range(4):
                queue.write(64 * i, completion=1, **flags)
            queue.ring().drain()
            fabric.run()
            seen.add(tuple(event["extra"] & 0xFFFFFFFF for event in fabric.events(tmp_path, kind)))
            np.testing.assert_array_equal(fabric.window(1)[:256], fabric.content[0][:256])
    return seen


@pytest.mark.parametrize("kind", ["urma_done", "cqe"])
def test_unordered_writes_and_their_completions_come_in_many_orders(twin, tmp_path, kind):
    assert len(orders_seen(twin, tmp_path, kind, order=1)) > 5


def test_strong_writes_land_in_their_order(twin, tmp_path):
    assert orders_seen(twin, tmp_path, "urma_done", order=5, fence=1) == {(1, 2, 3, 4)}


@pytest.mark.parametrize("name", UNCOVERED)
def test_the_empty_machine_sees_no_missing_order(twin, name):
    """Strategy inorder lands everything in the order of the queue and judges no order."""
    fabric = Fabric(twin, 0, "inorder")
    UNCOVERED[name](fabric)
    fabric.run()
    np.testing.assert_array_equal(fabric.window(1)[:384], fabric.content[0][:384])


def test_events_say_what_a_request_was(twin, tmp_path):
    fabric = Fabric(twin, aivs=2, trace=1)
    fabric.queue(1, 1).nop().write(128, 96, peer=0, **STRONG).ring().drain()
    fabric.run()
    for kind in ("urma_post", "urma_done"):
        nop, write = fabric.events(tmp_path, kind)
        assert write["address"] == fabric.windows[0] + 128
        assert (write["bytes"], write["rank"], write["aiv"], write["pipe"]) == (96, 1, 1, "URMA")
        assert write["extra"] == 2 | 1 << 32 | 5 << 40 | 1 << 43 | 1 << 44 | 1 << 48
        assert (nop["address"], nop["bytes"], nop["extra"]) == (0, 0, 1 | 1 << 45 | 1 << 48)
