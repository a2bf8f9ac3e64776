"""Limits of a run: each rule fires on its own side of its border, and only there."""

import math

import pytest

from reference.config import EPConfig, ExpertMap
from reference.memory.limits import combine_token_ceiling, limits
from reference.plan import count_rows
from reference.routing.expected import expected_rows
from reference.routing.generate import generate_topk

GOOD = {"ep_size": 8, "num_experts": 256, "num_topk": 6, "hidden": 7168, "num_max_tokens_per_rank": 4096}


def found(change=None, **options):
    return {limit.id: limit.severity for limit in limits(EPConfig(**GOOD | (change or {})), **options)}


def test_the_published_setup_hits_nothing_at_ep8():
    assert found() == {}
    assert found({"num_max_tokens_per_rank": 16384}) == {}


# deepep-ascend.md section 1.10, C = 64.
CEILINGS = [
    (8, 299_520, 149_504),
    (16, 139_776, 69_632),
    (32, 67_584, 33_792),
    (64, 33_280, 16_384),
    (128, 16_384, 8_192),
    (254, 8_192, 4_096),
]


@pytest.mark.parametrize(("ep_size", "static", "runtime"), CEILINGS)
def test_printed_combine_ceilings(ep_size, static, runtime):
    assert combine_token_ceiling(ep_size) == static
    assert combine_token_ceiling(ep_size, runtime=True) == runtime


@pytest.mark.parametrize("ep_size", [2, 8, 30, 128])
@pytest.mark.parametrize("num_aivs", [16, 48, 64])
def test_ceiling_is_the_last_token_count_that_fits(ep_size, num_aivs):
    def blocks(tokens):
        return (ep_size - 1) * math.ceil(math.ceil(tokens / num_aivs) / 8) * 16 + 4

    most = combine_token_ceiling(ep_size, num_aivs=num_aivs)
    assert blocks(most) <= 65_536 < blocks(most + 1)


def test_one_rank_has_no_combine_ceiling():
    assert combine_token_ceiling(1) is None
    assert found({"ep_size": 1}) == {}


BORDERS = [
    ("even-ranks", {"ep_size": 6, "num_experts": 252}, {"ep_size": 7, "num_experts": 252}),
    ("max-experts", {"num_experts": 512}, {"num_experts": 520}),
    ("max-topk", {"num_topk": 32, "hidden": 1024}, {"num_topk": 33, "hidden": 1024}),
    ("alignment-power", {"expert_alignment": 128}, {"expert_alignment": 96}),
    ("combine-hidden", {"hidden": 7296}, {"hidden": 7300}),
    ("combine-tokens", {"num_max_tokens_per_rank": 299_520}, {"num_max_tokens_per_rank": 299_521}),
    ("max-rows", {"num_max_tokens_per_rank": 2**21 - 1}, {"num_max_tokens_per_rank": 2**21}),
    ("max-expanded", {"num_max_tokens_per_rank": 2**25}, {"num_max_tokens_per_rank": 2**26}),
    ("combine-ring", {"num_topk": 17}, {"num_topk": 18}),
    ("reduce-ring", {"hidden": 15_744}, {"hidden": 16_384}),
]


@pytest.mark.parametrize(("name", "last_good", "first_bad"), BORDERS)
def test_each_rule_fires_at_its_border(name, last_good, first_bad):
    assert found(last_good).get(name) != "error"
    assert found(first_bad)[name] == "error"


def test_rank_count_ends_at_8_bits():
    at_254 = {"ep_size": 254, "num_experts": 508, "num_max_tokens_per_rank": 128}
    assert found(at_254) == {"max-ranks": "warning", "max-experts": "warning"}
    assert found(at_254 | {"ep_size": 256, "num_experts": 512})["max-ranks"] == "error"


@pytest.mark.parametrize(("num_aivs", "name"), [(15, "min-aivs"), (16, None), (64, None), (65, "max-aivs")])
def test_aiv_bounds(num_aivs, name):
    assert found(num_aivs=num_aivs) == ({name: "error"} if name else {})


def test_uneven_experts_are_refused():
    ranks = (0,) * 100 + tuple(range(8)) * 19 + (7,) * 4
    assert found({"expert_map": ExpertMap(expert_ranks=ranks)})["equal-experts"] == "error"


def test_fp8_row_length_matters_for_zero_padding_only():
    assert found({"hidden": 7296}) == {"padded-hidden": "warning"}
    assert found({"hidden": 7296}, dtype="bf16") == {}


def test_published_ep128_run_stands_exactly_at_the_static_ceiling():
    at_limit = {"ep_size": 128, "num_max_tokens_per_rank": 16384}
    assert found(at_limit) == {"combine-tokens": "warning", "combine-queue": "warning"}
    uniform = expected_rows(EPConfig(**GOOD | at_limit), 16384)
    assert found(at_limit, counts=uniform) == {"combine-tokens": "warning"}


def test_one_sided_routing_overruns_the_combine_queue():
    # Every token of every rank goes to rank 0 alone: 7 peers x 293 tasks x 16 + 4 = 32,820 blocks.
    config = EPConfig(
        ep_size=8,
        num_experts=8,
        num_topk=1,
        hidden=7168,
        num_max_tokens_per_rank=149_505,
        expert_map=ExpertMap(expert_ranks=(0,) * 8),
    )
    counts = count_rows(config, generate_topk(config, "uniform", tokens_per_rank=149_505))
    (queue,) = [limit for limit in limits(config, counts=counts) if limit.id == "combine-queue"]
    assert (queue.value, queue.severity) == (32_820, "error")
    fits = count_rows(config, generate_topk(config, "uniform", tokens_per_rank=149_504))
    assert "error" not in [x.severity for x in limits(config, counts=fits) if x.id == "combine-queue"]


def test_dispatch_queue_depends_on_the_routing():
    many = {"num_max_tokens_per_rank": 600_000}
    assert found(many)["dispatch-queue"] == "warning"
    config = EPConfig(**GOOD | many)
    # Uniform: 600,000 x 0.555 rows per peer / 64 AIVs / 6 records = 868 SQEs x 7 peers x 4 blocks.
    assert found(many, counts=expected_rows(config, 600_000)).get("dispatch-queue") is None
    twice = expected_rows(EPConfig(**GOOD | {"num_max_tokens_per_rank": 1_200_000}), 1_200_000)
    assert found(many, counts=twice)["dispatch-queue"] == "error"


def test_dispatch_queue_is_that_of_the_sender():
    # Rank 0 alone has tokens: 64 x 6 x 1,200 to each of 7 peers are 8,400 SQEs of 4 blocks per AIV.
    config = EPConfig(**GOOD | {"num_experts": 8, "num_topk": 8, "num_max_tokens_per_rank": 460_800})
    counts = count_rows(config, generate_topk(config, "uniform", tokens_per_rank=(460_800,) + (0,) * 7))
    (queue,) = [limit for limit in limits(config, counts=counts) if limit.id == "dispatch-queue"]
    assert (queue.value, queue.severity) == (7 * 1200 * 4, "error")


def test_reduce_ring_holds_one_row_per_rank_when_ranks_are_few():
    # 8 choices on 2 ranks leave 2 partial rows and 2 biases: 4 of the 7 rows that fit.
    few = {"ep_size": 2, "num_topk": 7, "hidden": 16_384}
    assert "reduce-ring" not in found(few)
    assert found(few | {"ep_size": 8})["reduce-ring"] == "error"


def test_existing_buffer_is_compared_with_the_calls():
    # Dispatch FP8 at K = 6: 8 x 4096 x 7488; combine 6 x 4096 x 14368 is larger.
    assert found(num_buffer_bytes=354_418_688) == {}
    assert found(num_buffer_bytes=350_224_384) == {"buffer-size": "error"}
    assert found(num_buffer_bytes=354_418_689) == {"buffer-step": "error"}


def test_errors_come_first_and_say_all():
    bad = EPConfig(**GOOD | {"ep_size": 7, "num_experts": 630, "hidden": 7300})
    result = limits(bad)
    assert [x.severity for x in result] == sorted(x.severity for x in result)
    first = result[0]
    assert (first.id, first.field, first.value) == ("even-ranks", "ep_size", 7)
    assert first.rule == "must be even: spare channels pair ranks"
