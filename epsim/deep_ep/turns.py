"""One thread at a time on a buffer: its channel has one order of calls, the same on all ranks."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from epsim.deep_ep.errors import UndefinedError

if TYPE_CHECKING:
    from epsim.deep_ep.base import BufferBase

Call = TypeVar("Call", bound=Callable[..., Any])


class Turn:
    """Which thread is in a call of a buffer, if any; a call may make others of the same buffer."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = RLock()
        self._operation = ""

    @contextmanager
    def take(self, operation: str) -> Iterator[None]:
        """Run a call.

        Args:
          operation: its name.

        Raises:
          UndefinedError: another thread is in a call. It is not waited for, because which of two threads
            comes first would differ between ranks.
        """
        if not self._lock.acquire(blocking=False):
            rule = f"one operation at a time: {operation} must come after it, or have a buffer of its own"
            raise UndefinedError("buffer", f"busy with {self._operation} in another thread", rule)
        outer, self._operation = self._operation, self._operation or operation
        try:
            yield
        finally:
            self._operation = outer
            self._lock.release()


def one_at_a_time(call: Call) -> Call:
    """Return a call that refuses, before anything else, a buffer in use by another thread or destroyed.

    Args:
      call: its first argument is the buffer.

    Raises:
      UndefinedError, RefusedError: see `Turn.take` and `BufferBase.check_alive`.
    """
    name = call.__name__

    @functools.wraps(call)
    def taken(buffer: "BufferBase", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the call
        with buffer.turn.take(name):
            buffer.check_alive(name)
            return call(buffer, *args, **kwargs)

    return cast("Call", taken)
