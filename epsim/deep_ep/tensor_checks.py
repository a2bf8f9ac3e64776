"""Checks of one tensor argument each, as the native code of `deep_ep` makes them.

n tokens of this rank, H hidden, K top-k, P scale packs, L local experts.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from epsim.deep_ep.arrays import array_of
from epsim.deep_ep.errors import HostCheckError, UndefinedError, raised_as
from epsim.deep_ep.handle import EPHandle
from reference.config import whole_number
from reference.edition import ASCEND, Edition

ELEMENTS_PER_PACK = 32
"""The finest scales that size hints allow for; deepep-ascend.md section 1.4, deepep-v2.md section 1.4."""
_PACKS = {2: torch.int16, 4: torch.int32}
Payload: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def listed(name: str, tensors: Tensors) -> list[torch.Tensor]:
    """Return one tensor or several as a list.

    Raises:
      HostCheckError: neither, or something else among them.
    """
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    if not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise HostCheckError(name, type(tensors).__name__, "must be a tensor or a sequence of tensors")
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise HostCheckError(f"{name}[{number}]", type(tensor).__name__, "must be a tensor")
    return list(tensors)


def check_flags(**flags: object) -> None:
    """Refuse options that are not True or False: a text such as 'no' would count as True.

    Raises:
      HostCheckError: names the first of them.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise HostCheckError(name, value, "must be True or False")


def check_num_sms(num_sms: object, most: int | None = None) -> None:
    """Refuse what is no number of cores, where its value has no meaning.

    Args:
      num_sms: 0 = all.
      most: cores that there are; None = any number is ignored.

    Raises:
      HostCheckError: not a whole number, or out of range.
    """
    with raised_as(HostCheckError):
        count = whole_number("num_sms", num_sms, 0)
    if most is not None and count > most:
        raise HostCheckError("num_sms", count, f"there are {most} cores")


def check_tensor(
    name: str,
    value: Any,  # noqa: ANN401 - judged here
    *,
    dim: int | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return a contiguous CPU tensor of `dim` dimensions, None = any number of them.

    Raises:
      HostCheckError: something else.
    """
    if not isinstance(value, torch.Tensor):
        raise HostCheckError(name, type(value).__name__, "must be a tensor")
    if value.device.type != "cpu":
        raise HostCheckError(name, str(value.device), "must be on the CPU")
    if dim not in (None, value.dim()) or not value.is_contiguous():
        found = f"shape {tuple(value.shape)}, strides {value.stride()}"
        rule = "must be contiguous" if dim is None else f"must have {dim} dimensions and be contiguous"
        raise HostCheckError(name, found, rule)
    if dtype is not None and value.dtype != dtype:
        raise HostCheckError(name, str(value.dtype), f"must be {dtype}")
    return value


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Refuse another shape.

    Raises:
      HostCheckError: it has one.
    """
    if tuple(tensor.shape) != shape:
        raise HostCheckError(f"{name}.shape", tuple(tensor.shape), f"must be {shape}")


def check_payload(x: Payload, edition: Edition) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (data [n, H], scales [n, P] or None) of a dispatch.

    Raises:
      HostCheckError: a kind, dtype, shape or stride that the edition does not take.
      UndefinedError: data of another dtype (NVIDIA), more packs than a buffer is sized for, or none.
    """
    if not isinstance(x, tuple):
        if isinstance(x, list):
            raise HostCheckError("x", "a list", "data with scales must be a tuple; a list is not recognised")
        return check_tensor("x", x, dim=2, dtype=torch.bfloat16), None
    if len(x) != 2:
        raise HostCheckError("x", f"a tuple of {len(x)}", "must be (data, scales)")
    is_ascend = edition.has_gather_idx
    data = check_tensor("x[0]", x[0], dim=2, dtype=torch.float8_e4m3fn if is_ascend else None)
    if data.dtype != torch.float8_e4m3fn:
        raise UndefinedError(
            "x[0]", str(data.dtype), "must be torch.float8_e4m3fn, whose bytes it would pass for"
        )
    scales = x[1]
    if not isinstance(scales, torch.Tensor) or scales.dim() != 2 or scales.device.type != "cpu":
        raise HostCheckError("x[1]", type(scales).__name__, "must be a CPU tensor of 2 dimensions")
    if scales.shape[0] != data.shape[0]:
        raise HostCheckError(
            "x[1].shape", tuple(scales.shape), f"must have {data.shape[0]} rows, as the data"
        )
    if scales.element_size() != edition.scale_pack_bytes:
        pack = _PACKS[edition.scale_pack_bytes]
        rule = f"must have elements of {edition.scale_pack_bytes} bytes: give scales.view({pack})"
        raise HostCheckError("x[1].dtype", str(scales.dtype), rule)
    _check_scale_width(scales.shape[1], data.shape[1])
    if is_ascend and scales.numel() and 1 not in scales.stride():
        raise HostCheckError("x[1].strides", scales.stride(), "one of them must be 1")
    return data, scales


def _check_scale_width(num_packs: int, hidden: int) -> None:
    """Refuse what no buffer is sized for; upstream takes any P that happens to fit."""
    most = -(-hidden // ELEMENTS_PER_PACK)
    if not 1 <= num_packs <= most:
        rule = f"hidden {hidden} has 1 to {most}, at most one per {ELEMENTS_PER_PACK} elements"
        raise UndefinedError("x[1].shape", f"{num_packs} packs per row", rule)


def check_topk_weights(weights: torch.Tensor, shape: tuple[int, int], rank: int) -> torch.Tensor:
    """Return [n, K] float32 weights of a dispatch.

    Raises:
      HostCheckError: another shape or dtype.
      UndefinedError: NaN, which would travel unnoticed; names rank, token and column.
    """
    check_tensor("topk_weights", weights, dim=2, dtype=torch.float32)
    check_shape("topk_weights", weights, shape)
    bad = np.isnan(array_of(weights))
    if bad.any():
        token, k = np.argwhere(bad)[0]
        field = f"topk_weights[rank {rank}, token {token}, column {k}]"
        raise UndefinedError(field, float("nan"), "must be a number")
    return weights


def check_stats(stats: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    """Return [L] int32 counts to add to.

    Raises:
      HostCheckError: another shape or dtype.
    """
    name = "cumulative_local_expert_recv_stats"
    check_tensor(name, stats, dim=1, dtype=torch.int32)
    check_shape(name, stats, (num_local_experts,))
    return stats


def check_is_handle(handle: Any, edition: Edition) -> EPHandle:  # noqa: ANN401 - judged here
    """Return a handle whose tensors have the form of an edition.

    Raises:
      HostCheckError: no handle.
      UndefinedError: another edition's; its columns and slots would be read as something else.
    """
    if not isinstance(handle, EPHandle):
        raise HostCheckError("handle", type(handle).__name__, "must be the handle of a dispatch")
    made_by = handle.edition
    if made_by is None and handle.dst_gsge_idx is not None and not edition.has_gather_idx:
        made_by = ASCEND.name  # by hand, with a tensor that no other edition has
    if made_by not in (None, edition.name):
        rule = f"this buffer is of edition {edition.name}, which lays handles out in its own way"
        raise UndefinedError("handle", f"of edition {made_by}", rule)
    return handle


def check_handle(
    value: Any,  # noqa: ANN401 - judged here
    rank: int,
    num_ranks: int,
    edition: Edition,
) -> EPHandle:
    """Return a handle of this rank whose tensors have the shapes that its numbers say.

    Raises:
      HostCheckError: no handle, one of another group, or a tensor that is missing or does not fit.
      UndefinedError: another edition's handle, or another rank's, for instance one that was sent from there.
      StaleHandleError: its topk_idx was written to.
    """
    handle = check_is_handle(value, edition)
    if handle.rank not in (None, rank):
        rule = f"this is rank {rank}; every rank gives the handle that its own dispatch returned"
        raise UndefinedError("handle", f"of rank {handle.rank}", rule)
    num_tokens, num_topk = handle.topk_idx.shape
    num_local = handle.num_experts // num_ranks
    shapes = {
        "psum_num_recv_tokens_per_rank": (num_ranks,),
        "psum_num_recv_tokens_per_expert": (num_local,),
        "num_unaligned_recv_tokens_per_expert": (num_local,),
        "recv_src_metadata": (handle.num_recv_tokens, num_topk + 2),
        "dst_buffer_slot_idx": (num_tokens, num_topk),
    }
    if edition.has_gather_idx:
        shapes["dst_gsge_idx"] = (num_tokens, num_topk)
    for name, shape in shapes.items():
        tensor = check_tensor(f"handle.{name}", getattr(handle, name), dim=len(shape), dtype=torch.int32)
        check_shape(f"handle.{name}", tensor, shape)
    return handle


def check_biases(bias: Any, shape: tuple[int, int]) -> tuple[torch.Tensor, ...]:  # noqa: ANN401 - judged here
    """Return the biases of a combine, each [n, H] bf16.

    Raises:
      UndefinedError: a list, which upstream ignores silently.
      HostCheckError: another number, shape or dtype.
    """
    if bias is None:
        return ()
    if isinstance(bias, list):
        raise UndefinedError("bias", "a list", "must be a tensor or a tuple of two; a list would be ignored")
    biases = bias if isinstance(bias, tuple) else (bias,)
    if isinstance(bias, tuple) and len(bias) != 2:
        raise HostCheckError("bias", f"a tuple of {len(bias)}", "must be a tensor or a tuple of two")
    for number, tensor in enumerate(biases):
        check_tensor(f"bias[{number}]", tensor, dim=2, dtype=torch.bfloat16)
        check_shape(f"bias[{number}]", tensor, shape)
    return biases
