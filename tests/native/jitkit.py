"""What the tests of run-time compilation share: folders of sources, and compilers that count their starts."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

from native.jit import Jit
from native.settings import JitSettings
from native.toolchain import Toolchain, host_toolchain

ROOT = Path(__file__).parents[2]
STRICT = ("-Wall", "-Wextra", "-Werror")
"""Flags of every build of the twin in tests: equal flags share objects."""

REAL = shutil.which("g++", path=os.defpath) or "g++"


def put(folder: Path, files: dict[str, str]) -> dict[str, Path]:
    """Write files, as {"kernels/a.hpp": text}, and return the folders that a Jit takes."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return {prefix: folder / prefix for prefix in ("epsim_native", "kernels", "twin")}


def script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def wrapper(path: Path, before: str = "", real: str = REAL) -> Path:
    """Write a compiler that appends a line to `<path>.log` for every start that is no question of version."""
    return script(
        path,
        f'case " $* " in *" -v "*|*--version*) exec {real} "$@";; esac\n'
        f'echo "$*" >> {path}.log\n{before}\nexec {real} "$@"',
    )


def starts(path: Path) -> list[str]:
    """Return the arguments of each start of a wrapper."""
    log = Path(f"{path}.log")
    return log.read_text().splitlines() if log.exists() else []


def settings(tmp_path: Path, **changes) -> JitSettings:
    """Return settings with one root, `<tmp_path>/root`."""
    return JitSettings(**{"cache_dirs": (tmp_path / "root",), **changes})


def jit(tmp_path: Path, folders: dict[str, Path] | None = None, **changes) -> Jit:
    """Return a Jit of the host compiler, or of the one named by `cxx`."""
    chosen = settings(tmp_path, **changes)
    return Jit(chosen, host_toolchain(chosen), folders or put(tmp_path, {}))


def with_identity(tools: Toolchain, identity: str) -> Toolchain:
    """Return a toolchain that claims other versions."""
    from dataclasses import replace

    return replace(tools, identity=identity)


def answer(binary: Path) -> int:
    """Return what a shared object answers."""
    return ctypes.CDLL(str(binary)).answer()


def left_in(root: Path) -> tuple[list[str], list[str]]:
    """Return the names in cache and staging of a root."""
    return tuple(sorted(p.name for p in (root / part).glob("*")) for part in ("cache", "staging"))


COMPILE = """
import sys
from pathlib import Path
from tests.native.jitkit import jit
print(jit(Path(sys.argv[1]), cxx=sys.argv[2]).kernel('extern "C" int answer() { return 42; }', tag="answer"))
"""


def compile_elsewhere(tmp_path: Path, cxx: Path) -> subprocess.Popen:
    """Start a process that compiles the answer 42 and prints the path."""
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(tmp_path), str(cxx)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
