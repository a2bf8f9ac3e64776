"""Effects and fronts against sums and loops written out, on full grids and on grids with gaps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.report.sweep import sweep_json, sweep_text
from epsim.sweep import Sweep, Table, make_plan, plots
from epsim.sweep.analysis import Objective, best_and_worst, pareto_front, parse_objective, sensitivity
from epsim.sweep.journal import Record
from epsim.sweep.plots import pareto_plot, sensitivity_plot
from epsim.sweep.table import as_number, make_table

GRID = {
    "ep": [8, 16, 32],
    "set.hbm_rate": ["1TB/s", "2TB/s"],
    "routing": ["uniform", "zipf:1"],
    "operations": "combine",
}


def table_of(answer, *, keep=lambda values: True, **sweep):
    """Return a table whose time is `answer(values)` and whose bandwidth its inverse; others are refused."""
    plan = make_plan(Sweep(**{"grid": GRID, **sweep}))
    columns, records = list(plan.target.columns), []
    for point in plan.point_ids:
        values = plan.values(point)
        cells = dict.fromkeys(columns)
        if keep(values):
            cells |= {"time_us": float(answer(values)), "gb_per_s_mean": 1 / float(answer(values))}
        status = "ok" if keep(values) else "refused"
        filled = list(cells.values()) if status == "ok" else []
        digest = plan.point_digest(point)
        records.append(Record(point=point, digest=digest, status=status, cells=filled, message=""))
    return make_table(plan, records)


def additive(values):
    """Eight ep and 100 per TB/s; zipf costs 5."""
    return values["ep"] * 8 + 100 * int(values["set.hbm_rate"][0]) + 5 * (values["routing"] != "uniform")


def test_effects_of_a_full_grid_are_differences_of_averages():
    found = sensitivity(table_of(additive), "time_us")
    assert [effect.name for effect in found.effects] == ["ep", "set.hbm_rate", "routing"]
    # The sums are whole numbers; two divisions below 512 are rounded.
    for effect, size in zip(found.effects, (8.0 * 24, 100.0, 5.0), strict=True):
        assert abs(effect.size - size) <= 512 * np.finfo(float).eps
    assert found.effects[0].means == (216.5, 280.5, 408.5)
    assert (found.is_average, found.num_used, found.explained) == (True, 12, 1.0)


def test_interaction_is_not_explained():
    """A product of two axes has a part that no sum of one term per axis holds."""
    found = sensitivity(table_of(lambda values: values["ep"] ** (values["routing"] == "uniform")), "time_us")
    assert 0 < found.explained < 1
    flat = sensitivity(table_of(lambda values: 3.0), "time_us")
    assert (flat.explained, {effect.size for effect in flat.effects}) == (None, {0.0})


@pytest.mark.parametrize("power", [-1, 0.5, 2])
def test_the_elasticity_of_a_power_is_its_exponent(power):
    found = sensitivity(table_of(lambda v: float(v["set.hbm_rate"][0]) ** power), "time_us")
    by_name = {effect.name: effect.elasticity for effect in found.effects}
    assert by_name["set.hbm_rate"] == pytest.approx(power, rel=8 * np.finfo(float).eps)
    assert (by_name["ep"], by_name["routing"]) == (0.0, None)


WIDE = GRID | {"tokens": [1024, 2048, 4096]}


def gaps(lost, grid=GRID):
    """Return the additive table without some of its points."""
    plan = make_plan(Sweep(grid=grid))
    gone = [plan.values(point) for point in lost]
    return table_of(additive, grid=grid, keep=lambda values: values not in gone)


@settings(max_examples=60)
@given(st.sets(st.integers(0, 35), min_size=1, max_size=20))
def test_a_grid_with_gaps_gives_the_effects_of_an_additive_answer_or_none(lost):
    """Plain averages would mix axes: a gap at one end makes the others look guilty."""
    true = {"ep": 192.0, "set.hbm_rate": 100.0, "routing": 5.0, "tokens": 0.0}
    for effect in sensitivity(gaps(lost, WIDE), "time_us").effects:
        if not effect.note and all(map(math.isfinite, effect.means)):
            # Normal equations of side 10 in counts up to 36: condition below 36 * 10, answers below 500.
            assert abs(effect.size - true[effect.name]) <= (36 * 10) ** 2 * np.finfo(float).eps * 500


def test_a_grid_that_lost_one_value_everywhere_is_a_smaller_full_grid():
    found = sensitivity(table_of(additive, keep=lambda values: values["ep"] != 32), "time_us")
    assert (found.is_average, found.num_used, found.explained) == (True, 8, 1.0)
    assert {effect.name: effect.size for effect in found.effects}["ep"] == 64.0


def test_axes_that_the_points_do_not_tell_apart_have_no_figure():
    """Only EP8 with 1 TB/s and EP16 with 2 TB/s are there: either may have done it."""
    pairs = {(8, "1TB/s"), (16, "2TB/s")}
    table = table_of(additive, grid=WIDE, keep=lambda values: (values["ep"], values["set.hbm_rate"]) in pairs)
    notes = {effect.name: effect.note for effect in sensitivity(table, "time_us").effects}
    assert "do not tell" in notes["ep"]
    assert notes["set.hbm_rate"] == notes["ep"]
    assert notes["routing"] == ""
    assert "do not tell" in sweep_text(table, [Objective(column="time_us", sense="min")])


def test_a_naive_average_would_have_failed_the_test_above():
    """The planted fault: average what is there, and the gap counts as the axis."""
    table = gaps({8, 9})  # EP32 with 1 TB/s is lost
    rates = dict.fromkeys(("1TB/s", "2TB/s"), 0.0)
    for rate in rates:
        rows = [row for row, word in enumerate(table.column("set.hbm_rate")) if word == rate]
        rates[rate] = float(np.nanmean(table.numbers("time_us")[rows]))
    assert abs(rates["2TB/s"] - rates["1TB/s"] - 100.0) > 10


def test_axes_that_walk_together_are_one_effect():
    table = table_of(additive, grid=GRID | {"ep": [8, 16]}, zip=[["ep", "set.hbm_rate"]])
    first = sensitivity(table, "time_us").effects[0]
    assert (first.name, first.levels, first.size) == ("ep+set.hbm_rate", ("8/1TB/s", "16/2TB/s"), 164.0)


def brute_front(costs):
    """Return the places of costs that no other beats, by the definition."""
    return [
        idx for idx, mine in enumerate(costs)
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in costs)
    ]  # fmt: skip


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=12, max_size=12))
def test_the_front_is_the_one_of_the_definition(costs):
    plan = make_plan(Sweep(grid=GRID))
    names = ("time_us", "gb_per_s_mean", "peak_over_mean")
    records = [
        Record(
            point=point, digest="", status="ok", message="",
            cells=[float(cost[names.index(n)]) if n in names else None for n in plan.target.columns],
        )
        for point, cost in zip(plan.point_ids, costs, strict=True)
    ]  # fmt: skip
    objectives = [
        parse_objective(f"{sense}:{name}") for sense, name in zip(("min", "max", "min"), names, strict=True)
    ]
    signed = [(a, -b, c) for a, b, c in costs]
    assert sorted(pareto_front(make_table(plan, records), objectives)) == brute_front(signed)


def test_a_front_of_time_and_cost_leaves_refused_points_out():
    """An axis has a value in a refused row, which must not win."""
    table = table_of(lambda v: 1 / as_number(v["set.hbm_rate"]), keep=lambda v: v["ep"] != 8)
    objectives = [parse_objective("time_us"), parse_objective("min:ep")]
    assert [table.rows[row][1] for row in pareto_front(table, objectives)] == [16, 16]
    assert best_and_worst(table, objectives[1]) == (4, 8)


@pytest.mark.parametrize(("text", "sense"), [("time_us", "min"), ("gb_per_s_min", "max"), ("max:ep", "max")])
def test_objectives(text, sense):
    assert parse_objective(text) == Objective(column=text.partition(":")[2] or text, sense=sense)


@pytest.mark.parametrize("text", ["most:time_us", "min:", ":time_us"])
def test_an_objective_with_another_sense_is_refused(text):
    with pytest.raises(InputError, match="min:COLUMN or max:COLUMN"):
        parse_objective(text)


def test_columns_of_words_are_refused():
    table = table_of(additive)
    for column, sentence in (("bound", "no number"), ("routing", "uniform"), ("no", "must be one of")):
        with pytest.raises(InputError, match=sentence):
            sensitivity(table, column)
    with pytest.raises(InputError, match="at least two"):
        pareto_front(table, [parse_objective("time_us")])


@pytest.mark.parametrize(
    ("word", "number"),
    [(8, 8.0), ("4TB/s", 4e12), ("2KiB", 2048.0), ("1.5us", 1.5e-6), ("90%", 0.9), ("v3", None), (True, None),
     ([1], None), ("0.5", 0.5)],
)  # fmt: skip
def test_quantities_are_numbers(word, number):
    assert as_number(word) == number


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_the_same_every_time(suffix):
    table = table_of(additive, keep=lambda values: values["ep"] != 32)
    objectives = parse_objective("time_us"), parse_objective("min:set.hbm_rate")
    found = sensitivity(table, "time_us")
    for draw in (lambda: pareto_plot(table, *objectives, suffix), lambda: sensitivity_plot(found, suffix)):
        picture = draw()
        assert picture == draw()
        assert picture.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def test_an_axis_of_quantities_has_their_unit_at_its_ticks(monkeypatch):
    """Issue 4: "1e12" stood at the corner, and "SI units" beside the name."""
    drawn = []
    monkeypatch.setattr(plots, "_bytes", lambda figure, suffix: drawn.append(figure) or b"")
    table = table_of(additive)
    pareto_plot(table, parse_objective("min:set.hbm_rate"), parse_objective("time_us"), "png")
    [figure] = drawn
    figure.draw_without_rendering()
    [axes] = figure.axes
    texts = [label.get_text() for label in axes.get_xticklabels()]
    assert {"1 TB/s", "2 TB/s"} <= set(texts)
    assert axes.xaxis.get_offset_text().get_text() == ""
    assert axes.get_xlabel() == "set.hbm_rate (less is better)"
    assert not any("B/s" in label.get_text() for label in axes.get_yticklabels())


def test_a_sweep_without_an_answer_has_a_summary():
    table = table_of(additive, keep=lambda _: False)
    objectives = [parse_objective("time_us"), parse_objective("gb_per_s_mean")]
    assert sweep_text(table, objectives).startswith("12 points, 12 refused")
    assert '"best": null' in sweep_json(table, objectives)
    assert isinstance(table, Table)
    assert len(list(itertools.chain(*table.rows))) == 12 * len(table.columns)
