"""Work requests: bits by hand, and every request read back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import ConfigError
from reference.memory.descriptor import (
    COMBINE_WQEBBS,
    FLAG_BITS,
    JETTY_INFO,
    OPCODE_NOP,
    OPCODE_WRITE,
    PEER_BITS,
    Peer,
    Sge,
    combine_blocks,
    combine_end_blocks,
    dispatch_blocks,
    nop_sqe,
    owner_bit,
    pack_bits,
    unpack_bits,
    unpack_sqe,
    write_sqe,
)

PEER = Peer(
    tp_id=0xABCDEF,
    token_id=0x12345,
    eid=(0x1111, 0x2222),
    token_value=0x3333,
    window_base=2**40,
    window_bytes=2**30,
)
U64 = st.integers(0, 2**64 - 1)


def words(blocks):
    return [int(w) for w in blocks.view("<u8")]


def test_flag_fields_lie_on_the_printed_bits():
    places = {
        "wqebb_idx": 0xFFFF,
        "order": 7 << 16,
        "fence": 1 << 19,
        "se": 1 << 20,
        "completion": 1 << 21,
        "inline": 1 << 22,
        "udf": 1 << 23,
        "nf": 1 << 27,
        "token_enable": 1 << 28,
        "jetty_type": 3 << 29,
        "owner": 1 << 31,
        "hint": 0xFF << 32,
        "opcode": 0xFF << 40,
        "inline_bytes": 0x3FF << 54,
    }
    for name, mask in places.items():
        _, width = FLAG_BITS[name]
        assert pack_bits(FLAG_BITS, {name: (1 << width) - 1}) == mask, name
    assert set(places) == set(FLAG_BITS)


@given(st.fixed_dictionaries({name: st.integers(0, 2**width - 1) for name, (_, width) in FLAG_BITS.items()}))
def test_flags_are_read_back(values):
    assert unpack_bits(FLAG_BITS, pack_bits(FLAG_BITS, values)) == values


def test_write_template_by_hand():
    # owner 1, type 1, token enable, order 1, index 5; opcode 3: 0x3 << 40 | 0xb0010005.
    sqe = write_sqe(5, PEER, 2**40 + 640, [Sge(address=2**33, num_bytes=256)])
    assert words(sqe.pack()) == [
        0x0000_0300_B001_0005,
        0x0001_2345_01AB_CDEF,
        0x1111,
        0x2222,
        0x3333,
        2**40 + 640,
        256,
        2**33,
    ]


def test_nop_by_hand():
    # owner 0 on the second lap, index 32768 + 7; opcode 0x11; order 2 and completion close a combine.
    assert words(nop_sqe(32768 + 7).pack()) == [0x0000_1100_0000_8007] + [0] * 7
    assert words(nop_sqe(7, order=2, completion=1).pack()) == [0x0000_1100_8022_0007] + [0] * 7


def test_token_of_local_memory_lies_above_its_length():
    sqe = write_sqe(0, PEER, 0, [Sge(address=1, num_bytes=2, token_id=3)])
    assert words(sqe.pack())[6:] == [0x0000_0003_0000_0002, 1]
    assert unpack_sqe(sqe.pack()).sges == sqe.sges


@pytest.mark.parametrize(
    ("head", "bit"), [(0, 1), (32767, 1), (32768, 0), (65535, 0), (65536, 1), (3 * 32768, 0)]
)
def test_owner_bit_turns_over_with_every_lap(head, bit):
    assert owner_bit(head) == bit
    assert bit == int((head & 32768) == 0)


@given(st.integers(0, 2**20), U64, st.lists(st.tuples(U64, st.integers(1, 2**20)), min_size=1, max_size=12))
def test_write_is_read_back(head, remote, pieces):
    sges = [Sge(address=a, num_bytes=n) for a, n in pieces]
    sqe = write_sqe(head, PEER, remote, sges, order=5, fence=1, completion=1)
    blocks = sqe.pack()
    assert len(blocks) == 64 * -(-(48 + 16 * len(sges)) // 64)
    back = unpack_sqe(blocks)
    assert back.sges == tuple(sges)
    assert (back.eid, back.token_value, back.remote_address) == (PEER.eid, PEER.token_value, remote)
    assert unpack_bits(PEER_BITS, back.peer_word) == {
        "tp_id": PEER.tp_id,
        "num_sges": len(sges),
        "token_id": PEER.token_id,
    }
    expected = {"wqebb_idx": head & 0xFFFF, "owner": owner_bit(head), "opcode": OPCODE_WRITE}
    expected |= {"order": 5, "fence": 1, "completion": 1, "token_enable": 1, "jetty_type": 1}
    assert back.flags == {name: expected.get(name, 0) for name in FLAG_BITS}


def record(number):
    return Sge(address=1000 * number, num_bytes=7168), Sge(address=1000 * number + 500, num_bytes=320)


@given(st.integers(0, 40_000), st.integers(1, 6), st.booleans())
def test_dispatch_request_takes_four_blocks_and_fills_up_with_nops(lap, count, is_last):
    head = 4 * lap
    blocks = dispatch_blocks(head, PEER, 2**40, [record(i) for i in range(count)], is_last=is_last)
    assert len(blocks) == 256
    sqe = unpack_sqe(blocks)
    assert [sge.num_bytes for sge in sqe.sges] == [7168, 320] * count
    closing = (5, 1, 1) if is_last else (1, 0, 0)
    assert (sqe.flags["order"], sqe.flags["fence"], sqe.flags["completion"]) == closing
    used = -(-(48 + 32 * count) // 64)
    assert sqe.num_wqebbs == used
    for number in range(used, 4):
        filler = unpack_sqe(blocks[64 * number : 64 * number + 64])
        assert filler.flags["opcode"] == OPCODE_NOP
        assert filler.flags["wqebb_idx"] == (head + number) & 0xFFFF
        assert filler.flags["owner"] == owner_bit(head)
        assert not filler.flags["completion"]


def test_full_dispatch_request_is_240_bytes():
    blocks = dispatch_blocks(0, PEER, 0, [record(i) for i in range(6)], is_last=False)
    assert any(words(blocks[232:240]))
    assert not blocks[240:].any()


def test_combine_request_is_two_blocks_with_zero_words_behind_80_bytes():
    blocks = combine_blocks(7, PEER, 1, Sge(address=9, num_bytes=14336), Sge(address=8, num_bytes=32))
    assert len(blocks) == 64 * COMBINE_WQEBBS == 128
    assert words(blocks)[6:10] == [14336, 9, 32, 8]
    assert words(blocks)[10:] == [0] * 6


@pytest.mark.parametrize(("head", "count"), [(0, 4), (2, 2), (3, 1), (32766, 2)])
def test_combine_ends_on_a_multiple_of_four_with_one_completion(head, count):
    blocks = combine_end_blocks(head).reshape(-1, 64)
    assert len(blocks) == count
    flags = [unpack_sqe(block).flags for block in blocks]
    assert [f["completion"] for f in flags] == [0] * (count - 1) + [1]
    assert [f["wqebb_idx"] for f in flags] == [head + i for i in range(count)]
    assert flags[-1]["order"] == 2
    assert {f["opcode"] for f in flags} == {OPCODE_NOP}


def test_tables_of_the_device_have_the_printed_sizes():
    assert JETTY_INFO.itemsize == 88
    assert JETTY_INFO.fields["wqebb_head"][1] == 56
    assert words(PEER.words()) == [0x0001_2345_00AB_CDEF, 0x1111, 0x2222, 0x3333, 2**40, 2**30]
    assert PEER.words().nbytes == 48


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_bits(FLAG_BITS, {"order": 8}), "order is 8: must fit into 3 bits"),
        (lambda: pack_bits(FLAG_BITS, {"fenced": 1}), "field is 'fenced': must be one of wqebb_idx"),
        (lambda: unpack_bits(FLAG_BITS, 1 << 24), "bits 0x1000000 belong to no field"),
        (lambda: write_sqe(0, PEER, 0, []), "sges is '0 bytes': a write carries 1 to 268435456"),
        (lambda: write_sqe(0, PEER, 0, [Sge(address=0, num_bytes=2**28 + 1)]), "sges is '268435457 bytes'"),
        (lambda: write_sqe(0, PEER, 2**64, [record(0)[0]]).pack(), "word 5 is 18446744073709551616"),
        (lambda: dispatch_blocks(0, PEER, 0, [record(0)] * 7, is_last=True), "records is 7: a dispatch req"),
        (
            lambda: dispatch_blocks(2, PEER, 0, [record(0)], is_last=True),
            "head is 2: must be a multiple of 4",
        ),
        (lambda: unpack_sqe(np.zeros(63, np.uint8)), "must be uint8, a multiple of 64"),
        (
            lambda: unpack_sqe(dispatch_blocks(0, PEER, 0, [record(0)], is_last=True)[:64]),
            "blocks is 1: 2 gather elements need more",
        ),
    ],
)
def test_bad_request_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
