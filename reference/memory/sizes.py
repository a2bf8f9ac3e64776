"""Bytes of a token record and of the communication buffer, in both editions.

R ranks, M token capacity of a rank, K top-k, H hidden, P scale packs of a token. Ascend packs are 2 bytes
(two e8m0 scales of 32 elements each), NVIDIA packs 4 bytes (one fp32 scale of 128 elements).
"""

from dataclasses import dataclass
from typing import Literal

from reference.config import EPConfig, whole_number
from reference.edition import EditionName, find_edition
from reference.errors import ConfigError

Dtype = Literal["fp8", "bf16"]

RECORD_ALIGN_BYTES = 32
HINT_ALIGN_BYTES = 2 * 2**20
WORST_TOPK = 32
"""K that sizing assumes when the caller gives num_topk = 0."""

ASCEND_PACK_BYTES = 2
NVIDIA_PACK_BYTES = 4
NVIDIA_SCALEOUT_SPARE_TOKENS = 8 * 160
"""Hybrid send slots beyond M: 8 channels of each of at most 160 SMs."""


def align(number: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-number // step) * step


def element_bytes(dtype: Dtype) -> int:
    """Return the bytes of one element on the wire.

    Raises:
      ConfigError: neither fp8 nor bf16.
    """
    if dtype not in ("fp8", "bf16"):
        raise ConfigError("dtype", dtype, "must be fp8 or bf16")
    return 1 if dtype == "fp8" else 2


def ascend_scale_packs(hidden: int, dtype: Dtype) -> int:
    """Return P of a real call: one pack per 64 elements for FP8, none for BF16.

    Source: deepep-ascend.md section 1.4 (224 B of scales, 112 packs at H = 7168).
    """
    return -(-hidden // 64) if element_bytes(dtype) == 1 else 0


def ascend_metadata_bytes(num_topk: int, *, fresh: bool = True) -> int:
    """Return the metadata segment: K fp32 weights, and when fresh K int64 ids and the int32 source index.

    Source: deepep-ascend.md section 1.4, m(K, fresh).
    """
    ids = align(8 * num_topk, RECORD_ALIGN_BYTES) + 4 if fresh else 0
    return align(4 * num_topk + ids, RECORD_ALIGN_BYTES)


def ascend_dispatch_record_bytes(
    hidden: int, num_topk: int, dtype: Dtype, *, fresh: bool = True, num_scale_packs: int | None = None
) -> int:
    """Return the bytes of one dispatched row on the wire.

    Args:
      hidden: H.
      num_topk: K.
      dtype: of the payload.
      fresh: False for a cached dispatch, which sends neither ids nor source index.
      num_scale_packs: P; None = as many as a real call sends.

    Returns:
      bytes.
      Source: deepep-ascend.md sections 1.4 and 3.4, D(elem, P, K).
    """
    packs = ascend_scale_packs(hidden, dtype) if num_scale_packs is None else num_scale_packs
    scales = align(ASCEND_PACK_BYTES * packs, RECORD_ALIGN_BYTES)
    return hidden * element_bytes(dtype) + scales + ascend_metadata_bytes(num_topk, fresh=fresh)


def ascend_combine_record_bytes(hidden: int, num_topk: int) -> int:
    """Return the bytes of one combined row on the wire: BF16 payload and K fp32 weights.

    Source: deepep-ascend.md section 1.4, Cb(K).
    """
    return 2 * hidden + align(4 * num_topk, RECORD_ALIGN_BYTES)


def ascend_dispatch_metric_bytes(hidden: int, num_topk: int, dtype: Dtype) -> int:
    """Return the logical bytes of a dispatched row: payload, scales, K int64 ids, K fp32 weights.

    A cached dispatch is measured with the same bytes, although it sends no ids.

    Source: deepep-ascend.md section 5.2.
    """
    scales = ASCEND_PACK_BYTES * ascend_scale_packs(hidden, dtype)
    return hidden * element_bytes(dtype) + scales + 12 * num_topk


def ascend_combine_metric_bytes(hidden: int) -> int:
    """Return the logical bytes of a combined row: the BF16 payload alone.

    Source: deepep-ascend.md section 5.2.
    """
    return 2 * hidden


@dataclass(frozen=True, kw_only=True)
class BufferSize:
    """Bytes that one rank's communication buffer needs.

    Args:
      dispatch_bytes: what dispatch uses.
      combine_bytes: what combine uses; both start at the same address.
      hint_bytes: the larger one, rounded up to 2 MiB: what to allocate.
    """

    dispatch_bytes: int
    combine_bytes: int
    hint_bytes: int


def _buffer(dispatch_bytes: int, combine_bytes: int) -> BufferSize:
    hint_bytes = align(max(dispatch_bytes, combine_bytes), HINT_ALIGN_BYTES)
    return BufferSize(dispatch_bytes=dispatch_bytes, combine_bytes=combine_bytes, hint_bytes=hint_bytes)


def ascend_buffer_bytes(
    *, ep_size: int, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0, use_fp8: bool = False
) -> BufferSize:
    """Return the size hint of `EPBuffer`.

    Args:
      ep_size: R.
      num_max_tokens_per_rank: M.
      hidden: H.
      num_topk: K; 0 = not known, sized for 32.
      use_fp8: sizes one byte per element and one pack per 32 elements, twice what a call sends.

    Raises:
      ConfigError: a number is out of range.
      Source: deepep-ascend.md section 1.4, checked against its table.
    """
    ep_size, tokens, hidden, topk = _size_arguments(ep_size, num_max_tokens_per_rank, hidden, num_topk)
    record = ascend_dispatch_record_bytes(
        hidden, topk, "fp8" if use_fp8 else "bf16", num_scale_packs=-(-hidden // 32) if use_fp8 else 0
    )
    combine = min(topk, ep_size) * tokens * ascend_combine_record_bytes(hidden, topk)
    return _buffer(ep_size * tokens * record, combine)


def _size_arguments(ep_size: int, tokens: int, hidden: int, topk: int) -> tuple[int, int, int, int]:
    ep_size = whole_number("ep_size", ep_size, 1)
    tokens = whole_number("num_max_tokens_per_rank", tokens, 1)
    hidden = whole_number("hidden", hidden, 1)
    return ep_size, tokens, hidden, whole_number("num_topk", topk, 0) or WORST_TOPK


def nvidia_dispatch_record_bytes(hidden: int, num_topk: int, dtype: Dtype, *, num_scale_packs: int) -> int:
    """Return the bytes of one dispatched row: payload, packs, K int32 ids, K weights, index, K links.

    Source: deepep-v2.md section 1.3, D.
    """
    payload = align(hidden * element_bytes(dtype), RECORD_ALIGN_BYTES)
    packs = align(NVIDIA_PACK_BYTES * num_scale_packs, RECORD_ALIGN_BYTES)
    return payload + packs + align(8 * num_topk + 4 * (1 + num_topk), RECORD_ALIGN_BYTES)


def nvidia_combine_record_bytes(hidden: int, num_topk: int) -> int:
    """Return the bytes of one combined row.

    Source: deepep-v2.md section 1.3, C.
    """
    return align(2 * hidden, RECORD_ALIGN_BYTES) + align(8 * num_topk, RECORD_ALIGN_BYTES)


def nvidia_dispatch_metric_bytes(hidden: int, num_topk: int, dtype: Dtype) -> int:
    """Return the logical bytes of a dispatched row: payload, one fp32 scale per 128, ids, weights.

    Source: deepep-v2.md section 8.2.
    """
    packs = -(-hidden // 128) if element_bytes(dtype) == 1 else 0
    return hidden * element_bytes(dtype) + NVIDIA_PACK_BYTES * packs + 12 * num_topk


def nvidia_combine_metric_bytes(hidden: int, num_topk: int) -> int:
    """Return the logical bytes of a combined row: BF16 payload and K fp32 weights.

    Source: deepep-v2.md section 8.3.
    """
    return 2 * hidden + 4 * num_topk


def nvidia_buffer_bytes(
    *,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_max_tokens_per_rank: int,
    hidden: int,
    num_topk: int = 0,
    use_fp8: bool = False,
    num_scale_packs: int | None = None,
    is_all_nvlink: bool = True,
    allow_multiple_reduction: bool = True,
) -> BufferSize:
    """Return the size hint of `ElasticBuffer`.

    Args:
      num_scaleout_ranks: SO; 1 = direct mode, else hybrid.
      num_scaleup_ranks: SU.
      num_max_tokens_per_rank: M.
      hidden: H.
      num_topk: K; 0 = sized for 32.
      use_fp8: one byte per element.
      num_scale_packs: P of a real call; None = with fp8 one fp32 scale per 32 elements, the worst case.
      is_all_nvlink: whether the scale-up domain is reachable by NVLink throughout.
      allow_multiple_reduction: whether a rank may sum its experts' rows before sending.

    Raises:
      ConfigError: a number is out of range, or FP8 scales would be larger than the payload.
      Source: deepep-v2.md section 1.4, checked against its test vectors.
    """
    so = whole_number("num_scaleout_ranks", num_scaleout_ranks, 1)
    su, tokens, hidden, topk = _size_arguments(num_scaleup_ranks, num_max_tokens_per_rank, hidden, num_topk)
    if 4 * -(-hidden // 32) > hidden:
        raise ConfigError("hidden", hidden, "4 bytes per started 32 elements must not exceed it")
    worst = -(-hidden // 32) if use_fp8 else 0
    packs = worst if num_scale_packs is None else num_scale_packs
    record = nvidia_dispatch_record_bytes(hidden, topk, "fp8" if use_fp8 else "bf16", num_scale_packs=packs)
    back = nvidia_combine_record_bytes(hidden, topk)
    sums = 1 if allow_multiple_reduction else topk  # rows of one token that one rank sends back
    up = min(su, topk) if allow_multiple_reduction else topk
    if so == 1:
        staging = 0 if is_all_nvlink else su * sums
        return _buffer(record * tokens * (su + (not is_all_nvlink)), back * tokens * (up + staging))
    out = min(so, topk) if allow_multiple_reduction else topk
    relay = so * (tokens + NVIDIA_SCALEOUT_SPARE_TOKENS)
    combine = back * (up * so * tokens + out * tokens + sums * relay)
    return _buffer(record * (su * so * tokens + tokens + relay), combine)


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """Bytes of one row, by operation; logical ones are the metric's, wire ones travel.

    Args:
      dispatch_logical_bytes: numerator of dispatch GB/s.
      dispatch_wire_bytes: record of a fresh dispatch.
      dispatch_cached_wire_bytes: record of a cached dispatch; None where it is not known.
      combine_logical_bytes: numerator of combine GB/s.
      combine_wire_bytes: record of a combine.
    """

    dispatch_logical_bytes: int
    dispatch_wire_bytes: int
    dispatch_cached_wire_bytes: int | None
    combine_logical_bytes: int
    combine_wire_bytes: int


def row_bytes(config: EPConfig, *, dtype: Dtype, edition: EditionName = "ascend") -> RowBytes:
    """Return all row sizes of a group.

    Args:
      config: supplies hidden and num_topk.
      dtype: of dispatch; combine is always bf16.
      edition: whose layout.

    Raises:
      ConfigError: unknown edition or dtype.
    """
    hidden, topk = config.hidden, config.num_topk
    if find_edition(edition).has_gather_idx:
        return RowBytes(
            dispatch_logical_bytes=ascend_dispatch_metric_bytes(hidden, topk, dtype),
            dispatch_wire_bytes=ascend_dispatch_record_bytes(hidden, topk, dtype),
            dispatch_cached_wire_bytes=ascend_dispatch_record_bytes(hidden, topk, dtype, fresh=False),
            combine_logical_bytes=ascend_combine_metric_bytes(hidden),
            combine_wire_bytes=ascend_combine_record_bytes(hidden, topk),
        )
    packs = -(-hidden // 128) if element_bytes(dtype) == 1 else 0
    return RowBytes(
        dispatch_logical_bytes=nvidia_dispatch_metric_bytes(hidden, topk, dtype),
        dispatch_wire_bytes=nvidia_dispatch_record_bytes(hidden, topk, dtype, num_scale_packs=packs),
        dispatch_cached_wire_bytes=None,
        combine_logical_bytes=nvidia_combine_metric_bytes(hidden, topk),
        combine_wire_bytes=nvidia_combine_record_bytes(hidden, topk),
    )
