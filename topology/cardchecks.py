"""Rules of `checks` about cards: attached, in every plane, at one speed, and able to reach each other.

Dimension legend: N NPUs, P planes of a netlayer, G groups of NPUs with the same leaves.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from topology.fabric import Attachment, Int64, LayerIndex, group_rows, index_layer
from topology.graph import IntArray, Topology
from topology.paths import LayerPaths, usable_planes
from topology.routes import layer_order
from topology.units import format_rate

Faults = Iterator[tuple[str, tuple[int, Iterable[str]]]]
"""(rule, (how many, sentences))."""

MAX_PAIRS = 2**22  # unreachable pairs that are looked at one by one
_CHUNK = 2**24


def card_faults(topology: Topology) -> Faults:
    """Find every broken rule about cards; sentences are made only when read."""
    layers = {layer: index_layer(topology, layer) for layer in topology.netlayers()}
    idle = np.ones(topology.num_npus, np.bool_)
    for layer in layers.values():
        idle &= ~_attached(layer)
    found: dict[str, tuple[int, list[Iterable[str]]]] = {}
    blocks = [_idle(idle), *(_layer_faults(topology, layer, idle) for layer in layers.values())]
    if layers:
        blocks.append(_unreachable(topology, layers, idle))
    for block in blocks:
        for rule, (count, sentences) in block:
            total, parts = found.setdefault(rule, (0, []))
            found[rule] = (total + count, [*parts, sentences])
    for rule, (count, parts) in found.items():
        yield rule, (count, (sentence for part in parts for sentence in part))


def _attached(layer: LayerIndex) -> npt.NDArray[np.bool_]:
    """Mark the NPUs [N] with a link, either way, on the netlayer."""
    attached = np.zeros(layer.num_npus, np.bool_)
    attached |= ((layer.up.count > 0) | (layer.down.count > 0)).any(axis=1)
    src, dst = np.divmod(layer.direct_key, layer.num_npus)
    attached[src] = attached[dst] = True
    return attached


def _idle(idle: npt.NDArray[np.bool_]) -> Faults:
    cards = np.flatnonzero(idle)
    if len(cards):
        yield "npu-without-links", (len(cards), (f"npu{n} has no link at all" for n in cards))


def _layer_faults(topology: Topology, layer: LayerIndex, idle: npt.NDArray[np.bool_]) -> Faults:
    name = f"netlayer {layer.netlayer}"
    attached = _attached(layer)
    expected = np.ones(topology.num_npus, np.bool_)
    if not len(layer.leaf_vertex):
        # A mesh stays inside servers: a card alone in its server has nothing to be cabled to.
        expected = np.bincount(topology.npu_server, weights=attached)[topology.npu_server] > 0
    absent = np.flatnonzero(expected & ~attached & ~idle)
    if len(absent):
        yield "netlayer-missing", (len(absent), (f"npu{n} has no link on {name}" for n in absent))
    if len(layer.split):
        sentences = (
            f"npu{n} is cabled to two switches in plane {layer.planes[p]} of {name}" for n, p in layer.split
        )
        yield "split-plane", (len(layer.split), sentences)
    for table, way in ((layer.up, "out"), (layer.down, "in")):
        yield from _plane_faults(layer, table, way, attached)
        yield from _speed_faults(topology, layer, table, way)
    yield from _mesh_faults(topology, layer)


def _plane_faults(layer: LayerIndex, table: Attachment, way: str, attached: npt.NDArray[np.bool_]) -> Faults:
    """Compare how many links cards have in each plane."""
    most = table.count.max(axis=0, initial=0)  # [P]
    switched = attached & ((layer.up.count > 0) | (layer.down.count > 0)).any(axis=1)
    short = (table.count < most) & switched[:, None]
    missing = np.argwhere(short & (table.count == 0))
    fewer = np.argwhere(short & (table.count > 0))
    where = f"of netlayer {layer.netlayer}"
    if len(missing):
        sentences = (f"npu{n} has no link {way} in plane {layer.planes[p]} {where}" for n, p in missing)
        yield "plane-missing", (len(missing), sentences)
    if len(fewer):
        sentences = (
            f"npu{n} has {table.count[n, p]} links {way} in plane {layer.planes[p]} {where}, "
            f"other cards have {most[p]}"
            for n, p in fewer
        )
        yield "port-missing", (len(fewer), sentences)


def _speed_faults(topology: Topology, layer: LayerIndex, table: Attachment, way: str) -> Faults:
    """Compare the planes of each card; rates [N, P] sum parallel links."""
    if not table.count.any():
        return
    class_rate = np.array([*(c.bandwidth_bytes_per_s for c in topology.classes), 0], np.int64)
    padded = np.where(table.links >= 0, topology.link_class[table.links], len(topology.classes))
    # A plane with too few links is reported as such, and not again as slow.
    rates = class_rate[padded].sum(axis=2) * (table.count == table.count.max(axis=0))
    slowest = np.where(rates > 0, rates, np.iinfo(np.int64).max).min(axis=1)
    cards = np.flatnonzero((rates.max(axis=1) > slowest) & (rates.max(axis=1) > 0))
    if len(cards):
        yield "unequal-planes", (len(cards), (_speed_sentence(layer, rates[n], int(n), way) for n in cards))


def _speed_sentence(layer: LayerIndex, rates: Int64, npu: int, way: str) -> str:
    present = np.flatnonzero(rates)
    low, high = present[rates[present].argmin()], present[rates[present].argmax()]
    return (
        f"npu{npu} {'sends' if way == 'out' else 'receives'} {format_rate(int(rates[low]))} "
        f"in plane {layer.planes[low]} and "
        f"{format_rate(int(rates[high]))} in plane {layer.planes[high]} of netlayer {layer.netlayer}"
    )


def _mesh_faults(topology: Topology, layer: LayerIndex) -> Faults:
    """Compare the mesh peers of cards within a server."""
    if not len(layer.direct_key):
        return
    src, _ = np.divmod(layer.direct_key, layer.num_npus)
    peers = np.bincount(src, minlength=topology.num_npus)
    most = np.zeros(int(topology.npu_server.max()) + 1, np.int64)
    np.maximum.at(most, topology.npu_server, peers)
    cards = np.flatnonzero((peers < most[topology.npu_server]) & (peers > 0))
    if len(cards):
        sentences = (
            f"npu{n} has {peers[n]} direct peers on netlayer {layer.netlayer}, "
            f"others in server {topology.npu_server[n]} have {most[topology.npu_server[n]]}"
            for n in cards
        )
        yield "port-missing", (len(cards), sentences)


def _unreachable(topology: Topology, layers: dict[int, LayerIndex], idle: npt.NDArray[np.bool_]) -> Faults:
    """Find ordered pairs of cards without a path; idle cards are reported on their own."""
    paths = [LayerPaths(layers[layer]) for layer in layer_order(topology)]
    # The widest layer leaves the fewest pairs to look at one by one, mostly none.
    widest = max(paths, key=lambda p: (p.layer.netlayer, _attached(p.layer).sum()))
    src, dst, complete = _unjoined(widest, np.flatnonzero(~idle))
    for other in paths:
        joined = other.joins(src, dst)
        src, dst = src[~joined], dst[~joined]
    if len(src):
        how_many = f"{'' if complete else 'at least '}{len(src)} ordered pairs in all"
        first = int(np.lexsort([dst, src])[0])
        pair = f"npu{src[first]} has no path to npu{dst[first]}"
        names = " or ".join(str(p.layer.netlayer) for p in paths)
        yield "unreachable", (1, [f"{pair} over netlayer {names} ({how_many})"])


def _unjoined(paths: LayerPaths, cards: IntArray) -> tuple[Int64, Int64, bool]:
    """List ordered pairs of cards that no switch of the layer joins, up to `MAX_PAIRS`."""
    layer = paths.layer
    group, first = group_rows(np.concatenate([layer.up_leaf[cards], layer.down_leaf[cards]], axis=1))
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    up_leaf, down_leaf = layer.up_leaf[cards[first]], layer.down_leaf[cards[first]]
    step = max(1, _CHUNK // max(1, down_leaf.size))
    found: list[tuple[Int64, Int64]] = []
    num_found = 0
    for start in range(0, len(first), step):
        rows = up_leaf[start : start + step, None, :]
        joined = usable_planes(layer, paths.reach, rows, down_leaf[None, :, :]).any(axis=2)
        for g, h in np.argwhere(~joined):
            rows_of_g = members[start + g][: max(1, MAX_PAIRS // len(members[h]))]
            src, dst = np.meshgrid(rows_of_g, members[h], indexing="ij")
            keep = src != dst
            found.append((cards[src[keep]], cards[dst[keep]]))
            num_found += int(keep.sum())
            if num_found >= MAX_PAIRS or len(rows_of_g) < len(members[start + g]):
                return *_concatenated(found), False
    return *_concatenated(found), True


def _concatenated(found: list[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(s for s, _ in found)]), np.concatenate([none, *(d for _, d in found)])
