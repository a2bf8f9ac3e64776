"""Work requests of the send queue, bit for bit: how URMA is told to write and to report.

A queue is a ring of 32,768 blocks (WQEBB) of 64 bytes. A request (SQE) is a header of six 8-byte words and
one 16-byte gather element (SGE) per local piece; it takes whole blocks. All words are little-endian.
The write with notify of the pipeline buffer is left out: the source does not say how its words lie.
Source: deepep-ascend.md sections 3.5 and 3.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

WQEBB_BYTES = 64
WQEBB_WORDS = 8
SQ_DEPTH = 32768
SQ_START_STEP = 4
"""A kernel's requests start at a multiple of this many blocks."""
HEADER_WORDS = 6
SGE_WORDS = 2
DISPATCH_WQEBBS = 4
DISPATCH_RECORDS = 6
COMBINE_WQEBBS = 2
MAX_WRITE_BYTES = 2**28

OPCODE_WRITE = 0x3
OPCODE_NOP = 0x11

FLAG_BITS: Mapping[str, tuple[int, int]] = {
    "wqebb_idx": (0, 16),
    "order": (16, 3),
    "fence": (19, 1),
    "se": (20, 1),
    "completion": (21, 1),
    "inline": (22, 1),
    "udf": (23, 1),
    "nf": (27, 1),
    "token_enable": (28, 1),
    "jetty_type": (29, 2),
    "owner": (31, 1),
    "hint": (32, 8),
    "opcode": (40, 8),
    "inline_bytes": (54, 10),
}
"""Header word 0: name -> (lowest bit, bits). Bits 24-26 and 48-53 are zero."""

PEER_BITS: Mapping[str, tuple[int, int]] = {"tp_id": (0, 24), "num_sges": (24, 8), "token_id": (32, 20)}
"""Header word 1, and word 0 of a peer's entry in the device table, where num_sges is 0."""

JETTY_INFO = np.dtype(
    [
        ("sq_base", "<u8"),
        ("sq_head_address", "<u8"),
        ("completion_tail_address", "<u8"),
        ("sq_doorbell_address", "<u8"),
        ("cq_base", "<u8"),
        ("cq_tail_address", "<u8"),
        ("cq_doorbell_address", "<u8"),
        ("wqebb_head", "<u4"),  # low half of packed_head
        ("num_expected_completions", "<u4"),  # its high half
        ("jfs_id", "<u4"),
        ("wqebb_bytes", "<u4"),
        ("jfc_id", "<u4"),
        ("cqe_bytes", "<u4"),
        ("cq_depth", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""88 bytes, loaded as eleven 8-byte words."""


def pack_bits(bits: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> int:
    """Return the word that holds `values`; fields left out are 0.

    Args:
      bits: name -> (lowest bit, number of bits), as `FLAG_BITS`.
      values: name -> value.

    Raises:
      ConfigError: a field is unknown or its value does not fit.
    """
    word = 0
    for name, value in values.items():
        if name not in bits:
            raise ConfigError("field", name, f"must be one of {', '.join(bits)}")
        low, width = bits[name]
        if whole_number(name, value, 0) >= 1 << width:
            raise ConfigError(name, value, f"must fit into {width} bits")
        word |= int(value) << low
    return word


def unpack_bits(bits: Mapping[str, tuple[int, int]], word: int) -> dict[str, int]:
    """Return every field of a word.

    Raises:
      ConfigError: a bit outside all fields is set.
    """
    fields = {name: word >> low & (1 << width) - 1 for name, (low, width) in bits.items()}
    stray = word ^ pack_bits(bits, fields)
    if stray:
        raise ConfigError("word", hex(word), f"bits {hex(stray)} belong to no field")
    return fields


def owner_bit(head: int) -> int:
    """Return the owner bit of the block at a running head: 1 on even laps of the ring, 0 on odd ones.

    The device takes a block for new when the bit differs from the lap before, so a wrong bit on the
    second lap hides a request or repeats an old one.
    """
    return 1 - whole_number("head", head, 0) // SQ_DEPTH % 2


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a request must know of its target; 48 bytes in the device table.

    Args:
      tp_id: transport, 24 bits.
      token_id: of the remote window, 20 bits.
      eid: two 8-byte words.
      token_value: of the remote window, low 32 bits; user-defined bits above.
      window_base: remote address.
      window_bytes: size of the remote window.
    """

    tp_id: int
    token_id: int
    eid: tuple[int, int]
    token_value: int
    window_base: int
    window_bytes: int

    def words(self) -> Words:
        """Return the entry of the device table, 6 words.

        Raises:
          ConfigError: a field does not fit.
        """
        first = pack_bits(PEER_BITS, {"tp_id": self.tp_id, "token_id": self.token_id})
        return _words([first, *self.eid, self.token_value, self.window_base, self.window_bytes])


@dataclass(frozen=True, kw_only=True)
class Sge:
    """One contiguous piece of local memory.

    Args:
      address: local; needs no registration.
      num_bytes: length, 32 bits.
      token_id: 0 for ordinary memory.
    """

    address: int
    num_bytes: int
    token_id: int = 0


@dataclass(frozen=True, kw_only=True)
class Sqe:
    """One request.

    Args:
      flags: fields of header word 0 by name; those left out are 0.
      peer_word: header word 1.
      eid: header words 2 and 3.
      token_value: header word 4.
      remote_address: header word 5.
      sges: gather elements, in the order in which they land remotely.
    """

    flags: Mapping[str, int]
    peer_word: int = 0
    eid: tuple[int, int] = (0, 0)
    token_value: int = 0
    remote_address: int = 0
    sges: tuple[Sge, ...] = ()

    @property
    def num_wqebbs(self) -> int:
        """Blocks that the header and the gather elements need."""
        return -(-(HEADER_WORDS + SGE_WORDS * len(self.sges)) // WQEBB_WORDS)

    def pack(self) -> Bytes:
        """Return [num_wqebbs * 64] uint8, zeros behind the last gather element.

        Raises:
          ConfigError: a field does not fit.
        """
        first = pack_bits(FLAG_BITS, self.flags)
        words = [first, self.peer_word, *self.eid, self.token_value, self.remote_address]
        for sge in self.sges:
            lengths = {"num_bytes": sge.num_bytes, "token_id": sge.token_id}
            words += [pack_bits({"num_bytes": (0, 32), "token_id": (32, 32)}, lengths), sge.address]
        return _words(words + [0] * (self.num_wqebbs * WQEBB_WORDS - len(words))).view(np.uint8)


def unpack_sqe(blocks: Bytes) -> Sqe:
    """Read the request at the start of some blocks.

    Args:
      blocks: [multiple of 64] uint8, at least as many as the request needs.

    Returns:
      Sqe with all flag fields.

    Raises:
      ConfigError: not whole blocks, fewer than the request needs, or a flag bit that has no field.
    """
    if blocks.dtype != np.uint8 or blocks.ndim != 1 or not blocks.size or blocks.size % WQEBB_BYTES:
        rule = f"must be uint8, a multiple of {WQEBB_BYTES}"
        raise ConfigError("blocks", f"{blocks.dtype} {blocks.shape}", rule)
    words = [int(w) for w in np.ascontiguousarray(blocks).view("<u8")]
    num_sges = unpack_bits(PEER_BITS, words[1])["num_sges"]
    end = HEADER_WORDS + SGE_WORDS * num_sges
    if end > len(words):
        raise ConfigError("blocks", blocks.size // WQEBB_BYTES, f"{num_sges} gather elements need more")
    sges = tuple(
        Sge(address=words[i + 1], num_bytes=words[i] & 0xFFFFFFFF, token_id=words[i] >> 32)
        for i in range(HEADER_WORDS, end, SGE_WORDS)
    )
    return Sqe(
        flags=unpack_bits(FLAG_BITS, words[0]),
        peer_word=words[1],
        eid=(words[2], words[3]),
        token_value=words[4],
        remote_address=words[5],
        sges=sges,
    )


def write_sqe(
    head: int,
    peer: Peer,
    remote_address: int,
    sges: Sequence[Sge],
    *,
    order: int = 1,
    fence: int = 0,
    completion: int = 0,
) -> Sqe:
    """Return a WRITE of gathered local pieces to one remote range.

    Args:
      head: running block number of its first block; its low 16 bits and its lap go into the header.
      peer: target.
      remote_address: where the first piece lands; the others follow it.
      sges: at least one.
      order: 1 = may complete in any order, 5 = after what came before (with the fence).
      fence: 1 on the request that closes a set.
      completion: 1 asks for a completion entry.

    Raises:
      ConfigError: no piece, more than 2**28 bytes, or a field does not fit.
    """
    num_bytes = sum(sge.num_bytes for sge in sges)
    if not 0 < num_bytes <= MAX_WRITE_BYTES:
        raise ConfigError("sges", f"{num_bytes} bytes", f"a write carries 1 to {MAX_WRITE_BYTES} bytes")
    ordering = {"order": order, "fence": fence, "completion": completion}
    fields = {"tp_id": peer.tp_id, "num_sges": len(sges), "token_id": peer.token_id}
    return Sqe(
        flags={**_block_flags(head, OPCODE_WRITE), **ordering, "token_enable": 1, "jetty_type": 1},
        peer_word=pack_bits(PEER_BITS, fields),
        eid=peer.eid,
        token_value=peer.token_value,
        remote_address=remote_address,
        sges=tuple(sges),
    )


def nop_sqe(head: int, *, order: int = 0, completion: int = 0) -> Sqe:
    """Return a request that does nothing: filler, or with order 2 and completion the end of a combine."""
    flags = {**_block_flags(head, OPCODE_NOP), "order": order, "completion": completion}
    return Sqe(flags=flags)


def dispatch_blocks(
    head: int, peer: Peer, remote_address: int, records: Sequence[tuple[Sge, Sge]], *, is_last: bool
) -> Bytes:
    """Return the four blocks of a dispatch request; those not needed carry NOPs.

    Args:
      head: running block number, a multiple of 4.
      peer: target.
      remote_address: of the first record.
      records: 1 to 6 pairs of payload and metadata, which land on consecutive records.
      is_last: of the AIV's set: order 5, fence and completion.

    Returns:
      [256] uint8.

    Raises:
      ConfigError: number of records or head out of range, or as `write_sqe`.
    """
    if not 1 <= len(records) <= DISPATCH_RECORDS:
        raise ConfigError("records", len(records), f"a dispatch request carries 1 to {DISPATCH_RECORDS}")
    if head % SQ_START_STEP:
        raise ConfigError("head", head, f"must be a multiple of {SQ_START_STEP}")
    closing = {"order": 5, "fence": 1, "completion": 1} if is_last else {}
    sqe = write_sqe(head, peer, remote_address, [sge for pair in records for sge in pair], **closing)
    fillers = [nop_sqe(head + i).pack() for i in range(sqe.num_wqebbs, DISPATCH_WQEBBS)]
    return np.concatenate([sqe.pack(), *fillers])


def combine_blocks(head: int, peer: Peer, remote_address: int, hidden: Sge, weights: Sge) -> Bytes:
    """Return the two blocks of a combine request; words 10 to 15 are zero.

    Raises:
      ConfigError: as `write_sqe`.
    """
    return write_sqe(head, peer, remote_address, [hidden, weights]).pack()


def combine_end_blocks(head: int) -> Bytes:
    """Return the NOPs that close a combine: up to the next multiple of 4 blocks, one at least.

    Args:
      head: running block number behind the last request.

    Returns:
      [64 * 1..4] uint8; the last NOP has order 2 and asks for the one completion.
    """
    count = SQ_START_STEP - whole_number("head", head, 0) % SQ_START_STEP
    nops = [nop_sqe(head + i).pack() for i in range(count - 1)]
    return np.concatenate([*nops, nop_sqe(head + count - 1, order=2, completion=1).pack()])


def _block_flags(head: int, opcode: int) -> dict[str, int]:
    head = whole_number("head", head, 0)
    return {"wqebb_idx": head & 0xFFFF, "owner": owner_bit(head), "opcode": opcode}


def _words(values: Sequence[int]) -> Words:
    for i, value in enumerate(values):
        if not 0 <= value < 2**64:
            raise ConfigError(f"word {i}", value, "must be an unsigned 64-bit number")
    return np.array(values, dtype="<u8")
