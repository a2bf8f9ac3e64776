"""Measurement files are read strictly, and what is published is what the rows say."""

import pickle
from pathlib import Path

import pytest

from epsim.calibration.measured import (
    COLUMNS,
    PACKAGED,
    packaged_measurements,
    parse_measurements,
    read_measurements,
)
from epsim.errors import InputError
from epsim.validate import all_packaged
from tests.epsim.measuring import GOOD, HEADER, csv_bytes, rows_of

ROOT = Path(__file__).parents[2]


def test_a_row_keeps_every_cell():
    (row,) = rows_of({})
    assert (row.id, row.op, row.ep_size, row.tokens_per_rank) == ("one", "dispatch", 8, 16384)
    assert (row.gb_per_s_min, row.gb_per_s_max, row.latency) == (373.0, 375.0, None)
    assert (row.element_dtype, row.use, row.where) == ("fp8", "calibrate", "test.csv line 2")
    assert row.bandwidth.middle == 374.0
    assert row.bandwidth.rounding == 0.5


def test_columns_may_stand_in_any_order():
    assert parse_measurements(csv_bytes({}, header=HEADER[::-1]), "test.csv") == rows_of({})


def test_same_repeats_the_cell_above_also_over_several_rows():
    rows = rows_of({"source": "a book"}, {"id": "two", "source": "same"}, {"id": "three", "source": "same"})
    assert [row.source for row in rows] == ["a book"] * 3


def test_a_latency_may_be_a_range_and_stand_alone():
    (row,) = rows_of(
        {"gb_per_s_min": "", "gb_per_s_max": "", "latency_us": "1977..2060", "metric": "time only"}
    )
    assert row.bandwidth is None
    assert (row.latency.low, row.latency.high, row.latency.text) == (1977.0, 2060.0, "1,977-2,060")


@pytest.mark.parametrize(("text", "half"), [("649.6", 0.05), ("880", 0.5), ("1.25", 0.005)])
def test_rounding_is_half_a_unit_of_the_last_printed_digit(text, half):
    (row,) = rows_of({"latency_us": text})
    assert row.latency.rounding == half


@pytest.mark.parametrize(
    ("dtype", "width"), [("fp8_e4m3", "fp8"), ("int8 7.5 KB per token", "fp8"), ("bf16", "bf16")]
)
def test_element_dtype_follows_the_width(dtype, width):
    assert rows_of({"dtype": dtype})[0].element_dtype == width


TIME_ONLY = {"gb_per_s_min": "", "gb_per_s_max": "", "metric": "time only"}
BAD_CELLS = [
    ({"ep_size": "eight"}, "ep_size", "whole number"),
    ({"ep_size": "0"}, "ep_size", "whole number"),
    ({"ep_size": "-8"}, "ep_size", "whole number"),
    ({"ep_size": "8.0"}, "ep_size", "whole number"),
    ({"tokens_per_rank": ""}, "tokens_per_rank", "whole number"),
    ({"hidden": "٧١٦٨"}, "hidden", "whole number"),
    ({"num_topk": "1_0"}, "num_topk", "whole number"),
    ({"num_experts": "256" * 5}, "num_experts", "whole number"),
    ({"gb_per_s_min": "fast"}, "gb_per_s_min", "plain decimal"),
    ({"gb_per_s_min": "-373"}, "gb_per_s_min", "plain decimal"),
    ({"gb_per_s_min": "0"}, "gb_per_s_min", "plain decimal"),
    ({"gb_per_s_max": "nan"}, "gb_per_s_max", "plain decimal"),
    ({"gb_per_s_max": "inf"}, "gb_per_s_max", "plain decimal"),
    ({"gb_per_s_max": "3_75"}, "gb_per_s_max", "plain decimal"),
    ({"gb_per_s_max": "375 GB/s"}, "gb_per_s_max", "plain decimal"),
    ({"gb_per_s_min": "376"}, "gb_per_s_min", "upper end 375"),
    ({"gb_per_s_min": ""}, "gb_per_s_min", "other end"),
    ({"gb_per_s_max": ""}, "gb_per_s_max", "other end"),
    ({**TIME_ONLY}, "latency_us", "must be given"),
    ({**TIME_ONLY, "latency_us": "12", "metric": "bottleneck GB/s"}, "metric", "goes with GB/s"),
    ({"metric": "time only"}, "metric", "goes with GB/s"),
    ({"latency_us": "12.."}, "latency_us", "plain decimal"),
    ({"latency_us": "20..12"}, "latency_us", "upper end 12"),
    ({"latency_us": "12us"}, "latency_us", "plain decimal"),
    ({"op": "all-to-all"}, "op", "must be one of dispatch"),
    ({"metric": "GB/s"}, "metric", "must be one of logical GB/s"),
    ({"use": "both"}, "use", "must be one of calibrate; validate"),
    ({"dtype": "fp16"}, "dtype", "must start with"),
    ({"id": ""}, "id", "empty"),
    ({"source": ""}, "source", "empty"),
    ({"source": "same"}, "source", "row above"),
]


@pytest.mark.parametrize(("change", "column", "rule"), BAD_CELLS, ids=lambda value: str(value)[:40])
def test_a_bad_cell_is_refused_by_file_line_and_column(change, column, rule):
    with pytest.raises(InputError, match=rule) as caught:
        rows_of(change)
    assert caught.value.field == f"test.csv line 2, {column}"
    assert "\n" not in str(caught.value)


def test_the_line_of_a_later_row_is_named():
    with pytest.raises(InputError) as caught:
        rows_of({}, {"id": "two"}, {"id": "three", "ep_size": "x"})
    assert caught.value.field == "test.csv line 4, ep_size"


def test_an_id_that_occurs_twice_is_refused_with_both_lines():
    with pytest.raises(InputError, match="line 2 has it too") as caught:
        rows_of({}, {"id": "two"}, {})
    assert caught.value.field == "test.csv line 4, id"


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(column):
    header = [name for name in HEADER if name != column]
    with pytest.raises(InputError, match=f"must name the column {column}$"):
        parse_measurements(csv_bytes({}, header=header), "test.csv")


BAD_FILES = {
    "empty": (b"", "must name the column id"),
    "header only": (csv_bytes(), "at least one measurement"),
    "another column": (csv_bytes({}, header=[*HEADER, "speed"]), "must be one of id"),
    "a column twice": (csv_bytes({}, header=[*HEADER, "use"]), "must occur once"),
    "a pickle": (pickle.dumps([GOOD]), "must be CSV in UTF-8"),
    "an old pickle": (pickle.dumps([GOOD], protocol=0), "must name the column id"),
    "UTF-16": (csv_bytes({}).decode().encode("utf-16"), "must be CSV in UTF-8"),
    "Latin-1": (csv_bytes({"conditions": "caf\u00e9"}).decode().encode("latin-1"), "must be CSV in UTF-8"),
    "a cell too few": (csv_bytes({})[:-11] + b"\n", "must have 19"),
    "a cell too many": (csv_bytes({})[:-1] + b",\n", "must have 19"),
    "an open quote": (csv_bytes({})[:-1] + b'\n"two', "must be CSV"),
    "a NUL": (csv_bytes({"conditions": "a\0b"}), "is a NUL"),
    "JSON": (b'{"rows": []}', "must name the column id"),
}


@pytest.mark.parametrize(("data", "rule"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, data, rule):
    path = tmp_path / "mine.csv"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rule) as caught:
        read_measurements(path)
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path, "a\0b.csv"):
        with pytest.raises(InputError, match="cannot be read"):
            read_measurements(path)


def test_a_byte_order_mark_and_blank_lines_do_no_harm():
    data = b"\xef\xbb\xbf" + csv_bytes({}).replace(b"\n", b"\r\n") + b"\r\n"
    assert parse_measurements(data, "test.csv") == rows_of({})


def test_an_unknown_set_is_refused():
    with pytest.raises(InputError, match="published, community"):
        packaged_measurements("mine")


def test_every_packaged_file_is_known_by_name():
    on_disk = {path.stem for path in (ROOT / "epsim/measurements").glob("*.csv")}
    assert on_disk == set(PACKAGED)


def test_ids_are_unique_over_all_packaged_files():
    ids = [row.id for row in all_packaged()]
    assert len(ids) == len(set(ids))


def test_only_the_ten_official_figures_may_be_fitted():
    used = [(row.op, row.ep_size) for row in all_packaged() if row.use == "calibrate"]
    assert sorted(used) == sorted((op, n) for op in ("dispatch", "combine") for n in (8, 16, 32, 64, 128))


def test_rows_that_a_profile_was_derived_from_say_so():
    """The profile files say what they were derived from; those runs must not pass as independent."""
    derived = {row.id for row in all_packaged() if row.is_derived_from}
    assert derived == {
        "port-144-ep8-dispatch",
        "port-one-block-ep2-dispatch",
        "port-one-block-ep2-combine",
    }
    text = "".join(path.read_text() for path in (ROOT / "epsim/profiles").glob("software--community*"))
    for row in all_packaged():
        if row.is_derived_from and row.ep_size == 2:
            assert f"{row.latency.low / 1e3:,.1f} ms" in text, row.id
    assert "558 us" in text
    assert ["558 us" in row.conditions for row in all_packaged() if row.id == "port-144-ep8-dispatch"] == [
        True
    ]


def test_asc_comm_figures_follow_from_their_times_by_the_stated_numerator():
    """4,096 tokens x 6 x 15/16 slots of 7,168 or 14,336 bytes over the time: a numerator found, not given."""
    rows = [row for row in all_packaged() if row.system == "asc-comm"]
    assert len(rows) == 3
    for row in rows:
        width = 14_336 if row.dtype == "bf16" else 7_168
        implied = 4_096 * 6 * 15 / 16 * width / row.latency.middle / 1e3
        slack = row.bandwidth.rounding + implied * row.latency.rounding / row.latency.middle
        assert abs(implied - row.bandwidth.middle) <= slack
