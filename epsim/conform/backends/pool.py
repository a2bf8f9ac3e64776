"""Worker processes, one per rank, started once: every call goes to the first R of them at the same time."""

import contextlib
import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from epsim.conform.backends.library import Library
from epsim.conform.backends.worker import START_TIMEOUT_SECS, serve
from native.backends.protocol import BackendFailure

CALL_TIMEOUT_SECS = 60.0
GRACE_SECS = 5.0
"""How long the other ranks may take to notice that one has failed."""


class Pool:
    """Processes that live until `stop`, or until one of them fails."""

    def __init__(self, library: Library, num_ranks: int) -> None:
        """Start them and wait until they have found each other.

        Raises:
          BackendFailure: they have not.
        """
        # A server that has imported the library once forks in no time; a device must not be forked.
        context: Any = multiprocessing.get_context("forkserver" if library.device == "cpu" else "spawn")
        context.set_forkserver_preload(["torch.distributed", "epsim.conform.backends.worker"])
        self.folder = tempfile.TemporaryDirectory(prefix="epsim-conform-")
        self.workers: list[tuple[BaseProcess, Connection]] = []
        try:
            with _uninterrupted():
                for rank in range(num_ranks):
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=serve, args=(theirs, library, rank, num_ranks, self.folder.name), daemon=True
                    )
                    process.start()
                    theirs.close()
                    self.workers.append((process, ours))
            self._answers(num_ranks, START_TIMEOUT_SECS)
        except (BackendFailure, KeyboardInterrupt):
            if self.workers:
                self.stop()
            raise

    def call(self, command: str, arguments: Sequence[dict[str, Any]]) -> list[Any]:
        """Run a command on as many ranks as there are arguments; return their results by rank.

        Raises:
          BackendFailure: a rank threw, died or did not answer; the pool is over unless all answered.
        """
        try:
            for (_, pipe), given in zip(self.workers, arguments, strict=False):
                with contextlib.suppress(OSError):  # a dead one is told by its missing answer
                    pipe.send((command, given))
            return self._answers(len(arguments), CALL_TIMEOUT_SECS)
        except KeyboardInterrupt:
            self.stop()  # answers that still come would be taken for those of the next call
            raise

    def _answers(self, num_ranks: int, timeout_secs: float) -> list[Any]:
        deadline = time.monotonic() + timeout_secs
        results: list[Any] = []
        problems: list[str] = []
        is_whole = True
        for rank, (_, pipe) in enumerate(self.workers[:num_ranks]):
            wait = GRACE_SECS if problems else deadline - time.monotonic()
            if not pipe.poll(max(0.0, wait)):
                problems.append(f"rank {rank} gave no answer")
                is_whole = False
                continue
            try:
                worked, result = pipe.recv()
            except (EOFError, OSError):
                worked, result, is_whole = False, "the process died", False
            if worked:
                results.append(result)
            else:
                problems.append(f"rank {rank}: {result}")
        if problems:
            if not is_whole:
                self.stop()
            raise BackendFailure("\n".join(problems))
        return results

    def stop(self) -> None:
        """End all processes."""
        for process, pipe in self.workers:
            pipe.close()
            process.terminate()
        for process, _ in self.workers:
            process.join(GRACE_SECS)
            if process.is_alive():
                process.kill()
                process.join()
        self.workers = []
        self.folder.cleanup()

    @property
    def is_running(self) -> bool:
        """Whether it takes calls."""
        return bool(self.workers)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Start processes inside: signals come when all are known, and the terminal's SIGINT never to them.

    One that has started and is not known yet could not be ended, and would wait for the others for ever.
    """
    resource_tracker.ensure_running()  # first, as starting it unblocks SIGINT
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Blocking is not enough here: a thread of a library may take the signal in place of this one.
        for name in (signal.SIGINT, signal.SIGTERM):
            handlers[name] = signal.signal(name, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit that
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, handler in handlers.items():
            signal.signal(name, handler)
    for number in came[:1]:
        signal.raise_signal(number)
