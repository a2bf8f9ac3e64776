"""Where points are evaluated: in this process, in processes of this machine, or on a Ray cluster.

An engine takes chunks as JSON bytes and gives their outcomes back in any order; nothing else crosses the
border, so that all engines give the same rows. Chunks grow until one takes about a quarter of a second:
small enough to lose little, large enough that handing them out costs nothing.
"""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

from epsim.errors import InputError, MissingExtraError
from epsim.sweep.targets import evaluate, find_target

EngineName = Literal["local", "ray"]

CHUNK_SECONDS = 0.25
MAX_CHUNK = 512
FEW_POINTS = 200
"""Below this a process of its own would take longer to start than the work it takes over."""

Point = tuple[int, dict[str, Any]]


class SweepError(RuntimeError):
    """A point failed by a fault of ours, or a worker died; what was finished is in the journal."""


class Engine(Protocol):
    """Runs `evaluate_chunk` somewhere."""

    num_slots: int
    """Chunks that it runs at once."""

    def submit(self, payload: bytes) -> Any:  # noqa: ANN401 - each engine has its own handle
        """Start a chunk."""

    def first_done(self, handles: Sequence[Any]) -> tuple[int, bytes]:
        """Wait for a chunk; return its place among the handles, and its outcomes."""

    def close(self) -> None:
        """Stop; chunks that run are not waited for."""


def evaluate_chunk(payload: bytes) -> bytes:
    """Evaluate points.

    Args:
      payload: JSON of target, working folder and points ([number, values]).

    Returns:
      JSON of seconds per point and outcomes [number, status, cells, message], in order; after a "failed"
      one no further point is tried.
    """
    from reference.errors import ConfigError
    from topology.errors import TopologyError

    name, folder, points = json.loads(payload)
    if folder != os.getcwd():  # a Ray worker may start elsewhere, and paths are relative
        os.chdir(folder)
    target = find_target(name)
    outcomes: list[tuple[int, str, list[Any], str]] = []
    start = time.perf_counter()
    for number, values in points:
        try:
            outcomes.append((number, "ok", evaluate(target, values), ""))
        except (InputError, ConfigError, TopologyError) as error:
            outcomes.append((number, "refused", [], " ".join(str(error).split())))
        except Exception:
            outcomes.append((number, "failed", [], traceback.format_exc()))
            break
    return json.dumps([(time.perf_counter() - start) / len(outcomes), outcomes]).encode()


def run_points(
    engine: Engine, target_name: str, points: Iterator[Point]
) -> Iterator[list[tuple[int, str, list[Any], str]]]:
    """Evaluate all points; yield the outcomes of each chunk as it ends, in any order.

    After a "failed" outcome no new chunk is started, and those that run are waited for.
    """
    pending: list[Any] = []
    num_points, has_failed = 1, False
    while True:
        while not has_failed and len(pending) < 2 * engine.num_slots:
            chunk = list(islice(points, num_points))
            if not chunk:
                break
            pending.append(engine.submit(json.dumps([target_name, os.getcwd(), chunk]).encode()))
        if not pending:
            return
        idx, answer = engine.first_done(pending)
        del pending[idx]
        seconds, outcomes = json.loads(answer)
        num_points = max(1, min(MAX_CHUNK, 2 * num_points, int(CHUNK_SECONDS / max(seconds, 1e-9))))
        has_failed |= outcomes[-1][1] == "failed"
        yield outcomes


def make_engine(
    name: EngineName, num_points: int, *, jobs: int | None = None, address: str | None = None
) -> Engine:
    """Start an engine.

    Args:
      name: "local" or "ray".
      num_points: that it will get; few are done in this process.
      jobs: processes; None = one per core that this process may use. With Ray: cores of a local cluster.
      address: of a running Ray cluster, as "auto"; None = a local one for this sweep alone.

    Raises:
      InputError: an unknown engine, or jobs below 1.
      MissingExtraError: Ray is not installed.
    """
    if name not in ("local", "ray"):
        raise InputError("engine", name, "must be local or ray")
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "must be at least 1")
    if name == "ray":
        return Ray(jobs, address)
    if address is not None:
        raise InputError("address", address, "goes with --engine ray")
    num_jobs = min(len(os.sched_getaffinity(0)) if jobs is None else jobs, num_points)
    if num_jobs <= 1 or (jobs is None and num_points < FEW_POINTS):
        return InProcess()
    return Processes(num_jobs)


class InProcess:
    """Evaluates a chunk when it is waited for."""

    num_slots = 1

    def submit(self, payload: bytes) -> bytes:
        """Keep it."""
        return payload

    def first_done(self, handles: Sequence[bytes]) -> tuple[int, bytes]:
        """Evaluate the first."""
        return 0, evaluate_chunk(handles[0])

    def close(self) -> None:
        """Nothing runs."""


class Processes:
    """Fresh interpreters on this machine."""

    def __init__(self, jobs: int) -> None:
        """Start lazily: a worker is made when there is a chunk for it."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self.num_slots = jobs
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_die_with_parent
        )

    def submit(self, payload: bytes) -> Any:  # noqa: ANN401
        """Queue it."""
        return self._guarded(lambda: self._pool.submit(evaluate_chunk, payload))

    def first_done(self, handles: Sequence[Any]) -> tuple[int, bytes]:
        """Wait for any."""
        from concurrent.futures import FIRST_COMPLETED, wait

        done, _ = wait(handles, return_when=FIRST_COMPLETED)
        idx = next(idx for idx, handle in enumerate(handles) if handle in done)
        return idx, self._guarded(handles[idx].result)

    def close(self) -> None:
        """Drop what waits."""
        self._pool.shutdown(cancel_futures=True)

    def _guarded(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        from concurrent.futures.process import BrokenProcessPool

        try:
            return call()
        except BrokenProcessPool:
            raise SweepError("a worker process died, perhaps for want of memory: try fewer --jobs") from None


def _die_with_parent() -> None:
    """Prepare a worker: Ctrl-C ends it silently, and it ends when its parent is killed."""
    import multiprocessing
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        # Workers hold both ends of their queue, so they would wait in it for ever.
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check_address(address: str | None) -> None:
    """Knock at HOST:PORT: Ray itself waits minutes for a cluster that is not there."""
    import socket

    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InputError("address", address, f"no Ray cluster answers: {error}") from None


class Ray:
    """Tasks on a Ray cluster, one core each."""

    def __init__(self, jobs: int | None, address: str | None) -> None:
        """Connect, or start a cluster of this machine's cores for this sweep alone."""
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError(
                f"--engine ray needs Ray: pip install 'epsim[cluster]' ({error})"
            ) from None
        # Untyped on purpose: the check of types is the same with and without Ray.
        self._ray: Any = ray
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            _check_address(address)
            own: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
            try:
                self._ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
            except (ConnectionError, ValueError) as error:
                raise InputError("address", address, f"no Ray cluster answers: {error}") from None
        self.num_slots = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(evaluate_chunk)

    def submit(self, payload: bytes) -> Any:  # noqa: ANN401
        """Queue it."""
        return self._task.remote(payload)

    def first_done(self, handles: Sequence[Any]) -> tuple[int, bytes]:
        """Wait for any."""
        done, _ = self._ray.wait(list(handles), num_returns=1)
        try:
            return handles.index(done[0]), self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            raise SweepError(f"a Ray worker failed: {' '.join(str(error).split())}") from None

    def close(self) -> None:
        """Leave the cluster; one of our own ends."""
        if self._is_ours:
            self._ray.shutdown()
