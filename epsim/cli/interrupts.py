"""Ending on a signal with what was found so far: SIGTERM is taken as an interrupt, too."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt what runs inside, as SIGINT does: KeyboardInterrupt, of the kind `Terminated`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers are the main thread's
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(error: BaseException) -> int:
    """Return the exit code that shells give to the signal behind an interrupt: 130, or 143."""
    is_terminated = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
    return 128 + (signal.SIGTERM if is_terminated else signal.SIGINT)
