"""Effects of a sample against those of the full grid, on answers of known effect."""

import math

import numpy as np
import pytest

from epsim.report.sweep import sweep_json, sweep_text
from epsim.sweep import Sweep, make_plan
from epsim.sweep.analysis import parse_objective, sensitivity
from epsim.sweep.journal import Record
from epsim.sweep.table import as_number, make_table
from epsim.sweep.terms import MAX_KNOTS, SHAPED, fit_terms

SIGMAS = 5
"""Standard errors that an estimate may be off: of the about 100 compared here none in 10,000 runs is, if
errors are normal."""


def rate_grid(text):
    return {
        "ep": [8, 16, 32, 64, 128],
        "set.hbm_rate": text,
        "tokens": [8192, 16384],
        "operations": "dispatch",
    }


def table_of(answer, grid, **sweep):
    """Return a table of `answer(values)`."""
    plan = make_plan(Sweep(grid=grid, **sweep))
    blank, records = dict.fromkeys(plan.target.columns), []
    for point in plan.point_ids:
        cells = list((blank | {"time_us": float(answer(plan.values(point)))}).values())
        records.append(Record(point=point, digest="", status="ok", cells=cells, message=""))
    return make_table(plan, records)


def planted(power):
    """Return ep^(0.2 or 0.3) tokens rate^power: the 0.3 of many tokens is neither a product nor a sum."""

    def answer(v):
        return (
            v["ep"] ** (0.2 + 0.1 * (v["tokens"] > 8192))
            * v["tokens"]
            * as_number(v["set.hbm_rate"]) ** power
        )

    return answer


def effects_of(table):
    return {effect.name: effect for effect in sensitivity(table, "time_us").effects}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sample", [40, 210, 900])
def test_a_sample_finds_the_elasticity_that_was_planted(sample, seed):
    grid = rate_grid("1TB/s..4TB/s/log200")
    for power in (-0.4, 0.0):
        found = effects_of(table_of(planted(power), grid, sample=sample, seed=seed))["set.hbm_rate"]
        assert abs(found.elasticity - power) <= SIGMAS * found.elasticity_error


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_and_the_full_grid_agree_within_the_standard_errors(seed):
    """Issue 4: one free number per point gave hbm_rate 16.2 % of an answer that it moves by 0.02 %."""
    grid = rate_grid("3.99TB/s..4TB/s/lin200")
    sampled = effects_of(table_of(planted(-0.08), grid, sample=210, seed=seed))
    full = effects_of(table_of(planted(-0.08), grid))
    for name, effect in sampled.items():
        assert abs(effect.size - full[name].size) <= SIGMAS * effect.error
        assert abs(effect.elasticity - full[name].elasticity) <= SIGMAS * effect.elasticity_error


def test_one_number_per_value_would_fail_the_tests_above():
    """The planted fault: the range of the answers at each rate, as a fit of a number per rate gives it."""
    table = table_of(planted(-0.08), rate_grid("3.99TB/s..4TB/s/lin200"), sample=210)
    rates, times = table.column("set.hbm_rate"), table.numbers("time_us")
    means = [np.mean([t for r, t in zip(rates, times, strict=True) if r == rate]) for rate in set(rates)]
    effect = effects_of(table)["set.hbm_rate"]
    assert max(means) - min(means) - effect.size > SIGMAS * effect.error


WIDE = {
    "tokens": "128..16384/x2",
    "ep": [8, 16, 32, 64],
    "set.hbm_rate": "1TB/s..4TB/s/lin50",
    "operations": "combine",
}


def roofline(v):
    """Return a latency and a time per token that grows with ep and holds a part of the memory's rate."""
    return 20 + v["tokens"] * (0.1 * v["ep"] ** 0.2 + 1e11 / as_number(v["set.hbm_rate"]))


@pytest.mark.parametrize("seed", range(12))
def test_a_wide_axis_with_few_points_has_possible_means(seed):
    """An answer about in proportion to an axis was a line in its logarithm, with a lowest time below 0."""
    full = sensitivity(table_of(roofline, WIDE), "time_us")
    found = sensitivity(table_of(roofline, WIDE, sample=60, seed=seed), "time_us")
    sizes = {effect.name: effect.size / full.mean for effect in full.effects}
    assert (full.is_average, found.is_average, found.is_product) == (True, False, True)
    for effect in found.effects:
        assert min(effect.means) > 0
        assert abs(effect.size / found.mean - sizes[effect.name]) <= SIGMAS * effect.share_error


def test_a_line_in_the_logarithm_would_fail_the_test_above():
    """The planted fault: what was fitted before."""
    table = table_of(roofline, WIDE, sample=60, seed=4)
    slope, start = np.polyfit(np.log(table.numbers("tokens")), table.numbers("time_us"), 1)
    assert start + slope * math.log(128) < 0


@pytest.mark.parametrize("is_product", [False, True])
def test_on_a_full_grid_both_fits_are_the_averages(is_product):
    """Not so a fit of logarithms, whose means are geometric."""
    levels = np.array(list(np.ndindex(3, 4)), np.int64)
    rows, columns = levels.T
    noise = np.random.default_rng(1).uniform(0.9, 1.1, 12)
    y = noise * (10.0**rows * (1 + columns)) if is_product else noise + 10 * rows + 7 * columns
    fit = fit_terms(levels, y, [None, None], [3, 4])
    assert fit.is_product == is_product
    for idx, term in enumerate(fit.terms):
        plain = [y[levels[:, idx] == place].mean() for place in range(len(term.means))]
        # Newton stops at half the digits, and its next step is at the rounding of sums of 12 up to max(y).
        assert np.abs(term.means - plain).max() <= 12 * 12 * np.finfo(float).eps * y.max()


def test_values_that_were_refused_have_no_mean_and_those_not_drawn_have():
    grid = {"set.hbm_rate": "1TB/s..4TB/s/lin50", "ep": [8, 16], "operations": "combine"}
    table = table_of(lambda v: v["ep"] / as_number(v["set.hbm_rate"]), grid, sample=40, seed=1)
    effect = effects_of(table)["set.hbm_rate"]
    assert len(set(table.column("set.hbm_rate"))) < len(effect.means)
    assert all(map(math.isfinite, effect.means))
    refused = fit_terms(
        np.array([[place, way] for place in range(9) for way in (0, 1)]), np.arange(1.0, 19.0),
        [np.arange(1.0, 11.0), None], [10, 2], [False, False],
    )  # fmt: skip
    assert math.isnan(refused.terms[0].means[9])


def test_straight_pieces_follow_a_kink():
    """The answer depends on the rate only above 2 TB/s, which a single slope would not show."""
    grid = {"set.hbm_rate": "1TB/s..4TB/s/log201", "tokens": [1024, 2048, 4096], "operations": "dispatch"}

    def bend(v):
        return 3 - max(0.0, math.log2(as_number(v["set.hbm_rate"]) / 2e12))

    effect = effects_of(table_of(bend, grid, sample=300))["set.hbm_rate"]
    assert effect.num_knots == MAX_KNOTS
    known = [mean for mean in effect.means if math.isfinite(mean)]
    low, middle, high = known[0], known[len(known) // 2], known[-1]
    assert abs(low - middle) < abs(middle - high) / 5


def test_too_few_points_have_no_figure():
    table = table_of(planted(-0.4), rate_grid("1TB/s..4TB/s/log200"), sample=13)
    assert {effect.note for effect in effects_of(table).values()} == {
        "too few points (13 points, 7 free numbers)"
    }
    found = sensitivity(table, "time_us")
    assert (found.explained, {effect.size for effect in found.effects}) == (None, {0.0})
    text = sweep_text(table, [parse_objective("time_us")])
    assert "too few points (13 points, 7 free numbers)" in text
    assert "explains" not in text
    assert '"explained": null' in sweep_json(table, [parse_objective("time_us")])
    more = table_of(planted(-0.4), rate_grid("1TB/s..4TB/s/log200"), sample=14)
    assert not any("too few" in effect.note for effect in effects_of(more).values())


def test_noise_explains_nothing():
    """R^2 of n random answers is about p / n; the adjusted one is about 0."""
    noise = np.random.default_rng(1).normal(100, 1, 2000).tolist()
    table = table_of(lambda _: noise.pop(), rate_grid("1TB/s..4TB/s/log200"), sample=60)
    # Its standard deviation is about sqrt(2 p) / n; a number has `SHAPED` points.
    assert sensitivity(table, "time_us").explained < SIGMAS * math.sqrt(2 * 60 / SHAPED) / 60
