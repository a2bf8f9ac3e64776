"""What a prediction runs on: network, profiles and edition of a named system."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath

from epsim.errors import InputError
from epsim.platform.network import Network, network_of_profile, network_of_topology
from epsim.platform.presets import ASCEND_950, PROFILE_SYSTEMS, SystemProfiles
from epsim.platform.profile import Hardware, Software, hardware_profile, override, software_profile
from reference.edition import EditionName
from topology import Topology


@dataclass(frozen=True, kw_only=True)
class Platform:
    """Network, profiles and edition that a prediction runs on.

    Args:
      name: what the user asked for.
      network: rates per tier.
      hardware: card.
      software: library.
      edition: byte layout.
      settings: single parameters that the user replaced.
    """

    name: str
    network: Network
    hardware: Hardware
    software: Software
    edition: EditionName
    settings: Mapping[str, str | float]


def make_platform(
    system: str | PathLike[str] | Topology = "ubl128",
    *,
    hardware: str | Hardware | None = None,
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
    port_rate: str | None = None,
) -> Platform:
    """Find network, profiles and edition of a system.

    Args:
      system: preset ("ubl128", "clos:1024", "sm100"), cluster file, HCCL file, or a Topology.
      hardware: profile name, file or object; None = the system's own.
      software: profile name, file or object; None = the system's own.
      settings: single parameters, name -> value with unit.
      port_rate: rate of one port, for HCCL files, which carry none.

    Raises:
      InputError: an unknown name or a value that breaks a rule.
      TopologyError: a topology file breaks a rule.
    """
    if not isinstance(system, str | PathLike | Topology):
        raise InputError("system", system, "must be a name, a file or a Topology")
    system = fspath(system) if isinstance(system, PathLike) else system
    known = PROFILE_SYSTEMS.get(system) if isinstance(system, str) else None
    defaults: SystemProfiles = known or ASCEND_950
    hardware = defaults.hardware if hardware is None else hardware
    software = defaults.software if software is None else software
    hard = hardware_profile(hardware) if isinstance(hardware, str) else hardware
    soft = software_profile(software) if isinstance(software, str) else software
    if not isinstance(settings, Mapping | None):
        raise InputError("settings", settings, "must be a mapping of parameter names to values")
    hard, soft = override(hard, soft, settings or {})
    _check_settings(settings or {}, hard, has_graph=not known)
    if isinstance(system, Topology):
        name, network = system.name, network_of_topology(system)
    elif known:
        name, network = system, network_of_profile(hard)
    else:
        name, network = system, _load_network(system, port_rate)
    return Platform(
        name=name,
        network=network,
        hardware=hard,
        software=soft,
        edition=defaults.edition,
        settings=settings or {},
    )


GRAPH_SAYS = ("scaleup_rate", "scaleup_domain", "scaleout_rate")


def _check_settings(settings: Mapping[str, str | float], hardware: Hardware, has_graph: bool) -> None:
    """Refuse a setting that would change nothing.

    Raises:
      InputError: a graph's links say it, or the packet form does.
    """
    for name in settings:
        if has_graph and name in GRAPH_SAYS:
            rule = "the system is a graph, whose links say it: change port_rate or its like in a cluster file"
            raise InputError(name, settings[name], rule)
        if name == "payload_efficiency" and hardware.packet_form.value != "none":
            rule = f"packet form {hardware.packet_form.value} gives it; set packet_form=none first"
            raise InputError(name, settings[name], rule)


def _load_network(system: str, port_rate: str | None) -> Network:
    """Load a graph by name; an unknown name hears of the systems without a graph, too."""
    from epsim.platform.systems import PRESETS, load_system
    from topology.hccl_graph import FabricRates

    if not system.endswith((".toml", ".json")) and system.partition(":")[0] not in PRESETS:
        known = ", ".join((*PRESETS, *PROFILE_SYSTEMS))
        raise InputError("system", system, f"must be one of {known}, or a file that ends in .toml or .json")
    rates = None if port_rate is None else FabricRates(port_rate=port_rate)
    loaded = load_system(system, rates=rates)
    notes: list[str] = []
    if loaded.kind != "preset":
        # A user's own network may be damaged; presets are not, and need no search.
        notes += [f"topology {f.severity}: {f.message}" for f in loaded.findings(1) if f.severity == "error"]
    if system.endswith(".json") and rates is None:
        notes.append("HCCL files carry no rates: 400 Gbps per port is assumed (--port-rate says otherwise)")
    return network_of_topology(loaded.topology, tuple(notes))
