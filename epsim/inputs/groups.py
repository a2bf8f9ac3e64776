"""Which group, with which tokens and routing: the arguments that predict and simulate have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.inputs.counting import (
    Counted,
    Draws,
    check_sample,
    count_table,
    count_workload,
    describe_law,
    is_table,
    read_table,
)
from epsim.model.answer import Case
from epsim.model.closedform import OPERATIONS, Operation
from epsim.model.options import TokenCounts
from epsim.platform.machine import checked_npus
from epsim.platform.network import Network
from epsim.platform.platform import Platform
from epsim.platform.presets import model_shape
from reference.config import EPConfig, ExpertMap
from reference.memory.sizes import Dtype
from reference.routing.generate import stepped_token_counts
from reference.routing.manifest import Workload, workload_of_routing
from reference.topk import TopK
from topology import Topology


@dataclass(frozen=True, kw_only=True)
class Table:
    """A routing given token by token, and the group that it must fit."""

    config: EPConfig
    routing: str | Path | TopK
    dtype: Dtype


@dataclass(frozen=True, kw_only=True)
class Group:
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

    def source(self, size: int) -> Workload | Table:
        """Return what one group size does: a law as a workload, or a table to be read."""
        table = is_table(self.routing)
        if table:
            self._check_law_only()
        if table and self.tokens is None:
            config = self._config(size, CEILINGS["num_max_tokens_per_rank"])
            topk = read_table(config, self.routing)
            config = self._config(size, max(1, *topk.tokens_per_rank))
            return Table(config=config, routing=topk, dtype=self.dtype)
        per_rank = tokens_of(DEFAULT_TOKENS if self.tokens is None else self.tokens, size, self.token_counts)
        config = self._config(size, max(1, *per_rank))
        check_ceilings(config)
        if table:
            return Table(config=config, routing=self.routing, dtype=self.dtype)
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


def count(source: Workload | Table, pod_size: int | None, draws: Draws) -> Counted:
    """Count the rows of a table, or of a law by expectation or in samples."""
    if isinstance(source, Table):
        return count_table(source.config, source.routing, pod_size, source.dtype)
    return count_workload(source, pod_size, draws)


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
BEYOND = {"ep_size": "; epsim cluster takes 262,144 cards: many groups, or one exchange (--all-to-all)"}
"""What to use instead."""


def check_ceilings(config: EPConfig) -> None:
    """Refuse a group beyond any real one.

    Raises:
      InputError: names the number.
    """
    for name, most in CEILINGS.items():
        if getattr(config, name) > most:
            rule = f"must be at most {most:,}{BEYOND.get(name, '')}"
            raise InputError(name, getattr(config, name), rule)


def group_sizes(ep: int | Sequence[int]) -> tuple[int, ...]:
    """Return group sizes as whole numbers.

    Raises:
      InputError: none, one below 1 or above the ceiling, or one that stands there twice.
    """
    sizes = tuple(ep) if isinstance(ep, Iterable) and not isinstance(ep, str) else (ep,)
    if not sizes:
        raise InputError("ep", sizes, "must name at least one group size")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InputError("ep", size, "must be a whole number of at least 1")
        if size > CEILINGS["ep_size"]:
            # Before the number of experts, which would be the next thing that does not fit.
            rule = f"must be at most {CEILINGS['ep_size']:,}{BEYOND['ep_size']}"
            raise InputError("ep_size", size, rule)
    for position, size in enumerate(sizes):
        if size in sizes[:position]:
            raise InputError("ep", size, "is there twice")
    return tuple(int(size) for size in sizes)


def check_operations(operations: Sequence[Operation]) -> None:
    """Refuse an operation that is none, or that stands there twice.

    Raises:
      InputError: names it; a text is refused as a whole, not letter by letter.
    """
    if isinstance(operations, str):
        raise InputError("operations", operations, f'must be a list of names, as ["{operations}"]')
    for position, operation in enumerate(operations):
        if operation not in OPERATIONS:
            raise InputError("operation", operation, f"must be one of {', '.join(OPERATIONS)}")
        if operation in operations[:position]:
            raise InputError("operation", operation, "is there twice")


def tokens_of(tokens: int | Sequence[int], size: int, counts: TokenCounts) -> tuple[int, ...]:
    """Return the tokens of each rank from one number for all, or one for each.

    Raises:
      InputError: the number of numbers is wrong, or one is below 1.
    """
    rule = "must be a whole number of at least 1"
    if not isinstance(tokens, int | np.integer):
        if isinstance(tokens, str) or not isinstance(tokens, Sequence | np.ndarray):
            raise InputError("tokens", tokens, f"{rule}, or one for each rank")
        if len(tokens) != size:
            raise InputError(
                "tokens", f"{len(tokens)} numbers", f"must be one number, or one for each of {size} ranks"
            )
        return tuple(int(count) if isinstance(count, np.integer) else count for count in tokens)
    if isinstance(tokens, bool) or tokens < 1:
        raise InputError("tokens", tokens, rule)
    if counts == "stepped":
        return stepped_token_counts(int(tokens), size)
    return (int(tokens),) * size


def check_token_counts(counts: TokenCounts) -> None:
    """Refuse what is no way to spread tokens over ranks.

    Raises:
      InputError: it is not a name of one.
    """
    if not isinstance(counts, str) or counts not in get_args(TokenCounts):
        raise InputError("token counts", counts, "must be equal or stepped")


def pod_size_of(network: Network, size: int, ranks_per_supernode: int | None) -> int | None:
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


def place(
    network: Network, sizes: Sequence[int], npus: Sequence[int] | npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64] | None, int | None]:
    """Put the only group on given cards.

    Args:
      network: with a graph.
      sizes: group sizes.
      npus: [R] the card of each rank; None = rank r sits on card r, in as many groups as there are.

    Returns:
      [R] int64 cards, and ranks of a scale-up domain, None when one holds the whole group; both None
      without `npus`.

    Raises:
      InputError: there are several groups, no graph, or cards that cannot be; or the domains do not hold
        consecutive ranks, as many each (the last one may hold fewer).
    """
    if npus is None:
        return None, None
    if len(sizes) != 1:
        raise InputError(
            "npus", f"{len(npus)} cards", f"goes with one group size, and there are {len(sizes)}"
        )
    if network.topology is None:
        raise InputError(
            "npus", f"{len(npus)} cards", f"{network.name} is a profile without cards to choose from"
        )
    cards = checked_npus(network.topology, sizes[0], npus)
    return cards, _pod_size_of_cards(network, network.topology, cards)


def _pod_size_of_cards(network: Network, topology: Topology, npus: npt.NDArray[np.int64]) -> int | None:
    domain = (topology.npu_server if network.is_mesh else topology.npu_supernode)[npus]
    if (domain == domain[0]).all():
        return None
    starts = np.flatnonzero(np.concatenate([[True], domain[1:] != domain[:-1]]))
    sizes = np.diff(np.append(starts, len(npus)))
    is_even = (sizes[:-1] == sizes[0]).all() and sizes[-1] <= sizes[0]
    if not is_even or len(np.unique(domain)) < len(starts):
        rule = "must put consecutive ranks into a supernode, as many into each"
        raise InputError("npus", f"{len(npus)} cards", rule)
    if not network.scaleout_bytes_per_s:
        rule = f"must be of one scale-up domain: {network.name} has no scale-out network"
        raise InputError("npus", f"{len(npus)} cards", rule)
    return int(sizes[0])


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A routing token by token, with what it was made from.

    Args:
      config: the group.
      topk: the routing.
      workload: its description, with a fingerprint.
      text: how it was made, for people.
    """

    config: EPConfig
    topk: TopK
    workload: Workload
    text: str


def route(source: Workload | Table) -> Routed:
    """Return the routing itself: read it, or sample it once.

    Raises:
      ConfigError: a bad routing or file.
      InputError: more choices than a sample may hold.
    """
    if isinstance(source, Table):
        topk = read_table(source.config, source.routing)
        given = "given" if isinstance(source.routing, TopK) else str(source.routing)
        workload = workload_of_routing(source.config, topk, dispatch_dtype=source.dtype)
        return Routed(config=source.config, topk=topk, workload=workload, text=given)
    choices = sum(source.tokens_per_rank) * source.config.num_topk
    check_sample(choices)
    masked = f", {source.masked_ratio:g} masked" if source.masked_ratio else ""
    text = f"{source.routing}{masked} (seed {source.seed}, 1 draw)"
    return Routed(config=source.config, topk=source.topk(), workload=source, text=text)


def group_bytes(
    platform: Platform,
    ep: int,
    operation: Operation,
    *,
    model: str = "benchmark",
    tokens: int = DEFAULT_TOKENS,
    routing: str | Path = "uniform",
    seed: int = 0,
) -> npt.NDArray[np.int64]:
    """Return [R, R] int64 bytes on the wire of one operation; expectations are rounded to whole bytes.

    Args:
      platform: supplies the edition's records.
      ep: R.
      operation: which one; combine sends the rows back.
      model: shape of the layer.
      tokens: per rank.
      routing: a law or a file.
      seed: of a sampled law.

    Raises:
      InputError: a number breaks a rule.
      ConfigError: the group or the routing breaks a rule.
    """
    shape = model_shape(model)
    group = Group(
        num_experts=shape.num_experts, num_topk=shape.num_topk, hidden=shape.hidden, expert_alignment=128,
        expert_map=None, tokens=tokens, token_counts="equal", routing=routing, seed=seed, masked_ratio=0.0,
        draws=None, dtype="fp8",
    )  # fmt: skip
    [size] = group_sizes(ep)
    counted = count(group.source(size), None, None)
    case = Case(
        platform=platform, config=counted.workload.config, operation=operation, dtype="fp8", pod_size=None,
        two_layer="flat",
    )  # fmt: skip
    rows = np.asarray(counted.draws[0].rows, np.float64)
    return np.rint((rows.T if operation == "combine" else rows) * case.row.wire).astype(np.int64)
