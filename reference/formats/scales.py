"""Scale factors: shared exponents (e8m0), their packs, and the memory orders they travel in.

T rows (tokens), H hidden, G groups of a row, P packs of a row. A scale array is logically [T, G] or [T, P] in
every memory order; strides say which one it is, and everything here reads through them.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.formats.dtypes import E8M0, to_bits
from reference.poison import poison

ScaleRule = Literal["ceil", "floor", "nearest", "even"]
"""How a group's maximum a becomes a power of two, for a largest code value b of the element format.

ceil: the smallest 2^k >= a / b; nothing saturates (DeepEP's UE8M0; "round up", RCEIL elsewhere).
floor: 2^(floor(log2 a) - floor(log2 b)); a in the top of its octave saturates (OCP MX v1.0 section 6.3).
nearest: the 2^k nearest to a / b, a tie goes up; saturates often.
even: floor, after a is rounded to the element's mantissa bits; saturates less than floor.
"""

SCALE_RULES: tuple[ScaleRule, ...] = ("ceil", "floor", "nearest", "even")
E8M0_BIAS = 127
E8M0_NAN = 255
INT32_LANES = 4
"""e8m0 scales in one int32 pack; group g is byte g % 4 of pack g // 4 (deepep-v2.md section 4)."""
INT16_LANES = 2
"""e8m0 scales in one 2-byte pack, the sf_pack_t of the Ascend edition (deepep-ascend.md section 1.1)."""


def num_groups(hidden: int, group: int | None) -> int:
    """Return G = ceil(H / group); the last group may be shorter and has its own scale (cases.md G33).

    Args:
      hidden: H, elements of a row.
      group: elements that share a scale, None = the whole row.

    Raises:
      ConfigError: a number is below 1.
    """
    hidden = whole_number("hidden", hidden, 1)
    return 1 if group is None else -(-hidden // whole_number("group", group, 1))


def shared_exponents(
    amax: npt.NDArray[np.float32], bound: float, rule: ScaleRule, mantissa_bits: int
) -> npt.NDArray[np.uint8]:
    """Return the e8m0 code of each group; all rules are exact, without a division.

    Args:
      amax: float32 largest magnitude of each group, any shape.
      bound: b, the value that the element format's largest code stands for.
      rule: see ScaleRule.
      mantissa_bits: stored mantissa bits of the element format; only "even" looks at them.

    Returns:
      uint8, same shape: k + 127, held in 0 .. 254; 0 for a zero group (2^-127, so that nothing divides by
      zero); 255 (NaN) where amax is NaN or Inf.

    Raises:
      ConfigError: an unknown rule.
    """
    if rule not in SCALE_RULES:
        raise ConfigError("rule", rule, f"must be one of {', '.join(SCALE_RULES)}")
    usable = np.isfinite(amax) & (amax > 0)
    # a = fraction * 2^exponent with a fraction in [1, 2); frexp does the same one octave lower.
    fraction, exponent = np.frexp(np.where(usable, amax, np.float32(1)))
    fraction = fraction * np.float32(2)
    bound_fraction, bound_exponent = (float(part) for part in np.frexp(bound))
    bound_fraction *= 2
    octave = exponent.astype(np.int32) - int(bound_exponent)
    if rule == "ceil":
        octave += fraction > bound_fraction
    elif rule == "nearest":
        octave += fraction >= 1.5 * bound_fraction
        octave -= fraction < 0.75 * bound_fraction
    elif rule == "even":
        octave += fraction >= 2 - 2.0 ** -(mantissa_bits + 1)
    codes = np.clip(octave + E8M0_BIAS, 0, E8M0_NAN - 1)
    codes = np.where(usable, codes, np.where(np.isfinite(amax), 0, E8M0_NAN))
    return codes.astype(np.uint8)


def exponent_values(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the value of e8m0 codes: 2^(b - 127), NaN for 255.

    Source: OCP MX v1.0 section 5.4.
    """
    # 2^128 would overflow where NaN is meant.
    values = np.ldexp(np.float32(1), np.minimum(codes, E8M0_NAN - 1).astype(np.int32) - E8M0_BIAS)
    return np.where(codes == E8M0_NAN, np.float32(np.nan), values)


def shifted_values(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return what DeepEP's cast back reads: the float32 with bits b << 23.

    Differs from `exponent_values` at both ends: 0 gives 0.0, 255 gives Inf.

    Source: deepep-v2.md section 4.
    """
    return (codes.astype(np.uint32) << np.uint32(23)).view(np.float32)


def inverse_values(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the exact reciprocals, 2^(127 - b); NaN for 255."""
    values = np.ldexp(np.float32(1), E8M0_BIAS - codes.astype(np.int32))
    return np.where(codes == E8M0_NAN, np.float32(np.nan), values)


def pack_int32(scales: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return four e8m0 scales per int32, little-endian; bytes past the last group are 0.

    Args:
      scales: [T, G] e8m0, any strides.

    Returns:
      [T, ceil(G / 4)] int32, C order.

    Raises:
      ConfigError: wrong dtype or number of axes.
    """
    return _pack(scales, INT32_LANES).view(np.dtype("<i4")).astype(np.int32, copy=False)


def pack_int16(scales: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """Return two e8m0 scales per int16, little-endian; a byte past the last group is 0.

    Args:
      scales: [T, G] e8m0, any strides.

    Returns:
      [T, ceil(G / 2)] int16, C order.

    Raises:
      ConfigError: wrong dtype or number of axes.
    """
    return _pack(scales, INT16_LANES).view(np.dtype("<i2")).astype(np.int16, copy=False)


def _pack(scales: npt.NDArray[Any], lanes: int) -> npt.NDArray[np.uint8]:
    if scales.dtype != E8M0.dtype or scales.ndim != 2:
        raise ConfigError("scales", f"{scales.ndim}-d {scales.dtype}", "must be [T, G] e8m0")
    rows, groups = scales.shape
    packed = np.zeros((rows, -(-groups // lanes) * lanes), np.uint8)
    packed[:, :groups] = to_bits(scales)
    return packed


def unpack(packs: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return [T, groups] e8m0 from the packs of `pack_int32` or `pack_int16`, whatever their strides.

    Args:
      packs: [T, P] int32 or int16.
      groups: G, scales of a row.

    Raises:
      ConfigError: another dtype, or P is not what G scales need.
    """
    if packs.dtype not in (np.dtype(np.int32), np.dtype(np.int16)) or packs.ndim != 2:
        raise ConfigError("packs", f"{packs.ndim}-d {packs.dtype}", "must be [T, P] int32 or int16")
    lanes = packs.dtype.itemsize
    if packs.shape[1] != -(-groups // lanes):
        rule = f"{groups} scales need {-(-groups // lanes)} packs of {lanes}"
        raise ConfigError("packs.shape[1]", packs.shape[1], rule)
    # Only contiguous rows can be seen as bytes; a column-major array is copied first.
    dense = np.ascontiguousarray(packs.astype(packs.dtype.newbyteorder("<"), copy=False))
    codes = dense.view(np.uint8).reshape(packs.shape[0], packs.shape[1] * lanes)[:, :groups]
    return np.ascontiguousarray(codes).view(E8M0.dtype)


def float32_as_int16(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """Return float32 scales as the Ascend edition's 2-byte packs: low half first.

    Args:
      scales: [T, G] float32, any strides.

    Returns:
      [T, 2G] int16, C order: at hidden 7168 and groups of 128 the 112 packs of the upstream tests.

    Raises:
      ConfigError: wrong dtype or number of axes.
      Source: deepep-ascend.md section 1.5; ascend.md section 3.3.
    """
    if scales.dtype != np.float32 or scales.ndim != 2:
        raise ConfigError("scales", f"{scales.ndim}-d {scales.dtype}", "must be [T, G] float32")
    dense = np.ascontiguousarray(scales).astype("<f4", copy=False)
    return dense.view("<i2").reshape(scales.shape[0], 2 * scales.shape[1]).astype(np.int16, copy=False)


def int16_as_float32(packs: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """Return the [T, G] float32 scales behind [T, 2G] int16 packs, whatever their strides.

    Raises:
      ConfigError: wrong dtype, number of axes, or an odd number of packs.
    """
    if packs.dtype != np.int16 or packs.ndim != 2 or packs.shape[1] % 2:
        raise ConfigError("packs", f"{packs.shape} {packs.dtype}", "must be [T, 2G] int16")
    dense = np.ascontiguousarray(packs).astype("<i2", copy=False)
    return dense.view("<f4").reshape(packs.shape[0], packs.shape[1] // 2).astype(np.float32, copy=False)


def row_major(scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same [T, P] values with element strides (P, 1); not copied if they are so already."""
    return np.ascontiguousarray(scales)


def column_major(scales: npt.NDArray[Any], *, column_rows: int) -> npt.NDArray[Any]:
    """Return the same [T, P] values with element strides (1, al(T, column_rows)).

    Args:
      scales: [T, P], any strides.
      column_rows: rows to which a column is padded: 4 on NVIDIA for 4-byte packs (columns of whole 16
        bytes), 1 on Ascend (no padding). `Edition.scale_column_rows` holds it.

    Returns:
      [T, P] view of a [P, al(T, column_rows)] array; its padding is undefined and holds poison.

    Raises:
      ConfigError: not 2-d, or column_rows below 1.
      Source: deepep-v2.md section 2.7, deepep-ascend.md section 1.5.
    """
    if scales.ndim != 2:
        raise ConfigError("scales", f"{scales.ndim}-d", "must be [T, P]")
    step = whole_number("column_rows", column_rows, 1)
    rows, packs = scales.shape
    memory = np.empty((packs, -(-rows // step) * step), scales.dtype)
    poison(memory)
    memory[:, :rows] = scales.T
    return memory.T[:rows]
