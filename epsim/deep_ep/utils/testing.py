"""Timing helpers of upstream's tests, on a CPU: they run, so that a program runs to its end.

Times are of this process on this machine's CPU, gloo included. They say nothing of a device: for that there
is `epsim predict`.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BYTE_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
Job = Callable[[], object]


def parse_num_bytes(text: str) -> int:
    """Read a count of bytes with an optional binary suffix: `1G`, `64M`, `512KiB`, `1.5k`, `1048576`.

    Raises:
      ValueError: another form, or less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    count = int(float(match[1]) * BYTE_SUFFIXES[match[2].lower()]) if match else 0
    if count < 1:
        raise ValueError(f"byte count is {text!r}: must be positive, as in 1G, 64M, 512K or 1048576")
    return count


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """What `bench_msprof` returns; here only the duration is known.

    Args:
      dur_ns: mean wall time of the whole call, not of a kernel.
      aic_total_cycles, aiv_total_cycles: 0, as there are no cores.
    """

    dur_ns: float
    aic_total_cycles: int = 0
    aiv_total_cycles: int = 0

    @property
    def ns(self) -> float:
        """Duration in nanoseconds."""
        return self.dur_ns

    @property
    def us(self) -> float:
        """Duration in microseconds."""
        return self.dur_ns / 1e3

    @property
    def dur_us(self) -> float:
        """Duration in microseconds."""
        return self.us

    def gbps(self, bytes_moved: float) -> float:
        """Return the rate of so many bytes in GB/s, decimal."""
        return bytes_moved / self.dur_ns

    def tflops(self, flops: float) -> float:
        """Return the rate of so many operations in TFLOP/s."""
        return flops / self.dur_ns / 1e3

    def __add__(self, other: "KernelProfile") -> "KernelProfile":
        """Return the profile of both one after the other."""
        return KernelProfile(dur_ns=self.dur_ns + other.dur_ns)

    def __str__(self) -> str:
        """Say what kind of time this is."""
        return f"{self.us:.1f} us (wall time on a CPU)"


def bench(
    fn: Job,
    num_warmups: int = 30,
    num_tests: int = 30,
    post_fn: Job | None = None,
    barrier: Job | None = None,
    *,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Time a call by the wall clock.

    Args:
      fn: what is timed; it must wait for its own events.
      num_warmups: calls before.
      num_tests: timed calls.
      post_fn: called after each timed call, outside the time.
      barrier: called once after the warm-up.
      flush_l2: accepted and ignored.

    Returns:
      mean, least and most seconds of a call.

    Raises:
      ValueError: no timed call, or a negative number of warm-ups.
    """
    if num_warmups < 0 or num_tests < 1:
        rule = "must be at least 0 and 1"
        raise ValueError(f"num_warmups and num_tests are {num_warmups} and {num_tests}: {rule}")
    for _ in range(num_warmups):
        fn()
    if barrier is not None:
        barrier()
    seconds = []
    for _ in range(num_tests):
        start = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - start)
        if post_fn is not None:
            post_fn()
    return sum(seconds) / num_tests, min(seconds), max(seconds)


def bench_msprof(
    fn: Job,
    kernel_names: str | Sequence[str] | None = None,
    num_warmups: int = 10,
    num_tests: int = 30,
    suppress_verbose_output: bool = True,
    return_all_kernels: bool = False,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    barrier: Job | None = None,
) -> KernelProfile | list[KernelProfile] | dict[str, KernelProfile]:
    """Stand in for the profiler: every kernel that is asked for gets the wall time of the whole call.

    Args:
      fn: what is timed.
      kernel_names: None, one name or several; names are not checked, for there are no kernels.
      num_warmups: calls before.
      num_tests: timed calls.
      suppress_verbose_output: accepted and ignored, as is flush_l2.
      return_all_kernels: return a dict, with one entry "fn".
      flush_l2: see above.
      barrier_comm_profiling: call `barrier` before each timed call too.
      barrier: called after the warm-up.

    Returns:
      one profile, a list in the order of the names, or a dict.

    Raises:
      ValueError: as `bench`.
    """
    before = barrier if barrier_comm_profiling and barrier is not None else None
    mean, _, _ = bench(fn, num_warmups, num_tests, post_fn=before, barrier=barrier)
    profile = KernelProfile(dur_ns=mean * 1e9)
    if return_all_kernels:
        return {"fn": profile}
    return profile if kernel_names is None or isinstance(kernel_names, str) else [profile] * len(kernel_names)


def bench_kineto(
    fn: Job,
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Job | None = None,
) -> float | list[float]:
    """Stand in for the NVIDIA edition's profiler, as `bench_msprof` does for Ascend's.

    Args:
      fn: what is timed.
      kernel_names: a name, or a tuple of names; not checked.
      num_tests: timed calls.
      suppress_kineto_output: accepted and ignored, as are trace_path and flush_l2.
      trace_path: see above; no file is written.
      flush_l2: see above.
      barrier_comm_profiling: as `bench_msprof`.
      num_kernels_per_period: must be 1.
      barrier: as `bench_msprof`.

    Returns:
      seconds of the whole call; for a tuple a list with as many of them.

    Raises:
      ValueError: as `bench`, or another number of kernels per period.
    """
    if num_kernels_per_period != 1:
        raise ValueError(f"num_kernels_per_period is {num_kernels_per_period}: must be 1 without kernels")
    before = barrier if barrier_comm_profiling and barrier is not None else None
    mean, _, _ = bench(fn, 1, num_tests, post_fn=before, barrier=barrier)
    return [mean] * len(kernel_names) if isinstance(kernel_names, tuple) else mean
