"""Narrow float formats: names, bit views, casts and the distance between two values in ulp.

All arithmetic of the reference is strict IEEE: a value is widened to float32 exactly, computed there, and
rounded once, to nearest with ties to even. What each cast does where the format runs out:

| format | overflow, Inf       | NaN       | zero               | saturate=True, overflow and Inf |
|--------|---------------------|-----------|--------------------|---------------------------------|
| bf16   | Inf                 | quiet NaN | keeps its sign     | largest finite                  |
| e4m3fn | NaN (has no Inf)    | 0x7F/0xFF | keeps its sign     | 448                             |
| e5m2   | Inf                 | 0x7E/0xFE | keeps its sign     | 57344                           |
| e2m1   | 6 (has no Inf, NaN) | refused   | keeps its sign     | 6                               |
| e8m0   | NaN (has no Inf)    | 0xFF      | NaN (has no zero)  | 2^127; zero becomes 2^-127      |

A NaN keeps its sign; a cast never saturates one. Denormal results are exact multiples of the smallest one.
e8m0 has no sign either: a negative value is NaN, and a tie goes up (3 -> 4), since no code is "even".
ml_dtypes does the rounding; tests hold it against an own implementation on bits, code by code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """One narrow float format.

    Args:
      name: short name, as DeepEP and CANN write it.
      dtype: its NumPy dtype; e2m1 has one value per byte here, see `pack_e2m1`.
      bits_dtype: unsigned integer of the same size.
      num_bits: bits of a code; the sign, where there is one, is the topmost.
      mantissa_bits: stored mantissa bits.
      max_finite: largest finite value.
      min_subnormal: smallest positive value; each denormal is a multiple of it.
      has_sign: whether negative values exist.
      has_inf: whether infinities exist.
      has_nan: whether NaN exists.
      Source: ascend.md section 3.3; OCP Microscaling Formats (MX) v1.0 section 5.3; IEEE 754 for bf16.
    """

    name: str
    dtype: np.dtype[Any]
    bits_dtype: np.dtype[Any]
    num_bits: int
    mantissa_bits: int
    max_finite: float
    min_subnormal: float
    has_sign: bool = True
    has_inf: bool = False
    has_nan: bool = True


_BYTE = np.dtype(np.uint8)

BF16 = FloatFormat(
    name="bf16",
    dtype=np.dtype(ml_dtypes.bfloat16),
    bits_dtype=np.dtype(np.uint16),
    num_bits=16,
    mantissa_bits=7,
    max_finite=(2 - 2.0**-7) * 2.0**127,
    min_subnormal=2.0**-133,
    has_inf=True,
)
E4M3FN = FloatFormat(
    name="e4m3fn",
    dtype=np.dtype(ml_dtypes.float8_e4m3fn),
    bits_dtype=_BYTE,
    num_bits=8,
    mantissa_bits=3,
    max_finite=448.0,
    min_subnormal=2.0**-9,
)
E5M2 = FloatFormat(
    name="e5m2",
    dtype=np.dtype(ml_dtypes.float8_e5m2),
    bits_dtype=_BYTE,
    num_bits=8,
    mantissa_bits=2,
    max_finite=57344.0,
    min_subnormal=2.0**-16,
    has_inf=True,
)
# No Ascend format; here so that a hard-coded 448, or -0.0 read as a zero, shows (cases.md G30).
E4M3FNUZ = FloatFormat(
    name="e4m3fnuz",
    dtype=np.dtype(ml_dtypes.float8_e4m3fnuz),
    bits_dtype=_BYTE,
    num_bits=8,
    mantissa_bits=3,
    max_finite=240.0,
    min_subnormal=2.0**-10,
)
E8M0 = FloatFormat(
    name="e8m0",
    dtype=np.dtype(ml_dtypes.float8_e8m0fnu),
    bits_dtype=_BYTE,
    num_bits=8,
    mantissa_bits=0,
    max_finite=2.0**127,
    min_subnormal=2.0**-127,
    has_sign=False,
)
E2M1 = FloatFormat(
    name="e2m1",
    dtype=np.dtype(ml_dtypes.float4_e2m1fn),
    bits_dtype=_BYTE,
    num_bits=4,
    mantissa_bits=1,
    max_finite=6.0,
    min_subnormal=0.5,
    has_nan=False,
)

FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {fmt.name: fmt for fmt in (BF16, E4M3FN, E5M2, E4M3FNUZ, E8M0, E2M1)}
)
"""Every format by its name."""

_BY_DTYPE: Mapping[np.dtype[Any], FloatFormat] = {fmt.dtype: fmt for fmt in FORMATS.values()}
_NATIVE_BITS: Mapping[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}


def format_of(dtype: npt.DTypeLike) -> FloatFormat | None:
    """Return the format of a NumPy dtype, None if it is not one of FORMATS."""
    return _BY_DTYPE.get(np.dtype(dtype))


def is_float(dtype: npt.DTypeLike) -> bool:
    """Whether a dtype is one of FORMATS or a binary float of NumPy (float16, float32, float64)."""
    dtype = np.dtype(dtype)
    return dtype in _BY_DTYPE or (dtype.kind == "f" and dtype.itemsize in _NATIVE_BITS)


def to_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the codes of float values: the same memory as unsigned integers of the same size.

    Raises:
      ConfigError: the dtype is no float, or a longer one than float64.
    """
    if not is_float(values.dtype):
        raise ConfigError("dtype", str(values.dtype), "must be a float format of at most 64 bits")
    fmt = format_of(values.dtype)
    bits = fmt.bits_dtype if fmt else _NATIVE_BITS[values.dtype.itemsize]
    # A byte-swapped array must not be read in host order.
    return values.view(bits.newbyteorder(values.dtype.byteorder))


def from_bits(codes: npt.ArrayLike, fmt: FloatFormat) -> npt.NDArray[Any]:
    """Return the values behind codes, without a copy where the codes already have the right size.

    Args:
      codes: unsigned integers below 2^num_bits, any shape.
      fmt: how to read them.

    Raises:
      ConfigError: codes that are no whole numbers, or out of range.
    """
    array = np.asarray(codes)
    if array.dtype != fmt.bits_dtype or fmt.num_bits < 8 * array.dtype.itemsize:
        if array.dtype.kind not in "iu":
            raise ConfigError("codes", str(array.dtype), "must be whole numbers")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**fmt.num_bits:
            worst = int(array.min()) if array.min() < 0 else int(array.max())
            raise ConfigError("codes", worst, f"{fmt.name} codes are 0 to {2**fmt.num_bits - 1}")
        array = array.astype(fmt.bits_dtype, copy=False)
    return array.view(fmt.dtype)


def widen(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return values as float32, exactly; float32 itself is not copied.

    Raises:
      ConfigError: the dtype is no float of at most 32 bits.
    """
    if not is_float(values.dtype) or values.dtype.itemsize > 4:
        raise ConfigError("dtype", str(values.dtype), "must be a float format of at most 32 bits")
    # A NaN that signals is no reason for a warning.
    with np.errstate(invalid="ignore"):
        return np.asarray(values.astype(np.float32, copy=False))


def is_nan(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where float values are NaN; unlike np.isnan, without a warning for one that signals."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isnan(values))


def cast(values: npt.NDArray[Any], fmt: FloatFormat, *, saturate: bool = False) -> npt.NDArray[Any]:
    """Round values to a format: once, to nearest, ties to even; the table on top says the rest.

    Args:
      values: float of at most 32 bits, any shape. A float64 is refused: it would be rounded twice.
      fmt: format of the result.
      saturate: turn overflow and Inf into the largest finite value instead of Inf or NaN.

    Returns:
      array of fmt.dtype, same shape, C order.

    Raises:
      ConfigError: wrong dtype, or NaN for a format that has none.
    """
    wide = widen(values)
    if not fmt.has_nan and is_nan(wide).any():
        where = tuple(int(i) for i in np.argwhere(is_nan(wide))[0])
        raise ConfigError(f"values{list(where)}", float("nan"), f"{fmt.name} has no NaN")
    with np.errstate(invalid="ignore", over="ignore"):
        if saturate:
            most = np.float32(fmt.max_finite)
            # clip passes NaN and -0.0 through.
            clipped = np.clip(wide, -most if fmt.has_sign else np.float32(fmt.min_subnormal), most)
            wide = clipped if fmt.has_sign else np.where(wide >= 0, clipped, wide)
        return np.ascontiguousarray(wide).astype(fmt.dtype).reshape(values.shape)


def cast_in_range(values: npt.NDArray[np.float32], fmt: FloatFormat) -> npt.NDArray[Any]:
    """Round as `cast` does, three times as fast, values that the format's finite range holds.

    Args:
      values: float32, C order, any shape; it is overwritten. No NaN, no Inf, nothing that rounds beyond
        max_finite: such a value gets a wrong code.
      fmt: E4M3FN, E5M2 or E2M1.

    Returns:
      array of fmt.dtype, same shape.

    Raises:
      ConfigError: another format, or an array that is not float32 in C order.
    """
    if fmt not in (E4M3FN, E5M2, E2M1):
        raise ConfigError("fmt", fmt.name, "must be e4m3fn, e5m2 or e2m1")
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ConfigError("values", str(values.dtype), "must be float32 in C order")
    dropped = np.uint32(23 - fmt.mantissa_bits)
    lowest = np.float32(fmt.min_subnormal * 2.0**fmt.mantissa_bits).view(np.uint32)
    bits = values.view(np.uint32)
    codes = (bits >> np.uint32(32 - fmt.num_bits)).astype(np.uint8)
    codes &= np.uint8(1 << (fmt.num_bits - 1))  # the sign
    bits &= np.uint32(0x7FFFFFFF)
    # Adding the power of two whose ulp is the step of the format there makes the adder do the one rounding,
    # ties to even; denormals share the step of the lowest octave.
    anchor = bits & np.uint32(0x7F800000)
    np.maximum(anchor, lowest, out=anchor)
    anchor += dropped << np.uint32(23)
    values += anchor.view(np.float32)
    bits -= anchor  # steps above the anchor: the mantissa with its leading one
    anchor >>= dropped
    bits += anchor
    base = (int(lowest) >> int(dropped)) + (int(dropped) << fmt.mantissa_bits)
    codes |= bits.astype(np.uint8) - np.uint8(base % 256)
    return codes.view(fmt.dtype)


def to_bf16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values rounded to bf16; `cast(values, BF16)` by its usual name."""
    return cast(values, BF16)


def round_to_bf16(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return values rounded to bf16 but held as float32, for sums that round in between."""
    return widen(cast(values, BF16))


def add_bf16(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bf16 nearest to a + b, for bf16 a and b.

    The float32 sum in between does no harm: 24 bits are at least 2 * 8 + 2, so rounding twice equals
    rounding once.

    Raises:
      ConfigError: an operand is not bf16.
      Source: S. Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30(3), 1995.
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype != BF16.dtype:
            raise ConfigError(f"{name}.dtype", str(operand.dtype), "must be bfloat16")
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(widen(a) + widen(b), dtype=np.float32)
    return cast(total, BF16)


def pack_e2m1(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return two e2m1 codes per byte: element 2i in the low half, 2i + 1 in the high half.

    Args:
      values: [..., n] e2m1.

    Returns:
      [..., ceil(n / 2)] uint8; the last high half of an odd n is 0.

    Raises:
      ConfigError: wrong dtype, or no last axis.
      Source: memory order of torch.float4_e2m1fn_x2 and of fp4x2_e2m1_t (ascend.md section 3.3).
    """
    if values.dtype != E2M1.dtype or values.ndim == 0:
        raise ConfigError("values", f"{values.ndim}-d {values.dtype}", "must be e2m1 with a last axis")
    codes = np.ascontiguousarray(values).view(np.uint8) & np.uint8(0x0F)
    packed = np.ascontiguousarray(codes[..., 0::2])
    packed[..., : codes.shape[-1] // 2] |= codes[..., 1::2] << np.uint8(4)
    return packed


def unpack_e2m1(packed: npt.NDArray[np.uint8], num_values: int) -> npt.NDArray[Any]:
    """Return [..., num_values] e2m1 from `pack_e2m1`'s bytes.

    Args:
      packed: [..., ceil(num_values / 2)] uint8.
      num_values: elements of the last axis.

    Raises:
      ConfigError: the last axis does not hold that many.
    """
    if packed.dtype != np.uint8 or packed.ndim == 0 or packed.shape[-1] != -(-num_values // 2):
        rule = f"{num_values} values need a last axis of {-(-num_values // 2)} bytes"
        raise ConfigError("packed", f"{packed.shape} {packed.dtype}", rule)
    codes = np.empty((*packed.shape[:-1], num_values), np.uint8)
    codes[..., 0::2] = packed & np.uint8(0x0F)
    codes[..., 1::2] = packed[..., : num_values // 2] >> np.uint8(4)
    return codes.view(E2M1.dtype)


def ulp_distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return how many steps of their common format lie between values.

    0 for equal values, +0 and -0, and two NaN; Inf is one step beyond the largest finite value; -1 where
    just one of the two is NaN.

    Args:
      a: float values, any shape.
      b: same dtype and shape.

    Returns:
      int64, same shape; float64 distances beyond int64 end at its maximum.

    Raises:
      ConfigError: dtypes differ or are no float; shapes differ.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ConfigError("b", f"{b.shape} {b.dtype}", f"must be {a.shape} {a.dtype} like a")
    order_a, order_b = _order(a), _order(b)
    lower, upper = np.minimum(order_a, order_b), np.maximum(order_a, order_b)
    # The difference of two int64 always fits uint64, and wraps into it.
    steps = upper.astype(np.uint64) - lower.astype(np.uint64)
    distance = np.minimum(steps, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    nan_a, nan_b = is_nan(a).ravel(), is_nan(b).ravel()
    distance[nan_a & nan_b] = 0
    distance[nan_a != nan_b] = -1
    return distance.reshape(a.shape)


def _order(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return [N] int64 ordered as the values are, one apart for neighbours, 0 for both zeros."""
    fmt = format_of(values.dtype)
    codes = to_bits(values).ravel().astype(np.uint64)
    if fmt is not None and not fmt.has_sign:
        return codes.astype(np.int64)
    sign = np.uint64(1 << ((fmt.num_bits if fmt else 8 * values.dtype.itemsize) - 1))
    magnitude = (codes & (sign - np.uint64(1))).astype(np.int64)
    return np.where((codes & sign) != 0, -magnitude, magnitude)
