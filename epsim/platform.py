"""What a prediction runs on: network, profiles and edition of a named system."""

from collections.abc import Mapping
from dataclasses import dataclass

from epsim.errors import InputError
from epsim.network import Network, network_of_profile, network_of_topology
from epsim.presets import ASCEND_950, PROFILE_SYSTEMS, SystemProfiles
from epsim.profile import Hardware, Software, hardware_profile, override, software_profile
from reference.sizes import Edition
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
    edition: Edition
    settings: Mapping[str, str | float]


def make_platform(
    system: str | Topology = "ubl128",
    *,
    hardware: str | Hardware | None = None,
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
) -> Platform:
    """Find network, profiles and edition of a system.

    Args:
      system: preset ("ubl128", "clos:1024", "sm100"), cluster file, HCCL file, or a Topology.
      hardware: profile name, file or object; None = the system's own.
      software: profile name, file or object; None = the system's own.
      settings: single parameters, name -> value with unit.

    Raises:
      InputError: an unknown name or a value that breaks a rule.
      TopologyError: a topology file breaks a rule.
    """
    known = PROFILE_SYSTEMS.get(system) if isinstance(system, str) else None
    defaults: SystemProfiles = known or ASCEND_950
    hardware = defaults.hardware if hardware is None else hardware
    software = defaults.software if software is None else software
    hard = hardware_profile(hardware) if isinstance(hardware, str) else hardware
    soft = software_profile(software) if isinstance(software, str) else software
    hard, soft = override(hard, soft, settings or {})
    if isinstance(system, Topology):
        name, network = system.name, network_of_topology(system)
    elif known:
        name, network = system, network_of_profile(hard)
    else:
        name, network = system, network_of_topology(_topology(system))
    return Platform(
        name=name,
        network=network,
        hardware=hard,
        software=soft,
        edition=defaults.edition,
        settings=settings or {},
    )


def _topology(system: str) -> Topology:
    """Load a graph by name; an unknown name hears of the systems without a graph, too."""
    from epsim.systems import PRESETS, load_system

    if not system.endswith((".toml", ".json")) and system.partition(":")[0] not in PRESETS:
        known = ", ".join((*PRESETS, *PROFILE_SYSTEMS))
        raise InputError("system", system, f"must be one of {known}, or a file that ends in .toml or .json")
    return load_system(system).topology
