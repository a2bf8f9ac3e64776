"""ns-3-UB: the files of small cases written out, routes that lead home, and results that are not ours."""

import csv
import io

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.exchange.ns3ub import ns3ub_files, read_task_statistics
from tests.epsim.exchanged import ended_us, small_case, task_statistics, two_cards
from topology import leaf_spine, ubl128

TRAFFIC = """\
taskId,sourceNode,destNode,dataSize(Byte),opType,priority,delay,phaseId,dependOnPhases
0,0,1,300,URMA_WRITE,7,0ns,0,
1,1,0,7000,URMA_WRITE,7,0ns,1,
"""
CHANNELS = """\
nodeId1,portId1,tpn1,nodeId2,portId2,tpn2,priority,metric
0,0,0,1,0,0,7,2
0,0,1,2,0,0,7,4
0,0,2,3,0,0,7,4
1,0,1,2,0,1,7,4
1,0,2,3,0,1,7,4
2,0,2,3,0,2,7,2
"""
NODES = """\
nodeId,nodeType,portNum,forwardDelay
0,DEVICE,1,0ns
1,DEVICE,1,0ns
2,DEVICE,1,0ns
3,DEVICE,1,0ns
4,SWITCH,4,100ns
5,SWITCH,4,100ns
6,SWITCH,2,100ns
7,SWITCH,2,100ns
"""
CABLES = """\
nodeId1,portId1,nodeId2,portId2,bandwidth,delay
0,0,4,0,400Gbps,500ns
1,0,4,1,400Gbps,500ns
2,0,5,0,400Gbps,500ns
3,0,5,1,400Gbps,500ns
4,2,6,0,400Gbps,500ns
4,3,7,0,400Gbps,500ns
5,2,6,1,400Gbps,500ns
5,3,7,1,400Gbps,500ns
"""


def table(text):
    """Read a CSV."""
    return list(csv.DictReader(io.StringIO(text)))


def test_the_files_of_a_small_leaf_spine():
    files = ns3ub_files(small_case())
    assert files["node.csv"] == NODES
    assert files["topology.csv"] == CABLES
    assert files["transport_channel.csv"] == CHANNELS
    routes = files["routing_table.csv"].splitlines()
    assert routes[0] == "nodeId,dstNodeId,dstPortId,outPorts,metrics"
    assert "4,2,0,2 3,3 3" in routes  # leaf to the other leaf: both spines
    assert {"0,3,0,0,4", "6,3,0,1,2", "5,3,0,1,1"} < set(routes)


def test_the_traffic_of_two_cards_has_bytes_and_eight_channels():
    files = ns3ub_files(two_cards())
    assert files["traffic.csv"] == TRAFFIC
    rows = table(files["transport_channel.csv"])
    assert [(r["portId1"], r["tpn1"], r["portId2"], r["tpn2"]) for r in rows] == [
        (str(n),) * 4 for n in range(8)
    ]
    assert 'UsePacketSpray "true"' in files["network_attribute.txt"]
    assert 'UsePacketSpray "false"' in ns3ub_files(two_cards(), "flow-hash")["network_attribute.txt"]


@pytest.mark.parametrize("topology", [ubl128(8), leaf_spine(8, leaves=4, spines=3, links_per_pair=2)])
def test_every_port_in_the_routing_table_leads_one_step_nearer(topology):
    case = small_case(topology=topology, npus=np.array([7, 0, 3, 4]))
    files = ns3ub_files(case)
    peer = {}
    for row in table(files["topology.csv"]):
        one, other = (row["nodeId1"], row["portId1"]), (row["nodeId2"], row["portId2"])
        peer |= {one: other, other: one}
    metric = {(r["nodeId"], r["dstNodeId"], r["dstPortId"]): r for r in table(files["routing_table.csv"])}
    assert {key[0] for key in metric if int(key[0]) < 8} == {"0", "3", "4", "7"}
    for (node, dst, dst_port), row in metric.items():
        hops = {int(word) for word in row["metrics"].split()}
        for port in row["outPorts"].split():
            after, into = peer[node, port]
            left = 0 if (after, into) == (dst, dst_port) else int(metric[after, dst, dst_port]["metrics"][0])
            assert hops == {left + 1}


def test_path_numbers_are_unique_at_every_card():
    rows = table(ns3ub_files(small_case(topology=ubl128(4)))["transport_channel.csv"])
    numbers = [(r[f"nodeId{end}"], r[f"tpn{end}"]) for r in rows for end in "12"]
    assert len(rows) == 6 * 8
    assert len(set(numbers)) == len(numbers)


def test_phases_wait_for_the_same_source_and_starts_are_delays():
    phase = np.array([[0, 0, 1, 1], [0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    case = small_case(phase=phase, start_ps=np.array([0, 5000, 0, 0]))
    rows = table(ns3ub_files(case)["traffic.csv"])
    waits = {(r["phaseId"], r["dependOnPhases"]) for r in rows}
    assert waits == {("0", ""), ("4", "0"), ("1", ""), ("2", ""), ("10", "2"), ("3", "")}
    assert {r["delay"] for r in rows if r["sourceNode"] == "0"} == {"5ns"}  # rank 1 sits on card 0


def test_results_come_back_by_transfer_whatever_the_order_of_rows():
    case = small_case()
    text = task_statistics(ns3ub_files(case)["traffic.csv"], change=lambda rows: rows[::-1])
    imported = read_task_statistics(case, text)
    assert imported.finish_ps.tolist() == [round(float(ended_us(task)) * 1e6) for task in range(12)]
    assert imported.makespan_ps == 14_750_000
    assert imported.rounding_ps == 2
    older = task_statistics(ns3ub_files(case)["traffic.csv"], node="sourceNodeId")
    assert (read_task_statistics(case, older).finish_ps == imported.finish_ps).all()


def swapped(row):
    """Exchange source and destination."""
    return row | {"sourceNode": row["destNode"], "destNode": row["sourceNode"]}


FAULTS = {
    "a lost flow": (lambda rows: rows[:-1], "never ended"),
    "a flow twice": (lambda rows: [*rows, rows[0]], "has a row before"),
    "swapped ends": (lambda rows: [swapped(rows[0]), *rows[1:]], "sourceNode.*must be 2"),
    "bits": (
        lambda rows: [r | {"dataSize(Byte)": str(8 * int(r["dataSize(Byte)"]))} for r in rows],
        "must be 1000",
    ),
    "not ended": (lambda rows: [rows[0] | {"taskCompletesTime(us)": ""}, *rows[1:]], "must be microseconds"),
    "no time": (lambda rows: [rows[0] | {"taskCompletesTime(us)": "inf"}, *rows[1:]], "must be microseconds"),
    "beyond 64 bits": (
        lambda rows: [rows[0] | {"taskCompletesTime(us)": "1e30"}, *rows[1:]],
        "at most 9.22e",
    ),
    "many digits": (lambda rows: [rows[0] | {"taskId": "9" * 5000}, *rows[1:]], "whole number"),
    "backwards": (lambda rows: [rows[0] | {"taskCompletesTime(us)": "0.4"}, *rows[1:]], "after the start"),
    "unknown task": (lambda rows: [rows[0] | {"taskId": "12"}, *rows[1:]], "must be below 12"),
    "signed task": (lambda rows: [rows[0] | {"taskId": "-1"}, *rows[1:]], "whole number"),
    "no column": (lambda rows: [{k: v for k, v in r.items() if k != "taskId"} for r in rows], "missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_results_of_another_case_are_refused(fault):
    case = small_case()
    change, text = FAULTS[fault]
    with pytest.raises(InputError, match=text):
        read_task_statistics(case, task_statistics(ns3ub_files(case)["traffic.csv"], change=change))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ns3ub_files(small_case(), "pinned"), "pins nothing"),
        (lambda: ns3ub_files(small_case(start_ps=np.array([0, 0, 1, 0]))), "whole nanoseconds"),
        (lambda: ns3ub_files(small_case(topology=ubl128(4, cable="1500ps"))), "whole nanoseconds"),
    ],
)
def test_what_ns3_cannot_be_told_is_refused(call, text):
    with pytest.raises(InputError, match=text):
        call()
