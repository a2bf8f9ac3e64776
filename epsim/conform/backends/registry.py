"""Backends by the name that the command line knows."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from epsim.errors import InputError, MissingExtraError
from native.backends.protocol import Backend


def _reference() -> Backend:
    from epsim.conform.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _reference_nvidia() -> Backend:
    from epsim.conform.backends.reference import ReferenceBackend

    return ReferenceBackend(edition="nvidia-v2.5", name="reference-nvidia")


def _gloo() -> Backend:
    from epsim.conform.backends.libraries import gloo_backend

    return gloo_backend()


def _gloo_nvidia() -> Backend:
    from epsim.conform.backends.libraries import gloo_backend

    return gloo_backend("nvidia-v2.5")


def _twin() -> Backend:
    try:
        module = import_module("native.backends.twin")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the twin is not part of this installation ({error})") from None
    backend: Backend = module.TwinBackend()
    return backend


def _npu() -> Backend:
    from epsim.conform.backends.libraries import npu_backend

    return npu_backend()


def _cuda() -> Backend:
    from epsim.conform.backends.libraries import cuda_backend

    return cuda_backend()


BACKENDS: Mapping[str, Callable[[], Backend]] = MappingProxyType(
    {
        "twin": _twin,
        "gloo": _gloo,
        "npu": _npu,
        "cuda": _cuda,
        "gloo-nvidia": _gloo_nvidia,
        "reference": _reference,
        "reference-nvidia": _reference_nvidia,
    }
)


def find_backend(name: str) -> Backend:
    """Return the backend of a name, ready to open sessions.

    Raises:
      InputError: no such backend.
      MissingExtraError: what it needs is not installed, in one sentence.
    """
    if name not in BACKENDS:
        raise InputError("backend", name, f"must be one of {', '.join(BACKENDS)}")
    return BACKENDS[name]()
