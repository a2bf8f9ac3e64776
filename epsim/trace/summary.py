"""Numbers of a timeline: busy time per phase and resource; statistics of repeated samples."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.trace.trace import Int64s, Trace, is_wait

PERCENTILES = (5, 50, 95, 99)
OUTLIER_RATIO = 2
"""A mean above this many medians is dominated by outliers (case G53)."""


@dataclass(frozen=True, kw_only=True)
class PhaseSummary:
    """All spans of one name.

    Args:
      name: of the phase.
      num_spans: how many.
      total_ps: sum of their lengths.
      share: of the total of all phases; 0 when nothing lasts.
      size_bytes: sum.
      first_start_ps: earliest start.
      last_end_ps: latest end.
    """

    name: str
    num_spans: int
    total_ps: int
    share: float
    size_bytes: int
    first_start_ps: int
    last_end_ps: int

    @property
    def mean_ps(self) -> float:
        """Mean length."""
        return self.total_ps / self.num_spans


@dataclass(frozen=True, kw_only=True)
class ResourceSummary:
    """One track that has spans.

    Args:
      group: whose resource.
      name: resource.
      num_spans: how many.
      busy_ps: time in which at least one span was open that is no wait (`epsim.trace.trace.is_wait`).
      utilisation: busy time over the end of the trace; 0 for an empty time.
      size_bytes: sum.
      first_start_ps: earliest start.
      last_end_ps: latest end.
    """

    group: str
    name: str
    num_spans: int
    busy_ps: int
    utilisation: float
    size_bytes: int
    first_start_ps: int
    last_end_ps: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Both tables, and the resource that was busy longest.

    Args:
      phases: longest total first, then by name.
      resources: in the trace's order.
      critical: the busiest resource, the first of equals; None for an empty trace.
    """

    phases: tuple[PhaseSummary, ...]
    resources: tuple[ResourceSummary, ...]
    critical: ResourceSummary | None


def summary(trace: Trace) -> Summary:
    """Summarise a trace per phase and per resource."""
    resources = _resources(trace)
    return Summary(
        phases=_phases(trace),
        resources=resources,
        critical=max(resources, key=lambda row: row.busy_ps, default=None),
    )


def _phases(trace: Trace) -> tuple[PhaseSummary, ...]:
    length = trace.end_ps - trace.start_ps
    whole = int(length.sum())
    rows = []
    for idx, name in enumerate(trace.names):
        mine = trace.name == idx
        total = int(length[mine].sum())
        rows.append(
            PhaseSummary(
                name=name,
                num_spans=int(mine.sum()),
                total_ps=total,
                share=total / whole if whole else 0.0,
                size_bytes=int(trace.size_bytes[mine].sum()),
                first_start_ps=int(trace.start_ps[mine].min()),
                last_end_ps=int(trace.end_ps[mine].max()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ps, row.name)))


def _resources(trace: Trace) -> tuple[ResourceSummary, ...]:
    cuts = np.searchsorted(trace.track, np.arange(len(trace.track_names) + 1)).tolist()
    waits = np.array([is_wait(name) for name in trace.names], dtype=bool)
    rows = []
    for (group, name), low, high in zip(trace.tracks, cuts[:-1], cuts[1:], strict=True):
        if low == high:
            continue
        works = ~waits[trace.name[low:high]]
        busy = _covered(trace.start_ps[low:high][works], trace.end_ps[low:high][works])
        rows.append(
            ResourceSummary(
                group=group,
                name=name,
                num_spans=high - low,
                busy_ps=busy,
                utilisation=busy / trace.last_end_ps if trace.last_end_ps else 0.0,
                size_bytes=int(trace.size_bytes[low:high].sum()),
                first_start_ps=int(trace.start_ps[low]),
                last_end_ps=int(trace.end_ps[low:high].max()),
            )
        )
    return tuple(rows)


def _covered(start: Int64s, end: Int64s) -> int:
    """Return the length of the union of intervals that are sorted by start."""
    if not len(start):
        return 0
    latest = np.maximum.accumulate(end)
    # Each adds what lies beyond the latest end so far.
    begun = np.maximum(start[1:], latest[:-1])
    return int(latest[0] - start[0] + np.maximum(latest[1:] - begun, 0).sum())


@dataclass(frozen=True, kw_only=True)
class SampleStatistics:
    """What to report of repeated measurements; the unit is that of the samples.

    Args:
      num_samples: without the warm-up.
      median: half of the samples are at most this.
      mean: for comparison with reports that give it alone.
      percentiles: (percent, value) pairs for PERCENTILES.
      note: empty, or why the mean should not be used.
    """

    num_samples: int
    median: float
    mean: float
    percentiles: tuple[tuple[int, float], ...]
    note: str


def sample_statistics(samples: npt.ArrayLike, *, num_warmup: int = 0) -> SampleStatistics:
    """Return median, percentiles and mean of repeated samples, without the first `num_warmup`.

    Args:
      samples: [n] float64, finite, in the order in which they were taken.
      num_warmup: samples at the start that are left out.

    Raises:
      InputError: a sample is not finite, or none is left after the warm-up.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError("samples", f"an array of shape {values.shape}", "must be one row of finite numbers")
    if not 0 <= num_warmup < len(values):
        raise InputError("num_warmup", num_warmup, f"must leave at least one of {len(values)} samples")
    kept = values[num_warmup:]
    median, mean = float(np.median(kept)), float(kept.mean())
    note = ""
    if mean > OUTLIER_RATIO * median:
        note = f"the mean is {mean / median:.1f} medians: outliers dominate it, use the median"
    percentiles = np.percentile(kept, PERCENTILES).tolist()
    return SampleStatistics(
        num_samples=len(kept),
        median=median,
        mean=mean,
        percentiles=tuple(zip(PERCENTILES, percentiles, strict=True)),
        note=note,
    )
