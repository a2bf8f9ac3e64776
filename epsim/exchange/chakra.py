"""MLCommons Chakra execution traces: one file per rank, with a node per send and per receive.

Sources: `schema/protobuf/et_def.proto` (message and field numbers), `feeder/et_feeder_node.cpp` (names and
types of attributes, and that a node counts as CPU work unless it says otherwise) and
`third_party/utils/protolib.py` (messages with their length as a varint before them; a length of 0 ends the
file) of mlcommons/chakra. Sure: read in their code; our traces were not run in ASTRA-sim. The package is
not on PyPI, so the few messages are declared here by number and left to Google's `protobuf` (extra
`exchange`). Traces hold no network: rank r is ASTRA-sim's NPU r.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from epsim.errors import InputError, MissingExtraError
from epsim.exchange.case import ExchangeCase, Int64

PS_PER_US = 10**6
SCHEMA_VERSION = "0.0.4"
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE = 4, 5, 6
_VARINT_BITS, _MAX_VARINT_BYTES = 7, 10

# message -> (field, number, type, repeated, message type); only what is written or read here.
_SCHEMA: Mapping[str, Sequence[tuple[str, int, str, bool, str]]] = {
    "AttributeProto": (
        ("name", 1, "STRING", False, ""),
        ("int32_val", 7, "INT32", False, ""),
        ("int64_val", 9, "INT64", False, ""),
        ("uint32_val", 11, "UINT32", False, ""),
        ("uint64_val", 13, "UINT64", False, ""),
        ("bool_val", 27, "BOOL", False, ""),
    ),
    "GlobalMetadata": (("version", 1, "STRING", False, ""),),
    "Node": (
        ("id", 1, "UINT64", False, ""),
        ("name", 2, "STRING", False, ""),
        ("type", 3, "INT32", False, ""),  # an enum, which is the same on the wire
        ("data_deps", 5, "UINT64", True, ""),
        ("duration_micros", 7, "UINT64", False, ""),
        ("attr", 10, "MESSAGE", True, ".ChakraProtoMsg.AttributeProto"),
    ),
}
_VALUES = ("int32_val", "int64_val", "uint32_val", "uint64_val")
"""Files of other writers keep whole numbers in any of these."""


class Matrices(NamedTuple):
    """Bytes that traces say are sent and received, each [R, R] int64 by source and destination."""

    sent: Int64
    received: Int64


def chakra_files(case: ExchangeCase) -> dict[str, bytes]:
    """Write the traces of a case.

    A send waits for all sends of its rank's phase before, and those of the first phase for the rank's
    start, a COMP node that takes as long. Receives wait for nothing. The tag is the transfer's number.

    Returns:
      File name -> bytes, one per rank: NAME.RANK.et.

    Raises:
      InputError: a start is no whole number of microseconds.
      MissingExtraError: `protobuf` is not installed.
    """
    messages = _messages()
    traces = [_Trace(messages) for _ in range(case.num_ranks)]
    before_first = [_start(case, rank, trace) for rank, trace in enumerate(traces)]
    transfers = case.transfers()
    previous = transfers.previous_phase()
    sends: dict[tuple[int, int], list[int]] = {}
    for task in np.argsort(transfers.phase, kind="stable").tolist():
        src, dst = int(transfers.src[task]), int(transfers.dst[task])
        waits = before_first[src] if previous[task] < 0 else sends[src, int(previous[task])]
        comm = {
            "comm_size": int(transfers.num_bytes[task]), "comm_src": src, "comm_dst": dst, "comm_tag": task
        }  # fmt: skip
        send = traces[src].add(f"send_to_{dst}", COMM_SEND_NODE, comm, waits)
        sends.setdefault((src, int(transfers.phase[task])), []).append(send)
        traces[dst].add(f"receive_from_{src}", COMM_RECV_NODE, comm, ())
    return {f"{case.name}.{rank}.et": trace.data() for rank, trace in enumerate(traces)}


def _start(case: ExchangeCase, rank: int, trace: "_Trace") -> tuple[int, ...]:
    """Add the node that a late rank's first sends wait for."""
    start_ps = 0 if case.start_ps is None else int(case.start_ps[rank])
    if start_ps % PS_PER_US:
        raise InputError(f"start of rank {rank}", f"{start_ps} ps", "must be whole microseconds for Chakra")
    return (trace.add("start", COMP_NODE, {}, (), start_ps // PS_PER_US),) if start_ps else ()


class _Trace:
    """The messages of one rank, as they are added.

    Args:
      messages: classes by name.
    """

    def __init__(self, messages: Mapping[str, Any]) -> None:
        """Begin with the metadata, which must not be empty: readers take an empty message for the end."""
        self.messages = messages
        self.parts = [_framed(messages["GlobalMetadata"](version=SCHEMA_VERSION))]

    def add(
        self, name: str, kind: int, comm: Mapping[str, int], waits: Sequence[int], duration_us: int = 0
    ) -> int:
        """Add a node; return its number."""
        attribute = self.messages["AttributeProto"]
        node = self.messages["Node"](
            id=len(self.parts) - 1, name=name, type=kind, data_deps=waits, duration_micros=duration_us
        )
        node.attr.append(attribute(name="is_cpu_op", bool_val=False))
        for key, value in comm.items():
            kind_of_value = "int64_val" if key == "comm_size" else "int32_val"
            node.attr.append(attribute(name=key, **{kind_of_value: value}))
        self.parts.append(_framed(node))
        return int(node.id)

    def data(self) -> bytes:
        """Return the file."""
        return b"".join(self.parts)


def read_chakra(files: Sequence[bytes], *, name: str = "trace") -> Matrices:
    """Read the traces of all ranks back, ours or of other writers.

    Args:
      files: content by rank.
      name: for messages.

    Raises:
      InputError: a file is no trace, a rank is out of range, or a node stands in a trace of another rank.
      MissingExtraError: `protobuf` is not installed.
    """
    size = len(files)
    matrices = Matrices(np.zeros((size, size), np.int64), np.zeros((size, size), np.int64))
    for rank, data in enumerate(files):
        where = f"{name} of rank {rank}"
        for node in _nodes(data, where):
            if node.type not in (COMM_SEND_NODE, COMM_RECV_NODE):
                continue
            src, dst, num_bytes = (_number(node, key, where) for key in ("comm_src", "comm_dst", "comm_size"))
            if max(src, dst) >= size or min(src, dst) < 0:
                raise InputError(f"{where}, {node.name}", f"{src} -> {dst}", f"must be ranks below {size}")
            is_send = node.type == COMM_SEND_NODE
            if rank != (src if is_send else dst):
                rule = f"must be {'sent from' if is_send else 'received by'} rank {rank}"
                raise InputError(f"{where}, {node.name}", f"{src} -> {dst}", rule)
            matrices[0 if is_send else 1][src, dst] += num_bytes
    return matrices


def check_chakra(case: ExchangeCase, matrices: Matrices) -> None:
    """Refuse traces that are not those of a case.

    Raises:
      InputError: the first pair that is sent or received with other bytes.
    """
    expected = case.bytes_matrix - np.diag(case.bytes_matrix.diagonal())
    for verb, matrix in zip(("sent", "received"), matrices, strict=True):
        if matrix.shape != expected.shape:
            raise InputError("number of traces", len(matrix), f"must be {case.num_ranks}, one per rank")
        wrong = np.argwhere(matrix != expected)
        if len(wrong):
            src, dst = wrong[0].tolist()
            rule = f"must be {expected[src, dst]} as in {case.name}"
            raise InputError(f"bytes {verb} from rank {src} to {dst}", int(matrix[src, dst]), rule)


def _number(node: Any, key: str, where: str) -> int:  # noqa: ANN401 - a message class made at run time
    for attribute in node.attr:
        if attribute.name == key and attribute.WhichOneof("value") in _VALUES:
            return int(getattr(attribute, attribute.WhichOneof("value")))
    raise InputError(f"{where}, {node.name}", f"without a whole {key}", "a send or receive needs one")


def _nodes(data: bytes, where: str) -> Iterator[Any]:
    """Yield the nodes of a file; the first message is its metadata."""
    from google.protobuf.message import DecodeError

    messages = _messages()
    place, count = 0, 0
    while place < len(data):
        length, place = _varint(data, place, where)
        if length == 0 or place + length > len(data):
            raise InputError(where, f"{len(data)} bytes", "ends in the middle of a message")
        kind = "Node" if count else "GlobalMetadata"
        try:
            message = messages[kind].FromString(data[place : place + length])
        except DecodeError:
            raise InputError(where, f"message {count}", f"must be a Chakra {kind}") from None
        place, count = place + length, count + 1
        if kind == "Node":
            yield message
    if not count:
        raise InputError(where, "empty", "must begin with Chakra metadata")


def _varint(data: bytes, place: int, where: str) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (_VARINT_BITS * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise InputError(where, f"byte {place}", "must be the length of a message")


def _framed(message: Any) -> bytes:  # noqa: ANN401 - a message class made at run time
    """Return a message with its length before it."""
    body: bytes = message.SerializeToString(deterministic=True)
    length, head = len(body), bytearray()
    while length >= 0x80:
        head.append(0x80 | length & 0x7F)
        length >>= _VARINT_BITS
    return bytes(head) + bytes([length]) + body


@lru_cache(maxsize=1)
def _messages() -> Mapping[str, Any]:
    """Make the message classes from the schema.

    Raises:
      MissingExtraError: `protobuf` is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        rule = f"Chakra traces need protobuf: pip install 'epsim[exchange]' ({error})"
        raise MissingExtraError(rule) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="epsim/chakra.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    field_type = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        if message_name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for name, number, kind, repeated, type_name in fields:
            label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            kind_number = field_type.Type.Value(f"TYPE_{kind}")
            field = message.field.add(name=name, number=number, label=label, type=kind_number)
            if type_name:
                field.type_name = type_name
            if name.endswith("_val"):
                field.oneof_index = 0
    # A pool of its own: the program around us may have the real schema in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [f"ChakraProtoMsg.{name}" for name in _SCHEMA]
    classes = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return dict(zip(_SCHEMA, classes, strict=True))
