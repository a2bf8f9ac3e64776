"""Hypothesis strategies of the whole suite: small first, odd sizes preferred.

One block per package; each block imports only its own package.
"""

# --- reference -------------------------------------------------------------------------------------
import numpy as np
from hypothesis import strategies as st

from reference.config import EPConfig, ExpertMap
from reference.topk import TopK

SMALL_SIZES = (1, 2, 3, 5, 7)
"""Odd sizes expose stride and rounding mistakes that powers of two hide."""


@st.composite
def ep_configs(draw, *, mapped=None):
    """Draw groups of at most 7 ranks; with mapped=True experts sit anywhere, with False by the rule."""
    ep_size = draw(st.sampled_from(SMALL_SIZES))
    num_experts = ep_size * draw(st.integers(1, 4))
    expert_map = None
    if draw(st.booleans()) if mapped is None else mapped:
        ranks = st.lists(st.integers(0, ep_size - 1), min_size=num_experts, max_size=num_experts)
        expert_map = ExpertMap(expert_ranks=tuple(draw(ranks)))
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=draw(st.integers(1, min(num_experts, 6))),
        hidden=128,
        num_max_tokens_per_rank=5,
        expert_map=expert_map,
    )


@st.composite
def topks(draw, config):
    """Draw valid routings of a config: uneven token counts with zeros, masks in any column, no repeats."""
    ranks = []
    for _ in range(config.ep_size):
        tokens = []
        for _ in range(draw(st.integers(0, config.num_max_tokens_per_rank))):
            row = draw(st.permutations(range(config.num_experts)))[: config.num_topk]
            mask = draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)))
            tokens.append([-1 if hidden else e for e, hidden in zip(row, mask, strict=True)])
        ranks.append(np.array(tokens, dtype=np.int64).reshape(len(tokens), config.num_topk))
    return TopK(num_experts=config.num_experts, topk_idx=tuple(ranks))


@st.composite
def routed_configs(draw, *, mapped=None):
    """Draw a config and a routing of it."""
    config = draw(ep_configs(mapped=mapped))
    return config, draw(topks(config))


# --- end of reference ------------------------------------------------------------------------------


# --- topology --------------------------------------------------------------------------------------
from topology import clos, leaf_spine, mesh, ubl128, with_link_rate, without_links  # noqa: E402
from topology.source import Source  # noqa: E402


@st.composite
def healthy_topologies(draw):
    """Draw a small topology from each builder, odd sizes and parallel links included."""
    kind = draw(st.sampled_from(["ubl128", "leaf-spine", "clos", "mesh"]))
    if kind == "ubl128":
        return ubl128(
            draw(st.sampled_from(SMALL_SIZES)),
            planes=draw(st.integers(1, 3)),
            ports_per_plane=draw(st.integers(1, 2)),
            server_mesh=draw(st.booleans()),
            server_size=3,
            radix=14,
        )
    if kind == "leaf-spine":
        leaves = draw(st.integers(1, 3))
        return leaf_spine(
            leaves * draw(st.integers(1, 3)),
            leaves=leaves,
            spines=draw(st.integers(1, 3)),
            links_per_pair=draw(st.integers(1, 2)),
            uplink_rate=draw(st.sampled_from([None, "30GB/s"])),
        )
    if kind == "clos":
        supernode_size = draw(st.sampled_from([2, 3]))
        return clos(
            supernode_size * draw(st.integers(1, 4)),
            supernode_size=supernode_size,
            planes=draw(st.integers(1, 2)),
            scaleout_planes=draw(st.integers(1, 2)),
            scaleout_radix=6,
            oversubscription=draw(st.sampled_from([1, 2])),
            wiring=draw(st.sampled_from(["block", "rail"])),
            server_size=1,
        )
    return mesh(draw(st.integers(2, 5)))


@st.composite
def topologies(draw):
    """Draw a healthy topology and then lose and slow some of its links, each direction on its own."""
    topology = draw(healthy_topologies())
    links = st.lists(st.integers(0, topology.num_links - 1), max_size=4, unique=True)
    if topology.num_links:
        slow = draw(links)
        topology = with_link_rate(topology, np.array(slow, np.int64), 7_000_000_000, Source("given", "test"))
        topology = without_links(topology, np.array(draw(links), np.int64))
    return topology


@st.composite
def byte_matrices(draw, num_ranks):
    """Draw bytes [src, dst], diagonal included, many zeros, odd counts that planes do not divide."""
    rows = st.lists(st.sampled_from([0, 0, 1, 7, 1000, 999_983]), min_size=num_ranks, max_size=num_ranks)
    return np.array([draw(rows) for _ in range(num_ranks)], np.int64).reshape(num_ranks, num_ranks)


# --- end of topology -------------------------------------------------------------------------------
