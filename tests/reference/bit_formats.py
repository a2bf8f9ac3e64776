"""Own bit-level model of the narrow formats: values from sign, exponent and mantissa, rounding by search.

Nothing here calls ml_dtypes. A format is (exponent bits, mantissa bits, bias, what the top codes mean).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BitFormat:
    """Layout; `top` says what lies above the largest finite code: "inf" (IEEE), "nan" (one NaN) or ""."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    top: str
    signed: bool = True
    minus_zero_is_nan: bool = False

    @property
    def magnitude_bits(self):
        return self.exponent_bits + self.mantissa_bits

    @property
    def num_codes(self):
        return 2 ** (self.magnitude_bits + self.signed)


FORMATS = {
    "bf16": BitFormat(8, 7, 127, "inf"),
    "e4m3fn": BitFormat(4, 3, 7, "nan"),
    "e5m2": BitFormat(5, 2, 15, "inf"),
    "e4m3fnuz": BitFormat(4, 3, 8, "", minus_zero_is_nan=True),
    "e2m1": BitFormat(2, 1, 1, ""),
}


def magnitudes(fmt):
    """Return float64 values of the codes without a sign: exact, Inf and NaN included."""
    codes = np.arange(2**fmt.magnitude_bits)
    exponent, mantissa = codes >> fmt.mantissa_bits, codes & (2**fmt.mantissa_bits - 1)
    normal = exponent > 0
    significand = mantissa + normal * 2**fmt.mantissa_bits
    values = significand * 2.0 ** (np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits)
    if fmt.top == "inf":
        top = exponent == 2**fmt.exponent_bits - 1
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    elif fmt.top == "nan":
        values[-1] = np.nan
    return values


def decode(fmt):
    """Return [num_codes] float64: the value of every code."""
    positive = magnitudes(fmt)
    values = np.concatenate([positive, -positive])
    if fmt.minus_zero_is_nan:
        values[positive.size] = np.nan
    return values


def num_finite(fmt):
    return int(np.isfinite(magnitudes(fmt)).sum())


def boundaries(fmt):
    """Return float64 [N]: where rounding changes its mind, the overflow threshold last."""
    finite = magnitudes(fmt)[: num_finite(fmt)]
    beyond = 2 * finite[-1] - finite[-2]
    return (np.append(finite, beyond)[1:] + finite) / 2


def encode(fmt, values, *, saturate=False):
    """Return the code of each float32 or float64: nearest, ties to the even code."""
    size = np.abs(values.astype(np.float64))
    bounds = boundaries(fmt)
    lower = np.searchsorted(bounds, size, side="left")  # number of boundaries below
    tie = np.isin(size, bounds)
    codes = np.where(tie, lower + lower % 2, lower)
    count = num_finite(fmt)
    overflow = (codes >= count) & ~np.isnan(size)
    codes[overflow] = count - 1 if saturate or fmt == FORMATS["e2m1"] else count
    signs = np.signbit(values)
    if fmt.minus_zero_is_nan:
        nan = np.isnan(size) | (overflow & (not saturate))
        return np.where(nan, 2**fmt.magnitude_bits, codes + (signs & (codes > 0)) * 2**fmt.magnitude_bits)
    # The quiet NaN: all mantissa bits of e4m3fn, the top one of an IEEE format.
    quiet = count if fmt.top == "nan" else count + 2 ** (fmt.mantissa_bits - 1)
    codes[np.isnan(size)] = quiet
    return codes + signs * 2**fmt.magnitude_bits


def probes(fmt):
    """Return float32 around every boundary and value, both signs, and the ends of float32."""
    centre = np.concatenate([boundaries(fmt), magnitudes(fmt)[: num_finite(fmt)]]).astype(np.float32)
    bits = centre.view(np.uint32).astype(np.int64)
    near = np.concatenate([bits + step for step in range(-3, 4)])
    near = near[(near >= 0) & (near < 0x7F800000)].astype(np.uint32).view(np.float32)
    ends = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000], np.uint32).view(np.float32)
    some = np.concatenate([near, ends])
    return np.concatenate([some, -some])
