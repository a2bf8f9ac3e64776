"""A whole cluster at once: many groups that share its trunks, or one exchange among all cards.

These are bounds by the busiest link and, for even traffic, exact max-min fair transfers: no launch, no
barrier, no order of destinations. G ranks of a group, n groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.groups import GroupPolicy, Placement
from epsim.model.closedform import SCALEOUT_FORM
from epsim.platform.network import payload_share
from epsim.platform.platform import Platform
from epsim.simulate import MAX_SECONDS
from topology import NETLAYER_SCALEOUT, LinkBound, Topology
from topology.routes import layer_order

MAX_CARDS = 2**18
MAX_PAIR_BYTES = 2**36
"""Of one exchange: to 2^18 others that is 16 PiB for a card, beyond any memory, and 400,000 s."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """The busiest link of one tier.

    Args:
      name: as "netlayer 2, leaf to spine".
      time_us: what it needs for its bytes alone.
      link: its ends, layer, plane and rate.
      gbytes: what it carries, decimal gigabytes.
    """

    name: str
    time_us: float
    link: str
    gbytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterAnswer:
    """What a cluster under load says.

    Args:
      system: which.
      load: what runs on it, for people.
      num_cards: that take part.
      num_flows: pairs with bytes.
      time_us: what the busiest link needs for its bytes alone; no schedule is faster.
      exact_us: of the max-min fair transfer, where equal ranks make it solvable; else None.
      tiers: the busiest link of each tier, slowest first.
      alone_us: the worst group's own bound, if it had the cluster for itself; None for one exchange.
    """

    system: str
    load: str
    num_cards: int
    num_flows: int
    time_us: float
    exact_us: float | None
    tiers: tuple[Tier, ...]
    alone_us: float | None


def groups_on_cluster(
    platform: Platform,
    bytes_matrix: npt.NDArray[np.int64],
    *,
    num_groups: int | None = None,
    placement: Placement = "packed",
    policy: GroupPolicy = "spray",
    seed: int = 0,
) -> ClusterAnswer:
    """Bound many groups that exchange the same bytes at the same time.

    Args:
      platform: must have a graph.
      bytes_matrix: [G, G] int64 bytes on the wire, [src rank, dst rank].
      num_groups: n; None = as many as fit.
      placement: "packed" fills supernodes, "spread" puts neighbours in different ones, "random" draws.
      policy: "spray" or "flow-hash".
      seed: of the placement and the hash.

    Raises:
      InputError: no graph, too many ranks, or an unknown word.
    """
    from epsim.flow.groups import bound_groups, place_groups

    topology = payload_topology(platform)
    size = len(bytes_matrix)
    count = max(1, topology.num_npus // size) if num_groups is None else num_groups
    npus = place_groups(topology, count, size, placement, seed=seed)
    found = bound_groups(topology, npus, bytes_matrix, policy=policy, seed=seed)
    return ClusterAnswer(
        system=platform.name,
        load=f"{count:,} groups of {size}, {placement}, {policy}",
        num_cards=count * size,
        num_flows=found.num_flows,
        time_us=found.bound.time_ps / 1e6,
        exact_us=None,
        tiers=_tiers(topology, found.tiers),
        alone_us=float(found.group_ps.max()) / 1e6,
    )


def exchange_on_cluster(platform: Platform, bytes_per_pair: int) -> ClusterAnswer:
    """Solve one exchange in which every card sends the same bytes to every other one.

    Pairs are never listed: 262,144 cards have 69 billion.

    Args:
      platform: must have a graph.
      bytes_per_pair: from 1 to `MAX_PAIR_BYTES`.

    Raises:
      InputError: no graph, bytes out of range, or a time that 64 bits may not hold.
    """
    from epsim.flow.projection import project_law, uniform_law
    from epsim.flow.symmetry import solve_classes, uniform_classes

    check_pair_bytes(bytes_per_pair)
    topology = payload_topology(platform)
    cards = topology.num_npus
    found = project_law(topology, uniform_law(cards, bytes_per_pair))
    if found.bound.time_ps > MAX_SECONDS * 1e12:
        rule = f"takes {found.bound.time_ps / 1e12:.3g} s; must take at most {MAX_SECONDS:,.0f} s"
        raise InputError("bytes per pair", bytes_per_pair, rule)
    exact = solve_classes(topology, uniform_classes(cards, bytes_per_pair))
    return ClusterAnswer(
        system=platform.name,
        load=f"one exchange among all cards, {bytes_per_pair:,} bytes a pair",
        num_cards=cards,
        num_flows=cards * (cards - 1),
        time_us=found.bound.time_ps / 1e6,
        exact_us=exact.makespan_ps / 1e6,
        tiers=_tiers(topology, found.tiers),
        alone_us=None,
    )


def check_pair_bytes(bytes_per_pair: int, field: str = "bytes per pair", text: str | None = None) -> None:
    """Refuse an exchange of nothing, or of more than times can hold.

    Args:
      bytes_per_pair: of one card to another.
      field: the name used in the error.
      text: the value as the user wrote it.

    Raises:
      InputError: names `field`.
    """
    if not 1 <= bytes_per_pair <= MAX_PAIR_BYTES:
        raise InputError(field, bytes_per_pair if text is None else text, "must be from 1B to 64GiB")


def payload_topology(platform: Platform) -> Topology:
    """Return the graph with every link at its payload rate.

    Raises:
      InputError: the system is a profile without a graph, has too many cards, or joins cards directly.
    """
    topology = platform.network.topology
    if topology is None:
        raise InputError("system", platform.name, "has no graph; name a preset such as clos:262144")
    if topology.num_npus > MAX_CARDS:
        raise InputError("number of cards", topology.num_npus, f"must be at most {MAX_CARDS:,}")
    is_direct = np.maximum(topology.link_src, topology.link_dst) < topology.num_npus
    if np.isin(topology.link_netlayer[is_direct], layer_order(topology)).any():
        rule = "joins cards directly, and loads are summed over switches; name a system such as clos:1024"
        raise InputError("system", platform.name, rule)
    efficiency = platform.software.wire_efficiency.value
    near, far = (payload_share(platform.hardware, form) * efficiency for form in (None, SCALEOUT_FORM))
    is_far = np.zeros(len(topology.classes), np.bool_)
    is_far[topology.link_class[topology.link_netlayer == NETLAYER_SCALEOUT]] = True
    classes = tuple(
        replace(kind, bandwidth_bytes_per_s=max(1, round(kind.bandwidth_bytes_per_s * share)))
        for kind, share in zip(topology.classes, np.where(is_far, far, near).tolist(), strict=True)
    )
    return replace(topology, classes=classes)


def _tiers(topology: Topology, bounds: Mapping[str, LinkBound]) -> tuple[Tier, ...]:
    found = [
        Tier(
            name=name,
            time_us=bound.time_ps / 1e6,
            link=str(topology.link(bound.link_idx)),
            gbytes=float(bound.link_bytes) / 1e9,
        )
        for name, bound in bounds.items()
    ]
    return tuple(sorted(found, key=lambda tier: -tier.time_us))
