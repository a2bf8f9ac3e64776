"""The host runtime of the device from Python: build its library, open domains, load and launch kernels.

native/runtime/capi.h is the interface. Nothing here imports torch: streams and memories are addresses.
"""

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from native.errors import NativeEnvironmentError
from native.jit import Jit
from native.settings import JitSettings
from native.sources import FOLDERS
from native.toolchain import host_toolchain

HEADERS = (
    "acl/acl.h",
    "hccl/hccl.h",
    "hccl/hccl_comm.h",
    "hccl/hccl_rank_graph.h",
    "hccl/hccl_res.h",
    "hcomm/hcomm_res.h",
)
"""What native/runtime/cann.hpp includes, below <toolkit>/include."""

LIBRARIES = ("ascendcl", "hccl", "hccl_fwk", "hcomm")
"""Which of them holds which function differs by release: those that are there are linked."""

AllGather = Callable[[bytes], Sequence[bytes]]
"""Gives what every rank gave, ordered by rank."""

_GATHER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)


class DeviceFailure(RuntimeError):
    """A call of the vendor's failed, or what it gave cannot be right."""

    def __init__(self, text: str, call: str, status: int) -> None:
        """Describe a failure; `call` is "" and `status` 0 when a rule of ours does not hold."""
        self.call, self.status = call, status
        super().__init__(text)


class Addresses(ctypes.Structure):
    """Where a domain is: addresses in device memory, and one as the host reaches it."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("window", "host_workspace", "host_workspace_on_host", "jetty_table", "peer_table")
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("comm_name", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in ("rank", "num_ranks", "num_jetties", "cpu_timeout_ms")),
        ("window_bytes", ctypes.c_uint64),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("num_bytes", ctypes.c_uint64), ("align", ctypes.c_uint64))


@dataclass(frozen=True, kw_only=True)
class DomainSpec:
    """What a buffer of a rank needs.

    Args:
      comm_name: of the HCCL communicator, as torch_npu tells it.
      rank: own rank.
      num_ranks: R, 1 to 255; even or 1 when there are more jetties than peers.
      num_jetties: vector cores that send, 1 to 64.
      window_bytes: with the workspace, a multiple of 2 MiB.
      cpu_timeout_ms: limit of the exchange of ports and of channel set-up.
    """

    comm_name: str
    rank: int
    num_ranks: int
    num_jetties: int
    window_bytes: int
    cpu_timeout_ms: int = 300_000


def find_cann(settings: JitSettings) -> Path:
    """Return the first toolkit folder whose host headers are whole.

    Raises:
      NativeEnvironmentError: there is none; the sentence names the header that each folder lacks.
    """
    missing = []
    for root in settings.toolkit_dirs:
        lacks = next((name for name in HEADERS if not (root / "include" / name).is_file()), None)
        if lacks is None:
            return root
        missing.append(f"{root} has no include/{lacks}")
    raise NativeEnvironmentError(
        f"no CANN toolkit found ({'; '.join(missing) or 'no folder given'}): set ASCEND_HOME_PATH"
    )


def build_runtime(settings: JitSettings, sources: Path = Path(__file__).parent / "runtime") -> Path:
    """Compile the runtime against an installed CANN, or find it in the cache; return the shared object.

    Args:
      settings: of the compilation.
      sources: folder of the runtime; a test of changed sources gives its own.

    Raises:
      NativeEnvironmentError: no CANN, or no host compiler.
      CompileError: this release of CANN has other interfaces.
    """
    root = find_cann(settings)
    seen = hashlib.blake2b(b"".join((root / "include" / name).read_bytes() for name in HEADERS))
    folder = root / "lib64"
    libraries = [f"-l{name}" for name in LIBRARIES if (folder / f"lib{name}.so").exists()]
    tools = host_toolchain(settings)
    tools = replace(
        tools,
        identity=f"{tools.identity}\nCANN {seen.hexdigest()}",
        include_flags=("-isystem", str(root / "include")),
        link_flags=(
            *tools.link_flags,
            "-Wl,--no-as-needed",
            f"-L{folder}",
            f"-Wl,-rpath,{folder}",
            *libraries,
        ),
    )
    names = [f"runtime/{path.name}" for path in sorted(sources.glob("*.cpp"))]
    return Jit(settings, tools, {**FOLDERS, "runtime": sources}).library(names, tag="runtime")


class Runtime:
    """A loaded library of the runtime."""

    def __init__(self, path: Path) -> None:
        """Load a shared object that `build_runtime` made.

        Raises:
          NativeEnvironmentError: it cannot be loaded; the sentence names the library or function it lacks.
        """
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeEnvironmentError(f"the host runtime cannot be loaded: {error}") from error
        for name in ("epsim_domain_open", "epsim_kernel_load"):
            getattr(self.library, name).restype = ctypes.c_void_p
        for name in ("epsim_runtime_error", "epsim_runtime_failed_call"):
            getattr(self.library, name).restype = ctypes.c_char_p
        self.library.epsim_runtime_failed_status.restype = ctypes.c_int64

    def failure(self) -> DeviceFailure:
        """Return what the last failed call of this thread was."""
        text, call = self.library.epsim_runtime_error(), self.library.epsim_runtime_failed_call()
        return DeviceFailure(text.decode(), call.decode(), self.library.epsim_runtime_failed_status())

    def limits(self) -> tuple[int, int]:
        """Return the number of vector cores, and the bytes of unified buffer of each that the device reports.

        Raises:
          DeviceFailure: the device does not answer.
        """
        cores, ub_bytes = ctypes.c_int64(), ctypes.c_int64()
        if self.library.epsim_device_limits(ctypes.byref(cores), ctypes.byref(ub_bytes)):
            raise self.failure()
        return cores.value, ub_bytes.value


class Kernel:
    """A device binary; it stays loaded until the process ends."""

    def __init__(self, runtime: Runtime, path: Path, name: str) -> None:
        """Load the kernel `name` of a binary.

        Raises:
          DeviceFailure: the device refuses it.
        """
        self._runtime = runtime
        self._handle = runtime.library.epsim_kernel_load(str(path).encode(), name.encode())
        if not self._handle:
            raise runtime.failure()

    def launch(
        self, *, num_blocks: int, stream: int, ub_bytes: int, timeout_secs: int, arguments: Sequence[Any]
    ) -> None:
        """Queue a launch.

        Args:
          num_blocks: vector cores.
          stream: address of an ACL stream.
          ub_bytes: dynamic unified buffer.
          timeout_secs: of the device's scheduler; 0 = its default.
          arguments: ctypes values, packed in order.

        Raises:
          DeviceFailure: the device refuses it.
        """
        listed = (_Argument * len(arguments))(
            *(
                _Argument(ctypes.addressof(value), ctypes.sizeof(value), ctypes.alignment(value))
                for value in arguments
            )
        )
        status = self._runtime.library.epsim_kernel_launch(
            ctypes.c_void_p(self._handle),
            ctypes.c_uint32(num_blocks),
            ctypes.c_void_p(stream),
            ctypes.c_uint32(ub_bytes),
            ctypes.c_uint32(timeout_secs),
            listed,
            ctypes.c_uint32(len(arguments)),
        )
        if status:
            raise self._runtime.failure()


class Domain:
    """Window, host workspace, jetties and tables of one buffer of a rank."""

    def __init__(self, runtime: Runtime, spec: DomainSpec, all_gather: AllGather) -> None:
        """Open it together with all other ranks.

        Raises:
          DeviceFailure: a call failed or a peer is missing; everything acquired so far is released.
        """
        self._runtime = runtime
        self._error: BaseException | None = None

        def gather(_: object, own: int, all_ranks: int, num_bytes: int) -> int:
            try:
                joined = b"".join(all_gather(ctypes.string_at(own, num_bytes)))
                if len(joined) != spec.num_ranks * num_bytes:
                    raise ValueError(f"{len(joined)} bytes of {spec.num_ranks} ranks")
                ctypes.memmove(all_ranks, joined, len(joined))
            except BaseException as error:
                self._error = error  # nothing may get through C; it is raised below
                return 1
            return 0

        fields: Mapping[str, Any] = {**vars(spec), "comm_name": spec.comm_name.encode()}
        self._handle: int | None = runtime.library.epsim_domain_open(
            ctypes.byref(_Spec(**fields)), _GATHER(gather), None
        )
        if not self._handle:
            raise runtime.failure() from self._error
        self.addresses = Addresses()
        runtime.library.epsim_domain_addresses(ctypes.c_void_p(self._handle), ctypes.byref(self.addresses))

    def host_words(self, offset: int, num_words: int) -> npt.NDArray[np.uint32]:
        """Return a view of [num_words] uint32 of the host workspace, which the device may write to."""
        address = self.addresses.host_workspace_on_host + offset
        return np.ctypeslib.as_array((ctypes.c_uint32 * num_words).from_address(address))

    def wait_words(self, offset: int, num_words: int, *, mask: int, value: int, timeout_ms: int) -> None:
        """Wait until word & mask == value for words of the host workspace; other threads go on.

        Raises:
          DeviceFailure: they are not there in time.
        """
        status = self._runtime.library.epsim_domain_wait_words(
            ctypes.c_void_p(self._handle),
            ctypes.c_uint64(offset),
            *(ctypes.c_uint32(number) for number in (num_words, mask, value, timeout_ms)),
        )
        if status:
            raise self._runtime.failure()

    def close(self) -> None:
        """Release everything once; closing again does nothing.

        Raises:
          DeviceFailure: a release failed, all others were done.
        """
        handle, self._handle = self._handle, None
        if handle and self._runtime.library.epsim_domain_close(ctypes.c_void_p(handle)):
            raise self._runtime.failure()
