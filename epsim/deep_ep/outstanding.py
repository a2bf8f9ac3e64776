"""Calls of one bucket that were made and are not waited for: their results are there before the next call.

Collectives of a buffer run one after another on the device, so a call sees what earlier ones wrote.
Source: deepep-ascend.md section 1.13.
"""

from collections.abc import Callable, Sequence
from weakref import WeakSet

from epsim.deep_ep.errors import UndefinedError
from epsim.deep_ep.regions import Part
from epsim.deep_ep.tensor_checks import Tensors


class Delivery:
    """Writes the results of one call once: at its wait, or before the next call if that comes first.

    Args:
      operation: name of the call.
      parts: its tensors in the storage.
      finish: writes the results and returns them.
    """

    def __init__(self, operation: str, parts: Sequence[Part], finish: Callable[[], Tensors]) -> None:
        """Hold what is still to be written."""
        self.operation = operation
        self.spans = [(part.offset, part.offset + part.num_bytes) for part in parts]
        self.is_waited = False
        self._finish: Callable[[], Tensors] | None = finish
        self._results: Tensors | None = None

    def write(self) -> None:
        """Write the results unless they are."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._results = finish()

    def __call__(self) -> Tensors | None:
        """Return the results to who waits for them; the hook of the event."""
        self.write()
        self.is_waited = True
        results, self._results = self._results, None
        return results


class Outstanding:
    """The deliveries of one buffer."""

    def __init__(self) -> None:
        """Start with none."""
        self._last: Delivery | None = None
        self._known: WeakSet[Delivery] = WeakSet()

    def add(self, delivery: Delivery) -> None:
        """Note a call; the results of earlier ones are written already."""
        self._last = delivery
        self._known.add(delivery)

    def write(self) -> None:
        """Write the results of all calls made so far, whether or not their events are held."""
        last, self._last = self._last, None
        if last is not None:
            last.write()

    def check_unused(self, start: int, end: int) -> None:
        """Refuse to stage in bytes of the storage that hold a result somebody will still wait for.

        Raises:
          UndefinedError: names the call.
        """
        for delivery in self._known:
            if not delivery.is_waited and any(low < end and start < high for low, high in delivery.spans):
                rule = f"it holds the result of an {delivery.operation} whose event is not waited for yet"
                raise UndefinedError("storage", f"bytes {start} to {end - 1}", rule)
