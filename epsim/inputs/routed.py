"""From what a user says (a routing file, a law or a histogram, some numbers) to a group and its routing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from epsim.capture import INDEX, CaptureOptions, read_capture
from epsim.debug.notes import capture_notes
from epsim.errors import InputError
from epsim.inputs.counting import is_table
from epsim.inputs.groups import check_ceilings
from reference.config import EPConfig
from reference.edition import find_edition
from reference.routing.files import LOAD_SUFFIXES, read_loads, read_ranks, read_routing
from reference.routing.generate import generate_topk, sample_loads
from reference.topk import TopK

DEFAULT_EP = 8
DEFAULT_EXPERTS = 256
DEFAULT_TOPK = 6
DEFAULT_TOKENS = 16
DEFAULT_HIDDEN = 7168
DEFAULT_ALIGNMENT = 128
MAX_CHOICES = 2**28
"""Ranks x tokens x top-k: what fits a small machine's memory several times."""


@dataclass(frozen=True, kw_only=True)
class RoutingRequest:
    """What a user said; None = not said.

    Args:
      routing: a routing file, folder or pattern, a dump with its capture.json, a histogram of loads, or a law
        as `uniform`. A dump knows all numbers below; said ones must be its own.
      ep: R; a file knows it.
      experts: E; needed with a file other than a dump.
      topk: K; a file knows it.
      tokens: per rank, one number or [R]; for laws and histograms.
      seed: of laws and histograms, else 0.
      masked_ratio: likewise.
      hidden, alignment: H and A of the group.
      capacity: M; None = the most tokens of a rank.
    """

    routing: str
    ep: int | None = None
    experts: int | None = None
    topk: int | None = None
    tokens: tuple[int, ...] | None = None
    seed: int | None = None
    masked_ratio: float = 0.0
    hidden: int | None = None
    alignment: int | None = None
    capacity: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """A group, its routing, and how that was made, for people.

    Args:
      config, topk: the group and its routing.
      text: how it was made.
      options: of the calls, if it is that of a dump.
      notes: what to know before its numbers, see `capture_notes`.
    """

    config: EPConfig
    topk: TopK
    text: str
    options: CaptureOptions | None = None
    notes: tuple[str, ...] = ()

    def agreed_options(self, said: Mapping[str, object]) -> CaptureOptions:
        """Return how dispatch and combine are called: as in the dump, else as was said.

        Args:
          said: options by their names in `CaptureOptions`; None = not said. Without a dump dtype is fp8.

        Raises:
          InputError: something was said that is not so in the dump, or an alignment that Ascend lacks.
          ConfigError: the edition lacks what was said.
        """
        given = {name: value for name, value in said.items() if value is not None}
        if self.options is None:
            options = msgspec.structs.replace(CaptureOptions(dtype="fp8"), **given)
            alignment = self.config.expert_alignment
            if find_edition(options.edition).has_gather_idx and alignment & (alignment - 1):
                raise InputError("expert_alignment", alignment, "must be a power of two, dispatch asserts it")
            return options
        own = msgspec.structs.asdict(self.options)
        own["order"] = self.options.reduction_order(self.config).name
        own["num_scaleup_ranks"] = self.options.mode().scaleup_ranks(self.config)
        for name, value in given.items():
            _check_said(self.text, name, value, own[name])
        return self.options


def load_routing(request: RoutingRequest) -> Routed:
    """Read or sample the routing of a request.

    Raises:
      InputError: something that must be said was not, or does not go with a file.
      ConfigError: a bad file or number.
    """
    routing = request.routing
    if is_table(routing):
        return _from_file(request)
    path = Path(routing)
    tokens = request.tokens or (DEFAULT_TOKENS,)
    if not any(tokens):
        raise InputError("tokens", 0, "a routing needs at least one")
    config = _config(request, DEFAULT_EP, DEFAULT_TOPK, max(tokens))
    if config.ep_size * max(tokens) * config.num_topk > MAX_CHOICES:
        rule = f"ranks x tokens x top-k must be at most {MAX_CHOICES:,}"
        raise InputError("tokens", max(tokens), rule)
    per_rank = tokens[0] if len(tokens) == 1 else tokens
    seed = 0 if request.seed is None else request.seed
    text = f"{routing} (seed {seed})"
    if path.suffix in LOAD_SUFFIXES:
        topk = sample_loads(
            config,
            read_loads(path, config),
            tokens_per_rank=per_rank,
            seed=seed,
            masked_ratio=request.masked_ratio,
            with_weights=True,
        )
    else:
        topk = generate_topk(
            config,
            routing,
            tokens_per_rank=per_rank,
            seed=seed,
            masked_ratio=request.masked_ratio,
            with_weights=True,
        )
    return Routed(config=config, topk=topk, text=text)


def _from_file(request: RoutingRequest) -> Routed:
    if request.tokens is not None:
        raise InputError("tokens", request.tokens[0], "goes with a law or a histogram; a file has its own")
    if request.seed is not None:
        raise InputError("seed", request.seed, "goes with a law or a histogram")
    if request.masked_ratio:
        raise InputError("masked ratio", request.masked_ratio, "goes with a law or a histogram")
    if (Path(request.routing) / INDEX).exists():
        return _from_dump(request)
    ids, _ = read_ranks(request.routing)
    largest = max((int(idx.max()) for idx in ids if idx.size), default=-1)
    if request.experts is None:
        rule = (
            f"{request.routing} does not say how many experts there are (largest id {largest}): --experts N"
        )
        raise InputError("experts", "not given", rule)
    widths = [idx.shape[1] for idx in ids if idx.ndim == 2]
    most = max(len(idx) for idx in ids)
    config = _config(request, len(ids), max([1, *widths]), most)
    return Routed(config=config, topk=read_routing(request.routing, config), text=request.routing)


def _from_dump(request: RoutingRequest) -> Routed:
    capture = read_capture(request.routing)
    group, folder = capture.group, request.routing
    _check_said(folder, "ep", request.ep, group.ep_size)
    _check_said(folder, "experts", request.experts, group.num_experts)
    _check_said(folder, "topk", request.topk, group.num_topk)
    _check_said(folder, "hidden", request.hidden, group.hidden)
    _check_said(folder, "alignment", request.alignment, group.expert_alignment)
    _check_said(folder, "capacity", request.capacity, group.num_max_tokens_per_rank)
    topk = capture.topk()
    if not any(topk.tokens_per_rank):
        raise InputError(f"{folder}: topk_idx", "no tokens", "a routing needs at least one")
    return Routed(
        config=capture.config,
        topk=topk,
        text=folder,
        options=capture.options,
        notes=capture_notes(capture),
    )


def _check_said(folder: str, field: str, said: object, own: object) -> None:
    if said is not None and said != own:
        raise InputError(field, said, f"must be that of {Path(folder) / INDEX}, {own!r}; leave it out")


def _config(request: RoutingRequest, ep: int, topk: int, most: int) -> EPConfig:
    config = EPConfig(
        ep_size=ep if request.ep is None else request.ep,
        num_experts=DEFAULT_EXPERTS if request.experts is None else request.experts,
        num_topk=topk if request.topk is None else request.topk,
        hidden=DEFAULT_HIDDEN if request.hidden is None else request.hidden,
        num_max_tokens_per_rank=max(1, most) if request.capacity is None else request.capacity,
        expert_alignment=DEFAULT_ALIGNMENT if request.alignment is None else request.alignment,
    )
    check_ceilings(config)
    return config


def distinct_ranks(config: EPConfig, topk: TopK) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return [K+1] int64: tokens by the number of ranks that they reach."""
    owner = np.append(config.expert_ranks(), -1)
    counts = np.zeros(config.num_topk + 1, dtype=np.int64)
    for idx in topk.topk_idx:
        ranks = np.sort(owner[idx], axis=1)
        is_new = np.diff(ranks, axis=1, prepend=-1) != 0  # masked choices come first, as -1
        counts += np.bincount(is_new.sum(axis=1), minlength=len(counts))
    return counts
