"""HCCL rank table (root info) v2.0: which ranks exist, on which devices, with which addresses.

Both field variants of v2.0 are read: `net_layer / net_instance_id / net_type / rank_addr_list` and the
older `level / id / fabric_type / rank_addr_type / rank_addrs`. The tables of version 1.x (`server_list`)
are another format and are refused. Source: HCCL unit tests, root info tool document.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from topology.errors import TopologyError
from topology.hccl_json import Document, Fields, clone, format_document, parse_document, read_document

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RankAddress:
    """One endpoint of a rank on a netlayer.

    Args:
      addr_type: "EID", "IPV4" ...; in the older variant the `rank_addr_type` of its level.
      addr: the address as written.
      ports: physical ports "die/port" that serve it; several make a port group.
      plane_id: the plane it belongs to, None when the file does not say.
    """

    addr_type: str
    addr: str
    ports: tuple[str, ...]
    plane_id: str | None


@dataclass(frozen=True, kw_only=True)
class RankLevel:
    """A rank's membership in one network instance.

    Args:
      netlayer: 0 is innermost.
      instance_id: ranks with the same id on the same netlayer reach each other through it.
      net_type: "TOPO_FILE_DESC", "CLOS", "MESH" ..., or the older `fabric_type`.
      addresses: endpoints, possibly none.
    """

    netlayer: int
    instance_id: str
    net_type: str
    addresses: tuple[RankAddress, ...]

    @property
    def ports(self) -> tuple[str, ...]:
        """All ports of the level, each once, in file order."""
        return tuple(dict.fromkeys(port for address in self.addresses for port in address.ports))


@dataclass(frozen=True, kw_only=True)
class RankEntry:
    """One rank: where it sits and how it is reached.

    Args:
      rank_id: 0 .. rank_count-1.
      local_id: the card's place in its server, the id used by the topo file.
      device_id: logical device, None when the file does not say.
      levels: by netlayer, ascending; at least one.
    """

    rank_id: int
    local_id: int
    device_id: int | None
    levels: tuple[RankLevel, ...]

    @property
    def server_id(self) -> str:
        """The instance of the innermost level: the server, as far as the table knows."""
        return self.levels[0].instance_id

    def level(self, netlayer: int) -> RankLevel | None:
        """Give the level of a netlayer, None when the rank has none."""
        return next((level for level in self.levels if level.netlayer == netlayer), None)


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """A rank table: typed ranks on top of the document they came from.

    Args:
      ranks: by rank id.
      topo_file_path: the topo file that the table names, None when it names none.
      document: the whole file; writing gives it back, unknown fields and key order included. Two
        tables are equal when their documents are.
    """

    ranks: tuple[RankEntry, ...] = field(compare=False)
    topo_file_path: str | None = field(compare=False)
    document: Mapping[str, Any] = field(repr=False)

    @property
    def netlayers(self) -> tuple[int, ...]:
        """All netlayers that some rank has, ascending."""
        return tuple(sorted({level.netlayer for rank in self.ranks for level in rank.levels}))

    def to_json(self) -> str:
        """Write the table as JSON text, same values and key order as it was read."""
        return format_document(self.document)


def read_rank_table(path: str | Path) -> RankTable:
    """Read a rank table file.

    Raises:
      TopologyError: the file cannot be read, is not JSON, or breaks a rule of `parse_rank_table`.
    """
    return rank_table(read_document(path))


def parse_rank_table(data: bytes | str, name: str = "rank table") -> RankTable:
    """Parse the JSON text of a rank table; `name` is used in errors about the text as a whole.

    Raises:
      TopologyError: not a JSON object, or as `rank_table`.
    """
    return rank_table(parse_document(data, name))


def rank_table(document: Document) -> RankTable:
    """Check a rank table given as a JSON object and make its typed view.

    Raises:
      TopologyError: wrong version, `rank_count` not the length of `rank_list`, rank ids that are not
        0 .. n-1 once each, a local id twice in one server, or a field of the wrong kind.
    """
    table = Fields(document, "")
    table.require_version()
    entries = table.objects("rank_list")
    table.require_count("rank_count", "rank_list", len(entries))
    if not entries:
        raise TopologyError("rank_list", 0, "must name at least one rank")
    ranks = [_rank(entry) for entry in entries]
    _require_ids(ranks)
    _require_local_ids(ranks)
    return RankTable(
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank_id)),
        topo_file_path=table.text("topo_file_path") if table.has("topo_file_path") else None,
        document=clone(document),
    )


def _rank(entry: Fields) -> RankEntry:
    levels = [_level(level) for level in entry.objects("level_list")]
    if not levels:
        raise TopologyError(entry.at("level_list"), 0, "must name at least one netlayer")
    for netlayer in _repeated(level.netlayer for level in levels):
        raise TopologyError(entry.at("level_list"), netlayer, "is a netlayer given twice for one rank")
    return RankEntry(
        rank_id=entry.integer("rank_id"),
        local_id=entry.integer("local_id"),
        device_id=entry.integer("device_id") if entry.has("device_id") else None,
        levels=tuple(sorted(levels, key=lambda level: level.netlayer)),
    )


def _level(level: Fields) -> RankLevel:
    if level.has("net_layer") and level.has("level"):
        raise TopologyError(level.path, "net_layer and level", "must use one variant of the field names")
    if level.has("level"):
        addr_type = level.text("rank_addr_type", "")
        return RankLevel(
            netlayer=level.integer("level"),
            instance_id=level.text("id"),
            net_type=level.text("fabric_type", ""),
            addresses=_older_addresses(level, addr_type),
        )
    return RankLevel(
        netlayer=level.integer("net_layer"),
        instance_id=level.text("net_instance_id"),
        net_type=level.text("net_type", ""),
        addresses=tuple(_address(address, "") for address in level.objects("rank_addr_list")),
    )


def _older_addresses(level: Fields, addr_type: str) -> tuple[RankAddress, ...]:
    """Older lists hold bare addresses or objects; known samples are empty, so both are taken."""
    addresses = []
    for i, item in enumerate(level.items("rank_addrs", [])):
        if isinstance(item, str):
            addresses.append(RankAddress(addr_type=addr_type, addr=item, ports=(), plane_id=None))
        else:
            addresses.append(_address(Fields(item, f"{level.at('rank_addrs')}[{i}]"), addr_type))
    return tuple(addresses)


def _address(address: Fields, addr_type: str) -> RankAddress:
    return RankAddress(
        addr_type=address.text("addr_type", addr_type),
        addr=address.text("addr"),
        ports=address.ports("ports", []),
        plane_id=address.text("plane_id") if address.has("plane_id") else None,
    )


def _require_ids(ranks: list[RankEntry]) -> None:
    ids = {rank.rank_id for rank in ranks}
    for rank_id in _repeated(rank.rank_id for rank in ranks):
        raise TopologyError("rank_list", f"rank_id {rank_id}", "is given to more than one rank")
    missing = next((i for i in range(len(ranks)) if i not in ids), None)
    if missing is not None:
        rule = f"must hold the rank ids 0..{len(ranks) - 1}, and {missing} is missing"
        raise TopologyError("rank_list", f"largest rank_id {max(ids)}", rule)


def _require_local_ids(ranks: list[RankEntry]) -> None:
    """Refuse a local id that two ranks of a server share: it names one card."""
    for server_id, local_id in _repeated((rank.server_id, rank.local_id) for rank in ranks):
        twins = [rank.rank_id for rank in ranks if (rank.server_id, rank.local_id) == (server_id, local_id)]
        raise TopologyError(
            "rank_list", f"local_id {local_id}", f"is given to ranks {twins} of the same server {server_id!r}"
        )


def _repeated(values: Iterable[_T]) -> list[_T]:
    return [value for value, count in Counter(values).items() if count > 1]
