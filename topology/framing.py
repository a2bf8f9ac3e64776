"""UnifiedBus framing: what a payload costs on the wire, from flits, blocks, headers and acknowledgements.

A packet is a whole number of 20-byte flits, cut into blocks of at most 32 flits. It carries H header
bytes (link packet header and end-to-end check included), the payload, 4 bytes of check per block
and 2 bytes of header per block after the first:

    flits(P) = smallest f with 20 f >= H + P + 4 b + 2 (b - 1),  b = ceil(f / 32)

In an all-to-all each direction carries requests and, for the data of the other direction, their
transaction acknowledgements (TAACK); "with ack" charges both to the direction. Rates are bytes per
second of one card and one direction. Left out: the alignment marker (0.1-0.3 %, period unknown),
credit blocks (free while data flows) and link retry.

All counts are exact integers and all ratios exact fractions until the last division.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from topology.errors import TopologyError
from topology.source import Source

FLIT_BYTES: Final = 20
MAX_FLITS_PER_BLOCK: Final = 32
MAX_FLITS_PER_PACKET: Final = 512
BLOCK_CHECK_BYTES: Final = 4
LATER_BLOCK_HEADER_BYTES: Final = 2
TRANSPORT_ALIGNMENT_BYTES: Final = 4
MAX_PACKETS_PER_TAACK: Final = 32
URMA_MTUS: Final = (256, 512, 1024, 2048, 4096, 8192)
DEFAULT_MTU: Final = 1024
SCALEUP_PORTS: Final = 8
LANES_PER_PORT: Final = 4
LANE_BITS_PER_S: Final = 106_250_000_000
FEC_RATE: Final = Fraction(120, 128)

_SPEC = "UnifiedBus Base Specification 2.0"
SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {
        "FLIT_BYTES": Source("official", f"{_SPEC}, data-link layer: fixed flit size"),
        "MAX_FLITS_PER_BLOCK": Source("official", f"{_SPEC}, data-link layer: a block is at most 640 bytes"),
        "MAX_FLITS_PER_PACKET": Source("official", f"{_SPEC}, data-link layer: at most 16 blocks"),
        "BLOCK_CHECK_BYTES": Source("official", f"{_SPEC}, data-link layer, CRC mode: BCRC"),
        "LATER_BLOCK_HEADER_BYTES": Source("official", f"{_SPEC}, data-link layer, CRC mode: LBH"),
        "TRANSPORT_ALIGNMENT_BYTES": Source("official", f"{_SPEC}, transport layer: packet padding"),
        "MAX_PACKETS_PER_TAACK": Source(
            "secondary", "reading note of the specification: a TAACK counts consecutive segments in 5 bits"
        ),
        "URMA_MTUS": Source("official", "open URMA headers: MTU enumeration"),
        "DEFAULT_MTU": Source(
            "assumed",
            "the active MTU is not public; 1 KiB agrees with '90-95 % of the physical payload limit'",
        ),
        "SCALEUP_PORTS": Source("secondary", "UBL128 serving design document: 3.2 Tb/s as 8 ports of 400G"),
        "LANES_PER_PORT": Source("official", "Ascend 950 white paper: 72 lanes as 18 x4 ports"),
        "LANE_BITS_PER_S": Source(
            "secondary", f"{_SPEC}, physical layer: fastest PAM4 rate; that the 950 runs it is assumed"
        ),
        "FEC_RATE": Source("official", f"{_SPEC}, physical layer: RS(128,120)"),
    }
)
"""Where each constant of this module came from, by name."""

Layer = Literal["link", "network", "transport", "check"]


def _positive(field: str, value: int) -> None:
    # bool is an int and numpy integers are not: both would make a count that is not one.
    if type(value) is not int or value < 1:
        raise TopologyError(field, value, "must be a positive integer")


@dataclass(frozen=True, kw_only=True)
class HeaderField:
    """One header of a packet.

    Args:
      name: the field as the specification abbreviates it.
      num_bytes: its length on the wire, positive.
      layer: link and network headers come first; "transport" is everything from the transport header
        to the payload (which the specification pads to 4 bytes together); "check" follows the payload.
      source: where the length came from.

    Raises:
      TopologyError: the length is not positive.
    """

    name: str
    num_bytes: int
    layer: Layer
    source: Source

    def __post_init__(self) -> None:
        """Refuse an empty header."""
        _positive(f"header field {self.name}", self.num_bytes)


def _field(name: str, num_bytes: int, layer: Layer, source: Source) -> HeaderField:
    return HeaderField(name=name, num_bytes=num_bytes, layer=layer, source=source)


_LINK = Source("official", f"{_SPEC}, data-link layer")
_NETWORK = Source("official", f"{_SPEC}, network layer")
_TRANSPORT = Source("official", f"{_SPEC}, transport layer")
_TRANSACTION = Source("official", f"{_SPEC}, transaction layer")
_TRANSACTION_READ = Source("secondary", "ns-3-UB header classes, read through a public fork")

LPH = _field("LPH", 4, "link", _LINK)
NTH_16 = _field("NTH (16-bit CNA)", 8, "network", _NETWORK)
NTH_24 = _field("NTH (24-bit CNA)", 10, "network", _NETWORK)
CTPH = _field("CTPH", 1, "transport", _TRANSPORT)
RTPH = _field("RTPH", 16, "transport", _TRANSPORT)
UPI_SHORT = _field("UPIH (short)", 2, "transport", _TRANSPORT)
UPI_LONG = _field("UPIH (long)", 4, "transport", _TRANSPORT)
EID_20 = _field("EIDH (two 20-bit)", 5, "transport", _TRANSPORT)
EID_128 = _field("EIDH (two 128-bit)", 32, "transport", _TRANSPORT)
BTAH = _field("BTAH", 8, "transport", _TRANSACTION)
BTAH_COMPACT = _field("BTAH (compact)", 4, "transport", _TRANSACTION)
MAETAH = _field("MAETAH", 16, "transport", _TRANSACTION_READ)
MAETAH_COMPACT = _field("MAETAH (compact)", 12, "transport", _TRANSACTION_READ)
TVETAH = _field("TVETAH (token)", 4, "transport", _TRANSACTION)
ATAH = _field("ATAH", 8, "transport", _TRANSACTION)
ATAH_COMPACT = _field("ATAH (compact)", 4, "transport", _TRANSACTION)
ICRC = _field("ICRC", 4, "check", Source("assumed", "the size of the end-to-end check is taken as 4 bytes"))


@dataclass(frozen=True, kw_only=True)
class PacketForm:
    """A family of packets that carry a write: its request headers and those of its acknowledgement.

    Args:
      name: short name, e.g. "ctp6".
      header: fields of a request packet.
      taack: fields of its acknowledgement, which has no payload.
      can_skip_taack: whether a request may ask for no acknowledgement at all.
      pads_transport: charge the padding of transport headers and payload to 4 bytes. Off by default:
        the published efficiency tables leave it out, and it moves only forms whose transport
        headers are not a multiple of 4 bytes (ctp7: 3 bytes, one flit more at 512 B and 4 KiB).
    """

    name: str
    header: tuple[HeaderField, ...]
    taack: tuple[HeaderField, ...]
    can_skip_taack: bool = False
    pads_transport: bool = False

    @property
    def header_bytes(self) -> int:
        """H: bytes of all request headers, without those of the blocks."""
        return sum(field.num_bytes for field in self.header)

    @property
    def taack_wire_bytes(self) -> int:
        """Bytes of one acknowledgement on the wire, whole flits."""
        return FLIT_BYTES * _flits(sum(field.num_bytes for field in self.taack))

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that fits into one packet."""
        blocks = MAX_FLITS_PER_PACKET // MAX_FLITS_PER_BLOCK
        checks = BLOCK_CHECK_BYTES * blocks + LATER_BLOCK_HEADER_BYTES * (blocks - 1)
        room = FLIT_BYTES * MAX_FLITS_PER_PACKET - checks - self.header_bytes
        if not self.pads_transport:
            return room
        # The padded part must be a multiple of 4 within the room, so round it down.
        return room - (self._transport_bytes + room) % TRANSPORT_ALIGNMENT_BYTES

    def flits(self, payload_bytes: int) -> int:
        """Count the flits of one request packet.

        Raises:
          TopologyError: the payload is not positive, or more than one packet can carry.
        """
        _positive("payload bytes", payload_bytes)
        if payload_bytes > self.max_payload_bytes:
            raise TopologyError(
                "payload bytes",
                payload_bytes,
                f"must fit one {self.name} packet (at most {self.max_payload_bytes})",
            )
        return _flits(self.header_bytes + payload_bytes + self._padding(payload_bytes))

    def blocks(self, payload_bytes: int) -> int:
        """Count the blocks of one request packet; raises as `flits`."""
        return -(-self.flits(payload_bytes) // MAX_FLITS_PER_BLOCK)

    def flits_of(self, payload_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count flits of many packets at once: int64 payload bytes, any shape, to int64 of that shape.

        Raises:
          TopologyError: a payload is out of range; the first one is named.
        """
        payload = np.asarray(payload_bytes, dtype=np.int64)
        bad = payload[(payload < 1) | (payload > self.max_payload_bytes)]
        if bad.size:
            raise TopologyError("payload bytes", int(bad[0]), f"must be in 1..{self.max_payload_bytes}")
        used = self.header_bytes + payload
        if self.pads_transport:
            used = used + -(self._transport_bytes + payload) % TRANSPORT_ALIGNMENT_BYTES
        flits: NDArray[np.int64] = -(-(used + _BLOCK_COST * -(-(used - 2) // _BLOCK_ROOM) - 2) // FLIT_BYTES)
        return flits

    @property
    def _transport_bytes(self) -> int:
        return sum(field.num_bytes for field in self.header if field.layer == "transport")

    def _padding(self, payload_bytes: int) -> int:
        if not self.pads_transport:
            return 0
        return -(self._transport_bytes + payload_bytes) % TRANSPORT_ALIGNMENT_BYTES


_BLOCK_COST: Final = BLOCK_CHECK_BYTES + LATER_BLOCK_HEADER_BYTES
_BLOCK_ROOM: Final = FLIT_BYTES * MAX_FLITS_PER_BLOCK - _BLOCK_COST


def _flits(used_bytes: int) -> int:
    """Flits of headers plus payload.

    A packet of b blocks holds 640 b - (6 b - 2) bytes, so b = ceil((used - 2) / 634) is the fewest
    that fit; one block fewer would not, so the flit count below falls into exactly b blocks.
    """
    num_blocks = -(-(used_bytes - LATER_BLOCK_HEADER_BYTES) // _BLOCK_ROOM)
    return -(-(used_bytes + _BLOCK_COST * num_blocks - LATER_BLOCK_HEADER_BYTES) // FLIT_BYTES)


CTP6: Final = PacketForm(
    name="ctp6",
    header=(LPH, NTH_16, CTPH, UPI_SHORT, EID_20, BTAH, MAETAH, TVETAH, ICRC),
    taack=(LPH, NTH_16, CTPH, UPI_SHORT, EID_20, ATAH, ICRC),
    can_skip_taack=True,
)
"""Compact transport, 16-bit addresses (CFG 6), short EIDs: the reading for one supernode."""

CTP7: Final = PacketForm(
    name="ctp7",
    header=(LPH, NTH_24, CTPH, UPI_LONG, EID_128, BTAH, MAETAH, TVETAH, ICRC),
    taack=(LPH, NTH_24, CTPH, UPI_LONG, EID_128, ATAH, ICRC),
    can_skip_taack=True,
)
"""Compact transport, 24-bit addresses (CFG 7), 128-bit EIDs: the reading for scale-out."""

RTP: Final = PacketForm(
    name="rtp",
    header=(LPH, NTH_24, RTPH, BTAH, MAETAH, TVETAH, ICRC),
    # Whether it carries the EIDs is unknown; with them it is the 80 B that the table calls an upper bound.
    taack=(LPH, NTH_24, RTPH, EID_128, ATAH, ICRC),
)
"""Reliable transport, 24-bit addresses; one acknowledgement per packet is an upper bound."""

UBMEM: Final = PacketForm(
    name="ubmem",
    header=(LPH, NTH_16, BTAH_COMPACT, MAETAH_COMPACT),
    taack=(LPH, NTH_16, ATAH_COMPACT),
)
"""Load/store (CFG 9): no transport header, compact transaction headers, no end-to-end check."""

FORMS: Final[Mapping[str, PacketForm]] = MappingProxyType({f.name: f for f in (CTP6, CTP7, RTP, UBMEM)})


@dataclass(frozen=True, kw_only=True)
class AckPolicy:
    """How many packets one TAACK acknowledges.

    Args:
      packets_per_taack: 1 = one each; n = a run of n consecutive packets; 0 = none is sent.

    Raises:
      TopologyError: the count is not an integer in 0..32.
    """

    packets_per_taack: int = 1

    def __post_init__(self) -> None:
        """Refuse runs that a TAACK cannot count."""
        count = self.packets_per_taack
        if type(count) is not int or not 0 <= count <= MAX_PACKETS_PER_TAACK:
            raise TopologyError(
                "packets per TAACK", count, f"must be an integer in 0..{MAX_PACKETS_PER_TAACK}"
            )

    def bytes_per_packet(self, form: PacketForm) -> Fraction:
        """Acknowledgement bytes on the wire per request packet, averaged over a full run.

        Raises:
          TopologyError: none is asked for where the form always acknowledges.
        """
        if self.packets_per_taack:
            return Fraction(form.taack_wire_bytes, self.packets_per_taack)
        if not form.can_skip_taack:
            raise TopologyError(
                "packets per TAACK", 0, f"must be at least 1 for {form.name}; only CTP can skip it"
            )
        return Fraction(0)


ACK_EACH: Final = AckPolicy(packets_per_taack=1)
ACK_NONE: Final = AckPolicy(packets_per_taack=0)


def forward_efficiency(form: PacketForm, payload_bytes: int) -> Fraction:
    """Payload bytes per wire byte of one packet, acknowledgements not counted.

    Raises:
      TopologyError: as `PacketForm.flits`.
    """
    return Fraction(payload_bytes, FLIT_BYTES * form.flits(payload_bytes))


def efficiency(form: PacketForm, payload_bytes: int, ack: AckPolicy = ACK_EACH) -> Fraction:
    """Payload bytes per wire byte when a direction also carries the TAACKs of the reverse data.

    Raises:
      TopologyError: as `PacketForm.flits` and `AckPolicy.bytes_per_packet`.
    """
    return Fraction(payload_bytes) / (FLIT_BYTES * form.flits(payload_bytes) + ack.bytes_per_packet(form))


def message_wire_bytes(
    form: PacketForm, message_bytes: int, mtu: int = DEFAULT_MTU, ack: AckPolicy = ACK_EACH
) -> Fraction:
    """Wire bytes of one message of full packets and a shorter last one, TAACK share included.

    A fraction, because messages share the TAACK of an aggregated run. `message_bytes` is the payload
    of one message (one token row per work request), `mtu` that of a full packet.

    Raises:
      TopologyError: as `PacketForm.flits` and `AckPolicy.bytes_per_packet`.
    """
    _positive("message bytes", message_bytes)
    _positive("mtu", mtu)
    num_full, tail_bytes = divmod(message_bytes, mtu)
    num_flits = num_full * form.flits(mtu) + (form.flits(tail_bytes) if tail_bytes else 0)
    return FLIT_BYTES * num_flits + (num_full + bool(tail_bytes)) * ack.bytes_per_packet(form)


def message_efficiency(
    form: PacketForm, message_bytes: int, mtu: int = DEFAULT_MTU, ack: AckPolicy = ACK_EACH
) -> Fraction:
    """Payload bytes per wire byte of such a message; arguments and errors as `message_wire_bytes`."""
    return message_bytes / message_wire_bytes(form, message_bytes, mtu, ack)


def capacity(
    ports: int = SCALEUP_PORTS,
    lanes: int = LANES_PER_PORT,
    lane_bits_per_s: int = LANE_BITS_PER_S,
    fec: Fraction = FEC_RATE,
) -> float:
    """Flit bytes per second of one card and direction: 398,437,500,000 for the defaults.

    Args:
      ports: ports of the layer.
      lanes: lanes per port.
      lane_bits_per_s: line rate of a lane, bits per second, before forward error correction.
      fec: share that error correction leaves, 1 for bypass.

    Raises:
      TopologyError: a count or the rate is not a positive integer, or fec is not in (0, 1].
    """
    for field, value in (("ports", ports), ("lanes", lanes), ("lane bits per second", lane_bits_per_s)):
        _positive(field, value)
    if not 0 < fec <= 1:
        raise TopologyError("fec rate", str(fec), "must be in (0, 1]")
    return float(Fraction(ports * lanes * lane_bits_per_s, 8) * fec)


def payload_limit_bytes_per_s(
    form: PacketForm = CTP6,
    mtu: int = DEFAULT_MTU,
    message_bytes: int | None = None,
    ack: AckPolicy = ACK_EACH,
    capacity_bytes_per_s: float | None = None,
) -> float:
    """Payload bytes per second that one card can send while it receives as much.

    Args:
      form: packet family.
      mtu: payload bytes of a full packet.
      message_bytes: size of each message; None = full packets only.
      ack: acknowledgement policy.
      capacity_bytes_per_s: flit capacity of the direction; None = `capacity()`.

    Raises:
      TopologyError: as `message_wire_bytes`, or the capacity is not positive and finite.
    """
    flit_rate = capacity() if capacity_bytes_per_s is None else capacity_bytes_per_s
    if not 0 < flit_rate < float("inf"):
        raise TopologyError("capacity bytes per second", flit_rate, "must be positive and finite")
    share = message_efficiency(form, mtu if message_bytes is None else message_bytes, mtu, ack)
    return float(Fraction(flit_rate) * share)
