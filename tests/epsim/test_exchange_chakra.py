"""Chakra: the bytes of a small trace, traces there and back, dependencies, and traces that are not ours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.exchange import chakra
from epsim.exchange.chakra import chakra_files, check_chakra, read_chakra
from tests.epsim.exchanged import random_case, small_case, two_cards
from topology import ubl128

pytest.importorskip("google.protobuf", reason="the extra exchange (protobuf) is not installed")


def text(word):
    """Encode a short text of field 1 as the wire has it."""
    return bytes([0x0A, len(word)]) + word


def attribute(name, *value):
    """Encode an attribute (field 10 of a node) with its value."""
    body = text(name) + bytes(value)
    return bytes([0x52, len(body)]) + body


# Field n of wire type w starts with 8 n + w; written by hand from the public numbers.
SEND_TO_1 = (
    b"\x12\x09send_to_1" + b"\x18\x05"  # name = 2, type = 3: COMM_SEND_NODE
    + attribute(b"is_cpu_op", 0xD8, 0x01, 0)  # bool_val = 27
    + attribute(b"comm_size", 0x48, 0xAC, 0x02)  # int64_val = 9: 300
    + attribute(b"comm_src", 0x38, 0)  # int32_val = 7
    + attribute(b"comm_dst", 0x38, 1)
    + attribute(b"comm_tag", 0x38, 0)
)  # fmt: skip
METADATA = text(b"0.0.4")


def nodes_of(data):
    """Read the nodes of a file."""
    return list(chakra._nodes(data, "test"))


def framed(*bodies):
    """Put the length before each message."""
    return b"".join(bytes([len(body)]) + body for body in bodies)


def test_a_trace_begins_with_metadata_and_a_send_as_the_public_numbers_say():
    data = chakra_files(two_cards())["pair.0.et"]
    assert data.startswith(framed(METADATA, SEND_TO_1))
    assert [node.name for node in nodes_of(data)] == ["send_to_1", "receive_from_1"]


def test_traces_of_other_writers_are_read():
    """Numbers in another field of the value, fields that we do not know, a receive of the same bytes."""
    other = (
        b"\x18\x06" + b"\x32\x03abc" + attribute(b"comm_size", 0x68, 0xAC, 0x02)
        + attribute(b"comm_src", 0x58, 0) + attribute(b"comm_dst", 0x58, 1)
        + attribute(b"pg_name", 0xEA, 1, 1, 65)
    )  # fmt: skip
    matrices = read_chakra([framed(METADATA, SEND_TO_1), framed(METADATA, other)])
    assert matrices.sent.tolist() == matrices.received.tolist() == [[0, 300], [0, 0]]


@given(st.integers(0, 2**32))
def test_bytes_come_back_as_sent_and_received(seed):
    case = random_case(np.random.default_rng(seed), ubl128(8), 5, most_bytes=2**40)
    matrices = read_chakra(list(chakra_files(case).values()))
    expected = case.bytes_matrix - np.diag(case.bytes_matrix.diagonal())
    assert (matrices.sent == expected).all()
    assert (matrices.received == expected).all()
    check_chakra(case, matrices)


def test_sends_wait_for_the_phase_before_and_for_the_start():
    phase = np.array([[0, 1, 1, 3], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    case = small_case(phase=phase, start_ps=np.array([7_000_000, 0, 0, 0]))
    nodes = {node.name: node for node in nodes_of(chakra_files(case)["small.0.et"])}
    assert (nodes["start"].type, nodes["start"].duration_micros) == (chakra.COMP_NODE, 7)
    first = [nodes[f"send_to_{dst}"] for dst in (1, 2)]
    assert [list(node.data_deps) for node in first] == [[nodes["start"].id]] * 2
    assert list(nodes["send_to_3"].data_deps) == [node.id for node in first]
    assert list(nodes["receive_from_1"].data_deps) == []
    assert sorted(node.id for node in nodes.values()) == list(range(7))


LOST = np.where(np.arange(16).reshape(4, 4) == 6, 0, np.arange(16).reshape(4, 4) * 1000)
MATRIX_FAULTS = {
    "a lost flow": ({"bytes_matrix": LOST}, "sent from rank 1 to 2"),
    "swapped ends": ({"bytes_matrix": small_case().bytes_matrix.T}, "sent from rank 0 to 1"),
    "bits": ({"bytes_matrix": 8 * small_case().bytes_matrix}, "8000: must be 1000"),
}


@pytest.mark.parametrize("fault", MATRIX_FAULTS)
def test_traces_of_another_case_are_found(fault):
    changes, message = MATRIX_FAULTS[fault]
    matrices = read_chakra(list(chakra_files(small_case(**changes)).values()))
    with pytest.raises(InputError, match=message):
        check_chakra(small_case(), matrices)


def test_a_lost_receive_is_found():
    files = list(chakra_files(two_cards()).values())
    matrices = read_chakra([files[0], framed(METADATA)])
    with pytest.raises(InputError, match="sent from rank 1 to 0 is 0"):
        check_chakra(two_cards(), matrices)
    matrices.sent[1, 0] = 7000
    with pytest.raises(InputError, match="received from rank 0 to 1 is 0"):
        check_chakra(two_cards(), matrices)
    with pytest.raises(InputError, match="number of traces"):
        check_chakra(small_case(), matrices)


GOOD = framed(METADATA, SEND_TO_1)
FILE_FAULTS = {
    "empty": (b"", "must begin with"),
    "cut": (GOOD[:-1], "middle of a message"),
    "a length without end": (GOOD + b"\x80" * 11, "length of a message"),
    "an empty message": (GOOD + b"\x00", "middle of a message"),
    "no protobuf": (framed(METADATA, b"\x0f\xff\xff"), "must be a Chakra Node"),
    "no bytes": (framed(METADATA, b"\x18\x05" + attribute(b"comm_src", 0x38, 0)), "without a whole comm_dst"),
    "a rank too many": (
        framed(METADATA, SEND_TO_1.replace(b"comm_dst\x38\x01", b"comm_dst\x38\x02")),
        "below 2",
    ),
    "of another rank": (
        framed(METADATA, SEND_TO_1.replace(b"comm_src\x38\x00", b"comm_src\x38\x01")),
        "rank 0",
    ),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_a_file_that_is_no_trace_of_its_rank_is_refused(fault):
    data, message = FILE_FAULTS[fault]
    with pytest.raises(InputError, match=message):
        read_chakra([data, framed(METADATA)])


def test_a_start_between_microseconds_is_refused():
    with pytest.raises(InputError, match="whole microseconds"):
        chakra_files(small_case(start_ps=np.array([1, 0, 0, 0])))
