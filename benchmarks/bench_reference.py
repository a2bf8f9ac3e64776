"""The reference at real size: plan, dispatch and combine of all ranks in one process."""

import resource
import time

import numpy as np

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.generate import generate_topk
from reference.order import RANK_REDUCED
from reference.placement import plan_dispatch
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
    """Return seconds and result of one run: at this size the caches are cold every time."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peak_gib():
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run():
    """Yield (name, value with unit, target)."""
    config = config_of(128)
    topk = generate_topk(config, "uniform", tokens_per_rank=TOKENS)
    seconds, _ = timed(lambda: plan_dispatch(config, topk))
    yield "plan all handles, EP128 x 16,384 x 6", f"{seconds:.2f} s", "<= 6 s"
    config = config_of(8)
    topk = generate_topk(config, "uniform", tokens_per_rank=TOKENS)
    seconds, _ = timed(lambda: plan_dispatch(config, topk))
    yield "the same, EP8", f"{seconds:.2f} s", ""
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 120, (TOKENS, HIDDEN), dtype=np.uint8) for _ in range(8)]
    scales = [rng.integers(0, 2**15, (TOKENS, NUM_PACKS), dtype=np.int16) for _ in range(8)]
    seconds, (results, handles) = timed(lambda: dispatch(config, topk, x, scales=scales, zero_padding=True))
    num_bytes = sum(r.recv_x.nbytes for r in results)
    yield "dispatch EP8, fp8 with scales, eight ranks", f"{seconds:.2f} s", "<= 12 s"
    yield "its recv_x and rate", f"{num_bytes / 1e9:.1f} GB, {num_bytes / seconds / 1e9:.1f} GB/s", ""
    del results
    seconds, results = timed(lambda: dispatch_cached(handles, x, scales=scales))
    yield "the same cached", f"{seconds:.2f} s", ""
    yield "peak memory so far", f"{peak_gib():.1f} GiB", "<= 14 GiB"
    del results, x, scales
    y = [np.full((handle.num_rows, HIDDEN), 1.5, dtype=BF16) for handle in handles]
    seconds, _ = timed(lambda: combine(handles, y, order=RANK_REDUCED))
    yield "combine EP8, bf16, eight ranks", f"{seconds:.2f} s", "<= 25 s"
    yield "peak memory with combine's rows", f"{peak_gib():.1f} GiB", ""
