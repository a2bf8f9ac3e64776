"""`epsim.predict`: from names and numbers to predictions of dispatch and combine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from epsim.answer import Case
from epsim.closedform import OPERATIONS, Operation
from epsim.counting import (
    Counted,
    Draws,
    check_draws,
    count_table,
    count_workload,
    describe_law,
    is_table,
    read_table,
)
from epsim.errors import InputError
from epsim.network import Network
from epsim.options import TokenCounts, TwoLayer
from epsim.platform import make_platform
from epsim.prediction import Prediction, Predictions
from epsim.presets import model_shape
from epsim.profile import Hardware, Software
from reference.config import EPConfig, ExpertMap
from reference.generate import stepped_token_counts
from reference.manifest import Workload
from reference.sizes import Dtype
from reference.topk import TopK
from topology import Topology


def predict(
    system: str | Topology = "ubl128",
    *,
    model: str = "benchmark",
    ep: int | Sequence[int] = (8, 16, 32, 64, 128),
    tokens: int | Sequence[int] | None = None,
    token_counts: TokenCounts = "equal",
    operations: Sequence[Operation] = ("dispatch", "combine"),
    dtype: Dtype = "fp8",
    hidden: int | None = None,
    num_experts: int | None = None,
    num_topk: int | None = None,
    expert_alignment: int = 128,
    expert_map: ExpertMap | None = None,
    routing: str | Path | TopK = "uniform",
    seed: int = 0,
    draws: Draws = None,
    masked_ratio: float = 0.0,
    ranks_per_supernode: int | None = None,
    two_layer: TwoLayer = "dedup",
    hardware: str | Hardware | None = None,
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
    num_buffer_bytes: int | None = None,
    workload: Workload | None = None,
    port_rate: str | None = None,
) -> Predictions:
    """Predict dispatch and combine.

    Args:
      system: preset ("ubl128", "clos:1024"), cluster file (.toml), HCCL file (.json), or a Topology.
      model: shape of the layer; `hidden`, `num_experts` and `num_topk` replace single numbers.
      ep: group sizes.
      tokens: tokens per rank, one for all or one per rank (then one group size); None = 16,384, or as
        many as a routing file has.
      token_counts: "equal", or "stepped": rank r sends tokens - r, as the published tests do.
      operations: of "dispatch", "cached-dispatch", "combine".
      dtype: of dispatch, "fp8" or "bf16"; combine is always bf16.
      hidden: elements of a token.
      num_experts: physical experts of the whole group.
      num_topk: experts that a token chooses.
      expert_alignment: rows that an expert's block is padded to.
      expert_map: placement with redundant experts.
      routing: "uniform", "zipf:1.1", ... (see `reference.generate.parse_routing`), a routing file or
        folder, a per-expert load histogram, or a TopK.
      seed: of the sampled routing.
      draws: sampled routings to average; None = exact expectation for uniform routing and one draw
        otherwise; "auto" = as many as make about two million tokens.
      masked_ratio: chance that a choice is masked.
      ranks_per_supernode: ranks of the group in one scale-up domain; None = as many as fit.
      two_layer: "dedup" sends a token once per supernode, "flat" once per rank as upstream does.
      hardware: profile name, file or object; None = the system's.
      software: profile name, file or object; None = the system's.
      settings: single parameters that replace the profiles', e.g. {"hbm_rate": "3.2TB/s"}.
      num_buffer_bytes: size of an existing buffer to check.
      workload: group, tokens, routing, seed and dtype together (see `reference.manifest`); replaces
        everything above from `model` to `masked_ratio` but operations and draws.
      port_rate: rate of one port, for HCCL files, which carry none.

    Returns:
      Predictions, by group size and then operation.

    Raises:
      InputError: an argument breaks a rule (field, value, rule).
      ConfigError: group or routing breaks a rule.
      TopologyError: a topology breaks a rule.
    """
    platform = make_platform(
        system, hardware=hardware, software=software, settings=settings, port_rate=port_rate
    )
    _check_words(operations, token_counts, two_layer)
    check_draws(draws)
    sources: list[Workload | _Table]
    if workload is not None:
        pods = [_pod_size(platform.network, workload.config.ep_size, ranks_per_supernode)]
        sources = [workload]
    else:
        shape = model_shape(model)
        group = _Group(
            num_experts=shape.num_experts if num_experts is None else num_experts,
            num_topk=shape.num_topk if num_topk is None else num_topk,
            hidden=shape.hidden if hidden is None else hidden,
            expert_alignment=expert_alignment,
            expert_map=expert_map,
            tokens=tokens,
            token_counts=token_counts,
            routing=routing,
            seed=seed,
            masked_ratio=masked_ratio,
            draws=draws,
            dtype=dtype,
        )
        sizes = _group_sizes(ep)
        # All groups are checked, against the network first, before the first is counted.
        pods = [_pod_size(platform.network, size, ranks_per_supernode) for size in sizes]
        sources = [group.source(size) for size in sizes]
    result: list[Prediction] = []
    workloads: list[Workload] = []
    for source, pod_size in zip(sources, pods, strict=True):
        counted = _count(source, pod_size, draws)
        workloads.append(counted.workload)
        for operation in operations:
            case = Case(
                platform=platform,
                config=counted.workload.config,
                operation=operation,
                dtype=counted.workload.dispatch_dtype,
                pod_size=pod_size,
                two_layer=two_layer,
                num_buffer_bytes=num_buffer_bytes,
            )
            result.append(case.predict(counted))
    return Predictions(result, workloads)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A routing given token by token, and the group that it must fit."""

    config: EPConfig
    routing: str | Path | TopK
    dtype: Dtype


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Arguments that say the same for every group size."""

    num_experts: int
    num_topk: int
    hidden: int
    expert_alignment: int
    expert_map: ExpertMap | None
    tokens: int | Sequence[int] | None
    token_counts: TokenCounts
    routing: str | Path | TopK
    seed: int
    masked_ratio: float
    draws: Draws
    dtype: Dtype

    def source(self, size: int) -> Workload | _Table:
        """Return what one group size does: a law as a workload, or a table to be read."""
        table = is_table(self.routing)
        if table:
            self._check_law_only()
        if table and self.tokens is None:
            config = self._config(size, CEILINGS["num_max_tokens_per_rank"])
            topk = read_table(config, self.routing)
            config = self._config(size, max(1, *topk.tokens_per_rank))
            return _Table(config=config, routing=topk, dtype=self.dtype)
        per_rank = _tokens_per_rank(
            DEFAULT_TOKENS if self.tokens is None else self.tokens, size, self.token_counts
        )
        config = self._config(size, max(1, *per_rank))
        _check_ceilings(config)
        if table:
            return _Table(config=config, routing=self.routing, dtype=self.dtype)
        assert not isinstance(self.routing, TopK)
        return describe_law(config, per_rank, self.routing, self.seed, self.masked_ratio, self.dtype)

    def _check_law_only(self) -> None:
        """Refuse what only a law can have, so that nothing is ignored in silence."""
        for name, value, default in (
            ("masked ratio", self.masked_ratio, 0.0),
            ("token counts", self.token_counts, "equal"),
            ("draws", self.draws, None),
        ):
            if value != default:
                raise InputError(name, value, "goes with a law such as uniform, not with a routing table")

    def _config(self, size: int, capacity: int) -> EPConfig:
        return EPConfig(
            ep_size=size,
            num_experts=self.num_experts,
            num_topk=self.num_topk,
            hidden=self.hidden,
            num_max_tokens_per_rank=capacity,
            expert_alignment=self.expert_alignment,
            expert_map=self.expert_map,
        )


def _count(source: Workload | _Table, pod_size: int | None, draws: Draws) -> Counted:
    if isinstance(source, _Table):
        return count_table(source.config, source.routing, pod_size, source.dtype)
    return count_workload(source, pod_size, draws)


def _check_words(operations: Sequence[Operation], token_counts: TokenCounts, two_layer: TwoLayer) -> None:
    for operation in operations:
        if operation not in OPERATIONS:
            raise InputError("operation", operation, f"must be one of {', '.join(OPERATIONS)}")
    if token_counts not in get_args(TokenCounts):
        raise InputError("token counts", token_counts, "must be equal or stepped")
    if two_layer not in get_args(TwoLayer):
        raise InputError("two layer", two_layer, "must be dedup or flat")


DEFAULT_TOKENS = 16_384
"""Tokens per rank of the published measurements."""

CEILINGS = {
    "ep_size": 4096,
    "num_experts": 2**20,
    "num_topk": 1024,
    "hidden": 2**20,
    "num_max_tokens_per_rank": 2**26,
}
"""Far beyond any real group; within them counts fit 64 bits, and a matrix of ranks fits a laptop."""


def _check_ceilings(config: EPConfig) -> None:
    for name, most in CEILINGS.items():
        if getattr(config, name) > most:
            raise InputError(name, getattr(config, name), f"must be at most {most:,}")


def _group_sizes(ep: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (ep,) if isinstance(ep, int) else tuple(ep)
    if not sizes:
        raise InputError("ep", sizes, "must name at least one group size")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InputError("ep", size, "must be a whole number of at least 1")
    return tuple(int(size) for size in sizes)


def _tokens_per_rank(tokens: int | Sequence[int], size: int, counts: TokenCounts) -> tuple[int, ...]:
    if not isinstance(tokens, int | np.integer):
        if len(tokens) != size:
            raise InputError(
                "tokens", f"{len(tokens)} numbers", f"must be one number, or one for each of {size} ranks"
            )
        return tuple(tokens)
    if isinstance(tokens, bool) or tokens < 1:
        raise InputError("tokens", tokens, "must be a whole number of at least 1")
    if counts == "stepped":
        return stepped_token_counts(int(tokens), size)
    return (int(tokens),) * size


def _pod_size(network: Network, size: int, ranks_per_supernode: int | None) -> int | None:
    """Return ranks of a scale-up domain, None when one holds the whole group.

    Raises:
      InputError: the group does not fit the network.
    """
    if network.num_npus is not None and size > network.num_npus:
        raise InputError("ep", size, f"must not exceed the {network.num_npus:,} cards of {network.name}")
    domain = network.scaleup_domain
    if ranks_per_supernode is not None:
        if not 1 <= ranks_per_supernode <= domain:
            rule = f"must lie between 1 and the {domain} cards of a scale-up domain of {network.name}"
            raise InputError("ranks per supernode", ranks_per_supernode, rule)
        domain = ranks_per_supernode
    if size <= domain:
        return None
    if not network.scaleout_bytes_per_s:
        raise InputError("ep", size, f"must not exceed {domain}: {network.name} has no scale-out network")
    pods = -(-size // domain)
    if network.num_npus is not None and pods * network.scaleup_domain > max(
        network.num_npus, network.scaleup_domain
    ):
        rule = f"needs {pods} supernodes, and {network.name} has {network.num_npus // network.scaleup_domain}"
        raise InputError("ranks per supernode", domain, rule)
    return domain
