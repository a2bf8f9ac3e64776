"""From flows on a topology to a problem: routes, rates, cards' own limits, and resources used alike merged.

Dimension legend: F flows, E entries (a flow on a resource), C resources, M limits, L links, N NPUs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.flow.problem import (
    LINK,
    MAX_CELLS,
    RECEIVE,
    SEND,
    Floats,
    FlowProblem,
    Ints,
    Limits,
    whole_numbers,
)
from epsim.flow.spray import HOP_RECEIVE, HOP_SEND, Behind, Use, spray_uses
from topology.routes import Policy, Router

Int64 = npt.NDArray[np.int64]
_GOLDEN = 0x9E3779B97F4A7C15


def flow_problem(
    router: Router,
    src: Ints,
    dst: Ints,
    size_bytes: Ints,
    *,
    policy: Policy = "spray",
    seed: int = 0,
    key: Ints | None = None,
    link_bytes_per_s: npt.ArrayLike | None = None,
    send_bytes_per_s: npt.ArrayLike | None = None,
    receive_bytes_per_s: npt.ArrayLike | None = None,
    start_ps: npt.ArrayLike | None = None,
    send_share: npt.ArrayLike | None = None,
) -> FlowProblem:
    """Put flows on the links of a topology.

    Args:
      router: of the topology and the NPUs that take part.
      src: [F] NPU each flow leaves.
      dst: [F] NPU each flow goes to; a flow from an NPU to itself ends as it starts.
      size_bytes: [F] payload bytes.
      policy: as of `Router.find`.
      seed: as of `Router.find`.
      key: as of `Router.find`.
      link_bytes_per_s: [L] payload rate of each link; the nominal rates when absent.
      send_bytes_per_s: [N] what each NPU can put out in all; no such limit when absent.
      receive_bytes_per_s: [N] likewise for what comes in.
      start_ps: [F] int64 or one number; 0 when absent.
      send_share: [F] how much of its NPU's sending limit a byte of the flow takes; 1 when absent.

    Returns:
      FlowProblem; resources that all flows use alike are one, with the tightest rate.

    Raises:
      InputError: lengths differ, a number is out of range or no integer, or a flow may end after 53 days.
      TopologyError: no such policy or NPU, or no path for a pair.
    """
    src, dst, size = np.asarray(src), np.asarray(dst), whole_numbers("size_bytes", size_bytes)
    for name, values in (("src", src), ("dst", dst)):
        if values.shape != size.shape:
            raise InputError(f"shape of {name}", values.shape, f"must be that of size_bytes, {size.shape}")
        if not np.issubdtype(values.dtype, np.integer):
            raise InputError(f"type of {name}", str(values.dtype), "must be integers")
    topology = router.topology
    rates = topology.link_bytes_per_s() if link_bytes_per_s is None else np.asarray(link_bytes_per_s)
    if rates.shape != (topology.num_links,):
        rule = f"must be one per link, {topology.num_links}"
        raise InputError("shape of link_bytes_per_s", rates.shape, rule)
    table = _Table(len(size))
    _add_routes(table, router, src, dst, policy, seed, key, rates.astype(np.float64))
    moving = np.flatnonzero(src != dst)
    ones = np.ones(len(size))
    shares = ones if send_share is None else np.asarray(send_share, np.float64)
    for kind, ends, given, share in (
        (SEND, src, send_bytes_per_s, shares), (RECEIVE, dst, receive_bytes_per_s, ones)
    ):  # fmt: skip
        if given is not None:
            rate = np.asarray(given, np.float64)
            table.add_card_limit(kind, moving, ends[moving], rate, topology.num_npus, share[moving])
    start = np.broadcast_to(whole_numbers("start_ps", 0 if start_ps is None else start_ps), size.shape)
    return table.problem(size, start, src, dst)


def _add_routes(
    table: "_Table", router: Router, src: Ints, dst: Ints, policy: Policy, seed: int, key: Ints | None,
    rates: Floats,
) -> None:  # fmt: skip
    if policy == "spray":
        # An empty search checks policy and NPUs in the router's own words.
        ends = np.unique(np.concatenate([src, dst]))
        router.find(ends, ends)
        uses, behind = spray_uses(router, router.position[src], router.position[dst])
        table.add(uses, behind, rates)
        return
    routes = router.find(src, dst, policy, seed=seed, key=key)
    links = routes.link_idx.astype(np.int64)
    used = np.unique(links)
    uses = []
    for hop in range(4):
        here = routes.hop == hop
        uses.append(Use(routes.flow_idx[here], links[here], routes.share[here], hop + 1))
    table.add(uses, [Behind(used, used, np.ones(len(used)))], rates)


class _Table:
    """Entries and limits on the way to a problem.

    Args:
      num_flows: F.
    """

    def __init__(self, num_flows: int) -> None:
        """Start empty."""
        self.num_flows = num_flows
        self.uses: list[Use] = []
        self.limits: list[Limits] = []
        self.next_key = 0

    def add(self, uses: list[Use], behind: list[Behind], rates: Floats) -> None:
        """Add flows on bundles of links whose rates are [L]."""
        first = self.next_key
        for block in behind:
            kind = np.full(len(block.key), LINK, np.uint8)
            self._limit(first + block.key, kind, block.link, block.share, rates[block.link])
        self.uses += [use._replace(key=first + use.key) for use in uses]

    def add_card_limit(
        self, kind: int, flows: Int64, npu: Ints, rates: Floats, num_npus: int, share: Floats
    ) -> None:
        """Give every NPU one more resource, for all that it sends or receives."""
        name = "send_bytes_per_s" if kind == SEND else "receive_bytes_per_s"
        if rates.shape != (num_npus,):
            raise InputError(f"shape of {name}", rates.shape, f"must be one per NPU, {num_npus}")
        first = self.next_key
        item = np.arange(num_npus)
        self._limit(first + item, np.full(num_npus, kind, np.uint8), item, np.ones(num_npus), rates)
        hop = HOP_SEND if kind == SEND else HOP_RECEIVE
        self.uses.append(Use(flows, first + npu.astype(np.int64), share, hop))

    def _limit(
        self, key: Int64, kind: npt.NDArray[np.uint8], item: Int64, share: Floats, rate: Floats
    ) -> None:
        self.limits.append(Limits(resource_idx=key, kind=kind, item_idx=item, share=share, bytes_per_s=rate))
        self.next_key = max(self.next_key, int(key.max(initial=-1)) + 1)

    def problem(self, size: Int64, start: Int64, src: Ints, dst: Ints) -> FlowProblem:
        """Merge resources that are used alike and make the problem."""
        flow = _joined([use.flow for use in self.uses], np.int64)
        hop = _joined([np.full(len(use.flow), use.hop) for use in self.uses], np.int64)
        order = np.argsort(flow * 8 + hop, kind="stable")
        flow = flow[order]
        key = _joined([use.key for use in self.uses], np.int64)[order]
        share = _joined([use.share for use in self.uses], np.float64)[order]
        used, resource = _compact(key, self.next_key)
        limits = _limits_of(self.limits, used, self.next_key)
        keeper, scale = _merge_alike(flow, resource, share, len(used))
        stays = keeper[resource] == resource
        number = np.cumsum(keeper == np.arange(len(used))) - 1
        limits = _behind_keepers(limits, number[keeper], scale)
        # The tightest of all limits behind a resource is its capacity.
        capacity = np.full(int(number[-1]) + 1 if len(used) else 0, np.inf)
        np.minimum.at(capacity, limits.resource_idx, limits.bytes_per_s / limits.share)
        cells = self._padded(flow[stays], number[resource[stays]], share[stays])
        return FlowProblem(
            size_bytes=size, start_ps=start,
            src_npu=src.astype(np.int64), dst_npu=dst.astype(np.int64),
            resource_idx=cells[0], share=cells[1], capacity_bytes_per_s=capacity, limits=limits,
        )  # fmt: skip

    def _padded(self, flow: Int64, resource: Int64, share: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
        count = np.bincount(flow, minlength=self.num_flows)
        width = max(1, int(count.max(initial=0)))
        if self.num_flows * width > MAX_CELLS:
            rule = f"flows times resources of a flow must be at most {MAX_CELLS:,}"
            raise InputError(
                "number of flows", self.num_flows, f"at {width} resources each is too many: {rule}"
            )
        column = np.arange(len(flow)) - (np.cumsum(count) - count)[flow]
        table = np.full((self.num_flows, width), -1, np.int32)
        shares = np.zeros((self.num_flows, width))
        table[flow, column], shares[flow, column] = resource, share
        return table, shares


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _compact(key: Int64, num_keys: int) -> tuple[Int64, Int64]:
    """List the keys in use, ascending [C], and the number of each entry's key [E]."""
    present = np.zeros(num_keys, np.bool_)
    present[key] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[key]


def _limits_of(blocks: list[Limits], used: Int64, num_keys: int) -> Limits:
    """Join blocks of limits and leave out those of keys that no flow uses."""
    number = np.full(num_keys, -1, np.int64)
    number[used] = np.arange(len(used))
    key = number[_joined([block.resource_idx for block in blocks], np.int64)]
    order = np.argsort(key, kind="stable")
    order = order[int((key < 0).sum()) :]
    return Limits(
        resource_idx=key[order],
        kind=_joined([block.kind for block in blocks], np.uint8)[order],
        item_idx=_joined([block.item_idx for block in blocks], np.int64)[order],
        share=_joined([block.share for block in blocks], np.float64)[order],
        bytes_per_s=_joined([block.bytes_per_s for block in blocks], np.float64)[order],
    )


def _behind_keepers(limits: Limits, number: Int64, scale: Floats) -> Limits:
    """Move limits to the resources that stand for theirs; [C] new number and relative use."""
    resource = number[limits.resource_idx]
    order = np.argsort(resource, kind="stable")
    return Limits(
        resource_idx=resource[order],
        kind=limits.kind[order],
        item_idx=limits.item_idx[order],
        share=(limits.share * scale[limits.resource_idx])[order],
        bytes_per_s=limits.bytes_per_s[order],
    )


def _merge_alike(flow: Int64, resource: Int64, share: Floats, count: int) -> tuple[Int64, Floats]:
    """Find resources whose use by all flows is the same up to a factor.

    Args:
      flow: [E] ascending.
      resource: [E] 0..C-1.
      share: [E].
      count: C.

    Returns:
      [C] the resource that stands for each (the lowest number among its like), and [C] how many times
      more than that one it is used.
    """
    order = np.argsort(resource.astype(np.uint16) if count < 2**16 else resource, kind="stable")
    flow, share = flow[order], share[order]
    size = np.bincount(resource, minlength=count)
    first = np.cumsum(size) - size
    scale = share[first]
    shape = share / np.repeat(scale, size)
    # A hash finds candidates; equality is then looked at, entry by entry.
    word = (flow.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    word ^= word >> np.uint64(29)
    word *= shape.view(np.uint64) | np.uint64(1)
    mark = np.add.reduceat(word, first) if count else word
    _, lowest, group = np.unique(
        np.column_stack([mark, size.astype(np.uint64)]), axis=0, return_index=True, return_inverse=True
    )
    keeper = lowest[group.reshape(-1)]
    twin = np.repeat(first[keeper] - first, size) + np.arange(len(flow))
    twin = np.minimum(twin, max(0, len(flow) - 1))
    same = (flow == flow[twin]) & (shape == shape[twin])
    alike = np.logical_and.reduceat(same, first) if count else same
    keeper = np.where(alike, keeper, np.arange(count))
    return keeper, np.asarray(scale / scale[keeper])
