"""Equal ranks as one: max-min fair transfer of a law's bytes, solved exactly on classes of flows.

Ranks of one class (`epsim.flow.refine`) have the same rates at any time, so a flow from class to class in
one relation stands for all of them, and a link stands for all links that are loaded alike. A link's
share of a flow class is the sum over the flows that cross it, so the quotient's rates and finish times are
those of the listed flows; tests list them. Fractions throughout: uniform traffic on 262,144 cards is a
handful of numbers.

The model is that of `epsim.flow`: one rate per flow, spread over its paths by the shares of spray; rates
are max-min fair over links and, where given, over what a card can send and receive; latency is not in it.

Dimension legend: R ranks, N NPUs, L links.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.projection import law_router
from epsim.flow.quotient import Resource, solve_quotient
from epsim.flow.refine import Partition, partition
from epsim.flow.rolelinks import FlowRole, Rates, flow_roles, link_resources
from topology import Topology
from topology.graph import IntArray
from topology.routes import Policy
from topology.units import PS_PER_SECOND

Int64 = npt.NDArray[np.int64]


class ClassLaw:
    """Traffic by kinds: bytes(src, dst) = kind_bytes[kind[src], kind[dst]] within a group, src != dst.

    Args:
      kind: [R] integers, row and column of `kind_bytes`.
      kind_bytes: [kinds, kinds] integers, not negative, below 2^53.
      group: [R] integers; ranks of different groups exchange nothing. One group when absent.

    Raises:
      InputError: a shape, type or number breaks this.
    """

    def __init__(self, kind: IntArray, kind_bytes: IntArray, group: IntArray | None = None) -> None:
        """Check and keep."""
        kind, kind_bytes = np.asarray(kind), np.asarray(kind_bytes)
        group = np.zeros(len(kind), np.int64) if group is None else np.asarray(group)
        for field, values, shape in (
            ("kind", kind, (max(1, kind.size),)), ("group", group, kind.shape),
            ("kind_bytes", kind_bytes, (len(kind_bytes),) * 2),
        ):  # fmt: skip
            if values.shape != shape or not np.issubdtype(values.dtype, np.integer):
                rule = f"must be integers of shape {shape}"
                raise InputError(field, f"{values.dtype} {values.shape}", rule)
        if kind.min() < 0 or kind.max() >= len(kind_bytes):
            rank = int(((kind < 0) | (kind >= len(kind_bytes))).argmax())
            raise InputError(f"kind[{rank}]", int(kind[rank]), f"must be in 0..{len(kind_bytes) - 1}")
        if kind_bytes.min() < 0 or kind_bytes.max() >= 2**53:
            wrong = int(kind_bytes.min() if kind_bytes.min() < 0 else kind_bytes.max())
            raise InputError("kind_bytes", wrong, "must be in 0..2^53 - 1")
        self.kind, self.group = kind.astype(np.int64), group.astype(np.int64)
        self.kind_bytes = kind_bytes.astype(np.int64)

    @property
    def num_ranks(self) -> int:
        """Count the ranks, R."""
        return len(self.kind)


def uniform_classes(num_ranks: int, bytes_per_pair: int, group_size: int | None = None) -> ClassLaw:
    """Let each rank send the same bytes to each other rank, of all or of its group of consecutive ranks."""
    size = num_ranks if group_size is None else group_size
    for field, value in (("num_ranks", num_ranks), ("group_size", size)):
        if value < 1:
            raise InputError(field, value, "must be at least 1")
    ranks = np.arange(num_ranks)
    return ClassLaw(np.zeros(num_ranks, np.int64), np.array([[bytes_per_pair]]), ranks // size)


def matrix_classes(matrix: IntArray) -> ClassLaw:
    """Take a byte matrix [R, R] as a law; equal ranks are found by refinement."""
    return ClassLaw(np.arange(len(matrix)), matrix)


@dataclass(frozen=True, kw_only=True)
class RankClass:
    """Ranks with equal roles.

    Args:
      size: how many.
      npu: the NPU of the lowest of them.
      finish_ps: when the last byte from or to each of them has passed, integer picoseconds.
    """

    size: int
    npu: int
    finish_ps: int


@dataclass(frozen=True, kw_only=True)
class FlowClass:
    """Flows with equal roles.

    Args:
      src_class, dst_class: of their ranks.
      netlayer: that they take.
      count: how many.
      flow_bytes: of each.
      first_bytes_per_s: rate of each while none has ended.
      finish_ps: when each ends, integer picoseconds.
    """

    src_class: int
    dst_class: int
    netlayer: int
    count: int
    flow_bytes: int
    first_bytes_per_s: Fraction
    finish_ps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassedResult:
    """A transfer solved on classes.

    Args:
      makespan_ps: when the last flow ends, rounded up to whole picoseconds.
      bound_ps: time of the busiest resource; never above the makespan.
      binding: name of that resource.
      binding_link: its link, -1 when a card's own limit binds or nothing moves.
      rank_class: [R] int64.
      ranks: the classes of ranks.
      flows: the classes of flows.
    """

    makespan_ps: int
    bound_ps: int
    binding: str
    binding_link: int
    rank_class: Int64
    ranks: tuple[RankClass, ...]
    flows: tuple[FlowClass, ...]

    def rank_finish_ps(self) -> Int64:
        """Expand the finish times to ranks: [R] int64, picoseconds."""
        return np.array([one.finish_ps for one in self.ranks], np.int64)[self.rank_class]


def solve_classes(
    topology: Topology,
    law: ClassLaw,
    *,
    npus: IntArray | None = None,
    policy: Policy = "spray",
    link_bytes_per_s: npt.ArrayLike | None = None,
    send_bytes_per_s: npt.ArrayLike | None = None,
    receive_bytes_per_s: npt.ArrayLike | None = None,
) -> ClassedResult:
    """Solve the max-min fair transfer of a law on classes of equal ranks.

    Args:
      topology: the graph; its netlayers in use join cards through switches.
      law: R ranks.
      npus: [R] NPU of each rank; rank r sits on NPU r when absent.
      policy: must be "spray": a hash tells every pair apart.
      link_bytes_per_s: [L] payload rate of each link; the nominal rates when absent.
      send_bytes_per_s: [N], or one for all: what an NPU can put out in all; no such limit when absent.
      receive_bytes_per_s: likewise for what comes in.

    Raises:
      InputError: a policy or a layer without symmetry, too many classes, or a rate out of range.
      TopologyError: ranks and NPUs do not fit each other, or a pair with bytes has no path.
    """
    if policy != "spray":
        rule = "breaks symmetry: paths depend on each pair; use epsim.flow.groups, or list the flows"
        raise InputError("policy", policy, rule)
    router = law_router(topology, law.num_ranks, npus)
    nominal = topology.link_bytes_per_s() if link_bytes_per_s is None else link_bytes_per_s
    rates = _rates("link_bytes_per_s", nominal, topology.num_links)
    cards = [
        (name, _rates(f"{name}_bytes_per_s", given, topology.num_npus)[router.npus])
        for name, given in (("send", send_bytes_per_s), ("receive", receive_bytes_per_s))
        if given is not None
    ]
    parts = partition(router, law.kind, law.group, law.kind_bytes, rates, [limit for _, limit in cards])
    roles = flow_roles(router, parts)
    resources = link_resources(router, parts, roles, rates)
    resources += _card_resources(router.npus, parts, roles, cards)
    solved = solve_quotient([Fraction(role.pair_bytes) for role in roles], resources)
    return _expand(topology, router.npus, parts, roles, resources, solved.first_rate, solved.finish)


def _rates(field: str, given: npt.ArrayLike, length: int) -> Rates:
    rates = np.asarray(given)
    if rates.ndim == 0:
        rates = np.broadcast_to(rates, (length,))
    if rates.shape != (length,):
        raise InputError(f"shape of {field}", rates.shape, f"must be ({length},)")
    if not (np.isfinite(rates) & (rates > 0)).all():
        wrong = int((~(np.isfinite(rates) & (rates > 0))).argmax())
        raise InputError(f"{field}[{wrong}]", rates[wrong].item(), "must be positive and finite")
    return rates


def _card_resources(
    npus: Int64, parts: Partition, roles: list[FlowRole], cards: list[tuple[str, Rates]]
) -> Iterator[Resource]:
    """Limit what a card of each class can send and receive in all."""
    for name, limit in cards:
        for colour in range(parts.num_classes):
            rank = parts.first[(parts.colour == colour).argmax()]
            shares = {
                flow: Fraction(role.num_out if name == "send" else role.num_in)
                for flow, role in enumerate(roles)
                if colour == (role.src_class if name == "send" else role.dst_class)
            }
            yield Resource(Fraction(limit[rank].item()), shares, -1, f"{name} limit of npu{npus[rank]}")


def _expand(
    topology: Topology, npus: Int64, parts: Partition, roles: list[FlowRole], resources: list[Resource],
    first_rate: list[Fraction], finish: list[Fraction],
) -> ClassedResult:  # fmt: skip
    """Give classes their times, and name what binds."""
    ends = [math.ceil(seconds * PS_PER_SECOND) for seconds in finish]
    last = [0] * parts.num_classes
    for role, end in zip(roles, ends, strict=True):
        for side in (role.src_class, role.dst_class):
            last[side] = max(last[side], end)
    sizes = np.bincount(parts.colour, weights=parts.size).astype(np.int64)
    lowest = [int(parts.first[parts.colour == colour].min()) for colour in range(parts.num_classes)]
    times = [one.seconds([role.pair_bytes for role in roles]) for one in resources]
    slowest = max(range(len(times)), key=times.__getitem__, default=-1)
    busy = slowest >= 0 and times[slowest] > 0
    link = resources[slowest].link_idx if busy else -1
    name = "nothing moves"
    if busy:
        name = str(topology.link(link)) if link >= 0 else resources[slowest].name
    return ClassedResult(
        makespan_ps=max(ends, default=0),
        bound_ps=math.ceil(times[slowest] * PS_PER_SECOND) if busy else 0,
        binding=name,
        binding_link=link,
        rank_class=parts.colour[parts.cell],
        ranks=tuple(
            RankClass(size=int(sizes[c]), npu=int(npus[lowest[c]]), finish_ps=last[c])
            for c in range(parts.num_classes)
        ),
        flows=tuple(
            FlowClass(
                src_class=role.src_class, dst_class=role.dst_class, netlayer=role.netlayer,
                count=int(sizes[role.src_class]) * role.num_out, flow_bytes=role.pair_bytes,
                first_bytes_per_s=rate, finish_ps=end,
            )
            for role, rate, end in zip(roles, first_rate, ends, strict=True)
        ),
    )  # fmt: skip
