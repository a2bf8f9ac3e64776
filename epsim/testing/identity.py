"""Payload rows that say who they are: source rank, token, call and column, even after fp8.

The sign of column c is bit c mod 32 of the row's word (half of the bits turned); the magnitude of an
ordinary element names its column. Special elements (zero, denormal, largest, Inf, NaN) keep their sign, so a
row names itself whatever it holds.
Only bytes are written and read: nothing is rounded.
"""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from epsim.errors import InputError

Array = npt.NDArray[Any]
Kind = Literal["plain", "special", "zeros", "equal"]
"""plain: every column readable. special: a quarter or more of the elements special, each kind in each row.
zeros and equal say nothing."""

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
WORD_COLUMNS = 32
"""Bits of a row's word, and the least hidden whose rows are readable."""
MASK = np.uint32(0xA5C3965A)
"""Turned bits: without them the first row would have no negative element, so no -0."""
RANK_BITS, TOKEN_BITS = 8, 14
"""The rest, 10 bits, is the call. Ranks: at most 256 (deepep-ascend.md section 1.10)."""
SHARE_OF_SPECIALS = 0.25


@dataclass(frozen=True, kw_only=True)
class _Code:
    """Magnitudes of one dtype, as unsigned bits without the sign."""

    bits: type[np.unsignedinteger[Any]]
    first: int  # of the codes that name columns: positive normal numbers
    count: int
    specials: tuple[int, ...]


CODES = {
    # Numbers 2^-63 .. 2; zero, least and largest denormal, least normal, largest, Inf, three NaN.
    BF16: _Code(
        bits=np.uint16,
        first=0x2000,
        count=0x2000,
        specials=(0, 1, 0x7F, 0x80, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x7FFF),
    ),
    # Normal numbers 2^-6 .. 416; zero, least and largest denormal, largest, NaN.
    E4M3: _Code(bits=np.uint8, first=0x08, count=0x76, specials=(0, 1, 7, 0x7E, 0x7F)),
}


@dataclass(frozen=True, kw_only=True, order=True)
class Identity:
    """Who a row is: token `token` of rank `src`, sent by call number `call`."""

    src: int
    token: int
    call: int

    def __str__(self) -> str:
        """Say it in words."""
        return f"token {self.token} of rank {self.src}, call {self.call}"


def marked_rows(
    src: int,
    num_tokens: int,
    hidden: int,
    dtype: npt.DTypeLike,
    *,
    call: int = 0,
    kind: Kind = "plain",
    seed: int = 0,
) -> Array:
    """Return [num_tokens, hidden] rows of one rank that name themselves.

    Args:
      src: source rank, below 256.
      num_tokens: below 16384.
      hidden: at least 32.
      dtype: bfloat16 or float8_e4m3fn of ml_dtypes.
      call: number of the call, taken modulo 1024.
      kind: see `Kind`.
      seed: of the places of special elements.

    Raises:
      InputError: a number is out of range, or another dtype.
    """
    code = _code(dtype)
    for name, value, least, most in (
        ("src", src, 0, 2**RANK_BITS - 1),
        ("num_tokens", num_tokens, 0, 2**TOKEN_BITS - 1),
        ("hidden", hidden, WORD_COLUMNS, 2**31 - 1),
    ):
        if not least <= value <= most:
            raise InputError(name, value, f"must be {least} to {most}")
    if kind == "zeros":
        return np.zeros((num_tokens, hidden), code.bits).view(dtype)
    token = np.arange(num_tokens, dtype=np.uint32) * np.uint32(kind != "equal")
    word = token << np.uint32(RANK_BITS)
    if kind != "equal":
        word |= np.uint32(src | call % 2 ** (32 - RANK_BITS - TOKEN_BITS) << (RANK_BITS + TOKEN_BITS))
    word ^= MASK
    column = np.arange(hidden)
    sign = (word[:, None] >> (column % WORD_COLUMNS).astype(np.uint32)) & np.uint32(1)
    magnitude = np.broadcast_to(code.first + column % code.count, sign.shape).astype(code.bits)
    if kind == "special":
        rng = np.random.default_rng((seed, src, call))
        specials = np.array(code.specials, code.bits)
        odd = rng.random(sign.shape) < SHARE_OF_SPECIALS
        magnitude[odd] = rng.choice(specials, int(odd.sum()))
        # Chance alone would leave short rows without a -0: each row gets all, negative ones first.
        places = np.argsort(rng.random(sign.shape) - sign, axis=1)[:, : len(specials)]
        np.put_along_axis(magnitude, places, np.broadcast_to(specials, places.shape), axis=1)
    top = code.bits(8 * np.dtype(dtype).itemsize - 1)
    rows: Array = (magnitude | (sign.astype(code.bits) << top)).view(dtype)
    return rows


def read_words(rows: Array) -> npt.NDArray[np.uint32]:
    """Return [N] uint32 the word of each row, read from the signs of its first 32 columns."""
    code = _code(rows.dtype)
    bits = np.ascontiguousarray(rows[:, :WORD_COLUMNS]).view(code.bits)
    sign = (bits >> code.bits(8 * rows.dtype.itemsize - 1)).astype(np.uint32)
    places = np.arange(bits.shape[1], dtype=np.uint32)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(sign << places, axis=1, initial=np.uint32(0))
    return words


def read_identity(row: Array) -> Identity:
    """Return who a row of `marked_rows` is.

    Args:
      row: [H] of the dtype that it was made in; unpacked or cast rows keep their signs and are read alike if
        their dtype is one of the two.
    """
    word = int(read_words(row[None])[0] ^ MASK)
    return Identity(
        src=word % 2**RANK_BITS,
        token=(word >> RANK_BITS) % 2**TOKEN_BITS,
        call=word >> (RANK_BITS + TOKEN_BITS),
    )


def read_columns(rows: Array) -> npt.NDArray[np.int64]:
    """Return [N, H] the column that each element names, modulo 8192 (bf16) or 118 (fp8); -1 = special."""
    code = _code(rows.dtype)
    bits = np.ascontiguousarray(rows).view(code.bits)
    magnitude = (bits & code.bits(2 ** (8 * rows.dtype.itemsize - 1) - 1)).astype(np.int64) - code.first
    return np.where((magnitude >= 0) & (magnitude < code.count), magnitude, -1)


def column_count(dtype: npt.DTypeLike) -> int:
    """Return how many columns have a magnitude of their own; then they repeat."""
    return _code(dtype).count


def _code(dtype: npt.DTypeLike) -> _Code:
    try:
        return CODES[np.dtype(dtype)]
    except KeyError:
        raise InputError("dtype", str(np.dtype(dtype)), "must be bfloat16 or float8_e4m3fn") from None
