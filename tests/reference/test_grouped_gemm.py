"""A grouped GEMM consumes the expanded layout by its psums, and combine of its rows is the dense layer."""

import dataclasses

import numpy as np
import pytest

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from reference.order import RANK_REDUCED
from tests.reference.exchange import BF16, FP8, dyadic_weights, random_topk

BF16_UNIT = 2.0**-8  # unit roundoff: half an ulp of 1
FP32_UNIT = 2.0**-24


def grouped_gemm(result, handle, experts, dequantise):
    """Return y [X, H]: each block's rows times its expert, blocks found by the psums; padding NaN."""
    y = np.full((handle.num_rows, experts[0].shape[1]), np.nan, dtype=np.float64)
    alignment, start = handle.expert_alignment, 0
    for local, end in enumerate(handle.psum_num_recv_tokens_per_expert.tolist()):
        rows = slice(start, end)
        x = dequantise(result.recv_x[rows], None if result.recv_scales is None else result.recv_scales[rows])
        weighted = result.recv_topk_weights[rows, None].astype(np.float64)
        y[rows] = (x @ experts[local]) * weighted
        start = -(-end // alignment) * alignment
    return y


def dense_moe(topk, x, experts):
    """Return, per rank, (sum, sum of magnitudes) of every token's weighted expert outputs in float64."""
    sums = []
    for rank, idx in enumerate(topk.topk_idx):
        total = np.zeros((2, len(idx), experts[0].shape[1]))
        for token, k in zip(*np.nonzero(idx >= 0), strict=True):
            term = (x[rank][token] @ experts[idx[token, k]]) * float(topk.topk_weights[rank][token, k])
            total[0, token] += term
            total[1, token] += abs(term)
        sums.append(total)
    return sums


def from_fp32_scales(codes, scales):
    """Dequantise e4m3 with one fp32 scale per 128 columns."""
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 128, axis=1)


def from_packed_e8m0(codes, packs):
    """Dequantise e4m3 with e8m0 scales of 32 columns, two bytes to an int16 pack, lower columns first."""
    exponents = np.ascontiguousarray(packs).view(np.uint8).astype(np.float64) - 127
    return codes.astype(np.float64) * np.repeat(2.0**exponents, 32, axis=1)


FORMS = {"nvidia-v2": from_fp32_scales, "ascend": from_packed_e8m0}


def gemm_case(edition, *, exact, seed=0):
    """Return all of one grouped-GEMM case: config, topk, codes, scales, experts."""
    rng = np.random.default_rng(seed)
    config = EPConfig(
        ep_size=3, num_experts=9, num_topk=4, hidden=128, num_max_tokens_per_rank=11, expert_alignment=8
    )
    topk = random_topk(config, rng, tokens=(11, 0, 7), masked=0.2)
    if exact:
        topk = dataclasses.replace(topk, topk_weights=tuple(dyadic_weights(i) for i in topk.topk_idx))
        # One non-zero column per token and power-of-two weights: every product and every sum is exact.
        codes = [np.eye(128)[rng.integers(0, 128, n)].astype(FP8) for n in topk.tokens_per_rank]
        experts = [rng.integers(0, 4, (128, 5)).astype(np.float64) for _ in range(9)]
    else:
        codes = [rng.uniform(-200, 200, (n, 128)).astype(FP8) for n in topk.tokens_per_rank]
        experts = [rng.standard_normal((128, 5)) for _ in range(9)]
    if edition == "ascend":
        scales = [rng.integers(120, 124, (n, 4), dtype=np.uint8).view(np.int16) for n in topk.tokens_per_rank]
    else:
        scales = [
            np.float32(2.0) ** rng.integers(-3, 1, (n, 1)).astype(np.float32) for n in topk.tokens_per_rank
        ]
    if exact and edition == "ascend":
        scales = [np.full_like(s, 127 * 256 + 127) for s in scales]
    return config, topk, codes, scales, experts


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("edition", FORMS)
def test_grouped_gemm_then_combine_is_the_dense_layer(edition, exact, column_major):
    """Bitwise with exact sums; else within the bound of the roundings that are made."""
    dequantise = FORMS[edition]
    config, topk, codes, scales, experts = gemm_case(edition, exact=exact)
    mode = DispatchMode(edition=edition)
    results, handles = dispatch(
        config, topk, codes, scales=scales, mode=mode, column_major_scales=column_major
    )
    y = [
        grouped_gemm(r, h, experts[3 * h.rank : 3 * h.rank + 3], dequantise).astype(BF16)
        for r, h in zip(results, handles, strict=True)
    ]
    x = [dequantise(c, s) for c, s in zip(codes, scales, strict=True)]
    # Roundings on the longest path: a row to bf16, up to K fp32 sums, a rank sum to bf16, the final cast.
    growth = (1 + BF16_UNIT) ** 3 * (1 + FP32_UNIT) ** config.num_topk - 1
    num_rounded = 0
    for result, (total, magnitude) in zip(
        combine(handles, y, order=RANK_REDUCED), dense_moe(topk, x, experts), strict=True
    ):
        combined = result.combined_x.astype(np.float64)
        if exact:
            np.testing.assert_array_equal(combined, total)
            continue
        assert (abs(combined - total) <= growth * magnitude).all()
        num_rounded += np.count_nonzero(combined != total)
    assert exact == (num_rounded == 0), "a case without rounding would prove nothing"
