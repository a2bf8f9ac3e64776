"""Timelines for tests: a small one by hand, any one by hypothesis, and a large one."""

import numpy as np
from hypothesis import strategies as st

from epsim.trace import LinkLoad, TraceBuilder

RESOURCES = ("AIV 0", "AIV 10", "AIV 2", "URMA engine", "port in")
PHASES = ("routing", "metadata", "wire", 'a "quoted" <b>phase</b>', "wait")


def small_links():
    """Two links over three bins, one of them full in the middle."""
    return LinkLoad(
        labels=("rank 0 -> plane 0", "plane 0 -> rank 1"),
        carried_bytes=np.array([[100.0, 400.0, 0.0], [0.0, 200.0, 100.5]]),
        edges_ps=np.array([0, 1_000_000, 2_000_000, 3_000_000]),
        capacity_bytes_per_s=np.array([4e8, 4e8]),
    )


def small_trace(*, links=True):
    """Two ranks with three resources each, spans apart, nested and crossing."""
    builder = TraceBuilder()
    for rank in range(2):
        core = builder.track(f"rank {rank}", "AIV 0")
        engine = builder.track(f"rank {rank}", "URMA engine")
        builder.track(f"rank {rank}", "port in")
        builder.span(core, "routing", 0, 600_001)
        builder.span(core, "metadata", 600_001, 1_000_000 + 7 * rank)
        builder.span(engine, "wire", 1_000_000, 2_500_000, size_bytes=7168, peer=1 - rank)
        builder.span(engine, "wire", 1_200_000, 2_700_000, size_bytes=7168, peer=1 - rank)
        builder.span(engine, "wait", 1_200_000, 1_300_003)
    return builder.build(title="two ranks", meta={"seed": "7"}, links=small_links() if links else None)


@st.composite
def span_rows(draw):
    """Rows of (rank, resource, phase, start, length, bytes, peer)."""
    times = st.integers(0, 5000) | st.integers(0, 10**15)
    row = st.tuples(
        st.integers(0, 11),
        st.sampled_from(RESOURCES),
        st.sampled_from(PHASES),
        times,
        times,
        st.integers(0, 2**40),
        st.integers(-1, 11),
    )
    return draw(st.lists(row, max_size=30))


def trace_of(rows, *, title="drawn", meta=None):
    """Build a trace of rows, in their order."""
    builder = TraceBuilder()
    for rank, resource, phase, start, length, size, peer in rows:
        track = builder.track(f"rank {rank}", resource)
        builder.span(track, phase, start, start + length, size_bytes=size, peer=peer)
    return builder.build(title=title, meta=meta or {"seed": "1"})


def large_trace(num_spans, num_ranks=16):
    """Many spans of uneven length on four resources of each rank, from a fixed seed."""
    rng = np.random.default_rng(1)
    builder = TraceBuilder()
    tracks = [
        builder.track(f"rank {rank}", name)
        for rank in range(num_ranks)
        for name in ("AIV 0", "HBM", "URMA engine", "port in")
    ]
    each = num_spans // len(tracks)
    for track in tracks:
        length = rng.integers(1_000, 500_000, each)
        end = np.cumsum(length + rng.integers(0, 100_000, each))
        names = [PHASES[idx] for idx in rng.integers(0, len(PHASES), each)]
        builder.spans(
            track, names, end - length, end, rng.integers(0, 40_000, each), rng.integers(0, num_ranks, each)
        )
    return builder.build(title=f"{num_spans} spans", meta={"seed": "1"})
