"""Settings of run-time compilation, read from the environment by `epsim.cli` alone."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from native.errors import NativeInputError

PREFIX = "EPSIM_JIT_"
TOOLKITS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
"""Default install folders of CANN, tried after ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME."""

TOOL_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
"""All that a compiler may see of the environment: the rest could change its output under the same key."""


@dataclass(frozen=True, kw_only=True)
class JitSettings:
    """How native code is compiled and where it is kept.

    Args:
      cache_dirs: roots of caches; all are searched in order, the first one takes what is new.
      cxx: host compiler, a name or path; None = g++, else clang++.
      cxx_flags: more flags for the host compiler and linker.
      is_debug: compile with debug information.
      num_jobs: compilers at once; None = one per available core.
      toolkit_dirs: where a CANN toolkit may be, in order.
      tool_env: the environment that compilers get, as (name, value).
    """

    cache_dirs: tuple[Path, ...]
    cxx: str | None = None
    cxx_flags: tuple[str, ...] = ()
    is_debug: bool = False
    num_jobs: int | None = None
    toolkit_dirs: tuple[Path, ...] = tuple(map(Path, TOOLKITS))
    tool_env: tuple[tuple[str, str], ...] = (("PATH", os.defpath),)

    def __post_init__(self) -> None:
        """Refuse what no build could use.

        Raises:
          NativeInputError: no root, no job, or a flag that brings in files which the key would not see.
        """
        if not self.cache_dirs:
            raise NativeInputError("cache_dirs", self.cache_dirs, "must name at least one folder")
        if self.num_jobs is not None and self.num_jobs < 1:
            raise NativeInputError("num_jobs", self.num_jobs, "must be positive")
        for flag in self.cxx_flags:
            if not flag.startswith("-") or flag.startswith(
                ("-I", "-i", "-B", "-o", "--include", "--sysroot")
            ):
                raise NativeInputError(
                    "cxx_flags", flag, "must not bring in files: their changes would go unseen"
                )


def settings_from(env: Mapping[str, str]) -> JitSettings:
    """Return the settings that an environment asks for.

    EPSIM_JIT_CACHE_DIR (folders separated by ":"; default $XDG_CACHE_HOME/epsim or ~/.cache/epsim),
    EPSIM_JIT_CXX, EPSIM_JIT_CXXFLAGS (as a shell splits them), EPSIM_JIT_DEBUG (0 or 1), EPSIM_JIT_JOBS
    (a positive number).

    Raises:
      NativeInputError: a value that cannot be, or an EPSIM_JIT_ name that is none of these.
    """
    known = {f"{PREFIX}{name}" for name in ("CACHE_DIR", "CXX", "CXXFLAGS", "DEBUG", "JOBS")}
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in known:
            raise NativeInputError(name, env[name], f"no such setting; there are {', '.join(sorted(known))}")
    jobs, debug = env.get(f"{PREFIX}JOBS", ""), env.get(f"{PREFIX}DEBUG", "") or "0"
    if jobs and not (jobs.isascii() and jobs.isdigit() and int(jobs)):
        raise NativeInputError(f"{PREFIX}JOBS", jobs, "must be a positive number")
    if debug not in ("0", "1"):
        raise NativeInputError(f"{PREFIX}DEBUG", debug, "must be 0 or 1")
    try:
        flags = tuple(shlex.split(env.get(f"{PREFIX}CXXFLAGS", "")))
    except ValueError:
        raise NativeInputError(f"{PREFIX}CXXFLAGS", env[f"{PREFIX}CXXFLAGS"], "has an open quote") from None
    toolkits = [env[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if env.get(name)]
    return JitSettings(
        cache_dirs=_cache_dirs(env),
        cxx=env.get(f"{PREFIX}CXX") or None,
        cxx_flags=flags,
        is_debug=debug == "1",
        num_jobs=int(jobs) if jobs else None,
        toolkit_dirs=tuple(map(Path, [*toolkits, *TOOLKITS])),
        tool_env=tuple((name, env[name]) for name in TOOL_VARIABLES if name in env)
        or (("PATH", os.defpath),),
    )


def _cache_dirs(env: Mapping[str, str]) -> tuple[Path, ...]:
    named = [part for part in env.get(f"{PREFIX}CACHE_DIR", "").split(":") if part]
    if named:
        return tuple(Path(part).absolute() for part in named)
    if env.get("XDG_CACHE_HOME"):
        return (Path(env["XDG_CACHE_HOME"]) / "epsim",)
    if env.get("HOME"):
        return (Path(env["HOME"]) / ".cache" / "epsim",)
    raise NativeInputError(f"{PREFIX}CACHE_DIR", "", "must be set where there is no HOME")
