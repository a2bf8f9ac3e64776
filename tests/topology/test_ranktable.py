"""Rank tables: both field variants, nothing lost on the way through, and every refusal by a planted fault."""

import copy
import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.ranktable import RankAddress, parse_rank_table, rank_table, read_rank_table

DATA = Path(__file__).parent / "data"
TABLES = sorted(DATA.glob("*.ranktable.json"))
BASE = json.loads((DATA / "two_servers.ranktable.json").read_text())
OLDER = json.loads((DATA / "older_names.ranktable.json").read_text())


def ordered(text: str) -> str:
    """Values and key order of JSON text, without its spacing."""
    return json.dumps(json.loads(text))


def test_samples_are_there():
    assert len(TABLES) == 3


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_reading_and_writing_loses_nothing(path):
    table = read_rank_table(path)
    assert ordered(table.to_json()) == ordered(path.read_text())
    assert parse_rank_table(table.to_json()) == table


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
unknown_fields = st.dictionaries(st.text().map("x_".__add__), json_values, max_size=3)


@settings(deadline=None)
@given(unknown_fields, unknown_fields, unknown_fields)
def test_unknown_fields_survive_at_every_depth(top, rank, address):
    document = {**top, **copy.deepcopy(BASE)}
    document["rank_list"][1].update(rank)
    document["rank_list"][1]["level_list"][1]["rank_addr_list"][0].update(address)
    text = json.dumps(document)
    assert ordered(parse_rank_table(text).to_json()) == text


def test_eight_cards_have_seven_mesh_endpoints_and_two_port_groups():
    table = read_rank_table(DATA / "eight_cards.ranktable.json")
    assert table.netlayers == (0, 1)
    assert table.topo_file_path == "eight_cards.topo.json"
    for rank in table.ranks:
        mesh, clos = rank.levels
        assert [address.ports for address in mesh.addresses] == [(f"0/{k}",) for k in range(7)]
        assert [(a.plane_id, len(a.ports)) for a in clos.addresses] == [("plane0", 2), ("plane1", 4)]
        assert (rank.server_id, clos.instance_id, clos.net_type) == ("hall3-server17", "hall3", "CLOS")


def test_older_names_give_the_same_view_in_rank_order():
    table = read_rank_table(DATA / "older_names.ranktable.json")
    assert [(rank.rank_id, rank.local_id, rank.device_id) for rank in table.ranks] == [
        (0, 1, None), (1, 3, None), (2, 5, None),
    ]  # fmt: skip
    assert [rank.level(0).addresses for rank in table.ranks] == [
        (RankAddress(addr_type="IPV4", addr="10.9.0.1", ports=(), plane_id=None),),
        (RankAddress(addr_type="IPV4", addr="10.9.0.2", ports=("0/3",), plane_id="planeB"),),
        (),
    ]
    assert table.ranks[0].level(7) is None
    assert table.ranks[0].levels[0].net_type == "INNER"


def test_the_view_does_not_follow_later_changes_of_the_document():
    document = copy.deepcopy(BASE)
    table = rank_table(document)
    document["rank_list"][0]["rank_id"] = 99
    assert ordered(table.to_json()) == json.dumps(BASE)


def rank(number, **changes):
    return lambda doc: doc["rank_list"][number].update(changes)


def level(**changes):
    return lambda doc: doc["rank_list"][1]["level_list"][0].update(changes)


def address(**changes):
    return lambda doc: doc["rank_list"][1]["level_list"][0]["rank_addr_list"][0].update(changes)


def drop(path, name):
    def change(doc):
        for key in path:
            doc = doc[key]
        del doc[name]

    return change


FIRST_LEVEL = ("rank_list", 1, "level_list", 0)
PORTS = "rank_list[1].level_list[0].rank_addr_list[0].ports"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda doc: doc.update(version="1.0"), "version is '1.0': must be \"2.0\""),
        (lambda doc: doc.update(version=2.0), "version is 2.0: must be"),
        (drop((), "version"), "version is None: is missing"),
        (lambda doc: doc.update(rank_count="4"), "rank_count is '4': must be an integer, not a string"),
        (lambda doc: doc.update(rank_count=4.0), "rank_count is 4.0: must be an integer"),
        (lambda doc: doc.update(rank_count=True), "rank_count is True: must be an integer"),
        (
            lambda doc: doc.update(rank_count=3),
            "rank_count is 3: must be the length of rank_list, which is 4",
        ),
        (drop((), "rank_count"), "rank_count is None: is missing"),
        (drop((), "rank_list"), "rank_list is None: is missing"),
        (lambda doc: doc.update(rank_list={"0": {}}), "rank_list is an object of 1: must be a list"),
        (lambda doc: doc.update(rank_list=[], rank_count=0), "rank_list is 0: must name at least one rank"),
        (lambda doc: doc["rank_list"].__setitem__(2, 7), "rank_list[2] is 7: must be a JSON object"),
        (lambda doc: doc.update(topo_file_path=1), "topo_file_path is 1: must be a string"),
        (rank(1, rank_id=0), "rank_list is 'rank_id 0': is given to more than one rank"),
        (
            rank(1, rank_id=9),
            "rank_list is 'largest rank_id 9': must hold the rank ids 0..3, and 1 is missing",
        ),
        (rank(1, rank_id=-1), "rank_list[1].rank_id is -1: must not be negative"),
        (rank(1, rank_id="1"), "rank_list[1].rank_id is '1': must be an integer, not a string"),
        (
            rank(1, local_id=0),
            "rank_list is 'local_id 0': is given to ranks [0, 1] of the same server 'box0'",
        ),
        (drop(("rank_list", 1), "local_id"), "rank_list[1].local_id is None: is missing"),
        (rank(1, device_id="0"), "rank_list[1].device_id is '0': must be an integer"),
        (rank(1, level_list=[]), "rank_list[1].level_list is 0: must name at least one netlayer"),
        (level(net_layer=1), "rank_list[1].level_list is 1: is a netlayer given twice"),
        (level(net_layer=None), "rank_list[1].level_list[0].net_layer is None: must be an integer"),
        (level(level=0), "rank_list[1].level_list[0] is 'net_layer and level': must use one variant"),
        (drop(FIRST_LEVEL, "net_layer"), "rank_list[1].level_list[0].net_layer is None: is missing"),
        (drop(FIRST_LEVEL, "net_instance_id"), "level_list[0].net_instance_id is None: is missing"),
        (drop(FIRST_LEVEL, "rank_addr_list"), "level_list[0].rank_addr_list is None: is missing"),
        (level(net_type=3), "rank_list[1].level_list[0].net_type is 3: must be a string"),
        (drop((*FIRST_LEVEL, "rank_addr_list", 0), "addr"), "rank_addr_list[0].addr is None: is missing"),
        (address(ports=["0-1"]), f"{PORTS}[0] is '0-1': must be \"die/port\", two whole numbers"),
        (address(ports=["0/1/2"]), f"{PORTS}[0] is '0/1/2': must be \"die/port\""),
        (address(ports=["-1/0"]), f"{PORTS}[0] is '-1/0': must be \"die/port\""),
        (address(ports=["\u0661/0"]), f"{PORTS}[0] is '\u0661/0': must be \"die/port\""),
        (address(ports=["0/1", "0/1"]), f"{PORTS}[1] is '0/1': is listed twice"),
        (address(ports=[1]), f"{PORTS}[0] is 1: must be a string"),
        (address(ports="0/1"), f"{PORTS} is '0/1': must be a list"),
        (address(plane_id=0), "rank_addr_list[0].plane_id is 0: must be a string"),
    ],
)
def test_a_broken_table_is_refused_with_field_value_and_rule(fault, message):
    document = copy.deepcopy(BASE)
    fault(document)
    with pytest.raises(TopologyError, match=re.escape(message)):
        rank_table(document)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda level: level.update(level="0"),
            "level_list[0].level is '0': must be an integer, not a string",
        ),
        (lambda level: level.pop("id"), "level_list[0].id is None: is missing"),
        (
            lambda level: level.update(rank_addrs=[3]),
            "level_list[0].rank_addrs[0] is 3: must be a JSON object",
        ),
    ],
)
def test_a_broken_older_table_is_refused(fault, message):
    document = copy.deepcopy(OLDER)
    fault(document["rank_list"][0]["level_list"][0])
    with pytest.raises(TopologyError, match=re.escape(message)):
        rank_table(document)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(BASE), "must be JSON; this is a pickle, and nothing is ever unpickled"),
        (pickle.dumps(BASE, protocol=0), "must be JSON; Expecting value"),
        (b"\xff\xfe{}", "must be JSON, which is UTF-8 text"),
        (b"", "must be JSON; it ends early at line 1"),
        (json.dumps(BASE)[:200].encode(), "must be JSON; it ends early at line 1"),
        (b"{'version': 2}", "must be JSON; Expecting property name enclosed in double quotes at line 1"),
        (b"[1]", "must hold a JSON object, not a list"),
        (b'"2.0"', "must hold a JSON object, not a string"),
        (b'{"a": 1, "a": 2}', "key 'a' is given twice in one object"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "number 1e999 is beyond what JSON readers hold"),
        (b'{"a": ' + b"1" * 5000 + b"}", "holds a number that cannot be read"),
        (b'{"a": ' + b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path, data, message):
    path = tmp_path / "table.json"
    path.write_bytes(data)
    with pytest.raises(TopologyError, match=re.escape(message)) as refused:
        read_rank_table(path)
    assert str(path) in str(refused.value)


@settings(deadline=None)
@given(st.integers(1, len(json.dumps(BASE)) - 1))
def test_every_truncation_is_refused(length):
    with pytest.raises(TopologyError):
        parse_rank_table(json.dumps(BASE)[:length])


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_an_unreadable_file_is_refused_by_name(tmp_path, name):
    with pytest.raises(TopologyError, match="cannot be read"):
        read_rank_table(f"{tmp_path}/{name}")


def test_a_byte_order_mark_is_no_part_of_the_document():
    assert parse_rank_table(b"\xef\xbb\xbf" + json.dumps(BASE).encode()) == rank_table(BASE)


def test_a_long_value_is_shortened_in_the_message():
    document = copy.deepcopy(BASE)
    document["version"] = "2" * 10_000
    with pytest.raises(TopologyError) as refused:
        rank_table(document)
    assert len(str(refused.value)) < 120
