"""What a drawing shows: a topology folded into a few boxes and bundles of cables, whatever its size.

Up to 16 cards are boxes of their own; beyond that servers, and beyond that supernodes are. Groups that
would make more than 16 boxes are folded into one box with their number. Switches that serve a single
group are drawn as chips inside it, all others as one box per netlayer, plane and tier.

Dimension legend: N NPUs, V vertices, L links.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from topology.graph import NETLAYER_NAMES, Topology
from topology.units import format_rate, format_time

MAX_GROUPS = 16
_HEAD_GROUPS = 3
_MAX_PLANES = 16
Level = Literal["card", "server", "supernode"]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Box:
    """One box: cards, or switches.

    Args:
      key: unique, a legal DOT identifier.
      lines: its text, first line first.
      row: 0 for cards, then upwards.
      plane: of its switches; None for cards and for a box that stands for many planes.
      chips: (netlayer, planes) whose switches or meshes lie inside.
      is_fold: stands for many boxes like its neighbours.
    """

    key: str
    lines: tuple[str, ...]
    row: int
    plane: int | None = None
    chips: tuple[tuple[int, tuple[int, ...]], ...] = ()
    is_fold: bool = False


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Cables between two boxes on one plane; `bytes_per_s` is their sum in one direction.

    `is_odd`: it has another number of cables per card than most of its kind, so look at it.
    """

    low: str
    high: str
    netlayer: int
    plane: int
    num_cables: int
    bytes_per_s: int
    is_odd: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerNote:
    """Legend of one netlayer: its planes and its figures in words."""

    netlayer: int
    planes: tuple[int, ...]
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Everything a drawing shows."""

    title: str
    subtitle: str
    boxes: tuple[Box, ...]
    bundles: tuple[Bundle, ...]
    notes: tuple[LayerNote, ...]


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Cards by box.

    Args:
      level: what an unfolded box is.
      owner: [N] the card, server or supernode of each card.
      of_npu: [N] box of each card.
      sizes: cards of each box.
      names: title of each box.
      fold: the box that stands for many, -1 = none.
    """

    level: Level
    owner: Int64
    of_npu: Int64
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    fold: int = -1


_Inside = dict[int, dict[int, set[int]]]  # box -> netlayer -> planes


@dataclass(frozen=True, kw_only=True)
class _Switches:
    """Facts of each switch, [S] each.

    Args:
      home: the box that it lies in because all its cards do; -1 when they are several's, or a spine
        hangs above it.
      netlayer: of its links.
      plane: of its links.
    """

    home: Int64
    netlayer: Int64
    plane: Int64


def fold(topology: Topology) -> Picture:
    """Fold a topology of any size into a picture of a few dozen boxes."""
    groups = _group_cards(topology)
    switches = _switch_facts(topology, groups)
    inside = _planes_inside(topology, groups, switches)
    boxes = [_group_box(groups, number, inside) for number in range(len(groups.sizes))]
    box_of_switch, switch_boxes = _switch_boxes(topology, switches, len(boxes))
    boxes += switch_boxes
    cables = topology.num_links // 2
    switches_text = _plural(topology.num_switches, "switch", "switches")
    return Picture(
        title=topology.name,
        subtitle=f"{_plural(topology.num_npus, 'card')}, {switches_text}, {_plural(cables, 'cable')}",
        boxes=tuple(boxes),
        bundles=tuple(_bundles(topology, np.concatenate([groups.of_npu, box_of_switch]), boxes, groups)),
        notes=tuple(_note(topology, netlayer) for netlayer in topology.netlayers()),
    )


def _group_cards(topology: Topology) -> _Groups:
    level, owner = _level(topology)
    ids, numbers, counts = np.unique(owner, return_inverse=True, return_counts=True)
    names = [f"{level} {number}" for number in ids.tolist()]
    sizes: list[int] = counts.tolist()
    fold_at = -1
    if len(names) > MAX_GROUPS:
        fold_at, last = _HEAD_GROUPS, len(names) - 1
        numbers = np.where(numbers == last, fold_at + 1, np.minimum(numbers, fold_at))
        names = [*names[:fold_at], f"{last - fold_at:,} more {level}s", names[last]]
        sizes = [*sizes[:fold_at], sum(sizes[fold_at:last]), sizes[last]]
    return _Groups(
        level=level,
        owner=owner,
        of_npu=numbers.astype(np.int64),
        sizes=tuple(sizes),
        names=tuple(names),
        fold=fold_at,
    )


def _level(topology: Topology) -> tuple[Level, Int64]:
    if topology.num_npus <= MAX_GROUPS:
        return "card", np.arange(topology.num_npus, dtype=np.int64)
    servers, supernodes = len(np.unique(topology.npu_server)), len(np.unique(topology.npu_supernode))
    if servers <= MAX_GROUPS or supernodes == 1:
        return "server", topology.npu_server.astype(np.int64)
    return "supernode", topology.npu_supernode.astype(np.int64)


def _planes_inside(topology: Topology, groups: _Groups, switches: _Switches) -> _Inside:
    """Collect what lies inside each box: its own switches, and direct cables between its cards."""
    inside: _Inside = {}

    def add(group: Int64, netlayer: Int64, plane: Int64) -> None:
        for g, n, p in np.unique(np.stack([group, netlayer, plane]), axis=1).T.tolist():
            inside.setdefault(g, {}).setdefault(n, set()).add(p)

    own = switches.home >= 0
    add(switches.home[own], switches.netlayer[own], switches.plane[own])
    direct = np.flatnonzero((topology.link_src < topology.num_npus) & (topology.link_dst < topology.num_npus))
    src, dst = groups.of_npu[topology.link_src[direct]], groups.of_npu[topology.link_dst[direct]]
    within = direct[src == dst]
    add(
        src[src == dst],
        topology.link_netlayer[within].astype(np.int64),
        topology.link_plane[within].astype(np.int64),
    )
    return inside


def _switch_boxes(topology: Topology, switches: _Switches, first: int) -> tuple[Int64, list[Box]]:
    """Fold the switches that are in no card box by (netlayer, tier, plane).

    Returns:
      ([S] box number, counted from `first`, or that of the card box; the boxes).
    """
    tier = topology.switch_tier.astype(np.int64)
    rest = switches.home < 0
    plane = switches.plane.copy()
    for netlayer in np.unique(switches.netlayer[rest]).tolist():
        on_layer = rest & (switches.netlayer == netlayer)
        if len(np.unique(plane[on_layer])) > _MAX_PLANES:
            plane[on_layer] = -1
    box_of_switch = switches.home.copy()
    facts = np.stack([switches.netlayer[rest], tier[rest], plane[rest]])
    kinds, which, counts = np.unique(facts, axis=1, return_inverse=True, return_counts=True)
    box_of_switch[rest] = first + which.ravel()
    rows = sorted({(n, t) for n, t, _ in kinds.T.tolist()})
    has_spines = {n for n, t in rows if t > 0}
    boxes = [
        _switch_box(n, t, p, count, rows.index((n, t)) + 1, is_single=n not in has_spines)
        for (n, t, p), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    ]
    return box_of_switch, boxes


def _switch_facts(topology: Topology, groups: _Groups) -> _Switches:
    num_npus, num_switches = topology.num_npus, topology.num_switches
    netlayer, plane = np.zeros(num_switches, np.int64), np.zeros(num_switches, np.int64)
    for ends in (topology.link_src, topology.link_dst):
        at_switch = ends >= num_npus
        netlayer[ends[at_switch] - num_npus] = topology.link_netlayer[at_switch]
        plane[ends[at_switch] - num_npus] = topology.link_plane[at_switch]
    lowest, highest = np.full(num_switches, np.iinfo(np.int64).max), np.full(num_switches, -1)
    up = np.flatnonzero((topology.link_src < num_npus) & (topology.link_dst >= num_npus))
    owners, above = groups.owner[topology.link_src[up]], topology.link_dst[up] - num_npus
    np.minimum.at(lowest, above, owners)
    np.maximum.at(highest, above, owners)
    # Compared by owner, not by box: the box that stands for many has no switch that all its cards share.
    box_of_owner = np.zeros(int(groups.owner.max()) + 1, np.int64)
    box_of_owner[groups.owner] = groups.of_npu
    home = np.where(lowest == highest, box_of_owner[highest], -1)
    trunk = (topology.link_src >= num_npus) & (topology.link_dst >= num_npus)
    home[topology.link_src[trunk] - num_npus] = -1
    home[topology.link_dst[trunk] - num_npus] = -1
    # With a single box everything would fold into it and nothing be left to see.
    if len(groups.sizes) == 1:
        home[:] = -1
    return _Switches(home=home, netlayer=netlayer, plane=plane)


def _group_box(groups: _Groups, number: int, inside: _Inside) -> Box:
    is_fold = number == groups.fold
    chips = tuple((n, tuple(sorted(planes))) for n, planes in sorted(inside.get(number, {}).items()))
    cards = groups.sizes[number]
    counted = () if groups.level == "card" else (_plural(cards, "card"),)
    return Box(
        key=f"group{number}",
        lines=(groups.names[number], *counted),
        row=0,
        chips=() if is_fold else chips,
        is_fold=is_fold,
    )


def _switch_box(netlayer: int, tier: int, plane: int, count: int, row: int, *, is_single: bool) -> Box:
    noun = "switch" if is_single else ("leaf" if tier == 0 else "spine")
    plural = {"switch": "switches", "leaf": "leaves", "spine": "spines"}[noun]
    title = f"plane {plane}" if plane >= 0 else "all planes"
    counted = _plural(count, noun, plural)
    return Box(
        key=f"layer{netlayer}_tier{tier}_{'all' if plane < 0 else plane}",
        lines=(title, counted, f"netlayer {netlayer}"),
        row=row,
        plane=plane if plane >= 0 else None,
    )


def _bundles(topology: Topology, box: Int64, boxes: list[Box], groups: _Groups) -> list[Bundle]:
    """Add up cables between different boxes, one direction (low to high vertex)."""
    low, high = box[topology.link_src], box[topology.link_dst]
    up = np.flatnonzero((topology.link_src < topology.link_dst) & (low != high))
    low, high = low[up], high[up]
    facts = np.stack(
        [np.minimum(low, high), np.maximum(low, high), topology.link_netlayer[up], topology.link_plane[up]]
    )
    kinds, which, counts = np.unique(facts, axis=1, return_inverse=True, return_counts=True)
    rates = np.bincount(which.ravel(), weights=topology.link_bytes_per_s(up), minlength=kinds.shape[1])
    bundles = [
        Bundle(
            low=boxes[a].key, high=boxes[b].key, netlayer=netlayer, plane=plane,
            num_cables=count, bytes_per_s=int(rate),
        )
        for (a, b, netlayer, plane), count, rate in zip(kinds.T.tolist(), counts.tolist(), rates, strict=True)
    ]  # fmt: skip
    return _mark_odd(bundles, dict(zip((b.key for b in boxes), groups.sizes, strict=False)))


def _mark_odd(bundles: list[Bundle], cards: dict[str, int]) -> list[Bundle]:
    """Mark bundles from cards to switches whose cables per card are not what most of their plane have."""
    upward = [b for b in bundles if b.low in cards and b.high not in cards]
    per_card = {id(b): b.num_cables / cards[b.low] for b in upward}
    of_plane: dict[tuple[int, int], Counter[float]] = defaultdict(Counter)
    for b in upward:
        of_plane[b.netlayer, b.plane][per_card[id(b)]] += 1
    usual = {plane: counts.most_common(1)[0][0] for plane, counts in of_plane.items()}
    return [
        replace(b, is_odd=id(b) in per_card and per_card[id(b)] != usual[b.netlayer, b.plane])
        for b in bundles
    ]


def _note(topology: Topology, netlayer: int) -> LayerNote:
    links = topology.link_netlayer == netlayer
    planes = topology.planes(netlayer)
    out = np.flatnonzero(links & (topology.link_src < topology.num_npus))
    ports = np.bincount(topology.link_src[out], minlength=topology.num_npus)
    used = [topology.classes[i] for i in np.unique(topology.link_class[links]).tolist()]
    speeds = sorted({c.bandwidth_bytes_per_s for c in used})
    latencies = sorted({c.latency_ps for c in used})
    name = NETLAYER_NAMES.get(netlayer, "wider network")
    plural = f"{len(planes)} planes" if len(planes) > 1 else "1 plane"
    lines = (
        f"{_counted(ports.tolist(), 'port')} per card, {_span(speeds, format_rate)} per port and direction, "
        f"{_span(topology.npu_rate(netlayer).tolist(), format_rate)} per card",
        f"{_plural(int(links.sum()) // 2, 'cable')}; latency of a link {_span(latencies, format_time)}",
    )
    return LayerNote(
        netlayer=netlayer, planes=planes, title=f"netlayer {netlayer}: {name}, {plural}", lines=lines
    )


def _plural(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def _counted(values: list[int], noun: str) -> str:
    return f"{_span(values, str)} {noun}{'' if max(values) == 1 else 's'}"


def _span(values: list[int], text: Callable[[int], str]) -> str:
    """Write a range, or the only value."""
    low, high = min(values), max(values)
    return text(low) if low == high else f"{text(low)} to {text(high)}"
