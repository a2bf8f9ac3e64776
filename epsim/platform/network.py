"""What the closed form needs of a network: rates per card and tier, read off a topology or a profile."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.platform.profile import Hardware
from topology import (
    NETLAYER_SCALEOUT,
    NETLAYER_SERVER,
    NETLAYER_SUPERNODE,
    Topology,
    link_bound,
    summarize,
)
from topology.framing import FORMS, AckPolicy, efficiency
from topology.summary import LayerSummary
from topology.units import PS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class Network:
    """Rates of one card and direction, in bytes/s of the nominal line.

    Args:
      name: of the topology or the hardware profile.
      num_npus: cards that there are; None = not known.
      scaleup_bytes_per_s: all scale-up ports of a card together.
      scaleup_domain: cards that reach each other on it.
      is_mesh: whether the scale-up tier is direct links, so that a pair has only its own link.
      scaleout_bytes_per_s: scale-out rate of a card after oversubscription; 0 = none.
      latency_s: one way over the scale-up tier.
      topology: the graph behind it; None when only a profile is known.
      notes: what a reader of a prediction must know of it: defects, assumed rates.
    """

    name: str
    num_npus: int | None
    scaleup_bytes_per_s: float
    scaleup_domain: int
    is_mesh: bool
    scaleout_bytes_per_s: float
    latency_s: float
    topology: Topology | None = None
    notes: tuple[str, ...] = ()


def network_of_profile(hardware: Hardware) -> Network:
    """Return the network that a hardware profile stands for, without a graph."""
    return Network(
        name=hardware.name,
        num_npus=None,
        scaleup_bytes_per_s=hardware.scaleup_rate.value,
        scaleup_domain=int(hardware.scaleup_domain.value),
        is_mesh=False,
        scaleout_bytes_per_s=hardware.scaleout_rate.value,
        latency_s=0.0,
    )


def network_of_topology(topology: Topology, notes: tuple[str, ...] = ()) -> Network:
    """Summarise a graph.

    The slowest card sets the rate, because the exit barrier waits for it. Netlayer 1 is used where it
    exists, as DeepEP-Ascend does; a server mesh (netlayer 0) only without it.

    Args:
      topology: the graph.
      notes: see `Network`.

    Raises:
      InputError: the graph connects no cards.
    """
    summary = summarize(topology)
    layers = {layer.netlayer: layer for layer in summary.layers}
    scaleup = layers.get(NETLAYER_SUPERNODE) or layers.get(NETLAYER_SERVER)
    scaleout = layers.get(NETLAYER_SCALEOUT)
    if scaleup is None and scaleout is None:
        raise InputError("topology", topology.name, "has no link on netlayers 0, 1 or 2 between cards")
    if scaleup is None or scaleup.npu_bytes_per_s_min == 0:
        scaleup, scaleout = scaleout, None
    assert scaleup is not None
    return Network(
        name=topology.name,
        num_npus=summary.num_npus,
        scaleup_bytes_per_s=float(scaleup.npu_bytes_per_s_min),
        scaleup_domain=scaleup.domain_size,
        is_mesh=scaleup.netlayer == NETLAYER_SERVER,
        scaleout_bytes_per_s=0.0
        if scaleout is None
        else scaleout.npu_bytes_per_s_min / _worst_tier(scaleout),
        latency_s=scaleup.latency_ps_max * 1e-12,
        topology=topology,
        notes=notes,
    )


def busiest_link_s(
    network: Network, bytes_matrix: npt.NDArray[np.float64], npus: npt.NDArray[np.int64] | None = None
) -> float:
    """Return how long the busiest link of the graph needs at its nominal rate, in seconds.

    It sees what rates per card cannot: the one link of a pair in a mesh, a lost plane, a thin trunk.

    Args:
      network: without a graph the answer is 0.
      bytes_matrix: [R, R] bytes by source and destination rank.
      npus: [R] int64, the card of each rank; rank r sits on card r when absent.

    Raises:
      TopologyError: a pair that exchanges bytes is not connected.
    """
    if network.topology is None:
        return 0.0
    bound = link_bound(network.topology, np.rint(bytes_matrix).astype(np.int64), npus=npus)
    return bound.time_ps / PS_PER_SECOND


def _worst_tier(layer: LayerSummary) -> float:
    """Oversubscription that uniform traffic meets; never below 1, a card cannot use more than its port."""
    return max(1.0, *layer.oversubscription) if layer.oversubscription else 1.0


def payload_share(hardware: Hardware, form_name: str | None = None) -> float:
    """Return payload bytes per byte of nominal line rate, acknowledgements of the reverse data included.

    Args:
      hardware: supplies line efficiency, packet form, packet payload and acknowledgement policy.
      form_name: packet form instead of the profile's, as scale-out needs the long one.

    Raises:
      InputError: the packet payload does not fit the form.
    """
    form = (
        hardware.packet_form.value
        if hardware.packet_form.value == "none"
        else form_name or hardware.packet_form.value
    )
    if form == "none":
        return hardware.line_efficiency.value * hardware.payload_efficiency.value
    ack = AckPolicy(packets_per_taack=int(hardware.packets_per_taack.value))
    try:
        share = _efficiency(form, int(hardware.packet_payload.value), ack)
    except ValueError as error:
        raise InputError("packet_payload", hardware.packet_payload.text, str(error)) from None
    return hardware.line_efficiency.value * share


@lru_cache(maxsize=256)
def _efficiency(form: str, payload_bytes: int, ack: AckPolicy) -> float:
    """Remember the exact fraction of a form: a sweep or a fit asks for the same one thousands of times."""
    return float(efficiency(FORMS[form], payload_bytes, ack))
