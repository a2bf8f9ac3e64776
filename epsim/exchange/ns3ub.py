"""ns-3-UB (openUSIM): a case folder, and the finish times of its task statistics.

Sources: QUICK_START and scratch/README of the public forks of open-usim/ns-3-ub (ns-3.44), which give the
header of every file, the units, ranges "a..b" and which files may be missing; the loaders in
`ub-utils.cc` of three forks, which skip the first line, read columns by position and refuse a transport
path number that a node has twice; and the example cases of SeaAttic-1/UB-Mem. Sure: names and order of the
columns of node, topology, routing_table, transport_channel and traffic; the columns of task_statistics
that are read here (programs of four users read the same; some versions say sourceNodeId and destNodeId).
Less sure: `ns3::UbSwitch::FlowControl`, which versions before 2026 call `EnableCBFC`. Nothing here was run
with the simulator. `throughput.csv` holds rates per port, no times of tasks, and is not read.

A phase number is made of phase and source, because older versions wait for the phase at the same source
only, newer ones at all sources: unlike numbers make both do the former.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from epsim.errors import InputError
from epsim.exchange.cables import Cables, Way, pair_cables, shortest_ways
from epsim.exchange.case import ExchangeCase, Imported, finish_times, read_time
from topology.graph import Topology
from topology.routes import Policy

PS_PER_NS = 10**3
PRIORITY = 7
"""As in the example cases; 16 priorities exist."""
RESULTS_FILE = "output/task_statistics.csv"

NODE_COLUMNS = ("nodeId", "nodeType", "portNum", "forwardDelay")
TOPOLOGY_COLUMNS = ("nodeId1", "portId1", "nodeId2", "portId2", "bandwidth", "delay")
ROUTING_COLUMNS = ("nodeId", "dstNodeId", "dstPortId", "outPorts", "metrics")
CHANNEL_COLUMNS = ("nodeId1", "portId1", "tpn1", "nodeId2", "portId2", "tpn2", "priority", "metric")
TRAFFIC_COLUMNS = (
    "taskId", "sourceNode", "destNode", "dataSize(Byte)", "opType", "priority", "delay", "phaseId",
    "dependOnPhases",
)  # fmt: skip

# Columns of results that repeat the traffic, under the names of newer and older versions.
_SAME_AS_TRAFFIC = (("sourceNode", "sourceNodeId"), ("destNode", "destNodeId"), ("dataSize(Byte)",))

_ATTRIBUTES = """\
default ns3::UbApp::EnableMultiPath "{spray}"
default ns3::UbTransportChannel::UsePacketSpray "{spray}"
default ns3::UbTransportChannel::UseShortestPaths "true"
default ns3::UbTransportChannel::EnableRetrans "false"
default ns3::UbSwitch::FlowControl "CBFC"

global UB_FAULT_ENABLE "false"
global UB_PRIORITY_NUM "16"
global UB_VL_NUM "16"
global UB_CC_ENABLED "false"
global UB_TRACE_ENABLE "true"
global UB_TASK_TRACE_ENABLE "true"
global UB_PARSE_TRACE_ENABLE "true"
global UB_PYTHON_SCRIPT_PATH "scratch/ns-3-ub-tools/trace_analysis/parse_trace.py"
"""

Row = Sequence[object]


def ns3ub_files(case: ExchangeCase, policy: Policy = "spray") -> dict[str, str]:
    """Write a case folder: cards are nodes 0..N-1, switches follow.

    Args:
      case: any.
      policy: "spray" spreads packets over all shortest paths; "flow-hash" leaves each channel on one.

    Returns:
      File name -> text.

    Raises:
      InputError: pinned policy, or the topology or a start cannot be told in whole nanoseconds and cables.
    """
    if policy == "pinned":
        raise InputError("policy", policy, "must be spray or flow-hash: ns-3-UB pins nothing")
    case = case.on_one_layer("ns-3-UB")
    cables = pair_cables(case.topology, "ns-3-UB")
    ways = shortest_ways(case.topology, case.npus, cables)
    return {
        "network_attribute.txt": _ATTRIBUTES.format(spray="true" if policy == "spray" else "false"),
        "node.csv": _csv(NODE_COLUMNS, _node_rows(case.topology, cables)),
        "topology.csv": _csv(TOPOLOGY_COLUMNS, _cable_rows(cables)),
        "routing_table.csv": _csv(ROUTING_COLUMNS, _routing_rows(case, ways, cables)),
        "transport_channel.csv": _csv(CHANNEL_COLUMNS, _channel_rows(case, ways, cables)),
        "traffic.csv": _csv(TRAFFIC_COLUMNS, _traffic_rows(case)),
    }


def _csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()


def _whole_ns(field: str, ps: int) -> str:
    if ps % PS_PER_NS:
        raise InputError(field, f"{ps} ps", "must be whole nanoseconds: ns-3 counts in these")
    return f"{ps // PS_PER_NS}ns"


def _rate(bytes_per_s: int) -> str:
    bits = 8 * bytes_per_s
    return f"{bits // 10**9}Gbps" if bits % 10**9 == 0 else f"{bits}bps"


def _node_rows(topology: Topology, cables: Cables) -> Iterable[Row]:
    for vertex, num_ports in enumerate(cables.num_ports.tolist()):
        kind = "DEVICE" if vertex < topology.num_npus else "SWITCH"
        yield vertex, kind, num_ports, _whole_ns("crossing a switch", int(cables.crossing_ps[vertex]))


def _cable_rows(cables: Cables) -> Iterable[Row]:
    rows = zip(cables.vertex, cables.port, cables.bytes_per_s, cables.delay_ps, strict=True)
    for (near, far), (port, far_port), rate, delay in rows:
        yield near, port, far, far_port, _rate(int(rate)), _whole_ns("cable delay", int(delay))


def _traffic_rows(case: ExchangeCase) -> Iterable[Row]:
    transfers = case.transfers()
    starts = np.zeros(case.num_ranks, np.int64) if case.start_ps is None else case.start_ps
    columns = (transfers.src, transfers.dst, transfers.num_bytes, transfers.phase, transfers.previous_phase())
    for task, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        src, dst, num_bytes, phase, before = row
        delay = _whole_ns("start of a rank", int(starts[src]) if before < 0 else 0)
        after = "" if before < 0 else before * case.num_ranks + src
        ends = int(case.npus[src]), int(case.npus[dst])
        yield task, *ends, num_bytes, "URMA_WRITE", PRIORITY, delay, phase * case.num_ranks + src, after


def _routing_rows(case: ExchangeCase, ways: Mapping[int, list[Way]], cables: Cables) -> Iterable[Row]:
    """Yield, by node, destination card and the port it is reached at, the ports that lead there."""
    topology = case.topology
    taking_part = np.zeros(topology.num_vertices, np.bool_)
    taking_part[case.npus] = taking_part[topology.num_npus :] = True
    rows = []
    for last, found in ways.items():
        npu, port = int(topology.link_dst[last]), int(cables.link_ports[last, 1])
        for way in found:
            if taking_part[way.vertex] and way.vertex != npu:
                metrics = " ".join([str(way.num_hops)] * len(way.ports))
                rows.append((way.vertex, npu, port, " ".join(map(str, way.ports)), metrics))
    return sorted(rows, key=lambda row: row[:3])


def _channel_rows(case: ExchangeCase, ways: Mapping[int, list[Way]], cables: Cables) -> Iterable[Row]:
    """Yield a channel per pair of cards with traffic, and pair of their ports that a shortest path joins.

    One row serves both directions; channels of a card count up from 0.
    """
    transfers = case.transfers()
    ends = np.sort(np.stack([case.npus[transfers.src], case.npus[transfers.dst]], axis=1), axis=1)
    wanted = set(map(tuple, ends.tolist()))
    found = []
    for last, from_all in ways.items():
        npu, port = int(case.topology.link_dst[last]), int(cables.link_ports[last, 1])
        for way in from_all:
            if (way.vertex, npu) in wanted:
                found += [(way.vertex, npu, near_port, port, way.num_hops) for near_port in way.ports]
    num_channels = np.zeros(case.topology.num_npus, np.int64)
    for near, far, near_port, far_port, num_hops in sorted(found):
        numbers = int(num_channels[near]), int(num_channels[far])
        num_channels[[near, far]] += 1
        yield near, near_port, numbers[0], far, far_port, numbers[1], PRIORITY, num_hops


def read_task_statistics(
    case: ExchangeCase, text: str, *, file: str = RESULTS_FILE, transport: str = "URMA write"
) -> Imported:
    """Read the results of a run.

    Args:
      case: the case that was exported.
      text: of task_statistics.csv.
      file: for messages.
      transport: what the run used, for people.

    Raises:
      InputError: a column is missing, a number is none, a row is not the task of the case, a task did not
        end, ends before it starts or has no row.
    """
    transfers = case.transfers()
    columns = (case.npus[transfers.src], case.npus[transfers.dst], transfers.num_bytes)
    tasks = list(zip(*(column.tolist() for column in columns), strict=True))
    found: dict[tuple[int, int], int] = {}
    rounding_ps = 0
    for line, values in enumerate(csv.DictReader(io.StringIO(text)), 2):
        row = _Row(f"{file}, line {line}", values)
        task = row.integer("taskId")
        if not 0 <= task < len(tasks):
            raise InputError(f"{row.where}, taskId", task, f"must be below {len(tasks)}, as in traffic.csv")
        for names, value in zip(_SAME_AS_TRAFFIC, tasks[task], strict=True):
            if row.integer(*names) != value:
                rule = f"must be {value}, as task {task} of {case.name}"
                raise InputError(f"{row.where}, {names[0]}", row.integer(*names), rule)
        pair = int(transfers.src[task]), int(transfers.dst[task])
        if pair in found:
            raise InputError(f"{row.where}, taskId", task, "has a row before")
        found[pair], error = row.end_ps()
        rounding_ps = max(rounding_ps, error)
    finish_ps = finish_times(case, file, found)
    return Imported(simulator="ns-3-UB", transport=transport, finish_ps=finish_ps, rounding_ps=rounding_ps)


class _Row:
    """One line of a results file, read with one-sentence errors.

    Args:
      where: file and line.
      values: column -> text.
    """

    def __init__(self, where: str, values: Mapping[str, str | None]) -> None:
        """Keep both."""
        self.where, self.values = where, values

    def text(self, *names: str) -> str:
        """Return the first column that is there."""
        for name in names:
            if name in self.values:
                return self.values[name] or ""
        raise InputError(self.where, names[0], "this column is missing")

    def integer(self, *names: str) -> int:
        """Read a whole number."""
        text = self.text(*names).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InputError(f"{self.where}, {names[0]}", text, "must be a whole number below 10^18")
        return int(text)

    def picoseconds(self, name: str) -> tuple[int, int]:
        """Read microseconds and their rounding; an empty cell is a task that did not end."""
        return read_time(f"{self.where}, {name}", self.text(name), "us")

    def end_ps(self) -> tuple[int, int]:
        """Read when the task ended, and the rounding of that."""
        start, _ = self.picoseconds("taskStartTime(us)")
        end, rounding_ps = self.picoseconds("taskCompletesTime(us)")
        if end <= start:
            rule = f"must be after the start, {start} ps"
            raise InputError(f"{self.where}, taskCompletesTime(us)", f"{end} ps", rule)
        return end, rounding_ps
