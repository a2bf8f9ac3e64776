"""Findings about HCCL files: every rule has a planted fault, and healthy files have no finding."""

import copy
import json
from pathlib import Path

import pytest

from topology.ranktable import rank_table, read_rank_table
from topology.table_checks import TABLE_RULES, check_hccl
from topology.topojson import read_topo_file, topo_file

DATA = Path(__file__).parent / "data"
TABLE = json.loads((DATA / "two_servers.ranktable.json").read_text())
TOPO = json.loads((DATA / "two_servers.topo.json").read_text())


@pytest.mark.parametrize("name", ["eight_cards", "two_servers"])
def test_healthy_files_have_no_finding(name):
    topo, table = read_topo_file(DATA / f"{name}.topo.json"), read_rank_table(DATA / f"{name}.ranktable.json")
    assert check_hccl(topo, table) == check_hccl(topo, None) == check_hccl(None, table) == []
    assert check_hccl(None, None) == []


def two_pods_on_one_host(topo, table):
    """Case G69: cards 0 and 1 of one host, listed by two pods under two server ids."""
    table["rank_list"], table["rank_count"] = table["rank_list"][:2], 2
    table["rank_list"][1]["level_list"][0]["net_instance_id"] = "10.0.0.6"


def same_address_in_two_servers(topo, table):
    for number in (0, 2):
        table["rank_list"][number]["level_list"][0]["rank_addr_list"][0]["addr"] = "10.0.0.5"


def level_address(number, level):
    return lambda table: table["rank_list"][number]["level_list"][level]["rank_addr_list"][0]


def round_robin(topo, table):
    """Case G68: rank r sits in server r mod 2."""
    ranks = table["rank_list"]
    ranks[1]["rank_id"], ranks[2]["rank_id"] = 2, 1


def no_plane(topo, table):
    del level_address(2, 1)(table)["plane_id"]


def no_level(topo, table):
    del table["rank_list"][3]["level_list"][1]


def more_ports(topo, table):
    level_address(1, 1)(table)["ports"] = ["0/1", "0/2"]
    for edge in topo["edge_list"][2:]:
        edge["local_a_ports"] = ["0/1", "0/2"]


def other_port(topo, table):
    level_address(1, 1)(table)["ports"] = ["0/7"]


def other_card(topo, table):
    table["rank_list"][3]["local_id"] = 6


def unequal_ports(topo, table):
    topo["edge_list"][0]["local_a_ports"] = ["0/0", "0/3"]


def shared_port(topo, table):
    topo["edge_list"][2]["local_a_ports"] = ["0/0"]
    level_address(0, 1)(table)["ports"] = level_address(2, 1)(table)["ports"] = ["0/0"]


def repeated_edge(topo, table):
    topo["edge_list"][1]["protocols"] = ["UB_MEM", "UB_CTP"]


def unknown_type(topo, table):
    topo["edge_list"][0]["topo_type"] = "RING"


def no_edges(topo, table):
    topo["edge_list"], topo["edge_count"] = [], 0


FAULTS = [
    (
        two_pods_on_one_host,
        "server-split",
        "servers 'box0' and '10.0.0.6' hold local ids [0] and [1] of what may",
    ),
    (same_address_in_two_servers, "server-split", "servers 'box0' and 'box1' share the address 10.0.0.5"),
    (same_address_in_two_servers, "address-shared", "ranks 0, 2 share the address 10.0.0.5"),
    (round_robin, "ranks-not-packed", "server 'box0' holds ranks 0, 2, which do not follow each other"),
    (no_plane, "plane-id-missing", "netlayer 1 has no plane_id for rank 2, but for 3 others"),
    (no_level, "level-missing", "netlayer 1 is missing for rank 3"),
    (more_ports, "port-count", "netlayer 1 in 'row' has 2 ports for rank 1, and 1 for the others"),
    (other_port, "port-not-in-topo", "rank 1 has 0/7 on netlayer 1, no edge has"),
    (other_card, "card-not-in-topo", "rank 3 is card 6, which is not in peer_list"),
    (unequal_ports, "ports-unequal", "edge_list[0] lists 2 and 1 ports at its ends"),
    (shared_port, "port-shared", "port 0/0 of card 0 leads to card 1 and to the fabric of netlayer 1"),
    (repeated_edge, "edge-repeated", "edge_list[1] repeats edge_list[0]"),
    (unknown_type, "topo-type-unknown", "edge_list[0] has the topo_type 'RING'"),
    (no_edges, "no-edges", "edge_list is empty"),
]


@pytest.mark.parametrize(
    ("fault", "rule", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_fault_is_found_and_named(fault, rule, message):
    topo, table = copy.deepcopy(TOPO), copy.deepcopy(TABLE)
    fault(topo, table)
    findings = check_hccl(topo_file(topo), rank_table(table))
    found = next(finding for finding in findings if finding.rule == rule)
    assert found.message.startswith(message)
    assert found.severity == TABLE_RULES[rule][0]


def test_every_rule_has_a_planted_fault():
    assert {rule for _, rule, _ in FAULTS} == set(TABLE_RULES)


def test_one_server_is_no_finding_where_two_are():
    # The same two devices under one server id: the right table of case G69.
    table = copy.deepcopy(TABLE)
    table["rank_list"], table["rank_count"] = table["rank_list"][:2], 2
    assert check_hccl(topo_file(TOPO), rank_table(table)) == []


def test_servers_of_different_rows_are_not_taken_for_one_machine():
    topo, table = copy.deepcopy(TOPO), copy.deepcopy(TABLE)
    two_pods_on_one_host(topo, table)
    table["rank_list"][1]["level_list"][1]["net_instance_id"] = "another row"
    assert "server-split" not in {finding.rule for finding in check_hccl(None, rank_table(table))}


def test_findings_of_one_rule_are_limited_and_errors_come_first():
    topo = copy.deepcopy(TOPO)
    topo["edge_list"] = [{**edge, "topo_type": "RING"} for edge in topo["edge_list"]]
    topo["edge_list"][0]["local_a_ports"] = ["0/0", "0/3"]
    findings = check_hccl(topo_file(topo), None, limit=2)
    assert [finding.rule for finding in findings] == ["ports-unequal"] + ["topo-type-unknown"] * 2
    assert findings[-1].message.endswith("(and 2 more)")
