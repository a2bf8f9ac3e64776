"""The story of a token is the plan's, number by number, and a row leads back to the token that made it."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.inputs.routed import RoutingRequest, load_routing
from epsim.inspection import inspect_routing
from epsim.report.story import inspection_text, row_text, story_text
from epsim.story import Storyteller
from reference.config import EPConfig
from reference.edition import EditionError
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING, RANK_THEN_DOMAIN
from reference.routing.files import write_routing
from reference.routing.generate import generate_topk
from reference.topk import TopK

# deepep-ascend.md section 4.12: R=2, E=4, K=3, M=4, 16 AIVs, A=4.
IDS = (
    np.array([[0, 2, 1], [3, -1, 2], [1, 0, -1], [2, 0, 3]]),
    np.array([[1, 3, -1], [-1, -1, -1], [2, 3, 0]]),
)
SLOTS = {
    0: ((None, 0, 0), (None, None, 1), (None, 1, None), (None, 2, 2)),
    1: ((0, 0, None), (None, None, None), (None, 1, 1)),
}
GATHERS = {
    0: ((None, 0, None), (None, None, 0), (None, None, None), (None, None, 0)),
    1: ((0, None, None), (None, None, None), (None, None, 0)),
}
STREAM = {0: (0, 2, 3, 4, 6), 1: (0, 1, 3, 4, 6)}
ROWS = {
    0: ((0, None, 4), (5, 1, None), (None, 2, None), (6, None, None), (None, None, 3)),
    1: ((None, 0, None), (4, None, 1), (2, None, 5), (None, 6, None), (3, 7, None)),
}


def worked_group():
    """Return the group of the worked example."""
    return EPConfig(
        ep_size=2, num_experts=4, num_topk=3, hidden=128, num_max_tokens_per_rank=4, expert_alignment=4
    )


@pytest.fixture(scope="module")
def worked():
    """Return a storyteller of the worked example."""
    topk = TopK(num_experts=4, topk_idx=IDS)
    return Storyteller(worked_group(), topk, mode=DispatchMode(num_aivs=16), dtype="bf16")


@pytest.mark.parametrize(("rank", "token"), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)])
def test_the_worked_example_number_by_number(worked, rank, token):
    story = worked.token(rank, token)
    assert story.gid == 4 * rank + token
    records = {record.ks[-1]: record for record in story.records}
    assert [records[k].slot if k in records else None for k in range(3)] == list(SLOTS[rank][token])
    assert [records[k].gather_idx if k in records else None for k in range(3)] == list(GATHERS[rank][token])
    for record in story.records:
        assert STREAM[record.rank].index(story.gid) == record.received_row
        rows = ROWS[record.rank][record.received_row]
        assert {k: row for k, row in enumerate(rows) if row is not None} == dict(
            zip(record.ks, record.rows, strict=True)
        )
        assert (record.dispatch_bytes, record.combine_bytes) == (320, 288)
        assert record.dispatch_offset_bytes == rank * 1280 + record.slot * 320
        assert record.combine_record == record.rank * 4 + token


def test_combine_records_at_home(worked):
    """Rank 0 receives 0,2,3 from itself and 4,5,7 from rank 1; rank 1: 0,2 from rank 0 and 4,6."""
    found = {
        home: {
            src: [r.combine_record for t in range(n) for r in worked.token(home, t).records if r.rank == src]
            for src in (0, 1)
        }
        for home, n in ((0, 4), (1, 3))
    }
    assert found == {0: {0: [0, 2, 3], 1: [4, 5, 7]}, 1: {0: [0, 2], 1: [4, 6]}}


def test_the_text_of_the_worked_example(worked):
    text = story_text(worked.token(0, 3))
    for words in (
        "token 3 of rank 0 (source index 3)",
        "320 bytes cross the wire",
        "rank 1: 320 bytes; slot 2 of rank 0's region; at byte 640; sent by AIV 3, gather pair 0; "
        "received row 2; expanded rows 2 (k 0), 5 (k 2)",
        "from rank 1: 288 bytes, k 0 + k 2; group 1, record 7 of the combine region at home",
        "first at rank 1 in fp32: k 0 + k 2; rounded to bf16",
        "biases if any, then rank 0 (k 1), rank 1 (k 0 + k 2); rounded once to bf16",
    ):
        assert words in text
    assert "goes nowhere" in story_text(worked.token(1, 1))


@pytest.mark.parametrize(
    ("rank", "row", "received", "words"),
    [
        (0, 7, False, "expanded row 7 at rank 0: padding of expert 1, no token"),
        (0, 3, False, "expanded row 3 at rank 0: token 2 of rank 1, via k 2, expert 0"),
        (1, 7, False, "expanded row 7 at rank 1: token 2 of rank 1, via k 1, expert 3"),
        (1, 2, True, "received row 2 at rank 1: token 3 of rank 0, via k 2, the master"),
    ],
)
def test_a_row_leads_back(worked, rank, row, received, words):
    assert row_text(worked.row(rank, row, is_received=received)).split("\n")[0] == words


@settings(max_examples=40)
@given(
    ep_size=st.sampled_from([1, 2, 3, 5]),
    edition=st.sampled_from(["ascend", "nvidia-v2.5", "nvidia-v2"]),
    expand=st.booleans(),
    seed=st.integers(0, 50),
)
def test_every_record_and_row_leads_back_to_its_token(ep_size, edition, expand, seed):
    config = EPConfig(
        ep_size=ep_size, num_experts=3 * ep_size, num_topk=3, hidden=128, num_max_tokens_per_rank=5,
        expert_alignment=2,
    )  # fmt: skip
    topk = generate_topk(config, "uniform", tokens_per_rank=5, seed=seed, masked_ratio=0.2)
    mode = DispatchMode(edition=edition, expand=expand or edition == "ascend")
    teller = Storyteller(config, topk, mode=mode)
    for rank in range(ep_size):
        for token in range(5):
            story = teller.token(rank, token)
            assert sorted(k for r in story.records for k in r.ks) == [
                c.k for c in story.choices if c.expert >= 0
            ]
            assert [part.key for part in story.parts] == sorted(part.key for part in story.parts)
            for record in story.records:
                back = teller.row(record.rank, record.received_row, is_received=True)
                assert (back.story.gid, back.k) == (story.gid, record.ks[-1])
                for k, row in zip(record.ks, record.rows, strict=False):
                    found = teller.row(record.rank, row)
                    assert (found.story.gid, found.k, found.expert) == (
                        story.gid, k, story.choices[k].expert
                    )  # fmt: skip


def test_other_recipes_tell_another_sum():
    config = EPConfig(ep_size=4, num_experts=8, num_topk=4, hidden=128, num_max_tokens_per_rank=2)
    topk = TopK(num_experts=8, topk_idx=(np.array([[0, 6, 1, 2]]), *([np.empty((0, 4), np.int64)] * 3)))
    flat = DispatchMode(edition="nvidia-v2")
    once = Storyteller(config, topk, mode=flat, order=ONE_ROUNDING).token(0, 0)
    assert [(p.level, p.key, p.is_rounded) for p in once.parts] == [("row", k, False) for k in range(4)]
    assert "first" not in story_text(once)
    alone = {r.rank: r.combine_bytes // len(r.ks) for r in once.records}
    assert {r.rank: len(r.ks) for r in once.records} == {0: 2, 1: 1, 3: 1}
    assert len(set(alone.values())) == 1
    assert "k 0 and k 2" in story_text(once)
    hybrid = DispatchMode(edition="nvidia-v2", num_scaleup_ranks=2)
    twice = Storyteller(config, topk, mode=hybrid, order=RANK_THEN_DOMAIN).token(0, 0)
    assert [(p.level, p.key, p.ks) for p in twice.parts] == [("domain", 1, (1,)), ("domain", 3, (0, 2, 3))]
    assert [m.rank for m in twice.parts[1].members] == [0, 1]
    text = story_text(twice)
    assert "first at rank 0 in fp32: k 0 + k 2; rounded to bf16" in text
    assert "in the scale-up domain in fp32: rank 0 (k 0 + k 2), rank 1 (k 3); rounded to bf16" in text


def test_the_deduplicated_layout_has_one_row_per_rank():
    topk = TopK(num_experts=4, topk_idx=IDS)
    mode = DispatchMode(edition="nvidia-v2", expand=False)
    teller = Storyteller(worked_group(), topk, mode=mode)
    story = teller.token(0, 0)
    assert [record.rows for record in story.records] == [(), ()]
    assert "by the caller: k 0 + k 2" in story_text(story)
    assert row_text(teller.row(0, 0)).startswith(
        "received row 0 at rank 0: token 0 of rank 0, via k 2, the master"
    )


def test_ascend_refuses_what_it_lacks():
    topk = TopK(num_experts=4, topk_idx=IDS)
    with pytest.raises(EditionError, match="order"):
        Storyteller(worked_group(), topk, order=ONE_ROUNDING)
    with pytest.raises(EditionError, match="expand"):
        DispatchMode(expand=False)


@pytest.mark.parametrize(
    ("row", "received", "rule"),
    [
        (8, False, "row is 8: must be 0..7, there are 8 expanded rows at rank 1"),
        (5, True, "row is 5: must be 0..4, there are 5 received rows at rank 1"),
        (-1, False, "row is -1: must be 0..7"),
    ],
)
def test_a_row_that_does_not_exist_is_refused(worked, row, received, rule):
    with pytest.raises(InputError, match=re.escape(rule)):
        worked.row(1, row, is_received=received)


@pytest.mark.parametrize(("rank", "token"), [(2, 0), (-1, 0), (0, 4), (1, 3), (0, -1)])
def test_a_token_that_does_not_exist_is_refused(worked, rank, token):
    with pytest.raises(InputError, match="must be 0"):
        worked.token(rank, token)


def test_weights_stand_beside_their_choices():
    weights = tuple(np.arange(idx.size, dtype=np.float32).reshape(idx.shape) / 16 for idx in IDS)
    topk = TopK(num_experts=4, topk_idx=IDS, topk_weights=weights)
    story = Storyteller(worked_group(), topk).token(0, 1)
    assert [choice.weight for choice in story.choices] == [3 / 16, 4 / 16, 5 / 16]


def inspected(ids, num_experts, **options):
    """Inspect a routing given by per-rank lists of ids."""
    arrays = tuple(np.array(rank, dtype=np.int64) for rank in ids)
    config = EPConfig(
        ep_size=len(arrays),
        num_experts=num_experts,
        num_topk=arrays[0].shape[1],
        hidden=128,
        num_max_tokens_per_rank=max(map(len, arrays)),
        expert_alignment=options.pop("alignment", 1),
    )
    return inspect_routing(config, TopK(num_experts=num_experts, topk_idx=arrays), **options)


def test_g02_several_experts_on_one_rank():
    """G02: rows sent 6, choices 8, rank 4 gets one row with three experts."""
    ids = [[[147, 24, 48, 96, 86, 154, 233, 142]], *([np.empty((0, 8))] * 7)]
    found = inspected(ids, 256)
    assert (sum(found.received_rows), sum(found.expert_choices)) == (6, 8)
    assert (found.received_rows[4], found.expanded_rows[4], found.distinct_ranks[6]) == (1, 3, 1)


def test_g04_counts_of_experts_and_rows_of_ranks():
    """G04: expert counts 2,2,2,3; rank 0 receives 3 rows, rank 1 receives 4."""
    found = inspected([[[0, 1], [1, 2], [3, -1]], [[0, 3], [2, 3]]], 4, alignment=2)
    assert (found.expert_choices, found.received_rows) == ((2, 2, 2, 3), (3, 4))
    assert found.aligned_rows == (4, 6)


def test_g05_alignment_pads_an_empty_expert_to_nothing():
    """G05: counts 1, 0, 127, 129 become 128, 0, 128, 256."""
    tokens = [[0]] + [[2]] * 127 + [[3]] * 129
    found = inspected([tokens, np.empty((0, 1))], 8, alignment=128)
    assert found.aligned_rows == (512, 0)


def test_g19_a_mask_is_not_a_weight_of_zero():
    """G19: id 0 with weight 0 loads expert 0, -1 loads nothing."""
    masked, zero = inspected([[[-1, 2]], [[-1, -1]]], 4), inspected([[[0, 2]], [[-1, -1]]], 4)
    assert (masked.expert_choices[0], zero.expert_choices[0]) == (0, 1)
    assert (masked.received_rows, zero.received_rows) == ((0, 1), (1, 1))
    assert (masked.masked_share, masked.num_idle_tokens) == (0.75, 1)


@pytest.mark.parametrize(("ep_size", "ranks", "active"), [(32, 8, 1), (16, 4, 2)])
def test_g51_ranks_per_token_and_active_experts(ep_size, ranks, active):
    """G51: ids 64 (t mod 4) + 8 j reach 8 ranks at EP32 and 4 at EP16."""
    tokens = [[64 * (t % 4) + 8 * j for j in range(8)] for t in range(8)]
    found = inspected([tokens] * ep_size, 256)
    assert found.mean_distinct_ranks == ranks
    assert set(found.active_experts) == {active}
    text = inspection_text(found, "g51")
    assert f"ranks per token        {ranks} on average" in text
    assert f"active experts         {active} of {256 // ep_size} per rank" in text


def test_limits_drop_what_is_beyond_them():
    found = inspected([[[0, 1], [0, 2]], [[0, 3], [-1, -1]]], 4, expert_limit=2, rank_limit=1)
    assert (found.expert_drop.num_rows, found.expert_drop.worst) == (1, 0)
    assert (found.rank_drop.num_rows, found.rank_drop.worst) == (3, 0)
    text = inspection_text(found, "x")
    assert "a limit of 2 rows per expert drops 1 (16.7%), most at expert 0" in text
    assert "drops nothing" in inspection_text(inspected([[[0]], [[1]]], 2, expert_limit=5), "x")


def test_many_experts_are_shown_by_their_ends():
    ids = [[[e] for e in range(64) for _ in range(e)]]
    text = inspection_text(inspected(ids, 64), "x")
    assert "  ... 32 between" in text
    assert text.index("  63 63 ###") < text.index("... 32 between") < text.index("\n   0  0\n")


def test_an_empty_load_has_no_imbalance():
    found = inspected([[[-1]], [[-1]]], 2)
    assert (found.expert_imbalance, found.rank_imbalance, found.mean_distinct_ranks) == (0.0, 0.0, 0.0)


def test_a_file_tells_ranks_and_topk(tmp_path):
    write_routing(tmp_path / "r.safetensors", TopK(num_experts=4, topk_idx=IDS))
    found = load_routing(RoutingRequest(routing=str(tmp_path / "r.safetensors"), experts=4))
    assert (found.config.ep_size, found.config.num_topk, found.config.num_max_tokens_per_rank) == (2, 3, 4)
    assert [a.tolist() for a in found.topk.topk_idx] == [a.tolist() for a in IDS]


def test_a_histogram_is_sampled(tmp_path):
    (tmp_path / "loads.csv").write_text("load\n" + "1\n" * 7 + "9\n")
    request = RoutingRequest(
        routing=str(tmp_path / "loads.csv"), ep=2, experts=8, topk=2, tokens=(40, 30), seed=1
    )
    found = load_routing(request)
    assert found.topk.tokens_per_rank == (40, 30)
    counts = np.bincount(np.concatenate(found.topk.topk_idx).ravel(), minlength=8)
    assert counts.argmax() == 7
