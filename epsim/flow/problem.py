"""What a flow simulation is given: flows, what each uses, and how much there is of it.

A resource is anything with a rate that flows share: a link, a bundle of links that are always used
alike, a card's limit on sending. A flow at rate x takes x * share of each of its resources.

Dimension legend: F flows, H resources of a flow (the most there are; -1 pads), C resources, M limits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from topology.graph import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]

LIMIT_KINDS = ("link", "send limit", "receive limit", "resource")
LINK, SEND, RECEIVE, RESOURCE = range(4)

MAX_CELLS = 2**28
"""Flows times resources of a flow: what fits a small machine's memory."""

MAX_PS = 2**62
"""53 days: the latest end, so that picoseconds and sums of two of them fit 64 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """The real things behind resources; those that are always used alike share one.

    Args:
      resource_idx: [M] int64, whose limit it is.
      kind: [M] uint8, index into LIMIT_KINDS.
      item_idx: [M] int64, the link of a topology, the NPU, or the number of the resource itself.
      share: [M] float64, bytes over this thing for each byte over the resource.
      bytes_per_s: [M] float64, its own rate.
    """

    resource_idx: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    item_idx: npt.NDArray[np.int64]
    share: Floats
    bytes_per_s: Floats

    @staticmethod
    def own(capacity_bytes_per_s: Floats) -> "Limits":
        """Make every resource its own limit, as problems written by hand have it."""
        count = np.arange(len(capacity_bytes_per_s), dtype=np.int64)
        kind = np.full(len(count), RESOURCE, np.uint8)
        ones = np.ones(len(count))
        rates = np.asarray(capacity_bytes_per_s, np.float64)
        return Limits(resource_idx=count, kind=kind, item_idx=count, share=ones, bytes_per_s=rates)


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowProblem:
    """Flows and the resources they share; immutable by convention.

    Args:
      size_bytes: [F] int64, not negative. A flow without bytes or without resources ends as it starts.
      start_ps: [F] int64, not negative.
      src_npu, dst_npu: [F] int64, the ends of each flow; -1 where a flow has none.
      resource_idx: [F, H] int32, -1 pads; no resource twice in a row.
      share: [F, H] float64, positive and finite where there is a resource, anything elsewhere.
      capacity_bytes_per_s: [C] float64, positive and finite, decimal bytes.
      limits: what the resources stand for.

    Raises:
      InputError: an array has the wrong shape or holds a value out of range, or a flow may end after
        `MAX_PS`.
    """

    size_bytes: npt.NDArray[np.int64]
    start_ps: npt.NDArray[np.int64]
    src_npu: npt.NDArray[np.int64]
    dst_npu: npt.NDArray[np.int64]
    resource_idx: npt.NDArray[np.int32]
    share: Floats
    capacity_bytes_per_s: Floats
    limits: Limits

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        shape = self.resource_idx.shape
        if len(shape) != 2 or self.share.shape != shape:
            raise InputError("shape of share", self.share.shape, f"must equal [flows, resources], {shape}")
        for name in ("size_bytes", "start_ps", "src_npu", "dst_npu"):
            values = getattr(self, name)
            if values.shape != (shape[0],):
                raise InputError(f"shape of {name}", values.shape, f"must be one per flow, {shape[:1]}")
            _within(name, values, -1 if name.endswith("npu") else 0, MAX_PS)
        _within("resource_idx", self.resource_idx, -1, len(self.capacity_bytes_per_s) - 1)
        _positive("capacity_bytes_per_s", self.capacity_bytes_per_s)
        _positive("share", self.share[self.resource_idx >= 0])
        ordered = np.sort(self.resource_idx, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
        if twice.any():
            flow = int(twice.argmax())
            raise InputError(f"resource_idx[{flow}]", self.resource_idx[flow].tolist(), "must not repeat")
        self._check_time()

    def _check_time(self) -> None:
        """Refuse ends that 64 bits do not hold.

        At any time a flow is held by one of its resources, which is full; all of a resource's bytes keep it
        full for bytes / rate, so a flow ends by the last start plus the sum of that over its resources.
        """
        if not len(self.size_bytes) or not self.num_resources:
            return
        seconds = np.append(self.resource_bytes() / self.capacity_bytes_per_s, 0.0)
        ends = seconds[self.resource_idx].sum(axis=1) * self.is_live + self.start_ps.max() * 1e-12
        worst = int(ends.argmax())
        if ends[worst] * 1e12 >= MAX_PS:
            rule = f"may end after {ends[worst]:.3g} s beside the others; must end within 53 days, as"
            size = int(self.size_bytes[worst])
            raise InputError(f"size_bytes[{worst}]", size, f"{rule} picoseconds are counted in 64 bits")

    @property
    def num_flows(self) -> int:
        """Count the flows, F."""
        return len(self.size_bytes)

    @property
    def num_resources(self) -> int:
        """Count the resources, C."""
        return len(self.capacity_bytes_per_s)

    @property
    def is_live(self) -> npt.NDArray[np.bool_]:
        """Mark flows that take time, [F]: they have bytes and a resource."""
        return np.asarray((self.size_bytes > 0) & (self.resource_idx >= 0).any(axis=1))

    def resource_bytes(self) -> Floats:
        """Sum the bytes that cross each resource, [C] float64."""
        used = self.resource_idx >= 0
        carried = (self.size_bytes[:, None] * np.where(used, self.share, 0.0))[used]
        total = np.bincount(self.resource_idx[used], weights=carried, minlength=self.num_resources)
        return np.asarray(total, np.float64)

    def bundle_bytes(self, resource_idx: int, topology: Topology) -> float:
        """Sum the bytes that cross what `describe` names, every byte once.

        Limits of a card see all bytes of a flow. Links side by side see their parts, which add up; of links
        one behind the other, as a card's up and its only peer's down, those of the tier with the most count.

        Args:
          resource_idx: 0..C-1.
          topology: that the links are of.
        """
        limits, uses = self.limits, self.resource_idx == resource_idx
        mine = np.flatnonzero(limits.resource_idx == resource_idx)
        if np.isin(limits.kind[mine], (SEND, RECEIVE)).any():
            return float(self.size_bytes[uses.any(axis=1)].sum())
        flow, column = np.nonzero(uses)
        carried = float((self.size_bytes[flow] * self.share[flow, column]).sum())
        links = limits.item_idx[mine][limits.kind[mine] == LINK]
        if not len(links):
            return carried
        # Cards below leaves below spines: two of them and the layer are a tier in one direction.
        height = np.append(np.full(topology.num_npus, -1), topology.switch_tier)
        ends = height[topology.link_src[links]], height[topology.link_dst[links]]
        _, tier = np.unique(
            np.column_stack([topology.link_netlayer[links], *ends]), axis=0, return_inverse=True
        )
        return carried * float(np.bincount(tier.ravel(), weights=limits.share[mine]).max())

    def _tightest(self, resource_idx: int) -> int:
        limits = self.limits
        mine = np.flatnonzero(limits.resource_idx == resource_idx)
        return int(mine[int((limits.bytes_per_s[mine] / limits.share[mine]).argmin())])

    def describe(self, resource_idx: int, topology: Topology | None = None) -> str:
        """Name a resource for people by its tightest limit and the number of others behind it.

        Args:
          resource_idx: 0..C-1.
          topology: names the ends of links; without it they are numbers.
        """
        limits = self.limits
        tightest = self._tightest(resource_idx)
        kind, item = int(limits.kind[tightest]), int(limits.item_idx[tightest])
        name = f"{LIMIT_KINDS[kind]} {item}"
        if kind in (SEND, RECEIVE):
            name = f"{LIMIT_KINDS[kind]} of npu{item}"
        elif kind == LINK and topology is not None:
            src, dst = (int(ends[item]) for ends in (topology.link_src, topology.link_dst))
            name = f"link {item} ({topology.vertex_name(src)} -> {topology.vertex_name(dst)})"
        others = int((limits.resource_idx == resource_idx).sum()) - 1
        return name if not others else f"{name} and {others} more used alike"


def by_hand(
    size_bytes: npt.ArrayLike,
    resources: list[dict[int, float]],
    capacity_bytes_per_s: npt.ArrayLike,
    start_ps: npt.ArrayLike | None = None,
) -> FlowProblem:
    """Write a problem without a topology: each flow's resources as {resource: share}.

    Args:
      size_bytes: [F] integers.
      resources: F of {resource_idx: share}.
      capacity_bytes_per_s: [C] numbers.
      start_ps: [F] integers; all 0 when absent.

    Raises:
      InputError: as `FlowProblem`, and for sizes or starts that are no integers.
    """
    width = max([1, *map(len, resources)])
    table = np.full((len(resources), width), -1, np.int32)
    share = np.zeros((len(resources), width))
    for flow, uses in enumerate(resources):
        table[flow, : len(uses)] = list(uses.keys())
        share[flow, : len(uses)] = list(uses.values())
    size = whole_numbers("size_bytes", size_bytes)
    capacity = np.asarray(capacity_bytes_per_s, np.float64)
    nowhere = np.full(len(resources), -1, np.int64)
    return FlowProblem(
        size_bytes=size,
        start_ps=np.zeros(len(size), np.int64) if start_ps is None else whole_numbers("start_ps", start_ps),
        src_npu=nowhere,
        dst_npu=nowhere,
        resource_idx=table,
        share=share,
        capacity_bytes_per_s=capacity,
        limits=Limits.own(capacity),
    )


def whole_numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return bytes or picoseconds as int64, checked before a cast could change them.

    Raises:
      InputError: no integers (NaN is none), or one outside 0..`MAX_PS`.
    """
    found = np.asarray(values)
    if found.size:
        _within(name, found, 0, MAX_PS)
    return found.astype(np.int64)


def _within(name: str, values: Ints, lowest: int, highest: int) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"type of {name}", str(values.dtype), "must be integers")
    wrong = (values < lowest) | (values > highest)
    if wrong.any():
        where = tuple(int(n) for n in np.argwhere(wrong)[0])
        place = ", ".join(map(str, where))
        raise InputError(f"{name}[{place}]", int(values[where]), f"must be in {lowest}..{highest}")


def _positive(name: str, values: Floats) -> None:
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        where = int(wrong.argmax())
        raise InputError(f"{name}[{where}]", float(values[where]), "must be positive and finite")
