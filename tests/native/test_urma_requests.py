"""What a request says is checked before anything lands: bits, peers, tokens, windows, lengths, own memory."""

from dataclasses import replace

import numpy as np
import pytest

from reference.memory.descriptor import Sge, write_sqe
from tests.native.urmakit import NUM_BYTES, STRATEGIES, STRONG, Fabric, Queue, build_script_twin, rules_over

FLAG = NUM_BYTES - 8


@pytest.fixture(scope="module")
def twin(jit_cache):
    """Load the twin with the script kernel."""
    return build_script_twin(jit_cache)


def hand_over(fabric: Fabric, *ranges: tuple[int, int]) -> None:
    """Rank 0 sets a flag in the window of rank 1, which then reads ranges of it."""
    fabric.script(0).store(fabric.windows[1] + FLAG, 1).fence()
    reader = fabric.script(1).poll(fabric.windows[1] + FLAG, 1)
    for offset, num_bytes in ranges:
        reader.read(fabric.windows[1] + offset, num_bytes)


def gather(queue: Queue, target: int, pieces: list[tuple[int, int]], **flags: int) -> Queue:
    """Post a write of several pieces of the source."""
    fabric = queue.fabric
    sges = [Sge(address=fabric.sources[queue.rank] + offset, num_bytes=n) for offset, n in pieces]
    peer = fabric.peer(queue.rank, 1)
    return queue.post(write_sqe(queue.head, peer, fabric.windows[1] + target, sges, **flags))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_pieces_land_behind_each_other(twin, strategy, seed):
    fabric = Fabric(twin, seed, strategy)
    queue = fabric.queue()
    pieces = [(1000 + 100 * i, 2 + 7 * i) for i in range(12)]
    gather(queue, 512, pieces)
    queue.nop()
    queue.write(64, 64).write(256, 10, **STRONG).ring().drain()
    hand_over(fabric, (64, 64), (512, sum(n for _, n in pieces)), (256, 10))
    fabric.run()
    source, window = fabric.content[0], np.zeros(NUM_BYTES, np.uint8)
    landed = np.concatenate([source[a : a + n] for a, n in pieces])
    window[512 : 512 + len(landed)] = landed
    window[64:128], window[256:266] = source[64:128], source[256:266]
    window[FLAG] = 1
    np.testing.assert_array_equal(fabric.window(1), window)
    assert not fabric.window(0).any()


def test_a_request_may_carry_its_payload_itself(twin):
    fabric = Fabric(twin)
    queue = fabric.queue()
    words = (Sge(num_bytes=0x44332211, token_id=0x88776655, address=0xAA99),)
    sqe = replace(queue.request(128, 8, **STRONG), sges=words)
    sqe = replace(sqe, peer_word=sqe.peer_word & ~(0xFF << 24))
    queue.post(sqe, inline=1, inline_bytes=10).ring().drain()
    hand_over(fabric, (128, 10))
    fabric.run()
    assert bytes(fabric.window(1)[128:139]).hex() == "112233445566778899aa00"


def at(queue: Queue, **changes) -> Queue:
    """Post a write with changed fields."""
    return queue.post(replace(queue.request(0), **changes))


def resized(queue: Queue, num_bytes: int, **changes) -> Queue:
    """Post a write whose one gather element has a changed length or token."""
    sge = Sge(address=queue.fabric.sources[0], num_bytes=num_bytes, **changes)
    return at(queue, sges=(sge,))


def stray_bit(queue: Queue) -> Queue:
    """Set a bit of the first header word that has no meaning."""
    queue.write(0)
    _, address, word, size = queue.script.rows[0]
    queue.script.store(address, word | 1 << 24, size)
    return queue


def from_address(queue: Queue, address: int) -> Queue:
    """Post a write that gathers from another place."""
    return at(queue, sges=(Sge(address=address, num_bytes=64),))


def misdirected_notify(queue: Queue, **changes: int) -> Queue:
    """Post a write with notify whose notify words are changed."""
    sqe = queue.notify(0, 64, 128, 5)
    return queue.post(replace(sqe, sges=(replace(sqe.sges[0], **changes), *sqe.sges[1:])))


THIRTEEN = [(16 * i, 16) for i in range(13)]
FAULTS = {
    "owner bit of the other lap": ("sqe_bad_owner", lambda q: q.post(q.request(0), owner=0)),
    "index of another block": ("sqe_bad_index", lambda q: q.post(q.request(0), wqebb_idx=7)),
    "index 0 without completion": ("sqe_bad_index", lambda q: q.nop().post(q.request(0), wqebb_idx=0)),
    "opcode read": ("sqe_bad_opcode", lambda q: q.post(q.request(0), opcode=6)),
    "order 3": ("sqe_bad_opcode", lambda q: q.post(q.request(0), order=3)),
    "stray bit": ("sqe_bad_opcode", stray_bit),
    "no payload": ("sqe_bad_length", lambda q: at(q, sges=(), peer_word=q.request(0).peer_word & ~(1 << 24))),
    "13 elements": ("sqe_bad_length", lambda q: gather(q, 0, THIRTEEN)),
    "empty element": ("sqe_bad_length", lambda q: resized(q, 0)),
    "more than 2**28 bytes": ("sqe_bad_length", lambda q: resized(q, 2**28 + 1)),
    "inline with elements": ("sqe_bad_length", lambda q: q.post(q.request(0), inline=1, inline_bytes=8)),
    "NOP with elements": ("sqe_bad_length", lambda q: q.post(q.request(0), opcode=0x11)),
    "element with a token": ("wrong_token", lambda q: resized(q, 64, token_id=1)),
    "token switched off": ("wrong_token", lambda q: q.post(q.request(0), token_enable=0)),
    "token value": ("wrong_token", lambda q: at(q, token_value=q.request(0).token_value + 1)),
    "token id": ("wrong_token", lambda q: at(q, peer_word=q.request(0).peer_word ^ 1 << 32)),
    "transport": ("wrong_token", lambda q: at(q, peer_word=q.request(0).peer_word ^ 1)),
    "unknown peer": ("wrong_token", lambda q: at(q, eid=(1, 2))),
    "token of another peer": ("wrong_token", lambda q: at(q, token_value=q.request(0, peer=2).token_value)),
    "own identity": ("self_send", lambda q: at(q, eid=q.fabric.peer(1, 0).eid)),
    "own window": ("self_send", lambda q: at(q, remote_address=q.fabric.windows[0])),
    "last byte outside": ("remote_out_of_window",
                          lambda q: at(q, remote_address=q.fabric.windows[1] + NUM_BYTES - 63)),
    "before the window": ("remote_out_of_window", lambda q: at(q, remote_address=q.fabric.windows[1] - 64)),
    "window of a third rank": ("remote_out_of_window",
                               lambda q: at(q, remote_address=q.fabric.windows[2])),
    "source of another rank": ("gm_out_of_bounds", lambda q: from_address(q, q.fabric.sources[1])),
    "source beyond its end": ("gm_out_of_bounds",
                              lambda q: from_address(q, q.fabric.sources[0] + NUM_BYTES - 32)),
    "notify under another token": ("wrong_token", lambda q: misdirected_notify(q, token_id=3)),
    "notify outside": ("remote_out_of_window",
                       lambda q: misdirected_notify(q, address=q.fabric.windows[1] + NUM_BYTES)),
    "notify unaligned": ("unaligned_access",
                         lambda q: misdirected_notify(q, address=q.fabric.windows[1] + 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_requests_are_refused(twin, name):
    rule, post = FAULTS[name]

    def build(fabric):
        post(fabric.queue()).ring()

    assert rules_over(twin, build, range(1), ranks=3) == {rule}


def test_a_request_that_reaches_beyond_the_doorbell(twin):
    def build(fabric):
        queue = fabric.queue()
        gather(queue, 0, [(0, 16), (64, 16)])
        queue.ring(1)

    assert rules_over(twin, build, range(1)) == {"sqe_bad_length"}


def test_single_writes_may_have_index_0(twin):
    def build(fabric):
        queue = fabric.queue().nop()
        queue.post(queue.request(0, **STRONG), wqebb_idx=0).ring().drain()

    assert rules_over(twin, build) == {""}
