"""What a run on DeepEP-Ascend would refuse, and what it comes close to.

R ranks, M token capacity, K top-k, H hidden, E experts, L experts of a rank, C AIVs in use.
"""

from dataclasses import dataclass
from typing import Literal

from reference.config import EPConfig, whole_number
from reference.counts import Counts
from reference.memory.sizes import Dtype, align, ascend_dispatch_record_bytes, element_bytes

Severity = Literal["error", "warning"]
"""error: the run is refused or traps; warning: within a tenth of a ceiling, or refused for some routings."""

MAX_AIVS = 64
MIN_AIVS = 16
TASK_TOKENS = 8
WQE_STATIC_BLOCKS = 65_536
WQE_RUNTIME_BLOCKS = 32_768
RECORDS_PER_SQE = 6
UBUF_MOST_BYTES = 248 * 1024
UBUF_LEAST_BYTES = 216 * 1024
DISPATCH_LIMITS = frozenset(
    {"max-ranks", "max-experts", "max-topk", "alignment-power", "min-aivs", "max-aivs", "max-rows"}
    | {"max-expanded"}
)
"""Ids of the limits that a dispatch asserts; deepep-ascend.md section 1.10."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One rule that a run breaks or nearly breaks.

    Args:
      id: short stable name.
      field: what to change.
      value: what it is.
      rule: what it must be, and who says so.
      severity: see `Severity`.
    """

    id: str
    field: str
    value: int
    rule: str
    severity: Severity


def combine_token_ceiling(ep_size: int, *, num_aivs: int = MAX_AIVS, runtime: bool = False) -> int | None:
    """Return the largest M for which combine's descriptors fit; None = no ceiling (one rank).

    Each AIV reserves 16 blocks per task of 8 tokens and peer: (R-1) ceil(ceil(M/C)/8) 16 + 4 blocks.

    Args:
      ep_size: R.
      num_aivs: C.
      runtime: False for the static bound of 65,536; True for the 32,768 blocks of the queue when one
        rank's whole capacity comes from every peer (fully one-sided routing).

    Returns:
      tokens.
      Source: deepep-ascend.md section 1.10; its printed ceilings are the test.
    """
    if ep_size < 2:
        return None
    blocks = WQE_RUNTIME_BLOCKS if runtime else WQE_STATIC_BLOCKS
    return (blocks - 4) // (16 * (ep_size - 1)) * TASK_TOKENS * num_aivs


def _ceiling(id_: str, field: str, value: int, most: int, why: str) -> list[Limit]:
    """Return a limit when the value is above the ceiling, or above nine tenths of it."""
    if value > most:
        return [
            Limit(id=id_, field=field, value=value, rule=f"must be at most {most} ({why})", severity="error")
        ]
    # A ceiling of a few units has no "near": 8 of 8 is an ordinary choice.
    if most >= 100 and 10 * value > 9 * most:
        rule = f"is close to the ceiling {most} ({why})"
        return [Limit(id=id_, field=field, value=value, rule=rule, severity="warning")]
    return []


def _broken(condition: bool, id_: str, field: str, value: int, rule: str) -> list[Limit]:
    return [Limit(id=id_, field=field, value=value, rule=rule, severity="error")] if condition else []


def _warned(condition: bool, id_: str, field: str, value: int, rule: str) -> list[Limit]:
    return [Limit(id=id_, field=field, value=value, rule=rule, severity="warning")] if condition else []


def limits(
    config: EPConfig,
    *,
    num_aivs: int = MAX_AIVS,
    dtype: Dtype = "fp8",
    num_buffer_bytes: int | None = None,
    counts: Counts | None = None,
) -> list[Limit]:
    """Return every limit that a dispatch and combine of this group would hit.

    Args:
      config: the group.
      num_aivs: C, vector cores that the kernels use.
      dtype: of dispatch.
      num_buffer_bytes: size of an existing buffer, to be checked against the calls; None = a new one.
      counts: rows of the routing, for the bounds that depend on it; None = those are only warned about.

    Returns:
      limits, errors first; empty = none.

    Raises:
      ConfigError: num_aivs below 1.
      Source: deepep-ascend.md sections 1.2, 1.4, 1.10, 3.6 and 3.7.
    """
    num_aivs = whole_number("num_aivs", num_aivs, 1)
    found = [
        *_group_limits(config),
        *_shape_limits(config, num_aivs),
        *_memory_limits(config, dtype),
        *_combine_limits(config, num_aivs, counts),
        *_dispatch_queue_limits(config, num_aivs, counts),
        *_buffer_limits(config, dtype, num_buffer_bytes),
    ]
    return sorted(found, key=lambda limit: limit.severity != "error")


def _group_limits(config: EPConfig) -> list[Limit]:
    size, experts = config.ep_size, config.num_experts
    held = config.experts_per_rank()
    uneven = bool((held != held[0]).any())
    return [
        *_broken(
            size > 1 and size % 2 == 1,
            "even-ranks",
            "ep_size",
            size,
            "must be even: spare channels pair ranks",
        ),
        *_ceiling("max-ranks", "ep_size", size, 255, "arrivals are counted in 8 bits"),
        *_ceiling("max-experts", "num_experts", experts, 512, "one dispatch thread per expert"),
        *_broken(uneven, "equal-experts", "num_experts", experts, "must be the same number on every rank"),
    ]


def _shape_limits(config: EPConfig, num_aivs: int) -> list[Limit]:
    tokens, size, alignment = config.num_max_tokens_per_rank, config.ep_size, config.expert_alignment
    local = int(config.experts_per_rank().max())
    rows = tokens * size
    worst = align(rows * min(config.num_topk, local) + (alignment - 1) * local, alignment)
    power = alignment & (alignment - 1) == 0
    return [
        *_ceiling("max-topk", "num_topk", config.num_topk, 32, "one lane of a warp per choice"),
        *_broken(not power, "alignment-power", "expert_alignment", alignment, "must be a power of two"),
        *_broken(
            num_aivs < MIN_AIVS, "min-aivs", "num_aivs", num_aivs, f"must be at least {MIN_AIVS} (launcher)"
        ),
        *_broken(
            num_aivs > MAX_AIVS, "max-aivs", "num_aivs", num_aivs, f"must be at most {MAX_AIVS} (queues)"
        ),
        *_ceiling("max-rows", "num_max_tokens_per_rank x ep_size", rows, 2**24 - 1, "24-bit row counters"),
        *_ceiling(
            "max-aligned-rows", "aligned rows", align(rows, alignment), 2**24 - 1, "24-bit row counters"
        ),
        *_ceiling("max-expanded", "expanded rows", worst, 2**31 - 1, "worst case in 32 bits"),
        *_broken(
            config.hidden % 128 != 0, "combine-hidden", "hidden", config.hidden, "must be a multiple of 128"
        ),
    ]


def _combine_limits(config: EPConfig, num_aivs: int, counts: Counts | None) -> list[Limit]:
    """Check the descriptors that one AIV writes in a combine."""
    tokens, size = config.num_max_tokens_per_rank, config.ep_size
    static = combine_token_ceiling(size, num_aivs=num_aivs)
    runtime = combine_token_ceiling(size, num_aivs=num_aivs, runtime=True)
    if static is None or runtime is None:
        return []
    found = _ceiling(
        "combine-tokens", "num_max_tokens_per_rank", tokens, static, "static descriptor bound of combine"
    )
    if counts is None:
        rule = f"above {runtime}, combine traps if one rank sends all its capacity to every other"
        found += _warned(runtime < tokens <= static, "combine-queue", "num_max_tokens_per_rank", tokens, rule)
        return found
    # Rank d returns rows[s, d] to each home rank s; its AIVs share them, tasks hold 8 of one home rank.
    rows = counts.rows.astype("float64")
    tasks = -(-rows // num_aivs)
    tasks = -(-tasks // TASK_TOKENS)
    blocks = int((tasks.sum(axis=0) - tasks.diagonal()).max()) * 16 + 4
    return found + _ceiling(
        "combine-queue", "combine blocks of an AIV", blocks, WQE_RUNTIME_BLOCKS, "queue length"
    )


def _dispatch_queue_limits(config: EPConfig, num_aivs: int, counts: Counts | None) -> list[Limit]:
    """Check the descriptors of one AIV in a dispatch: 4 blocks per six records of one target.

    With counts the AIVs are taken to share each target's rows evenly, as random routing does.
    """
    peers = config.ep_size - 1
    if peers == 0:
        return []
    if counts is not None:
        records = -(-counts.rows.astype("float64") // num_aivs)
        descriptors = -(-records // RECORDS_PER_SQE)
        blocks = int((descriptors.sum(axis=1) - descriptors.diagonal()).max()) * 4
        return _ceiling(
            "dispatch-queue", "dispatch blocks of an AIV", blocks, WQE_RUNTIME_BLOCKS, "queue length"
        )
    tokens = -(-config.num_max_tokens_per_rank // num_aivs)
    worst = 4 * (-(-tokens * min(config.num_topk, peers) // RECORDS_PER_SQE) + peers)
    rule = f"if no token stays local, dispatch needs {worst} of {WQE_RUNTIME_BLOCKS} queue blocks and traps"
    field = "num_max_tokens_per_rank"
    return _warned(worst > WQE_RUNTIME_BLOCKS, "dispatch-queue", field, config.num_max_tokens_per_rank, rule)


def _memory_limits(config: EPConfig, dtype: Dtype) -> list[Limit]:
    """Check the on-chip ring of combine's rows and the row length of the padding kernel.

    The usable size of the unified buffer is uncertain: 248 KiB is the most, 216 KiB with SIMT the least.
    """
    row, topk = 2 * config.hidden, config.num_topk
    fixed = 88 + 56 * config.ep_size + 64 * max(32, topk + 3)
    partial = row + align(4 * topk, 32)
    found: list[Limit] = []
    for ring_row, taken, need, id_ in (
        (row, fixed, topk, "combine-ring"),
        (partial, 0, min(config.ep_size, topk) + 2, "reduce-ring"),
    ):
        least, most = (min(32, (ubuf - taken) // ring_row) for ubuf in (UBUF_LEAST_BYTES, UBUF_MOST_BYTES))
        rule = f"needs {need} rows of {ring_row} bytes on chip, and {{}} fit"
        if need > most:
            found += _broken(True, id_, "hidden", config.hidden, rule.format(most))
        elif need > least:
            found += _warned(True, id_, "hidden", config.hidden, rule.format(f"{least} to {most}"))
    odd = config.hidden * element_bytes(dtype) % 256 != 0
    rule = f"with zero padding a row of {dtype} must be a multiple of 256 bytes"
    return found + _warned(odd, "padded-hidden", "hidden", config.hidden, rule)


def _buffer_limits(config: EPConfig, dtype: Dtype, num_buffer_bytes: int | None) -> list[Limit]:
    """Check the bytes of the calls against an existing buffer."""
    if num_buffer_bytes is None:
        return []
    tokens, size, topk = config.num_max_tokens_per_rank, config.ep_size, config.num_topk
    dispatch = size * tokens * ascend_dispatch_record_bytes(config.hidden, topk, dtype)
    combine = min(topk, size) * tokens * (2 * config.hidden + align(4 * topk, 32))
    unaligned = num_buffer_bytes % (2 * 2**20) != 0
    small = f"must be at least {max(dispatch, combine)} for these calls"
    return [
        *_broken(
            unaligned, "buffer-step", "num_buffer_bytes", num_buffer_bytes, "must be a multiple of 2 MiB"
        ),
        *_broken(
            num_buffer_bytes < max(dispatch, combine),
            "buffer-size",
            "num_buffer_bytes",
            num_buffer_bytes,
            small,
        ),
    ]
