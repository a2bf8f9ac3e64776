"""Backends by the name that the command line knows."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from epsim.errors import InputError
from native.backends.protocol import Backend
from native.settings import JitSettings


def _reference(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _reference_nvidia(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.reference import ReferenceBackend

    return ReferenceBackend(edition="nvidia-v2.5", name="reference-nvidia")


def _gloo(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.libraries import gloo_backend

    return gloo_backend()


def _gloo_nvidia(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.libraries import gloo_backend

    return gloo_backend("nvidia-v2.5")


def _twin(settings: JitSettings) -> Backend:
    from native.backends.twin import twin_backend

    return twin_backend(settings)


def _npu(settings: JitSettings) -> Backend:
    from native.backends.npu import npu_backend

    return npu_backend(settings)


def _npu_library(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.libraries import npu_backend

    return npu_backend()


def _cuda(settings: JitSettings) -> Backend:
    del settings
    from epsim.conform.backends.libraries import cuda_backend

    return cuda_backend()


BACKENDS: Mapping[str, Callable[[JitSettings], Backend]] = MappingProxyType(
    {
        "twin": _twin,
        "gloo": _gloo,
        "npu": _npu,
        "npu-deep-ep": _npu_library,
        "cuda": _cuda,
        "gloo-nvidia": _gloo_nvidia,
        "reference": _reference,
        "reference-nvidia": _reference_nvidia,
    }
)


def find_backend(name: str, settings: JitSettings) -> Backend:
    """Return the backend of a name, ready to open sessions.

    Args:
      name: one of `BACKENDS`.
      settings: how the kernels of twin and npu are compiled; the others need none.

    Raises:
      InputError: no such backend.
      MissingExtraError, NativeEnvironmentError: what it needs is not there, in one sentence.
      CompileError: kernels do not compile here.
    """
    if name not in BACKENDS:
        raise InputError("backend", name, f"must be one of {', '.join(BACKENDS)}")
    return BACKENDS[name](settings)
