"""The CPU twin from Python: build its library, make machines, run kernels on them (native/twin/capi.h)."""

import ctypes
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from native.errors import NativeEnvironmentError, NativeInputError, TwinViolation
from native.jit import Jit
from native.settings import JitSettings
from native.sources import FOLDERS
from native.toolchain import host_toolchain

_HANDLE, _TEXT, _WORD, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32
_UINT = ctypes.c_uint32
_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "machine_create": (_HANDLE, (_TEXT,)),
    "machine_destroy": (None, (_HANDLE,)),
    "alloc": (_WORD, (_HANDLE, _INT, _WORD, _TEXT, _UINT)),
    "write": (_INT, (_HANDLE, _WORD, ctypes.c_void_p, _WORD)),
    "read": (_INT, (_HANDLE, _WORD, ctypes.c_void_p, _WORD)),
    "forget": (_INT, (_HANDLE, _WORD, _WORD)),
    "init_jetties": (_INT, (_HANDLE,)),
    "find": (_WORD, (_HANDLE, _INT, _TEXT)),
    "enqueue": (_INT, (_HANDLE, _INT, _TEXT, _WORD, _INT)),
    "enqueue_wait_words": (_INT, (_HANDLE, _INT, _WORD, _UINT, _UINT, _UINT)),
    "run": (_INT, (_HANDLE,)),
    "report": (_TEXT, (_HANDLE,)),
    "trace": (_INT, (_HANDLE, _TEXT)),
    "stats": (_TEXT, (_HANDLE,)),
    "kernels": (_TEXT, ()),
    "last_error": (_TEXT, ()),
}
NUM_BUNDLES = 4
"""Sources that the machine is compiled as: one by one, headers would cost more than all the rest."""
_RANGES = {_INT: (-(2**31), 2**31), _UINT: (0, 2**32), _WORD: (0, 2**64)}


def twin_sources(folders: Mapping[str, Path] = FOLDERS) -> list[str]:
    """Return the names of all sources of the twin and of the kernels, sorted."""
    return [
        f"{prefix}/{path.relative_to(folders[prefix]).as_posix()}"
        for prefix in ("kernels", "twin")
        for path in sorted(folders[prefix].rglob("*.cpp"))
    ]


def _bundles(names: Sequence[str]) -> dict[str, str]:
    """Return generated sources that include those of the twin, a quarter each."""
    return {
        f"twin_{first}.cpp": "".join(f"#include <{name}>\n" for name in names[first::NUM_BUNDLES])
        for first in range(NUM_BUNDLES)
    }


def build_twin(
    settings: JitSettings, folders: Mapping[str, Path] = FOLDERS, flags: tuple[str, ...] = ()
) -> Path:
    """Compile the twin with all kernels, or find it in the cache; return the path of the shared object.

    Args:
      settings: of the compilation.
      folders: where the sources are; a test of changed kernels gives its own.
      flags: more for the compiler, as "-Werror".

    Raises:
      NativeEnvironmentError, CompileError, NativeInputError: as `Jit.library`.
    """
    chosen = replace(settings, cxx_flags=(*settings.cxx_flags, *flags))
    tools = host_toolchain(chosen).with_flags("-DEPSIM_TWIN")
    names = twin_sources(folders)
    kernels = [name for name in names if name.startswith("kernels/")]
    machine = _bundles([name for name in names if name.startswith("twin/")])
    return Jit(settings, tools, folders).library([*kernels, *machine], tag="twin", generated=machine)


class Twin:
    """A loaded library of the twin."""

    def __init__(self, path: Path) -> None:
        """Load a shared object that `build_twin` made.

        Raises:
          NativeEnvironmentError: it cannot be loaded, or lacks a function.
        """
        try:
            self._library = ctypes.CDLL(str(path))
            self._functions = {name: getattr(self._library, f"epsim_{name}") for name in _SIGNATURES}
        except (OSError, AttributeError) as error:
            raise NativeEnvironmentError(f"the twin cannot be loaded: {error}") from error
        for name, (restype, argtypes) in _SIGNATURES.items():
            self._functions[name].restype, self._functions[name].argtypes = restype, argtypes

    def kernels(self) -> list[str]:
        """Return the names of the kernels it holds, sorted."""
        return sorted(json.loads(self.call("kernels")))

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 (a C function of any signature)
        """Call `epsim_<name>` after checking that every number fits: ctypes would cut it off silently.

        Raises:
          NativeInputError: an argument does not fit its type.
        """
        for kind, value in zip(_SIGNATURES[name][1], arguments, strict=True):
            if kind is _TEXT and b"\0" in value:
                raise NativeInputError(f"argument of {name}", value, "must not hold a zero byte")
            if kind in _RANGES and not _RANGES[kind][0] <= value < _RANGES[kind][1]:
                raise NativeInputError(f"argument of {name}", value, f"must fit {kind.__name__}")
        return self._functions[name](*arguments)

    def last_error(self) -> str:
        """Return what the last misuse in this thread was."""
        text: bytes = self.call("last_error")
        return text.decode()


class TwinMachine:
    """Ranks with AIVs, memory and jetties, and one stream of work per rank. Used by one thread at a time.

    A machine is a context manager; one that is dropped frees its memory too.
    """

    def __init__(self, twin: Twin, params: Mapping[str, int | str]) -> None:
        """Make a machine.

        Args:
          twin: loaded library.
          params: "ranks", "aivs", "seed", "strategy"... as native/twin/capi.h lists them.

        Raises:
          NativeInputError: a parameter that the machine does not have, or a value that it refuses.
        """
        self._twin = twin
        handle = twin.call("machine_create", json.dumps(dict(params)).encode())
        if not handle:
            raise NativeInputError("twin parameters", dict(params), twin.last_error())
        self._handle: int | None = handle
        self._free: Callable[[], object] = weakref.finalize(self, twin.call, "machine_destroy", handle)

    def __enter__(self) -> Self:
        """Return the machine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the machine."""
        self.close()

    def close(self) -> None:
        """Free the machine; any later use is refused. Closing twice is fine."""
        self._handle = None
        self._free()

    def alloc(self, rank: int, num_bytes: int, name: str, *, is_zeroed: bool = False) -> int:
        """Allocate global memory of a rank and return its address, a multiple of 512.

        Args:
          rank: whose.
          num_bytes: how much.
          name: for messages and `find`; "window" is the symmetric window.
          is_zeroed: zeros that count as written; otherwise reading before writing is a violation.

        Raises:
          NativeInputError: what the machine refuses.
        """
        address: int = self._call("alloc", rank, num_bytes, name.encode(), int(is_zeroed))
        return address or self._refused("alloc", name)

    def find(self, rank: int, name: str) -> int:
        """Return the address of an allocation.

        Raises:
          NativeInputError: the rank has none of that name.
        """
        address: int = self._call("find", rank, name.encode())
        return address or self._refused("find", name, f"rank {rank} has no allocation of that name")

    def write(self, address: int, values: np.ndarray) -> None:
        """Copy an array, in C order, to global memory.

        Raises:
          NativeInputError: the range is not inside one allocation.
        """
        content = np.ascontiguousarray(values)
        self._do("write", hex(address), address, content.ctypes.data, content.nbytes)

    def read(self, address: int, shape: int | tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return a copy of global memory as an array of that shape and dtype.

        Raises:
          NativeInputError: the range is not inside one allocation.
        """
        content = np.empty(shape, dtype)
        self._do("read", hex(address), address, content.ctypes.data, content.nbytes)
        return content

    def forget(self, address: int, num_bytes: int) -> None:
        """Make memory uninitialised again: reading it before a write is a violation.

        Raises:
          NativeInputError: the range is not inside one allocation.
        """
        self._do("forget", hex(address), address, num_bytes)

    def init_jetties(self) -> None:
        """Make all jetties, and the allocations "jetty_info" and "peer_info" of every rank.

        Raises:
          NativeInputError: a rank has no allocation "window".
        """
        self._do("init_jetties", None)

    def enqueue(self, rank: int, kernel: str, args_address: int, num_blocks: int) -> None:
        """Append a launch to the stream of a rank.

        Raises:
          NativeInputError: no such kernel or rank, or a number of blocks that the rank has no AIVs for.
        """
        self._do("enqueue", kernel, rank, kernel.encode(), args_address, num_blocks)

    def enqueue_wait_words(self, rank: int, address: int, num_words: int, mask: int, value: int) -> None:
        """Append a host step that waits until `word & mask == value` for all 32-bit words from an address.

        Raises:
          NativeInputError: what the machine refuses.
        """
        self._do("enqueue_wait_words", hex(address), rank, address, num_words, mask, value)

    def run(self) -> None:
        """Run all streams to their ends; other Python threads go on meanwhile.

        Raises:
          TwinViolation: a kernel broke a rule; the machine can then only be asked and closed.
          NativeInputError: misuse.
        """
        result = self._call("run")
        if result == 1:
            raise TwinViolation(self.report() or {})
        if result:
            self._refused("run", None)

    def report(self) -> dict[str, Any] | None:
        """Return the violation of the last run, None when there was none."""
        found: dict[str, Any] | None = json.loads(self._call("report"))
        return found

    def stats(self) -> dict[str, Any]:
        """Return counts of the run: steps, operations, switches, and the hash of its schedule."""
        found: dict[str, Any] = json.loads(self._call("stats"))
        return found

    def trace(self, path: Path) -> None:
        """Write the trace of operations, one JSON text per line; the machine must have "trace": 1.

        Raises:
          NativeInputError: there is no trace, or the file cannot be written.
        """
        self._do("trace", str(path), str(path).encode())

    def _call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 (a C function of any signature)
        if self._handle is None:
            raise NativeInputError("twin machine", "closed", f"must be open for {name}")
        return self._twin.call(name, self._handle, *arguments)

    def _do(self, name: str, what: object, *arguments: Any) -> None:  # noqa: ANN401 (as above)
        if self._call(name, *arguments):
            self._refused(name, what)

    def _refused(self, name: str, what: object, rule: str = "") -> int:
        raise NativeInputError(f"argument of {name}", what, rule or self._twin.last_error())
