"""Deterministic path choice: which links carry a flow from one NPU to another, and what share each.

Layers: a pair uses one netlayer, the fastest that joins it. Netlayer 0 (the mesh inside a server) is
used only when asked for or when there is no other: DeepEP-Ascend always uses netlayer 1.

Policies:
  spray: every packet takes any shortest path; bytes split equally over the planes that join the pair,
    in each plane over the spines between the two leaves, and over parallel links.
  flow-hash: the whole flow takes one path; plane, spine and parallel links come from a seeded integer
    hash (splitmix64 over seed, salt, source, destination, key) modulo the number of choices.
  pinned: the whole flow takes one path that depends on the destination alone: plane = dst modulo
    planes, everything else = dst // planes modulo choices.

Dimension legend: F flows, E entries (a flow on a link), P planes, C spines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from topology.errors import TopologyError
from topology.fabric import Int32, Int64, index_layer
from topology.graph import NETLAYER_SERVER, IntArray, Topology
from topology.paths import Entries, LayerPaths, hash_chooser, pinned_chooser

Policy = Literal["spray", "flow-hash", "pinned"]
POLICIES: tuple[str, ...] = get_args(Policy)

_FLOWS_TIMES_CHOICES = 2**23  # bounds the masks over flows x spines to some tens of megabytes


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The incidence of flows on links, ordered by flow and then by hop.

    Args:
      num_flows: F.
      flow_idx: [E] int64, ascending.
      link_idx: [E] int32.
      parts: [E] int64; the flow puts 1/parts of its bytes on the link.
      hop: [E] int8; 0 leaves the source, then upwards by one per link on the path.
      netlayer: [F] int16, -1 for a flow from a card to itself (no links).
    """

    num_flows: int
    flow_idx: Int64
    link_idx: Int32
    parts: Int64
    hop: npt.NDArray[np.int8]
    netlayer: npt.NDArray[np.int16]

    @property
    def share(self) -> npt.NDArray[np.float64]:
        """Share of the flow's bytes on the link, [E]: 1 / parts."""
        return 1.0 / self.parts

    def latency_ps(self, topology: Topology) -> Int64:
        """Time from source to destination of an empty message, [F], slowest of its paths."""
        link_ps = topology.link_latency_ps(self.link_idx)
        total = np.zeros(self.num_flows, np.int64)
        for hop in range(int(self.hop.max(initial=-1)) + 1):
            here = self.hop == hop
            slowest = np.zeros(self.num_flows, np.int64)
            np.maximum.at(slowest, self.flow_idx[here], link_ps[here])
            total += slowest
        return total


class Router:
    """Finds routes between chosen NPUs; make it once and use it for many sets of flows.

    Args:
      topology: the graph.
      npus: distinct NPUs that take part, in any order; all when absent.
      use_mesh: put netlayer 0 first where it joins a pair.

    Raises:
      TopologyError: an NPU repeats or is out of range, or is cabled to two switches in one plane.
    """

    def __init__(self, topology: Topology, npus: IntArray | None = None, *, use_mesh: bool = False) -> None:
        """Index the usable netlayers, fastest first."""
        self.topology = topology
        self.npus = np.arange(topology.num_npus) if npus is None else _distinct(topology, npus)
        self.position = np.full(topology.num_npus, -1, np.int64)
        self.position[self.npus] = np.arange(len(self.npus))
        chosen = None if npus is None else self.npus
        self.layers = [
            LayerPaths(index_layer(topology, layer, chosen)) for layer in layer_order(topology, use_mesh)
        ]
        for layer in (paths.layer for paths in self.layers):
            if len(layer.split):
                npu, plane = (int(n) for n in layer.split[0])
                where = f"netlayer {layer.netlayer}, plane {layer.planes[plane]} of npu{self.npus[npu]}"
                raise TopologyError(
                    where, "two switches", "a card has one switch per plane; number them apart"
                )

    def find(
        self,
        src: IntArray,
        dst: IntArray,
        policy: Policy = "spray",
        *,
        seed: int = 0,
        key: IntArray | None = None,
    ) -> Routes:
        """Find the routes of flows.

        Args:
          src: [F] NPU each flow leaves.
          dst: [F] NPU each flow goes to.
          policy: "spray", "flow-hash" or "pinned".
          seed: of the flow hash.
          key: [F] non-negative, tells flows of one pair apart in the hash; all 0 when absent.

        Raises:
          TopologyError: unknown policy, an NPU out of range or not chosen, or no path for a pair.
        """
        if policy not in POLICIES:
            raise TopologyError("policy", policy, f"must be one of {', '.join(POLICIES)}")
        src, dst = self._locate(src, "src"), self._locate(dst, "dst")
        if len(src) != len(dst):
            raise TopologyError("number of dst", len(dst), f"must equal the number of src, {len(src)}")
        flows_of, netlayer = self._assign(src, dst)
        blocks: list[Entries] = []
        for paths, all_flows in zip(self.layers, flows_of, strict=True):
            num_blocks = max(1, -(-len(all_flows) * paths.num_choices // _FLOWS_TIMES_CHOICES))
            for flows in np.array_split(all_flows, num_blocks):
                if policy == "spray":
                    blocks += paths.spray(flows, src[flows], dst[flows])
                    continue
                ends = self.npus[src], self.npus[dst]
                choose = pinned_chooser(ends[1]) if policy == "pinned" else hash_chooser(seed, *ends, key)
                blocks += paths.single(flows, src[flows], dst[flows], choose)
        return _routes(len(src), blocks, netlayer)

    def _locate(self, npus: IntArray, field: str) -> Int64:
        npus = np.asarray(npus)
        bad = np.flatnonzero((npus < 0) | (npus >= self.topology.num_npus))
        if not len(bad):
            bad = np.flatnonzero(self.position[npus] < 0)
        if len(bad):
            raise TopologyError(f"{field}[{bad[0]}]", int(npus[bad[0]]), "must be one of the router's NPUs")
        return np.asarray(self.position[npus], np.int64)

    def _assign(self, src: Int64, dst: Int64) -> tuple[list[Int64], npt.NDArray[np.int16]]:
        """Give each flow the first netlayer that joins its pair."""
        netlayer = np.full(len(src), -1, np.int16)
        pending = np.flatnonzero(src != dst)
        flows_of = []
        for paths in self.layers:
            joined = paths.joins(src[pending], dst[pending])
            flows_of.append(pending[joined])
            netlayer[pending[joined]] = paths.layer.netlayer
            pending = pending[~joined]
        if len(pending):
            raise self.no_path(int(src[pending[0]]), int(dst[pending[0]]))
        return flows_of, netlayer

    def no_path(self, src: int, dst: int) -> TopologyError:
        """Make the error for a pair (positions among the chosen NPUs) that no netlayer joins."""
        layers = ", ".join(str(paths.layer.netlayer) for paths in self.layers)
        rule = f"netlayers {layers} have no path of at most two switch tiers between them"
        return TopologyError("route", f"npu{self.npus[src]} -> npu{self.npus[dst]}", rule)


def find_routes(
    topology: Topology,
    src: IntArray,
    dst: IntArray,
    policy: Policy = "spray",
    *,
    seed: int = 0,
    key: IntArray | None = None,
    use_mesh: bool = False,
) -> Routes:
    """Find the routes of flows once; see `Router.find` for arguments and errors."""
    ends = np.concatenate([np.asarray(src), np.asarray(dst)])
    bad = ends[(ends < 0) | (ends >= topology.num_npus)]
    if len(bad):
        raise TopologyError("NPU of a flow", int(bad[0]), f"must be in 0..{topology.num_npus - 1}")
    router = Router(topology, np.unique(ends), use_mesh=use_mesh)
    return router.find(src, dst, policy, seed=seed, key=key)


def layer_order(topology: Topology, use_mesh: bool = False) -> list[int]:
    """List the netlayers that routes may use, the preferred one first; see the module's first rule."""
    layers = topology.netlayers()
    if not layers:
        raise TopologyError("number of links", 0, f"{topology.name} has no path between any two NPUs")
    rate = {layer: int(topology.npu_rate(layer).max()) for layer in layers}
    order = sorted((layer for layer in layers if layer != NETLAYER_SERVER), key=lambda n: (-rate[n], n))
    if NETLAYER_SERVER in layers and (use_mesh or not order):
        order.insert(0, NETLAYER_SERVER)
    return order


def _distinct(topology: Topology, npus: IntArray) -> Int64:
    chosen: Int64 = np.asarray(npus).astype(np.int64)
    bad = np.flatnonzero((chosen < 0) | (chosen >= topology.num_npus))
    if len(bad):
        rule = f"{topology.name} has NPUs 0..{topology.num_npus - 1}"
        raise TopologyError(f"npus[{bad[0]}]", int(chosen[bad[0]]), rule)
    seen = np.bincount(chosen, minlength=1)
    if seen.max() > 1:
        raise TopologyError("npus", int(seen.argmax()), "must not repeat: one rank per NPU")
    return chosen


def _routes(num_flows: int, blocks: Sequence[Entries], netlayer: npt.NDArray[np.int16]) -> Routes:
    """Join blocks of entries and order them by flow, then hop, then as they came."""
    flow = np.concatenate([np.zeros(0, np.int64), *(block.flow for block in blocks)])
    hop = np.concatenate([np.zeros(0, np.int8), *(np.broadcast_to(b.hop, b.flow.shape) for b in blocks)])
    order = np.argsort(flow * 4 + hop, kind="stable")
    link = np.concatenate([np.zeros(0, np.int32), *(block.link for block in blocks)])
    parts = np.concatenate([np.zeros(0, np.int64), *(block.parts for block in blocks)])
    return Routes(
        num_flows=num_flows,
        flow_idx=flow[order],
        link_idx=link[order].astype(np.int32),
        parts=parts[order].astype(np.int64),
        hop=hop[order].astype(np.int8),
        netlayer=netlayer,
    )
