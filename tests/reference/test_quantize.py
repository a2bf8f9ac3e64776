"""Quantisation of rows against plain loops; both directions, blocks, layouts, refusals."""

import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reference.errors import ConfigError
from reference.formats import quantize as quantize_module
from reference.formats import scales as scale_forms
from reference.formats.dtypes import BF16, E2M1, E4M3FN, FORMATS, cast, from_bits, to_bits, unpack_e2m1, widen
from reference.formats.quantize import (
    Quantized,
    dequantize,
    per_token_cast_back,
    per_token_cast_to_fp8,
    quantize,
)
from reference.formats.recipes import RECIPES, Recipe
from tests.reference import slow_quantize

VARIANTS = {
    **RECIPES,
    "reciprocal": Recipe(element="e4m3fn", group=5, scale="fp32", arithmetic="reciprocal"),
    "kernel_v1": Recipe(element="e4m3fn", group=5, scale="fp32", arithmetic="kernel_v1"),
    "ceil": dataclasses.replace(RECIPES["mxfp8-e4m3"], rule="ceil", group=3),
    "nearest": dataclasses.replace(RECIPES["mxfp8-e5m2"], rule="nearest", group=3),
    "even": dataclasses.replace(RECIPES["mxfp4"], rule="even", group=3),
    "fnuz": Recipe(element="e4m3fnuz", group=4, scale="fp32", bound=224.0),
    "int8-groups": Recipe(element="int8", group=4, scale="e8m0", bound=64.0),
    "no floor": Recipe(element="e4m3fn", group=4, scale="fp32", floor=1e-30),
}


def plain_codes(done):
    codes = unpack_e2m1(done.codes, done.hidden) if done.recipe.element == "e2m1" else done.codes
    return codes if codes.dtype == np.int8 else to_bits(codes)


def plain_scales(done):
    return done.scales if done.scales.dtype == np.float32 else to_bits(done.scales)


@st.composite
def rows(draw):
    """Draw finite rows: any bf16 or float32, or values of like size, so that groups use all codes."""
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 11)))
    if draw(st.booleans()):
        codes = draw(hnp.arrays(np.uint16, shape, elements=st.integers(0, 0xFFFF)))
        return from_bits(np.where((codes & 0x7F80) == 0x7F80, codes & 0x807F, codes).astype(np.uint16), BF16)
    wild, tame = st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(-8, 8, width=32)
    return draw(hnp.arrays(np.float32, shape, elements=draw(st.sampled_from([wild, tame]))))


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=60)
@given(x=rows())
def test_codes_and_scales_are_those_of_plain_loops(name, x):
    recipe = VARIANTS[name]
    done = quantize(x, recipe)
    with np.errstate(under="ignore"):
        codes, scales = slow_quantize.quantize(x, recipe)
    assert plain_codes(done).tolist() == codes
    assert plain_scales(done).tolist() == scales


@pytest.mark.parametrize("name", VARIANTS)
def test_dequantised_value_is_code_times_scale_rounded_twice(name):
    x = np.random.default_rng(1).standard_normal((3, 11), dtype=np.float32)
    done = quantize(x, VARIANTS[name])
    values = plain_codes(done).astype(np.float32)
    if name not in ("int8-token", "int8-groups"):
        values = widen(from_bits(plain_codes(done), FORMATS[done.recipe.element]))
    width = done.recipe.group or 11
    factors = plain_scales(done)
    if factors.dtype == np.uint8:
        factors = np.float32(2) ** (factors.astype(np.float32) - 127)
    for token in range(3):
        exact = [np.float32(values[token, h]) * np.float32(factors[token, h // width]) for h in range(11)]
        assert dequantize(done, as_float32=True)[token].tolist() == exact
        assert dequantize(done)[token].tolist() == cast(np.array(exact), BF16).tolist()


def test_upstream_expression_gives_the_bits_of_torch():
    """CRCs of torch 2.13.0 on the CPU: x * (448.0 / amax) cast to float8_e4m3fn, amax / 448.0, and back."""
    noise = np.arange(64 * 1024, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**16)
    x = ((noise.astype(np.float32) - 32768) * np.float32(2.0**-10)).reshape(64, 1024)
    x *= np.float32(1) + np.arange(64, dtype=np.float32)[:, None] * np.float32(2.0**-7)
    x = cast(x, BF16)
    codes, scales = per_token_cast_to_fp8(x, arithmetic="reciprocal")
    back = per_token_cast_back(codes, scales)
    crcs = [zlib.crc32(array.tobytes()) for array in (codes, scales, back)]
    assert crcs == [0xB414A5ED, 0xC6FD9BC3, 0x1B838B45]
    strict, same = per_token_cast_to_fp8(x)
    assert (int((to_bits(strict) != to_bits(codes)).sum()), same.tolist()) == (13, scales.tolist())


@pytest.mark.parametrize("name", ["fp8-128", "mxfp4", "int8-token"])
def test_blocks_do_not_show(name, monkeypatch):
    x = np.random.default_rng(2).standard_normal((9, 300), dtype=np.float32)
    x *= np.arange(1, 10, dtype=np.float32)[:, None]  # no two rows share their scales
    whole = quantize(x, name)
    back = dequantize(whole)
    monkeypatch.setattr(quantize_module, "BLOCK_BYTES", 1)
    single = quantize(x, name)
    assert single.codes.tobytes() == whole.codes.tobytes()
    assert single.scales.tobytes() == whole.scales.tobytes()
    assert dequantize(single).tobytes() == back.tobytes()


def test_input_is_read_through_strides_and_left_alone():
    x = np.random.default_rng(3).standard_normal((256, 6), dtype=np.float32)
    kept = x.copy()
    done = quantize(x.T, "fp8-128")
    assert done.codes.tobytes() == quantize(np.ascontiguousarray(x.T), "fp8-128").codes.tobytes()
    assert np.array_equal(x, kept)
    quantize(np.full((1, 4), np.nan, np.float32), "fp8-128")
    assert not np.isnan(kept).any()


def all_scale_forms(scales):
    """Return one row of e8m0 scales in every form that the cast back takes."""
    forms = [scales, scale_forms.shifted_values(to_bits(scales))]
    forms += [scale_forms.float32_as_int16(forms[1])]
    forms += [scale_forms.pack_int32(scales), scale_forms.pack_int16(scales)]
    return [*forms, *(scale_forms.column_major(form, column_rows=4) for form in forms)]


def test_cast_back_reads_every_form_of_the_same_scales():
    x = np.random.default_rng(4).standard_normal((5, 1152), dtype=np.float32)
    codes, scales = per_token_cast_to_fp8(x, scale="e8m0")
    expected = dequantize(quantize(x, "fp8-128-ue8m0"))
    assert len({row.tobytes() for row in to_bits(scales)}) > 1
    for form in all_scale_forms(scales):
        assert per_token_cast_back(codes, form).tobytes() == expected.tobytes()


def test_cast_back_shifts_bytes_at_both_ends():
    codes = from_bits(np.array([[0x38] * 128 * 3]), E4M3FN)
    packs = scale_forms.pack_int32(from_bits(np.array([[0, 255, 127]]), FORMATS["e8m0"]))
    assert widen(per_token_cast_back(codes, packs))[0, ::128].tolist() == [0.0, np.inf, 1.0]
    decoded = dequantize(Quantized(
        codes=codes, scales=scale_forms.unpack(packs, 3), recipe=RECIPES["fp8-128-ue8m0"], hidden=384
    ))  # fmt: skip
    # OCP reads the same bytes as 2^-127, which bf16 can hold, and NaN.
    assert np.array_equal(widen(decoded)[0, ::128], [2.0**-127, np.nan, 1.0], equal_nan=True)


def test_recipes_that_could_divide_by_zero_or_do_not_exist_are_refused():
    good = {"element": "e4m3fn", "group": 128, "scale": "fp32"}
    for change, text in (
        ({"floor": 0.0}, "floor is 0.0: fp32 scales need at least 448"),
        ({"floor": 1e-37}, "a multiplier overflows"),
        ({"floor": -1.0, "scale": "e8m0"}, "must not be negative"),
        ({"floor": float("nan")}, "must not be negative"),
        ({"element": "e4m3"}, "element is 'e4m3': must be one of e4m3fn"),
        ({"rule": "up"}, "rule is 'up'"),
        ({"nonfinite": "ignore"}, "isolate, saturate, poison"),
        ({"bound": 0.0}, "bound is 0.0"),
        ({"bound": float("inf")}, "bound is inf"),
        ({"group": 0}, "group is 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            Recipe(**{**good, **change})


def test_wrong_input_is_refused_with_field_and_rule():
    x = np.zeros((2, 256), np.float32)
    codes, scales = per_token_cast_to_fp8(x)
    for call, text in (
        (lambda: quantize(x[0], "fp8-128"), "x is '1-d float32'"),
        (lambda: quantize(x.astype(np.float64), "fp8-128"), "float64"),
        (lambda: quantize(x[:, :0], "fp8-128"), "hidden is 0"),
        (lambda: quantize(x, "fp8"), "recipe is 'fp8': must be one of fp8-128"),
        (lambda: per_token_cast_back(to_bits(codes), scales), "must be .T, H. e4m3fn"),
        (lambda: per_token_cast_back(codes, scales[:1]), "must have 2 rows"),
        (lambda: per_token_cast_back(codes, scales[:, :1]), "must be 2 float32 or e8m0"),
        (lambda: per_token_cast_back(codes, scales.astype(np.float64)), "must be 2 float32"),
        (lambda: per_token_cast_back(codes, None), "scales is None"),
        (lambda: per_token_cast_back(codes, scales, group=64), "must be 4 float32"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()


def test_int8_rounds_ties_to_even():
    ties = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]], np.float32)
    assert quantize(ties, "int8-token").codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, -127]]


def test_e2m1_of_odd_hidden_fills_the_last_half_byte_with_zero():
    done = quantize(np.full((1, 3), 6.0, np.float32), "mxfp4")
    assert done.codes.tolist() == [[0x77, 0x07]]
    assert unpack_e2m1(done.codes, 3).dtype == E2M1.dtype
    assert dequantize(done).tolist() == [[6, 6, 6]]
