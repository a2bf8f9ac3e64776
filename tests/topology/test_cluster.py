"""Cluster files: the documented examples build, files round-trip, mistakes name their key path."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import healthy_topologies
from topology import TopologyError, check, clos, cluster, leaf_spine, mesh, ubl128
from topology.cluster import (
    ChangeConfig,
    ClosCluster,
    LeafSpineCluster,
    LinksCluster,
    MeshCluster,
    Ubl128Cluster,
    from_toml,
    to_toml,
)
from topology.explicit import LinkClassConfig, LinkConfig
from topology.units import format_rate, format_time

EXAMPLES = re.findall(r"```toml\n(.*?)```", cluster.__doc__, re.DOTALL)
NAMES = st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
RATES = st.integers(1, 10**13).map(format_rate)
TIMES = st.integers(0, 10**9).map(format_time)
COUNTS = st.integers(1, 9)
CHANGES = st.lists(
    st.builds(
        ChangeConfig, src=st.just("npu0"), dst=st.just("sw0"), rate=st.none() | RATES,
        failed=st.booleans(), one_way=st.booleans(),
    ),
    max_size=2,
).map(tuple)  # fmt: skip
COMMON = {"name": NAMES, "changes": CHANGES}
CONFIGS = st.one_of(
    st.builds(
        Ubl128Cluster, **COMMON, num_npus=COUNTS, planes=COUNTS, port_rate=RATES, cable=TIMES,
        server_mesh=st.booleans(),
    ),
    st.builds(
        ClosCluster, **COMMON, num_npus=COUNTS, scaleout_radix=st.none() | COUNTS, scaleout_rate=RATES,
        oversubscription=st.floats(1, 8), wiring=st.sampled_from(["block", "rail"]),
    ),
    st.builds(LeafSpineCluster, **COMMON, leaves=COUNTS, uplink_rate=st.none() | RATES),
    st.builds(MeshCluster, **COMMON, num_npus=COUNTS, ports=COUNTS),
    st.builds(
        LinksCluster, **COMMON, num_npus=COUNTS, num_switches=COUNTS,
        link_classes=st.tuples(st.builds(LinkClassConfig, name=st.just("a"), rate=RATES, latency=TIMES)),
        links=st.lists(
            st.builds(
                LinkConfig, src=st.just("npu0"), dst=st.just("sw0"), link_class=st.just("a"), plane=COUNTS,
                from_port=st.integers(-1, 9), one_way=st.booleans(),
            ),
            max_size=3,
        ).map(tuple),
        switch_tiers=st.none() | st.lists(COUNTS, max_size=3).map(tuple),
    ),
)  # fmt: skip


@given(CONFIGS)
def test_a_written_file_reads_back_equal(config):
    assert from_toml(to_toml(config)) == config


def test_the_documented_clos_is_what_it_says():
    topology = from_toml(EXAMPLES[0]).build()
    plain = clos(1024, oversubscription=2, wiring="rail", scaleout_radix=256, name="lab cluster")
    assert topology.num_links == plain.num_links - 1
    slow = topology.links_between(3, topology.vertex("sw5"))
    back = topology.links_between(topology.vertex("sw5"), 3)
    assert topology.link_bytes_per_s(np.concatenate([slow, back])).tolist() == [25 * 10**9] * 2
    assert not len(topology.links_between(9, topology.vertex("sw0")))
    assert len(topology.links_between(topology.vertex("sw0"), 9)) == 1
    assert {f.rule for f in check(topology)} == {"asymmetric-cable", "plane-missing", "unequal-planes"}


def test_the_documented_links_are_what_they_say():
    topology = from_toml(EXAMPLES[1]).build()
    assert [str(topology.link(n)).split(",")[0] for n in range(6)] == [
        "npu0 -> sw0 (netlayer 1", "sw0 -> npu0 (netlayer 1", "npu1 -> sw0 (netlayer 1",
        "sw0 -> npu1 (netlayer 1", "npu0 -> npu1 (netlayer 0", "npu1 -> npu0 (netlayer 0",
    ]  # fmt: skip
    assert check(topology) == []
    assert len(EXAMPLES) == 2


def test_the_way_back_of_a_cable_has_its_ports_the_other_way_round():
    topology = from_toml(LINKS + CLASS + LINK + "from_port = 3\nto_port = 4").build()
    assert topology.link_src_port.tolist() == [3, 4]
    assert topology.link_dst_port.tolist() == [4, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('kind = "ubl128"', ubl128()),
        ('kind = "ubl128"\nnum_npus = 9\nserver_mesh = true', ubl128(9, server_mesh=True)),
        ('kind = "clos"\nnum_npus = 300', clos(300)),
        ('kind = "leaf-spine"', leaf_spine()),
        ('kind = "mesh"\nnum_npus = 4\nport_rate = "50GB/s"', mesh(4)),
    ],
)
def test_absent_keys_are_the_builders_defaults(text, expected):
    assert from_toml(text).build() == expected


@given(healthy_topologies())
def test_any_topology_can_be_listed_link_by_link(topology):
    rows = [topology.link(n) for n in range(topology.num_links)]
    config = LinksCluster(
        name=topology.name,
        num_npus=topology.num_npus,
        num_switches=topology.num_switches,
        switch_tiers=tuple(topology.switch_tier.tolist()),
        link_classes=tuple(
            LinkClassConfig(
                name=c.name, rate=format_rate(c.bandwidth_bytes_per_s), latency=format_time(c.latency_ps)
            )
            for c in topology.classes
        ),
        links=tuple(
            LinkConfig(
                src=row.src, dst=row.dst, link_class=topology.classes[topology.link_class[n]].name,
                netlayer=row.netlayer, plane=row.plane, from_port=row.src_port, to_port=row.dst_port,
                one_way=True,
            )
            for n, row in enumerate(rows)
        ),
    )  # fmt: skip
    built = from_toml(to_toml(config)).build()
    # The file says neither where the builder's numbers came from nor where its servers end.
    assert built == replace(
        topology, classes=built.classes, npu_server=built.npu_server, npu_supernode=built.npu_supernode
    )
    assert [(c.bandwidth_bytes_per_s, c.latency_ps) for c in built.classes] == [
        (c.bandwidth_bytes_per_s, c.latency_ps) for c in topology.classes
    ]


LINKS = 'kind = "links"\nnum_npus = 2\nnum_switches = 1\n'
CLASS = '[[link_classes]]\nname = "a"\nrate = "400Gbps"\nlatency = "1ns"\n'
LINK = '[[links]]\nfrom = "npu0"\nto = "npu1"\nclass = "a"\n'
UBL = 'kind = "ubl128"\n'


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        ("", "kind", "must be one of ubl128, clos"),
        ("kind", "cluster file", "must be TOML"),
        ('kind = "torus"', "kind", "must be one of ubl128, clos"),
        ("kind = 3", "kind", "must be one of"),
        ("[kind]\na = 1", "kind", "must be one of"),
        (UBL + "plains = 8", "plains", "known keys: name, changes, num_npus, planes"),
        (UBL + 'num_npus = "8"', "num_npus", "expected `int`, got `str`"),
        (UBL + "num_npus = true", "num_npus", "expected `int`"),
        (UBL + "num_npus = 129", "num_npus", "at most 128 cards"),
        (UBL + "port_rate = 400", "port_rate", 'needs a unit, in quotes, as "400Gbps"'),
        (UBL + "cable = 50.5", "cable", 'needs a unit, in quotes, as "50ns"'),
        (UBL + "port_rate = true", "port_rate", "expected `str`"),
        (UBL + "name = 4", "name", "expected `str"),
        (
            UBL + '[[changes]]\nfrom = "npu0"\nto = "sw0"\nrate = 1',
            "changes[0].rate",
            "needs a unit, in quotes",
        ),
        (LINKS + CLASS.replace('"1ns"', "1") + LINK, "link_classes[0].latency", 'quotes, as "250ns"'),
        (UBL + 'port_rate = "400"', "port_rate", "needs a unit"),
        (UBL + 'port_rate = "50GB"', "port_rate", "no unit of that kind"),
        (UBL + 'cable = "-5ns"', "cable", "must not be negative"),
        (UBL + "changes = 3", "changes", "expected `array`"),
        (UBL + '[[changes]]\nfrom = "npu0"', "changes[0].to", "must be given"),
        (
            UBL + '[[changes]]\nfrom = "npu0"\nto = "sw9"\nfailed = true',
            "changes[0].to",
            "must be one of npu0",
        ),
        (UBL + '[[changes]]\nfrom = "npu0"\nto = "npu1"\nfailed = true', "changes[0]", "no such link"),
        (UBL + '[[changes]]\nfrom = "npu0"\nto = "sw0"', "changes[0]", "needs either"),
        (UBL + '[[changes]]\nfrom = "npu0"\nto = "sw0"\nrate = "1"', "changes[0].rate", "needs a unit"),
        (
            UBL + '[[changes]]\nfrom = "npu0"\nto = "sw0"\nspeed = "1"',
            "changes[0].speed",
            "known keys: from, to",
        ),
        ('kind = "clos"', "num_npus", "must be given"),
        ('kind = "clos"\nnum_npus = 256\nwiring = "odd"', "wiring", "must be one of block, rail"),
        ('kind = "clos"\nnum_npus = 256\nscaleout_radix = 2', "num_npus", "carry at most 2 cards"),
        ('kind = "mesh"\nnum_npus = 9', "num_npus", "one port per peer"),
        (LINKS + CLASS, "links", "must be given"),
        (LINKS + LINK, "link_classes", "must be given"),
        (LINKS + CLASS + LINK + "colour = 2", "links[0].colour", "known keys: from, to, class"),
        (LINKS + CLASS + LINK.replace("npu1", "npu2"), "links[0].to", "npu0..npu1 or sw0..sw0"),
        (LINKS + CLASS + LINK.replace("npu1", "npu0"), "links[0].to", "must join two vertices"),
        (LINKS + CLASS + LINK + LINK.replace('"a"', '"b"'), "links[1].class", "must be one of a"),
        (LINKS + CLASS + LINK + 'plane = "x"', "links[0].plane", "expected `int`"),
        (LINKS + CLASS + LINK + "plane = -1", "links[0].plane", "0..32767"),
        (LINKS + CLASS + LINK + "netlayer = 8", "links[0].netlayer", "0..7"),
        (LINKS + CLASS + LINK + "to_port = -2", "links[0].to_port", "-1 is unknown"),
        (LINKS + CLASS.replace("400Gbps", "0bps") + LINK, "link_classes[0].rate", "positive"),
        (LINKS + CLASS.replace("1ns", "1") + LINK, "link_classes[0].latency", "needs a unit"),
        (LINKS + "switch_tiers = [0, 1]\n" + CLASS + LINK, "number of switch_tiers", "one entry per switch"),
        (LINKS + "switch_tiers = [256]\n" + CLASS + LINK, "switch_tiers[0]", "0..255"),
    ],
)
def test_a_mistake_names_its_key_path_in_one_sentence(text, field, rule):
    with pytest.raises(TopologyError) as caught:
        from_toml(text).build()
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert "\n" not in str(caught.value)
