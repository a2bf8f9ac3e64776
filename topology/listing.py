"""Any graph as a cluster file of kind "links": every cable listed."""

import numpy as np
import numpy.typing as npt

from topology.cluster import LinksCluster
from topology.errors import TopologyError
from topology.explicit import LinkClassConfig, LinkConfig
from topology.graph import Topology
from topology.units import format_rate, format_time

MAX_LINKS = 200_000


def list_links(topology: Topology) -> LinksCluster:
    """List every cable of a topology, so that it can be written as TOML and edited.

    Two links that follow each other, are each other's way back and have one class become one entry;
    others become one-way entries. Building the result gives the same arrays in the same order; sources
    of classes become text.

    Raises:
      TopologyError: too many links for a file that people edit, cards that do not fill their servers
        or supernodes in order, or a netlayer that cluster files do not have.
    """
    if topology.num_links > MAX_LINKS:
        raise TopologyError(
            "num_links", topology.num_links, f"must be at most {MAX_LINKS} to be listed one by one"
        )
    classes = tuple(
        LinkClassConfig(
            name=link_class.name,
            rate=format_rate(link_class.bandwidth_bytes_per_s),
            latency=format_time(link_class.latency_ps),
            source=f"{link_class.source.kind}: {link_class.source.text}",
        )
        for link_class in topology.classes
    )
    return LinksCluster(
        name=topology.name,
        num_npus=topology.num_npus,
        num_switches=topology.num_switches,
        switch_tiers=tuple(topology.switch_tier.tolist()),
        server_size=_size(topology.npu_server, "server"),
        supernode_size=_size(topology.npu_supernode, "supernode"),
        link_classes=classes,
        links=tuple(_entries(topology)),
    )


def _size(group: npt.NDArray[np.int32], what: str) -> int:
    size = int(np.count_nonzero(group == group[0]))
    if not np.array_equal(group, np.arange(len(group)) // size):
        npu = int(np.flatnonzero(group != np.arange(len(group)) // size)[0])
        rule = f"cards must fill their {what}s in order, {size} each, to be written to a cluster file"
        raise TopologyError(f"{what} of npu{npu}", int(group[npu]), rule)
    return size


def _entries(topology: Topology) -> list[LinkConfig]:
    columns = (
        topology.link_src, topology.link_dst, topology.link_netlayer, topology.link_plane,
        topology.link_class, topology.link_src_port, topology.link_dst_port,
    )  # fmt: skip
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    entries = []
    i = 0
    while i < len(rows):
        src, dst, netlayer, plane, link_class, src_port, dst_port = rows[i]
        is_cable = rows[i + 1 : i + 2] == [(dst, src, netlayer, plane, link_class, dst_port, src_port)]
        entries.append(
            LinkConfig(
                src=topology.vertex_name(src),
                dst=topology.vertex_name(dst),
                link_class=topology.classes[link_class].name,
                netlayer=netlayer,
                plane=plane,
                from_port=src_port,
                to_port=dst_port,
                one_way=not is_cable,
            )
        )
        i += 1 + is_cable
    return entries
