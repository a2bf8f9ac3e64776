"""A fit finds what was planted, refuses what the rows do not say, and owns up to its errors."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epsim.calibrate import DEFAULT_FIT, KNEE_GRID, calibrate
from epsim.calibration.fitmodel import build_model
from epsim.calibration.leastsquares import STEP_TOLERANCE
from epsim.calibration.measured import packaged_measurements
from epsim.calibration.result import flat, rms, worst
from epsim.cli import run
from epsim.errors import InputError
from epsim.platform.profile import entries, numbers_digest, profile_toml, software_profile
from epsim.predict import predict
from epsim.validate import validate
from tests.epsim.measuring import csv_bytes, rows_of, synthetic_changes

PROFILE = Path(__file__).parents[2] / "epsim/profiles/software--deepep-ascend-2026-09-poc.toml"
TRUTH = {
    "hbm_efficiency": 0.87,
    "fanout_slope_dispatch": 0.0456,
    "fanout_slope_combine": 0.123,
    "fanout_knee": 19.0,
}
EPS = float(np.finfo(np.float64).eps)


def held(truth):
    """Return settings without the knee, which is an argument of its own."""
    return {name: value for name, value in truth.items() if name != "fanout_knee"}


@pytest.fixture(scope="module")
def published():
    return packaged_measurements("published")


@pytest.fixture(scope="module")
def fitted(published):
    return calibrate(published, measurements="published.csv")


def values_of(fit):
    return {p.name: p.value for p in fit.parameters}


def test_planted_parameters_are_found_again():
    """The figures carry nine decimals, so four digits of every number must come back."""
    fit = calibrate(rows_of(*synthetic_changes(TRUTH)), num_draws=0)
    assert {**values_of(fit), "fanout_knee": fit.knee} == TRUTH
    assert fit.rms < 1e-6


def test_a_planted_wire_efficiency_is_found_with_the_others():
    truth = {**TRUTH, "wire_efficiency": 0.93}
    fit = calibrate(rows_of(*synthetic_changes(truth)), fit=("wire_efficiency", *DEFAULT_FIT), num_draws=0)
    assert {**values_of(fit), "fanout_knee": fit.knee} == truth


@pytest.mark.parametrize(
    "start",
    [
        {"hbm_efficiency": 0.3, "fanout_slope_dispatch": 0.0, "fanout_slope_combine": 0.0},
        {"hbm_efficiency": 4.0, "fanout_slope_dispatch": 1.0, "fanout_slope_combine": 0.0},
        {"hbm_efficiency": 1.0, "fanout_slope_dispatch": -0.2, "fanout_slope_combine": 2.0},
    ],
)
def test_the_start_does_not_matter(published, fitted, start):
    base = software_profile("deepep-ascend-2026-09-poc")
    moved = replace(base, **{k: replace(getattr(base, k), value=v) for k, v in start.items()})
    fit = calibrate(published, software=moved, num_draws=0, leave_one_out=False)
    assert values_of(fit) == values_of(fitted)
    assert fit.knee == fitted.knee


def test_the_order_of_rows_does_not_matter(published, fitted):
    shuffled = [published[i] for i in np.random.default_rng(5).permutation(len(published))]
    fit = calibrate(shuffled, measurements="published.csv")
    assert profile_toml(fit.software) == profile_toml(fitted.software)


def test_equal_input_gives_an_equal_answer(published, fitted):
    again = calibrate(published, measurements="published.csv")
    assert again.parameters == fitted.parameters
    assert np.array_equal(again.correlation, fitted.correlation)
    assert calibrate(published, seed=1, leave_one_out=False).parameters != fitted.parameters


@pytest.mark.parametrize("victim", [("dispatch", 16), ("combine", 64)])
def test_a_corrupted_row_has_the_largest_residual(victim):
    bad = rows_of(*synthetic_changes(TRUTH, factor={victim: 1.05}))
    fit = calibrate(bad, knee=TRUTH["fanout_knee"], num_draws=0)
    suspect = max(fit.residuals, key=lambda row: abs(row.error))
    assert (suspect.op, suspect.ep_size) == victim
    assert suspect.error < 0
    assert fit.rms > 1e-3


def test_the_model_of_a_fit_is_the_model_of_a_prediction(published):
    """Cached loads must not drift from `predict`: same sum, so only the order of R roundings may differ."""
    rows = [row for row in published if row.use == "calibrate"]
    model = build_model(rows, DEFAULT_FIT, software=None, settings={})
    start = np.array([getattr(model.software, name).value for name in DEFAULT_FIT])
    answers = model.answers(start)
    for row, answer in zip(rows, answers, strict=True):
        item = predict(
            "ubl128", ep=row.ep_size, token_counts="stepped", operations=(row.op,), dtype=row.element_dtype
        )[0]
        assert abs(answer / item.gb_per_s_mean - 1) <= (2 * row.ep_size + 8) * EPS


A3 = {"system": "sgl-kernel-npu", "generation": "Atlas A3", "metric": "bottleneck GB/s", "num_topk": "8"}
ELSEWHERE = {
    "a row per expert": {**A3, "dtype": "int8"},
    "a row per expert, back": {**A3, "op": "combine", "dtype": "bf16"},
    "links of a mesh": {"system": "mesh8", "generation": "mine", "ep_size": "4"},
    "a whole mesh, back": {"system": "mesh8", "generation": "mine", "op": "combine", "dtype": "bf16"},
    "bytes of another library": {"system": "DeepEP V2", "generation": "NVIDIA SM100"},
    "cached": {"op": "cached-dispatch"},
    "bf16": {"dtype": "bf16"},
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_model_of_a_fit_is_the_model_of_a_prediction_on_other_systems(change):
    rows = rows_of(change)
    model = build_model(rows, ("wire_efficiency",), software=None, settings={})
    (answer,) = model.answers(np.array([model.software.wire_efficiency.value]))
    (compared,) = validate(rows).comparisons
    assert abs(answer / compared.main.predicted - 1) <= (2 * 8 + 8) * EPS


def test_a_left_out_group_has_no_part_in_its_own_prediction():
    """Errors planted in EP64 alone leave the prediction of EP64 as it was, and move the others."""
    plain = rows_of(*synthetic_changes(TRUTH))
    bad = rows_of(*synthetic_changes(TRUTH, factor={("dispatch", 64): 1.04, ("combine", 64): 0.97}))
    before, after = (calibrate(rows, knee=19.0, num_draws=0).left_out for rows in (plain, bad))
    for old, new in zip(before, after, strict=True):
        moves = [
            abs(b.predicted / a.predicted - 1) for a, b in zip(old.residuals, new.residuals, strict=True)
        ]
        if old.ep_size == 64:
            assert max(moves) <= STEP_TOLERANCE
        else:
            assert max(moves) > 100 * STEP_TOLERANCE


def test_the_knee_is_chosen_without_the_group_that_is_left_out():
    """Errors in EP64 bend the whole fit's knee away; the fit without EP64 finds the planted one again."""
    bad = {("dispatch", 64): 0.98, ("combine", 64): 0.94}
    fit = calibrate(rows_of(*synthetic_changes(TRUTH, factor=bad)), num_draws=0)
    assert fit.knee != TRUTH["fanout_knee"]
    (left,) = (group for group in fit.left_out_knee if group.ep_size == 64)
    assert left.knee == TRUTH["fanout_knee"]
    for row in left.residuals:
        assert abs((1 + row.error) * bad[row.op, 64] - 1) <= STEP_TOLERANCE


def test_every_group_is_left_out_once_with_all_its_rows(fitted):
    for groups in (fitted.left_out, fitted.left_out_knee):
        assert [group.ep_size for group in groups] == [8, 16, 32, 64, 128]
        assert sorted(row.id for row in flat(groups)) == sorted(row.id for row in fitted.residuals)


def test_the_knee_is_the_best_of_the_grid(fitted):
    scan = dict(fitted.knee_scan)
    assert tuple(scan) == KNEE_GRID
    assert scan[fitted.knee] == min(scan.values())


def test_a_held_knee_stays_and_is_marked_as_given(published):
    fit = calibrate(published, knee=26, num_draws=0, leave_one_out=False)
    assert (fit.knee, fit.knee_scan, fit.software.fanout_knee.source.kind) == (26.0, (), "given")


def test_the_spread_follows_the_width_of_the_ranges():
    """Ranges ten times as wide give ten times the spread: the draws are the same numbers, scaled."""

    def widened(percent):
        changes = synthetic_changes(TRUTH)
        for change in changes:
            middle = float(change["gb_per_s_min"])
            change["gb_per_s_min"] = f"{middle * (1 - percent / 100):.9f}"
            change["gb_per_s_max"] = f"{middle * (1 + percent / 100):.9f}"
        return calibrate(rows_of(*changes), knee=19.0, leave_one_out=False).parameters

    exact, narrow, wide = widened(0), widened(0.01), widened(0.1)
    for none, one, ten in zip(exact, narrow, wide, strict=True):
        assert none.deviation < one.deviation / 1000
        # The model bends by about the relative width of the ranges, a thousandth here.
        assert abs(ten.deviation / one.deviation / 10 - 1) < 0.01
        assert one.low < one.value < one.high


def test_rounding_widens_a_single_figure_to_both_sides():
    """A printed 374 stands for 373.5 to 374.5."""
    (wire,) = calibrate(
        rows_of({"gb_per_s_min": "374", "gb_per_s_max": "374"}), fit=("wire_efficiency",), leave_one_out=False
    ).parameters
    assert wire.low < wire.value < wire.high


def test_a_wider_range_above_pulls_the_drawn_fits_along():
    """Draws fill the whole range: with room only above the figures, every drawn bandwidth is higher."""
    changes = synthetic_changes(TRUTH)
    for change in changes:
        change["gb_per_s_max"] = f"{float(change['gb_per_s_min']) * 1.01:.9f}"
    fit = calibrate(rows_of(*changes), knee=19.0, fit=("wire_efficiency",), settings=held(TRUTH))
    (wire,) = fit.parameters
    # Targets lie between the truth (1) and 1 % above it, so wire efficiency does too, and more than that:
    # the memory's share of the time is held, and the wire alone must make up for it.
    assert 1.0 < wire.low < wire.value < wire.high < 1.02


REFUSED = [
    ({"fit": ()}, "at least one"),
    ({"fit": ("speed",)}, "continuous software parameter"),
    ({"fit": ("used_aivs",)}, "continuous software parameter"),
    ({"fit": ("row_unit_dispatch",)}, "continuous software parameter"),
    ({"fit": ("hbm_rate",)}, "continuous software parameter"),
    ({"fit": ("hbm_efficiency", "hbm_efficiency")}, "named once"),
    ({"fit": ("hbm_efficiency",), "settings": {"hbm_efficiency": 1}}, "both free and set"),
    ({"fit": ("post_time",)}, "do not depend on it"),
    ({"fit": ("launch_time", "barrier_time")}, "cannot be told apart"),
    ({"knee": 0.5}, "at least 1"),
    ({"knee": 999}, "knee is '999 ranks': no measured group lies beyond it, the largest is EP128"),
    ({"knee": 128}, "no measured group lies beyond it"),
    ({"knee": float("nan")}, "at least 1"),
    ({"knee": float("inf")}, "at least 1"),
    ({"num_draws": -1}, "whole number from 0"),
    ({"settings": {"speed": 1}}, "is in no profile"),
    ({"software": "nobody"}, "must be a .toml file or one of"),
]


@pytest.mark.parametrize(("arguments", "rule"), REFUSED, ids=lambda value: str(value)[:48])
def test_a_fit_that_means_nothing_is_refused(published, arguments, rule):
    with pytest.raises(InputError, match=rule) as caught:
        calibrate(published, **{"leave_one_out": False, **arguments})
    assert "\n" not in str(caught.value)


def test_more_numbers_than_rows_are_refused():
    two = rows_of(*synthetic_changes(TRUTH, sizes=(64,)))
    with pytest.raises(InputError, match="4 free numbers, and there are 2 rows"):
        calibrate(two)


def test_slopes_need_a_group_beyond_the_knee():
    rows = rows_of(*synthetic_changes(TRUTH, sizes=(4, 8, 16)))
    with pytest.raises(InputError, match=r"knee is '23 ranks': no .* largest is EP16.*slope_combine then"):
        calibrate(rows, leave_one_out=False)


def test_leaving_out_the_only_group_is_refused():
    rows = rows_of(*synthetic_changes({}, sizes=(8,)))
    assert calibrate(rows, fit=("hbm_efficiency",), leave_one_out=False).worst < 1e-3
    with pytest.raises(InputError, match="leaves 0 rows"):
        calibrate(rows, fit=("hbm_efficiency",))


def test_rows_of_two_cards_are_refused():
    other = {
        "id": "two",
        "system": "sgl-kernel-npu",
        "generation": "Atlas A3",
        "dtype": "int8",
        "metric": "bottleneck GB/s",
    }
    with pytest.raises(InputError, match="must be 950dt"):
        calibrate(rows_of({}, other), fit=("hbm_efficiency",))


def test_a_group_over_several_domains_is_refused():
    row = {
        "system": "DeepEP V2",
        "generation": "NVIDIA SM90 + CX7",
        "ep_size": "16",
        "metric": "logical scale-out GB/s incl. local domain",
    }
    with pytest.raises(InputError, match="one scale-up domain"):
        calibrate(rows_of(row), fit=("hbm_efficiency",))


def test_rows_marked_validate_are_used_only_when_asked():
    rows = rows_of(*({**change, "use": "validate"} for change in synthetic_changes(TRUTH)))
    with pytest.raises(InputError, match="use=calibrate"):
        calibrate(rows)
    assert values_of(calibrate(rows, all_rows=True, num_draws=0))["hbm_efficiency"] == TRUTH["hbm_efficiency"]


def test_a_fit_to_times_finds_the_same_numbers_as_one_to_bandwidths():
    changes = synthetic_changes(TRUTH)
    times = {
        (item.operation, item.ep_size): f"{item.time_us:.6f}"
        for item in predict("ubl128", token_counts="stepped", settings=TRUTH)
    }
    for change in changes:
        change |= {
            "latency_us": times[change["op"], change["ep_size"]],
            "gb_per_s_min": "",
            "gb_per_s_max": "",
            "metric": "time only",
        }
    fit = calibrate(rows_of(*changes), num_draws=0)
    assert {**values_of(fit), "fanout_knee": fit.knee} == TRUTH


def test_the_written_profile_predicts_what_the_fit_says(tmp_path, fitted):
    path = tmp_path / "mine.toml"
    path.write_text(profile_toml(fitted.software))
    assert software_profile(str(path)) == fitted.software
    items = predict("ubl128", token_counts="stepped", software=str(path))
    for row in fitted.residuals:
        item = items.one(row.op, row.ep_size)
        assert abs(row.predicted / item.gb_per_s_mean - 1) <= (2 * row.ep_size + 8) * EPS
        assert item.confidence == "calibrated"


def test_the_packaged_profile_is_what_the_tool_writes(fitted):
    """Whoever changes model, measurements or fit must run `epsim calibrate --out` again."""
    assert profile_toml(fitted.software) == PROFILE.read_text()


def test_every_fitted_entry_names_its_measurements(fitted):
    for name in (*DEFAULT_FIT, "fanout_knee"):
        source = getattr(fitted.software, name).source
        assert source.kind == "fitted"
        assert "published.csv: 10 rows, EP8 to EP128" in source.text
        held, again = worst(flat(fitted.left_out)), worst(flat(fitted.left_out_knee))
        assert f"worst of a left-out group size {max(held, again):.2%} (knee held {held:.2%}, " in source.text
        assert f"chosen again {again:.2%})" in source.text


def test_the_larger_left_out_error_is_written():
    """Errors planted in EP64 make the knee jump when it is chosen again; that error is the larger one."""
    bad = {("dispatch", 64): 0.94, ("combine", 64): 0.90}
    fit = calibrate(rows_of(*synthetic_changes(TRUTH, factor=bad)), num_draws=0)
    held, again = worst(flat(fit.left_out)), worst(flat(fit.left_out_knee))
    assert held != again
    assert max(held, again) > 0.02
    assert f"left-out group size {max(held, again):.2%} (" in fit.software.hbm_efficiency.source.text
    assert fit.software.calibrated_error.value == float(f"{max(held, again):.2g}")


def test_a_fit_that_left_nothing_out_says_so():
    fit = calibrate(rows_of(*synthetic_changes(TRUTH)), leave_one_out=False, num_draws=0)
    assert fit.software.hbm_efficiency.source.text.endswith("no group size was left out")
    assert "no group size was left out" in fit.software.calibrated_error.source.text


def test_what_a_fit_speaks_for_comes_from_its_rows():
    """Every bound of the domain is that of the rows, whatever the starting profile claims."""
    changes = synthetic_changes(TRUTH, sizes=(16, 32, 64))
    for change, tokens, hidden, topk in zip(
        changes, (512, 4096) * 3, (2048, 7168) * 3, (4, 8) * 3, strict=True
    ):
        change |= {"tokens_per_rank": str(tokens), "hidden": str(hidden), "num_topk": str(topk)}
        if change["op"] == "dispatch":
            change["dtype"] = "bf16"
    fit = calibrate(rows_of(*changes), fit=("hbm_efficiency",), knee=19, num_draws=0, leave_one_out=False)
    said = {
        name.removeprefix("calibrated_"): entry.value
        for name, entry, _ in entries(fit.software)
        if name.startswith("calibrated_")
    }
    assert said.pop("error") == max(0.02, float(f"{fit.worst:.2g}"))
    assert said == {
        "hardware": "950dt",
        "ranks_least": 16,
        "ranks_most": 64,
        "tokens_least": 512 // 4,
        "operations": "dispatch bf16, combine bf16",
        "hidden_least": 2048,
        "hidden_most": 7168,
        "topk_least": 4,
        "topk_most": 8,
        "digest": numbers_digest(fit.hardware, fit.software),
    }
    assert "512, divided by 4" in fit.software.calibrated_tokens_least.source.text


def test_the_packaged_fit_speaks_for_the_published_rows(fitted):
    """2 % is more than any left-out error of the ten figures."""
    soft = fitted.software
    assert soft.calibrated_error.value == 0.02
    assert soft.calibrated_operations.value == "dispatch fp8, combine bf16"
    assert soft.calibrated_tokens_least.value == 16_384 / 4
    for operation in ("dispatch", "combine"):
        assert predict(ep=64, software=soft, operations=(operation,))[0].confidence == "calibrated"
    for change in ({"hbm_efficiency": 1.0}, {"hbm_rate": "4.1TB/s"}):
        assert predict(ep=64, software=soft, settings=change)[0].confidence == "not calibrated"


# Acceptance of issue 2, number 2: the limits are the issue's.


def test_acceptance_all_ten_means_lie_inside(fitted):
    assert (fitted.num_inside, len(fitted.residuals)) == (10, 10)


def test_acceptance_left_out_groups_are_predicted(fitted):
    for groups in (fitted.left_out, fitted.left_out_knee):
        assert worst(flat(groups)) <= 0.007
        assert rms(flat(groups)) <= 0.0035


def test_acceptance_two_slopes_alone_are_enough(published):
    """Wire and memory at their independent values: framing limit and data sheet."""
    fit = calibrate(
        published,
        fit=("fanout_slope_dispatch", "fanout_slope_combine"),
        settings={"wire_efficiency": 1, "hbm_efficiency": 1},
        num_draws=0,
    )
    assert fit.worst <= 0.015
    assert worst(flat(fit.left_out)) <= 0.015
    assert worst(flat(fit.left_out_knee)) <= 0.015


def test_the_ten_row_fit_with_everything_left_out_is_fast(published):
    start = time.process_time()
    calibrate(published, num_draws=0)
    assert time.process_time() - start < 2.0


# The command.


def test_the_command_writes_a_profile_that_can_be_used(tmp_path, capsys):
    out, table = tmp_path / "mine.toml", tmp_path / "fit.csv"
    assert run(["calibrate", "--out", str(out), "--name", "mine", "--csv", str(table)]) == 0
    text = capsys.readouterr().out
    assert "10 of 10 inside" in text
    assert "knee chosen again" in text
    assert software_profile(str(out)).name == "mine"
    assert len(table.read_text().splitlines()) == 1 + 3 * 10


def test_the_command_prints_json(capsys):
    assert run(["calibrate", "--leave-one-out", "--knee", "23", "--draws", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["knee"] == 23
    assert said["left_out"]["worst"] <= 0.007
    assert said["left_out_knee_chosen_again"] is None
    assert said["correlation"] is None


def test_the_command_holds_what_is_set(tmp_path, capsys):
    mine = tmp_path / "mine.csv"
    mine.write_bytes(csv_bytes(*synthetic_changes({**TRUTH, "wire_efficiency": 0.9})))
    words = ["calibrate", "--measurements", str(mine), "--set", "wire_efficiency=0.9", "--json"]
    assert run(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert {p["name"]: p["value"] for p in said["parameters"]} == {name: TRUTH[name] for name in DEFAULT_FIT}


@pytest.mark.parametrize(
    "words",
    [
        ["--fit", "speed"],
        ["--knee", "low"],
        ["--set", "hbm_rate"],
        ["--measurements", "none.csv"],
        ["--measurements", "nobody"],
        ["--out", "mine.json"],
        ["--draws", "-1"],
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", "mine.toml"]
    assert run(["calibrate", *words, *out, "--csv", "fit.csv"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_validation_with_a_bad_fit_fails(published):
    """The check that the packaged profile passes can fail."""
    assert validate(published).outside == ()
    assert len(validate(published, settings={"wire_efficiency": 0.98}).outside) == 10
