"""Quantisation by plain loops, one element at a time, from exact fractions: the oracle of `quantize`.

Uses the bit model of the formats and NumPy's float32 scalars for single IEEE operations, nothing of ours.
"""

from fractions import Fraction

import numpy as np

from tests.reference import bit_formats

ELEMENT_MAX = {"e4m3fn": 448, "e5m2": 57344, "e4m3fnuz": 240, "e2m1": 6, "int8": 127}
MANTISSA_BITS = {"e4m3fn": 3, "e5m2": 2, "e4m3fnuz": 3, "e2m1": 1, "int8": 0}


def floor_log2(value):
    """Return the k with 2^k <= value < 2^(k + 1)."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    return k if Fraction(2) ** k <= value else k - 1


def exponent_code(amax, bound, rule, mantissa_bits):
    """Return the e8m0 code by the definition of each rule, on exact fractions."""
    if not np.isfinite(amax):
        return 255
    if amax == 0:
        return 0
    a, b = Fraction(float(amax)), Fraction(bound)
    low = floor_log2(a / b)
    if rule == "ceil":
        k = low if Fraction(2) ** low == a / b else low + 1
    elif rule == "floor":
        k = floor_log2(a) - floor_log2(b)
    elif rule == "nearest":
        k = low if a / b - Fraction(2) ** low < Fraction(2) ** (low + 1) - a / b else low + 1
    else:
        step = Fraction(2) ** (floor_log2(a) - mantissa_bits)
        k = floor_log2(round(a / step) * step) - floor_log2(b)
    return min(max(k + 127, 0), 254)


def factors(amax, recipe, bound):
    """Return (multiplier, stored scale, e8m0 code or None) of one group."""
    one, a, b = np.float32(1), np.maximum(np.float32(amax), np.float32(recipe.floor)), np.float32(bound)
    if recipe.scale == "e8m0":
        code = exponent_code(a, bound, recipe.rule, MANTISSA_BITS[recipe.element])
        return np.float32(2.0 ** (127 - code)), np.float32(2.0 ** (code - 127)), code
    multiplier = (one / a) * b if recipe.arithmetic == "reciprocal" else b / a
    return multiplier, a * (one / b) if recipe.arithmetic == "kernel_v1" else a / b, None


def element_code(value, element):
    """Return the code of one scaled float32; finite values saturate."""
    most = np.float32(ELEMENT_MAX[element])
    value = min(max(value, -most), most) if np.isfinite(value) else value
    if element == "int8":
        return round(Fraction(float(value)))  # Python rounds halves to even
    return int(bit_formats.encode(bit_formats.FORMATS[element], np.array([value]))[0])


def quantize(x, recipe):
    """Return (codes [T][H] as integers, scales [T][G]: float32, or integers for e8m0) of finite rows."""
    bound = recipe.bound or ELEMENT_MAX[recipe.element]
    codes, scales = [], []
    for row in x.astype(np.float32):
        width = recipe.group or len(row)
        codes.append([])
        scales.append([])
        for start in range(0, len(row), width):
            group = row[start : start + width]
            amax = max(abs(float(v)) for v in group)
            multiplier, scale, code = factors(amax, recipe, bound)
            codes[-1] += [element_code(v * multiplier, recipe.element) for v in group]
            scales[-1].append(scale if code is None else code)
    return codes, scales
