"""What is connected to what: units, links, builders, routes and the vendor's topology files."""

from topology.bound import LinkBound, link_bound, routes_bound
from topology.checks import RULES, Finding, check
from topology.clos import clos
from topology.edit import with_link_rate, without_links
from topology.errors import TopologyError
from topology.graph import (
    NETLAYER_SCALEOUT,
    NETLAYER_SERVER,
    NETLAYER_SUPERNODE,
    Link,
    LinkClass,
    Topology,
)
from topology.leafspine import leaf_spine
from topology.mesh import mesh
from topology.routes import POLICIES, Policy, Router, Routes, find_routes
from topology.source import Source, SourceKind
from topology.summary import LayerSummary, NetworkSummary, summarize
from topology.ubl128 import ubl128

__all__ = [
    "NETLAYER_SCALEOUT",
    "NETLAYER_SERVER",
    "NETLAYER_SUPERNODE",
    "POLICIES",
    "RULES",
    "Finding",
    "LayerSummary",
    "Link",
    "LinkBound",
    "LinkClass",
    "NetworkSummary",
    "Policy",
    "Router",
    "Routes",
    "Source",
    "SourceKind",
    "Topology",
    "TopologyError",
    "check",
    "clos",
    "find_routes",
    "leaf_spine",
    "link_bound",
    "mesh",
    "routes_bound",
    "summarize",
    "ubl128",
    "with_link_rate",
    "without_links",
]
