"""Drawings: everything is counted once, nothing overlaps, and size does not grow with the system."""

import dataclasses
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.clos import clos
from topology.draw import PLANE_COLOURS, to_dot, to_svg
from topology.graph import Topology
from topology.mesh import mesh
from topology.picture import fold
from topology.ubl128 import ubl128

SVG = "{http://www.w3.org/2000/svg}"
SYSTEMS = {
    "mesh2": mesh(2),
    "mesh8": mesh(8),
    "ubl128": ubl128(),
    "ubl16-mesh": ubl128(16, server_mesh=True),
    "ubl128-mesh": ubl128(server_mesh=True),
    "one-server": ubl128(24, planes=3, server_size=24),
    "many-servers": ubl128(128, server_size=1),
    "many-planes": ubl128(20, planes=40),
    "clos128": clos(128),
    "clos160": clos(160),
    "clos2100": clos(2100, scaleout_planes=2),
    "no-links": dataclasses.replace(
        mesh(2), **{f"link_{name}": np.zeros(0, np.int64) for name in
                    ("src", "dst", "netlayer", "plane", "class", "src_port", "dst_port")}
    ),
}  # fmt: skip
each_system = pytest.mark.parametrize("topology", SYSTEMS.values(), ids=SYSTEMS.keys())


def without(topology: Topology, *links: int) -> Topology:
    keep = np.setdiff1d(np.arange(topology.num_links), links)
    names = [f.name for f in dataclasses.fields(topology) if f.name.startswith("link_")]
    return dataclasses.replace(topology, **{name: getattr(topology, name)[keep] for name in names})


def overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def text_areas(svg: ET.Element):
    """Rectangle of every text, with the average width of a common sans-serif letter (0.55 of its size)."""
    for text in svg.iter(f"{SVG}text"):
        size = float(text.get("font-size", "12"))
        width = 0.55 * size * len(text.text)
        left = float(text.get("x")) - (width / 2 if text.get("text-anchor") == "middle" else 0)
        baseline = float(text.get("y"))
        yield left, baseline - 0.75 * size, left + width, baseline + 0.2 * size


def card_and_switch_areas(svg: ET.Element):
    for rect in svg.iter(f"{SVG}rect"):
        if rect.get("rx") == "5":
            x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            yield x, y, x + width, y + height


@each_system
def test_texts_and_boxes_overlap_nowhere_and_stay_on_the_paper(topology):
    svg = ET.fromstring(to_svg(topology))
    width, height = float(svg.get("width")), float(svg.get("height"))
    for areas in (list(text_areas(svg)), list(card_and_switch_areas(svg))):
        assert areas
        assert not [pair for pair in combinations(areas, 2) if overlap(*pair)]
        assert all(min(a) >= 0 and a[2] <= width and a[3] <= height for a in areas)


@each_system
def test_every_text_of_a_box_lies_inside_it(topology):
    svg = ET.fromstring(to_svg(topology))
    boxes = list(card_and_switch_areas(svg))
    for text in text_areas(svg):
        inside = [b for b in boxes if overlap(b, text)]
        assert all(
            b[0] <= text[0] and text[2] <= b[2] and b[1] <= text[1] and text[3] <= b[3] for b in inside
        )


@each_system
def test_the_picture_stays_small(topology):
    picture = fold(topology)
    assert len(picture.boxes) <= 64
    assert len(to_svg(topology)) < 60_000
    assert len({box.key for box in picture.boxes}) == len(picture.boxes)


def test_every_card_and_switch_and_cable_of_a_supernode_is_drawn():
    picture = fold(ubl128())
    assert [box.lines for box in picture.boxes[:2]] == [("server 0", "8 cards"), ("server 1", "8 cards")]
    assert [box.lines[0] for box in picture.boxes[16:]] == [f"plane {i}" for i in range(8)]
    assert sum(bundle.num_cables for bundle in picture.bundles) == 1024
    assert {bundle.bytes_per_s for bundle in picture.bundles} == {8 * 50_000_000_000}
    assert picture.subtitle == "128 cards, 8 switches, 1,024 cables"


def test_supernodes_are_boxes_with_their_planes_inside():
    picture = fold(clos(160))
    assert [box.lines for box in picture.boxes] == [
        ("supernode 0", "128 cards"),
        ("supernode 1", "32 cards"),
        ("plane 0", "2 leaves", "netlayer 2"),
        ("plane 0", "1 spine", "netlayer 2"),
    ]
    assert picture.boxes[0].chips == ((1, tuple(range(8))),)
    assert [(b.low, b.num_cables) for b in picture.bundles[:2]] == [("group0", 128), ("group1", 32)]


def test_many_supernodes_are_folded_into_one_box_with_their_number():
    picture = fold(clos(2100))
    titles = [box.lines[0] for box in picture.boxes if box.row == 0]
    assert titles == ["supernode 0", "supernode 1", "supernode 2", "13 more supernodes", "supernode 16"]
    # 2100 = 16 x 128 + 52; every card has one scale-out cable.
    assert [box.lines[1] for box in picture.boxes if box.row == 0][3:] == ["1,664 cards", "52 cards"]
    assert [b.num_cables for b in picture.bundles if b.low.startswith("group")] == [128, 128, 128, 1664, 52]
    assert [box.is_fold for box in picture.boxes if box.row == 0] == [False, False, False, True, False]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 4), st.integers(1, 2), st.booleans(), st.data()
)  # fmt: skip
def test_cables_between_boxes_are_counted_as_by_hand(num_npus, planes, ports, server_mesh, data):
    server_size = data.draw(st.integers(1, min(num_npus, 8)))
    topology = ubl128(
        num_npus, planes=planes, ports_per_plane=ports, server_mesh=server_mesh, server_size=server_size
    )
    picture = fold(topology)
    to_switches = sum(bundle.num_cables for bundle in picture.bundles if bundle.netlayer == 1)
    assert to_switches == num_npus * planes * ports
    assert not any(bundle.is_odd for bundle in picture.bundles)


@pytest.mark.parametrize("netlayer", [0, 1])
def test_the_legend_gives_ports_rates_and_counts(netlayer):
    note = fold(ubl128(server_mesh=True)).notes[netlayer]
    expected = {
        0: ("7 ports per card, 50GB/s per port and direction, 350GB/s per card",
            "448 cables; latency of a link 50ns"),
        1: ("8 ports per card, 50GB/s per port and direction, 400GB/s per card",
            "1,024 cables; latency of a link 50ns to 250ns"),
    }  # fmt: skip
    assert note.lines == expected[netlayer]
    texts = [text.text for text in ET.fromstring(to_svg(ubl128(server_mesh=True))).iter(f"{SVG}text")]
    assert set(expected[netlayer]) <= set(texts)


def test_a_missing_cable_is_marked():
    topology = ubl128(24, planes=2)
    cut = int(topology.links_between(3, 24)[0])
    odd = [b for b in fold(without(topology, cut)).bundles if b.is_odd]
    assert [(b.low, b.high, b.num_cables) for b in odd] == [("group0", "layer1_tier0_0", 7)]
    assert "another number of cables" in to_svg(without(topology, cut))
    assert "another number of cables" not in to_svg(topology)


def test_planes_have_colours_of_their_own():
    assert len(set(PLANE_COLOURS)) == 16
    svg = ET.fromstring(to_svg(ubl128(8, planes=16)))
    strokes = [rect.get("stroke") for rect in svg.iter(f"{SVG}rect") if rect.get("stroke-width") == "2"]
    assert strokes == list(PLANE_COLOURS)


def test_a_name_cannot_break_out_of_either_format():
    nasty = 'a "b" <c> & \\ d\n\x00</svg>'
    topology = dataclasses.replace(mesh(2), name=nasty)
    svg = ET.fromstring(to_svg(topology))
    assert svg.find(f"{SVG}title").text == 'a "b" <c> & \\ d  </svg>'
    label = to_dot(topology).splitlines()[1]
    assert label == '  label="a \\"b\\" <c> & \\\\ d  </svg>\\n2 cards, 0 switches, 1 cable";'


@each_system
def test_dot_edges_join_declared_boxes(topology):
    dot = to_dot(topology)
    declared = set(re.findall(r"^  (\w+) \[label=", dot, re.MULTILINE))
    edges = re.findall(r"^  (\w+) -- (\w+) \[", dot, re.MULTILINE)
    assert declared == {box.key for box in fold(topology).boxes}
    assert len(edges) == len(fold(topology).bundles)
    assert {end for edge in edges for end in edge} <= declared
    assert (dot.count("{"), dot[:16], dot[-2:]) == (dot.count("}"), "graph topology {", "}\n")


def test_the_same_topology_is_drawn_the_same_way():
    first, second = (to_svg(clos(300)) + to_dot(clos(300)) for _ in range(2))
    assert first == second


def test_rows_are_stacked_by_netlayer_and_tier():
    picture = fold(clos(128, scaleout_radix=64))
    rows = {(box.key.split("_")[0], box.key.split("_")[1]): box.row for box in picture.boxes if box.row}
    order = [("layer1", "tier0"), ("layer2", "tier0"), ("layer2", "tier1")]
    assert all(rows[low] < rows[high] for low, high in pairwise(order))
