"""Units: exact integers both ways, bits never mistaken for bytes, decimal never for binary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time

WHOLE = st.integers(0, 10**19)


@given(WHOLE)
def test_a_written_rate_reads_back_exactly(bytes_per_s):
    assert parse_rate(format_rate(bytes_per_s)) == bytes_per_s


@given(WHOLE)
def test_a_written_size_reads_back_exactly(num_bytes):
    assert parse_size(format_size(num_bytes)) == num_bytes


@given(WHOLE)
def test_a_written_time_reads_back_exactly(ps):
    assert parse_time(format_time(ps)) == ps


@given(
    st.integers(0, 10**12), st.sampled_from(["", "k", "K", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"])
)
def test_a_byte_is_eight_bits_under_every_prefix(number, prefix):
    bits = {f"{8 * number}{prefix}{unit}" for unit in ("bps", "b/s", "bit/s", "bits/s")}
    in_bytes = {f"{number}{prefix}{unit}" for unit in ("Bps", "B/s", "byte/s", "bytes/s")}
    assert len({parse_rate(text) for text in bits | in_bytes}) == 1
    assert parse_size(f"{8 * number}{prefix}bit") == parse_size(f"{number}{prefix}B")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("3.2Tbps", 400_000_000_000),
        ("400 Gbit/s", 50_000_000_000),
        ("400GB/s", 400_000_000_000),
        ("1GiB/s", 1_073_741_824),
        ("1e3 kBps", 1_000_000),
        ("1_000B/s", 1000),
        (".5GB/s", 500_000_000),
    ],
)
def test_rate_by_hand(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("640MiB", 671_088_640), ("640MB", 640_000_000), ("8Gbit", 10**9), ("7464B", 7464)],
)
def test_size_by_hand(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "ps"),
    [("1.2us", 1_200_000), ("50ns", 50_000), ("3ps", 3), ("2s", 2 * 10**12), ("0.0005ms", 500_000)],
)
def test_time_by_hand(text, ps):
    assert parse_time(text) == ps


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rate, "400"), (parse_rate, "400G"), (parse_rate, "400GB"), (parse_rate, "400gbps"),
        (parse_rate, "-1GB/s"), (parse_rate, ""), (parse_rate, "fast"), (parse_rate, "1.2us"),
        (parse_rate, "nan GB/s"), (parse_rate, "inf GB/s"), (parse_rate, "4 00GB/s"),
        (parse_size, "1GB/s"), (parse_size, "640"), (parse_size, "640 mB"), (parse_size, "--1B"),
        (parse_time, "1.2"), (parse_time, "1.2 seconds"), (parse_time, "1Us"), (parse_time, "5GB"),
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_field_and_value(parse, text):
    with pytest.raises(TopologyError) as caught:
        parse(text, "port_rate")
    assert caught.value.field == "port_rate"
    assert caught.value.value == text
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [400, None, 4.5, b"400GB/s"])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(TopologyError, match="must be a rate"):
        parse_rate(value)
