"""Public bug cases (cases.md) of token limits, queues, addresses and buffer sizes, and of shared experts.

Sizes and limits are those of the Ascend 950; where a case speaks of another device or library, the part of
it that holds here is tested. Other cases are in test_cases.
"""

import numpy as np
import pytest

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch
from reference.memory.layout import (
    combine_record,
    combine_record_idx,
    combine_region_bytes,
    dispatch_record,
    receive_offset,
    receive_region_bytes,
)
from reference.memory.limits import combine_token_ceiling, limits
from reference.memory.sizes import ascend_buffer_bytes
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
from tests.reference.exchange import BF16
from tests.reference.layer import group

MIB2 = 2 * 2**20


def errors(*, ep_size, tokens, num_topk=8, **options):
    """Return id -> limit of what a 950 refuses, at the published sizes."""
    config = EPConfig(
        ep_size=ep_size,
        num_experts=2 * ep_size if ep_size > 128 else 256,
        num_topk=num_topk,
        hidden=7168,
        num_max_tokens_per_rank=tokens,
    )
    return {limit.id: limit for limit in limits(config, **options) if limit.severity == "error"}


@pytest.mark.parametrize("tokens", [255, 256, 257, 511, 512, 513])
def test_g12_a_950_has_its_own_token_limits(tokens):
    """Neither the 256 of an A2 nor the 512 of an A3 means anything; its own ceiling is exact."""
    for ep_size in (8, 16, 64, 128):
        assert errors(ep_size=ep_size, tokens=tokens) == {}
        most = combine_token_ceiling(ep_size)
        assert errors(ep_size=ep_size, tokens=most) == {}
        assert set(errors(ep_size=ep_size, tokens=most + 1)) == {"combine-tokens"}


FIRST_ROWS = [
    (2048, 1_048_576),
    (4096, 524_288),
    (5120, 419_431),
    (6144, 349_526),
    (7168, 299_594),
    (8192, 262_144),
]
"""H, first row whose elements lie beyond 31 bits."""


@pytest.mark.parametrize("whole", [int, np.int32, np.int64])
@pytest.mark.parametrize(("hidden", "row"), FIRST_ROWS)
def test_g15_addresses_are_64_bit(hidden, row, whole):
    """Without data: offsets of the rows on both sides of 2^31, also from 32-bit numbers."""
    assert (row - 1) * hidden < 2**31 <= row * hidden
    record = dispatch_record(hidden, 10, "fp8", num_scale_packs=hidden // 64)
    size = {"ep_size": whole(8), "num_max_tokens_per_rank": whole(163_840)}
    for at in (row - 1, row):
        src, slot = (whole(n) for n in divmod(at, 163_840))
        assert receive_offset(record, src_rank=src, slot=slot, **size) == at * record.num_bytes
    assert receive_region_bytes(record, **size) == 8 * 163_840 * record.num_bytes
    back = combine_record(hidden, 10)
    assert combine_region_bytes(back, num_topk=whole(10), **size) == 8 * 163_840 * back.num_bytes
    where = {"home_token": whole(1), "num_max_tokens_per_rank": whole(2**29)}
    assert combine_record_idx(group=whole(7), **where) == 7 * 2**29 + 1


def test_g15_identical_tokens_give_one_rank_a_million_rows():
    """The profiling batch of the source, 8 x 16,384 x 10: row numbers fit 32 bits, their addresses do not."""
    ids = np.tile(np.arange(10), (16_384, 1))
    config, topk = group([ids] * 8, num_experts=80)
    handle = plan_dispatch(config, topk)[0]
    assert handle.num_expanded_tokens == 1_310_720
    rows = handle.expanded_rows()
    assert (int(rows.min()), int(rows.max())) == (0, 1_310_719)
    assert int(rows.max()) * 7168 > 2**31
    assert len(np.unique(rows)) == 1_310_720
    assert errors(ep_size=8, tokens=16_384, num_topk=10) == {}


@pytest.mark.parametrize("tokens", [65_535, 65_536])
def test_g16_the_queue_check_names_the_token_count(tokens):
    """65,536 is a bound of descriptors, not of tokens: EP32 holds both, EP34 neither, by name."""
    assert errors(ep_size=32, tokens=tokens) == {}
    sizes = {"num_experts": 272, "num_topk": 8, "hidden": 7168, "num_max_tokens_per_rank": tokens}
    (found,) = (x for x in limits(EPConfig(ep_size=34, **sizes)) if x.severity == "error")
    assert (found.id, found.field, found.value) == ("combine-tokens", "num_max_tokens_per_rank", tokens)
    assert found.rule == "must be at most 63488 (static descriptor bound of combine)"
    # What counts are the tokens of a rank after the split over 8 tensor-parallel ranks.
    split = sizes | {"num_max_tokens_per_rank": tokens // 8}
    assert limits(EPConfig(ep_size=34, **split)) == []


def test_g18_all_planned_sizes_are_checked_before_deployment():
    """What passes in dispatch fails in combine, and only from some EP size on: 16,384 tokens end at EP128."""
    planned = (8, 16, 32, 64, 128, 130, 254)
    found = {size: set(errors(ep_size=size, tokens=16_384)) for size in planned}
    assert found == {size: {"combine-tokens"} if size > 128 else set() for size in planned}


def test_g37_a_shared_expert_adds_to_its_own_token_only():
    """Identity split in two halves, given as biases: 1 and 10, never 5.5 on both."""
    config, topk = group([[[-1]], [[-1]]], num_experts=2)
    x = [np.array([[1]], BF16), np.array([[10]], BF16)]
    results, handles = dispatch(config, topk, x)
    halves = ([(0.5 * rows.astype(np.float32)).astype(BF16) for rows in x],) * 2
    combined = combine(handles, [r.recv_x for r in results], order=RANK_REDUCED, bias=halves)
    assert [c.combined_x.item() for c in combined] == [1.0, 10.0]


@pytest.mark.parametrize("steps", [50, 51, 52])
def test_g55_a_small_window_is_refused_as_such(steps):
    """51 steps of 2 MiB are needed: 50 are refused with both numbers, 51 and 52 accepted."""
    tokens = 456
    need = 16 * tokens * 14_464
    size = ascend_buffer_bytes(ep_size=16, num_max_tokens_per_rank=tokens, hidden=7168, num_topk=8)
    assert (size.dispatch_bytes, size.hint_bytes) == (need, 51 * MIB2)
    found = errors(ep_size=16, tokens=tokens, dtype="bf16", num_buffer_bytes=steps * MIB2)
    if steps > 50:
        assert found == {}
        return
    (limit,) = found.values()
    assert (limit.id, limit.field, limit.value) == ("buffer-size", "num_buffer_bytes", 50 * MIB2)
    assert limit.rule == f"must be at least {need} for these calls"
