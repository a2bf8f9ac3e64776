"""Checks: silent on everything the builders make, and each planted fault found and named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import healthy_topologies, topologies
from tests.topology.oracle import spray_shares
from topology import RULES, Source, check, clos, leaf_spine, mesh, ubl128, with_link_rate, without_links
from topology.checks import Finding
from topology.cluster import from_toml

GIVEN = Source("given", "test")


def rules(topology):
    return {finding.rule for finding in check(topology)}


def only(topology, rule):
    """Messages of the one rule that is broken."""
    findings = check(topology)
    assert {finding.rule for finding in findings} == {rule}
    return [finding.message for finding in findings]


def lose(topology, src, dst, *, both=True):
    a, b = topology.vertex(src), topology.vertex(dst)
    links = list(topology.links_between(a, b)) + (list(topology.links_between(b, a)) if both else [])
    assert links
    return without_links(topology, np.array(links))


def changed(topology, field, link, value):
    array = getattr(topology, field).copy()
    array[link] = value
    return replace(topology, **{field: array})


def appended(topology, link, **values):
    """Add a copy of a link with some fields changed."""
    arrays = {
        field: np.append(getattr(topology, field), values.get(field, getattr(topology, field)[link]))
        for field in topology.__dataclass_fields__
        if field.startswith("link_")
    }
    return replace(topology, **arrays)


@given(healthy_topologies())
def test_nothing_is_wrong_with_what_the_builders_make(topology):
    assert check(topology) == []


@pytest.mark.parametrize(
    "topology", [ubl128(), leaf_spine(), mesh(), clos(512), ubl128(20, server_mesh=True)]
)
def test_nothing_is_wrong_with_the_defaults(topology):
    assert check(topology) == []


@given(topologies())
def test_unreachable_is_reported_exactly_when_plain_loops_find_no_path(topology):
    cards = range(topology.num_npus)
    idle = {n for n in cards if not len(topology.links_of(n)) and not len(topology.links_into(n))}
    pairs = [(a, b) for a in cards for b in cards if a != b and not {a, b} & idle]
    lost = [pair for pair in pairs if spray_shares(topology, *pair) is None] if topology.num_links else []
    found = [finding.message for finding in check(topology) if finding.rule == "unreachable"]
    assert bool(found) == bool(lost)
    if lost:
        assert f"({len(lost)} ordered pairs in all)" in found[0]
        named = found[0].split(" over ")[0].replace(" has no path to ", " ").split()
        assert tuple(topology.vertex(name) for name in named) in lost


def test_a_card_without_links_is_named_once():
    topology = ubl128(4, planes=2)
    for switch in ("sw0", "sw1"):
        topology = lose(topology, "npu2", switch)
    assert only(topology, "npu-without-links") == ["npu2 has no link at all"]


def test_a_missing_plane_is_named():
    assert only(lose(ubl128(4), "npu2", "sw5"), "plane-missing") == [
        f"npu2 has no link {way} in plane 5 of netlayer 1" for way in ("out", "in")
    ]


def test_a_missing_parallel_port_is_a_warning():
    topology = ubl128(4, planes=2, ports_per_plane=2)
    out = topology.links_between(1, topology.vertex("sw0"))[0]
    back = topology.links_between(topology.vertex("sw0"), 1)[0]
    messages = only(without_links(topology, np.array([out, back])), "port-missing")
    assert messages[0] == "npu1 has 1 links out in plane 0 of netlayer 1, other cards have 2"


def test_a_missing_mesh_cable_is_found_although_the_switches_join_the_cards():
    messages = only(lose(ubl128(8, server_mesh=True), "npu1", "npu6"), "port-missing")
    assert messages == [
        f"npu{n} has 6 direct peers on netlayer 0, others in server 0 have 7" for n in (1, 6)
    ]  # fmt: skip


def test_a_card_off_a_netlayer_is_named():
    topology = clos(8, supernode_size=4, scaleout_radix=4)
    leaf = topology.link_dst[np.flatnonzero((topology.link_netlayer == 2) & (topology.link_src == 5))[0]]
    topology = lose(topology, "npu5", topology.vertex_name(int(leaf)))
    findings = {finding.rule: finding.message for finding in check(topology)}
    assert findings["netlayer-missing"] == "npu5 has no link on netlayer 2"
    # 4 cards of the other supernode, both ways.
    assert findings["unreachable"] == "npu0 has no path to npu5 over netlayer 1 or 2 (8 ordered pairs in all)"


def test_supernodes_without_a_scaleout_cannot_reach_each_other():
    topology = clos(8, supernode_size=4, scaleout_radix=4)
    topology = without_links(topology, np.flatnonzero(topology.link_netlayer == 2))
    findings = check(topology, limit=100)
    assert [f.message for f in findings if f.rule == "unreachable"] == [
        "npu0 has no path to npu4 over netlayer 1 (32 ordered pairs in all)"
    ]  # fmt: skip
    assert {f.rule for f in findings} == {"unreachable", "switch-without-links"}


def test_a_link_without_its_way_back_is_named():
    topology = lose(ubl128(4), "npu1", "sw3", both=False)
    findings = {finding.rule: finding.message for finding in check(topology)}
    assert findings["asymmetric-cable"] == (
        "sw3 -> npu1 (netlayer 1, plane 3) has no link back from npu1 to sw3"
    )  # fmt: skip
    assert findings["plane-missing"] == "npu1 has no link out in plane 3 of netlayer 1"


def test_one_slow_direction_is_named_with_both_speeds():
    topology = ubl128(4)
    slow = topology.links_between(2, topology.vertex("sw1"))
    findings = {f.rule: f.message for f in check(with_link_rate(topology, slow, 25 * 10**9, GIVEN))}
    assert findings["unequal-directions"] == (
        "npu2 -> sw1 (netlayer 1, plane 1) runs at 25GB/s and the way back at 50GB/s"
    )
    assert findings["unequal-planes"] == (
        "npu2 sends 25GB/s in plane 1 and 50GB/s in plane 0 of netlayer 1"
    )  # fmt: skip
    assert len(findings) == 2


def test_a_slow_plane_is_a_warning():
    topology = ubl128(4)
    there = topology.links_between(2, topology.vertex("sw1"))
    back = topology.links_between(topology.vertex("sw1"), 2)
    topology = with_link_rate(topology, np.concatenate([there, back]), 25 * 10**9, GIVEN)
    assert only(topology, "unequal-planes") == [
        "npu2 sends 25GB/s in plane 1 and 50GB/s in plane 0 of netlayer 1",
        "npu2 receives 25GB/s in plane 1 and 50GB/s in plane 0 of netlayer 1",
    ]


def test_two_links_in_one_port_are_named_with_both_peers():
    topology = ubl128(4)
    link = topology.links_between(1, topology.vertex("sw3"))[0]
    findings = {f.rule: f.message for f in check(changed(topology, "link_src_port", link, 2))}
    assert findings["port-conflict"] == "port 2 of npu1 holds 2 links, to sw2 and sw3"


def test_a_port_that_sends_to_one_and_receives_from_another_is_named():
    topology = ubl128(4)
    there = [topology.links_between(1, topology.vertex(name))[0] for name in ("sw2", "sw3")]
    ports = topology.link_src_port.copy()
    ports[there] = ports[there[::-1]]
    assert only(replace(topology, link_src_port=ports), "crossed-port") == [
        "port 2 of npu1 sends to sw3 but receives from sw2",
        "port 3 of npu1 sends to sw2 but receives from sw3",
    ]


@pytest.mark.parametrize("ports", [{}, {"link_src_port": -1, "link_dst_port": -1}])
def test_a_link_listed_twice_is_named(ports):
    topology = ubl128(4)
    if ports:
        unknown = np.full(topology.num_links, -1)
        topology = replace(topology, link_src_port=unknown, link_dst_port=unknown.copy())
    twice = appended(topology, 7)
    message = next(f.message for f in check(twice) if f.rule == "duplicate-link")
    assert message == "npu0 -> sw7 (netlayer 1, plane 7) is listed again as link 64 with the same ports"


def test_parallel_links_in_different_ports_are_no_duplicates():
    topology = appended(ubl128(4), 7, link_src_port=100, link_dst_port=101)
    assert "duplicate-link" not in rules(topology)


def test_a_card_on_two_switches_in_one_plane_is_named():
    topology = ubl128(4)
    link = topology.links_between(1, topology.vertex("sw3"))[0]
    findings = {f.rule: f.message for f in check(changed(topology, "link_plane", link, 2))}
    assert findings["split-plane"] == "npu1 is cabled to two switches in plane 2 of netlayer 1"


def crossed(topology, one, other):
    """Swap the switch ends of two cables, given as (card, plane), both ways."""
    names = ("link_src", "link_dst", "link_src_port", "link_dst_port")
    arrays = {name: getattr(topology, name).copy() for name in names}
    for near, far in (("link_src", "link_dst"), ("link_dst", "link_src")):
        cards, planes = getattr(topology, near), topology.link_plane
        a, b = (int(np.flatnonzero((cards == npu) & (planes == plane))[0]) for npu, plane in (one, other))
        for name in (far, f"{far}_port"):
            arrays[name][[a, b]] = arrays[name][[b, a]]
    return replace(topology, **arrays)


def test_a_cable_swapped_across_planes_is_named_both_ways():
    messages = only(crossed(ubl128(8), (3, 2), (4, 5)), "mixed-planes")
    assert sorted(messages) == [
        "npu3 -> sw5 (netlayer 1, plane 2) meets sw5, which serves plane 5",
        "npu4 -> sw2 (netlayer 1, plane 5) meets sw2, which serves plane 2",
        "sw2 -> npu4 (netlayer 1, plane 5) meets sw2, which serves plane 2",
        "sw5 -> npu3 (netlayer 1, plane 2) meets sw5, which serves plane 5",
    ]
    assert check(crossed(ubl128(8), (3, 2), (4, 2))) == []


def test_a_trunk_in_another_plane_is_found_at_both_switches():
    topology = clos(256, supernode_size=8)
    trunks = np.flatnonzero(np.minimum(topology.link_src, topology.link_dst) >= topology.num_npus)
    planes = topology.link_plane.copy()
    planes[trunks[0]] += 1
    found = [f.message for f in check(replace(topology, link_plane=planes)) if f.rule == "mixed-planes"]
    assert len(found) == 2
    assert all(f"plane {planes[trunks[0]]}) meets sw" in message for message in found)


def test_a_topology_without_links_has_only_idle_cards():
    topology = ubl128(3)
    bare = without_links(topology, np.arange(topology.num_links))
    assert [f.message for f in check(bare)] == [
        f"{name} has no link at all"
        for name in (*(f"npu{n}" for n in range(3)), *(f"sw{n}" for n in range(8)))
    ]


def test_a_plane_that_everybody_lost_is_an_error():
    """All cables to sw5 failed: the cards are alike, so only the switch tells that a plane was meant."""
    topology = ubl128()
    lost = topology.vertex("sw5")
    lost = np.flatnonzero((topology.link_src == lost) | (topology.link_dst == lost))
    findings = check(without_links(topology, lost))
    assert [str(f) for f in findings] == ["error: switch-without-links: sw5 has no link at all"]
    but_one = check(without_links(topology, lost[2:]))
    assert "switch-without-links" not in {f.rule for f in but_one}


def test_a_lost_spine_among_many_is_an_error():
    """No pair loses its last path, and no card a link; the capacity of the layer is less all the same."""
    topology = clos(1024)
    spine = topology.num_vertices - 1
    assert topology.switch_tier[-1] == 1
    lost = np.flatnonzero((topology.link_src == spine) | (topology.link_dst == spine))
    assert only(without_links(topology, lost), "switch-without-links") == [
        f"{topology.vertex_name(spine)} has no link at all"
    ]


@given(topologies())
def test_idle_switches_are_reported_exactly_when_plain_loops_find_them(topology):
    idle = {
        f"{topology.vertex_name(v)} has no link at all"
        for v in range(topology.num_npus, topology.num_vertices)
        if not len(topology.links_of(v)) and not len(topology.links_into(v))
    }
    found = check(topology, limit=10**6)
    assert {f.message for f in found if f.rule == "switch-without-links"} == idle


def test_a_listed_switch_that_no_cable_meets_is_an_error():
    """A cluster file of kind "links" may count more switches than it cables."""
    text = 'kind = "links"\nnum_npus = 2\nnum_switches = 1\n'
    text += '[[link_classes]]\nname = "a"\nrate = "400Gbps"\nlatency = "250ns"\nsource = "test"\n'
    text += '[[links]]\nfrom = "npu0"\nto = "npu1"\nclass = "a"\nnetlayer = 0\n'
    assert only(from_toml(text).build(), "switch-without-links") == ["sw0 has no link at all"]


def test_many_findings_of_a_rule_are_counted_in_the_last():
    topology = ubl128(20)
    lost = np.flatnonzero(topology.link_plane == 3)
    topology = without_links(topology, lost[topology.link_src[lost] != 0][:-1])
    findings = [f for f in check(topology, limit=3) if f.rule == "plane-missing"]
    assert len(findings) == 3
    assert findings[-1].message.endswith(" more)")
    total = len([f for f in check(topology, limit=10**6) if f.rule == "plane-missing"])
    assert f"(and {total - 3} more)" in findings[-1].message


def test_errors_come_before_warnings_and_print_on_one_line():
    topology = ubl128(4)
    topology = with_link_rate(topology, topology.links_between(2, topology.vertex("sw1")), 25 * 10**9, GIVEN)
    findings = check(topology)
    assert [f.severity for f in findings] == ["error", "warning"]
    assert str(findings[0]).startswith("error: unequal-directions: npu2 -> sw1")


@given(topologies(), st.integers(1, 3))
def test_findings_use_known_rules_and_respect_the_limit(topology, limit):
    findings = check(topology, limit=limit)
    for rule in {f.rule for f in findings}:
        assert RULES[rule][0] == next(f.severity for f in findings if f.rule == rule)
        assert len([f for f in findings if f.rule == rule]) <= limit
    assert all(isinstance(f, Finding) and "\n" not in f.message for f in findings)


def test_one_lost_direction_among_many_thousand_cards_is_found():
    topology = clos(32_768)
    link = int(topology.links_of(20_000)[5])
    messages = {f.rule: f.message for f in check(without_links(topology, np.array([link])))}
    assert messages["asymmetric-cable"].startswith("sw1253 -> npu20000 (netlayer 1, plane 5)")
    assert messages["plane-missing"] == "npu20000 has no link out in plane 5 of netlayer 1"
