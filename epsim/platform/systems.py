"""From what a user names (a preset, a cluster file, HCCL files) to a topology."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from epsim.errors import InputError
from topology.checks import Finding, check
from topology.cluster import (
    ClosCluster,
    ClusterConfig,
    LeafSpineCluster,
    MeshCluster,
    Ubl128Cluster,
    from_toml,
)
from topology.errors import TopologyError
from topology.graph import Topology
from topology.hccl_graph import FabricRates, topology_from_hccl
from topology.hccl_json import read_document, read_regular
from topology.ranktable import RankTable, rank_table
from topology.table_checks import check_hccl
from topology.topojson import TopoFile, topo_file


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A system known by name.

    Args:
      name: as given on the command line, before an optional ":N".
      num_npus: cards when no N is given.
      help: what it stands for, one line.
      make: from the number of cards to a cluster file.
      takes_number: whether ":N" may follow.
    """

    name: str
    num_npus: int
    help: str
    make: Callable[[int], ClusterConfig]
    takes_number: bool


def _ubl128(num_npus: int, *, server_mesh: bool = False) -> ClusterConfig:
    # The last server of a small system may not be full, and the builder wants no server beyond the cards.
    server_size = max(1, min(8, num_npus))
    return Ubl128Cluster(num_npus=num_npus, server_size=server_size, server_mesh=server_mesh)


def _ubl128_mesh(num_npus: int) -> ClusterConfig:
    return _ubl128(num_npus, server_mesh=True)


def _clos(num_npus: int) -> ClusterConfig:
    return ClosCluster(num_npus=num_npus)


def _mesh(num_npus: int) -> ClusterConfig:
    return MeshCluster(num_npus=num_npus)


def _leaf_spine(num_npus: int) -> ClusterConfig:
    return LeafSpineCluster(num_npus=num_npus)


_HELP = (
    ("ubl128", 128, _ubl128, True, "UBL128 supernode: 8 planes of 400G, one layer of switches"),
    (
        "ubl128-mesh",
        128,
        _ubl128_mesh,
        True,
        "the same, with a full mesh in every 8-card server (netlayer 0)",
    ),
    ("clos", 1024, _clos, True, "UBL128 supernodes under a two-layer scale-out Clos, up to 262,144 cards"),
    ("mesh", 8, _mesh, True, "one fully meshed server of 2 to 8 cards (netlayer 0)"),
    ("mesh8", 8, _mesh, False, "the same as mesh:8"),
    (
        "leaf-spine",
        128,
        _leaf_spine,
        False,
        "16 leaves of 8 cards, 8 spines, 50 GB/s links: a plain fat tree",
    ),
)
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        name: Preset(name=name, num_npus=num_npus, make=make, takes_number=takes_number, help=text)
        for name, num_npus, make, takes_number, text in _HELP
    }
)
"""Systems by name."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A topology and where it came from.

    Args:
      name: as the user gave it.
      kind: "preset", "cluster file", "topo file", "rank table" or "topo file and rank table".
      topology: the graph.
      config: the cluster file behind it, None for HCCL files.
      topo: the HCCL topo file behind it, None when there is none.
      table: the HCCL rank table behind it, None when there is none.
    """

    name: str
    kind: str
    topology: Topology
    config: ClusterConfig | None = None
    topo: TopoFile | None = field(default=None, repr=False)
    table: RankTable | None = field(default=None, repr=False)

    def findings(self, limit: int = 8) -> list[Finding]:
        """Check the files and the graph; errors first, at most `limit` findings per rule."""
        found = check_hccl(self.topo, self.table, limit=limit) + check(self.topology, limit=limit)
        return sorted(found, key=lambda finding: finding.severity != "error")


def load_system(
    name: str,
    *,
    topo_path: str | Path | None = None,
    table_path: str | Path | None = None,
    rates: FabricRates | None = None,
) -> System:
    """Find a system.

    Args:
      name: a preset with an optional number of cards ("ubl128", "clos:4096"), or the path of a cluster
        file (.toml), a topo file or a rank table (.json).
      topo_path: topo file to go with a rank table; without it the one that the table names is taken, if
        it is there.
      table_path: rank table to go with a topo file.
      rates: what HCCL files lack; None = the defaults with their sources.

    Raises:
      InputError: no such preset or file, or an option that does not fit the system.
      TopologyError: a file or a number of cards breaks a rule.
    """
    path = Path(name)
    if path.suffix == ".json":
        return _load_hccl(name, topo_path, table_path, rates)
    for option, value in (
        ("topo file", topo_path),
        ("rank table", table_path),
        ("port rate or latency", rates),
    ):
        if value is not None:
            shown = str(value) if not isinstance(value, FabricRates) else value.port_rate
            raise InputError(option, shown, f"goes with an HCCL file (.json), and {name!r} is none")
    if path.suffix == ".toml":
        text = _read_text(path)
        try:
            config = from_toml(text)
            topology = config.build()
        except TopologyError as error:
            raise TopologyError(f"{name}: {error.field}", error.value, error.rule) from None
        return System(name=name, kind="cluster file", topology=topology, config=config)
    config = _preset(name)
    return System(name=name, kind="preset", topology=config.build(), config=config)


def _preset(name: str) -> ClusterConfig:
    base, colon, number = name.partition(":")
    preset = PRESETS.get(base)
    if preset is None:
        known = ", ".join(PRESETS)
        raise InputError("system", name, f"must be one of {known}, or a file that ends in .toml or .json")
    if not colon:
        return preset.make(preset.num_npus)
    if not preset.takes_number:
        raise InputError("system", name, f"{base} has a fixed number of cards; leave {colon}{number} away")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise InputError(
            "system", name, f"needs a number of cards after the colon, as in {base}:{preset.num_npus}"
        )
    return preset.make(int(number))


def _load_hccl(
    name: str, topo_path: str | Path | None, table_path: str | Path | None, rates: FabricRates | None
) -> System:
    document = read_document(name)
    topo: TopoFile | None = None
    table: RankTable | None = None
    if "rank_list" in document:
        table = rank_table(document)
        if table_path is not None:
            raise InputError(
                "rank table", str(table_path), f"is one too many, {name!r} is a rank table itself"
            )
        topo = _topo_of(table, name, topo_path)
    elif "edge_list" in document or "peer_list" in document:
        topo = topo_file(document)
        if topo_path is not None:
            raise InputError("topo file", str(topo_path), f"is one too many, {name!r} is a topo file itself")
        table = None if table_path is None else rank_table(read_document(table_path))
    else:
        raise TopologyError("file", name, "must have a rank_list (rank table) or an edge_list (topo file)")
    kinds = [kind for kind, part in (("topo file", topo), ("rank table", table)) if part is not None]
    topology = topology_from_hccl(topo, table, rates=rates, name=Path(name).stem)
    return System(name=name, kind=" and ".join(kinds), topology=topology, topo=topo, table=table)


def _topo_of(table: RankTable, name: str, topo_path: str | Path | None) -> TopoFile | None:
    if topo_path is not None:
        return topo_file(read_document(topo_path))
    if table.topo_file_path:
        # Relative to the table: the path is the cluster's, and often does not exist here.
        beside = Path(name).parent / table.topo_file_path
        if os.path.isfile(beside):  # never raises, whatever the table says
            return topo_file(read_document(beside))
    return None


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError:
        raise InputError("file", str(path), "must be UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("file", str(path), f"cannot be read: {reason}") from None
