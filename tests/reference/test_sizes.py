"""Record and buffer bytes against every published number."""

import pytest

from reference.config import EPConfig
from reference.errors import ConfigError
from reference.memory.sizes import (
    ascend_buffer_bytes,
    ascend_combine_record_bytes,
    ascend_dispatch_record_bytes,
    ascend_metadata_bytes,
    nvidia_buffer_bytes,
    nvidia_combine_record_bytes,
    nvidia_dispatch_record_bytes,
    row_bytes,
)


@pytest.mark.parametrize(
    ("num_topk", "fresh", "cached"),
    [(1, 64, 32), (2, 64, 32), (4, 64, 32), (6, 96, 32), (8, 128, 32), (16, 224, 64), (32, 416, 128)],
)
def test_ascend_metadata_segment(num_topk, fresh, cached):
    assert ascend_metadata_bytes(num_topk) == fresh
    assert ascend_metadata_bytes(num_topk, fresh=False) == cached


@pytest.mark.parametrize(
    ("num_topk", "dtype", "fresh", "cached"),
    [(6, "bf16", 14432, 14368), (8, "bf16", 14464, 14368), (6, "fp8", 7488, 7424), (8, "fp8", 7520, 7424)],
)
def test_ascend_dispatch_record(num_topk, dtype, fresh, cached):
    assert ascend_dispatch_record_bytes(7168, num_topk, dtype) == fresh
    assert ascend_dispatch_record_bytes(7168, num_topk, dtype, fresh=False) == cached


# deepep-ascend.md section 1.4: R, M, H, K, fp8 -> dispatch, combine, hint.
ASCEND_TABLE = [
    (8, 4096, 7168, 6, False, 472_907_776, 353_107_968, 473_956_352),
    (8, 4096, 7168, 6, True, 252_706_816, 353_107_968, 354_418_688),
    (8, 16384, 7168, 6, False, 1_891_631_104, 1_412_431_872, 1_891_631_104),
    (8, 16384, 7168, 6, True, 1_010_827_264, 1_412_431_872, 1_413_480_448),
    (64, 4096, 7168, 8, False, 3_791_650_816, 470_810_624, 3_791_650_816),
    (64, 4096, 7168, 8, True, 2_030_043_136, 470_810_624, 2_030_043_136),
    (128, 16384, 7168, 6, False, 30_266_097_664, 1_412_431_872, 30_266_097_664),
    (8, 4096, 7168, 0, False, 483_393_536, 473_956_352, 484_442_112),
    (2, 16, 1024, 1, False, 67_584, 33_280, 2_097_152),
]


@pytest.mark.parametrize(
    ("ranks", "tokens", "hidden", "topk", "fp8", "dispatch", "combine", "hint"), ASCEND_TABLE
)
def test_ascend_buffer_table(ranks, tokens, hidden, topk, fp8, dispatch, combine, hint):
    size = ascend_buffer_bytes(
        ep_size=ranks, num_max_tokens_per_rank=tokens, hidden=hidden, num_topk=topk, use_fp8=fp8
    )
    assert (size.dispatch_bytes, size.combine_bytes, size.hint_bytes) == (dispatch, combine, hint)


# deepep-v2.md section 1.4: M, H, K, fp8, SO, SU, all NVLink, multiple reduction -> hint.
NVIDIA_VECTORS = [
    (8192, 7168, 8, False, 1, 8, True, True, 947_912_704),
    (8192, 7168, 8, True, 1, 8, True, True, 943_718_400),
    (4096, 7168, 0, False, 1, 8, True, True, 484_442_112),
    (8192, 7168, 8, True, 2, 8, True, True, 2_397_044_736),
    (8192, 7168, 8, False, 1, 16, False, True, 2_831_155_200),
    (128, 7168, 8, True, 4, 8, True, True, 148_897_792),
    (4096, 7168, 6, False, 1, 8, True, False, 473_956_352),
]


@pytest.mark.parametrize(("tokens", "hidden", "topk", "fp8", "so", "su", "nv", "mr", "hint"), NVIDIA_VECTORS)
def test_nvidia_hint_vectors(tokens, hidden, topk, fp8, so, su, nv, mr, hint):
    size = nvidia_buffer_bytes(
        num_scaleout_ranks=so,
        num_scaleup_ranks=su,
        num_max_tokens_per_rank=tokens,
        hidden=hidden,
        num_topk=topk,
        use_fp8=fp8,
        is_all_nvlink=nv,
        allow_multiple_reduction=mr,
    )
    assert size.hint_bytes == hint


def test_nvidia_direct_dispatch_over_rdma_keeps_one_more_block():
    # deepep-v2.md section 1.4: D M (R + 1) without NVLink throughout, D M R with; D = 14,464.
    fields = {"num_scaleout_ranks": 1, "num_scaleup_ranks": 16, "num_max_tokens_per_rank": 4, "hidden": 7168}
    for is_all_nvlink, blocks in ((False, 17), (True, 16)):
        size = nvidia_buffer_bytes(**fields, num_topk=8, is_all_nvlink=is_all_nvlink)
        assert size.dispatch_bytes == 14464 * 4 * blocks


def test_nvidia_records():
    # deepep-v2.md section 1.3: H = 7168, K = 8.
    assert nvidia_dispatch_record_bytes(7168, 8, "bf16", num_scale_packs=0) == 14464
    assert nvidia_dispatch_record_bytes(7168, 8, "fp8", num_scale_packs=56) == 7520
    assert nvidia_combine_record_bytes(7168, 8) == 14400


def group(num_topk):
    return EPConfig(ep_size=8, num_experts=256, num_topk=num_topk, hidden=7168, num_max_tokens_per_rank=1)


@pytest.mark.parametrize(
    ("dtype", "logical", "wire", "cached"), [("fp8", 7464, 7488, 7424), ("bf16", 14408, 14432, 14368)]
)
def test_ascend_row_bytes(dtype, logical, wire, cached):
    # deepep-ascend.md section 5.2: H = 7168, K = 6; combine 14,336 logical and 14,368 on the wire.
    row = row_bytes(group(6), dtype=dtype)
    assert (row.dispatch_logical_bytes, row.dispatch_wire_bytes) == (logical, wire)
    assert row.dispatch_cached_wire_bytes == cached
    assert (row.combine_logical_bytes, row.combine_wire_bytes) == (14336, 14368)


@pytest.mark.parametrize(
    ("num_topk", "dtype", "logical"),
    [(8, "fp8", 7488), (8, "bf16", 14432), (6, "fp8", 7464), (6, "bf16", 14408)],
)
def test_nvidia_row_bytes(num_topk, dtype, logical):
    # deepep-v2.md sections 8.2 and 8.3.
    row = row_bytes(group(num_topk), dtype=dtype, edition="nvidia-v2")
    assert row.dispatch_logical_bytes == logical
    assert row.combine_logical_bytes == 14336 + 4 * num_topk
    assert row.combine_wire_bytes == ascend_combine_record_bytes(7168, num_topk) + 32
    assert row == row_bytes(group(num_topk), dtype=dtype, edition="nvidia-v2.5")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row_bytes(group(6), dtype="fp4"), "dtype is 'fp4': must be fp8 or bf16"),
        (
            lambda: row_bytes(group(6), dtype="fp8", edition="v1"),
            "edition is 'v1': must be one of ascend, nvidia-v2.5, nvidia-v2",
        ),
        (lambda: ascend_buffer_bytes(ep_size=0, num_max_tokens_per_rank=1, hidden=1), "ep_size is 0"),
        (
            lambda: ascend_buffer_bytes(ep_size=1, num_max_tokens_per_rank=0, hidden=1),
            "num_max_tokens_per_rank",
        ),
        (
            lambda: nvidia_buffer_bytes(
                num_scaleout_ranks=1, num_scaleup_ranks=8, num_max_tokens_per_rank=1, hidden=33
            ),
            None,
        ),
        (
            lambda: nvidia_buffer_bytes(
                num_scaleout_ranks=1, num_scaleup_ranks=8, num_max_tokens_per_rank=1, hidden=3
            ),
            "hidden is 3: 4 bytes per started 32 elements must not exceed it",
        ),
    ],
)
def test_bad_size_is_refused(call, message):
    if message is None:
        assert call().hint_bytes == 2 * 2**20
        return
    with pytest.raises(ConfigError, match=message):
        call()
