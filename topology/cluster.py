"""A user's own cluster as TOML.

Keys are the arguments of the builders, quantities are strings with units. Absent keys take the
builder's default, whose Source then stands; a value in the file gets the Source "given".

Kinds: "ubl128" (one supernode), "clos" (supernodes under a scale-out Clos), "leaf-spine" (a plain
two-layer fabric), "mesh" (one meshed server) and "links" (every cable listed, for odd cabling). With
any kind, `changes` slows or removes the cables between two vertices. NPUs are npu0, npu1, ... and
switches sw0, sw1, ... in the builder's order.

A full example of a built kind:

```toml
kind = "clos"
name = "lab cluster"
num_npus = 1024
supernode_size = 128
planes = 8
port_rate = "400Gbps"
switch_hop = "200ns"
cable = "50ns"
scaleout_rate = "400Gbps"
scaleout_radix = 256
oversubscription = 2.0
wiring = "rail"

[[changes]]          # both directions of plane 5 of card 3 run at half speed
from = "npu3"
to = "sw5"
rate = "200Gbps"

[[changes]]          # card 9 has lost the link out of plane 0, and only that direction
from = "npu9"
to = "sw0"
failed = true
one_way = true
```

And of explicit links, two cards on one switch and a cable between them:

```toml
kind = "links"
num_npus = 2
num_switches = 1

[[link_classes]]
name = "ubl"
rate = "400Gbps"
latency = "250ns"
source = "data sheet of the lab's switch"

[[links]]            # a cable: both directions, unless one_way = true
from = "npu0"
to = "sw0"
class = "ubl"
from_port = 0
to_port = 0

[[links]]
from = "npu1"
to = "sw0"
class = "ubl"

[[links]]
from = "npu0"
to = "npu1"
class = "ubl"
netlayer = 0
```
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import tomli_w

from topology.build import positive_rate
from topology.clos import clos
from topology.edit import with_link_rate, without_links
from topology.errors import TopologyError
from topology.explicit import LinkClassConfig, LinkConfig, build_links
from topology.graph import Topology
from topology.leafspine import leaf_spine
from topology.mesh import mesh
from topology.source import Source
from topology.ubl128 import ubl128

GIVEN = Source("given", "changes of the cluster file")


class ChangeConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, frozen=True):
    """One entry of `changes`: the cables between two vertices, slowed (`rate`) or `failed`."""

    src: str = msgspec.field(name="from")
    dst: str = msgspec.field(name="to")
    rate: str | None = None
    failed: bool = False
    one_way: bool = False


class ClusterConfig(
    msgspec.Struct,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    frozen=True,
    tag_field="kind",
):
    """What every kind of cluster file may say; each kind is a subclass that adds its builder's arguments."""

    name: str | None = None
    changes: tuple[ChangeConfig, ...] = ()

    def build(self) -> Topology:
        """Build the topology, then apply `changes` in order.

        Raises:
          TopologyError: the builder refuses a value, or a change names no cable.
        """
        topology = self._build()
        for idx, change in enumerate(self.changes):
            topology = _apply(topology, change, f"changes[{idx}]")
        return topology

    def _build(self) -> Topology:
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__struct_fields__ if field != "changes"}


class Ubl128Cluster(ClusterConfig, tag="ubl128", frozen=True, kw_only=True):
    """One UBL128 supernode; see `topology.ubl128`."""

    num_npus: int = 128
    planes: int = 8
    ports_per_plane: int = 1
    port_rate: str = "400Gbps"
    radix: int = 128
    switch_hop: str = "200ns"
    cable: str = "50ns"
    server_mesh: bool = False
    server_size: int = 8
    netlayer: int = 1

    def _build(self) -> Topology:
        return ubl128(**self._arguments())


class ClosCluster(ClusterConfig, tag="clos", frozen=True, kw_only=True):
    """Supernodes under a scale-out Clos; see `topology.clos`."""

    num_npus: int
    supernode_size: int = 128
    planes: int = 8
    ports_per_plane: int = 1
    port_rate: str = "400Gbps"
    radix: int = 128
    switch_hop: str = "200ns"
    cable: str = "50ns"
    scaleout_rate: str = "400Gbps"
    scaleout_planes: int = 1
    scaleout_radix: int | None = None
    oversubscription: float = 1.0
    wiring: str = "block"
    scaleout_switch_hop: str = "200ns"
    scaleout_cable: str = "150ns"
    server_size: int = 8

    def _build(self) -> Topology:
        return clos(**self._arguments())


class LeafSpineCluster(ClusterConfig, tag="leaf-spine", frozen=True, kw_only=True):
    """A plain two-layer Clos; see `topology.leaf_spine`."""

    num_npus: int = 128
    leaves: int = 16
    spines: int = 8
    links_per_pair: int = 1
    link_rate: str = "50GB/s"
    uplink_rate: str | None = None
    switch_hop: str = "0ns"
    cable: str = "500ns"
    netlayer: int = 1

    def _build(self) -> Topology:
        return leaf_spine(**self._arguments())


class MeshCluster(ClusterConfig, tag="mesh", frozen=True, kw_only=True):
    """One meshed server; see `topology.mesh`."""

    num_npus: int = 8
    ports: int = 7
    port_rate: str = "400Gbps"
    cable: str = "50ns"

    def _build(self) -> Topology:
        return mesh(**self._arguments())


class LinksCluster(ClusterConfig, tag="links", frozen=True, kw_only=True):
    """Every cable listed; see `topology.explicit`."""

    num_npus: int
    link_classes: tuple[LinkClassConfig, ...]
    links: tuple[LinkConfig, ...]
    num_switches: int = 0
    switch_tiers: tuple[int, ...] | None = None
    server_size: int | None = None
    supernode_size: int | None = None

    def _build(self) -> Topology:
        return build_links(**self._arguments())


KINDS: Mapping[str, type[ClusterConfig]] = {
    "ubl128": Ubl128Cluster, "clos": ClosCluster, "leaf-spine": LeafSpineCluster, "mesh": MeshCluster,
    "links": LinksCluster,
}  # fmt: skip


def from_toml(text: str) -> ClusterConfig:
    """Read a cluster file.

    Raises:
      TopologyError: not TOML, an unknown kind or key, or a value of the wrong type; the field is the
        key path in the file. Values out of range are refused by `build`.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        first = text.strip().splitlines()[0] if text.strip() else ""
        raise TopologyError("cluster file", first, f"must be TOML; {error}") from None
    kind = data.get("kind", "absent")
    if not isinstance(kind, str) or kind not in KINDS:
        raise TopologyError("kind", kind, f"must be one of {', '.join(KINDS)}")
    try:
        return msgspec.convert(data, KINDS[kind])
    except msgspec.ValidationError as error:
        raise _explain(error, data) from None


def to_toml(config: ClusterConfig) -> str:
    """Write a cluster file; keys at their default are left out, and `from_toml` reads it back equal."""
    return tomli_w.dumps(msgspec.to_builtins(config))


def _explain(error: msgspec.ValidationError, data: dict[str, Any]) -> TopologyError:
    """Turn the decoder's message into one sentence with key path, value and rule."""
    text, _, path = str(error).partition(" - at `$")
    path = path.strip("`.")
    if match := re.fullmatch(r"Object (contains unknown|missing required) field `(.+)`", text):
        field = f"{path}.{match[2]}" if path else match[2]
        if match[1].startswith("missing"):
            return TopologyError(field, "absent", "must be given")
        return TopologyError(field, _value_at(data, field), f"is no key here; {_known_keys(data, path)}")
    value = _value_at(data, path)
    example = _UNIT_EXAMPLES.get(re.split(r"[.\]]", path)[-1])
    if example and type(value) in (int, float):
        return TopologyError(path, value, f'needs a unit, in quotes, as "{example}"')
    return TopologyError(path or "cluster file", value, text[0].lower() + text[1:])


_UNIT_EXAMPLES: Mapping[str, str] = {
    "port_rate": "400Gbps", "scaleout_rate": "400Gbps", "link_rate": "50GB/s", "uplink_rate": "50GB/s",
    "rate": "400Gbps", "switch_hop": "200ns", "cable": "50ns", "scaleout_switch_hop": "200ns",
    "scaleout_cable": "150ns", "latency": "250ns",
}  # fmt: skip


def _known_keys(data: dict[str, Any], path: str) -> str:
    tables: dict[str, type[msgspec.Struct]] = {
        "changes": ChangeConfig, "links": LinkConfig, "link_classes": LinkClassConfig
    }  # fmt: skip
    table = tables.get(path.partition("[")[0], KINDS[data["kind"]])
    return "known keys: " + ", ".join(field.encode_name for field in msgspec.structs.fields(table))


def _value_at(data: Any, path: str) -> Any:  # noqa: ANN401 - whatever TOML holds
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(data, list) and step.isdigit() and int(step) < len(data):
            data = data[int(step)]
        elif isinstance(data, dict) and step in data:
            data = data[step]
        else:
            return "..."
    return data


def _apply(topology: Topology, change: ChangeConfig, field: str) -> Topology:
    src, dst = topology.vertex(change.src, f"{field}.from"), topology.vertex(change.dst, f"{field}.to")
    links = topology.links_between(src, dst)
    if not change.one_way:
        links = np.concatenate([links, topology.links_between(dst, src)])
    if not len(links):
        raise TopologyError(field, f"{change.src} -> {change.dst}", f"{topology.name} has no such link")
    if change.failed == (change.rate is not None):
        raise TopologyError(
            field, f"{change.src} -> {change.dst}", 'needs either rate = "..." or failed = true'
        )
    if change.rate is None:
        return without_links(topology, links)
    return with_link_rate(topology, links, positive_rate(change.rate, f"{field}.rate"), GIVEN)
