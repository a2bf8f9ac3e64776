"""From a routing (a law, a file, a histogram or a table) to row counts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from epsim.capture import INDEX, read_capture
from epsim.errors import InputError
from reference.config import EPConfig
from reference.counts import Counts, ExpectedCounts
from reference.memory.sizes import Dtype
from reference.plan import count_rows
from reference.routing.expected import expected_rows
from reference.routing.files import LOAD_SUFFIXES, ROUTING_SUFFIXES, read_loads, read_routing
from reference.routing.generate import ROUTINGS, parse_routing
from reference.routing.manifest import Workload, workload_of_routing
from reference.routing.readable import kind_of
from reference.topk import TopK

Draws = int | Literal["auto"] | None
TOKENS_PER_AUTO_DRAW = 2_000_000
MAX_DRAWS = 64
MAX_SAMPLED_CHOICES = 10**9
"""Eight gigabytes of ids; uniform routing without draws needs no sample."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Row counts of a routing.

    Args:
      draws: one per sampled routing; a single expectation, or the counts of a given table.
      text: how they were made, for people.
      is_uniform: whether every K-subset was equally likely.
      workload: what was counted (of several draws the first), with its fingerprint.
    """

    draws: tuple[Counts, ...]
    text: str
    is_uniform: bool
    workload: Workload

    @property
    def is_exact(self) -> bool:
        """Whether these are expectations, not samples."""
        return isinstance(self.draws[0], ExpectedCounts)


def check_draws(draws: Draws) -> None:
    """Refuse a number of draws that is none.

    Raises:
      InputError: neither auto nor a whole number in range.
    """
    if draws is not None and draws != "auto" and not (type(draws) is int and 1 <= draws <= MAX_DRAWS):
        raise InputError("draws", draws, f"must be auto or a whole number from 1 to {MAX_DRAWS}")


def is_table(routing: str | Path | TopK) -> bool:
    """Tell whether a routing is given token by token, not by a law or a histogram.

    Raises:
      InputError: it is empty, or a path of something that is not read.
    """
    if isinstance(routing, TopK):
        return True
    if not str(routing):
        raise InputError("routing", routing, "must name a law, as uniform, or a file")
    if str(routing).partition(":")[0] in ROUTINGS:
        # A folder of that name does not change what the word means; ./uniform is the folder.
        return False
    path, text = Path(routing), str(routing)
    if (
        (path.suffix in ROUTING_SUFFIXES and not is_histogram(path))
        or kind_of(path) == "folder"
        or "*" in text
    ):
        return True
    if path.suffix not in LOAD_SUFFIXES and ":" not in text and ("/" in text or path.suffix):
        ids, loads = ", ".join(ROUTING_SUFFIXES), ", ".join(LOAD_SUFFIXES)
        rule = f"must be a folder, a file of ids ({ids}) or loads ({loads}), or one of {', '.join(ROUTINGS)}"
        raise InputError("routing", text, rule)
    return False


def read_table(config: EPConfig, routing: str | Path | TopK) -> TopK:
    """Return a routing that is given token by token.

    Raises:
      ConfigError: a bad routing or file.
      InputError: a dump of a group with other experts, or with its own placement.
    """
    if isinstance(routing, TopK):
        return routing
    if not (Path(routing) / INDEX).exists():
        return read_routing(routing, config)
    capture = read_capture(routing)
    own = capture.group.num_experts
    if config.num_experts != own:
        raise InputError("experts", config.num_experts, f"must be that of {Path(routing) / INDEX}, {own}")
    topk = capture.topk()
    topk.check_against(config)
    elsewhere = np.flatnonzero(config.expert_ranks() != capture.config.expert_ranks())
    if elsewhere.size:
        rule = f"the group's map must be that of {Path(routing) / INDEX}"
        raise InputError(f"expert_ranks[{elsewhere[0]}]", int(config.expert_ranks()[elsewhere[0]]), rule)
    return topk


def count_table(config: EPConfig, routing: str | Path | TopK, pod_size: int | None, dtype: Dtype) -> Counted:
    """Count a routing that is given token by token.

    Raises:
      ConfigError: a bad routing or file.
    """
    topk = read_table(config, routing)
    return Counted(
        draws=(count_rows(config, topk, pod_size=pod_size),),
        text="given" if isinstance(routing, TopK) else str(routing),
        is_uniform=False,
        workload=workload_of_routing(config, topk, dispatch_dtype=dtype),
    )


def describe_law(
    config: EPConfig,
    per_rank: tuple[int, ...],
    routing: str | Path,
    seed: int,
    masked_ratio: float,
    dtype: Dtype,
) -> Workload:
    """Describe a law, or a load histogram in a file, as a workload.

    Raises:
      ConfigError: a bad law, file or number.
    """
    path = Path(routing)
    loads = None
    if path.suffix in LOAD_SUFFIXES:
        loads = tuple(read_loads(path, config).tolist())
    return Workload(
        config=config,
        tokens_per_rank=per_rank,
        routing="loads" if loads is not None else parse_routing(str(routing)).text,
        seed=seed,
        masked_ratio=masked_ratio,
        loads=loads,
        dispatch_dtype=dtype,
    )


def count_workload(workload: Workload, pod_size: int | None, draws: Draws) -> Counted:
    """Count the rows of a law, by expectation or in samples.

    Args:
      workload: a law or a histogram; draw i uses its seed + i.
      pod_size: ranks of a scale-up domain, None = one holds the group.
      draws: see `epsim.predict.predict`.

    Raises:
      ConfigError: the group cannot have this routing.
    """
    config, seed = workload.config, workload.seed
    number = _num_draws(draws, sum(workload.tokens_per_rank))
    masked = f", {workload.masked_ratio:g} masked" if workload.masked_ratio else ""
    is_uniform = workload.routing == "uniform"
    if is_uniform and number == 0 and not config.is_redundant:
        exact = expected_rows(
            config, workload.tokens_per_rank, masked_ratio=workload.masked_ratio, pod_size=pod_size
        )
        text = f"uniform{masked} (exact expectation)"
        return Counted(draws=(exact,), text=text, is_uniform=True, workload=workload)
    check_sample(sum(workload.tokens_per_rank) * config.num_topk)
    counts = tuple(
        count_rows(config, msgspec.structs.replace(workload, seed=seed + i).topk(), pod_size=pod_size)
        for i in range(number or 1)
    )
    plural = "draw" if len(counts) == 1 else "draws"
    text = f"{workload.routing}{masked} (seed {seed}, {len(counts)} {plural})"
    return Counted(draws=counts, text=text, is_uniform=is_uniform, workload=workload)


def check_sample(num_choices: int) -> None:
    """Refuse a sample that would not fit the memory.

    Raises:
      InputError: too many choices.
    """
    if num_choices > MAX_SAMPLED_CHOICES:
        rule = f"sampling holds every choice in memory; at most {MAX_SAMPLED_CHOICES:,} are taken"
        raise InputError("tokens x top-k", num_choices, rule)


def is_histogram(path: Path) -> bool:
    """Tell a load histogram from a routing: both may be .npy, but a histogram has one axis."""
    if path.suffix != ".npy" or kind_of(path) != "file":
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
