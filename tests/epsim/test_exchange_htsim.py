"""htsim: matrix and topology written out, the matrix there and back, and logs that are not ours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.exchange.htsim import (
    MAX_FLOW_BYTES,
    check_connection_matrix,
    connection_matrix,
    htsim_files,
    read_connection_matrix,
    read_log,
)
from tests.epsim.exchanged import ended_us, htsim_log, random_case, small_case, two_cards
from topology import leaf_spine, ubl128

MATRIX = """\
Nodes 2
Connections 2
0->1 id 1 start 0 size 300
1->0 id 2 start 0 size 7000
"""
PHASES = """\
Nodes 4
Connections 4
Triggers 1
2->0 id 1 start 3000 size 1000 send_done_trigger 1
2->3 id 2 start 3000 size 2000 send_done_trigger 1
2->1 id 3 trigger 1 size 3000
0->2 id 4 start 0 size 4000
trigger id 1 barrier count 2
"""
TOPOLOGY = """\
Nodes 8
Tiers 2
Podsize 8

Tier 0
Downlink_speed_Gbps 400
Radix_Down 4
Radix_Up 2
Downlink_Latency_ns 500
Switch_Latency_ns 100
Oversubscribed 4

Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Downlink_Latency_ns 500
Switch_Latency_ns 100
Bundle 1
"""


def test_the_matrix_of_two_cards():
    assert connection_matrix(two_cards()) == MATRIX


def test_a_phase_is_a_barrier_of_the_flows_before():
    matrix = np.zeros((4, 4), int)
    matrix[0, 1:] = 1000, 2000, 3000
    matrix[1, 0] = 4000
    phase = np.zeros((4, 4), int)
    phase[0, 3] = 2
    case = small_case(bytes_matrix=matrix, phase=phase, start_ps=np.array([3000, 0, 0, 0]))
    assert connection_matrix(case) == PHASES


def test_the_topology_of_a_leaf_spine():
    topology = leaf_spine(8, leaves=2, spines=2, uplink_rate="25GB/s", switch_hop="100ns")
    files = htsim_files(small_case(topology=topology))
    assert files["small.topo"] == TOPOLOGY
    assert files["small.cm"].startswith("Nodes 8\nConnections 12\n2->0 id 1 start 0 size 1000\n")


@given(st.integers(0, 2**32))
def test_the_matrix_comes_back_by_host(seed):
    case = random_case(np.random.default_rng(seed), leaf_spine(8, leaves=2, spines=2), 5)
    hosts = np.zeros((8, 8), np.int64)
    hosts[np.ix_(case.npus, case.npus)] = case.bytes_matrix - np.diag(case.bytes_matrix.diagonal())
    text = connection_matrix(case)
    assert (read_connection_matrix(text) == hosts).all()
    check_connection_matrix(case, text)


MATRIX_FAULTS = {
    "a lost line": ("0->1 id 1 start 0 size 300\n", "", "must be the 1"),
    "a lost flow": ("2\n0->1 id 1 start 0 size 300\n", "1\n", "0->1 is 0: must be 300"),
    "swapped ends": ("0->1", "1->0", "0->1 is 0: must be 300"),
    "bits": ("300", "2400", "2400: must be 300"),
    "no size": (" size 300", "", "must be: src->dst"),
    "a host too many": ("0->1", "0->2", "below Nodes"),
    "another number of hosts": ("Nodes 2", "Nodes 3", "must be the 2 cards"),
    "more hosts than memory": ("Nodes 2", "Nodes 20000000", "at most 8,192"),
}


@pytest.mark.parametrize("fault", MATRIX_FAULTS)
def test_a_matrix_of_another_case_is_refused(fault):
    old, new, text = MATRIX_FAULTS[fault]
    check_connection_matrix(two_cards(), MATRIX)
    with pytest.raises(InputError, match=text):
        check_connection_matrix(two_cards(), MATRIX.replace(old, new))


@pytest.mark.parametrize("name", ["Roce", "ndp", "Uec"])
def test_finish_lines_come_back_by_transfer(name):
    case = small_case()
    imported = read_log(case, htsim_log(case, name, change=lambda lines: lines[::-1]))
    assert imported.transport == name
    assert imported.finish_ps.tolist() == [round(float(ended_us(task)) * 1e6) for task in range(12)]


def test_the_longer_lines_of_other_versions_are_read():
    case = two_cards()
    log = (
        "Flow Uec_0_1 flowId 1 uecSrc 0 finished at 1.5e+01 total messages 1 RTS 0 total bytes 320\n"
        "Flow ndp_1_0 flow_id 2 finished at 31.25 total bytes 7000\n"
    )
    imported = read_log(case, log)
    assert imported.finish_ps.tolist() == [15_000_000, 31_250_000]
    assert imported.transport == "Uec+ndp"
    assert imported.rounding_ps == 500_001


LOG_FAULTS = {
    "a lost flow": (lambda lines: lines[:-1], "never ended"),
    "a flow twice": (lambda lines: [*lines, lines[-1]], "finished before"),
    "swapped ends": (
        lambda lines: [line.replace("Roce_2_0 ", "Roce_0_2 ") for line in lines],
        "finished before|total",
    ),
    "bits": (
        lambda lines: [*lines[:-1], lines[-1].replace("total bytes 14063", "total bytes 112000")],
        "of the flow",
    ),
    "too few": (
        lambda lines: [*lines[:-1], lines[-1].replace("total bytes 14063", "total bytes 13999")],
        "of the flow",
    ),
    "other hosts": (
        lambda lines: [*lines, "Flow Roce_7_1 5 finished at 3 total bytes 1"],
        "two cards of the case",
    ),
}


@pytest.mark.parametrize("fault", LOG_FAULTS)
def test_logs_of_another_case_are_refused(fault):
    case = small_case()
    change, text = LOG_FAULTS[fault]
    with pytest.raises(InputError, match=text):
        read_log(case, htsim_log(case, change=change))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topology": ubl128(4)}, "one plane of leaves and spines"),
        ({"topology": leaf_spine(4, leaves=2, spines=3)}, "oversubscription"),
        ({"topology": leaf_spine(4, leaves=2, spines=2, link_rate="1GB/s")}, None),
        ({"topology": leaf_spine(4, leaves=2, spines=2, link_rate="1.1GB/s")}, "whole Gbit/s"),
        ({"topology": leaf_spine(4, leaves=2, spines=2, cable=0)}, "at least 1 ns"),
        ({"topology": leaf_spine(4, leaves=2, spines=2, cable=1500)}, "whole ns"),
        ({"bytes_matrix": np.full((4, 4), MAX_FLOW_BYTES + 1)}, "32 bits"),
    ],
)
def test_what_htsim_cannot_be_told_is_refused(changes, text):
    case = small_case(**changes)
    if text is None:
        assert "Downlink_speed_Gbps 8\n" in htsim_files(case)["small.topo"]
        return
    with pytest.raises(InputError, match=text):
        htsim_files(case)
