"""Dispatch: every token to every rank that holds one of its experts. All ranks at once; payload is bytes.

R ranks, T tokens of a rank, K top-k, L local experts, P scale packs, W payload columns, M token capacity,
N received rows, X expanded rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reference.arguments import check_each, check_type
from reference.config import EPConfig
from reference.deliver import Cargo, Payload, deliver
from reference.errors import ConfigError
from reference.formats.dtypes import is_float
from reference.handle import DispatchMode, Handle, check_group
from reference.homes import find_homes
from reference.placement import plan_dispatch
from reference.results import DispatchResult
from reference.topk import TopK


def dispatch(
    config: EPConfig,
    topk: TopK,
    x: Payload,
    *,
    scales: Payload | None = None,
    mode: DispatchMode | None = None,
    zero_padding: bool = False,
    column_major_scales: bool = False,
    emit_expert_ids: bool = False,
    stats: Sequence[npt.NDArray[np.int32]] | None = None,
) -> tuple[tuple[DispatchResult, ...], tuple[Handle, ...]]:
    """Send every token once to each rank that holds one of its experts, and lay the rows out there.

    Args:
      config: the group.
      topk: routing in physical ids; its weights, if any, travel verbatim and are never applied.
      x: per rank [T, W], C order, elements of 1, 2, 4 or 8 bytes; only the bytes matter. Floats must be those
        that the edition takes; integers pass for the bits of any.
      scales: per rank [T, P], any strides, elements of the edition's pack size; None = no scales.
      mode: the layout; None = `DispatchMode()`, the Ascend one.
      zero_padding: rows of alignment gaps are zero in payload, scales and weights; else undefined.
      column_major_scales: recv_scales has strides (1, X), X padded to 4 in NVIDIA editions.
      emit_expert_ids: also return the local expert of each expanded row (NVIDIA V2.5).
      stats: per rank [L] int32 counts so far; the results hold them plus this dispatch's unaligned counts.

    Returns:
      (results, handles), one of each per rank.

    Raises:
      ConfigError: an argument has another type, or an array does not fit the routing or its neighbours; names
        field, rank and value.
      EditionError: the edition lacks what was asked for.
      Source: deepep-ascend.md section 1.5; deepep-v2.md section 2.
    """
    mode = DispatchMode() if mode is None else mode
    check_type("config", config, EPConfig)
    check_type("topk", topk, TopK)
    check_type("mode", mode, DispatchMode)
    topk.check_against(config)
    cargo = Cargo(
        x=x,
        scales=scales,
        weights=topk.topk_weights,
        zero_padding=zero_padding,
        column_major_scales=column_major_scales,
        emit_expert_ids=emit_expert_ids,
    )
    _check_cargo(mode, topk.tokens_per_rank, cargo)
    totals = _checked_stats(config, stats)
    handles = plan_dispatch(config, topk, mode=mode)
    results = deliver(handles, cargo)
    if totals is not None:
        results = tuple(_with_stats(r, h, s) for r, h, s in zip(results, handles, totals, strict=True))
    return results, handles


def dispatch_cached(
    handles: Sequence[Handle],
    x: Payload,
    *,
    scales: Payload | None = None,
    topk_weights: Payload | None = None,
    zero_padding: bool = False,
    column_major_scales: bool = False,
    expand: bool | None = None,
) -> tuple[DispatchResult, ...]:
    """Send other rows over the routing of an earlier dispatch, to the same places; the backward of combine.

    No counts are exchanged and the handles stay as they are. Payload dtype and columns may differ from the
    first call's.

    Args:
      handles: of one dispatch, by rank.
      x: per rank [T, W], as for `dispatch`.
      scales: per rank [T, P], as for `dispatch`.
      topk_weights: per rank [T, K] float32; None = no weights, whatever the first call had.
      zero_padding: as for `dispatch`.
      column_major_scales: as for `dispatch`.
      expand: what the caller believes the layout to be; None = the handles'.

    Returns:
      One result per rank.

    Raises:
      ConfigError: the handles do not belong together, or an array or `expand` does not fit them.
      StaleHandleError: a routing array was written to since.
      Source: deepep-ascend.md section 1.5; deepep-v2.md section 2.8.
    """
    check_each("handles", handles, Handle)
    handles = tuple(handles)
    check_group(handles)
    find_homes(handles)
    mode = handles[0].mode
    if expand is not None and expand != mode.expand:
        raise ConfigError("expand", expand, f"the handle's layout has expand = {mode.expand}")
    tokens = tuple(h.topk_idx.shape[0] for h in handles)
    if topk_weights is not None:
        _check_columns("topk_weights", topk_weights, tokens)
        shape = (handles[0].config.num_topk, np.dtype(np.float32))
        if (topk_weights[0].shape[1], topk_weights[0].dtype) != shape:
            rule = f"must be float32 with {shape[0]} columns"
            raise ConfigError("topk_weights", (topk_weights[0].shape, topk_weights[0].dtype), rule)
    cargo = Cargo(
        x=x,
        scales=scales,
        weights=topk_weights,
        zero_padding=zero_padding,
        column_major_scales=column_major_scales,
    )
    _check_cargo(mode, tokens, cargo)
    return deliver(handles, cargo)


def _check_cargo(mode: DispatchMode, tokens: tuple[int, ...], cargo: Cargo) -> None:
    rules = mode.rules
    _check_columns("x", cargo.x, tokens)
    for rank, array in enumerate(cargo.x):
        if not array.flags.c_contiguous:
            raise ConfigError(f"x[rank {rank}].strides", array.strides, "must be contiguous, row by row")
    dtype, floats = cargo.x[0].dtype, rules.float_payloads
    if floats is not None and is_float(dtype) and str(dtype) not in floats:
        raise rules.refuse("x.dtype", str(dtype), f"takes {' and '.join(floats)}, or integers for their bits")
    if cargo.scales is not None:
        _check_columns("scales", cargo.scales, tokens)
        if cargo.scales[0].dtype.itemsize != rules.scale_pack_bytes:
            rule = f"takes scale packs of {rules.scale_pack_bytes} bytes"
            raise rules.refuse("scales.dtype", cargo.scales[0].dtype, rule)
    if cargo.zero_padding and not mode.expand:
        raise ConfigError("zero_padding", True, "only an expanded layout has padding")
    if cargo.column_major_scales and cargo.scales is None:
        raise ConfigError("column_major_scales", True, "there are no scales")
    if cargo.emit_expert_ids and not (rules.has_expert_ids and mode.expand):
        raise rules.refuse("emit_expert_ids", True, "does not return the experts of rows in this layout")


def _check_columns(name: str, arrays: Payload, tokens: tuple[int, ...]) -> None:
    check_each(name, arrays, np.ndarray)
    if len(arrays) != len(tokens):
        raise ConfigError(name, f"{len(arrays)} ranks", f"the routing has {len(tokens)}")
    for rank, (array, count) in enumerate(zip(arrays, tokens, strict=True)):
        if array.ndim != 2 or array.shape[0] != count:
            rule = f"must have the shape [tokens, columns], the routing has {count} tokens here"
            raise ConfigError(f"{name}[rank {rank}].shape", array.shape, rule)
        if (array.shape[1], array.dtype) != (arrays[0].shape[1], arrays[0].dtype):
            rule = f"rank 0 has {arrays[0].shape[1]} columns of {arrays[0].dtype}"
            raise ConfigError(f"{name}[rank {rank}]", f"{array.shape[1]} columns of {array.dtype}", rule)


def _checked_stats(
    config: EPConfig, stats: Sequence[npt.NDArray[np.int32]] | None
) -> Sequence[npt.NDArray[np.int32]] | None:
    if stats is None:
        return None
    check_each("stats", stats, np.ndarray)
    if len(stats) != config.ep_size:
        raise ConfigError("stats", f"{len(stats)} ranks", f"ep_size is {config.ep_size}")
    for rank, (array, count) in enumerate(zip(stats, config.experts_per_rank().tolist(), strict=True)):
        if array.shape != (count,) or array.dtype != np.int32:
            rule = f"must be int32 [{count}], one count per local expert"
            raise ConfigError(f"stats[rank {rank}]", (array.shape, array.dtype), rule)
    return stats


def _with_stats(result: DispatchResult, handle: Handle, stats: npt.NDArray[np.int32]) -> DispatchResult:
    fields = vars(result) | {
        "cumulative_local_expert_recv_stats": stats + handle.num_unaligned_recv_tokens_per_expert
    }
    return DispatchResult(**fields)
