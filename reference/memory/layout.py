"""Records and regions of the Ascend buffer, byte for byte.

One table of fields gives sizes and offsets; `sizes` holds the same sums as closed formulas and a test
keeps them equal. R ranks, M token capacity of a rank, K top-k, H hidden, P scale packs of 2 bytes.
All numbers are little-endian. Source: deepep-ascend.md sections 3.1 and 3.4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, RECORD_ALIGN_BYTES, Dtype, align, element_bytes
from reference.memory.workspace import WORKSPACE_BYTES

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a record.

    Args:
      name: of the field.
      offset: bytes from the start of the record.
      dtype: of one element, little-endian.
      count: elements.
    """

    name: str
    offset: int
    dtype: np.dtype[Any]
    count: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the field without padding."""
        return self.dtype.itemsize * self.count


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Fields of a record in the order of their offsets; what lies between them is padding.

    Args:
      fields: ascending, disjoint.
      num_bytes: of one record, padding at its end included.
    """

    fields: tuple[Field, ...]
    num_bytes: int

    def field(self, name: str) -> Field:
        """Return one field.

        Raises:
          ConfigError: the record has no such field.
        """
        for field in self.fields:
            if field.name == name:
                return field
        names = ", ".join(field.name for field in self.fields)
        raise ConfigError("field", name, f"the record holds {names}")

    def pack(self, values: Mapping[str, Array], *, padding: int = 0) -> Bytes:
        """Write records.

        Args:
          values: per field [N, count], or [N] where count is 1; any dtype of the right width is taken
            by its bits, so fp8, bfloat16 and scale packs need no cast. A field that is left out (as
            the weights are when none are given) holds `padding`.
          padding: byte between the fields; the hardware leaves it undefined.

        Returns:
          [N, num_bytes] uint8.

        Raises:
          ConfigError: unknown field, or an array of the wrong shape or width.
        """
        rows = {len(value) for value in values.values()}
        if len(rows) != 1:
            raise ConfigError("values", sorted(rows), "every field needs the same number of records")
        records = np.full((rows.pop(), self.num_bytes), padding, dtype=np.uint8)
        for name, value in values.items():
            field = self.field(name)
            # Not -1: without records its value could not be worked out.
            flat = np.ascontiguousarray(value).reshape(len(value), math.prod(value.shape[1:]))
            if flat.dtype.itemsize != field.dtype.itemsize or flat.shape[1] != field.count:
                rule = f"must be {field.count} elements of {field.dtype.itemsize} bytes per record"
                raise ConfigError(name, f"{value.dtype} {value.shape}", rule)
            little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
            records[:, field.offset : field.offset + field.num_bytes] = little.view(np.uint8)
        return records

    def unpack(self, records: Bytes) -> dict[str, Array]:
        """Read records.

        Args:
          records: [N, num_bytes] uint8.

        Returns:
          per field [N, count] of the field's dtype, copied; a field of hidden bytes is uint8.

        Raises:
          ConfigError: not bytes of whole records.
        """
        if records.dtype != np.uint8 or records.ndim != 2 or records.shape[1] != self.num_bytes:
            found = f"{records.dtype} {records.shape}"
            raise ConfigError("records", found, f"must be uint8 [records, {self.num_bytes}]")
        return {
            field.name: np.ascontiguousarray(records[:, field.offset : field.offset + field.num_bytes])
            .view(field.dtype)
            .reshape(len(records), field.count)
            for field in self.fields
        }


class _Builder:
    """Places fields one after the other."""

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.end = 0

    def add(self, name: str, dtype: str, count: int, step: int = 1) -> None:
        """Append a field whose bytes are padded to a multiple of `step`."""
        field = Field(name=name, offset=self.end, dtype=np.dtype(dtype), count=count)
        self.fields.append(field)
        self.end += align(field.num_bytes, step)

    def done(self, start: int = 0) -> RecordLayout:
        """Pad what was added since `start` to 32 bytes and return the record."""
        num_bytes = start + align(self.end - start, RECORD_ALIGN_BYTES)
        return RecordLayout(fields=tuple(self.fields), num_bytes=num_bytes)


def dispatch_record(
    hidden: int, num_topk: int, dtype: Dtype, *, num_scale_packs: int, fresh: bool = True
) -> RecordLayout:
    """Return the record of a dispatched token.

    Fields: hidden (elements as 1- or 2-byte words), scales (P 2-byte packs, absent when P = 0), then when
    fresh topk_idx (K int64, GLOBAL and unmasked ids), topk_weights (K fp32), and when fresh gid (int32,
    source rank * M + source token). Weights are undefined when the caller has none.

    Args:
      hidden: H, a multiple of 32 bytes; upstream does not check it and would misplace what follows.
      num_topk: K.
      dtype: of the payload.
      num_scale_packs: P, 0 for BF16.
      fresh: False for a cached dispatch.

    Raises:
      ConfigError: a number is out of range, or the payload is no multiple of 32 bytes.
      Source: deepep-ascend.md section 3.4.
    """
    width = element_bytes(dtype)
    hidden = _hidden(hidden, width)
    topk = whole_number("num_topk", num_topk, 1)
    packs = whole_number("num_scale_packs", num_scale_packs, 0)
    build = _Builder()
    build.add("hidden", f"<u{width}", hidden)
    if packs:
        build.add("scales", "<u2", packs, RECORD_ALIGN_BYTES)
    metadata = build.end
    if fresh:
        build.add("topk_idx", "<i8", topk, RECORD_ALIGN_BYTES)
    build.add("topk_weights", "<f4", topk)
    if fresh:
        build.add("gid", "<i4", 1)
    return build.done(metadata)


def metadata_image(record: RecordLayout) -> RecordLayout:
    """Return a dispatch record without its payload: what is packed densely as [n, scales + metadata].

    The payload is gathered from x itself, so only this part is built before a send.

    Raises:
      ConfigError: the record has no payload field in front.
      Source: deepep-ascend.md section 3.4.
    """
    payload = record.field("hidden").num_bytes
    fields = tuple(
        Field(name=f.name, offset=f.offset - payload, dtype=f.dtype, count=f.count) for f in record.fields[1:]
    )
    return RecordLayout(fields=fields, num_bytes=record.num_bytes - payload)


def combine_record(hidden: int, num_topk: int) -> RecordLayout:
    """Return the record that goes back: hidden (H BF16 words) and topk_weights (K fp32).

    A weight is zero where the contributor does not own the position, so a bitwise or restores them all.

    Raises:
      ConfigError: as `dispatch_record`.
      Source: deepep-ascend.md section 3.4.
    """
    hidden = _hidden(hidden, 2)
    build = _Builder()
    build.add("hidden", "<u2", hidden)
    build.add("topk_weights", "<f4", whole_number("num_topk", num_topk, 1))
    return build.done(build.fields[0].num_bytes)


def _hidden(hidden: int, width: int) -> int:
    hidden = whole_number("hidden", hidden, 1)
    if hidden * width % RECORD_ALIGN_BYTES:
        raise ConfigError("hidden", hidden, f"a payload must be a multiple of {RECORD_ALIGN_BYTES} bytes")
    return hidden


def _below(field: str, value: int, limit: int, limit_name: str) -> int:
    value = whole_number(field, value, 0)
    if value >= limit:
        raise ConfigError(field, value, f"must be below {limit_name} {limit}")
    return value


def _tokens(num_max_tokens_per_rank: int) -> int:
    """Return M as an int: a 32-bit NumPy number would make the whole address one (cases.md G15)."""
    return whole_number("num_max_tokens_per_rank", num_max_tokens_per_rank, 1)


def receive_offset(
    record: RecordLayout, *, src_rank: int, slot: int, ep_size: int, num_max_tokens_per_rank: int
) -> int:
    """Return where a record lies in the receive region: source blocks of M records each.

    Raises:
      ConfigError: the rank or slot is out of range.
      Source: deepep-ascend.md section 3.4.
    """
    tokens = _tokens(num_max_tokens_per_rank)
    src_rank = _below("src_rank", src_rank, ep_size, "ep_size")
    slot = _below("slot", slot, tokens, "num_max_tokens_per_rank")
    return (src_rank * tokens + slot) * record.num_bytes


def receive_region_bytes(record: RecordLayout, *, ep_size: int, num_max_tokens_per_rank: int) -> int:
    """Return R blocks of M records."""
    return whole_number("ep_size", ep_size, 1) * _tokens(num_max_tokens_per_rank) * record.num_bytes


def combine_group(*, contributor_rank: int, master_topk: int, ep_size: int, num_topk: int) -> int:
    """Return the group of a combine record: the contributing rank when R < K, else the master position.

    Args:
      contributor_rank: rank whose experts' sum the record holds.
      master_topk: highest top-k position of the token on that rank.
      ep_size: R.
      num_topk: K.

    Raises:
      ConfigError: the rank or position is out of range.
      Source: deepep-ascend.md section 3.4.
    """
    rank = _below("contributor_rank", contributor_rank, ep_size, "ep_size")
    master = _below("master_topk", master_topk, num_topk, "num_topk")
    return rank if ep_size < num_topk else master


def combine_record_idx(*, group: int, home_token: int, num_max_tokens_per_rank: int) -> int:
    """Return group * M + the token's index at its home rank.

    Raises:
      ConfigError: the token is out of range, or the group negative.
    """
    tokens = _tokens(num_max_tokens_per_rank)
    token = _below("home_token", home_token, tokens, "num_max_tokens_per_rank")
    return whole_number("group", group, 0) * tokens + token


def combine_region_bytes(
    record: RecordLayout, *, ep_size: int, num_topk: int, num_max_tokens_per_rank: int
) -> int:
    """Return min(K, R) groups of M records."""
    groups = whole_number("min(ep_size, num_topk)", min(ep_size, num_topk), 1)
    return groups * _tokens(num_max_tokens_per_rank) * record.num_bytes


@dataclass(frozen=True, kw_only=True)
class SymmetricWindow:
    """The one allocation of a buffer, zero-filled; remote offsets count from its base.

    Args:
      num_bytes: of the EP region, where dispatch and combine both start.
      num_lb_bytes: of the region for redundant experts behind it.

    Raises:
      ConfigError: not a multiple of 2 MiB, or negative.
      Source: deepep-ascend.md section 3.1.
    """

    num_bytes: int
    num_lb_bytes: int = 0

    def __post_init__(self) -> None:
        """Check both sizes."""
        for name, value in vars(self).items():
            if whole_number(name, value, 0) % HINT_ALIGN_BYTES:
                raise ConfigError(name, value, f"must be a multiple of {HINT_ALIGN_BYTES}")

    @property
    def ep_offset(self) -> int:
        """Bytes from the base to the EP region: the workspace comes first."""
        return WORKSPACE_BYTES

    @property
    def lb_offset(self) -> int:
        """Bytes from the base to the region for redundant experts."""
        return self.ep_offset + self.num_bytes

    @property
    def window_bytes(self) -> int:
        """Bytes of the whole allocation."""
        return align(self.lb_offset + self.num_lb_bytes, HINT_ALIGN_BYTES)
