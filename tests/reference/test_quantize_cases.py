"""Public bug cases G24 to G33 of cases.md, with the right values."""

import dataclasses

import numpy as np
import pytest

from reference.errors import ConfigError
from reference.formats import scales as scale_forms
from reference.formats.dtypes import BF16, E4M3FN, E4M3FNUZ, E5M2, E8M0, cast, from_bits, to_bits, widen
from reference.formats.quantize import (
    Quantized,
    dequantize,
    per_token_cast_back,
    per_token_cast_to_fp8,
    quantize,
)
from reference.formats.recipes import RECIPES, Recipe

INF, NAN = float("inf"), float("nan")


def row(*values):
    return np.array([values], np.float32)


def codes_of(done):
    return to_bits(done.codes)[0].tolist()


@pytest.mark.parametrize("element", ["e4m3fn", "e5m2"])
@pytest.mark.parametrize("amax", [448.0, 896.0, 57344.0])
def test_g24_the_maximum_comes_back_when_the_scale_uses_its_own_format(element, amax):
    done = quantize(row(amax), Recipe(element=element, group=128, scale="fp32"))
    assert done.scales.tolist() == [[np.float32(amax) / np.float32({"e4m3fn": 448, "e5m2": 57344}[element])]]
    assert dequantize(done).tolist() == [[amax]]


def test_g24_swapped_maxima_saturate():
    done = quantize(row(896.0), Recipe(element="e4m3fn", group=128, scale="fp32", bound=57344.0))
    assert (done.scales.tolist(), codes_of(done), dequantize(done).tolist()) == (
        [[0.015625]],
        [0x7E],
        [[7.0]],
    )


@pytest.mark.parametrize(
    "name", ["fp8-128", "fp8-128-ue8m0", "mxfp8-e4m3", "mxfp4", "fp8-token", "int8-token"]
)
def test_g25_zero_groups_give_zero_codes_and_a_usable_scale(name):
    x = np.zeros((3, 256), np.float32)
    x[0, 128:], x[1, 5], x[2] = 1.0, 1e-30, -0.0
    done = quantize(x, name)
    factors = widen(done.scales)
    assert np.isfinite(factors).all()
    assert (factors > 0).all()
    back = widen(dequantize(done))
    assert np.isfinite(back).all()
    assert np.count_nonzero(back[[0, 2], :128]) == 0
    assert 0 <= back[1, 5] < 2.0**-99  # the power of two above 1e-30


def test_g25_signs_of_zero_survive_and_the_floor_sets_the_scale():
    done = quantize(row(0.0, -0.0, 1e-30), "fp8-128")
    assert codes_of(done) == [0x00, 0x80, 0x00]
    assert done.scales.tolist() == [[np.float32(1e-4) / np.float32(448)]]


def test_g26_power_of_two_scales_of_token_numbers():
    x = np.repeat(np.arange(128, dtype=np.float32)[:, None], 128, axis=1)
    done = quantize(cast(x, BF16), "fp8-128-ue8m0")
    t = np.arange(1, 128)
    expected = [2.0 ** np.ceil(np.log2(v / 448)) for v in t]
    assert widen(done.scales)[1:, 0].tolist() == expected
    assert to_bits(done.scales)[0, 0] == 105  # 2^-22 >= 1e-4 / 448 > 2^-23
    back = widen(dequantize(done))
    assert (back >= 0).all()
    assert (np.abs(back - x) <= x / 16).all()
    packs = scale_forms.pack_int32(done.scales)
    assert packs[:, 0].tolist() == to_bits(done.scales)[:, 0].tolist()  # one group: the low byte
    assert per_token_cast_back(done.codes, packs).tolist() == back.tolist()


@pytest.mark.parametrize(
    ("rule", "byte", "back"),
    [("ceil", 122, 7.5), ("floor", 121, 7.0), ("nearest", 121, 7.0), ("even", 121, 7.0)],
)
def test_g27_rounding_of_the_shared_exponent_is_named(rule, byte, back):
    done = quantize(row(7.5), dataclasses.replace(RECIPES["mxfp8-e4m3"], rule=rule))
    assert (to_bits(done.scales).tolist(), dequantize(done).tolist()) == ([[byte]], [[back]])


@pytest.mark.parametrize(("rule", "exact", "through_bf16"), [("floor", 118, 119), ("ceil", 119, 119)])
def test_g27_a_detour_through_bf16_moves_the_maximum(rule, exact, through_bf16):
    recipe = dataclasses.replace(RECIPES["mxfp8-e4m3"], rule=rule)
    x = row(1 - 2.0**-24)
    found = [int(to_bits(quantize(v, recipe).scales)[0, 0]) for v in (x, cast(x, BF16))]
    assert found == [exact, through_bf16]


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["fp8-128", "fp8-128-ue8m0", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_g28_isolated_values_do_not_change_their_neighbours(name, odd):
    done, clean = quantize(row(1.0, odd, -2.0, 4.0), name), quantize(row(1.0, 0.0, -2.0, 4.0), name)
    assert done.scales.tobytes() == clean.scales.tobytes()
    assert [c for i, c in enumerate(codes_of(done)) if i != 1] == [
        c for i, c in enumerate(codes_of(clean)) if i != 1
    ]
    kept = {"mxfp8-e5m2": {NAN: 0x7E, INF: 0x7C, -INF: 0xFC}}
    assert codes_of(done)[1] == kept.get(name, {NAN: 0x7F, INF: 0x7F, -INF: 0xFF})[odd]


@pytest.mark.parametrize(("odd", "code"), [(NAN, 0x7E), (INF, 0x7E), (-INF, 0xFE)])
def test_g28_saturated_values_become_the_largest_code(odd, code):
    recipe = dataclasses.replace(RECIPES["fp8-128"], nonfinite="saturate")
    done = quantize(row(1.0, odd, -2.0, 4.0), recipe)
    assert codes_of(done) == [0x6E, code, 0xF6, 0x7E]
    assert done.scales.tolist() == [[np.float32(4) / np.float32(448)]]


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["fp8-128", "fp8-128-ue8m0", "mxfp4", "int8-token"])
def test_g28_poison_spreads_over_the_group_and_stops_there(name, odd):
    recipe = dataclasses.replace(RECIPES[name], nonfinite="poison")
    width = recipe.group or 4
    x = np.ones((2, 2 * width), np.float32)
    x[1, 1] = odd
    done = quantize(x, recipe)
    nan = np.isnan(widen(dequantize(done)))
    wanted = np.zeros_like(nan)
    wanted[1, : recipe.group] = True
    assert nan.tolist() == wanted.tolist()
    if name == "fp8-128":
        assert np.array_equal(done.scales[1, :1], [np.float32(abs(odd))], equal_nan=True)


@pytest.mark.parametrize("nonfinite", ["isolate", "saturate", "poison"])
@pytest.mark.parametrize("name", ["fp8-128", "mxfp8-e5m2"])
def test_g28_signalling_nan_is_like_any_other(name, nonfinite):
    recipe = dataclasses.replace(RECIPES[name], nonfinite=nonfinite)
    for dtype, code in ((BF16, 0x7F81), (None, 0x7F800001)):
        x = cast(row(1.0, NAN, 2.0), BF16) if dtype else row(1.0, NAN, 2.0)
        quiet = quantize(x, recipe)
        to_bits(x)[0, 1] = code
        signalling = quantize(x, recipe)
        assert signalling.codes.tobytes() == quiet.codes.tobytes()
        assert np.array_equal(widen(signalling.scales), widen(quiet.scales), equal_nan=True)


@pytest.mark.parametrize("name", ["int8-token", "mxfp4"])
def test_g28_formats_without_nan_refuse_by_place(name):
    x = np.zeros((700, 700), np.float32)
    x[650, 3] = NAN
    with pytest.raises(ConfigError, match=r"x\[650, 3\] is nan: .* has no code for it"):
        quantize(x, name)
    saturated = quantize(x, dataclasses.replace(RECIPES[name], nonfinite="saturate"))
    assert float(widen(dequantize(saturated))[650, 3]) > 0


def test_g29_subnormals_use_the_step_of_their_format():
    values = [2.0**-9, 2.0**-8, 2.0**-7, 3 * 2.0**-9, 2.0**-10, 1.5 * 2.0**-10]
    codes = [0x01, 0x02, 0x04, 0x03, 0x00, 0x01]
    assert to_bits(cast(np.array(values, np.float32), E4M3FN)).tolist() == codes
    assert to_bits(cast(-np.array(values, np.float32), E4M3FN)).tolist() == [c + 0x80 for c in codes]
    # The same through a whole quantisation: 448 fixes the scale at 1.
    done = quantize(row(448.0, *values, -(2.0**-10)), "fp8-128")
    assert codes_of(done) == [0x7E, *codes, 0x80]


@pytest.mark.parametrize(
    ("element", "bound", "code"),
    [("e4m3fnuz", 224.0, 0x7E), ("e4m3fnuz", 240.0, 0x7F), ("e4m3fn", 448.0, 0x7E), ("e4m3fn", 240.0, 0x77)],
)
def test_g30_format_and_bound_are_parameters(element, bound, code):
    done = quantize(row(240.0), Recipe(element=element, group=128, scale="fp32", bound=bound))
    assert (codes_of(done), dequantize(done).tolist()) == ([code], [[240.0]])
    assert done.scales.tolist() == [[np.float32(240) / np.float32(bound)]]


def test_g30_minus_zero_of_one_format_is_nan_in_the_other():
    code = np.array([0x80])
    assert (float(widen(from_bits(code, E4M3FN))[0]), np.signbit(widen(from_bits(code, E4M3FN))[0])) == (
        0.0,
        True,
    )
    assert np.isnan(widen(from_bits(code, E4M3FNUZ))[0])
    assert to_bits(cast(np.array([-0.0], np.float32), E4M3FNUZ)).tolist() == [0]


@pytest.mark.parametrize("hidden", [512, 1024])
@pytest.mark.parametrize("column_rows", [1, 4])
def test_g31_row_and_column_major_scales_give_the_same_values(hidden, column_rows):
    groups = hidden // 128
    exponents = np.tile([[t, -t] for t in range(3)], groups // 2) + 127
    packs = scale_forms.pack_int32(from_bits(exponents, E8M0))
    columns = scale_forms.column_major(packs, column_rows=column_rows)
    # One packed column is the same memory in both orders when nothing pads it: it proves nothing.
    assert (packs.tobytes() == columns.T.tobytes()) == (hidden == 512)
    codes = from_bits(np.full((3, hidden), 0x38), E4M3FN)  # 1.0 everywhere
    expected = np.repeat(2.0 ** (exponents - 127.0), 128, axis=1)
    for form in (packs, columns):
        assert per_token_cast_back(codes, form).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["fp8-128", "int8-token"])
def test_g32_codes_without_scales_fail_loudly(name):
    done = quantize(row(3.0), name)
    with pytest.raises(ConfigError, match="scales is None"):
        dataclasses.replace(done, scales=None)
    with pytest.raises(ConfigError, match=r"scales is '\[2, 1\] float32'"):
        dataclasses.replace(done, scales=np.ones((2, 1), np.float32))


def test_g32_the_scale_makes_three_of_six():
    codes = cast(row(6.0), E4M3FN)
    done = Quantized(codes=codes, scales=row(0.5), recipe=RECIPES["fp8-128"], hidden=1)
    assert (dequantize(done).tolist(), per_token_cast_back(codes, row(0.5)).tolist()) == ([[3.0]], [[3.0]])


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_g32_empty_input_keeps_the_declared_dtypes(name):
    done = quantize(np.empty((0, 256), np.float32), name)
    full = quantize(np.ones((1, 256), np.float32), name)
    assert (done.codes.dtype, done.scales.dtype) == (full.codes.dtype, full.scales.dtype)
    assert (done.codes.shape[1:], done.scales.shape[1:]) == (full.codes.shape[1:], full.scales.shape[1:])
    back = dequantize(done)
    assert (back.shape, back.dtype) == ((0, 256), BF16.dtype)


@pytest.mark.parametrize(("hidden", "groups"), [(2880, 23), (2944, 23), (3072, 24), (4096, 32), (7168, 56)])
def test_g33_a_short_last_group_has_its_own_scale(hidden, groups):
    x = np.ones((2, hidden), np.float32)
    last = (groups - 1) * 128
    x[:, last:] = 100.0
    codes, scales = per_token_cast_to_fp8(x)
    one, hundred = np.float32(1) / np.float32(448), np.float32(100) / np.float32(448)
    assert (codes.shape, scales.tolist()) == ((2, hidden), [[one] * (groups - 1) + [hundred]] * 2)
    assert (to_bits(codes) == 0x7E).all()
    assert per_token_cast_back(codes, scales)[:, last:].tolist() == [[100.0] * (hidden - last)] * 2


def test_e5m2_and_e4m3_share_no_code_table():
    codes = np.array([0x3C])
    assert (widen(from_bits(codes, E5M2)).tolist(), widen(from_bits(codes, E4M3FN)).tolist()) == (
        [1.0],
        [1.5],
    )
