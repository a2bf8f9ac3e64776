"""Every row is covered, no measured figure leaks into a prediction, large errors have reasons."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from epsim.calibration.cases import metric_bytes, target_of
from epsim.calibration.measured import LOGICAL, SCALEOUT, Range, packaged_measurements
from epsim.calibration.missing import RULES
from epsim.cli import run
from epsim.errors import InputError
from epsim.platform.profile import profile_toml, software_profile
from epsim.predict import predict
from epsim.validate import LARGE_ERROR, Compared, all_packaged, validate
from tests.epsim.measuring import csv_bytes, rows_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def validation():
    return validate()


@pytest.fixture(scope="module")
def sampled():
    return validate([row for row in all_packaged() if row.use == "calibrate"], draws="auto")


# Acceptance of issue 2, numbers 1 and 4: the limits are the issue's.


def test_acceptance_all_ten_means_lie_inside_the_published_ranges(validation):
    assert len(validation.calibrated) == 10
    assert validation.outside == ()


def test_acceptance_sampled_ranges_overlap_the_published_ones(sampled):
    assert [c.row.id for c in sampled.comparisons if not c.main.overlaps] == []
    assert sampled.outside == ()


def test_acceptance_sampled_widths_are_those_published(sampled):
    ratios = [c.main.width_ratio for c in sampled.comparisons]
    assert sum(1 / 1.6 <= ratio <= 1.6 for ratio in ratios) >= 8


def test_acceptance_every_row_is_compared_with_every_figure_that_it_has(validation):
    assert [c.row for c in validation.comparisons] == list(all_packaged())
    for c in validation.comparisons:
        assert (c.bandwidth is None) == (c.row.bandwidth is None)
        assert (c.latency is None) == (c.row.latency is None)
    groups = (*validation.calibrated, *validation.derived, *validation.independent)
    assert sorted(c.row.id for c in groups) == sorted(row.id for row in all_packaged())


def test_acceptance_large_errors_say_what_is_missing(validation):
    large = [c for c in validation.comparisons if abs(c.worst_error) > LARGE_ERROR]
    assert large
    for c in large:
        assert c.missing
        assert not any("no term is known" in sentence for sentence in c.missing), c.row.id
    assert all(not c.missing for c in validation.comparisons if c not in large)


def test_an_error_without_a_known_cause_is_admitted():
    (c,) = validate(rows_of({"gb_per_s_min": "100", "gb_per_s_max": "101"})).comparisons
    assert c.missing == ("no term is known that would explain why the prediction is too fast",)


def test_every_rule_of_missing_terms_is_used_by_some_packaged_row(validation):
    said = {sentence for c in validation.comparisons for sentence in c.missing}
    fast = {rule.when_fast for rule in RULES if rule.when_fast}
    assert fast <= said


# No published figure in a prediction.


def doubled(row):
    """Return the row with every measured figure doubled."""

    def twice(figure):
        return figure and replace(figure, low=2 * figure.low, high=2 * figure.high)

    return replace(row, bandwidth=twice(row.bandwidth), latency=twice(row.latency))


def test_changing_the_measurements_moves_no_prediction(validation):
    changed = validate([doubled(row) for row in all_packaged()])
    for old, new in zip(validation.comparisons, changed.comparisons, strict=True):
        assert new.prediction == old.prediction
        assert (new.main.predicted, new.main.low) == (old.main.predicted, old.main.low)
        assert new.main.error != old.main.error


def test_changing_the_measurement_file_moves_no_prediction_of_the_command(tmp_path, capsys):
    def said(data):
        path = tmp_path / "mine.csv"
        path.write_bytes(data)
        code = run(["validate", "--measurements", str(path), "--json"])
        return code, json.loads(capsys.readouterr().out)["rows"][0]

    good_code, good = said(csv_bytes({}))
    bad_code, bad = said(csv_bytes({"gb_per_s_min": "700", "gb_per_s_max": "701"}))
    assert (good_code, bad_code) == (0, 1)
    assert (good["predicted"], good["predicted_min"]) == (bad["predicted"], bad["predicted_min"])
    assert good["error"] != bad["error"]


def test_a_prediction_opens_no_measurement_file():
    """The interpreter reports every file it opens; the control run shows that it would report ours."""
    program = """
import sys
seen = []
sys.addaudithook(lambda event, args: seen.append(str(args[0])) if event == "open" else None)
{code}
sys.stderr.write("\\n".join(path for path in seen if path.endswith(".csv")))
"""

    def opened(code):
        words = [sys.executable, "-c", program.format(code=code)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
        return done.stderr.split()

    assert opened("from epsim.predict import predict; str(predict())") == []
    control = opened("from epsim.validate import all_packaged; all_packaged()")
    assert [Path(path).name for path in control] == ["published.csv", "community.csv"]


def published_figures():
    """Return published GB/s and their mid-points; those up to 100 are left out, they mean too much else."""
    found = [row.bandwidth for row in all_packaged() if row.bandwidth is not None]
    return {v for r in found for v in (r.low, r.middle, r.high) if v > 100}


def literals_among(source, figures):
    """Return (line, value) of numbers in Python text that are among the figures, also in other units."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and any(node.value == figure * scale for figure in figures for scale in (1, 1e3, 1e9))
    ]


@pytest.mark.parametrize("line", ["x = 374.0", "table = {8: 345}", "f(rate=373e9)", "y = -102000"])
def test_a_planted_figure_is_found(line):
    assert len(literals_among(line, published_figures())) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "epsim").rglob("*.py")), ids=lambda path: path.stem)
def test_no_published_figure_is_written_into_the_code(path):
    assert literals_among(path.read_text(), published_figures()) == []


@pytest.mark.parametrize("path", sorted((ROOT / "epsim/profiles").glob("*.toml")), ids=lambda path: path.stem)
def test_no_published_figure_is_written_into_a_profile(path):
    entries = tomllib.loads(path.read_text()).get("parameters", {}).values()
    numbers = [re.match(r"[\d.]+", str(entry["value"])) for entry in entries]
    assert {float(number[0]) for number in numbers if number} & published_figures() == set()


# Ranges, by hand.


def compared(low, high, predicted=None):
    measured = Range(low=100.0, high=102.0, rounding=0.5)
    mean = (low + high) / 2 if predicted is None else predicted
    return Compared(unit="GB/s", measured=measured, predicted=mean, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "meets"),
    [
        (99, 100, True),
        (102, 103, True),
        (99, 103, True),
        (101, 101, True),
        (98, 99.9, False),
        (102.1, 103, False),
    ],
)
def test_ranges_overlap_when_they_share_a_value(low, high, meets):
    assert compared(low, high).overlaps is meets


def test_the_width_ratio_is_predicted_over_measured():
    assert compared(99, 102).width_ratio == 1.5
    assert compared(101, 101).width_ratio is None
    point = replace(compared(99, 102), measured=Range(low=101.0, high=101.0, rounding=0.5))
    assert point.width_ratio is None


@pytest.mark.parametrize(("mean", "inside"), [(100, True), (102, True), (99.99, False), (102.01, False)])
def test_inside_is_within_the_printed_ends(mean, inside):
    assert compared(90, 110, mean).is_inside is inside


def test_the_error_is_relative_to_the_mid_point():
    assert compared(90, 110, 202).error == 1.0
    assert compared(90, 110, 50.5).error == -0.5


# The numerators, by hand.


def test_logical_figures_are_the_predictions_own():
    (c,) = validate(rows_of({})).comparisons
    item = predict("ubl128", ep=8, token_counts="stepped", operations=("dispatch",))[0]
    assert c.prediction == item
    assert c.bandwidth.predicted == pytest.approx(item.gb_per_s_mean, rel=1e-15)
    assert c.bandwidth.low == pytest.approx(item.gb_per_s_min, rel=1e-15)


def numerator(**changes):
    (row,) = rows_of({"system": "ubl128", **changes})
    return metric_bytes(row, 123.0)[0]


def test_slot_figures_count_every_chosen_expert():
    """128 tokens x top-8 slots: 7,680 B as stated; 7168 + 224 + 16 B by the low-latency test; 2 x 7168 B."""
    slots = {"tokens_per_rank": "128", "num_topk": "8", "metric": "payload GB/s per rank"}
    assert numerator(**slots, dtype="int8 7.5 KB per token") == 1024 * 7680
    assert numerator(**slots, dtype="int8") == 1024 * 7408
    assert numerator(**slots, dtype="bf16") == 1024 * 14336


def test_bottleneck_figures_count_slots_with_their_scales():
    """4,096 x 8 slots of 7168 x (1 + 4/128) B, or 2 x 7168 B."""
    slots = {"tokens_per_rank": "4096", "num_topk": "8", "metric": "bottleneck GB/s"}
    assert numerator(**slots, dtype="int8") == 32768 * 7392
    assert numerator(**slots, dtype="bf16") == 32768 * 14336


def test_remote_slot_figures_leave_the_own_rank_out():
    """4,096 x 6 x 15/16 = 23,040 slots."""
    slots = {"tokens_per_rank": "4096", "ep_size": "16", "metric": "payload GB/s of remote slots"}
    assert numerator(**slots, dtype="fp8_e4m3") == 23040 * 7168
    assert numerator(**slots, dtype="bf16") == 23040 * 14336


def test_logical_numerators_are_taken_over_and_scale_out_has_none():
    (row,) = rows_of({})
    assert row.metric == LOGICAL
    assert metric_bytes(row, 123.0)[0] == 123.0
    with pytest.raises(InputError, match="no numerator"):
        metric_bytes(replace(row, metric=SCALEOUT), 123.0)


def test_bytes_that_a_publication_counts_otherwise_are_pointed_out(validation):
    """71 GB/s x 116 us are 8.24 MB; 1,024 slots of 7.5 KiB are 7.86 MB."""
    notes = {c.row.id: " ".join(c.notes) for c in validation.comparisons}
    assert "8.24 MB" in notes["cm384-ep8-dispatch"]
    assert "7.86 MB" in notes["cm384-ep8-dispatch"]
    assert "counts other bytes" not in notes["asc-comm-ep16-combine"]


def test_times_that_no_port_can_carry_are_pointed_out(validation):
    by_id = {c.row.id: c for c in validation.comparisons}
    assert any("payload limit" in text for text in by_id["asc-comm-ep16-dispatch-bf16"].missing)
    assert not any("payload limit" in text for text in by_id["port-five-ep8-dispatch"].missing)


# Targets.


@pytest.mark.parametrize(
    ("row_id", "system", "software"),
    [
        ("ascend-ep8-dispatch", "ubl128", "deepep-ascend-2026-09-poc"),
        ("cm384-ep8-dispatch", "cm384", None),
        ("a3-ep8-dispatch", "a3", "per-expert"),
        ("v2-sm100-ep8-dispatch", "sm100", None),
        ("v2-sm90-8x2-dispatch", "sm90", None),
        ("port-one-block-ep8-dispatch", "ubl128", "community-port-2026-08-one-block"),
        ("port-144-ep8-dispatch", "ubl128", "community-port-2026-09"),
    ],
)
def test_a_row_goes_to_the_system_that_its_columns_name(row_id, system, software):
    (row,) = (row for row in all_packaged() if row.id == row_id)
    assert (target_of(row).system, target_of(row).software) == (system, software)


def test_published_ascend_rows_step_their_token_counts_and_servers_hold_eight():
    targets = {row.id: target_of(row) for row in all_packaged()}
    assert targets["ascend-ep8-combine"].token_counts == "stepped"
    assert targets["v2-sm90-8x4-combine"].ranks_per_supernode == 8


def test_a_row_may_name_a_system_of_epsim(tmp_path):
    (c,) = validate(rows_of({"system": "ubl128:64", "generation": "mine"})).comparisons
    assert c.prediction.system == "ubl128:64"


@pytest.mark.parametrize(
    ("change", "where", "rule"),
    [
        ({"system": "TPU"}, "test.csv line 2, system", "must be a system of epsim"),
        ({"ep_size": "256"}, "test.csv line 2, ep", "must not exceed"),
        ({"ep_size": "8", "num_topk": "300"}, "test.csv line 2, num_topk", "256 experts"),
        ({"system": "ubl128:0"}, "test.csv line 2, num_npus", "must be an integer"),
        (
            {"metric": "logical scale-out GB/s incl. local domain"},
            "test.csv line 2, metric",
            "several scale-up domains",
        ),
    ],
)
def test_a_row_that_cannot_be_predicted_is_named(change, where, rule):
    with pytest.raises(InputError, match=rule) as caught:
        validate(rows_of(change))
    assert caught.value.field == where
    assert "\n" not in str(caught.value)


def test_dispatch_in_bf16_is_predicted_as_such():
    slow, fast = validate(rows_of({"dtype": "bf16"}, {"id": "two"})).comparisons
    assert (slow.prediction.dtype, fast.prediction.dtype) == ("bf16", "fp8")
    assert slow.prediction.time_us > 1.5 * fast.prediction.time_us


def test_another_profile_moves_the_predictions(tmp_path):
    """Ideal software has no fan-out loss, which beyond the knee outweighs all else."""
    path = tmp_path / "ideal.toml"
    path.write_text(profile_toml(software_profile("ideal")))
    rows = [row for row in packaged_measurements("published")[:10] if row.ep_size > 32]
    for mine, known in zip(
        validate(rows, software=str(path)).comparisons, validate(rows).comparisons, strict=True
    ):
        assert mine.prediction.software == "ideal"
        assert mine.prediction.time_us < known.prediction.time_us


# The command.


def test_the_command_prints_groups_reasons_and_verdict(capsys):
    assert run(["validate"]) == 0
    text = capsys.readouterr().out
    for piece in (
        "rows marked calibrate: the packaged fit has used",
        "independent rows",
        "not independent",
        "which terms are missing",
    ):
        assert piece in text
    assert text.rstrip().endswith("10 of 10 rows marked calibrate")
    for row in all_packaged():
        assert row.id in text


def test_rows_of_ones_own_are_not_said_to_be_those_of_the_packaged_fit(tmp_path, capsys):
    """Marking a row calibrate says what a fit may use, not that the packaged one has."""
    (tmp_path / "published.csv").write_bytes(csv_bytes({}))
    run(["validate", "--measurements", str(tmp_path / "published.csv")])
    text = capsys.readouterr().out
    assert text.startswith("rows marked calibrate\n")
    assert "has used them" not in text


def test_rows_that_a_profile_was_chosen_with_in_view_are_not_independent(validation, capsys):
    """docs/decisions.md 13: the SM90 figures rule an H800's NVLink out, so the profile has another rate."""
    derived = {c.row.id for c in validation.derived}
    sm90 = {row.id for row in all_packaged() if row.generation == "NVIDIA SM90 + CX7"}
    assert len(sm90) == 4
    assert sm90 <= derived
    assert derived - sm90 == {row.id for row in all_packaged() if row.is_derived_from}
    assert run(["validate"]) == 0
    text = capsys.readouterr().out
    group = text.split("took a number from: not independent")[1].split("independent rows")[0]
    assert all(name in group for name in sm90)
    assert "these figures contradict an H800's NVLink" in text


def test_the_command_fails_when_a_calibrated_mean_lies_outside(capsys):
    assert run(["validate", "--measurements", "published", "--set", "wire_efficiency=0.98"]) == 1
    assert "FAILED: predicted mean outside the published range in ascend-ep8-dispatch" in (
        capsys.readouterr().out
    )


def test_rows_that_are_not_calibrated_cannot_fail_the_command(capsys):
    assert run(["validate", "--measurements", "community"]) == 0
    assert "nothing to pass or fail" in capsys.readouterr().out


def test_the_command_writes_one_line_per_figure(tmp_path, capsys):
    table = tmp_path / "out.csv"
    assert run(["validate", "--csv", str(table), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    figures = sum((row.bandwidth is not None) + (row.latency is not None) for row in all_packaged())
    assert len(rows) == figures
    assert len(table.read_text().splitlines()) == figures + 1


@pytest.mark.parametrize(
    "words",
    [
        ["--measurements", "none.csv"],
        ["--measurements", "nobody"],
        ["--draws", "few"],
        ["--draws", "0"],
        ["--set", "speed=1"],
        ["--software", "nobody"],
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert run(["validate", *words, "--csv", "out.csv"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
