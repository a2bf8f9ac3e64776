"""Import direction, what the wheel ships, and what an import costs: properties of the whole project."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.import_rules import OURS, faults_of, third_party

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_module_keeps_the_import_rules(path):
    """No module imports against the direction of design.md, prints, or unpickles."""
    assert faults_of(module_of(path), path.read_text(), is_package=path.name == "__init__.py") == []


IMPORTED_AS = {"protobuf": "google"}
"""Packages whose import name is another one."""


def requirement_names(requirements: list[str]) -> set[str]:
    """Import names of requirement lines: "tomli-w>=1.1" is tomli_w."""
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_").lower() for line in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_every_foreign_import_is_declared():
    """A package that a clean machine lacks would only fail there, so all are dependencies or extras."""
    extras = PROJECT["project"]["optional-dependencies"]
    shipped = [line for name, lines in extras.items() if name not in ("test", "dev") for line in lines]
    declared = requirement_names(PROJECT["project"]["dependencies"] + shipped)
    for path in SOURCES:
        assert third_party(path.read_text()) <= declared, module_of(path)


def test_every_dependency_is_used():
    """A dependency that nothing imports is only weight and risk."""
    used = set().union(*(third_party(path.read_text()) for path in SOURCES))
    assert requirement_names(PROJECT["project"]["dependencies"]) <= used


def test_the_package_list_names_every_folder_with_code():
    """The wheel ships the four packages and their subpackages, all of them and nothing else."""
    on_disk = {module_of(path) for path in SOURCES if path.name == "__init__.py"}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(on_disk)
    assert {name.partition(".")[0] for name in on_disk} == OURS


def test_no_source_lies_outside_a_package():
    """A folder without `__init__` would be left out of the wheel silently."""
    assert [module_of(path) for path in SOURCES if not (path.parent / "__init__.py").exists()] == []


def test_every_data_file_is_package_data():
    """Each file beside the code matches a package-data pattern, so that it reaches the user."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    shipped = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
    }
    found = {path for package in OURS for path in (ROOT / package).rglob("*") if path.is_file()}
    data = {p for p in found if p.suffix not in (".py", ".pyc") and "__pycache__" not in p.parts}
    assert data == shipped
    assert {path.parent.name for path in data if path.name == "py.typed"} == OURS


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after it ran `code`."""
    program = f"{code}\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


OPTIONAL = {"matplotlib", "torch", "torch_npu", "ray", "numba", "pyarrow", "google", "selenium"}
HEAVY = OPTIONAL | {"simpy", "rich", "cyclopts", "safetensors"}


def test_import_epsim_loads_nothing_that_is_heavy_or_optional():
    """`import epsim` costs little: no plotting, no torch, no command line."""
    assert loaded_by("import epsim") & (HEAVY | {"native"}) == set()


def test_a_prediction_loads_neither_the_command_line_nor_an_extra():
    """The library call works where only the numbers are wanted."""
    code = "from epsim.predict import predict; predict(ep=8)"
    assert loaded_by(code) & (HEAVY - {"safetensors"}) == set()


def test_a_simulation_loads_only_its_own_level():
    """Fluid needs no events, events no fluid kernels, and neither draws."""
    code = "from epsim.simulate import simulate; simulate(level='{}', ep=2, tokens=4{})"
    plain = ", flow=__import__('epsim.simulate', fromlist=['x']).FlowOptions(engine='numpy')"
    light = HEAVY - {"safetensors"}
    assert loaded_by(code.format("flow", plain)) & light == set()
    assert loaded_by(code.format("events", "")) & light == {"simpy"}


@pytest.mark.parametrize("first", ["epsim.predict", "epsim.validate", "epsim.cli", "epsim"])
def test_epsim_predict_is_the_function_whatever_was_imported_first(first):
    """The submodule of the same name must not take its place."""
    assert "numpy" in loaded_by(f"import {first}; import epsim; assert epsim.predict(ep=8)[0].ep_size == 8")


def test_every_public_name_can_be_imported():
    """Names are loaded late, so a wrong home would only show when a user needs it."""
    import epsim

    for name in epsim.__all__:
        assert getattr(epsim, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'predcit'"):
        _ = epsim.predcit


HELPS = ("", "predict", "simulate", "workload", "whatif", "sweep", "exchange", "validate", "topo")


@pytest.mark.parametrize("words", ["--version", *(f"{command} --help".strip() for command in HELPS)])
def test_help_is_printed_without_numpy(words):
    """Help answers at once: no arrays, no numbers, no plotting."""
    code = f"from epsim.cli import run\nassert run({words.split()}) == 0"
    assert loaded_by(code) & (OPTIONAL | {"numpy", "msgspec", "simpy", "safetensors"}) == set()
