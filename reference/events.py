"""Deferred epilogues: what waiting for an operation does, as a state machine free of any device.

An operation that returns before it is done hands out an `EventOverlap`. Waiting on it orders the caller
after the operation and then runs the one registered hook: the epilogue, which allocates outputs and
returns them. The device part is the `NativeEvent`, so the same class serves NumPy, torch and Ascend.
Source: deepep-ascend.md section 1.9; the method names are those of `deep_ep`.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

Hook = Callable[[], object]
"""Runs once after the wait; its value is what the wait returns."""


class EventError(AssertionError):
    """An event was used against the rules; an AssertionError because that is what `deep_ep` raises."""


class NativeEvent(Protocol):
    """Something recorded on a stream that another stream can be ordered after."""

    def current_stream_wait(self) -> None:
        """Order the caller's current stream after the event; may raise."""


class CompletedEvent:
    """The event of work that is done when it returns: waiting has nothing to do."""

    def current_stream_wait(self) -> None:
        """Return at once."""


class EventOverlap:
    """One outstanding operation: an event, at most one hook, and what must stay alive until the wait.

    Args:
      event: recorded after the issue of the operation; None = nothing to wait for, waiting is an error.
      extra_tensors: kept alive by this object. A wait drops them only with `release_handle`, because
        a second stream may still have to wait on the same event.

    Attributes:
      event: as given, None once released.
      extra_tensors: as given, None once released.
      hook_after_wait: the hook that the next wait runs, or None. It keeps alive what it refers to.
    """

    def __init__(
        self, event: NativeEvent | None = None, extra_tensors: tuple[object, ...] | None = None
    ) -> None:
        """Hold an event and the tensors that its operation still reads or writes."""
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Hook | None = None
        self._releases_on_exit = False

    @property
    def is_pending(self) -> bool:
        """Whether a hook has still to run: dropping the object now would lose an operation's result."""
        return self.hook_after_wait is not None

    def register_hook_after_wait(self, hook_after_wait: Hook) -> None:
        """Set the hook of the next wait.

        Args:
          hook_after_wait: called without arguments, once. It may register its own successor.

        Raises:
          EventError: a hook is registered already.
        """
        if self.hook_after_wait is not None:
            raise EventError("hook_after_wait is registered already: an event runs one hook per wait")
        self.hook_after_wait = hook_after_wait

    def current_stream_wait(self, release_handle: bool = False) -> Any:  # noqa: ANN401 - the hook decides
        """Order the current stream after the event, then run the hook, if any.

        A native wait that fails leaves the hook registered, so that the wait can be tried again. A hook
        that fails, or that waits on this object itself, is not run a second time.

        Args:
          release_handle: drop event and tensors afterwards; they are kept when the hook failed or
            registered a successor, which needs the event for its own wait.

        Returns:
          the hook's value; None without a hook, and so at every further wait.

        Raises:
          EventError: no event is held.
        """
        if self.event is None:
            raise EventError("event is None: there is nothing to wait for, or it was released")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = None if hook is None else hook()
        if release_handle and self.hook_after_wait is None:
            self.event = self.extra_tensors = None
        return result

    def wait(self) -> Any:  # noqa: ANN401 - the hook decides
        """Wait and keep the event: `current_stream_wait()`."""
        return self.current_stream_wait()

    def __call__(self, release_handle: bool = False) -> Self:
        """Say what the exit of the next `with` block releases: `with event(release_handle=True):`."""
        self._releases_on_exit = release_handle
        return self

    def __enter__(self) -> Self:
        """Start a block whose work overlaps the operation."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait if an event is held, also after an error in the block: the operation is still running."""
        releases, self._releases_on_exit = self._releases_on_exit, False
        if self.event is not None:
            self.current_stream_wait(release_handle=releases)
