"""SimGrid: a platform and a list of flows, and the finish times that it computes for them.

SimGrid's network model CM02 without latency is max-min fair sharing and nothing else, so it is the golden
test of our exact flow solver. Sources: the SimGrid manual ("Platform reference", DTD version 4.1,
"Configuring SimGrid", "Network models"); tried with Debian's 3.32, so sure.

A route of SimGrid uses each of its links in full. A sprayed flow puts 1/p of its bytes on a link, so its
constraint sum(x / p) <= C is written times the least common multiple m of all p on that link: the link gets
bandwidth m C and stands m / p times in the route, which SimGrid adds up. Links that carry the same flows
in the same shares are the same constraint, and are written once.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from epsim.errors import InputError
from epsim.exchange.case import ExchangeCase, Imported, finish_times, read_time
from topology.routes import Policy, Router, Routes

TIME_PRECISION_S = 1e-15
"""Events this close count as one."""

FLAGS = (
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/latency-factor:1",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/weight-S:0",
    "--cfg=maxmin/precision:1e-12",
    f"--cfg=surf/precision:{TIME_PRECISION_S}",
)
"""What makes SimGrid pure max-min: no acknowledgements in the way back, no factors, fine precision (the
default merges events within 10 us, which is a tenth of a decode step)."""

PLATFORM_FILE, FLOWS_FILE = "platform.xml", "flows.txt"


class Constraint(NamedTuple):
    """Equal links as one: bandwidth in bytes/s, flows [n], and how often each flow's route has it [n]."""

    bandwidth_bytes_per_s: int
    flows: Sequence[int]
    repeats: Sequence[int]


def simgrid_files(case: ExchangeCase, policy: Policy = "spray", *, seed: int = 0) -> dict[str, str]:
    """Write a case for SimGrid.

    Latencies are left out: with them CM02 would add the window of TCP and favour near flows.

    Args:
      case: all transfers start at 0.
      policy: how flows choose links.
      seed: of the flow hash.

    Returns:
      File name -> text: an XML platform with one host per rank, and lines "host host bytes".

    Raises:
      InputError: the case has phases or starts.
      TopologyError: unknown policy, or a pair has no path.
    """
    case.require_one_shot("SimGrid")
    transfers = case.transfers()
    router = Router(case.topology, case.npus)
    routes = router.find(case.npus[transfers.src], case.npus[transfers.dst], policy, seed=seed)
    ends = zip(transfers.src.tolist(), transfers.dst.tolist(), strict=True)
    names = [(f"rank{src}", f"rank{dst}") for src, dst in ends]
    sizes = transfers.num_bytes.tolist()
    flows = [f"{src} {dst} {size}" for (src, dst), size in zip(names, sizes, strict=True)]
    platform = _platform(case, constraints(case, routes), names)
    return {PLATFORM_FILE: "\n".join(platform) + "\n", FLOWS_FILE: "\n".join(flows) + "\n"}


def _platform(
    case: ExchangeCase, capacities: Sequence[Constraint], names: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the lines of the platform: hosts, links, and the route of each transfer."""
    used: list[list[str]] = [[] for _ in names]
    links = []
    for number, constraint in enumerate(capacities):
        links.append(f'<link id="l{number}" bandwidth="{constraint.bandwidth_bytes_per_s}Bps" latency="0s"/>')
        for flow, repeat in zip(constraint.flows, constraint.repeats, strict=True):
            used[flow].append(f'<link_ctn id="l{number}"/>' * repeat)
    return [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        '<platform version="4.1">',
        f'<zone id="{case.name}" routing="Full">',
        *(f'<host id="rank{rank}" speed="1f"/>' for rank in range(case.num_ranks)),
        *links,
        *(
            f'<route src="{src}" dst="{dst}" symmetrical="NO">{"".join(route)}</route>'
            for (src, dst), route in zip(names, used, strict=True)
        ),
        "</zone>",
        "</platform>",
    ]


def constraints(case: ExchangeCase, routes: Routes) -> list[Constraint]:
    """Return the distinct capacity constraints of routes, in the order of their first link."""
    order = np.argsort(routes.link_idx, kind="stable")
    link, flow, parts = routes.link_idx[order], routes.flow_idx[order], routes.parts[order]
    starts = np.flatnonzero(np.diff(link, prepend=-1))
    rates = case.topology.link_bytes_per_s(link[starts]).tolist()
    found: dict[tuple[int, bytes, bytes], Constraint] = {}
    for first, end, rate in zip(starts, [*starts[1:], len(link)], rates, strict=True):
        flows, shares = flow[first:end], parts[first:end]
        scale = math.lcm(*(int(share) for share in np.unique(shares)))
        repeats = scale // shares
        key = (scale * rate, flows.tobytes(), repeats.tobytes())
        if key not in found:
            found[key] = Constraint(scale * rate, flows.tolist(), repeats.tolist())
    return list(found.values())


def read_simgrid(case: ExchangeCase, text: str, *, file: str = "SimGrid results") -> Imported:
    """Read lines "host host bytes start_s finish_s", as the program of our tests prints them.

    Raises:
      InputError: a line of another form, a transfer that is missing, twice, unknown or of another size.
    """
    sizes = case.bytes_matrix
    rounding_ps = 0
    found: dict[tuple[int, int], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        try:
            src, dst = (int(word.removeprefix("rank")) for word in words[:2])
            num_bytes, finish = int(words[2]), words[4]
        except (ValueError, IndexError):
            raise InputError(
                f"{file}, line {number}", line, "must be: host host bytes start finish"
            ) from None
        if (src, dst) in found:
            raise InputError(f"{file}, line {number}", f"rank {src} -> {dst}", "has ended before")
        if max(src, dst) < case.num_ranks and min(src, dst) >= 0 and num_bytes != sizes[src, dst]:
            rule = f"must be the {sizes[src, dst]} bytes of rank {src} -> {dst}"
            raise InputError(f"{file}, line {number}", num_bytes, rule)
        time = read_time(f"{file}, line {number}, finish", finish, "s")
        found[src, dst], rounding_ps = time[0], max(rounding_ps, time[1])
    return Imported(
        simulator="SimGrid",
        transport="max-min fluid (CM02)",
        finish_ps=finish_times(case, file, found),
        rounding_ps=rounding_ps,
    )
