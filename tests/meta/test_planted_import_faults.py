"""The import check catches each kind of fault, also behind aliases, and accepts what is allowed."""

import pytest

from tests.import_rules import faults_of, third_party

FAULTS = [
    ("topology.graph", "import reference", "topology must not import reference"),
    ("topology.graph", "from reference.config import EPConfig", "must not import reference.config"),
    ("topology", "def f():\n    import epsim.predict", "topology must not import epsim.predict"),
    ("reference.plan", "from topology import Topology", "reference must not import topology.Topology"),
    ("reference.plan", "import native as n", "reference must not import native"),
    ("reference.plan", "import importlib\nimportlib.import_module('epsim')", "must not import epsim"),
    ("reference.plan", "from importlib import import_module as m\nm(name)", "cannot be checked"),
    ("reference.plan", "__import__('topology')", "must not import topology"),
    ("native.jit", "from reference import plan", "native must not import reference.plan"),
    ("native.jit", "import reference.planner", "native must not import reference.planner"),
    ("native.jit", "from epsim.errors import InputError", "native must not import epsim.errors"),
    ("epsim.predict", "from tests.strategies import topks", "must not import tests.strategies"),
    ("epsim.flow", "import simpy", "simpy belongs to epsim.sim"),
    ("reference.plan", "from simpy.events import Event", "simpy belongs to epsim.sim"),
    ("epsim.predict", "import argparse", "argparse belongs to the command line"),
    ("epsim.predict", "import os\nx = os.environ['A']", "os.environ belongs to"),
    ("epsim.predict", "import os as o\ndef f():\n    return o.getenv('A')", "os.getenv belongs to"),
    ("epsim.predict", "from os import environ", "os.environ belongs to"),
    ("topology.units", "import sys\nsys.argv[1]", "sys.argv belongs to"),
    ("epsim.predict", "print('x')", "builtins.print belongs to"),
    ("epsim.predict", "show = print", "builtins.print belongs to"),
    ("epsim.cli.topo", "import pickle", "nothing is ever unpickled"),
    ("epsim.sim", "def f():\n    from pickle import loads", "nothing is ever unpickled"),
    ("reference.topk", "import numpy as np\nnp.load(p, allow_pickle=True)", "allow_pickle must be False"),
    ("reference.topk", "import numpy as np\nnp.load(p, allow_pickle=x)", "allow_pickle must be False"),
    ("epsim.cli", "eval(text)", "eval must not be used"),
    ("epsim.cli", "import builtins\nbuiltins.exec(text)", "exec must not be used"),
    ("epsim.report", "import matplotlib.pyplot as plt", "matplotlib must be imported inside"),
    ("epsim.report", "try:\n    import torch\nexcept ImportError:\n    torch = None", "torch must be"),
    ("epsim.deep_ep.ep", "import torch_npu", "torch_npu must be imported inside"),
    ("epsim.deep_ep.utils.gate", "import os\nx = os.environ['A']", "os.environ belongs to"),
    ("epsim.deep_ep_x", "import torch", "torch must be imported inside"),
    ("epsim.sweep", "class A:\n    from ray import get", "ray must be imported inside"),
    ("epsim.sweep.table", "import pyarrow.parquet as pq", "pyarrow must be imported inside"),
    ("epsim.exchange.chakra", "from google.protobuf import message", "google must be imported inside"),
    ("epsim.flow.kernels", "from numba import njit", "numba must be imported inside"),
    ("epsim.trace.html", "import selenium", "selenium must be imported inside"),
    ("epsim.simulate", "def f():\n    import simpy", "simpy belongs to epsim.sim"),
    ("epsim.schedule.work", "import simpy", "simpy belongs to epsim.sim"),
    ("topology.routes", "from epsim.errors import InputError", "topology must not import epsim.errors"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "source", "message"), FAULTS, ids=[f"{m}: {s}"[:60] for m, s, _ in FAULTS]
)
def test_a_planted_fault_is_named_once(module, source, message):
    """Each fault gives exactly one finding, with the module and the rule."""
    (fault,) = faults_of(module, source)
    assert fault.startswith(f"{module}:")
    assert message in fault


def test_relative_imports_are_resolved_before_they_are_judged():
    """`from .. import x` reaches another package only from its top, whatever the spelling."""
    assert faults_of("reference.sub", "from .files import read_loads", is_package=True) == []
    assert faults_of("reference.sub.a", "from ..config import EPConfig") == []
    assert faults_of("native.twin", "from . import jit") == []


ALLOWED = [
    ("native.jit", "from reference.config import EPConfig\nfrom reference.handle import Handle"),
    ("epsim.predict", "import topology, reference.plan\nfrom native import jit"),
    ("epsim.sim", "import simpy"),
    ("epsim.sim.clock", "from simpy.events import Event"),
    ("epsim.sweep.table", "def f():\n    import pyarrow"),
    ("epsim.cli.predict", "import os, sys, argparse\nprint(os.environ, os.getenv('A'), sys.argv)"),
    ("epsim.report", "print(1)"),
    ("epsim.deep_ep", "import torch"),
    ("epsim.deep_ep.utils.launcher", "import os\nprint(os.environ)"),
    ("epsim.deep_ep.comm.handle", "import torch.distributed as dist\nfrom torch import nn"),
    ("epsim.report", "def f():\n    import matplotlib.pyplot as plt"),
    ("epsim.sweep", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("reference.topk", "import numpy as np\nnp.load(p, allow_pickle=False)"),
    ("epsim.conform", "model.eval()\nsuite.exec()\nlogger.print()"),
    ("epsim.errors", "import os\nos.replace(a, b)"),
]


@pytest.mark.parametrize(("module", "source"), ALLOWED, ids=[f"{m}: {s}"[:60] for m, s in ALLOWED])
def test_what_is_allowed_has_no_finding(module, source):
    """A rule that also hits sound code would be switched off sooner or later."""
    assert faults_of(module, source) == []


def test_foreign_packages_are_found_wherever_they_are_imported():
    """Standard library, own packages and relative imports are not foreign; the rest is, at any depth."""
    source = (
        "import os, numpy.linalg\nfrom . import x\nfrom epsim import y\ndef f():\n    from ray import get"
    )
    assert third_party(source) == {"numpy", "ray"}
