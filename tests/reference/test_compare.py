"""What comparison takes, how reports read, and what it refuses."""

import dataclasses
import enum
import json
import traceback

import numpy as np
import pytest

from reference.comparison import arraydiff
from reference.comparison.compare import (
    PADDING_ROW,
    MismatchError,
    MismatchReport,
    RowKeys,
    RowStream,
    assert_equal,
    compare,
)
from reference.errors import ConfigError
from reference.formats.dtypes import E2M1, E8M0, FORMATS, from_bits


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Inner:
    psum: np.ndarray
    list_of_counts: list
    absent: object = None


@dataclasses.dataclass(frozen=True)
class Outer:
    x: object
    handle: Inner
    edition: str = "ascend"
    color: Color = Color.RED


def outer(offset=0, **changes):
    inner = Inner(psum=np.arange(3) + offset, list_of_counts=[1, 2 + offset])
    return dataclasses.replace(Outer(x=(np.ones(2), np.zeros(1)), handle=inner), **changes)


def fields_of(report):
    return [m.field for m in report.mismatches]


def test_nested_dataclasses_tuples_and_enums_are_fields_by_name():
    assert compare([outer()], [outer()]).num_fields == 6
    assert fields_of(compare([outer()], {0: outer(1)})) == ["handle.psum"] * 3 + ["handle.list_of_counts"]
    assert fields_of(compare(outer(), outer(x=(np.ones(2), np.ones(1))))) == ["x[1]"]
    changed = compare(outer(), outer(edition="nvidia-v2", color=Color.BLUE))
    assert [(m.field, m.kind, m.expected, m.actual) for m in changed.mismatches] == [
        ("edition", "value", "ascend", "nvidia-v2"),
        ("color", "value", "RED", "BLUE"),
    ]


def test_none_is_an_absent_field():
    report = compare({"x": np.ones(1), "w": None}, {"x": np.ones(1), "w": np.ones((1, 2), np.float32)})
    [found] = report.mismatches
    assert (found.kind, found.field, found.actual) == ("extra_field", "w", "float32 (1, 2)")


def test_bare_arrays_numbers_and_ranks_in_any_container():
    a = np.arange(6).reshape(2, 3)
    assert compare(a, a.copy()).is_empty
    assert compare([a, a], {1: a, 0: a}).is_empty
    [found] = compare([a, a], [a, a + (a == 4)]).mismatches
    assert (found.rank, found.field, found.index, found.expected, found.actual) == (1, "array", (1, 1), 4, 5)
    assert compare({"n": 3, "on": True}, {"n": 3, "on": False}).mismatches[0].field == "on"


def test_strides_and_blocks_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.random((50, 7))
    other = a.copy()
    other[[3, 40], [1, 6]] += 1
    whole = compare(a, np.asfortranarray(other))
    monkeypatch.setattr(arraydiff, "BLOCK_BYTES", 1)
    assert compare(a, other) == whole
    assert [m.index for m in whole.mismatches] == [(3, 1), (40, 6)]


@pytest.mark.parametrize("fmt", list(FORMATS.values()), ids=lambda fmt: fmt.name)
def test_every_pair_of_codes_is_equal_only_to_itself(fmt):
    codes = np.arange(min(2**fmt.num_bits, 256))
    grid = [g.reshape(1, -1) for g in np.meshgrid(codes, codes)]
    a, b = (from_bits(g, fmt) for g in grid)
    report = compare(a, b, strict_zero=True)
    assert report.counts[0].num_wrong == codes.size * (codes.size - 1)
    zeros = 0 if fmt.name in ("bf16", "e8m0", "e4m3fnuz") else 2
    assert compare(a, b).counts[0].num_wrong == codes.size * (codes.size - 1) - zeros


def test_high_half_of_an_e2m1_byte_means_nothing():
    low, high = (np.array([code], np.uint8).view(E2M1.dtype) for code in (0x03, 0xF3))
    assert compare(low, high).is_empty


def test_e8m0_values_and_distance_are_reported():
    [found] = compare(from_bits([127], E8M0), from_bits([129], E8M0)).mismatches
    assert (found.expected, found.actual, found.ulp) == (1.0, 4.0, 2)


def test_report_shows_ten_mismatches_then_counts():
    report = compare({"x": np.zeros(40), "n": 1}, {"x": np.ones(40), "n": 2}, max_located=20)
    lines = str(report).splitlines()
    assert len(lines) == 1 + 10 + 1 + 1 + 2
    assert lines[0] == "not equal: 41 elements of 2 arrays compared"
    assert lines[1].startswith("value: x at rank 0, index [0]: expected 0.0, got 1.0 (")
    assert lines[11:13] == ["... and 11 more located ones", "counts:"]
    assert lines[13].strip() == "x: 40 value; 40 of 40 elements in 40 rows; by rank {0: 40}"
    assert str(compare(1, 1)) == "equal: 1 elements of 1 arrays compared"


def test_report_is_plain_json_even_with_nan():
    report = compare({"x": np.array([np.nan, 1.0])}, {"x": np.array([1.0, np.inf])})
    table = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert table["is_empty"] is False
    assert [(m["expected"], m["actual"]) for m in table["mismatches"]] == [("nan", 1.0), (1.0, "inf")]
    assert table["counts"][0]["by_kind"] == {"nonfinite": 2}
    # What is unknown is left out, as the distance from a NaN; a zero is known.
    assert set(table["mismatches"][0]) == {"kind", "field", "rank", "index", "expected", "actual"}


def test_report_has_no_truth_value():
    with pytest.raises(TypeError, match="no truth value"):
        assert compare(1, 2)


def test_assert_equal_raises_with_the_report_and_hides_itself():
    assert_equal(1, 1)
    with pytest.raises(MismatchError, match="not equal") as caught:
        assert_equal(np.zeros(2), np.array([0.0, 1.0]))
    assert isinstance(caught.value.report, MismatchReport)
    assert isinstance(caught.value, AssertionError)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "__tracebackhide__" in frames[-1].f_locals


def test_nan_of_a_row_is_shown_before_its_wrong_numbers():
    a, b = np.zeros((2, 6)), np.zeros((2, 6))
    b[1, [1, 5]], b[1, 4] = 7.0, np.nan
    [found] = compare(a, b).mismatches
    assert (found.kind, found.index) == ("nonfinite", (1, 4))
    assert found.note == "3 of 6 columns of this row differ, spread over 5"


def test_each_row_of_several_exchanges_is_named_once():
    found = compare(np.array([1, 2, 1, 2]), np.array([2, 1, 2, 1])).mismatches
    assert {m.kind for m in found} == {"swapped_rows"}
    assert sorted([*(m.index for m in found), *(m.other_index for m in found)]) == [(0,), (1,), (2,), (3,)]


def test_one_wrong_integer_is_no_offset_pattern():
    [found] = compare(np.arange(4), np.array([0, 1, 2, 4])).mismatches
    assert (found.index, found.note) == ((3,), "")


def test_skipped_fields_are_listed():
    report = compare({"a": 1, "b": 2}, {"a": 1, "b": 3}, skip_fields=["b"])
    assert report.is_empty
    assert str(report).endswith("not compared: b")
    assert report.num_fields == 1


def test_counts_are_complete_when_few_are_located():
    a, b = np.zeros((50, 2)), np.ones((50, 2))
    report = compare(a, b, max_located=3)
    assert (len(report.mismatches), report.counts[0].num_wrong) == (3, 100)


def keys(*rows):
    table = np.array(rows, np.int64)
    return RowKeys(src_rank=table[:, 0], src_token=table[:, 1])


def test_global_source_indices_split_into_keys():
    found = RowKeys.from_global_idx(np.array([0, 7, 8, -1], np.int32), 8)
    assert [found.row(i) for i in range(3)] == [(0, 0), (0, 7), (1, 0)]
    assert found.src_rank[3] == -1


def test_promised_padding_is_compared():
    expected = {"w": np.array([1.0, 0.0])}
    with_gap = keys((0, 0), (PADDING_ROW, 0))
    streams = [RowStream(fields=("w",), expected=[with_gap], actual=[with_gap])]
    [found] = compare(expected, {"w": np.array([1.0, 5.0])}, streams=streams).mismatches
    assert (found.field, found.index, found.expected, found.actual) == ("w", (1,), 0.0, 5.0)


def test_garbage_keys_of_any_size_are_rows_nobody_expects():
    big = 2**62
    stream = RowStream(fields=("w",), expected=[keys((0, 0), (0, 1))], actual=[keys((0, 0), (big, -big))])
    report = compare({"w": np.zeros(2)}, {"w": np.zeros(2)}, streams=[stream])
    assert [(m.kind, m.row) for m in report.mismatches] == [
        ("lost_row", (0, 1)), ("unexpected_row", (big, -big))
    ]  # fmt: skip


def test_keys_that_would_share_a_64_bit_code_stay_apart():
    # With 2^32 + 1 ranks and tokens, rank * (2^32 + 1) + token is 2^32 for both, modulo 2^64.
    far = 2**32
    stream = RowStream(fields=("w",), expected=[keys((0, 0), (0, far))], actual=[keys((0, 0), (far, 0))])
    report = compare({"w": np.zeros(2)}, {"w": np.zeros(2)}, streams=[stream])
    assert [m.kind for m in report.mismatches] == ["lost_row", "unexpected_row"]


def test_empty_streams_are_equal():
    none = RowKeys(src_rank=[], src_token=[], expert=[])
    stream = RowStream(fields=("x",), expected=[none], actual=[none])
    x = {"x": np.zeros((0, 4))}
    assert compare(x, x, streams=[stream]).is_empty


def test_misuse_is_refused_with_field_and_rule():
    x, one = {"x": np.zeros(1)}, keys((0, 0))
    twice = keys((0, 0), (0, 0))
    expert = RowKeys(src_rank=np.zeros(1, int), src_token=np.zeros(1, int), expert=np.zeros(1, int))
    for call, text in (
        (lambda: compare({}, {}), "comparing nothing with nothing proves nothing"),
        (lambda: compare(x, x, skip_fields=["y"]), "skip_fields is 'y': no rank has such a field"),
        (lambda: compare(x, x, streams=[RowStream(fields=("y",), expected=[one])]), "streams is 'y'"),
        (lambda: compare(x, x, streams=[RowStream(fields=("x",), expected=[twice])]), "one key per row"),
        (lambda: compare(x, x, streams=[RowStream(fields=("x",), expected=[])]), "no keys of rank 0"),
        (lambda: compare(x, x, streams=[RowStream(fields=("x",), expected=[one])] * 2), "one stream"),
        (lambda: compare({"x": np.zeros(2)}, {"x": np.zeros(2)}, streams=[
            RowStream(fields=("x",), expected=[twice], actual=[twice])]), "must stand once"),
        (lambda: compare(x, x, streams=[
            RowStream(fields=("x",), expected=[one], actual=[expert])]), "given on one side only"),
        (lambda: RowStream(fields=(), expected=[one]), "at least one field"),
        (lambda: RowKeys(src_rank=np.zeros(2, int), src_token=np.zeros(1, int)), "src_rank has 2"),
        (lambda: RowKeys(src_rank=np.zeros(2), src_token=np.zeros(2)), "whole numbers"),
        (lambda: compare({"x": object()}, x), r"expected\[0\]\.x"),
        (lambda: compare(x, {"x": [[1], [1, 2]]}), r"actual\[0\]\.x"),
        (lambda: compare(x, x, max_located=0), "max_located is 0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text):
            call()
