"""htsim: a connection matrix, a leaf-spine topology, and the finish times of its log.

Sources: `connection_matrix.cpp`, `fat_tree_topology.cpp`, the example .topo and .cm files and the main
programs of Broadcom/csg-htsim, and the finish lines of its RoCE, NDP and UEC senders and of three forks.
Sure: words and their order, start times in picoseconds, sizes in bytes read as 32-bit numbers, flow and
trigger numbers from 1, rates in whole Gbit/s and latencies in whole ns above 0, finish times in us. Its
two-tier topologies need a version of 2023 or later. Nothing here was run with the simulator.
"""

import re

import numpy as np

from epsim.errors import InputError
from epsim.exchange.cables import Cables, pair_cables
from epsim.exchange.case import ExchangeCase, Imported, Int64, finish_times, read_time
from topology.graph import Topology

PS_PER_NS = 10**3
MAX_FLOW_BYTES = 2**31 - 1
MAX_HOSTS = 2**13
"""A matrix of all pairs is then half a GiB."""
MAX_PACKET_BYTES = 2**16 - 1
"""An IP packet is not longer, so a log that counts whole packets exceeds a flow by less than one."""

_CONNECTION = re.compile(
    r"(\d+)->(\d+) id (\d+) (start|trigger) (\d+) size (\d+)(?: send_done_trigger (\d+))?"
)
_FINISHED = re.compile(
    r"Flow [A-Za-z]+_(\d{1,18})_(\d{1,18})\b.* finished at (\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b(.*)"
)
_TOTAL_BYTES = re.compile(r" total bytes (\d{1,18})")


def htsim_files(case: ExchangeCase) -> dict[str, str]:
    """Write a case: hosts are cards, numbered over the leaves in blocks.

    Returns:
      File name -> text: the connection matrix (.cm) and the topology (.topo).

    Raises:
      InputError: the network is no regular leaf-spine in one plane, or a number has no htsim form.
    """
    case = case.on_one_layer("htsim")
    return {
        f"{case.name}.cm": connection_matrix(case),
        f"{case.name}.topo": topology_text(case.topology),
    }


def connection_matrix(case: ExchangeCase) -> str:
    """Write the connections; phases become barriers that the flows before release.

    Raises:
      InputError: a flow is too large.
    """
    transfers = case.transfers()
    if int(transfers.num_bytes.max()) > MAX_FLOW_BYTES:
        rule = f"must be at most {MAX_FLOW_BYTES:,}: htsim reads 32 bits"
        raise InputError("bytes of a flow", int(transfers.num_bytes.max()), rule)
    starts = np.zeros(case.num_ranks, np.int64) if case.start_ps is None else case.start_ps
    before = transfers.previous_phase()
    # A barrier belongs to a rank and the phase that has to end; its number counts from 1.
    has_next = before >= 0
    barriers = sorted(set(zip(transfers.src[has_next].tolist(), before[has_next].tolist(), strict=True)))
    number = {barrier: place for place, barrier in enumerate(barriers, 1)}
    lines, releases = [], dict.fromkeys(barriers, 0)
    for task, (src, dst) in enumerate(zip(transfers.src.tolist(), transfers.dst.tolist(), strict=True)):
        waits = number.get((src, int(before[task])))
        begin = f"start {starts[src]}" if waits is None else f"trigger {waits}"
        own = (src, int(transfers.phase[task]))
        done = f" send_done_trigger {number[own]}" if own in number else ""
        if own in number:
            releases[own] += 1
        ends = f"{case.npus[src]}->{case.npus[dst]}"
        lines.append(f"{ends} id {task + 1} {begin} size {transfers.num_bytes[task]}{done}")
    lines += [f"trigger id {number[barrier]} barrier count {releases[barrier]}" for barrier in barriers]
    head = [f"Nodes {case.topology.num_npus}", f"Connections {len(transfers)}"]
    head += [f"Triggers {len(barriers)}"] if barriers else []
    return "\n".join(head + lines) + "\n"


def read_connection_matrix(text: str, *, file: str = "connection matrix") -> Int64:
    """Read the bytes between hosts back, [hosts, hosts] int64; triggers do not matter.

    Raises:
      InputError: a line of another form, or counts that do not fit.
    """
    counts: dict[str, int] = {}
    rows: list[tuple[int, int, int]] = []
    for place, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#") or words[0] == "trigger":
            continue
        if words[0] in ("Nodes", "Connections", "Triggers") and len(words) == 2 and words[1].isdigit():
            counts[words[0]] = int(words[1])
            continue
        match = _CONNECTION.fullmatch(line.strip())
        if match is None:
            raise InputError(f"{file}, line {place}", line, "must be: src->dst id n start t size bytes")
        rows.append((int(match[1]), int(match[2]), int(match[6])))
    num_hosts = counts.get("Nodes", 0)
    if num_hosts > MAX_HOSTS:
        raise InputError(f"{file}, Nodes", num_hosts, f"must be at most {MAX_HOSTS:,}")
    if counts.get("Connections") != len(rows):
        raise InputError(
            f"{file}, Connections", counts.get("Connections"), f"must be the {len(rows)} that follow"
        )
    matrix = np.zeros((num_hosts, num_hosts), np.int64)
    for src, dst, num_bytes in rows:
        if max(src, dst) >= num_hosts:
            raise InputError(f"{file}, host", max(src, dst), f"must be below Nodes = {num_hosts}")
        matrix[src, dst] += num_bytes
    return matrix


def check_connection_matrix(case: ExchangeCase, text: str, *, file: str = "connection matrix") -> None:
    """Refuse a connection matrix that is not that of a case.

    Raises:
      InputError: the matrix is damaged, or a pair of hosts has other bytes.
    """
    matrix = read_connection_matrix(text, file=file)
    expected = np.zeros((case.topology.num_npus, case.topology.num_npus), np.int64)
    transfers = case.transfers()
    expected[case.npus[transfers.src], case.npus[transfers.dst]] = transfers.num_bytes
    if matrix.shape != expected.shape:
        raise InputError(f"{file}, Nodes", len(matrix), f"must be the {len(expected)} cards of {case.name}")
    wrong = np.argwhere(matrix != expected)
    if len(wrong):
        src, dst = wrong[0].tolist()
        rule = f"must be {expected[src, dst]} as in {case.name}"
        raise InputError(f"{file}, bytes {src}->{dst}", int(matrix[src, dst]), rule)


def topology_text(topology: Topology) -> str:
    """Write a regular leaf-spine fabric as a .topo file.

    Raises:
      InputError: the network is something else, or a number has no htsim form.
    """
    cables = pair_cables(topology, "htsim")
    is_card = cables.vertex < topology.num_npus
    access, fabric = np.flatnonzero(is_card[:, 0]), np.flatnonzero(~is_card[:, 0])
    tier = topology.switch_tier
    leaves, spines = int((tier == 0).sum()), int((tier == 1).sum())
    per_leaf, bundle = _regular(topology, cables, access, fabric, leaves, spines)
    rates = [_one(cables.bytes_per_s[some], "rate") for some in (access, fabric)]
    delays = [_one(cables.delay_ps[some], "cable delay") for some in (access, fabric)]
    crossing = cables.crossing_ps[topology.num_npus :]
    hops = [_one(crossing[tier == level], "switch crossing") for level in (0, 1)]
    uplink_rate = spines * bundle * rates[1]
    if per_leaf * rates[0] % uplink_rate:
        rule = "bandwidth of a leaf down over up must be a whole number: htsim has no other oversubscription"
        raise InputError("oversubscription", per_leaf * rates[0] / uplink_rate, rule)
    speeds = [_whole(8 * rate, 10**9, "rate", "Gbit/s") for rate in rates]
    latencies = [_whole(delay, PS_PER_NS, "cable delay", "ns") for delay in delays]
    if min(latencies) == 0:
        raise InputError("cable delay", "0 ns", "must be at least 1 ns: htsim takes 0 for not given")
    crossings = [_whole(hop, PS_PER_NS, "switch crossing", "ns") for hop in hops]
    rows = [
        f"Nodes {topology.num_npus}", "Tiers 2", f"Podsize {topology.num_npus}",
        "", "Tier 0", f"Downlink_speed_Gbps {speeds[0]}", f"Radix_Down {per_leaf}",
        f"Radix_Up {spines * bundle}", f"Downlink_Latency_ns {latencies[0]}",
        f"Switch_Latency_ns {crossings[0]}", f"Oversubscribed {per_leaf * rates[0] // uplink_rate}",
        "", "Tier 1", f"Downlink_speed_Gbps {speeds[1]}", f"Radix_Down {leaves * bundle}",
        f"Downlink_Latency_ns {latencies[1]}", f"Switch_Latency_ns {crossings[1]}", f"Bundle {bundle}",
    ]  # fmt: skip
    return "\n".join(rows) + "\n"


def read_log(
    case: ExchangeCase, text: str, *, file: str = "htsim log", transport: str | None = None
) -> Imported:
    """Read the finish lines of a log; all other lines are skipped.

    Args:
      case: the case that was exported.
      text: what the program printed; times have the six digits that it prints.
      file: for messages.
      transport: None = the word that names the flows, as Roce or ndp.

    Raises:
      InputError: a flow is no transfer of the case, ended twice, never, or with other bytes.
    """
    rank = {int(npu): number for number, npu in enumerate(case.npus)}
    found: dict[tuple[int, int], int] = {}
    words: set[str] = set()
    rounding_ps = 0
    for place, line in enumerate(text.splitlines(), 1):
        match = _FINISHED.match(line)
        if match is None:
            continue
        where = f"{file}, line {place}"
        if int(match[1]) not in rank or int(match[2]) not in rank:
            raise InputError(where, f"host {match[1]} -> {match[2]}", "must be two cards of the case")
        pair = rank[int(match[1])], rank[int(match[2])]
        if pair in found:
            raise InputError(where, f"rank {pair[0]} -> {pair[1]}", "has finished before")
        _check_total(where, match[4], int(case.bytes_matrix[pair]))
        words.add(line.split()[1].partition("_")[0])
        time = read_time(f"{where}, finished at", match[3], "us")
        found[pair], rounding_ps = time[0], max(rounding_ps, time[1])
    name = transport or "+".join(sorted(words)) or "none"
    finish_ps = finish_times(case, file, found)
    return Imported(simulator="htsim", transport=name, finish_ps=finish_ps, rounding_ps=rounding_ps)


def _check_total(where: str, rest: str, num_bytes: int) -> None:
    total = _TOTAL_BYTES.search(rest)
    if total is not None and not num_bytes <= int(total[1]) <= num_bytes + MAX_PACKET_BYTES:
        raise InputError(f"{where}, total bytes", int(total[1]), f"must be the {num_bytes} of the flow")


def _regular(
    topology: Topology, cables: Cables, access: Int64, fabric: Int64, leaves: int, spines: int
) -> tuple[int, int]:
    """Return (cards per leaf, cables per leaf and spine) of a fabric whose cards fill the leaves in order."""
    num_npus = topology.num_npus
    is_plain = leaves > 0 and spines > 0 and leaves + spines == topology.num_switches
    if not is_plain or len(access) != num_npus or num_npus % leaves:
        rule = "must be one plane of leaves and spines with one port per card: htsim has no other here"
        raise InputError("topology", topology.name, rule)
    per_leaf = num_npus // leaves
    switches = num_npus + np.flatnonzero(topology.switch_tier == 0)
    expected = np.stack([np.arange(num_npus), np.repeat(switches, per_leaf)], axis=1)
    ends = np.sort(cables.vertex[fabric], axis=1)
    _, counts = np.unique(ends, axis=0, return_counts=True)
    joined = np.isin(ends, switches).sum(axis=1) == 1
    given = cables.vertex[access[np.argsort(cables.vertex[access, 0], kind="stable")]]
    same = np.array_equal(given, expected) and joined.all() and len(counts) == leaves * spines
    if not same or counts.min() != counts.max():
        rule = "must fill leaves in order and join every leaf to every spine alike, as htsim builds it"
        raise InputError("topology", topology.name, rule)
    return per_leaf, int(counts[0])


def _one(values: Int64, field: str) -> int:
    found = np.unique(values)
    if len(found) != 1:
        raise InputError(field, found.tolist(), "must be the same within a tier for htsim")
    return int(found[0])


def _whole(value: int, unit: int, field: str, name: str) -> int:
    if value % unit:
        raise InputError(field, f"{value / unit:g} {name}", f"must be whole {name} for htsim")
    return value // unit
