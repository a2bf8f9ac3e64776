"""Casts, byte counts and small arithmetic of upstream's tests, on CPU tensors.

T rows (tokens), H hidden, G = ceil(H / 128) groups of a row, P scale packs of a row, E experts.
Source: deepep-v2.md section 4.
"""

from typing import Any

import torch

from epsim.deep_ep.arrays import array_of, tensor_of
from reference.errors import ConfigError
from reference.formats import quantize
from reference.formats.recipes import Arithmetic, ScaleName

__all__ = [
    "align",
    "calc_diff",
    "ceil_div",
    "count_bytes",
    "create_grouped_scores",
    "hash_tensor",
    "hash_tensors",
    "inplace_unique",
    "per_token_cast_back",
    "per_token_cast_to_fp8",
    "safe_div",
]


def ceil_div(x: int, y: int) -> int:
    """Return x / y rounded up; y is positive."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """Return the smallest multiple of y that is at least x."""
    return ceil_div(x, y) * y


def safe_div(a: float, b: float) -> float:
    """Return a / b, and 0 for 0 / 0.

    Raises:
      ZeroDivisionError: b is 0 and a is not.
    """
    return 0.0 if a == 0 and b == 0 else a / b


def per_token_cast_to_fp8(
    x: torch.Tensor, *, arithmetic: Arithmetic = "ieee", scale: ScaleName = "fp32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows to e4m3fn by groups of 128.

    Args:
      x: [T, H] bf16, float16 or float32.
      arithmetic: "ieee" divides as IEEE says; "reciprocal" has the bits of upstream's helper, which torch
        evaluates as a reciprocal and a product: a quarter of the multipliers differ by one ulp. Whoever
        compares bytes with a capture from a device needs the second.
      scale: "fp32", or "e8m0" for powers of two, rounded up.

    Returns:
      codes [T, H] float8_e4m3fn; scales [T, G] float32 or float8_e8m0fnu. Both contiguous.

    Raises:
      ConfigError: another shape or dtype, or an unknown name.
      Source: deepep-v2.md section 4; tooling.md section 0.
    """
    codes, scales = quantize.per_token_cast_to_fp8(array_of(x), arithmetic=arithmetic, scale=scale)
    return tensor_of(codes), tensor_of(scales)


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """Turn fp8 rows and their scales into bf16: bf16(float32(code) * scale).

    Args:
      x_fp8: [T, H] float8_e4m3fn; H may be 0.
      x_scales: any strides: [T, G] float32; [T, 2 G] int16, float32 in halves; [T, ceil(G / 4)] int32 or
        [T, ceil(G / 2)] int16 of e8m0 bytes, of which byte b counts as the float32 with bits b << 23.

    Returns:
      [T, H] bf16.

    Raises:
      ConfigError: codes or scales of another shape or dtype.
    """
    if not x_fp8.numel():
        return x_fp8.to(torch.bfloat16)
    return tensor_of(quantize.per_token_cast_back(array_of(x_fp8), array_of(x_scales)))


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return 1 - 2 sum(X Y) / sum(X^2 + Y^2) with X = x + 1 and Y = y + 1 in float64.

    For messages only: a lost token among thousands hardly moves it, so nothing may pass or fail by it.
    """
    wide_x, wide_y = x.double() + 1, y.double() + 1
    return float(1 - 2 * (wide_x * wide_y).sum() / (wide_x**2 + wide_y**2).sum())


def count_bytes(*tensors: Any) -> int:  # noqa: ANN401 - tensors, None, and tuples or lists of them
    """Return the bytes of all elements of nested tensors; None counts 0."""
    return sum(
        count_bytes(*item) if isinstance(item, tuple | list) else item.numel() * item.element_size()
        for item in tensors
        if item is not None
    )


def hash_tensor(t: torch.Tensor) -> int:
    """Return the sum of a tensor's int32 words, or of its bytes when an element is not four bytes wide."""
    flat = t.detach().contiguous().reshape(-1)
    return int(flat.view(torch.int32 if t.element_size() == 4 else torch.uint8).sum())


def hash_tensors(*tensors: Any) -> int:  # noqa: ANN401 - as count_bytes
    """Return the exclusive or of `hash_tensor` over nested tensors; what is no tensor counts 0."""
    value = 0
    for item in tensors:
        if isinstance(item, tuple | list):
            value ^= hash_tensors(*item)
        elif isinstance(item, torch.Tensor):
            value ^= hash_tensor(item)
    return value


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Replace each row by its distinct values that are not negative, in descending order, then -1.

    Args:
      x: [T, K] integers below num_slots; negative = none. Written.
      num_slots: bound of the values.

    Raises:
      ConfigError: not 2-d, or a value of num_slots or more.
    """
    if x.dim() != 2:
        raise ConfigError("x", f"{x.dim()}-d", "must be [T, K]")
    if x.numel() and int(x.max()) >= num_slots:
        raise ConfigError("x", int(x.max()), f"must be below num_slots {num_slots}")
    ordered = torch.sort(x, dim=1, descending=True).values
    is_repeat = torch.zeros_like(ordered, dtype=torch.bool)
    is_repeat[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    # Every negative value means the same, so none may stay different from -1.
    distinct = ordered.masked_fill(is_repeat | (ordered < 0), -1)
    x.copy_(torch.sort(distinct, dim=1, descending=True).values)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Return scores that are 0 outside each token's chosen groups.

    Args:
      scores: [T, E], E a multiple of num_groups.
      group_idx: [T, chosen groups] int64, each below num_groups.
      num_groups: equal runs of experts.
    """
    tokens, experts = scores.shape
    chosen = torch.zeros((tokens, num_groups), dtype=torch.bool).scatter_(1, group_idx, value=True)
    return scores * chosen.repeat_interleave(experts // num_groups, dim=1)
