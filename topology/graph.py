"""The graph everything else reads: NPUs, switches and one-directional links, held as arrays.

Vertices are numbered: NPUs 0 .. num_npus-1, then switches. A link is ONE direction of ONE channel, so
a cable is two links. Its latency covers the cable and, when the link ends in a switch, crossing that
switch; the one-way time of a route is then the sum over its links. Integers only: bytes/s and
picoseconds. There is no clock and no MoE word in here.

Dimension legend: N NPUs, S switches, L links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.source import Source
from topology.units import format_rate, format_time

IntArray = npt.NDArray[np.integer[Any]]

NETLAYER_SERVER = 0
NETLAYER_SUPERNODE = 1
NETLAYER_SCALEOUT = 2
NETLAYER_NAMES = {
    NETLAYER_SERVER: "in-server mesh",
    NETLAYER_SUPERNODE: "supernode Clos",
    NETLAYER_SCALEOUT: "scale-out Clos",
}
"""HCCL's index, 0 innermost (spec: CANN rank graph, board tests)."""

UNKNOWN_PORT = -1

# field -> (dtype, length attribute, lowest value); the order of `Topology`'s array fields.
_ARRAYS: dict[str, tuple[type[np.integer[Any]], str, int]] = {
    "link_src": (np.int32, "num_links", 0),
    "link_dst": (np.int32, "num_links", 0),
    "link_netlayer": (np.uint8, "num_links", 0),
    "link_plane": (np.int16, "num_links", 0),
    "link_class": (np.uint16, "num_links", 0),
    "link_src_port": (np.int32, "num_links", UNKNOWN_PORT),
    "link_dst_port": (np.int32, "num_links", UNKNOWN_PORT),
    "switch_tier": (np.uint8, "num_switches", 0),
    "npu_server": (np.int32, "num_npus", 0),
    "npu_supernode": (np.int32, "num_npus", 0),
}


@dataclass(frozen=True, kw_only=True)
class LinkClass:
    """What links of one kind have in common.

    Args:
      name: short and unique within a topology, e.g. "ubl-up".
      bandwidth_bytes_per_s: of one link, one direction; positive.
      latency_ps: cable plus, when the link ends in a switch, crossing that switch; not negative.
      source: where both numbers came from.

    Raises:
      TopologyError: empty name, or a number out of range.
    """

    name: str
    bandwidth_bytes_per_s: int
    latency_ps: int
    source: Source

    def __post_init__(self) -> None:
        """Refuse what no link can be."""
        if not self.name.strip():
            raise TopologyError("link class name", self.name, "must not be empty")
        if self.bandwidth_bytes_per_s <= 0:
            raise TopologyError(f"bandwidth of {self.name}", self.bandwidth_bytes_per_s, "must be positive")
        if self.latency_ps < 0:
            raise TopologyError(f"latency of {self.name}", self.latency_ps, "must not be negative")


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of one channel, as a row for people; arrays of `Topology` are for machines."""

    link_idx: int
    src: str
    dst: str
    netlayer: int
    plane: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    src_port: int
    dst_port: int
    source: Source

    def __str__(self) -> str:
        """Name the link by its ends, layer, plane and speed."""
        speed = f"{format_rate(self.bandwidth_bytes_per_s)}, {format_time(self.latency_ps)}"
        return f"{self.src} -> {self.dst} (netlayer {self.netlayer}, plane {self.plane}, {speed})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """Immutable directed multigraph of NPUs and switches joined by links; knows paths, not time.

    The arrays become read-only, and an array that already has the right dtype is taken over rather
    than copied (256K cards are 5 million links). Two topologies are equal when every field is.

    Args:
      name: for people.
      num_npus: N, at least 1.
      num_switches: S, may be 0.
      link_src, link_dst: [L] int32, vertex.
      link_netlayer: [L] uint8, HCCL's index: 0 in-server mesh, 1 supernode Clos, 2 scale-out Clos.
      link_plane: [L] int16; planes are numbered within a netlayer and never share a switch.
      link_class: [L] uint16, index into `classes`.
      classes: bandwidth, latency and Source of each kind of link.
      link_src_port, link_dst_port: [L] int32, port number at that end, -1 = unknown.
      switch_tier: [S] uint8; 0 touches NPUs, 1 is the spine above, and so on.
      npu_server, npu_supernode: [N] int32, which server and supernode a card sits in.

    Raises:
      TopologyError: an array has the wrong length or holds a value out of range, a link joins a
        vertex to itself, or two classes share a name.
    """

    name: str
    num_npus: int
    num_switches: int
    link_src: npt.NDArray[np.int32]
    link_dst: npt.NDArray[np.int32]
    link_netlayer: npt.NDArray[np.uint8]
    link_plane: npt.NDArray[np.int16]
    link_class: npt.NDArray[np.uint16]
    classes: tuple[LinkClass, ...]
    link_src_port: npt.NDArray[np.int32]
    link_dst_port: npt.NDArray[np.int32]
    switch_tier: npt.NDArray[np.uint8]
    npu_server: npt.NDArray[np.int32]
    npu_supernode: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        """Validate, convert and freeze every array."""
        if self.num_npus < 1:
            raise TopologyError("num_npus", self.num_npus, "a topology needs at least one NPU")
        if self.num_switches < 0:
            raise TopologyError("num_switches", self.num_switches, "must not be negative")
        object.__setattr__(self, "classes", tuple(self.classes))
        names = [link_class.name for link_class in self.classes]
        if len(set(names)) != len(names):
            raise TopologyError("link class names", names, "must differ from each other")
        uppers = {
            "link_src": self.num_vertices, "link_dst": self.num_vertices, "link_class": len(self.classes)
        }  # fmt: skip
        for field, (dtype, length, lowest) in _ARRAYS.items():
            array = _frozen(field, getattr(self, field), dtype, lowest, uppers.get(field))
            object.__setattr__(self, field, array)
            if len(array) != getattr(self, length):
                rule = f"must have {length} = {getattr(self, length)} entries"
                raise TopologyError(f"length of {field}", len(array), rule)
        loops = np.flatnonzero(self.link_src == self.link_dst)
        if len(loops):
            vertex = self.vertex_name(int(self.link_src[loops[0]]))
            raise TopologyError(f"link {loops[0]}", f"{vertex} -> {vertex}", "must join two vertices")

    def __eq__(self, other: object) -> bool:
        """Equal when every field is equal, arrays element by element."""
        if not isinstance(other, Topology):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    def __hash__(self) -> int:
        """Cheap and consistent with equality; the arrays are too long to hash."""
        return hash((self.name, self.num_npus, self.num_switches, self.num_links))

    def __repr__(self) -> str:
        """One line; never the arrays."""
        return (
            f"Topology({self.name!r}, {self.num_npus} NPUs, {self.num_switches} switches, "
            f"{self.num_links} links, netlayers {list(self.netlayers())})"
        )

    @property
    def num_links(self) -> int:
        """Number of links, each one direction."""
        return len(self.link_src)

    @property
    def num_vertices(self) -> int:
        """NPUs and switches together."""
        return self.num_npus + self.num_switches

    def netlayers(self) -> tuple[int, ...]:
        """List the netlayers that have at least one link, ascending."""
        counts = np.bincount(self.link_netlayer, minlength=1)
        return tuple(int(layer) for layer in np.flatnonzero(counts))

    def planes(self, netlayer: int) -> tuple[int, ...]:
        """List the planes that have at least one link in `netlayer`, ascending."""
        planes = self.link_plane[self.link_netlayer == netlayer]
        return tuple(int(plane) for plane in np.flatnonzero(np.bincount(planes, minlength=1)))

    def link_bytes_per_s(self, links: IntArray | slice = slice(None)) -> npt.NDArray[np.int64]:
        """Bandwidth of each link (or of the chosen ones), bytes/s, one direction."""
        table = np.array([c.bandwidth_bytes_per_s for c in self.classes], dtype=np.int64)
        return np.asarray(table[self.link_class[links]], dtype=np.int64)

    def link_latency_ps(self, links: IntArray | slice = slice(None)) -> npt.NDArray[np.int64]:
        """Latency of each link (or of the chosen ones), picoseconds."""
        table = np.array([c.latency_ps for c in self.classes], dtype=np.int64)
        return np.asarray(table[self.link_class[links]], dtype=np.int64)

    def links_of(self, vertex: int) -> npt.NDArray[np.intp]:
        """Links that leave `vertex`, ascending."""
        self._check_vertex(vertex)
        return np.flatnonzero(self.link_src == vertex)

    def links_into(self, vertex: int) -> npt.NDArray[np.intp]:
        """Links that end in `vertex`, ascending."""
        self._check_vertex(vertex)
        return np.flatnonzero(self.link_dst == vertex)

    def links_between(self, src: int, dst: int) -> npt.NDArray[np.intp]:
        """Links from `src` straight to `dst`, ascending; empty when there are none."""
        links = self.links_of(src)
        self._check_vertex(dst)
        return np.asarray(links[self.link_dst[links] == dst])

    def npu_rate(self, netlayer: int, *, into: bool = False) -> npt.NDArray[np.int64]:
        """Sum what each NPU can send (or receive, with `into`) on a netlayer: [N] int64, bytes/s."""
        ends = self.link_dst if into else self.link_src
        links = np.flatnonzero((self.link_netlayer == netlayer) & (ends < self.num_npus))
        # Sums stay far below 2^53, so the float accumulation of bincount is exact.
        rates = np.bincount(ends[links], weights=self.link_bytes_per_s(links), minlength=self.num_npus)
        return rates.astype(np.int64)

    def link(self, link_idx: int) -> Link:
        """One link as a row for people."""
        if not 0 <= link_idx < self.num_links:
            raise TopologyError("link", link_idx, f"must be in 0..{self.num_links - 1}")
        link_class = self.classes[self.link_class[link_idx]]
        return Link(
            link_idx=int(link_idx),
            src=self.vertex_name(int(self.link_src[link_idx])),
            dst=self.vertex_name(int(self.link_dst[link_idx])),
            netlayer=int(self.link_netlayer[link_idx]),
            plane=int(self.link_plane[link_idx]),
            bandwidth_bytes_per_s=link_class.bandwidth_bytes_per_s,
            latency_ps=link_class.latency_ps,
            src_port=int(self.link_src_port[link_idx]),
            dst_port=int(self.link_dst_port[link_idx]),
            source=link_class.source,
        )

    def vertex_name(self, vertex: int) -> str:
        """`npu17` or `sw3` (switches count from 0); names are made here and never stored."""
        self._check_vertex(vertex)
        return f"npu{vertex}" if vertex < self.num_npus else f"sw{vertex - self.num_npus}"

    def vertex(self, name: str, field: str = "vertex") -> int:
        """Find the number of a vertex from its name.

        Raises:
          TopologyError: no such vertex; the message uses `field`.
        """
        for prefix, first, count in (("npu", 0, self.num_npus), ("sw", self.num_npus, self.num_switches)):
            digits = name.removeprefix(prefix)
            if digits != name and digits.isascii() and digits.isdigit() and int(digits) < count:
                return first + int(digits)
        known = f"npu0..npu{self.num_npus - 1}"
        if self.num_switches:
            known += f" or sw0..sw{self.num_switches - 1}"
        raise TopologyError(field, name, f"must be one of {known}")

    def _check_vertex(self, vertex: int) -> None:
        if not 0 <= vertex < self.num_vertices:
            raise TopologyError("vertex", vertex, f"must be in 0..{self.num_vertices - 1}")


def _frozen(
    field: str, value: Sequence[int] | IntArray, dtype: type[np.integer[Any]], lowest: int, upper: int | None
) -> IntArray:
    """Check the range of a one-dimensional integer array, then convert it and make it read-only."""
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(dtype)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        shape = f"{array.dtype} array of shape {array.shape}"
        raise TopologyError(field, shape, "must be a one-dimensional array of integers")
    if array.size:
        highest = int(np.iinfo(dtype).max) if upper is None else upper - 1
        bad = int(array.min()), int(array.max())
        if bad[0] < lowest or bad[1] > highest:
            wrong = bad[0] if bad[0] < lowest else bad[1]
            where = int(np.flatnonzero(array == wrong)[0])
            raise TopologyError(f"{field}[{where}]", wrong, f"must be in {lowest}..{highest}")
    # A view may be written to through its base, so only an array that owns its memory is taken over.
    owned = array if array.dtype == dtype and array.base is None else array.astype(dtype)
    owned.flags.writeable = False
    return owned
