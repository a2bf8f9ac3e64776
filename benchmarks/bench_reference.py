"""The reference at real size: plan, dispatch and combine of all ranks in one process."""

import resource
import time

import numpy as np

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
from reference.routing.generate import generate_topk
from reference.sums import BF16

TOKENS, HIDDEN, NUM_PACKS = 16384, 7168, 112


def config_of(ep_size):
    """Return the group of the published benchmark, with its alignment."""
    return EPConfig(
        ep_size=ep_size,
        num_experts=256,
        num_topk=6,
        hidden=HIDDEN,
        num_max_tokens_per_rank=TOKENS,
        expert_alignment=128,
    )


def timed(work):
    """Return (seconds of the clock, text with these and CPU seconds, result) of one run.

    CPU seconds are shown because the machine may be shared, and apart those of the kernel, which hands out
    the pages of fresh outputs. That takes some 0.15 s per GiB for memory that a virtual machine has in hand,
    and 2 s per GiB for what its host must supply first; a second run meets pages of the first kind.
    """
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    result = work()
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    own, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return wall, f"{wall:.2f} s (CPU {own:.2f} s + kernel {kernel:.2f} s)", result


def peak_gib():
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run():
    """Yield (name, value with unit, target)."""
    config = config_of(128)
    topk = generate_topk(config, "uniform", tokens_per_rank=TOKENS)
    _, text, _ = timed(lambda: plan_dispatch(config, topk))
    yield "plan all handles, EP128 x 16,384 x 6", text, "<= 6 s"
    handles = yield from dispatch_rows()
    yield "peak memory of dispatch", f"{peak_gib():.1f} GiB", "<= 14 GiB"
    y = [np.full((handle.num_rows, HIDDEN), 1.5, dtype=BF16) for handle in handles]
    _, text, _ = timed(lambda: combine(handles, y, order=RANK_REDUCED))
    yield "combine EP8, bf16, eight ranks", text, "<= 25 s"
    yield "peak memory of combine, 11.5 GB of rows included", f"{peak_gib():.1f} GiB", ""


def dispatch_rows():
    """Yield the rows of EP8 dispatches; return their handles."""
    config = config_of(8)
    topk = generate_topk(config, "uniform", tokens_per_rank=TOKENS)
    _, text, _ = timed(lambda: plan_dispatch(config, topk))
    yield "plan all handles, EP8 x 16,384 x 6", text, ""
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 120, (TOKENS, HIDDEN), dtype=np.uint8) for _ in range(8)]
    scales = [rng.integers(0, 2**15, (TOKENS, NUM_PACKS), dtype=np.int16) for _ in range(8)]
    # The first call also pays for memory that the machine hands out for the first time.
    for name in ("dispatch EP8, fp8 with scales, first call", "dispatch EP8, fp8 with scales, eight ranks"):
        seconds, text, (results, handles) = timed(
            lambda: dispatch(config, topk, x, scales=scales, zero_padding=True)
        )
        num_bytes = sum(r.recv_x.nbytes for r in results)
        del results
        yield name, text, "<= 12 s"
    yield "its recv_x and rate", f"{num_bytes / 1e9:.1f} GB, {num_bytes / seconds / 1e9:.1f} GB/s", ""
    _, text, _ = timed(lambda: dispatch_cached(handles, x, scales=scales))
    yield "the same cached", text, ""
    return handles
