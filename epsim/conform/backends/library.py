"""A library with the interface of `deep_ep`, as its worker processes need to know it."""

from dataclasses import dataclass
from typing import Any

from reference.edition import EditionName


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library on one kind of device; plain values only, so that it can be sent to a process.

    Args:
      name: of the backend, as the command line writes it.
      module: to import.
      buffer: class of the buffer in it.
      edition: whose forms its tensors have.
      device: torch's name of the device, "cpu" for host memory; rank r uses number r.
      process_group: torch's name of the communication library for set-up.
      extension: module that gives torch the device; "" = none.
      options: further arguments of the constructor.
      takes_arrival_seed: whether the constructor has `arrival_seed` (`epsim.deep_ep`).
    """

    name: str
    module: str
    buffer: str
    edition: EditionName
    device: str
    process_group: str
    extension: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    takes_arrival_seed: bool = False
