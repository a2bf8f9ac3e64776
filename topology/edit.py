"""Faults on purpose: the same topology with links removed or slowed down."""

from dataclasses import replace

import numpy as np

from topology.errors import TopologyError
from topology.graph import IntArray, LinkClass, Topology
from topology.source import Source
from topology.units import format_rate

_LINK_ARRAYS = (
    "link_src", "link_dst", "link_netlayer", "link_plane", "link_class", "link_src_port", "link_dst_port",
)  # fmt: skip


def without_links(topology: Topology, links: IntArray) -> Topology:
    """Remove links; vertices, classes and the order of the other links stay.

    Args:
      topology: the healthy one.
      links: indices, each one direction.

    Raises:
      TopologyError: no such link.
    """
    keep = np.ones(topology.num_links, np.bool_)
    keep[_checked(topology, links)] = False
    return replace(topology, **{field: getattr(topology, field)[keep] for field in _LINK_ARRAYS})


def with_link_rate(topology: Topology, links: IntArray, bytes_per_s: int, source: Source) -> Topology:
    """Give links another bandwidth; their latency stays.

    Args:
      topology: the healthy one.
      links: indices, each one direction.
      bytes_per_s: the new bandwidth of each of them.
      source: where the new figure came from.

    Raises:
      TopologyError: no such link, or a bandwidth that is not positive.
    """
    links = _checked(topology, links)
    classes, link_class = list(topology.classes), topology.link_class.copy()
    for old in np.unique(topology.link_class[links]):
        before = topology.classes[old]
        name = _free_name(classes, f"{before.name} at {format_rate(bytes_per_s)}")
        link_class[links[topology.link_class[links] == old]] = len(classes)
        classes.append(
            LinkClass(
                name=name, bandwidth_bytes_per_s=bytes_per_s, latency_ps=before.latency_ps, source=source
            )
        )
    return replace(topology, classes=tuple(classes), link_class=link_class)


def _free_name(classes: list[LinkClass], name: str) -> str:
    taken = {link_class.name for link_class in classes}
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def _checked(topology: Topology, links: IntArray) -> IntArray:
    links = np.asarray(links, np.int64)
    bad = links[(links < 0) | (links >= topology.num_links)]
    if len(bad):
        raise TopologyError("link", int(bad[0]), f"must be in 0..{topology.num_links - 1}")
    return links
