"""Drawings of a topology: SVG for people, DOT for other tools. Both show the same folded picture."""

import math
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from topology.graph import Topology
from topology.picture import Box, Bundle, LayerNote, Picture, fold
from topology.units import format_rate

# Okabe and Ito's colours first: they stay apart for colour-blind readers. One for each of 16 planes.
PLANE_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#7a5195", "#6b8e23",
    "#1b4f72", "#a04000", "#0b5345", "#884ea0", "#5d6d7e", "#c0392b", "#2e4053", "#7d6608",
)  # fmt: skip
_GREY, _INK, _PALE, _RED = "#5f6b7a", "#1d2733", "#eef2f6", "#c0102a"
_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
_TITLE, _BODY, _SMALL = 17, 12, 10
_CHAR_WIDTH = 0.64  # of the font size; a wide font's average, so that boxes are never too small
_MARGIN, _GAP, _PAD = 28, 14, 10
_ROW_GAP, _ROW_GAP_PER_LINE, _MAX_ROW_GAP = 84, 1, 200
_LINE_HEIGHT, _CHIP = 16, 10


@dataclass(frozen=True)
class _Place:
    """A box on the paper, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def centre(self) -> float:
        return self.y + self.height / 2


def to_svg(topology: Topology) -> str:
    """Draw a topology as an SVG document.

    Cards (or servers, or supernodes) are at the bottom, switches above them, one colour per plane; the
    legend gives planes, ports, rates and counts of each netlayer. The size does not grow with the
    number of cards.
    """
    picture = fold(topology)
    places, width, legend_top = _layout(picture)
    texts = (
        _text_width(picture.title, _TITLE),
        _text_width(_HINT, _SMALL),
        *map(_legend_width, picture.notes),
    )
    width = max(width, 2 * _MARGIN + max(texts))
    shift = (width - _extent(places)) / 2 - min(place.x for place in places.values())
    places = {key: replace(place, x=place.x + shift) for key, place in places.items()}
    has_odd = any(bundle.is_odd for bundle in picture.bundles)
    height = legend_top + _legend_height(picture.notes, has_odd)
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT})
    svg.attrib |= {"width": f"{width:.0f}", "height": f"{height:.0f}", "font-size": str(_BODY)}
    svg.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
    _element(svg, "title").text = _printable(picture.title)
    _element(svg, "desc").text = picture.subtitle
    _element(svg, "rect", width="100%", height="100%", fill="#ffffff")
    _text(svg, _MARGIN, 34, picture.title, size=_TITLE, bold=True)
    _text(svg, _MARGIN, 54, picture.subtitle, colour=_GREY)
    _draw_bundles(svg, picture, places)
    for box in picture.boxes:
        _draw_box(svg, box, places[box.key])
    _draw_legend(svg, picture.notes, legend_top, width, has_odd)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


_HINT = "A line is all cables between two boxes on one plane; its width grows with their bandwidth."


def to_dot(topology: Topology) -> str:
    """Write the same picture in the DOT language, for graph tools."""
    picture = fold(topology)
    lines = ["graph topology {", f"  label={_quoted(picture.title, picture.subtitle)};", "  rankdir=BT;"]
    lines += [
        "  node [shape=box, style=filled, fillcolor=white, fontname=Helvetica];",
        "  edge [fontname=Helvetica];",
    ]
    for box in picture.boxes:
        inside = [f"netlayer {netlayer}: {len(planes)} planes inside" for netlayer, planes in box.chips]
        colour = _GREY if box.plane is None else _colour(box.plane)
        style = ', style="filled,dashed"' if box.is_fold else ""
        lines.append(f'  {box.key} [label={_quoted(*box.lines, *inside)}, color="{colour}"{style}];')
    for row in sorted({box.row for box in picture.boxes}):
        keys = "; ".join(box.key for box in picture.boxes if box.row == row)
        lines.append(f"  {{ rank=same; {keys}; }}")
    for bundle in picture.bundles:
        label = f"{bundle.num_cables:,} x, {format_rate(bundle.bytes_per_s)}"
        style = _RED if bundle.is_odd else _line_colour(bundle)
        lines.append(f'  {bundle.low} -- {bundle.high} [color="{style}", tooltip={_quoted(label)}];')
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    escaped = (_printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def _colour(plane: int) -> str:
    return PLANE_COLOURS[plane % len(PLANE_COLOURS)]


def _line_colour(bundle: Bundle) -> str:
    is_direct = bundle.high.startswith("group")
    return _GREY if is_direct else _colour(bundle.plane)


def _layout(picture: Picture) -> tuple[dict[str, _Place], float, float]:
    """Place the boxes; return them with the width and the height that they need."""
    rows: dict[int, list[Box]] = defaultdict(list)
    for box in picture.boxes:
        rows[box.row].append(box)
    if len(rows) == 1 and len(picture.boxes) > 2 and picture.bundles:
        return _ring(picture.boxes)
    top = 84.0
    places: dict[str, _Place] = {}
    widths = {
        row: sum(_box_size(box)[0] for box in boxes) + _GAP * (len(boxes) - 1) for row, boxes in rows.items()
    }
    widest = max(widths.values())
    row_of = {box.key: box.row for box in picture.boxes}
    num_lines = Counter(row_of[bundle.high] for bundle in picture.bundles)
    for row in sorted(rows, reverse=True):
        # Narrow rows are spread out, so that their lines do not run on top of each other.
        gap = _GAP + 0.6 * (widest - widths[row]) / len(rows[row]) if row else _GAP
        x = -(widths[row] + (gap - _GAP) * (len(rows[row]) - 1)) / 2
        for box in rows[row]:
            box_width, box_height = _box_size(box)
            places[box.key] = _Place(x, top, box_width, box_height)
            x += box_width + gap
        top += max(_box_size(box)[1] for box in rows[row])
        if row:
            top += min(_ROW_GAP + _ROW_GAP_PER_LINE * num_lines[row], _MAX_ROW_GAP)
    depth = max(
        (_arc_depth(places, bundle) for bundle in picture.bundles if _is_level(places, bundle)), default=0
    )
    return places, _extent(places) + 2 * _MARGIN, top + depth + 24


def _ring(boxes: tuple[Box, ...]) -> tuple[dict[str, _Place], float, float]:
    box_width = max(_box_size(box)[0] for box in boxes)
    box_height = max(_box_size(box)[1] for box in boxes)
    radius = max(120.0, len(boxes) * (box_width + _GAP) / (2 * math.pi))
    places = {}
    for number, box in enumerate(boxes):
        angle = 2 * math.pi * number / len(boxes) - math.pi / 2
        x, y = radius * math.cos(angle) - box_width / 2, radius * (1 + math.sin(angle)) + 84
        places[box.key] = _Place(x, y, box_width, box_height)
    return places, _extent(places) + 2 * _MARGIN, 84 + 2 * radius + box_height + 24


def _extent(places: dict[str, _Place]) -> float:
    return max(p.x + p.width for p in places.values()) - min(p.x for p in places.values())


def _text_width(text: str, size: int) -> float:
    return len(text) * size * _CHAR_WIDTH


def _box_size(box: Box) -> tuple[float, float]:
    width = max(_text_width(line, _BODY) for line in box.lines)
    for netlayer, planes in box.chips:
        width = max(width, _text_width(_chip_label(netlayer), _SMALL) + 4 + len(planes) * (_CHIP + 2))
    return width + 2 * _PAD, _LINE_HEIGHT * (len(box.lines) + len(box.chips)) + 2 * _PAD - 4


def _chip_label(netlayer: int) -> str:
    return f"layer {netlayer}"


def _is_level(places: dict[str, _Place], bundle: Bundle) -> bool:
    return places[bundle.low].y == places[bundle.high].y


def _arc_depth(places: dict[str, _Place], bundle: Bundle) -> float:
    return 18 + 0.16 * abs(places[bundle.low].middle - places[bundle.high].middle)


def _draw_bundles(svg: ET.Element, picture: Picture, places: dict[str, _Place]) -> None:
    slowest = min((bundle.bytes_per_s for bundle in picture.bundles), default=1)
    is_ring = len({place.y for place in places.values()}) > 1 and all(box.row == 0 for box in picture.boxes)
    upper, lower = _ends(picture, places)
    group = _element(svg, "g", fill="none", stroke_opacity="0.75")
    for number, bundle in enumerate(picture.bundles):
        low, high = places[bundle.low], places[bundle.high]
        if is_ring:
            path = f"M{low.middle:.1f} {low.centre:.1f} L{high.middle:.1f} {high.centre:.1f}"
        elif low.y == high.y:
            bottom = low.y + low.height
            deep = bottom + 1.32 * _arc_depth(places, bundle)
            curve = f"{low.middle:.1f} {deep:.1f} {high.middle:.1f} {deep:.1f} {high.middle:.1f} {bottom:.1f}"
            path = f"M{low.middle:.1f} {bottom:.1f} C{curve}"
        else:
            path = f"M{lower[number]:.1f} {low.y:.1f} L{upper[number]:.1f} {high.y + high.height:.1f}"
        stroke_width = min(1.1 + 0.35 * math.log2(max(bundle.bytes_per_s / slowest, 1)), 4)
        colour = _RED if bundle.is_odd else _line_colour(bundle)
        line = _element(group, "path", d=path, stroke=colour, stroke_width=stroke_width)
        if bundle.is_odd or bundle.netlayer > 1:
            line.set("stroke-dasharray", "3 4" if bundle.is_odd else "9 4")
        text = f"netlayer {bundle.netlayer}, plane {bundle.plane}: {bundle.num_cables:,} cables"
        _element(line, "title").text = f"{text}, {format_rate(bundle.bytes_per_s)} per direction"


def _ends(picture: Picture, places: dict[str, _Place]) -> tuple[dict[int, float], dict[int, float]]:
    """Spread the lines of a box over its edge: bundle number -> x at its upper and at its lower box."""
    upward = [i for i, bundle in enumerate(picture.bundles) if not _is_level(places, bundle)]
    upper: dict[int, float] = {}
    lower: dict[int, float] = {}
    for near, far, found in (("low", "high", lower), ("high", "low", upper)):
        at_box: dict[str, list[int]] = defaultdict(list)
        for i in upward:
            at_box[getattr(picture.bundles[i], near)].append(i)
        for key, numbers in at_box.items():
            numbers.sort(key=lambda i: (places[getattr(picture.bundles[i], far)].middle, i))
            place = places[key]
            step = place.width / (len(numbers) + 1)
            found.update({i: place.x + step * (k + 1) for k, i in enumerate(numbers)})
    return upper, lower


def _draw_box(svg: ET.Element, box: Box, place: _Place) -> None:
    colour = _GREY if box.plane is None else _colour(box.plane)
    fill, stroke_width = (_PALE, 1.2) if box.row == 0 else ("#ffffff", 2)
    rect = _element(
        svg, "rect", x=place.x, y=place.y, width=place.width, height=place.height, rx=5,
        fill=fill, stroke=colour, stroke_width=stroke_width,
    )  # fmt: skip
    if box.is_fold:
        rect.set("stroke-dasharray", "5 3")
    y = place.y + _PAD + 9
    for number, line in enumerate(box.lines):
        _text(
            svg,
            place.middle,
            y,
            line,
            anchor="middle",
            bold=number == 0,
            colour=_INK if number == 0 else _GREY,
        )
        y += _LINE_HEIGHT
    for netlayer, planes in box.chips:
        label = _chip_label(netlayer)
        span = _text_width(label, _SMALL) + 4 + len(planes) * (_CHIP + 2)
        _text(svg, place.middle - span / 2, y, label, size=_SMALL, colour=_GREY)
        _chips(svg, place.middle + span / 2 - len(planes) * (_CHIP + 2), y - 9, netlayer, planes)
        y += _LINE_HEIGHT


def _chips(svg: ET.Element, x: float, y: float, netlayer: int, planes: tuple[int, ...]) -> None:
    for number, plane in enumerate(planes):
        fill = _GREY if netlayer == 0 and len(planes) == 1 else _colour(plane)
        left = x + number * (_CHIP + 2)
        _element(svg, "rect", x=left, y=y, width=_CHIP, height=_CHIP, rx=2, fill=fill)


def _legend_width(note: LayerNote) -> float:
    chips = min(len(note.planes), len(PLANE_COLOURS)) * (_CHIP + 2) + 8
    lines = max(_text_width(line, _BODY) for line in note.lines)
    return max(chips + _text_width(note.title, _BODY), lines)


def _legend_height(notes: tuple[LayerNote, ...], has_odd: bool) -> float:
    return 20 + sum((1 + len(note.lines)) * 18 + 10 for note in notes) + 18 * (1 + has_odd) + 16


def _draw_legend(
    svg: ET.Element, notes: tuple[LayerNote, ...], top: float, width: float, has_odd: bool
) -> None:
    _element(svg, "line", x1=_MARGIN, x2=width - _MARGIN, y1=top, y2=top, stroke="#c9d1d9")
    y = top + 26
    for note in notes:
        planes = note.planes[: len(PLANE_COLOURS)]
        _chips(svg, _MARGIN, y - 10, note.netlayer, planes)
        _text(svg, _MARGIN + len(planes) * (_CHIP + 2) + 8, y, note.title, bold=True)
        for line in note.lines:
            y += 18
            _text(svg, _MARGIN, y, line)
        y += 28
    _text(svg, _MARGIN, y, _HINT, size=_SMALL, colour=_GREY)
    if has_odd:
        _text(svg, _MARGIN, y + 18, _ODD, size=_SMALL, colour=_RED)


_ODD = "Red and dotted: another number of cables per card than most of its plane."


def _element(parent: ET.Element, tag: str, **attributes: str | float) -> ET.Element:
    """Add an element; `stroke_width` means `stroke-width`, and pixels are rounded to a tenth."""
    written = {
        name.replace("_", "-"): value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        for name, value in attributes.items()
    }
    return ET.SubElement(parent, tag, written)


def _text(
    svg: ET.Element, x: float, y: float, text: str, *,
    size: int = _BODY, colour: str = _INK, bold: bool = False, anchor: str = "start",
) -> None:  # fmt: skip
    element = _element(svg, "text", x=x, y=y, fill=colour)
    if size != _BODY:
        element.set("font-size", str(size))
    if bold:
        element.set("font-weight", "bold")
    if anchor != "start":
        element.set("text-anchor", anchor)
    element.text = _printable(text)


def _printable(text: str) -> str:
    """Blank out control characters: a name may hold them, and XML may not."""
    return "".join(char if char.isprintable() else " " for char in text)
