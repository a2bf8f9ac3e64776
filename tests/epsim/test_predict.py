"""`epsim.predict` as a whole: what each figure means, what may move it, and what it must not depend on."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epsim
from epsim.prediction import Prediction
from reference.memory.sizes import row_bytes
from reference.routing.generate import generate_topk
from reference.topk import TopK
from tests.epsim.cases import EPS, group, is_sum, relabelled, rounding
from topology import clos, mesh, ubl128, with_link_rate
from topology.source import Source

KINDS = ("dispatch", "cached-dispatch", "combine")


def one(operation="dispatch", ep=8, system="ubl128", **options):
    """Return the prediction of one operation of one group."""
    (found,) = epsim.predict(system, ep=ep, operations=[operation], **options)
    return found


def test_a_prediction_has_one_entry_per_group_and_operation():
    """In the order asked for, and found again by name."""
    found = epsim.predict(ep=(16, 8), operations=("combine", "dispatch"))
    assert [(p.ep_size, p.operation) for p in found] == [
        (16, "combine"), (16, "dispatch"), (8, "combine"), (8, "dispatch")
    ]  # fmt: skip
    assert found.one("dispatch", 8) is found[3]
    with pytest.raises(KeyError):
        found.one("dispatch", 32)


CASES = [
    {"ep": 8},
    {"ep": 128, "operation": "combine"},
    {"ep": 1, "tokens": 64},
    {"ep": 2, "tokens": 1, "operation": "cached-dispatch"},
    {"ep": 16, "routing": "zipf:1.1", "tokens": 512, "draws": 3},
    {"ep": 256, "system": "clos:512", "tokens": 1024},
    {"ep": 256, "system": "clos:512", "tokens": 1024, "two_layer": "flat", "operation": "combine"},
    {"ep": 8, "system": "mesh8"},
    {"ep": 8, "software": "community-port-2026-08-one-block", "tokens": 4096},
    {"ep": 16, "system": "cm384", "model": "v3", "tokens": 128},
    {"ep": 8, "system": "sm100", "model": "v3"},
    {"ep": 8, "masked_ratio": 1.0, "operation": "combine"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_time_split_adds_up(case):
    """The terms sum to the printed time, over draws too."""
    found = one(**case)
    assert is_sum(found.time_us, found.terms_us.values())
    assert all(value >= -rounding(50, found.time_us) for value in found.terms_us.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_figures_are_ordered_and_finite(case):
    """Minimum, mean and maximum over ranks keep their order, and nothing is NaN or negative."""
    found = one(**case)
    slack = rounding(found.ep_size + 4, found.gb_per_s_max)
    assert found.gb_per_s_min <= found.gb_per_s_mean + slack
    assert found.gb_per_s_mean <= found.gb_per_s_max + slack
    for spec in fields(Prediction):
        value = getattr(found, spec.name)
        if isinstance(value, float):
            assert math.isfinite(value), spec.name
            assert value >= 0, spec.name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_wire_never_beats_the_payload_limit(case):
    """What leaves a card fits the packets' share of its line, and includes no local row."""
    found = one(**case)
    assert found.wire_gb_per_s <= found.payload_limit_gb_per_s
    assert (found.payload_share is None) == (found.wire_gb_per_s == 0)


@pytest.mark.parametrize("operation", KINDS)
def test_one_rank_sends_nothing(operation):
    """EP1 has no wire traffic, no barrier, and still a metric: the local rows count."""
    found = one(operation, ep=1, tokens=512)
    assert found.wire_gb_per_s == 0
    assert found.payload_share is None
    for name in ("wire", "fanout", "scaleout", "issue"):
        assert found.terms_us[name] == 0, name
    assert found.terms_us["fixed"] < one(operation, ep=2, tokens=512).terms_us["fixed"]
    assert found.gb_per_s_mean > 0


def test_the_metric_is_logical_bytes_of_received_rows_over_time():
    """Mean GB/s times the time gives back rows times bytes per row; 7,464 and 14,336 bytes here."""
    for operation, logical in (("dispatch", 7464), ("combine", 14336)):
        found = one(operation)
        moved = found.gb_per_s_mean * found.time_us * 1e3
        assert abs(moved - found.rows_per_rank * logical) <= rounding(20, moved)
        row = row_bytes(group(8), dtype="fp8", edition="ascend")
        assert logical in (row.dispatch_logical_bytes, row.combine_logical_bytes)


@pytest.mark.parametrize("ep", [1, 8, 128])
def test_bf16_dispatch_takes_longer_than_fp8(ep):
    """Twice the bytes and no faster network."""
    fp8, bf16 = (one(ep=ep, dtype=dtype) for dtype in ("fp8", "bf16"))
    assert bf16.time_us > fp8.time_us
    assert bf16.rows_per_rank == fp8.rows_per_rank


def test_the_dtype_is_of_dispatch_alone():
    """Combine is always BF16."""
    fp8, bf16 = (one("combine", dtype=dtype) for dtype in ("fp8", "bf16"))
    assert (fp8.dtype, fp8.time_us) == ("bf16", bf16.time_us)


@pytest.mark.parametrize("operation", KINDS)
@pytest.mark.parametrize("ep", [2, 8, 128])
def test_doubling_the_ports_never_lengthens(operation, ep):
    """Twice as fast ports halve the wire time and shorten the whole."""
    slow, fast = (one(operation, ep, ubl128(port_rate=rate)) for rate in ("25GB/s", "50GB/s"))
    wire = slow.terms_us["wire"]
    assert abs(2 * fast.terms_us["wire"] - wire) <= rounding(20, wire)
    assert fast.time_us < slow.time_us


@pytest.mark.parametrize("operation", KINDS)
def test_doubling_the_memory_rate_never_lengthens(operation):
    """Fetch and reduction halve; the wire stays."""
    slow, fast = (one(operation, settings={"hbm_rate": rate}) for rate in ("2TB/s", "4TB/s"))
    assert fast.terms_us["wire"] == slow.terms_us["wire"]
    assert fast.time_us < slow.time_us


@settings(max_examples=25)
@given(order=st.permutations(range(6)), routing=st.sampled_from(["uniform", "zipf:1.2", "unbalanced:2"]))
def test_relabelling_ranks_relabels_results(order, routing):
    """Minimum, mean and maximum over ranks do not know the ranks' numbers."""
    config = group(6, num_experts=24, num_topk=4, tokens=32)
    topk = generate_topk(config, routing, tokens_per_rank=(32, 5, 17, 32, 0, 1))
    options = {"ep": 6, "num_experts": 24, "num_topk": 4, "tokens": 32}
    plain, renamed = (one("combine", routing=t, **options) for t in (topk, relabelled(topk, order, 4)))
    for name in (
        "gb_per_s_min",
        "gb_per_s_mean",
        "gb_per_s_max",
        "time_us",
        "rows_per_rank",
        "wire_gb_per_s",
    ):
        before, after = getattr(plain, name), getattr(renamed, name)
        assert abs(before - after) <= rounding(40, before), name
    assert (plain.bound, plain.binding) == (renamed.bound, renamed.binding)


def test_skew_costs_time_with_the_same_choices_per_token():
    """A hot rank makes all wait; the rows of its tokens are no more than under uniform routing."""
    level, skewed = (one(ep=16, routing=r, draws=1, tokens=2048) for r in ("uniform", "precise:3"))
    assert skewed.peak_over_mean > 2 * level.peak_over_mean
    assert skewed.rows_per_rank <= level.rows_per_rank
    assert skewed.time_us > level.time_us


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_sampled_and_exact_uniform_routing_agree(operation):
    """The exact expectation lies inside the scatter of 16 draws.

    Student's t with 15 degrees of freedom leaves 8 standard errors less than once in a million.
    """
    options = {"ep": 16, "tokens": 512}
    exact = one(operation, **options)
    draws = [one(operation, routing="uniform", draws=1, seed=s, **options).rows_per_rank for s in range(16)]
    error = float(np.std(draws, ddof=1)) / 4
    assert abs(float(np.mean(draws)) - exact.rows_per_rank) <= 8 * error


def test_stepped_counts_are_the_published_tests_own():
    """Rank r sends tokens - r, so eight ranks send 28 tokens fewer; 4.2 ranks per token at EP8 of 256."""
    equal, stepped = (one(tokens=100, token_counts=word) for word in ("equal", "stepped"))
    ratio = (8 * 100 - 28) / (8 * 100)
    assert abs(stepped.rows_per_rank - ratio * equal.rows_per_rank) <= rounding(40, equal.rows_per_rank)
    listed = one(tokens=[100 - r for r in range(8)])
    assert listed.rows_per_rank == stepped.rows_per_rank


LIMITS = [
    ({}, "network-limited"),
    ({"settings": {"hbm_rate": "100GB/s"}}, "memory-limited"),
    ({"operation": "combine", "settings": {"used_aivs": 1}}, "kernel-limited"),
    ({"settings": {"post_time": "150us"}}, "kernel-limited"),
    ({"tokens": 1}, "kernel-limited"),
    ({"software": "community-port-2026-08-one-block"}, "kernel-limited"),
]


@pytest.mark.parametrize(("case", "bound"), LIMITS, ids=[str(c) for c, _ in LIMITS])
def test_the_first_word_names_the_limit(case, bound):
    """A slow memory, kernel or batch is found out, and the printed line starts with it."""
    found = one(**case)
    assert found.bound == bound
    assert str(found).startswith(f"{bound}: ")


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_two_layer_dedup_sends_no_more_than_flat(operation):
    """One row per supernode over the scale-out port is at most one per rank, and takes at most as long."""
    cluster = clos(1024)
    dedup, flat = (
        one(operation, 256, cluster, ranks_per_supernode=32, tokens=1024, two_layer=way)
        for way in ("dedup", "flat")
    )
    assert dedup.terms_us["scaleout"] < flat.terms_us["scaleout"]
    assert dedup.time_us < flat.time_us
    assert dedup.scaleout_gb_per_s is not None


def test_combine_sends_the_rows_back():
    """A link that is slow in one direction delays dispatch along it, and combine against it."""
    whole = mesh(4)
    link = np.flatnonzero((whole.link_src == 0) & (whole.link_dst == 1))
    slow = with_link_rate(whole, link, 1_000_000_000, Source("given", "test"))
    for source, is_along in ((0, "dispatch"), (1, "combine")):
        idx = [np.full((8, 1), 1 - source if rank == source else rank) for rank in range(4)]
        topk = TopK(num_experts=4, topk_idx=tuple(idx))
        options = {"ep": 4, "num_experts": 4, "num_topk": 1, "tokens": 8, "routing": topk}
        for operation in ("dispatch", "combine"):
            wire = [one(operation, system=t, **options).terms_us["wire"] for t in (slow, whole)]
            assert (wire[0] > 10 * wire[1]) == (operation == is_along)


def test_a_supernode_has_no_scaleout_figure():
    """Only groups beyond one scale-up domain use the scale-out port."""
    assert one().scaleout_gb_per_s is None
    assert one(system="clos:1024", ep=128).scaleout_gb_per_s is None
    assert one(system="clos:1024", ep=128, ranks_per_supernode=64).terms_us["scaleout"] > 0


CONFIDENCE = [
    ({}, "calibrated"),
    ({"ep": 128, "operation": "combine", "draws": 1}, "calibrated"),
    ({"ep": 4}, "extrapolated"),
    ({"ep": 1}, "not calibrated"),
    ({"settings": {"hbm_rate": "3.9TB/s"}}, "not calibrated"),
    ({"settings": {"hbm_rate": "4TB/s"}}, "calibrated"),  # the value that it has
    ({"hardware": "950pr"}, "not calibrated"),
    ({"dtype": "bf16"}, "not calibrated"),
    ({"operation": "cached-dispatch"}, "not calibrated"),
    ({"masked_ratio": 0.5}, "not calibrated"),
    ({"hidden": 128, "operation": "combine"}, "not calibrated"),
    ({"num_topk": 64}, "not calibrated"),
    ({"tokens": 128}, "not calibrated"),
    ({"routing": "zipf:1.1", "tokens": 4096}, "not calibrated"),
    ({"system": "mesh8"}, "not calibrated"),
    ({"system": "clos:512", "ep": 256}, "not calibrated"),
    ({"software": "ideal"}, "not calibrated"),
]


@pytest.mark.parametrize(("case", "confidence"), CONFIDENCE, ids=[str(c) for c, _ in CONFIDENCE])
def test_confidence_says_how_far_the_fit_speaks(case, confidence):
    """Only what was measured is calibrated, and only calibrated or near cases have an error band."""
    found = one(**case)
    assert found.confidence == confidence
    assert (found.error_band is None) == (confidence == "not calibrated")
    assert found.validity


def test_equal_arguments_give_equal_answers():
    """Seeds and nothing else decide a sample."""
    options = {"routing": "zipf:0.9", "tokens": 256, "seed": 5}
    assert one(**options) == one(**options)
    assert one(**options).rows_per_rank != one(**{**options, "seed": 6}).rows_per_rank


def test_draws_use_consecutive_seeds():
    """Three draws average the single draws of seeds 5, 6 and 7."""
    options = {"routing": "zipf:0.9", "tokens": 256}
    singles = [one(seed=s, **options).rows_per_rank for s in (5, 6, 7)]
    mean = one(seed=5, draws=3, **options).rows_per_rank
    assert abs(mean - float(np.mean(singles))) <= rounding(10, mean)


def test_json_and_csv_hold_the_same_figures():
    """Both list every prediction with its time to the last bit."""
    found = epsim.predict(ep=(8, 16))
    rows = json.loads(found.to_json())
    assert [row["time_us"] for row in rows] == [p.time_us for p in found]
    lines = list(csv.DictReader(found.to_csv().splitlines()))
    for row, line, item in zip(rows, lines, found, strict=True):
        assert row["time_us"] == float(line["time_us"]) == item.time_us
        assert row["terms_us"] == {name: float(line[f"{name}_us"]) for name in item.terms_us}
        assert row["bound"] == line["bound"] == item.bound


def test_predictions_print_as_a_table_that_starts_with_the_limit():
    """Also a slice: one line per prediction, its limit before any figure."""
    found = epsim.predict(ep=(8, 16))
    lines = [line.split() for line in str(found[1:3]).splitlines()]
    heads = [words[:4] for words in lines if words[:1] == ["network"]]
    assert heads == [["network", "combine", "BF16", "8"], ["network", "dispatch", "FP8", "16"]]


def test_a_prediction_opens_no_measurement_file():
    """No published value can move a prediction: the file is never read, an audit hook sees to it."""
    program = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import epsim
print(epsim.predict(ep=(8, 16, 32, 64, 128))[0].time_us)
assert [name for name in opened if name.endswith(".toml")], "the hook sees profiles being read"
assert not [name for name in opened if name.endswith(".csv")]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


@pytest.mark.parametrize("ep", [8, 16, 32, 64, 128])
def test_more_tokens_never_lower_the_bandwidth(ep):
    """Fixed costs are shared by more rows; all other terms are proportional to the rows."""
    rates = [one(ep=ep, tokens=tokens).gb_per_s_mean for tokens in (64, 1024, 16_384)]
    assert rates[0] < rates[1] * (1 + 8 * EPS)
    assert rates[1] < rates[2] * (1 + 8 * EPS)
