"""Bytes over links, summed exactly: the busiest link of each tier and of all.

A load is a fraction of whole bytes; sums are kept over one denominator, in Python's integers where 63 bits
might not hold them. Each link carries bytes of one tier only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topology import LinkBound, Topology
from topology.graph import IntArray
from topology.units import PS_PER_SECOND

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
Wide = npt.NDArray[Any]
"""Integers: int64, or Python's own (dtype object) where 63 bits might not hold them."""

EXACT_FLOAT = 2**53
SAFE_INT64 = 2**62
MAX_CELLS = 2**28  # domains x domains x planes: a mask of 256 MB

TIERS = ("card to leaf", "leaf to spine", "spine to leaf", "leaf to card")


class Load(NamedTuple):
    """A link carries the sum of numerator / denominator over its entries; [E] each, or [1] for all alike."""

    links: IntArray
    numerators: Wide
    denominators: Int64


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The busiest link of a law.

    Args:
      bound: over all links; bytes include the law's scale.
      tiers: the same per tier, e.g. "netlayer 2, leaf to spine"; only tiers that carry bytes.
    """

    bound: LinkBound
    tiers: Mapping[str, LinkBound]


def summarise(
    topology: Topology, tiers: Mapping[str, Sequence[Load]], scale: Fraction = Fraction(1)
) -> Projection:
    """Sum loads per tier (tiers share no link) and pick the busiest of each and of all."""
    bounds = {tier: busiest(topology, loads, scale) for tier, loads in tiers.items()}
    bounds = {tier: bound for tier, bound in bounds.items() if bound.link_idx >= 0}
    if not bounds:
        return Projection(bound=busiest(topology, [], scale), tiers={})

    def rank(bound: LinkBound) -> tuple[Fraction, int]:
        rate = int(topology.link_bytes_per_s(np.array([bound.link_idx]))[0])
        return -bound.link_bytes / rate, bound.link_idx

    links = np.concatenate([bound.used_links for bound in bounds.values()])
    order = np.argsort(links, kind="stable")  # merges the tiers' ascending runs
    carried = np.concatenate([bound.used_bytes for bound in bounds.values()])
    whole = replace(min(bounds.values(), key=rank), used_links=links[order], used_bytes=carried[order])
    return Projection(bound=whole, tiers=bounds)


def busiest(topology: Topology, loads: Sequence[Load], scale: Fraction = Fraction(1)) -> LinkBound:
    """Sum loads exactly and pick the link that needs most time, the lowest index among equals."""
    used, total, denominator = _sum_loads(loads, topology.num_links)
    rates = topology.link_bytes_per_s(used)
    best, best_link, best_bytes = Fraction(0), -1, Fraction(0)
    for rate in {link_class.bandwidth_bytes_per_s for link_class in topology.classes}:
        of_rate = np.flatnonzero(rates == rate)
        if not len(of_rate):
            continue
        place = of_rate[int(total[of_rate].argmax())]
        link_bytes = Fraction(int(total[place]), denominator) * scale
        seconds = link_bytes / rate
        if seconds > best or (seconds == best and 0 <= used[place] < best_link):
            best, best_link, best_bytes = seconds, int(used[place]), link_bytes
    return LinkBound(
        time_ps=math.ceil(best * PS_PER_SECOND),
        link_idx=best_link,
        link_bytes=best_bytes,
        used_links=used,
        used_bytes=np.asarray(total / denominator, np.float64) * float(scale),
    )


def _sum_loads(loads: Sequence[Load], num_links: int) -> tuple[Int64, Wide, int]:
    """Sum per link: (links with bytes, numerators, common denominator)."""
    loads = [load for load in loads if len(load.links)]
    parts = [np.unique(load.denominators) for load in loads]
    denominator = math.lcm(*(int(n) for part in parts for n in part))
    most = sum(float(np.sum(load.numerators / load.denominators)) for load in loads) * denominator
    dtype = object if most >= SAFE_INT64 else np.int64
    total = np.zeros(num_links, dtype)
    for load in loads:
        np.add.at(total, load.links, load.numerators.astype(dtype) * (denominator // load.denominators))
    used = np.flatnonzero(total)
    return used, total[used], denominator


def exact_product(a: Wide, b: Wide) -> Wide:
    """Multiply non-negative integer matrices exactly: numbers are halved until BLAS holds each product."""
    inner, high_a, high_b = a.shape[1], int(a.max(initial=0)), int(b.max(initial=0))
    if inner * high_a * high_b < EXACT_FLOAT:
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    if high_a < high_b:
        return exact_product(b.T, a.T).T
    bits = high_a.bit_length() // 2
    high, low = exact_product(a >> bits, b), exact_product(a & ((1 << bits) - 1), b)
    if inner * high_a * high_b >= SAFE_INT64:
        high, low = high.astype(object), low.astype(object)
    return np.asarray((high << bits) + low)
