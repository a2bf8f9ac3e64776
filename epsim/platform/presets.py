"""Names that a user may give: model shapes, and systems as network, hardware and software together."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from epsim.errors import InputError
from reference.edition import EditionName
from topology.source import Source


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What expert parallelism needs to know of a model.

    Args:
      name: as the user gives it.
      title: for people.
      hidden: elements of a token.
      num_experts: routed experts.
      num_topk: experts that a token chooses.
      source: where the shape came from.
    """

    name: str
    title: str
    hidden: int
    num_experts: int
    num_topk: int
    source: Source


MODEL_ALIASES: Mapping[str, str] = MappingProxyType(
    {"v3": "deepseek-v3", "r1": "deepseek-v3", "v4-flash": "deepseek-v4-flash", "v4-pro": "deepseek-v4-pro"}
    | {"v4.1-flash": "deepseek-v4.1-flash"}
)


@lru_cache(maxsize=1)
def model_shapes() -> Mapping[str, ModelShape]:
    """Return all known model shapes by name."""
    table = tomllib.loads(resources.files("epsim.profiles").joinpath("models.toml").read_text())
    shapes = {
        name: ModelShape(
            name=name,
            title=raw["title"],
            hidden=raw["hidden"],
            num_experts=raw["num_experts"],
            num_topk=raw["num_topk"],
            source=Source(raw["confidence"], raw["source"]),
        )
        for name, raw in table.items()
    }
    return MappingProxyType(shapes)


def model_shape(name: str) -> ModelShape:
    """Find a model shape by name or alias.

    Raises:
      InputError: unknown name.
    """
    shapes = model_shapes()
    found = shapes.get(MODEL_ALIASES.get(name, name))
    if found is None:
        raise InputError("model", name, f"must be one of {', '.join((*shapes, *MODEL_ALIASES))}")
    return found


@dataclass(frozen=True, kw_only=True)
class SystemProfiles:
    """The profiles that go with a system by default.

    Args:
      hardware: profile of its card.
      software: profile of its library.
      edition: whose byte layout.
      title: for people.
    """

    hardware: str
    software: str
    edition: EditionName
    title: str


PROFILE_SYSTEMS: Mapping[str, SystemProfiles] = MappingProxyType(
    {
        "cm384": SystemProfiles(
            hardware="910c",
            software="per-expert",
            edition="ascend",
            title="CloudMatrix384, low-latency kernels that send one row per expert",
        ),
        "a3": SystemProfiles(hardware="a3", software="ideal", edition="ascend", title="Atlas A3 server"),
        "h800": SystemProfiles(
            hardware="h800-cx7", software="ideal", edition="nvidia-v2", title="H800 servers, one CX7 per GPU"
        ),
        "sm90": SystemProfiles(
            hardware="sm90-cx7", software="ideal", edition="nvidia-v2", title="SM90 servers, one CX7 per GPU"
        ),
        "sm100": SystemProfiles(
            hardware="sm100-nvlink", software="ideal", edition="nvidia-v2", title="one SM100 NVLink server"
        ),
    }
)
"""Systems known by profile alone, for validation; everything else is a graph with the defaults below."""

ASCEND_950 = SystemProfiles(
    hardware="950dt",
    software="deepep-ascend-2026-09-poc",
    edition="ascend",
    title="Ascend 950DT with DeepEP-Ascend",
)
