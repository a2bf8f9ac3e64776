"""Casts, bits and distances of the narrow formats, against an own model on bits."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reference.errors import ConfigError
from reference.formats import dtypes
from reference.formats.dtypes import BF16, E2M1, E4M3FN, E5M2, E8M0, FORMATS
from tests.reference import bit_formats

SIGNED = sorted(bit_formats.FORMATS)


def codes_of(fmt):
    return np.arange(bit_formats.FORMATS[fmt.name].num_codes).astype(fmt.bits_dtype)


@pytest.mark.parametrize("name", SIGNED)
def test_every_code_means_what_its_bits_say(name):
    fmt = FORMATS[name]
    values = dtypes.widen(dtypes.from_bits(codes_of(fmt), fmt))
    # All values of these formats are float32 values, so nothing is lost here.
    expected = bit_formats.decode(bit_formats.FORMATS[name]).astype(np.float32)
    assert np.array_equal(values, expected, equal_nan=True)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.signbit(values)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("name", SIGNED)
def test_format_table_follows_from_the_bits(name):
    fmt, bits = FORMATS[name], bit_formats.FORMATS[name]
    values = bit_formats.decode(bits)
    finite = values[np.isfinite(values)]
    assert fmt.max_finite == finite.max()
    assert fmt.min_subnormal == finite[finite > 0].min()
    assert (fmt.has_inf, fmt.has_nan) == (np.isinf(values).any(), np.isnan(values).any())
    assert (2**fmt.num_bits, fmt.mantissa_bits) == (bits.num_codes, bits.mantissa_bits)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", SIGNED)
def test_cast_rounds_as_the_bit_model_around_every_boundary(name, saturate):
    fmt, bits = FORMATS[name], bit_formats.FORMATS[name]
    probes = bit_formats.probes(bits)
    got = dtypes.to_bits(dtypes.cast(probes, fmt, saturate=saturate))
    expected = bit_formats.encode(bits, probes, saturate=saturate)
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, (probes[wrong[:3]], got[wrong[:3]], expected[wrong[:3]])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", [n for n in SIGNED if FORMATS[n].has_nan])
def test_nan_of_any_payload_becomes_the_quiet_nan_of_its_sign(name, saturate):
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    fmt = FORMATS[name]
    got = dtypes.to_bits(dtypes.cast(nans, fmt, saturate=saturate))
    quiet = bit_formats.encode(bit_formats.FORMATS[name], np.array([np.nan, -np.nan]))
    assert got.tolist() == [quiet[0]] * 3 + [quiet[1]] * 2


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1"])
def test_fast_cast_rounds_as_the_bit_model_within_the_range(name):
    fmt, bits = FORMATS[name], bit_formats.FORMATS[name]
    probes = bit_formats.probes(bits)
    # Strictly below the overflow threshold all round to a finite value.
    probes = probes[np.abs(probes.astype(np.float64)) < bit_formats.boundaries(bits)[-1]]
    expected = bit_formats.encode(bits, probes)
    got = dtypes.to_bits(dtypes.cast_in_range(probes.copy(), fmt))
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, (probes[wrong[:3]], got[wrong[:3]], expected[wrong[:3]])


def test_fast_cast_refuses_what_it_cannot_do():
    values = np.ones((2, 2), np.float32)
    for given_values, fmt in ((values, BF16), (values, FORMATS["e4m3fnuz"]), (values.T[:1], E5M2)):
        with pytest.raises(ConfigError, match="must be"):
            dtypes.cast_in_range(given_values, fmt)
    with pytest.raises(ConfigError, match="must be float32"):
        dtypes.cast_in_range(values.astype(np.float64), E5M2)


def test_table_of_odd_values():
    """The corners that the module's table promises, as hand-written codes."""
    odd = np.array([464, 465, np.inf, -np.inf, -0.0, 2.0**-10, 61440, -61441], np.float32)
    plain = [0x7E, 0x7F, 0x7F, 0xFF, 0x80, 0x00, 0x7F, 0xFF]
    assert dtypes.to_bits(dtypes.cast(odd, E4M3FN)).tolist() == plain
    held = [0x7E, 0x7E, 0x7E, 0xFE, 0x80, 0x00, 0x7E, 0xFE]
    assert dtypes.to_bits(dtypes.cast(odd, E4M3FN, saturate=True)).tolist() == held
    assert dtypes.to_bits(dtypes.cast(odd, E5M2))[2:].tolist() == [0x7C, 0xFC, 0x80, 0x14, 0x7C, 0xFC]
    assert dtypes.to_bits(dtypes.cast(odd, E2M1))[:5].tolist() == [7, 7, 7, 15, 8]


def test_e8m0_rounds_to_the_nearest_power_with_ties_up():
    octaves = np.arange(-126, 127)
    for factor, up in ((1.0, 0), (1.5 - 2.0**-23, 0), (1.5, 1), (2 - 2.0**-23, 1)):
        values = np.float32(factor) * np.ldexp(np.float32(1), octaves)
        assert dtypes.to_bits(dtypes.cast(values, E8M0)).tolist() == (octaves + up + 127).tolist()


def test_e8m0_has_no_zero_no_sign_and_no_infinity():
    values = np.array([0, -0.0, -1, np.inf, np.nan, 1.5 * 2.0**127, 2.0**127, 1e-45], np.float32)
    assert dtypes.to_bits(dtypes.cast(values, E8M0)).tolist() == [255, 255, 255, 255, 255, 255, 254, 0]
    held = dtypes.to_bits(dtypes.cast(values, E8M0, saturate=True))
    assert held.tolist() == [0, 0, 255, 254, 255, 254, 254, 0]
    decoded = dtypes.widen(dtypes.from_bits(np.arange(256), E8M0))
    assert np.array_equal(decoded[:255], 2.0 ** np.arange(-127.0, 128.0))
    assert np.isnan(decoded[255])


def test_nan_is_refused_where_no_code_exists():
    with pytest.raises(ConfigError, match=r"values\[1, 0\] is nan: e2m1 has no NaN"):
        dtypes.cast(np.array([[1], [np.nan]], np.float32), E2M1)


def test_float64_is_refused_because_it_would_be_rounded_twice():
    # Half an ulp of bf16 above 1 and a little more: nearest is 1 + 2^-7, but float32 first makes it a tie.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert float(value.astype(np.float32).astype(ml_dtypes.bfloat16)[0]) == 1.0
    with pytest.raises(ConfigError, match="at most 32 bits"):
        dtypes.cast(value, BF16)


def test_cast_keeps_shape_and_reads_through_strides():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (values.T, values[::2, ::-1], values[:0], values[0, 0:1].reshape(())):
        got = dtypes.cast(view, E4M3FN)
        assert got.shape == view.shape
        assert np.array_equal(dtypes.widen(got), dtypes.widen(dtypes.cast(view.copy(), E4M3FN)))


def test_rounding_to_bf16_keeps_float32():
    values = np.array([1.00390625, 3.0e38, -1e-45], np.float32)
    rounded = dtypes.round_to_bf16(values)
    assert rounded.dtype == np.float32
    assert dtypes.to_bits(dtypes.to_bf16(values)).tolist() == (rounded.view(np.uint32) >> 16).tolist()
    assert rounded[0] == 1.0  # a tie goes to the even mantissa


def test_bf16_sum_is_rounded_once():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**16, (2, 200_000)).astype(np.uint16)
    # Exponents at most 40 apart: then the float64 sum is exact.
    codes[1] = (codes[1] & 0x807F) | (
        np.clip((codes[0] >> 7 & 0xFF).astype(int) + rng.integers(-40, 41, codes.shape[1]), 1, 254) << 7
    ).astype(np.uint16)
    a, b = (dtypes.from_bits(c, BF16) for c in codes)
    finite = np.isfinite(a.astype(np.float32))
    a, b = a[finite], b[finite]
    exact = a.astype(np.float64) + b.astype(np.float64)
    assert np.array_equal(exact - a.astype(np.float64), b.astype(np.float64))
    expected = bit_formats.encode(bit_formats.FORMATS["bf16"], exact)
    assert np.array_equal(dtypes.to_bits(dtypes.add_bf16(a, b)), expected)


def test_bf16_sum_of_other_dtypes_is_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(ConfigError, match=r"b\.dtype"):
        dtypes.add_bf16(dtypes.to_bf16(one), one)


@pytest.mark.parametrize("name", [n for n in SIGNED if n != "bf16"])
def test_ulp_distance_counts_codes_between_all_pairs(name):
    fmt, bits = FORMATS[name], bit_formats.FORMATS[name]
    codes = codes_of(fmt)
    a, b = (dtypes.from_bits(grid.ravel(), fmt) for grid in np.meshgrid(codes, codes))
    place = np.arange(2**bits.magnitude_bits)
    place = np.concatenate([place, -place])
    nan = np.isnan(bit_formats.decode(bits))
    mine, other = np.meshgrid(codes, codes)
    expected = np.abs(place[mine] - place[other])
    expected[nan[mine] != nan[other]] = -1
    expected[nan[mine] & nan[other]] = 0
    assert np.array_equal(dtypes.ulp_distance(a, b).reshape(mine.shape), expected)


def test_ulp_distance_of_wide_floats():
    one = np.array([1.0, -1.0, 0.0, np.inf, np.nan, np.nan], np.float32)
    near = np.array([1.0 + 2.0**-22, -1.0 - 2.0**-23, -1e-45, 3.4028235e38, np.nan, 1], np.float32)
    assert dtypes.ulp_distance(one, near).tolist() == [2, 1, 1, 1, 0, -1]
    far = dtypes.ulp_distance(np.array(np.inf), np.array(-np.inf))
    assert (far.shape, int(far)) == ((), np.iinfo(np.int64).max)
    assert int(dtypes.ulp_distance(np.float64(1).reshape(()), np.nextafter(1.0, 2).reshape(()))) == 1


def test_ulp_distance_of_e8m0_counts_octaves():
    codes = dtypes.from_bits(np.array([0, 254, 255, 127]), E8M0)
    assert dtypes.ulp_distance(codes, codes[[1, 0, 3, 3]]).tolist() == [254, 254, -1, 0]


@pytest.mark.parametrize(
    ("other", "rule"), [(np.zeros(2, np.float64), "float32"), (np.zeros(3, np.float32), r"\(2,\)")]
)
def test_ulp_distance_of_unlike_arrays_is_refused(other, rule):
    with pytest.raises(ConfigError, match=rule):
        dtypes.ulp_distance(np.zeros(2, np.float32), other)


@given(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0), elements=st.integers(0, 15))
)
def test_packed_e2m1_comes_back(codes):
    values = dtypes.from_bits(codes, E2M1)
    packed = dtypes.pack_e2m1(values)
    assert packed.shape == (*codes.shape[:-1], math.ceil(codes.shape[-1] / 2))
    assert np.array_equal(dtypes.to_bits(dtypes.unpack_e2m1(packed, codes.shape[-1])), codes)


def test_e2m1_packs_the_first_element_low():
    values = dtypes.cast(np.array([[0.5, -6.0, 1.0]], np.float32), E2M1)
    assert dtypes.pack_e2m1(values).tolist() == [[0xF1, 0x02]]
    # The high half of a byte that holds one value means nothing, so it must not reach its neighbour.
    dirty = (dtypes.to_bits(values) | np.uint8(0xC0)).view(E2M1.dtype)
    assert dtypes.pack_e2m1(dirty).tolist() == [[0xF1, 0x02]]


def test_damaged_codes_are_refused():
    for call, text in (
        (lambda: dtypes.from_bits(np.array([16]), E2M1), "codes is 16: e2m1 codes are 0 to 15"),
        (lambda: dtypes.from_bits(np.array([-1]), E4M3FN), "codes is -1"),
        (lambda: dtypes.from_bits(np.array([1.0]), E4M3FN), "whole numbers"),
        (lambda: dtypes.to_bits(np.zeros(1, np.int32)), "float format"),
        (lambda: dtypes.unpack_e2m1(np.zeros((1, 2), np.uint8), 5), "last axis of 3 bytes"),
        (lambda: dtypes.pack_e2m1(np.zeros(2, np.uint8)), "must be e2m1"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()


def test_bits_are_a_view_and_formats_are_found_by_dtype():
    values = dtypes.to_bf16(np.ones(2, np.float32))
    dtypes.to_bits(values)[0] = 0x4000
    assert float(values[0]) == 2.0
    assert [dtypes.format_of(fmt.dtype) for fmt in FORMATS.values()] == list(FORMATS.values())
    assert dtypes.format_of(np.float32) is None
