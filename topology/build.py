"""What the builders share: reading quantities, and filling link arrays block by block.

A builder knows how many links it will make, so the table is allocated once and filled through views:
262,144 cards must fit in a few hundred megabytes without temporaries of the same size.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.graph import UNKNOWN_PORT, LinkClass, Topology
from topology.source import SOURCE_KINDS, Source
from topology.units import parse_rate, parse_time

Ints = int | npt.NDArray[np.integer[Any]]


def positive_rate(value: str | int, field: str) -> int:
    """Read a positive rate: text with a unit, or an integer of bytes/s.

    Raises:
      TopologyError: not a rate, or not positive.
    """
    return _quantity(value, field, parse_rate, 1, "a rate must be positive")


def latency(value: str | int, field: str) -> int:
    """Read a time: text with a unit, or an integer of picoseconds; zero is fine.

    Raises:
      TopologyError: not a time, or negative.
    """
    return _quantity(value, field, parse_time, 0, "a time must not be negative")


def in_range(value: int, field: str, lowest: int, highest: int, why: str = "") -> int:
    """Check a count.

    Raises:
      TopologyError: not an integer in lowest..highest; `why` ends the sentence.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise TopologyError(field, value, f"must be an integer in {lowest}..{highest}" + (why and f", {why}"))
    return value


def _quantity(value: str | int, field: str, parse: Callable[[str, str], int], lowest: int, rule: str) -> int:
    number = value if isinstance(value, int) and not isinstance(value, bool) else parse(value, field)  # type: ignore[arg-type]
    if number < lowest:
        raise TopologyError(field, value, rule)
    return number


def class_source(*parts: tuple[str, int, int, Source]) -> Source:
    """Make the Source of a link class from those of its quantities.

    Args:
      parts: (field, value in use, default value, Source of the default); a value that is not the
        default was given by the caller.

    Returns:
      One Source of the weakest kind met, naming every part.
    """
    used = [
        (field, source if value == default else Source("given", f"{value}"))
        for field, value, default, source in parts
    ]
    weakest = max((source.kind for _, source in used), key=SOURCE_KINDS.index)
    return Source(weakest, "; ".join(f"{field}: {source.text}" for field, source in used))


class LinkTable:
    """Link arrays of a known length, filled in cables (two links each).

    Args:
      num_links: L, twice the number of cables to come.
    """

    def __init__(self, num_links: int) -> None:
        """Allocate; nothing is filled yet."""
        self.num_filled = 0
        self.classes: list[LinkClass] = []
        self.src = np.empty(num_links, np.int32)
        self.dst = np.empty(num_links, np.int32)
        self.netlayer = np.empty(num_links, np.uint8)
        self.plane = np.empty(num_links, np.int16)
        self.link_class = np.empty(num_links, np.uint16)
        self.src_port = np.empty(num_links, np.int32)
        self.dst_port = np.empty(num_links, np.int32)

    def add_class(self, link_class: LinkClass) -> int:
        """Register a class; return its index."""
        self.classes.append(link_class)
        return len(self.classes) - 1

    def add_cables(
        self,
        shape: tuple[int, ...],
        lower: Ints,
        upper: Ints,
        *,
        netlayer: int,
        plane: Ints,
        up_class: int,
        down_class: int,
        lower_port: Ints = UNKNOWN_PORT,
        upper_port: Ints = UNKNOWN_PORT,
    ) -> None:
        """Add prod(shape) cables; every argument broadcasts to `shape`.

        The links lower -> upper come first, then the links upper -> lower, each in C order of `shape`.
        """
        count = int(np.prod(shape))
        ends = (
            (lower, upper, lower_port, upper_port, up_class),
            (upper, lower, upper_port, lower_port, down_class),
        )
        for src, dst, src_port, dst_port, link_class in ends:
            block = slice(self.num_filled, self.num_filled + count)
            self.src[block].reshape(shape)[...] = src
            self.dst[block].reshape(shape)[...] = dst
            self.src_port[block].reshape(shape)[...] = src_port
            self.dst_port[block].reshape(shape)[...] = dst_port
            self.plane[block].reshape(shape)[...] = plane
            self.netlayer[block] = netlayer
            self.link_class[block] = link_class
            self.num_filled += count

    def topology(
        self,
        *,
        name: str,
        num_npus: int,
        switch_tier: npt.NDArray[np.uint8],
        server_size: int,
        supernode_size: int,
    ) -> Topology:
        """Make the topology; cards fill servers and supernodes in order."""
        assert self.num_filled == len(self.src), (self.num_filled, len(self.src))
        npus = np.arange(num_npus, dtype=np.int32)
        return Topology(
            name=name,
            num_npus=num_npus,
            num_switches=len(switch_tier),
            link_src=self.src,
            link_dst=self.dst,
            link_netlayer=self.netlayer,
            link_plane=self.plane,
            link_class=self.link_class,
            classes=tuple(self.classes),
            link_src_port=self.src_port,
            link_dst_port=self.dst_port,
            switch_tier=switch_tier,
            npu_server=npus // server_size,
            npu_supernode=npus // supernode_size,
        )
