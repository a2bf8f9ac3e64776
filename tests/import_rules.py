"""Which module may import and call what, read off the syntax tree.

`faults_of(module, source)` is the check; `tests/meta/test_planted_import_faults.py` holds sources that it
must catch. Module names are dotted; a package counts as its `__init__`.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

OURS = frozenset({"epsim", "reference", "topology", "native"})
MAY_IMPORT = {
    "topology": ("topology",),
    "reference": ("reference",),
    "native": ("native", "reference.config", "reference.handle", "reference.topk"),
    "epsim": ("epsim", "reference", "topology", "native"),
}
LATE_ONLY = frozenset(
    {"matplotlib", "torch", "torch_npu", "ray", "numba", "pyarrow", "google", "selenium", "hypothesis"}
)
"""Heavy or optional: imported inside the function that needs them, so that `import epsim` stays light."""
NEVER = frozenset({"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"})
"""They run code that a file brings along."""
FRONT_ONLY = frozenset(
    {"os.environ", "os.environb", "os.getenv", "sys.argv", "builtins.print", "builtins.input"}
)
BUILTINS = frozenset({"print", "input", "eval", "exec", "__import__"})


def may_face_user(module: str) -> bool:
    """Whether a module may read argv and the environment, and print."""
    if module == "epsim.deep_ep.utils.launcher":
        return True  # it stands in for what upstream's programs start with: init_dist and dist_print
    package, _, rest = module.partition(".")
    return package == "epsim" and (rest.split(".")[0] in ("cli", "report"))


def may_need_torch(module: str) -> bool:
    """Whether a module may import torch at its top: the drop-in for `deep_ep`."""
    return f"{module}.".startswith("epsim.deep_ep.")


def may_simulate(module: str) -> bool:
    """Whether a module may import SimPy: `epsim.sim`, and not `epsim.simulate`, which has fluid too."""
    return f"{module}.".startswith("epsim.sim.")


@dataclass
class _Reader:
    """Collects faults of one module."""

    module: str
    is_package: bool
    names: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, node: ast.AST, text: str) -> None:
        self.faults.append(f"{self.module}:{getattr(node, 'lineno', 0)}: {text}")

    def absolute(self, node: ast.ImportFrom) -> str:
        """Resolve `from ..x import y` to a dotted name."""
        if not node.level:
            return node.module or ""
        drop = node.level - (1 if self.is_package else 0)
        parts = self.module.split(".")
        base = parts[: len(parts) - drop]
        return ".".join([*base, node.module] if node.module else base)

    def dotted(self, node: ast.expr) -> str:
        """Return the full name of `a.b.c` with import aliases undone, "" for anything else."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, f"builtins.{node.id}" if node.id in BUILTINS else node.id)
        if isinstance(node, ast.Attribute):
            inner = self.dotted(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return ""

    def check_import(self, node: ast.AST, target: str, *, late: bool) -> None:
        root = target.partition(".")[0]
        package = self.module.partition(".")[0]
        if root in OURS:
            allowed = MAY_IMPORT[package]
            if not any(target == name or target.startswith(f"{name}.") for name in allowed):
                self.fault(node, f"{package} must not import {target}")
        if root in ("tests", "benchmarks"):
            self.fault(node, f"shipped code must not import {target}")
        if root in NEVER:
            self.fault(node, f"{root} must not be used: nothing is ever unpickled")
        if root == "simpy" and not may_simulate(self.module):
            self.fault(node, "simpy belongs to epsim.sim alone")
        if root in ("argparse", "getopt", "optparse") and not may_face_user(self.module):
            self.fault(node, f"{root} belongs to the command line")
        if root in LATE_ONLY and not late and not (root == "torch" and may_need_torch(self.module)):
            self.fault(node, f"{root} must be imported inside the function that needs it")

    def check_name(self, node: ast.AST, name: str) -> None:
        if name in FRONT_ONLY and not may_face_user(self.module):
            self.fault(node, f"{name} belongs to epsim.cli and epsim.report")
        if name in ("builtins.eval", "builtins.exec"):
            self.fault(node, f"{name.partition('.')[2]} must not be used")

    def check_call(self, node: ast.Call, *, late: bool) -> None:
        for keyword in node.keywords:
            is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "allow_pickle" and not is_off:
                self.fault(node, "allow_pickle must be False")
        if self.dotted(node.func) in ("importlib.import_module", "builtins.__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self.check_import(node, first.value, late=late)
            elif self.module.partition(".")[0] != "epsim":
                self.fault(node, "an import whose name is computed cannot be checked")

    def bind(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Remember what an import statement names; yield what it imports."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name
            return
        source = self.absolute(node)
        for alias in node.names:
            full = f"{source}.{alias.name}"
            self.names[alias.asname or alias.name] = full
            # `from reference import config` imports the module reference.config, or a name of reference.
            yield full if source in OURS else source

    def visit(self, node: ast.AST, *, late: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in self.bind(node):
                self.check_import(node, target, late=late)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.check_name(node, f"{self.absolute(node)}.{alias.name}")
        elif isinstance(node, ast.Name | ast.Attribute):
            self.check_name(node, self.dotted(node))
        elif isinstance(node, ast.Call):
            self.check_call(node, late=late)
        if isinstance(node, ast.If) and self.dotted(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                self.visit(child, late=True)
            for child in node.orelse:
                self.visit(child, late=late)
            return
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            self.visit(child, late=inside)


def faults_of(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return one line per broken rule, "module:line: rule".

    Args:
      module: dotted name, as "epsim.sim.flow".
      source: Python text.
      is_package: whether it is the package's `__init__`, which relative imports depend on.
    """
    reader = _Reader(module, is_package)
    reader.visit(ast.parse(source), late=False)
    return reader.faults


def third_party(source: str) -> set[str]:
    """Return the top-level names that a source imports from outside the standard library and this project."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found - OURS - set(sys.stdlib_module_names)
