"""What tests of the host runtime share: a fake CANN to compile against and link with, and what it saw."""

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from native.runtime import Domain, DomainSpec, Runtime, build_runtime
from native.settings import JitSettings

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake_cann"
WINDOW_BYTES = 4 << 20
NUMBERS = itertools.count()
HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="epsim-fake-cann-")


@functools.cache
def toolkit() -> Path:
    """Return a folder that looks like an installed CANN: headers, and one library for all names."""
    root = Path(_folder().name) / "cann"
    (root / "lib64").mkdir(parents=True)
    (root / "include").symlink_to(FAKE)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(ROOT / "native")]
    library = root / "lib64" / "libascendcl.so"
    command = ["g++", *flags, "-I", str(FAKE), *map(str, sorted(FAKE.glob("*.cpp"))), "-o", str(library)]
    subprocess.run(command, check=True)
    return root


def settings(**changes) -> JitSettings:
    """Return settings with the fake toolkit, all warnings on, and a cache that goes with the tests."""
    return JitSettings(
        **{
            "cache_dirs": (Path(_folder().name) / "cache",),
            "cxx_flags": ("-Wall", "-Wextra", "-Werror"),
            "toolkit_dirs": (toolkit(),),
            "tool_env": (("PATH", os.environ["PATH"]),),
            **changes,
        }
    )


class Bench:
    """A fresh runtime, whose pool of windows is empty, and the fake library behind it."""

    def __init__(self, folder: Path, sources: Path | None = None) -> None:
        """Build, unless it was built before, and load a copy; `sources` is for changed ones."""
        built = build_runtime(settings(), *([sources] if sources else []))
        self.runtime = Runtime(Path(shutil.copy(built, folder / f"runtime{next(NUMBERS)}.so")))
        self.fake = ctypes.CDLL(str(toolkit() / "lib64" / "libascendcl.so"))
        for name in ("fake_log", "fake_broken_rules"):
            getattr(self.fake, name).restype = ctypes.c_char_p
        self.fake.fake_num_held.restype = ctypes.c_int64
        self.fake.fake_reset()

    def option(self, name: str, value: int) -> None:
        self.fake.fake_option(name.encode(), ctypes.c_int64(value))

    def fail(self, call: str, nth: int = 1, status: int = 77) -> None:
        self.fake.fake_fail(call.encode(), ctypes.c_int64(nth), ctypes.c_int64(status))

    def log(self) -> list[str]:
        return self.fake.fake_log().decode().splitlines()

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.log()]

    def broken_rules(self) -> list[str]:
        return self.fake.fake_broken_rules().decode().splitlines()

    def num_held(self) -> int:
        return self.fake.fake_num_held()

    def open(self, *, gather=None, **changes) -> Domain:
        """Open a domain of rank 0 of 2 with 2 jetties; the peers' ports are 40001 and on."""
        spec = {"comm_name": "group", "rank": 0, "num_ranks": 2, "num_jetties": 2}
        spec |= {"window_bytes": WINDOW_BYTES, "cpu_timeout_ms": 20_000, **changes}
        return Domain(self.runtime, DomainSpec(**spec), gather or ports_of(spec["num_ranks"]))


def ports_of(num_ranks: int):
    """Return an all-gather in which rank r listens on 40000 + r."""
    return lambda own: [(40000 + r).to_bytes(len(own), "little") for r in range(num_ranks)]


def words_at(address: int, count: int) -> list[int]:
    """Return 64-bit words of memory."""
    return list((ctypes.c_uint64 * count).from_address(address))
