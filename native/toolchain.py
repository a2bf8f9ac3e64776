"""Two toolchains behind one record: a host C++ compiler for the twin, bisheng and ld.lld for the device."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from native.errors import CompileError, NativeEnvironmentError, NativeInputError
from native.settings import JitSettings

HOST_COMPILERS = ("g++", "clang++")
"""Tried in this order when no compiler is named."""

NPU_ARCH = 3510
"""Of the Ascend 950 (spec/ascend.md 5): a binary for another one faults at launch or computes wrong data."""

MAX_SAID = 300
"""Characters of a tool's complaint that fit into one sentence."""

_FULL = "No space left on device"


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """How to turn sources into one binary.

    Args:
      compiler: command that makes an object of one source.
      linker: command that makes a binary of objects.
      identity: versions of both, as they print them; part of every key.
      compile_flags: effective flags; part of every key.
      link_flags: as above.
      include_flags: directories of the vendor; not part of a key, their version is in `identity`.
      suffixes: of a source, an object and a binary.
      has_device_kernel: whether a binary must hold exactly one kernel of the device.
      env: the whole environment of the tools, by name.
    """

    compiler: str
    linker: str
    identity: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    include_flags: tuple[str, ...] = ()
    suffixes: tuple[str, str, str]
    has_device_kernel: bool = False
    env: tuple[tuple[str, str], ...]

    def compile_command(self, source: str, output: Path) -> list[str]:
        """Return the words that compile `source`, whose folder is the working directory."""
        return [self.compiler, *self.compile_flags, "-I.", *self.include_flags, source, "-o", str(output)]

    def link_command(self, objects: Sequence[Path], output: Path) -> list[str]:
        """Return the words that link objects into a binary."""
        return [self.linker, *self.link_flags, *map(str, objects), "-o", str(output)]

    def run(self, what: str, command: Sequence[str], folder: Path, scratch: Path) -> str:
        """Run a command and return what it printed; other threads go on meanwhile.

        Args:
          what: what is being built, for errors.
          command: its words.
          folder: working directory.
          scratch: existing directory for the tool's temporary files.

        Raises:
          CompileError: it failed.
          NativeEnvironmentError: it cannot be started, or the disk is full.
        """
        returncode, output = _run(command, (*self.env, ("TMPDIR", str(scratch))), folder)
        if returncode and _FULL in output:
            raise NativeEnvironmentError(f"{what} cannot be compiled: the disk of {folder} is full")
        if returncode:
            raise CompileError(what, command, returncode, output)
        return output

    def with_flags(self, *flags: str) -> "Toolchain":
        """Return the same toolchain with more flags for compiling and linking, as "-fsanitize=address"."""
        return replace(
            self, compile_flags=(*self.compile_flags, *flags), link_flags=(*self.link_flags, *flags)
        )


def host_toolchain(settings: JitSettings) -> Toolchain:
    """Find the host C++ compiler.

    Raises:
      NativeEnvironmentError: there is none, or it does not run.
      NativeInputError: it runs, but not with the flags of the settings.
    """
    env = (*settings.tool_env, ("LC_ALL", "C"))
    names = (settings.cxx,) if settings.cxx else HOST_COMPILERS
    path = dict(settings.tool_env).get("PATH")
    found = next((command for name in names if (command := shutil.which(name, path=path))), None)
    if found is None:
        raise NativeEnvironmentError(
            f"no C++ compiler found ({' or '.join(names)}): install g++ 12 or name one in EPSIM_JIT_CXX"
        )
    debug = ("-g",) if settings.is_debug else ()
    common = ("-fPIC", *debug, *settings.cxx_flags)
    # The folder of a compile is a fresh one each time: its name must not reach the binary.
    names_kept = ("-ffile-prefix-map=./=",)
    link_flags = ("-shared", *common)
    told = _linker_version((found, *link_flags, "-Wl,--version"), settings.cxx_flags, env)
    # GCC's driver of the linker puts its own version and a command before or after that of the linker.
    linker = [line for line in told.splitlines() if not line.startswith(("collect2", "/"))][:1]
    described = re.findall(
        r"^(?:Target: |.*\bversion \d|Selected GCC).*$", _version((found, "-v"), env), re.MULTILINE
    )
    return Toolchain(
        compiler=found,
        linker=found,
        identity="\n".join([*described, *linker]),
        compile_flags=("-std=c++20", "-O2", *names_kept, *common, "-c"),
        link_flags=link_flags,
        suffixes=(".cpp", ".o", ".so"),
        env=env,
    )


def device_toolchain(settings: JitSettings, npu_arch: int = NPU_ARCH) -> Toolchain:
    """Find bisheng, ld.lld and the headers of a CANN toolkit; flags as DeepJIT has them (spec/ascend.md 5).

    Raises:
      NativeEnvironmentError: no toolkit is complete, or its tools do not run.
    """
    env = (*settings.tool_env, ("LC_ALL", "C"))
    root = next((folder for folder in settings.toolkit_dirs if not _missing(folder)), None)
    if root is None:
        looked = "; ".join(f"{folder} has no {_missing(folder)}" for folder in settings.toolkit_dirs)
        raise NativeEnvironmentError(
            f"no CANN toolkit found ({looked or 'no folder given'}): set ASCEND_HOME_PATH"
        )
    bisheng, lld = str(root / "bin" / "bisheng"), str(root / "bin" / "ld.lld")
    debug = ("-g", "-gdwarf-5", "-gembed-source", "-gline-tables-only") if settings.is_debug else ()
    return Toolchain(
        compiler=bisheng,
        linker=lld,
        identity="\n".join(_version((tool, "--version"), env) for tool in (bisheng, lld)),
        compile_flags=(
            "-O2", f"--npu-arch=dav-{npu_arch}", *debug, "--cce-aicore-only",
            "-mllvm", "-enable-hiipu-vf-loop-unroll", "-mllvm", "-cce-aicore-dcpreload-args=false",
        ),
        link_flags=("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file"),
        include_flags=tuple(f"-I{folder}" for folder in _headers(root)),
        suffixes=(".asc", ".rel.o", ".o"),
        has_device_kernel=True,
        env=env,
    )  # fmt: skip


def _headers(root: Path) -> list[Path]:
    # The folder is named after the machine that the toolkit runs on.
    return sorted(root.glob("*-linux/asc/include/adv_api"))


def _missing(root: Path) -> str:
    for tool in ("bin/bisheng", "bin/ld.lld"):
        if shutil.which(str(root / tool)) is None:
            return tool
    return "" if _headers(root) else "<machine>-linux/asc/include/adv_api"


def _run(
    command: Sequence[str], env: tuple[tuple[str, str], ...], folder: Path | None = None
) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(env), check=False, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise NativeEnvironmentError(f"{command[0]} cannot be started: {error.strerror}") from error
    return done.returncode, done.stdout


def _linker_version(command: Sequence[str], flags: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    """Return what the linker says of itself; tell flags that the compiler refuses from one that is broken."""
    try:
        return _version(command, env)
    except NativeEnvironmentError as error:
        if not flags:
            raise
        _version([word for word in command if word not in flags], env)
        said = str(error).partition(" does not tell its version: ")[2]
        rule = f"{command[0]} does not run with these flags: {said}"
        raise NativeInputError("EPSIM_JIT_CXXFLAGS", " ".join(flags), rule) from None


def _version(command: Sequence[str], env: tuple[tuple[str, str], ...]) -> str:
    returncode, output = _run(command, env)
    if returncode or not output.strip():
        said = " ".join(output.split())[:MAX_SAID] or "it prints nothing"
        raise NativeEnvironmentError(f"{command[0]} does not tell its version: {said}")
    return output
