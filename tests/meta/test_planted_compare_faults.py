"""Every fault planted in a received stream is reported with its field and place; equal streams never are."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from reference.comparison.compare import MismatchError, RowStream, assert_equal, compare
from reference.formats.dtypes import to_bits
from tests.reference.received import ROW_FIELDS, make_case, shuffled, stream_of, take_rows

RANK = 1
PSUM = "psum_num_recv_tokens_per_expert"


def planted(fault, *, seed=7, order="source", **options):
    """Plant a fault at RANK of a shuffled stream and return (report, fields and keys of that rank)."""
    expected, keys = make_case(seed)
    rng = np.random.default_rng(seed + 1)
    moved = [shuffled(f, k, rng) for f, k in zip(expected, keys, strict=True)]
    before = compare(expected, [f for f, _ in moved], streams=[stream_of(keys, [k for _, k in moved], order)])
    assert before.is_empty, before
    moved[RANK] = fault(*moved[RANK])
    actual, actual_keys = [f for f, _ in moved], [k for _, k in moved]
    report = compare(expected, actual, streams=[stream_of(keys, actual_keys, order)], **options)
    return report, *moved[RANK]


def only(report):
    """Return the one mismatch of a report that must hold just one."""
    assert len(report.mismatches) == 1, str(report)
    assert [count.field for count in report.counts] == [report.mismatches[0].field]
    assert report.counts[0].by_rank == {RANK: 1}
    return report.mismatches[0]


def test_lost_row():
    lost = {}

    def fault(fields, keys):
        lost.update(row=keys.row(2), expert=keys.expert_of(2))
        return take_rows(fields, keys, np.delete(np.arange(keys.num_rows), 2))

    report, *_ = planted(fault)
    found, count = only(report), report.counts[0]
    assert (found.kind, found.field, found.rank) == ("lost_row", "received", RANK)
    assert (found.row, found.expert) == (lost["row"], lost["expert"])
    assert (count.num_wrong_rows, count.by_src_rank, count.by_expert) == (
        1, {found.row[0]: 1}, {found.expert: 1}
    )  # fmt: skip


def test_counts_name_the_right_source_when_rows_before_it_are_lost():
    def fault(fields, keys):
        rows = np.flatnonzero((keys.src_rank != 0) | (keys.expert != 0))
        fields["recv_x"][rows[-4], 0] += np.float32(1)
        return take_rows(fields, keys, rows)

    report, _, keys = planted(fault)
    count = next(count for count in report.counts if count.field == "recv_x")
    row = keys.num_rows - 4
    assert (count.by_src_rank, count.by_expert) == ({keys.row(row)[0]: 1}, {keys.expert_of(row): 1})


def test_doubled_row():
    def fault(fields, keys):
        return take_rows(fields, keys, np.insert(np.arange(keys.num_rows), 4, 3))

    report, _, keys = planted(fault)
    found = only(report)
    assert (found.kind, found.field, found.index) == ("doubled_row", "received", (4,))
    assert (found.row, found.note) == (keys.row(3), "first copy at row 3")


def test_row_replaced_by_a_copy_of_its_neighbour_is_lost_and_doubled():
    def fault(fields, keys):
        return take_rows(fields, keys, np.where(np.arange(keys.num_rows) == 3, 2, np.arange(keys.num_rows)))

    report, *_ = planted(fault)
    assert [m.kind for m in report.mismatches] == ["lost_row", "doubled_row"]
    assert dict(report.counts[0].by_kind) == {"lost_row": 1, "doubled_row": 1}


def test_row_of_another_token():
    def fault(fields, keys):
        token = keys.src_token.copy()
        token[1] = 77
        return fields, dataclasses.replace(keys, src_token=token)

    report, _, keys = planted(fault)
    assert [(m.kind, m.index) for m in report.mismatches if m.kind != "lost_row"] == [
        ("unexpected_row", (1,))
    ]
    assert report.mismatches[-1].row == (keys.row(1)[0], 77)


def same_source_pair(keys):
    """Return two rows of one source rank and expert: sorting by value would not see them exchanged."""
    return 0, int(np.flatnonzero((keys.src_rank == keys.src_rank[0]) & (keys.expert == keys.expert[0]))[1])


def swap_column(name, column):
    def fault(fields, keys):
        a, b = same_source_pair(keys)
        array = fields[name]
        where = ([a, b], column) if array.ndim > 1 else ([a, b],)
        array[where] = array[where][::-1]
        return fields, keys

    return fault


@pytest.mark.parametrize(("name", "column"), [("recv_x", 5), ("recv_x_scales", 1), ("recv_topk_weights", 0)])
def test_two_tokens_swapped_in_one_column(name, column):
    report, _, keys = planted(swap_column(name, column))
    a, b = same_source_pair(keys)
    [found] = report.mismatches
    assert (found.kind, found.field) == ("swapped_rows", name)
    assert {found.row, found.other_row} == {keys.row(a), keys.row(b)}
    column_of = (column,) if name != "recv_topk_weights" else ()
    assert {found.index, found.other_index} == {(a, *column_of), (b, *column_of)}
    assert dict(report.counts[0].by_kind) == {"value": 2, "swapped_rows": 1}


def test_whole_rows_swapped():
    def fault(fields, keys):
        a, b = same_source_pair(keys)
        fields["recv_x"][[a, b]] = fields["recv_x"][[b, a]]
        return fields, keys

    [found] = planted(fault)[0].mismatches
    assert (found.kind, found.field) == ("swapped_rows", "recv_x")
    assert "8 columns" in found.note


def edit(name, place, value):
    def fault(fields, keys):
        fields[name][place] = value
        return fields, keys

    return fault


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["recv_x", "recv_x_scales"])
def test_nan_or_inf_instead_of_a_number(name, value):
    report, _, keys = planted(edit(name, (4, 2), np.float32(value)))
    found = only(report)
    assert (found.kind, found.field, found.index, found.row) == ("nonfinite", name, (4, 2), keys.row(4))
    assert found.ulp == -1 if np.isnan(value) else found.ulp > 0


def one_ulp(name, place):
    def fault(fields, keys):
        to_bits(fields[name])[place] ^= 1
        return fields, keys

    return fault


@pytest.mark.parametrize(
    ("name", "place"), [("recv_x", (3, 7)), ("recv_x_scales", (0, 2)), ("recv_topk_weights", (5,))]
)
def test_one_ulp(name, place):
    report, fields, keys = planted(one_ulp(name, place))
    found = only(report)
    assert (found.kind, found.field, found.index, found.ulp) == ("value", name, place, 1)
    assert (found.row, found.expert) == (keys.row(place[0]), keys.expert_of(place[0]))
    assert found.actual == float(fields[name][place])
    assert found.expected != found.actual
    count = report.counts[0]
    assert (count.num_wrong, count.num_wrong_rows) == (1, 1)
    assert (count.by_src_rank, count.by_expert) == ({found.row[0]: 1}, {found.expert: 1})


@pytest.mark.parametrize(
    ("name", "convert", "dtype"),
    [
        ("recv_x", lambda a: a.astype(np.float16), "float16"),
        ("recv_x", to_bits, "uint16"),
        ("recv_x_scales", lambda a: a.astype(np.float64), "float64"),
        (PSUM, lambda a: a.astype(np.int64), "int64"),
    ],
)
def test_wrong_dtype(name, convert, dtype):
    def fault(fields, keys):
        return {**fields, name: convert(fields[name])}, keys

    found = only(planted(fault)[0])
    assert (found.kind, found.field, found.actual) == ("dtype", name, dtype)


def test_same_bytes_under_another_dtype_are_not_equal():
    report = compare(np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, np.uint16))
    assert [(m.kind, m.expected, m.actual) for m in report.mismatches] == [("dtype", "bfloat16", "uint16")]


def test_wrong_expert_order():
    """The blocks of two experts exchanged, rows and keys together: only their places are wrong."""

    def fault(fields, keys):
        return take_rows(fields, keys, np.argsort(np.array([1, 0, 2])[keys.expert], kind="stable"))

    report, _, keys = planted(fault)
    assert {m.kind for m in report.mismatches} == {"row_order"}
    first = report.mismatches[0]
    assert (first.field, first.index[0], first.expert) == ("received", 0, keys.expert_of(0))
    assert "expert 0 must stand here" in first.note
    assert planted(fault, order="free")[0].is_empty


def test_wrong_source_order_within_an_expert():
    def fault(fields, keys):
        defined = np.where(keys.src_rank < 0, 10**6, keys.expert * 10 - keys.src_rank)
        return take_rows(fields, keys, np.argsort(defined, kind="stable"))

    assert {m.kind for m in planted(fault)[0].mismatches} == {"row_order"}


def test_order_within_a_source_rank_matters_only_when_it_is_promised():
    expected, keys = make_case(3)
    a, b = same_source_pair(keys[0])
    rows = np.arange(keys[0].num_rows)
    rows[[a, b]] = rows[[b, a]]
    moved, moved_keys = take_rows(expected[0], keys[0], rows)
    verdicts = {}
    for order in ("free", "source", "canonical"):
        stream = stream_of(keys[:1], [moved_keys], order)
        verdicts[order] = [m.kind for m in compare(expected[0], moved, streams=[stream]).mismatches]
    assert verdicts == {"free": [], "source": [], "canonical": ["row_order"] * 2}


def test_psum_off_by_one():
    def fault(fields, keys):
        fields[PSUM][1:] += 1
        return fields, keys

    report, fields, _ = planted(fault)
    first = report.mismatches[0]
    assert (first.kind, first.field, first.index) == ("value", PSUM, (1,))
    assert (first.expected, first.actual) == (int(fields[PSUM][1]) - 1, int(fields[PSUM][1]))
    assert first.note == "every entry from 1 on is off by +1"


def test_shape_of_a_field_and_rows_without_keys():
    found = only(planted(lambda f, k: ({**f, "recv_x": f["recv_x"][:, :-1]}, k))[0])
    assert (found.kind, found.field) == ("shape", "recv_x")
    # One row of one field is lost, its keys are not: the field does not fit its own keys.
    found = only(planted(lambda f, k: ({**f, "recv_topk_weights": f["recv_topk_weights"][1:]}, k))[0])
    assert (found.kind, found.field) == ("shape", "recv_topk_weights")


def test_signed_zero_only_on_request():
    def zero(sign):
        return [{"recv_x": np.full((1, 4), sign, np.float32).astype(ml_dtypes.bfloat16)}]

    assert compare(zero(0.0), zero(-0.0)).is_empty
    report = compare(zero(0.0), zero(-0.0), strict_zero=True)
    [found] = report.mismatches
    assert (found.kind, found.field, found.index, found.ulp) == ("zero_sign", "recv_x", (0, 0), 0)
    assert report.counts[0].num_wrong == 4
    assert str(found.actual) == "-0.0"


def test_nan_bits_unless_any_nan_will_do():
    quiet, other = (np.array([1, 2, 0x7FC00000 + extra], np.uint32).view(np.float32) for extra in (0, 5))
    [found] = compare(quiet, other).mismatches
    assert (found.kind, found.index, found.expected, found.actual) == (
        "nan_bits", (2,), "nan 0x7fc00000", "nan 0x7fc00005"
    )  # fmt: skip
    assert compare(quiet, other, any_nan=True).is_empty


def test_transposed_scales():
    scales = np.arange(12, dtype=np.float32).reshape(4, 3)
    [shape] = compare({"sf": scales}, {"sf": scales.T}).mismatches
    assert (shape.kind, shape.field, shape.note) == ("shape", "sf", "holds the transpose of what is expected")
    first = compare({"sf": scales}, {"sf": scales.T.reshape(4, 3)}).mismatches[0]
    assert (first.field, first.index) == ("sf", (0, 1))
    assert "column-major order, read as row-major" in first.note
    square = compare({"sf": scales[:3]}, {"sf": scales[:3].T.copy()}).mismatches[0]
    assert (square.index, "transpose" in square.note) == ((0, 1), True)


def test_row_lost_without_keys_is_found_by_what_remains():
    rows = np.random.default_rng(0).random((7, 3))
    kinds = [(m.kind, m.index) for m in compare({"x": rows}, {"x": np.delete(rows, 4, axis=0)}).mismatches]
    assert kinds == [("shape", ()), ("lost_row", (4,))]
    kinds = [
        (m.kind, m.index) for m in compare({"x": rows}, {"x": rows[[0, 1, 1, 2, 3, 4, 5, 6]]}).mismatches
    ]
    assert kinds == [("shape", ()), ("doubled_row", (2,))]
    kinds = [m.kind for m in compare({"x": rows}, {"x": np.insert(rows, 2, 9.0, axis=0)}).mismatches]
    assert kinds == ["shape", "unexpected_row"]
    kinds = [m.kind for m in compare({"x": rows}, {"x": np.delete(rows, 4, axis=0)[::-1]}).mismatches]
    assert kinds == ["shape"]


def test_stale_row_is_named_by_what_it_holds():
    def fault(fields, keys):
        fields["recv_x"][1] = fields["recv_x"][2]
        return fields, keys

    report, _, keys = planted(fault)
    [found] = report.mismatches
    assert (found.index[0], found.row) == (1, keys.row(1))
    token = keys.row(2)
    assert found.note.endswith(f"it holds what token {token[1]} of rank {token[0]} should hold")


def test_partial_row_is_named_by_its_span():
    def fault(fields, keys):
        fields["recv_x"][3, 2:5] = np.float32(9)
        return fields, keys

    [found] = planted(fault)[0].mismatches
    assert (found.index, found.note) == ((3, 2), "3 of 8 columns of this row differ, without a gap")


@pytest.mark.parametrize("side", ["expected", "actual"])
def test_missing_field_and_rank(side):
    expected, _ = make_case(1)
    cut = [dict(fields) for fields in expected]
    del cut[2]["recv_topk_weights"]
    pair = (expected, cut) if side == "actual" else (cut, expected)
    [found] = compare(*pair).mismatches
    kind = "missing_field" if side == "actual" else "extra_field"
    assert (found.kind, found.field, found.rank) == (kind, "recv_topk_weights", 2)
    pair = (expected, expected[:2]) if side == "actual" else (expected[:2], expected)
    [found] = compare(*pair).mismatches
    assert (found.kind, found.rank) == ("missing_rank" if side == "actual" else "extra_rank", 2)


def test_undefined_rows_are_never_compared_and_defined_ones_always_are():
    expected, keys = make_case(2)
    moved = [take_rows(f, k, np.arange(k.num_rows)) for f, k in zip(expected, keys, strict=True)]
    for fields, _ in moved:
        fields["recv_x"][-1] = 3.0
    streams = [RowStream(fields=ROW_FIELDS, expected=keys)]
    assert compare(expected, [f for f, _ in moved], streams=streams).is_empty
    moved[0][0]["recv_x"][-3] = 3.0
    report = compare(expected, [f for f, _ in moved], streams=streams)
    assert [(m.rank, m.index[0]) for m in report.mismatches] == [(0, keys[0].num_rows - 3)]


def test_no_false_alarm_over_random_equal_streams():
    rng = np.random.default_rng(11)
    for seed in range(200):
        shape = {"hidden": int(rng.integers(1, 9)), "num_undefined": int(rng.integers(0, 3))}
        expected, keys = make_case(seed, num_ranks=1 + seed % 3, packs=1 + seed % 4, **shape)
        moved = [shuffled(f, k, rng) for f, k in zip(expected, keys, strict=True)]
        streams = [stream_of(keys, [k for _, k in moved])]
        assert_equal(expected, [f for f, _ in moved], streams=streams)


def test_every_single_bit_of_a_stream_counts():
    """Flip each bit of each row field once: all are found, in the right row, whatever the receive order."""
    expected, keys = make_case(5, num_ranks=1, hidden=2, packs=1, most=2, num_undefined=0)
    moved, moved_keys = shuffled(expected[0], keys[0], np.random.default_rng(0))
    stream = stream_of(keys, [moved_keys])
    for name in ROW_FIELDS:
        raw = moved[name].view(np.uint8).reshape(keys[0].num_rows, -1)
        for row, byte in np.ndindex(*raw.shape):
            for bit in range(8):
                raw[row, byte] ^= 1 << bit
                with pytest.raises(MismatchError) as caught:
                    assert_equal(expected[0], moved, streams=[stream])
                raw[row, byte] ^= 1 << bit
                [found] = caught.value.report.mismatches
                assert (found.field, found.index[0], found.row) == (name, row, moved_keys.row(row))
