"""From a routing (a law, a file, a histogram or a table) to row counts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from epsim.errors import InputError
from reference.config import EPConfig
from reference.counts import Counts, ExpectedCounts
from reference.expected import check_masked_ratio, expected_rows
from reference.files import LOAD_SUFFIXES, ROUTING_SUFFIXES, read_loads, read_routing
from reference.generate import generate_topk, parse_routing, sample_loads
from reference.plan import count_rows
from reference.topk import TopK

Draws = int | Literal["auto"] | None
TOKENS_PER_AUTO_DRAW = 2_000_000
MAX_DRAWS = 64


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Row counts of a routing.

    Args:
      draws: one per sampled routing; a single expectation, or the counts of a given table.
      text: how they were made, for people.
      is_uniform: whether every K-subset was equally likely.
    """

    draws: tuple[Counts, ...]
    text: str
    is_uniform: bool

    @property
    def is_exact(self) -> bool:
        """Whether these are expectations, not samples."""
        return isinstance(self.draws[0], ExpectedCounts)


def count_routing(
    config: EPConfig,
    per_rank: tuple[int, ...],
    pod_size: int | None,
    routing: str | Path | TopK,
    seed: int,
    draws: Draws,
    masked_ratio: float,
) -> Counted:
    """Count the rows of a routing, by expectation or in samples.

    Args:
      config: the group.
      per_rank: [R] tokens.
      pod_size: ranks of a scale-up domain, None = one holds the group.
      routing: see `epsim.predict.predict`.
      seed: of the first draw; draw i uses seed + i.
      draws: see `epsim.predict.predict`.
      masked_ratio: chance that a choice is masked.

    Raises:
      InputError: draws out of range.
      ConfigError: a bad routing or file.
    """
    check_masked_ratio(masked_ratio)
    if draws is not None and draws != "auto" and not (type(draws) is int and 1 <= draws <= MAX_DRAWS):
        raise InputError("draws", draws, f"must be auto or a whole number from 1 to {MAX_DRAWS}")
    if isinstance(routing, TopK):
        return Counted(
            draws=(count_rows(config, routing, pod_size=pod_size),), text="given", is_uniform=False
        )
    if not str(routing):
        raise InputError("routing", routing, "must name a law, as uniform, or a file")
    path = Path(routing)
    if (path.suffix in ROUTING_SUFFIXES and not is_histogram(path)) or path.is_dir() or "*" in str(routing):
        topk = read_routing(routing, config)
        return Counted(
            draws=(count_rows(config, topk, pod_size=pod_size),), text=str(routing), is_uniform=False
        )
    number = _num_draws(draws, sum(per_rank))
    if path.suffix in LOAD_SUFFIXES:
        loads = read_loads(path, config)
        sampled = [
            sample_loads(config, loads, tokens_per_rank=per_rank, seed=seed + i, masked_ratio=masked_ratio)
            for i in range(number or 1)
        ]
        counts = tuple(count_rows(config, topk, pod_size=pod_size) for topk in sampled)
        return Counted(draws=counts, text=f"{routing} (seed {seed}, {len(counts)} draws)", is_uniform=False)
    spec = parse_routing(str(routing))
    masked = f", {masked_ratio:g} masked" if masked_ratio else ""
    if spec.kind == "uniform" and number == 0 and not config.is_redundant:
        exact = expected_rows(config, per_rank, masked_ratio=masked_ratio, pod_size=pod_size)
        return Counted(draws=(exact,), text=f"uniform{masked} (exact expectation)", is_uniform=True)
    counts = tuple(
        count_rows(
            config,
            generate_topk(config, spec, tokens_per_rank=per_rank, seed=seed + i, masked_ratio=masked_ratio),
            pod_size=pod_size,
        )
        for i in range(number or 1)
    )
    plural = "draw" if len(counts) == 1 else "draws"
    text = f"{spec.text}{masked} (seed {seed}, {len(counts)} {plural})"
    return Counted(draws=counts, text=text, is_uniform=spec.kind == "uniform")


def is_histogram(path: Path) -> bool:
    """Tell a load histogram from a routing: both may be .npy, but a histogram has one axis."""
    if path.suffix != ".npy":
        return False
    try:
        return bool(np.load(path, mmap_mode="r", allow_pickle=False).ndim == 1)
    except (OSError, ValueError, EOFError):
        return False


def _num_draws(draws: Draws, num_tokens: int) -> int:
    if draws is None:
        return 0
    if draws == "auto":
        return max(1, min(MAX_DRAWS, round(TOKENS_PER_AUTO_DRAW / max(1, num_tokens))))
    return draws
