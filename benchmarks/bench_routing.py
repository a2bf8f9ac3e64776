"""From a seed or a file to row counts: 128 ranks x 16,384 tokens x top-6 of 256."""

import tempfile
import time
from pathlib import Path

from reference.config import EPConfig
from reference.plan import count_rows
from reference.routing.expected import expected_rows
from reference.routing.files import read_routing, write_routing
from reference.routing.generate import generate_topk, sample_loads
from reference.routing.manifest import routing_digest
from reference.topk import TopK

REPEATS = 3


def config_of(ep_size, tokens=16384):
    """Return the group of the published benchmark."""
    return EPConfig(ep_size=ep_size, num_experts=256, num_topk=6, hidden=7168, num_max_tokens_per_rank=tokens)


def best(work):
    """Return the shortest of a few times and the last result."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def row(name, seconds, target):
    """Return one line of the benchmark table."""
    value = f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
    return name, value, target


def run():
    """Yield (name, value with unit, target)."""
    config = config_of(128)
    seconds, topk = best(lambda: generate_topk(config, "uniform", tokens_per_rank=16384))
    yield row("generate uniform, 2.1 M tokens", seconds, "<= 1 s")
    for routing in ("zipf:1.1", "lognormal:0.5", "groups:8/4", "unbalanced:2", "precise:1.5"):
        seconds, _ = best(lambda routing=routing: generate_topk(config, routing, tokens_per_rank=16384))
        yield row(f"generate {routing}, 2.1 M tokens", seconds, "")
    seconds, _ = best(lambda: sample_loads(config, range(1, 257), tokens_per_rank=16384))
    yield row("sample a load histogram, 2.1 M tokens", seconds, "")
    seconds, _ = best(lambda: TopK(num_experts=256, topk_idx=topk.topk_idx))
    yield row("validate 12.6 M ids", seconds, "")
    seconds, _ = best(lambda: count_rows(config, topk))
    yield row("TopK to RowCounts, EP128 x 16,384 x 6", seconds, "<= 2 s, goal 0.5 s")
    seconds, _ = best(lambda: count_rows(config, topk, pod_size=16))
    yield row("the same with rows per pod", seconds, "<= 2 s")
    seconds, _ = best(lambda: [expected_rows(config_of(n), 16384) for n in (8, 16, 32, 64, 128)])
    yield row("exact uniform counts, EP8 to EP128", seconds, "")
    seconds, _ = best(lambda: routing_digest(topk))
    yield row("digest of 12.6 M ids", seconds, "")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".safetensors", ".npz", ".npy"):
            path = Path(folder) / f"routing{suffix}"
            write_routing(path, topk)
            seconds, _ = best(lambda path=path: read_routing(path, config))
            yield row(f"read and check {suffix}, 101 MB", seconds, "")
