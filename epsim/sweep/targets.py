"""What a sweep evaluates: a function, the parameters it may vary, and the columns its answer fills.

A point is a mapping from parameter to one value. Beside the function's own keywords there are
`set.NAME`, one number of a profile, and `topology.KEY`, one key of the system's cluster file.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from epsim.errors import InputError
from epsim.model.closedform import TERMS, Operation
from epsim.model.options import TokenCounts, TwoLayer
from epsim.platform.presets import PROFILE_SYSTEMS, model_shape
from epsim.platform.profile import (
    Hardware,
    Software,
    hardware_profile,
    parameter_names,
    read_entry,
    software_profile,
)
from epsim.platform.quantity import given
from epsim.simulation import Level, check_level
from reference.config import ExpertMap
from reference.memory.sizes import Dtype
from topology import Policy, Topology
from topology.cluster import KINDS, from_toml
from topology.units import parse_size

if TYPE_CHECKING:
    from epsim.prediction import Predictions

Kind = Literal["int", "float", "text"]
Values = Mapping[str, Any]

PARAMETERS: Mapping[str, Any] = {
    "system": str, "model": str, "ep": int, "tokens": int | tuple[int, ...], "token_counts": TokenCounts,
    "operations": Operation, "dtype": Dtype, "hidden": int, "num_experts": int, "num_topk": int,
    "expert_alignment": int, "expert_map": ExpertMap, "routing": str, "seed": int,
    "draws": int | Literal["auto"], "masked_ratio": float, "ranks_per_supernode": int,
    "two_layer": TwoLayer, "hardware": str, "software": str, "num_buffer_bytes": int | str,
    "workload": str, "port_rate": str, "npus": tuple[int, ...],
}  # fmt: skip
"""Type of one value of each keyword of `epsim.predict`; `settings` are `set.NAME`."""

FILES = ("system", "routing", "hardware", "software", "workload")
"""Parameters that may name a file, whose content then is part of what the sweep was run on."""

BY_WORKLOAD = frozenset(PARAMETERS) - {
    "system", "operations", "draws", "ranks_per_supernode", "two_layer", "hardware", "software",
    "num_buffer_bytes", "workload", "port_rate", "npus",
}  # fmt: skip
"""What a manifest says itself, so that it cannot be given beside one."""

NO_AXIS = frozenset({"name", "changes", "links", "link_classes"})
"""Keys of a cluster file that are no single number."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A function that can be swept.

    Args:
      parameters: keyword -> type of one value.
      defaults: keywords of which the function takes several at once -> what it takes by itself; a point
        has one of each.
      columns: of the answer, name -> kind, in order.
      call: from keywords to the answer's cells, in the order of `columns`.
    """

    parameters: Mapping[str, Any]
    defaults: Mapping[str, Sequence[Any]]
    columns: Mapping[str, Kind]
    call: Callable[[dict[str, Any]], list[Any]]


_FIGURES = (
    "gb_per_s_mean", "gb_per_s_min", "gb_per_s_max", "time_us", "wire_gb_per_s", "payload_limit_gb_per_s",
    "payload_share", "scaleout_gb_per_s", "rows_per_rank", "peak_over_mean", "epilogue_us",
)  # fmt: skip
_WORDS = ("bound", "binding", "confidence")


def _predict(arguments: dict[str, Any]) -> list[Any]:
    from epsim.predict import predict

    return _prediction_cells(predict(**arguments))


def _prediction_cells(result: "Predictions") -> list[Any]:
    """Return the cells of the only prediction, in the order of the columns."""
    (item,) = result
    figures = [getattr(item, name) for name in _FIGURES]
    return [
        *(None if value is None else float(value) for value in figures),
        *(float(item.terms_us[name]) for name in TERMS),
        *(getattr(item, name) for name in _WORDS),
        item.error_band,
        item.buffer_bytes,
        # Not an empty text: in CSV that and no value are the same.
        "; ".join(f"{limit.severity}: {limit.id}" for limit in item.limits) or None,
        item.fingerprint,
    ]


_PREDICTION_COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys((*_FIGURES, *(f"{name}_us" for name in TERMS)), "float"),
    **dict.fromkeys(_WORDS, "text"),
    "error_band": "float",
    "buffer_bytes": "int",
    "limits": "text",
    "fingerprint": "text",
}

SIMULATION_PARAMETERS: Mapping[str, Any] = {
    **{name: PARAMETERS[name] for name in (
        "system", "model", "ep", "tokens", "token_counts", "operations", "dtype", "hidden", "num_experts",
        "num_topk", "routing", "seed", "masked_ratio", "hardware", "software", "workload", "port_rate",
        "npus",
    )},
    "level": Level, "policy": Policy, "with_slope": bool, "grain": str,
    "mode": Literal["auto", "exact", "bounded"], "fault": str,
}  # fmt: skip
"""Type of one value of each keyword of `epsim.simulate`, its options' grain and mode, and one fault."""

_SIMULATED = (
    "gb_per_s_mean", "gb_per_s_min", "gb_per_s_max", "time_us", "bound_us", "predicted_us", "epilogue_us",
    "wire_gb_per_s", "ratio_to_bound",
)  # fmt: skip


def _simulate(arguments: dict[str, Any]) -> list[Any]:
    from epsim.schedule.grain import Grain
    from epsim.sim.run import EventOptions
    from epsim.simulate import FlowOptions, simulate

    rest = dict(arguments)
    cut, mode, fault = rest.pop("grain", "chunk"), rest.pop("mode", "auto"), rest.pop("fault", None)
    check_level(rest.get("level", "events"), cut, mode)
    grain = Grain.parse(cut)
    (item,) = simulate(
        **rest,
        faults=() if fault is None else (fault,),
        flow=FlowOptions(mode=mode),
        events=EventOptions(grain=grain),
    )
    figures = [float(getattr(item, name)) for name in _SIMULATED]
    return [*figures, item.binding, item.method, item.num_events, item.fingerprint]


_SIMULATION_COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(_SIMULATED, "float"),
    "binding": "text",
    "method": "text",
    "num_events": "int",
    "fingerprint": "text",
}

TARGETS: Mapping[str, Target] = {
    "predict": Target(
        parameters=PARAMETERS,
        defaults={"ep": (8, 16, 32, 64, 128), "operations": ("dispatch", "combine")},
        columns=_PREDICTION_COLUMNS,
        call=_predict,
    ),
    "simulate": Target(
        parameters=SIMULATION_PARAMETERS,
        defaults={"ep": (8,), "operations": ("dispatch", "combine")},
        columns=_SIMULATION_COLUMNS,
        call=_simulate,
    ),
}
"""By name."""


def find_target(name: str) -> Target:
    """Return the target of a name; raises InputError for an unknown one."""
    if name not in TARGETS:
        raise InputError("target", name, f"must be one of {', '.join(TARGETS)}")
    return TARGETS[name]


def topology_keys() -> tuple[str, ...]:
    """Return the keys that some kind of cluster file has and a sweep can vary."""
    keys = (key for kind in KINDS.values() for key in kind.__struct_fields__)
    return tuple(key for key in dict.fromkeys(keys) if key not in NO_AXIS)


def check_name(target: Target, name: str) -> None:
    """Check that the target has a parameter.

    Raises:
      InputError: it has none of this name; with the nearest one.
    """
    known = [
        *target.parameters,
        *(f"set.{key}" for kind in (Hardware, Software) for key in parameter_names(kind)),
        *(f"topology.{key}" for key in topology_keys()),
    ]
    if name in known:
        return
    # hbm_rate alone is near to set.hbm_rate only by its tail.
    tails = {key.rpartition(".")[2]: key for key in reversed(known)}
    close = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name, tails, n=1)
    near = f"did you mean {tails.get(close[0], close[0])}?" if close else f"known: {', '.join(known[:23])}"
    raise InputError("axis", name, f"is no parameter of the target; {near}")


def check_value(target: Target, name: str, value: Any) -> None:  # noqa: ANN401
    """Refuse what no point could have: a wrong type or word, an unknown model or profile, a wrong unit.

    Raises:
      InputError: names the parameter and the value.
    """
    if name.startswith("set."):
        key = name.removeprefix("set.")
        kind = Hardware if key in parameter_names(Hardware) else Software
        read_entry(name, key, value, kind, given("sweep"))
        return
    if name.startswith("topology."):
        if isinstance(value, list | dict):
            raise InputError(name, value, "must be a number, a text or true or false")
        return
    _convert(name, value, target.parameters[name])
    if name == "model":
        model_shape(value)
    elif name == "hardware":
        hardware_profile(value)
    elif name == "software":
        software_profile(value)
    elif name == "num_buffer_bytes" and isinstance(value, str):
        parse_size(value, name)


def evaluate(target: Target, values: Values) -> list[Any]:
    """Evaluate one point.

    Returns:
      cells in the order of the target's columns: float, int, str or None.

    Raises:
      InputError, ConfigError, TopologyError: the point is impossible.
    """
    return target.call(_arguments(target, values))


def _arguments(target: Target, values: Values) -> dict[str, Any]:
    """Turn the values of a point into keywords of the function."""
    found = {
        name: _convert(name, value, target.parameters[name])
        for name, value in values.items()
        if "." not in name
    }
    for name in target.defaults:
        if name in found:
            found[name] = (found[name],)
    settings = {name.removeprefix("set."): value for name, value in values.items() if name.startswith("set.")}
    keys = {
        name.removeprefix("topology."): value
        for name, value in values.items()
        if name.startswith("topology.")
    }
    if settings:
        found["settings"] = settings
    found["system"] = _system(found.get("system", "ubl128"), keys, has_rate="port_rate" in found)
    if isinstance(found.get("num_buffer_bytes"), str):
        found["num_buffer_bytes"] = parse_size(found["num_buffer_bytes"], "num_buffer_bytes")
    if "workload" in found:
        from reference.routing.manifest import read_manifest

        found["workload"] = read_manifest(found["workload"])
    return found


def _convert(name: str, value: Any, kind: Any) -> Any:  # noqa: ANN401
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at")[0]
        raise InputError(name, value, f"cannot be one value here; {text[0].lower()}{text[1:]}") from None


def _system(name: str, keys: dict[str, Any], *, has_rate: bool) -> str | Topology:
    """Return the system, as a graph where a graph can be kept for the next point."""
    from epsim.platform.systems import PRESETS

    if keys:
        return _changed_topology(name, json.dumps(keys, sort_keys=True), _stamp(name))
    is_graph = name.endswith(".toml") or name.partition(":")[0] in PRESETS
    return _topology(name, _stamp(name)) if is_graph and not has_rate else name


def _stamp(name: str) -> tuple[int, ...]:
    """Return what tells a file from its next version, so that a graph is not kept for too long."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=4)
def _topology(name: str, stamp: tuple[int, ...]) -> Topology:
    from epsim.platform.systems import load_system

    return load_system(name).topology


@lru_cache(maxsize=4)
def _changed_topology(name: str, keys: str, stamp: tuple[int, ...]) -> Topology:
    """Build a system with some keys of its cluster file replaced."""
    import tomli_w

    config = _cluster(name, stamp)
    if config is None:
        first = next(iter(json.loads(keys)))
        raise InputError("system", name, f"has no cluster file, so topology.{first} cannot be changed")
    return from_toml(tomli_w.dumps(config | json.loads(keys))).build()


@lru_cache(maxsize=4)
def _cluster(name: str, stamp: tuple[int, ...]) -> dict[str, Any] | None:
    from epsim.platform.systems import load_system

    if name in PROFILE_SYSTEMS:
        return None
    config = load_system(name).config
    return None if config is None else dict(msgspec.to_builtins(config))
