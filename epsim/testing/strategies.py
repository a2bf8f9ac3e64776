"""Strategies of hypothesis for groups, routings and payloads: small first, odd sizes, all that is legal.

Hypothesis is imported when a strategy is made (extra `test`).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from epsim.testing.extra import load_hypothesis
from epsim.testing.identity import Array, marked_rows
from reference.config import EPConfig
from reference.topk import TopK

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

SMALL_SIZES = (1, 2, 3, 5, 7)
"""Odd sizes expose stride and rounding mistakes that powers of two hide."""
ALIGNMENTS = (1, 2, 4, 128)
"""Powers of two, as kernels ask for; 128 is what grouped GEMMs use (deepep-ascend.md section 6)."""


def ep_configs(
    *,
    num_ranks: tuple[int, ...] = SMALL_SIZES,
    hidden: tuple[int, ...] = (128, 384),
    max_topk: int = 8,
    max_tokens: int = 5,
    max_experts_per_rank: int = 4,
    alignments: tuple[int, ...] = ALIGNMENTS,
) -> "SearchStrategy[EPConfig]":
    """Return a strategy of groups; experts sit by the rule.

    Args:
      num_ranks: sizes of a group, simplest first.
      hidden: likewise, elements.
      max_topk: largest K.
      max_tokens: largest capacity of a rank.
      max_experts_per_rank: largest number of local experts.
      alignments: expert_alignment, simplest first.

    Raises:
      MissingExtraError: no hypothesis.
    """
    st = load_hypothesis().strategies

    def config(draw: "DrawFn") -> EPConfig:
        return draw_config(
            draw,
            num_ranks=num_ranks,
            hidden=hidden,
            max_topk=max_topk,
            max_tokens=max_tokens,
            max_experts_per_rank=max_experts_per_rank,
            alignments=alignments,
        )

    strategy: SearchStrategy[EPConfig] = st.composite(config)()
    return strategy


def draw_config(
    draw: "DrawFn",
    *,
    num_ranks: tuple[int, ...],
    hidden: tuple[int, ...],
    max_topk: int,
    max_tokens: int,
    max_experts_per_rank: int,
    alignments: tuple[int, ...],
) -> EPConfig:
    """Draw a group inside a composite strategy; the arguments are those of `ep_configs`."""
    st = load_hypothesis().strategies
    ep_size = draw(st.sampled_from(num_ranks))
    num_experts = ep_size * draw(st.integers(1, max_experts_per_rank))
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=draw(st.integers(1, min(num_experts, max_topk))),
        hidden=draw(st.sampled_from(hidden)),
        num_max_tokens_per_rank=draw(st.integers(1, max_tokens)),
        expert_alignment=draw(st.sampled_from(alignments)),
    )


def routings(
    config: EPConfig, *, weights: bool | None = None, skewed: bool | None = None
) -> "SearchStrategy[TopK]":
    """Return a strategy of valid routings of a group: ranks without tokens, masks in any column, no repeats.

    Args:
      config: the group.
      weights: whether they have weights; None = either.
      skewed: whether all tokens choose the experts of one rank; None = either.

    Raises:
      MissingExtraError: no hypothesis.
    """
    st = load_hypothesis().strategies

    def routing(draw: "DrawFn") -> TopK:
        return draw_routing(draw, config, weights=weights, skewed=skewed)

    strategy: SearchStrategy[TopK] = st.composite(routing)()
    return strategy


def draw_routing(
    draw: "DrawFn",
    config: EPConfig,
    *,
    weights: bool | None = None,
    skewed: bool | None = None,
    is_full: bool = False,
) -> TopK:
    """Draw a routing inside a composite strategy.

    Args:
      draw: of the composite strategy.
      config: as of `routings`.
      weights: likewise.
      skewed: likewise.
      is_full: every rank has as many tokens as it may have.
    """
    st = load_hypothesis().strategies
    experts = list(range(config.num_experts))
    if draw(st.booleans()) if skewed is None else skewed:
        home = draw(st.integers(0, config.ep_size - 1))
        owner = config.expert_ranks()
        experts = [e for e in experts if owner[e] == home] or experts
    most, width = config.num_max_tokens_per_rank, min(config.num_topk, len(experts))
    choices = st.lists(st.sampled_from(experts), max_size=width, unique=True)
    tokens = st.lists(choices, min_size=most if is_full else 0, max_size=most)
    ranks = [_token_rows(draw(tokens), config, draw, st) for _ in range(config.ep_size)]
    given = None
    if draw(st.booleans()) if weights is None else weights:
        given = tuple(token_weights(rank, idx) for rank, idx in enumerate(ranks))
    return TopK(num_experts=config.num_experts, topk_idx=tuple(ranks), topk_weights=given)


def _token_rows(
    tokens: list[list[int]],
    config: EPConfig,
    draw: "DrawFn",
    st: Any,  # noqa: ANN401 - the module
) -> Array:
    """Return [T, K]: each token's choices, masks behind them, all turned by a drawn number of columns."""
    rows = np.full((len(tokens), config.num_topk), -1, np.int64)
    for row, chosen in zip(rows, tokens, strict=True):
        row[: len(chosen)] = chosen
        if 0 < len(chosen) < config.num_topk:
            row[:] = np.roll(row, draw(st.integers(0, config.num_topk - 1)))
    return rows


def token_weights(rank: int, idx: Array, call: int = 0) -> Array:
    """Return [T, K] float32 weights that differ everywhere: whole numbers and a half, exact below 2^22.

    Negative in odd columns. Every 7th is special: -0, a denormal, infinity.
    """
    count = idx.size
    place = np.arange(count)
    values = ((call * 64 + rank) * 512 + place % 512 + 1 + 0.5).astype(np.float32)
    values *= np.where(place % 2, np.float32(-1), np.float32(1))
    specials = np.array([-0.0, 1e-45, np.inf], np.float32)
    odd = place % 7 == 6
    values[odd] = specials[(place[odd] // 7) % 3]
    return values.reshape(idx.shape)


def payloads(
    topk: TopK,
    hidden: int,
    *,
    dtype: npt.DTypeLike | None = None,
    num_packs: int = 0,
    pack: npt.DTypeLike = np.int16,
) -> "SearchStrategy[tuple[list[Array], list[Array] | None]]":
    """Return a strategy of (x, scales): rows that name themselves; NaN, -0, denormals, extreme scales.

    Args:
      topk: whose tokens.
      hidden: at least 32, elements.
      dtype: bfloat16 or float8_e4m3fn; None = bfloat16 without packs, else float8_e4m3fn.
      num_packs: P; 0 = no scales.
      pack: dtype of a scale.

    Raises:
      MissingExtraError: no hypothesis.
    """
    import ml_dtypes

    st = load_hypothesis().strategies
    kind_of = st.sampled_from(("plain", "special"))
    chosen = dtype or (ml_dtypes.float8_e4m3fn if num_packs else ml_dtypes.bfloat16)

    def payload(draw: "DrawFn") -> tuple[list[Array], list[Array] | None]:
        kind, call, seed = draw(kind_of), draw(st.integers(0, 3)), draw(st.integers(0, 2**16))
        tokens = list(enumerate(topk.tokens_per_rank))
        x = [marked_rows(r, n, hidden, chosen, call=call, kind=kind, seed=seed) for r, n in tokens]
        scales = [marked_scales(r, n, num_packs, pack, call=call) for r, n in tokens] if num_packs else None
        return x, scales

    strategy: SearchStrategy[tuple[list[Array], list[Array] | None]] = st.composite(payload)()
    return strategy


def marked_scales(src: int, num_tokens: int, num_packs: int, pack: npt.DTypeLike, *, call: int = 0) -> Array:
    """Return [T, P] scales of any bits, different from each other: a running number times an odd constant.

    Zero, largest, infinite and NaN scales occur among them, as do those of both signs.
    """
    width = np.dtype(pack).itemsize
    number = np.arange(num_tokens * num_packs, dtype=np.uint64) + np.uint64((call * 64 + src) * 1009)
    # 40503 and 2654435761 are odd, so the map is one to one on 16 and 32 bits (Knuth's multiplicative hash).
    bits = number * np.uint64(40503 if width == 2 else 2654435761)
    scales: Array = bits.astype(f"u{width}").view(pack).reshape(num_tokens, num_packs)
    return scales
