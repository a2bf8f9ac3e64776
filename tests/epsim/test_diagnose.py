"""A right capture is equal; a planted fault is named with field and place; a vacuous one proves nothing."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.capture import FIELDS, Capture, CaptureGroup, CaptureOptions
from epsim.debug.frame import settle
from epsim.debug.from_reference import example_capture
from epsim.diagnose import diagnose
from epsim.report.story import diagnosis_summary, diagnosis_text
from reference.errors import ConfigError
from tests.epsim.planted import FAULTS, FP8_FAULTS, changed, copied, good_capture

INPUTS = ("topk_idx", "topk_weights", "x", "sf", "combine_x", "combine_topk_weights", "bias_0", "bias_1")
OUTPUTS = [name for name, field in FIELDS.items() if field.stage in ("dispatch", "combine")]
CASES = [("bf16", fault) for fault in FAULTS] + [("fp8", fault) for fault in FP8_FAULTS]


@pytest.fixture(scope="module")
def right():
    """Return right captures by (ranks, dtype)."""
    return {(r, dtype): good_capture(r, dtype) for r in (2, 3, 8) for dtype in ("bf16", "fp8")}


@pytest.mark.parametrize("ep_size", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_right_capture_is_equal_in_every_field(right, ep_size, dtype):
    found = diagnose(right[ep_size, dtype])
    assert (found.verdict, found.place, dict(found.not_compared), found.notes) == ("equal", None, {}, ())
    outputs = {n for n in right[ep_size, dtype].ranks[0] if n not in INPUTS}
    assert {c.field for c in found.compared} == outputs
    assert all(c.num_elements and len(c.ranks) == ep_size for c in found.compared)


@pytest.mark.parametrize("ep_size", [2, 3, 8])
@pytest.mark.parametrize(("dtype", "fault"), CASES, ids=[f"{f.__name__}-{d}" for d, f in CASES])
def test_a_planted_fault_is_named(right, ep_size, dtype, fault):
    planted = fault(right[ep_size, dtype])
    found = diagnose(planted.capture)
    assert found.verdict == "not equal"
    assert {name: getattr(found.place, name) for name in planted.place} == planted.place, str(found.report)
    for name, value in planted.token_place.items():
        assert getattr(found.token_place, name) == value, str(found.report)
    assert planted.words in found.place.text
    if planted.fields is not None:
        assert tuple(count.field for count in found.report.counts) == planted.fields, str(found.report)


@settings(max_examples=60)
@given(
    ep_size=st.sampled_from([1, 2, 3, 4, 5]),
    edition=st.sampled_from(["ascend", "nvidia-v2.5", "nvidia-v2"]),
    expand=st.booleans(),
    cpu_sync=st.booleans(),
    is_sorted=st.booleans(),
    seed=st.integers(0, 99),
    alignment=st.sampled_from([1, 4]),
    masked=st.sampled_from([0.0, 0.3]),
)
def test_no_right_capture_is_called_wrong(
    ep_size, edition, expand, cpu_sync, is_sorted, seed, alignment, masked
):
    """Whatever the contract leaves open: order of arrival, layout, worst-case sizes."""
    expand = expand or edition == "ascend"
    group = CaptureGroup(
        ep_size=ep_size, num_experts=3 * ep_size, num_topk=3, hidden=128, num_max_tokens_per_rank=6,
        expert_alignment=alignment,
    )  # fmt: skip
    options = CaptureOptions(
        edition=edition, expand=expand, cpu_sync=cpu_sync, deterministic=is_sorted, zero_padding=expand
    )
    tokens = [max(0, 6 - r) for r in range(ep_size)]
    capture = example_capture(
        group, tokens=tokens, seed=seed, options=options, masked_ratio=masked, arrival_seed=seed, num_biases=1
    )
    found = diagnose(capture)
    assert found.report.is_empty, str(found.report)


def without(capture, *names):
    """Return the capture without some fields."""
    ranks = [{n: a for n, a in arrays.items() if n not in names} for arrays in capture.ranks]
    return changed(capture, ranks)


def test_a_partial_set_says_what_was_compared(right):
    capture = without(right[2, "bf16"], "x", "combine_x", "dst_gsge_idx")
    found = diagnose(capture)
    assert found.verdict == "equal"
    assert found.not_compared["recv_x"] == "not every rank gave x"
    assert found.not_compared["combined_x"] == "not every rank gave combine_x"
    assert "dst_gsge_idx" not in {c.field for c in found.compared}


def test_outputs_of_one_rank_are_enough(right):
    ranks = copied(right[3, "bf16"])
    for arrays in ranks[1:]:
        del arrays["recv_x"]
    found = diagnose(replace(right[3, "bf16"], ranks=tuple(ranks), partial={"recv_x": (0,)}))
    assert (found.verdict, {c.field: c.ranks for c in found.compared}["recv_x"]) == ("equal", (0,))
    assert dict(found.not_compared) == {"recv_x at ranks 1, 2": "capture.json lists it for other ranks only"}


@pytest.mark.parametrize("name", [n for n in FIELDS if n not in ("topk_idx", "recv_topk_idx")])
def test_a_field_that_one_rank_lacks_is_a_finding(right, name):
    """Given or got: what others have and nothing allows to leave out; before all else."""
    ranks = copied(right[3, "fp8"])
    del ranks[2][name]
    found = diagnose(changed(right[3, "fp8"], ranks))
    assert (found.verdict, found.place.field, found.place.kind) == ("not equal", name, "missing_field")
    assert 2 in (found.place.source_rank, found.place.destination_rank)
    assert found.place.text.startswith(f"missing field: {name} at rank 2; ranks 0, 1 gave it")
    assert dict(found.report.counts[0].by_rank) == {2: 1}


def test_a_rank_that_is_said_to_give_a_field_must(right):
    """Declared for two, given by one."""
    ranks = copied(right[3, "bf16"])
    del ranks[1]["recv_x"], ranks[2]["recv_x"]
    found = diagnose(replace(right[3, "bf16"], ranks=tuple(ranks), partial={"recv_x": (0, 1)}))
    assert found.place.text.startswith("missing field: recv_x at rank 1; capture.json lists this rank")
    assert dict(found.report.counts[0].by_kind) == {"missing_field": 1}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_result_that_no_rank_gave_is_said_to_be_not_compared(right, name):
    found = diagnose(without(right[2, "fp8"], name))
    is_none = name == "recv_topk_idx"  # the expanded layout has none
    assert dict(found.not_compared) == ({} if is_none else {name: "no rank gave it"})
    assert found.report.skipped_fields == tuple(found.not_compared)


def test_without_metadata_the_canonical_order_is_assumed_and_said():
    group = CaptureGroup(ep_size=2, num_experts=4, num_topk=3, hidden=128, num_max_tokens_per_rank=8)
    capture = without(example_capture(group, seed=1), "recv_src_metadata")
    found = diagnose(capture)
    assert found.verdict == "equal"
    assert found.notes == ("no usable recv_src_metadata: rows are taken to stand in canonical order",)


def test_metadata_of_another_shape_is_a_mismatch(right):
    ranks = copied(right[2, "bf16"])
    ranks[0]["recv_src_metadata"] = ranks[0]["recv_src_metadata"][:, :-1]
    found = diagnose(changed(right[2, "bf16"], ranks))
    assert (found.place.field, found.place.kind) == ("recv_src_metadata", "shape")


@pytest.mark.parametrize("cut", [1, -1])
def test_another_number_of_rows_is_a_mismatch(right, cut):
    """Also where only rows that nobody promises are missing or too many."""
    ranks = copied(right[2, "bf16"])
    rows = ranks[0]["recv_topk_weights"]
    ranks[0]["recv_topk_weights"] = rows[:-1] if cut > 0 else np.append(rows, rows[:1])
    found = diagnose(changed(right[2, "bf16"], ranks))
    assert (found.verdict, found.place.field) == ("not equal", "recv_topk_weights")


@pytest.mark.parametrize("field", ["combine_x", "combine_topk_weights"])
@pytest.mark.parametrize("change", ["flat", "narrow", "deep", "short"])
def test_what_combine_was_given_in_a_wrong_shape_is_a_finding(right, field, change):
    """Never equal; wrong weights do not hide a wrong combined_x."""
    ranks = copied(right[3, "bf16"])
    array = ranks[1][field]
    half = array[..., : array.shape[-1] // 2]
    changes = {"flat": array[0].reshape(-1), "narrow": half, "deep": array[..., None], "short": array[:3]}
    ranks[1][field] = changes[change]
    ranks[2]["combined_x"][0, 0] += 1
    found = diagnose(changed(right[3, "bf16"], ranks))
    assert (found.verdict, found.place.field, found.place.kind) == ("not equal", field, "shape")
    assert found.place.destination_rank == 1
    hidden = {"combined_topk_weights"} | ({"combined_x"} if field == "combine_x" else set())
    assert set(found.not_compared) == hidden
    assert ("combined_x" in {c.field for c in found.report.counts}) == (field == "combine_topk_weights")


def test_slots_and_metadata_must_tell_the_same_order(right):
    """Each is legal alone: two slots of one target exchanged, the records not."""
    ranks = copied(right[2, "bf16"])
    grid = ranks[1]["dst_buffer_slot_idx"]
    idx, owner = ranks[1]["topk_idx"], right[2, "bf16"].config.expert_ranks()
    first, second = np.argwhere((grid >= 0) & (owner[idx] == 0))[:2]
    a, b = int(grid[tuple(first)]), int(grid[tuple(second)])
    grid[tuple(first)], grid[tuple(second)] = b, a
    found = diagnose(changed(right[2, "bf16"], ranks))
    assert (found.place.field, found.place.kind) == ("recv_src_metadata", "row_order")


NO_SOURCE = [-1, -2, -5, -(2**31), 2**31 - 1, 2 * 12, 12 + 11]
"""No rank before the first or past the last, no token past the 11 of rank 1."""


@pytest.mark.parametrize("value", NO_SOURCE)
def test_metadata_without_a_source_is_said_with_its_value(right, value):
    """The value of the file, never a number of our own; in the text, the places and the JSON."""
    ranks = copied(right[2, "bf16"])
    table = ranks[0]["recv_src_metadata"]
    table[1, 4] = value
    found = diagnose(changed(right[2, "bf16"], ranks))
    words = f"no rank: metadata holds the value {value}, which names no source"
    said = diagnosis_text(found, "dump").split("\n")[0]
    assert f"unexpected row: recv_src_metadata at rank 0, index [1], {words}" in said
    [entry] = [m for m in diagnosis_summary(found)["report"]["mismatches"] if m["kind"] == "unexpected_row"]
    assert (entry["row"], entry["index"]) == (words, [1])
    assert found.report.counts[0].num_sourceless_rows == 1
    assert all(rank in (0, 1) for count in found.report.counts for rank in count.by_src_rank)


def test_a_row_exchanged_with_padding_is_said_in_words(right):
    ranks = copied(right[2, "bf16"])
    pads = int(ranks[0]["psum_num_recv_tokens_per_expert"][0])
    ranks[0]["recv_x"][[0, pads]] = ranks[0]["recv_x"][[pads, 0]]
    found = diagnose(changed(right[2, "bf16"], ranks))
    said = diagnosis_text(found, "dump") + msgspec.json.encode(diagnosis_summary(found)).decode()
    assert f"exchanged with padding row {pads}" in said
    assert "rank -" not in said
    assert "; 1 row without a source" in said
    assert "[-" not in said


def test_a_slot_of_a_hybrid_that_cannot_be_is_not_taken_over():
    """The arrival is open, so a slot is taken from the file, but only one that exists."""
    group = CaptureGroup(ep_size=4, num_experts=8, num_topk=2, hidden=128, num_max_tokens_per_rank=4)
    options = CaptureOptions(edition="nvidia-v2", num_scaleup_ranks=2, zero_padding=True)
    capture = example_capture(group, seed=3, options=options)
    assert diagnose(capture).report.is_empty
    ranks = copied(capture)
    right = int(ranks[0]["recv_src_metadata"][0, 1])
    ranks[0]["recv_src_metadata"][0, 1] = -1163005939
    place = diagnose(changed(capture, ranks)).place
    assert (place.field, place.actual, place.column) == ("recv_src_metadata", -1163005939, 1)
    assert place.expected == right


def test_numbers_too_large_for_places_are_not_wrapped(right):
    ranks = copied(right[2, "bf16"])
    table = ranks[0]["recv_src_metadata"].astype(np.uint64)
    table[1, 4] = 2**63 + 5
    ranks[0]["recv_src_metadata"] = table
    found = diagnose(changed(right[2, "bf16"], ranks))
    assert (found.place.field, found.place.kind) == ("recv_src_metadata", "dtype")


def test_transposed_scales_are_a_wrong_shape_not_lost_rows(right):
    ranks = copied(right[2, "fp8"])
    ranks[0]["recv_sf"] = np.ascontiguousarray(ranks[0]["recv_sf"].T)
    found = diagnose(changed(right[2, "fp8"], ranks))
    assert (found.place.field, found.place.kind) == ("recv_sf", "shape")
    assert "holds the transpose of what is expected" in found.place.text


def test_nothing_to_compare_proves_nothing(right):
    capture = right[2, "bf16"]
    ranks = [{"topk_idx": a["topk_idx"], "x": a["x"]} for a in capture.ranks]
    found = diagnose(changed(capture, ranks))
    assert (found.verdict, found.vacuous) == ("proved nothing", ("nothing could be compared",))


def vacuous(x=None, ids=None):
    """Return a right capture of four tokens per rank with given tokens or routing."""
    from epsim.debug.from_reference import reference_capture
    from reference.topk import TopK

    group = CaptureGroup(ep_size=2, num_experts=4, num_topk=2, hidden=128, num_max_tokens_per_rank=4)
    plain = example_capture(group, seed=2)
    rows = plain.column("x") if x is None else [x(r) for r in plain.column("x")]
    topk = plain.topk() if ids is None else TopK(num_experts=4, topk_idx=ids)
    return reference_capture(group, topk, rows)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"x": np.zeros_like}, "x is zero everywhere"),
        ({"x": lambda x: -np.zeros_like(x)}, "x is zero everywhere"),
        ({"x": np.ones_like}, "all rows of x are the same"),
        ({"ids": (np.full((4, 2), [0, 1]), np.full((4, 2), [2, 3]))}, "every token stays on its own rank"),
        ({"ids": (np.full((4, 2), -1), np.full((4, 2), -1))}, "no token has an expert"),
    ],
    ids=["zero", "minus-zero", "equal", "local", "masked"],
)
def test_inputs_that_hide_faults_prove_nothing(made, reason):
    found = diagnose(vacuous(**made))
    assert (found.verdict, found.report.is_empty) == ("proved nothing", True)
    assert reason in found.vacuous


def test_a_difference_counts_also_on_vacuous_inputs():
    capture = vacuous(x=np.ones_like)
    ranks = copied(capture)
    ranks[0]["recv_x"][0, 0] = 2
    assert diagnose(changed(capture, ranks)).verdict == "not equal"


@pytest.mark.parametrize(
    ("claims", "right", "group", "settled"),
    [
        ([2, 0, 1], [0, 1, 2], [0, 0, 0], [2, 0, 1]),
        ([0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 2, 1]),
        ([1, 1, 2], [0, 1, 2], [0, 0, 0], [0, 1, 2]),
        ([9, -1, 1], [0, 1, 2], [0, 0, 0], [0, 2, 1]),
        ([1, 0], [0, 0], [0, 1], [0, 0]),
        ([1, 0, 3, 2], [0, 1, 2, 3], [0, 0, 1, 1], [1, 0, 3, 2]),
        ([2, 0, 1, 3], [0, 1, 2, 3], [0, 0, 1, 1], [1, 0, 2, 3]),
        ([], [], [], []),
    ],
)
def test_settle_keeps_legal_claims_and_fills_the_others(claims, right, group, settled):
    arrays = (np.array(values, dtype=np.int64) for values in (claims, right, group))
    assert settle(*arrays).tolist() == settled


@given(st.data())
def test_settle_always_gives_each_group_its_places(data):
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    group = np.repeat(np.arange(len(sizes)), sizes)
    right = np.arange(len(group))
    claims = np.array(data.draw(st.lists(st.integers(-2, 20), min_size=len(group), max_size=len(group))), int)
    settled = settle(claims, right, group)
    assert [sorted(settled[group == g]) for g in range(len(sizes))] == [
        right[group == g].tolist() for g in range(len(sizes))
    ]


def test_a_capture_must_have_every_rank(right):
    with pytest.raises(ValueError, match="must be one per rank, ep_size is 3"):
        Capture(
            group=right[3, "bf16"].group,
            options=right[3, "bf16"].options,
            ranks=right[3, "bf16"].ranks[:2],
        )


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_is_damaged_the_diagnosis_stands(data):
    """Any one change of an output is found, unless it is in what nobody promises; none makes it stumble."""
    edition = data.draw(st.sampled_from(["ascend", "nvidia-v2"]))
    expand = edition == "ascend" or data.draw(st.booleans())
    sync = data.draw(st.booleans())
    capture = good_capture(2, edition=edition, expand=expand, cpu_sync=sync, zero_padding=expand)
    ranks = copied(capture)
    rank = data.draw(st.integers(0, 1))
    name = data.draw(st.sampled_from([n for n in OUTPUTS if n in ranks[rank]]))
    array = ranks[rank][name]
    damage = data.draw(st.sampled_from(["byte", "cut", "more", "flat", "empty"]))
    if damage == "byte":
        flat = array.view(np.uint8).reshape(-1)
        place = data.draw(st.integers(0, flat.size - 1))
        flat[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        changes = {"cut": array[:-1], "more": np.concatenate([array, array[:1]]), "empty": array[:0]}
        ranks[rank][name] = array.reshape(-1) if damage == "flat" else changes[damage]
    found = diagnose(changed(capture, ranks))
    is_same = damage == "flat" and array.ndim == 1
    if damage == "byte":
        # The sign of a zero is no difference by contract: equal values, other bits.
        with np.errstate(invalid="ignore"):
            is_same = np.array_equal(array.astype(np.float64), capture.ranks[rank][name].astype(np.float64))
    if found.verdict == "equal" and not is_same:
        assert damage == "byte"
        assert name in (
            "recv_x",
            "recv_topk_weights",
            "recv_topk_idx",
            "recv_src_metadata",
            "dst_gsge_idx",
        ), name
    if found.verdict == "not equal":
        assert found.place.field in OUTPUTS


@settings(max_examples=80)
@given(data=st.data())
def test_whatever_id_is_damaged_the_diagnosis_stands(data):
    """A damaged routing is refused or shows in the results; from one negative id to another is no damage."""
    capture = good_capture(2)
    ranks = copied(capture)
    ids = ranks[data.draw(st.integers(0, 1))]["topk_idx"]
    masked = np.argwhere(ids < 0)
    places = st.sampled_from(masked.tolist()) if data.draw(st.booleans()) else st.just([0, 0])
    token, k = data.draw(places)
    old, new = int(ids[token, k]), data.draw(st.integers(-9, 8))
    ids[token, k] = new
    is_same = new == old or (new < 0 and old < 0)
    if not is_same and (new == 8 or (new >= 0 and new in np.delete(ids[token], k))):
        with pytest.raises(ConfigError, match="topk_idx"):
            changed(capture, ranks)
        return
    found = diagnose(changed(capture, ranks))
    assert found.verdict == ("equal" if is_same else "not equal")
    assert len(found.notes) == (new < -1)
