"""Captures made from the reference: what a right run would have dumped, for tests and for learning the tools.

R ranks, T tokens of a rank, K top-k, H hidden, P scale packs, M token capacity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.capture import Capture, CaptureGroup, CaptureOptions
from epsim.debug.files import BF16, FP8, Arrays
from reference.combine import combine
from reference.dispatch import dispatch
from reference.handle import DispatchMode, Handle
from reference.results import DispatchResult
from reference.routing.generate import generate_topk
from reference.topk import TopK

PerRank = Sequence[npt.NDArray[Any]]

HANDLE_FIELDS = (
    "dst_buffer_slot_idx",
    "dst_gsge_idx",
    "psum_num_recv_tokens_per_rank",
    "num_unaligned_recv_tokens_per_expert",
    "psum_num_recv_tokens_per_expert",
    "recv_src_metadata",
)


def reference_capture(
    group: CaptureGroup,
    topk: TopK,
    x: PerRank,
    *,
    options: CaptureOptions | None = None,
    sf: PerRank | None = None,
    bias: tuple[PerRank, ...] = (),
    with_combine: bool = True,
    arrival_seed: int | None = None,
) -> Capture:
    """Dispatch, let stand-in experts work, combine, and keep everything.

    Args:
      group: the group.
      topk: routing; its weights travel both ways.
      x: per rank [T, H] in the dtype of the options.
      options: of the calls.
      sf: per rank [T, P] scales.
      bias: up to two, each per rank [T, H] bf16.
      with_combine: whether to go on to combine; the experts multiply what they get by 1.5 and add their row's
        place, so that no two rows look alike.
      arrival_seed: shuffles what the contract leaves open, as a real run does; None = canonical order.

    Raises:
      ConfigError: the arrays, the routing and the group do not fit each other.
    """
    options = CaptureOptions() if options is None else options
    config, canonical = group.config(), options.mode()
    mode = DispatchMode(
        **vars(canonical) | {"arrival_seed": arrival_seed, "deterministic": options.deterministic}
    )
    padded = options.zero_padding and mode.expand
    results, handles = dispatch(config, topk, x, scales=sf, mode=mode, zero_padding=padded)
    ranks: list[Arrays] = [{"topk_idx": idx, "x": rows} for idx, rows in zip(topk.topk_idx, x, strict=True)]
    for rank, arrays in enumerate(ranks):
        if topk.topk_weights is not None:
            arrays["topk_weights"] = topk.topk_weights[rank]
        if sf is not None:
            arrays["sf"] = sf[rank]
        arrays |= dispatch_arrays(results[rank], handles[rank])
        arrays |= {f"bias_{i}": rows[rank] for i, rows in enumerate(bias)}
    if with_combine:
        _add_combine(ranks, results, handles, options, bias)
    return Capture(group=group, options=options, ranks=tuple(ranks))


def dispatch_arrays(result: DispatchResult, handle: Handle) -> Arrays:
    """Return what one rank has after dispatch, under the names of a capture."""
    found: dict[str, Any] = {name: getattr(handle, name) for name in HANDLE_FIELDS}
    if handle.mode.cpu_sync:
        counts = np.array(handle.num_recv_tokens_per_expert_list, dtype=np.int64)
        found["num_recv_tokens_per_expert_list"] = counts
    found |= {
        "recv_x": result.recv_x,
        "recv_sf": result.recv_scales,
        "recv_topk_idx": result.recv_topk_idx,
        "recv_topk_weights": result.recv_topk_weights,
    }
    return {name: array for name, array in found.items() if array is not None}


def _add_combine(
    ranks: list[Arrays],
    results: Sequence[DispatchResult],
    handles: Sequence[Handle],
    options: CaptureOptions,
    bias: tuple[PerRank, ...],
) -> None:
    y = [_expert_rows(result.recv_x) for result in results]
    weights = [result.recv_topk_weights for result in results]
    order = options.reduction_order(handles[0].config)
    kept = [w for w in weights if w is not None and (order.in_rank or not options.expand)]
    given = kept if len(kept) == len(ranks) else None
    back = combine(handles, y, order=order, topk_weights=given, bias=bias)
    for rank, arrays in enumerate(ranks):
        arrays |= {"combine_x": y[rank], "combined_x": back[rank].combined_x}
        combined = back[rank].combined_topk_weights
        if given is not None and combined is not None:
            arrays |= {"combine_topk_weights": given[rank], "combined_topk_weights": combined}


def _expert_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what the stand-in experts make of received rows, undefined ones included."""
    with np.errstate(invalid="ignore"):
        place = np.arange(len(rows), dtype=np.float32)[:, None] % np.float32(7)
        return np.ascontiguousarray((rows.astype(np.float32) * np.float32(1.5) + place).astype(BF16))


def example_capture(
    group: CaptureGroup,
    *,
    routing: str = "uniform",
    tokens: int | Sequence[int] | None = None,
    seed: int = 0,
    options: CaptureOptions | None = None,
    num_biases: int = 0,
    masked_ratio: float = 0.0,
    arrival_seed: int | None = None,
) -> Capture:
    """Make a capture out of nothing but numbers: random routing, weights, tokens, scales and biases.

    Args:
      group: the group.
      routing: a law, see `generate.parse_routing`.
      tokens: per rank; None = the capacity.
      seed: of everything.
      options: of the calls; fp8 tokens come with 2-byte scale packs (4 bytes in NVIDIA editions).
      num_biases: 0 to 2.
      masked_ratio: chance that a choice is masked.
      arrival_seed: see `reference_capture`.

    Raises:
      ConfigError: a number is out of range.
    """
    options = CaptureOptions() if options is None else options
    count = group.num_max_tokens_per_rank if tokens is None else tokens
    topk = generate_topk(
        group.config(),
        routing,
        tokens_per_rank=count,
        seed=seed,
        masked_ratio=masked_ratio,
        with_weights=True,
    )
    draws = np.random.default_rng(seed)
    shapes = [(number, group.hidden) for number in topk.tokens_per_rank]
    x, scales = _payload(draws, shapes, options)
    biases = [[draws.normal(size=shape).astype(BF16) for shape in shapes] for _ in range(num_biases)]
    return reference_capture(
        group, topk, x, options=options, sf=scales, bias=tuple(biases), arrival_seed=arrival_seed
    )


def _payload(
    draws: np.random.Generator, shapes: list[tuple[int, int]], options: CaptureOptions
) -> tuple[PerRank, PerRank | None]:
    """Draw tokens, and for fp8 their scale packs."""
    dtype = FP8 if options.dtype == "fp8" else BF16
    x = [draws.normal(size=shape).astype(np.float32).astype(dtype) for shape in shapes]
    if options.dtype != "fp8":
        return x, None
    packs = np.dtype(f"i{options.mode().rules.scale_pack_bytes}")
    limit = np.iinfo(packs).max
    return x, [draws.integers(limit, size=(n, -(-h // 64)), dtype=packs) for n, h in shapes]
