"""Quantise rows to fp8, MX formats and int8, and back: bit exact, blocked, every odd value defined.

T rows (tokens), H hidden, G groups of a row. One arithmetic for all recipes, in float32, rounding each step:
a = max(largest magnitude of the group, floor); codes = round(x * multiplier(a)), to nearest, ties to even;
stored scale(a); a value comes back as bf16(code * scale). A short last group has its own scale over the
elements that exist. A zero group has code 0 (0x80 for -0.0) and the scale of the floor, 2^-127 without one.
Dispatch itself never quantises: these are the steps before and after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.formats.dtypes import (
    BF16,
    E2M1,
    E4M3FN,
    E5M2,
    E8M0,
    cast,
    cast_in_range,
    is_nan,
    pack_e2m1,
    to_bits,
    unpack_e2m1,
    widen,
)
from reference.formats.recipes import INT8_MAX, Arithmetic, Recipe, ScaleName, recipe_of
from reference.formats.scales import (
    INT32_LANES,
    exponent_values,
    int16_as_float32,
    inverse_values,
    num_groups,
    shared_exponents,
    shifted_values,
    unpack,
)

BLOCK_BYTES = 1 << 20
"""Float32 bytes that are worked on at a time: small enough to stay in the cache."""

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantized:
    """Codes with their scales and the recipe that tells how to read them (cases.md G32).

    Args:
      codes: [T, H] of the element format or int8; e2m1: [T, ceil(H / 2)] uint8, two to a byte.
      scales: [T, G] float32 or e8m0, any strides.
      recipe: how they were made.
      hidden: H.

    Raises:
      ConfigError: a part is missing, or has another shape or dtype than the recipe says.
    """

    codes: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    recipe: Recipe
    hidden: int

    def __post_init__(self) -> None:
        """Refuse codes without their scales."""
        width = -(-self.hidden // 2) if self.recipe.element == "e2m1" else self.hidden
        rows = len(self.codes) if isinstance(self.codes, np.ndarray) and self.codes.ndim else 0
        for name, dtype, shape in (
            ("codes", code_dtype(self.recipe), (rows, width)),
            ("scales", scale_dtype(self.recipe), (rows, num_groups(self.hidden, self.recipe.group))),
        ):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray):
                raise ConfigError(name, array, f"must be {list(shape)} {dtype}")
            if array.dtype != dtype or array.shape != shape:
                raise ConfigError(
                    name, f"{list(array.shape)} {array.dtype}", f"must be {list(shape)} {dtype}"
                )


def code_dtype(recipe: Recipe) -> np.dtype[Any]:
    """Return the dtype of a recipe's codes; uint8 for packed e2m1."""
    if recipe.format is None:
        return np.dtype(np.int8)
    return np.dtype(np.uint8) if recipe.format is E2M1 else recipe.format.dtype


def scale_dtype(recipe: Recipe) -> np.dtype[Any]:
    """Return the dtype of a recipe's scales."""
    return np.dtype(np.float32) if recipe.scale == "fp32" else E8M0.dtype


def quantize(x: npt.NDArray[Any], recipe: str | Recipe) -> Quantized:
    """Quantise rows.

    Args:
      x: [T, H] bf16, float16 or float32, any strides; T may be 0.
      recipe: a Recipe or a name of RECIPES.

    Returns:
      Quantized, C order.

    Raises:
      ConfigError: wrong shape or dtype, an unknown recipe, or NaN or Inf that the recipe cannot store.
    """
    recipe = recipe_of(recipe)
    if x.ndim != 2 or x.dtype not in (BF16.dtype, np.dtype(np.float16), np.dtype(np.float32)):
        raise ConfigError("x", f"{x.ndim}-d {x.dtype}", "must be [T, H] bf16, float16 or float32")
    rows, hidden = x.shape
    groups = num_groups(hidden, recipe.group)
    width = hidden if recipe.group is None else recipe.group
    packed = recipe.element == "e2m1"
    codes = np.empty((rows, -(-hidden // 2) if packed else hidden), code_dtype(recipe))
    scales = np.empty((rows, groups), scale_dtype(recipe))
    step = max(1, BLOCK_BYTES // (4 * groups * width))
    for start in range(0, rows, step):
        block = slice(start, min(rows, start + step))
        values = _grouped(x[block], groups, width)
        found, scales[block] = _quantize_groups(values, recipe, start)
        found = found.reshape(len(values), groups * width)[:, :hidden]
        codes[block] = pack_e2m1(found) if packed else found
    return Quantized(codes=codes, scales=scales, recipe=recipe, hidden=hidden)


def dequantize(quantized: Quantized, *, as_float32: bool = False) -> npt.NDArray[Any]:
    """Return what quantised rows stand for.

    Args:
      quantized: codes, scales and recipe.
      as_float32: leave out the last rounding to bf16.

    Returns:
      [T, H] bf16 or float32: code * scale, rounded to float32 and then to bf16. An e8m0 scale of 255 is NaN.
    """
    recipe = quantized.recipe
    scales = quantized.scales
    factors = widen(scales) if recipe.scale == "fp32" else exponent_values(to_bits(scales))
    codes = quantized.codes
    if recipe.format is E2M1:
        codes = unpack_e2m1(codes, quantized.hidden)
    width = quantized.hidden if recipe.group is None else recipe.group
    return _scaled(codes, factors, width, as_float32=as_float32)


def per_token_cast_to_fp8(
    x: npt.NDArray[Any], *, arithmetic: Arithmetic = "ieee", scale: ScaleName = "fp32", group: int = 128
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Quantise rows to e4m3fn by groups; the helper of upstream's tests, strict IEEE by default.

    Args:
      x: [T, H] bf16, float16 or float32.
      arithmetic: "reciprocal" for the bits that upstream's expression gives on the CPU; see Arithmetic.
      scale: "fp32", or "e8m0" for powers of two, rounded up.
      group: elements that share a scale.

    Returns:
      codes [T, H] e4m3fn; scales [T, ceil(H / group)] float32 or e8m0.

    Raises:
      ConfigError: as `quantize`.
      Source: deepep-v2.md section 4.
    """
    done = quantize(x, Recipe(element="e4m3fn", group=group, scale=scale, arithmetic=arithmetic))
    return done.codes, done.scales


def per_token_cast_back(
    codes: npt.NDArray[Any], scales: npt.NDArray[Any], *, group: int = 128
) -> npt.NDArray[Any]:
    """Turn fp8 rows and their scales into bf16, as upstream's helper does.

    Args:
      codes: [T, H] e4m3fn.
      scales: any strides: [T, G] float32; [T, ceil(G / 4)] int32 of four e8m0 bytes each, of which byte b
        counts as the float32 with bits b << 23 (0 is 0.0, 255 is Inf); [T, G] e8m0, read likewise;
        [T, 2G] int16, float32 in two halves; or [T, ceil(G / 2)] int16 of two e8m0 bytes each.
      group: elements that share a scale; G = ceil(H / group).

    Returns:
      [T, H] bf16.

    Raises:
      ConfigError: codes or scales of another dtype or shape.
      Source: deepep-v2.md section 4, deepep-ascend.md section 1.5.
    """
    if codes.ndim != 2 or codes.dtype != E4M3FN.dtype:
        raise ConfigError("codes", f"{codes.ndim}-d {codes.dtype}", "must be [T, H] e4m3fn")
    if not isinstance(scales, np.ndarray) or scales.ndim != 2 or len(scales) != len(codes):
        shown = list(scales.shape) if isinstance(scales, np.ndarray) else scales
        raise ConfigError("scales", shown, f"must have {len(codes)} rows, one per row of codes")
    groups = num_groups(codes.shape[1], group)
    return _scaled(codes, _factors(scales, groups), whole_number("group", group, 1))


def _factors(scales: npt.NDArray[Any], groups: int) -> Float32:
    """Return [T, G] float32 factors from any form of scales."""
    if scales.dtype == np.int16 and scales.shape[1] == 2 * groups:
        scales = int16_as_float32(scales)
    elif scales.dtype.kind == "i" and scales.dtype.itemsize <= INT32_LANES:
        scales = unpack(scales, groups)
    if scales.dtype not in (np.dtype(np.float32), E8M0.dtype) or scales.shape[1] != groups:
        rule = f"must be {groups} float32 or e8m0 scales per row, or their packs"
        raise ConfigError("scales", f"{list(scales.shape)} {scales.dtype}", rule)
    return scales if scales.dtype == np.float32 else shifted_values(to_bits(scales))


def _grouped(block: npt.NDArray[Any], groups: int, width: int) -> npt.NDArray[Any]:
    """Return [B, G, width] values, the last group filled up with +0, which no maximum notices."""
    if block.shape[1] != groups * width:
        filled = np.zeros((len(block), groups * width), block.dtype)
        filled[:, : block.shape[1]] = block
        block = filled
    return np.ascontiguousarray(block).reshape(len(block), groups, width)


def _widened(values: npt.NDArray[Any]) -> Float32:
    """Return a float32 copy; of bf16 by shifting bits, three times as fast as a cast and as exact."""
    if values.dtype != BF16.dtype:
        with np.errstate(invalid="ignore"):
            return np.array(values, dtype=np.float32)
    wide = to_bits(values).astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _magnitude(values: npt.NDArray[Any]) -> Float32:
    """Return [B, G]: the largest magnitude of each group; NaN wins over Inf wins over numbers.

    Codes without their sign are ordered as magnitudes, NaN on top, so none can disappear as it does in a
    float maximum (cases.md G28), and integers are faster.
    """
    codes = to_bits(values)
    largest = (codes & codes.dtype.type(np.iinfo(codes.dtype).max >> 1)).max(axis=-1)
    return _widened(largest.view(values.dtype))


def _quantize_groups(
    values: npt.NDArray[Any], recipe: Recipe, first_row: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return codes [B, G, width] and scales [B, G] of a block that starts at `first_row`."""
    amax = _magnitude(values)
    wide = _widened(values)
    # Most blocks hold neither NaN nor Inf, and one look at the maxima shows it.
    if np.isfinite(amax).all() or recipe.nonfinite == "poison":
        return _encode(wide, amax, recipe)
    odd = ~np.isfinite(wide)
    if recipe.nonfinite == "isolate" and (recipe.format is None or not recipe.format.has_nan):
        row, group, inside = (int(i) for i in np.argwhere(odd)[0])
        place = f"x[{first_row + row}, {group * wide.shape[2] + inside}]"
        rule = f"{recipe.element} has no code for it; choose nonfinite='saturate' or 'poison'"
        raise ConfigError(place, float(wide[row, group, inside]), rule)
    kept = wide[odd]
    wide[odd] = 0
    codes, scales = _encode(wide, _magnitude(wide), recipe)
    if recipe.nonfinite == "saturate":
        kept = np.copysign(np.float32(recipe.format_max), kept)
    codes[odd] = _rounded(kept, recipe)
    return codes, scales


def _encode(wide: Float32, amax: Float32, recipe: Recipe) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Scale and round a block in place; its maxima decide everything else."""
    # NaN and Inf get here only by nonfinite="poison", where they are meant to spread.
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        amax = np.maximum(amax, np.float32(recipe.floor))
        multipliers, scales = _multipliers(amax, recipe)
        np.multiply(wide, multipliers[:, :, np.newaxis], out=wide)
    if recipe.may_saturate:
        np.clip(wide, -np.float32(recipe.format_max), np.float32(recipe.format_max), out=wide)
    if np.isfinite(amax).all() and recipe.format in (E4M3FN, E5M2, E2M1):
        return cast_in_range(wide, recipe.format), scales
    # The sign of a NaN that arithmetic makes depends on the machine.
    wide[is_nan(wide)] = np.float32(np.nan) if _has_nan(recipe) else np.float32(0)
    return _rounded(wide, recipe), scales


def _has_nan(recipe: Recipe) -> bool:
    return recipe.format is not None and recipe.format.has_nan


def _multipliers(amax: Float32, recipe: Recipe) -> tuple[Float32, npt.NDArray[Any]]:
    """Return what values are multiplied by, and the stored scale, of each group."""
    bound, one = np.float32(recipe.largest_code), np.float32(1)
    if recipe.scale == "e8m0":
        bits = 0 if recipe.format is None else recipe.format.mantissa_bits
        exponents = shared_exponents(amax, recipe.largest_code, recipe.rule, bits)
        return inverse_values(exponents), exponents.view(E8M0.dtype)
    multipliers = (one / amax) * bound if recipe.arithmetic == "reciprocal" else bound / amax
    scales = amax * (one / bound) if recipe.arithmetic == "kernel_v1" else amax / bound
    return multipliers, scales


def _rounded(wide: Float32, recipe: Recipe) -> npt.NDArray[Any]:
    """Round scaled values to the element format; int8 likewise to nearest, ties to even."""
    if recipe.format is not None:
        return cast(wide, recipe.format)
    return np.clip(np.rint(wide), -INT8_MAX, INT8_MAX).astype(np.int8)


def _scaled(
    codes: npt.NDArray[Any], factors: Float32, width: int, *, as_float32: bool = False
) -> npt.NDArray[Any]:
    """Return [T, H] code * factor, a factor for each `width` columns, in blocks of rows."""
    rows, hidden = codes.shape
    result = np.empty((rows, hidden), np.float32 if as_float32 else BF16.dtype)
    step = max(1, BLOCK_BYTES // (4 * hidden))
    for start in range(0, rows, step):
        block = slice(start, min(rows, start + step))
        wide = np.array(codes[block], dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            wide *= np.repeat(factors[block], width, axis=1)[:, :hidden]
        result[block] = wide if as_float32 else cast(wide, BF16)
    return result
