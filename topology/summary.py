"""A topology in a few numbers per netlayer: what a closed-form model needs, with Sources."""

from dataclasses import dataclass

import numpy as np

from topology.errors import TopologyError
from topology.fabric import Attachment, Int32, Int64, LayerIndex, index_layer
from topology.graph import LinkClass, Topology


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """One netlayer; "min" and "max" are over the NPUs that have a link on it.

    Args:
      netlayer: HCCL's index.
      num_npus: NPUs with a link on it.
      domain_size: NPUs in its largest connected part (a supernode on netlayer 1).
      num_planes: planes.
      ports_per_npu_min: links that leave an NPU, fewest.
      ports_per_npu_max: links that leave an NPU, most.
      npu_bytes_per_s_min: what an NPU sends or receives, the smaller direction, slowest NPU.
      npu_bytes_per_s_max: the larger direction, fastest NPU.
      num_hops_min: links between two NPUs that are near (direct or under one switch).
      num_hops_max: links between two NPUs that are far; equal to `num_hops_min` without spines.
      latency_ps_min: one way over a near path, fastest links.
      latency_ps_max: one way over the longest kind of path, slowest links.
      oversubscription: per switch tier that has a tier above, bandwidth from below over bandwidth to
        above, worst switch; empty for a mesh or a single layer of switches; 1.0 is non-blocking.
      classes: the link classes in use, each with its Source.
    """

    netlayer: int
    num_npus: int
    domain_size: int
    num_planes: int
    ports_per_npu_min: int
    ports_per_npu_max: int
    npu_bytes_per_s_min: int
    npu_bytes_per_s_max: int
    num_hops_min: int
    num_hops_max: int
    latency_ps_min: int
    latency_ps_max: int
    oversubscription: tuple[float, ...]
    classes: tuple[LinkClass, ...]


@dataclass(frozen=True, kw_only=True)
class NetworkSummary:
    """What a closed-form model reads of a topology.

    Args:
      name: of the topology.
      num_npus: all of them.
      supernode_size: NPUs of the largest supernode.
      server_size: NPUs of the largest server.
      layers: one per netlayer present, ascending.
    """

    name: str
    num_npus: int
    supernode_size: int
    server_size: int
    layers: tuple[LayerSummary, ...]

    def layer(self, netlayer: int) -> LayerSummary:
        """Find a netlayer.

        Raises:
          TopologyError: the topology has no such netlayer.
        """
        for layer in self.layers:
            if layer.netlayer == netlayer:
                return layer
        present = [layer.netlayer for layer in self.layers]
        raise TopologyError("netlayer", netlayer, f"{self.name} has only netlayers {present}")


def summarize(topology: Topology) -> NetworkSummary:
    """Summarise every netlayer of a topology that connects NPUs."""
    layers = [index_layer(topology, netlayer) for netlayer in topology.netlayers()]
    return NetworkSummary(
        name=topology.name,
        num_npus=topology.num_npus,
        supernode_size=int(np.bincount(topology.npu_supernode).max()),
        server_size=int(np.bincount(topology.npu_server).max()),
        layers=tuple(_summarize_layer(topology, layer) for layer in layers if _touches_npus(layer)),
    )


def _touches_npus(layer: LayerIndex) -> bool:
    return bool(len(layer.direct_key)) or bool(len(layer.leaf_vertex))


def _summarize_layer(topology: Topology, layer: LayerIndex) -> LayerSummary:
    src, _ = np.divmod(layer.direct_key, layer.num_npus)
    direct_ports = np.bincount(src, weights=layer.direct.count[:, 0], minlength=layer.num_npus)
    ports = layer.up.count.sum(axis=1) + direct_ports.astype(np.int64)
    sends, receives = (topology.npu_rate(layer.netlayer, into=into) for into in (False, True))
    attached = (ports > 0) | (receives > 0)
    hops, latencies = _distances(topology, layer)
    used = np.bincount(topology.link_class[topology.link_netlayer == layer.netlayer])
    return LayerSummary(
        netlayer=layer.netlayer,
        num_npus=int(attached.sum()),
        domain_size=_domain_size(layer),
        num_planes=len(layer.planes),
        ports_per_npu_min=int(ports[attached].min()),
        ports_per_npu_max=int(ports.max()),
        npu_bytes_per_s_min=int(np.minimum(sends, receives)[attached].min()),
        npu_bytes_per_s_max=int(np.maximum(sends, receives).max()),
        num_hops_min=hops[0],
        num_hops_max=hops[1],
        latency_ps_min=latencies[0],
        latency_ps_max=latencies[1],
        oversubscription=_oversubscription(topology, layer.netlayer),
        classes=tuple(topology.classes[index] for index in np.flatnonzero(used)),
    )


def _distances(topology: Topology, layer: LayerIndex) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find ((fewest, most) links, (least, most) latency) between two NPUs."""
    paths: list[tuple[Attachment, ...]] = []
    if len(layer.direct_key):
        paths.append((layer.direct,))
    if len(layer.leaf_vertex):
        cards_per_leaf = np.bincount(layer.up_leaf[layer.up_leaf >= 0])
        if cards_per_leaf.max(initial=0) > 1 or not layer.to_spine.count.any():
            paths.append((layer.up, layer.down))
        if layer.to_spine.count.any():
            paths.append((layer.up, layer.to_spine, layer.from_spine, layer.down))
    spans = [[_latency_span(topology, table) for table in path] for path in paths]
    fastest = min(sum(low for low, _ in path) for path in spans)
    slowest = max(sum(high for _, high in path) for path in spans)
    lengths = [len(path) for path in paths]
    return (min(lengths), max(lengths)), (fastest, slowest)


def _latency_span(topology: Topology, table: Attachment) -> tuple[int, int]:
    used = table.links[table.links >= 0]
    latency_ps = topology.link_latency_ps(used)
    return (int(latency_ps.min()), int(latency_ps.max())) if len(used) else (0, 0)


def _domain_size(layer: LayerIndex) -> int:
    """Count the NPUs of the largest part connected by direct links or by switches of one plane."""
    src, _ = np.divmod(layer.direct_key, layer.num_npus)
    largest = int(np.bincount(src).max()) + 1 if len(src) else 1
    label = _leaf_labels(layer)
    for plane in range(len(layer.planes)):
        leaf = layer.up_leaf[:, plane]
        largest = max(largest, int(np.bincount(label[leaf[leaf >= 0]], minlength=1).max()))
    return largest


def _leaf_labels(layer: LayerIndex) -> Int64:
    """Label leaves so that leaves joined by spines, directly or in steps, share the lowest number."""
    label = np.arange(len(layer.leaf_vertex), dtype=np.int64)
    leaf, spine = np.nonzero((layer.to_spine.count > 0) & (layer.from_spine.count > 0))
    spine = spine + layer.leaf_plane[leaf] * layer.to_spine.count.shape[1]
    while len(leaf):
        lowest = np.full(int(spine.max()) + 1, len(label), np.int64)
        np.minimum.at(lowest, spine, label[leaf])
        joined = label.copy()
        np.minimum.at(joined, leaf, lowest[spine])
        if np.array_equal(joined, label):
            break
        label = joined
    return label


def _oversubscription(topology: Topology, netlayer: int) -> tuple[float, ...]:
    """Find the worst ratio of bandwidth from below to bandwidth to above, per tier with a tier above."""
    links = np.flatnonzero(topology.link_netlayer == netlayer)
    tier = np.full(topology.num_vertices, -1, np.int16)
    tier[topology.num_npus :] = topology.switch_tier
    src, dst = topology.link_src[links], topology.link_dst[links]
    rising = np.flatnonzero(tier[src] < tier[dst])
    rates = topology.link_bytes_per_s(links[rising])
    below = _sum_at(dst[rising], rates, topology.num_vertices)
    above = _sum_at(src[rising], rates, topology.num_vertices)
    worst = []
    for height in range(int(tier.max()) + 1):
        switches = (tier == height) & (above > 0)
        if switches.any():
            worst.append(float((below[switches] / above[switches]).max()))
    return tuple(worst)


def _sum_at(index: Int32, values: Int64, length: int) -> Int64:
    # Sums of rates stay far below 2^53, so the float accumulation of bincount is exact.
    return np.bincount(index, weights=values, minlength=length).astype(np.int64)
