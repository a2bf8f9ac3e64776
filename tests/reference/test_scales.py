"""Shared exponents, packs and memory orders of scales."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import ConfigError
from reference.formats import scales
from reference.formats.dtypes import E8M0, from_bits, to_bits
from reference.formats.scales import SCALE_RULES
from reference.poison import is_poisoned
from tests.reference import slow_quantize

BOUNDS = ((448.0, 3), (57344.0, 2), (6.0, 1), (240.0, 3), (127.0, 0), (256.0, 3))


def turning_points(bound, mantissa_bits):
    """Return float32 maxima next to every place where some rule changes its mind, in many octaves."""
    fraction = float(np.frexp(bound)[0]) * 2
    points = [1.0, fraction, 0.75 * fraction, 1.5 * fraction, 2 - 2.0 ** -(mantissa_bits + 1)]
    centre = np.outer(points, 2.0 ** np.arange(-149.0, 127.0, 3)).ravel().astype(np.float32)
    bits = centre.view(np.uint32).astype(np.int64)
    near = np.concatenate([bits + step for step in (-1, 0, 1)])
    return near[(near > 0) & (near < 0x7F800000)].astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize(("bound", "mantissa_bits"), BOUNDS)
def test_rules_follow_their_definition_at_every_turning_point(bound, mantissa_bits, rule):
    amax = turning_points(bound, mantissa_bits)
    got = scales.shared_exponents(amax, bound, rule, mantissa_bits)
    expected = [slow_quantize.exponent_code(a, bound, rule, mantissa_bits) for a in amax]
    assert got.tolist() == expected


def test_ceil_is_what_the_v1_kernel_computes_by_a_product():
    """Its u = a * fp32(1/448) and round-up of u agree with the exact rule (deepep-v2.md section 4)."""
    amax = turning_points(448.0, 3)
    amax = amax[amax >= np.float32(1e-4)]
    product = (amax * (np.float32(1) / np.float32(448))).view(np.uint32)
    kernel = (product >> 23) + ((product & 0x7FFFFF) != 0)
    assert scales.shared_exponents(amax, 448.0, "ceil", 3).tolist() == kernel.tolist()


def test_zero_and_non_finite_maxima_have_codes():
    amax = np.array([0, np.inf, np.nan, 1e-45, 3.4e38], np.float32)
    assert scales.shared_exponents(amax, 448.0, "ceil", 3).tolist() == [0, 255, 255, 0, 247]


def test_values_and_reciprocals_of_all_codes():
    codes = np.arange(256).astype(np.uint8)
    values, inverse = scales.exponent_values(codes), scales.inverse_values(codes)
    assert (values[:255] * inverse[:255] == 1).all()
    assert values[:255].tolist() == [2.0 ** (b - 127) for b in range(255)]
    assert np.isnan([values[255], inverse[255]]).all()
    shifted = scales.shifted_values(codes)
    assert np.array_equal(shifted[1:255], values[1:255])
    assert (shifted[0], shifted[255]) == (0.0, np.inf)


def codes_of(rows, groups):
    return from_bits(np.arange(rows * groups).reshape(rows, groups) % 251, E8M0)


@given(st.integers(0, 5), st.integers(1, 9), st.sampled_from([1, 3, 4]))
def test_packs_come_back_from_both_memory_orders(rows, groups, column_rows):
    codes = codes_of(rows, groups)
    for pack in (scales.pack_int32, scales.pack_int16):
        packs = pack(codes)
        for ordered in (packs, scales.column_major(packs, column_rows=column_rows)):
            assert np.array_equal(to_bits(scales.unpack(ordered, groups)), to_bits(codes))


def test_byte_order_of_packs():
    codes = from_bits(np.array([[1, 2, 3, 4, 5]]), E8M0)
    assert scales.pack_int32(codes).tolist() == [[0x04030201, 0x00000005]]
    assert scales.pack_int16(codes).tolist() == [[0x0201, 0x0403, 0x0005]]
    # Group g is byte g % 4 of pack g // 4.
    memory = scales.pack_int32(codes).tobytes()
    assert [memory[4 * (g // 4) + g % 4] for g in range(5)] == [1, 2, 3, 4, 5]


def test_float32_scales_as_the_ascend_packs():
    values = np.array([[1.0, -2.5], [3.0, 1e-7]], np.float32)
    packs = scales.float32_as_int16(np.asfortranarray(values))
    assert packs.tolist()[0] == [0x0000, 0x3F80, 0x0000, 0xC020 - 0x10000]
    assert np.array_equal(scales.int16_as_float32(scales.column_major(packs, column_rows=1)), values)
    assert scales.float32_as_int16(np.zeros((3, 56), np.float32)).shape == (3, 112)


@pytest.mark.parametrize(("rows", "column_rows", "stride"), [(5, 4, 8), (8, 4, 8), (5, 1, 5), (1, 4, 4)])
def test_column_major_has_the_strides_of_its_edition(rows, column_rows, stride):
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    columns = scales.column_major(values, column_rows=column_rows)
    assert columns.strides == (4, 4 * stride)
    assert np.array_equal(columns, values)
    assert is_poisoned(columns.base[:, rows:]).all()
    back = scales.row_major(columns)
    assert (back.strides, back.tolist()) == ((12, 4), values.tolist())


@pytest.mark.parametrize(("hidden", "groups"), [(1, 1), (128, 1), (129, 2), (2880, 23), (7168, 56)])
def test_groups_cover_the_row(hidden, groups):
    assert scales.num_groups(hidden, 128) == groups
    assert scales.num_groups(hidden, None) == 1


def test_misuse_is_refused_with_field_and_rule():
    codes = codes_of(2, 5)
    for call, text in (
        (lambda: scales.shared_exponents(np.ones(1, np.float32), 448.0, "round", 3), "rule is 'round'"),
        (lambda: scales.pack_int32(to_bits(codes)), r"must be \[T, G\] e8m0"),
        (lambda: scales.unpack(scales.pack_int32(codes), 9), r"9 scales need 3 packs of 4"),
        (lambda: scales.unpack(to_bits(codes), 5), "int32 or int16"),
        (lambda: scales.int16_as_float32(np.zeros((1, 3), np.int16)), "2G"),
        (lambda: scales.float32_as_int16(np.zeros((1, 3))), "float32"),
        (lambda: scales.column_major(codes, column_rows=0), "column_rows is 0"),
        (lambda: scales.column_major(to_bits(codes)[0], column_rows=4), r"must be \[T, P\]"),
        (lambda: scales.num_groups(0, 128), "hidden is 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()
