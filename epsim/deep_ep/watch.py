"""Noticing that a tensor was written to after a call that still needs it.

Two things can tell. The bytes themselves are always right, and are kept for what is small: routing and
weights. torch's count of writes costs nothing, and serves for rows; but all views of one memory share it, and
writes through NumPy, `.data` or in inference mode do not count.
"""

from collections.abc import Mapping

import torch

from epsim.deep_ep.arrays import array_of
from epsim.deep_ep.errors import UndefinedError


def contents_of(tensor: torch.Tensor) -> bytes:
    """Return a copy of a CPU tensor's bytes in the order of its indices."""
    return bytes(array_of(tensor).tobytes())


def _num_writes(tensor: torch.Tensor) -> int | None:
    """Return torch's count of writes to a tensor's memory; an inference tensor has none."""
    return None if tensor.is_inference() else int(tensor._version)


def _shares_memory(tensor: torch.Tensor) -> bool:
    """Return whether writes beside a tensor count as writes to it."""
    return bool(tensor.untyped_storage().nbytes() > tensor.nbytes)


class Watch:
    """Tensors that a transfer reads after its call has returned.

    Args:
      rows: by name, large ones, None = absent. Noticed are writes that torch counts, and in a part of a
        larger memory only those that changed it.
      routing: by name, small ones. Every change is noticed.

    Attributes:
      tensors: all of them.
    """

    def __init__(
        self, *, rows: Mapping[str, torch.Tensor | None], routing: Mapping[str, torch.Tensor | None]
    ) -> None:
        """Note the state of each."""
        present = {name: tensor for name, tensor in rows.items() if tensor is not None}
        small = {name: tensor for name, tensor in routing.items() if tensor is not None}
        self.tensors = present | small
        self._num_writes = {name: _num_writes(tensor) for name, tensor in present.items()}
        kept = small | {name: tensor for name, tensor in present.items() if _shares_memory(tensor)}
        self._contents = {name: contents_of(tensor) for name, tensor in kept.items()}

    def _is_unchanged(self, name: str, tensor: torch.Tensor) -> bool:
        if name in self._num_writes and _num_writes(tensor) == self._num_writes[name]:
            return True
        return name in self._contents and contents_of(tensor) == self._contents[name]

    def check(self, operation: str) -> None:
        """Refuse to complete an operation whose inputs changed under it.

        Raises:
          UndefinedError: names the first tensor that was written to.
        """
        for name, tensor in self.tensors.items():
            if not self._is_unchanged(name, tensor):
                rule = f"a deferred {operation} may read it until wait(); write to it afterwards"
                raise UndefinedError(name, "written to", rule)
