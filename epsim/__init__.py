"""Simulator-backed reference and testbed for expert-parallel communication on Ascend 950.

`epsim.predict(...)` answers what dispatch and combine will give on a cluster, and what limits them.
Names are loaded when they are first used, so that `import epsim` stays light.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epsim.errors import InputError
    from epsim.platform.systems import load_system
    from epsim.predict import predict
    from epsim.prediction import Prediction, Predictions
    from epsim.simulate import simulate
    from epsim.simulation import Simulation
    from epsim.whatif import whatif
    from reference.config import EPConfig, ExpertMap
    from reference.errors import ConfigError
    from reference.routing.files import read_routing, write_routing
    from reference.routing.generate import generate_topk
    from reference.topk import TopK
    from topology import Topology, TopologyError

__version__ = "0.1.0"

_HOME = {
    "ConfigError": "reference.errors",
    "EPConfig": "reference.config",
    "ExpertMap": "reference.config",
    "InputError": "epsim.errors",
    "Prediction": "epsim.prediction",
    "Predictions": "epsim.prediction",
    "Simulation": "epsim.simulation",
    "TopK": "reference.topk",
    "Topology": "topology",
    "TopologyError": "topology",
    "generate_topk": "reference.routing.generate",
    "load_system": "epsim.platform.systems",
    "predict": "epsim.predict",
    "read_routing": "reference.routing.files",
    "simulate": "epsim.simulate",
    "whatif": "epsim.whatif",
    "write_routing": "reference.routing.files",
}

__all__ = [
    "ConfigError",
    "EPConfig",
    "ExpertMap",
    "InputError",
    "Prediction",
    "Predictions",
    "Simulation",
    "TopK",
    "Topology",
    "TopologyError",
    "__version__",
    "generate_topk",
    "load_system",
    "predict",
    "read_routing",
    "simulate",
    "whatif",
    "write_routing",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (a module's attribute may be anything)
    """Import a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'epsim' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name the public names too, before they are loaded."""
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """Keeps `epsim.predict` the function, also where the submodule was imported first."""

    def __setattr__(self, name: str, value: object) -> None:
        # Python sets a submodule as an attribute of its package once it is loaded.
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
