"""Whether bytes explain that a figure falls as the group grows: the wire's share of a logical figure first.

A logical figure counts rows that stay at home, 1 of N under uniform routing. The rate on the wire is
(N - 1) / N of it, and what still falls after that correction has another reason, which is not fitted here.
Source of the correction: DeepEP issues 51 and 285.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from epsim.calibration.measured import REMOTE_SLOTS, SCALEOUT, Range

if TYPE_CHECKING:
    from epsim.validate import Comparison

CANDIDATES = (
    "candidates where volume is not the reason, none of them shown by these figures: a shared uplink, "
    "several flows on one link, more peers than contexts, longer barriers, fewer experts to a rank"
)


def fall_text(num_homes: tuple[int, int], gb_per_s: tuple[Range, Range], *, counts_home: bool = True) -> str:
    """Say whether volume explains that a figure falls from a small group to a large one.

    Args:
      num_homes: N of both groups, at least 2: ranks, or domains where the figure counts what reaches one.
      gb_per_s: measured, of both.
      counts_home: whether the figures count rows that stay at home.

    Returns:
      One sentence; "" when the figure does not fall. A fall is the least that ranges and rounding allow.
    """
    small, large = gb_per_s
    low, high = small.low - small.rounding, large.high + large.rounding
    if high >= low:
        return ""
    before, after = ((n - 1) / n if counts_home else 1.0 for n in num_homes)
    wire = low * before, high * after
    rates = f"at least {wire[0]:.1f} and at most {wire[1]:.1f} GB/s on the wire"
    if wire[1] >= wire[0]:
        return f"explained by volume, {rates}"
    return f"not explained by volume, {rates}, still {wire[0] / wire[1]:.3g} times less"


def falls(comparisons: "Sequence[Comparison]") -> dict[str, str]:
    """Return a sentence per pair of neighbouring group sizes whose GB/s fall; keys name both rows."""
    series: dict[tuple[object, ...], list[Comparison]] = {}
    for c in comparisons:
        row = c.row
        if row.bandwidth is not None and _num_homes(c) > 1:
            key = (row.system, row.generation, row.op, row.dtype, row.kernel, row.metric, row.hidden,
                   row.tokens_per_rank, row.num_topk)  # fmt: skip
            series.setdefault(key, []).append(c)
    found = {}
    for rows in series.values():
        for small, large in pairwise(sorted(rows, key=lambda c: c.row.ep_size)):
            before, after = small.row.bandwidth, large.row.bandwidth
            if before is None or after is None or small.row.ep_size == large.row.ep_size:
                continue
            homes = _num_homes(small), _num_homes(large)
            sentence = fall_text(homes, (before, after), counts_home=small.row.metric != REMOTE_SLOTS)
            if sentence:
                found[f"{small.row.id} to {large.row.id}"] = sentence
    return found


def _num_homes(c: "Comparison") -> int:
    """Return among how many places the rows of a figure are spread, one of which is the own."""
    if c.row.metric != SCALEOUT:
        return c.row.ep_size
    return c.row.ep_size // (c.target.ranks_per_supernode or c.row.ep_size)
