"""Inputs on which a broken run and a right one look alike: agreement on them proves nothing."""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.capture import Capture

PAYLOADS = {"x": ("recv_x",), "combine_x": ("combined_x",)}
"""Inputs that must tell tokens apart, and the fields that rest on them."""


def vacuous_reasons(capture: Capture, compared: Collection[str]) -> tuple[str, ...]:
    """Return why agreement would prove nothing; empty = it proves something.

    Args:
      capture: whose inputs to look at.
      compared: fields of which at least one element was compared.
      Source: anchors.md sections 5.3 and 7, "vacuous test".
    """
    if not compared:
        return ("nothing could be compared",)
    reasons = []
    owner = np.append(capture.config.expert_ranks(), -1)
    targets = [owner[np.asarray(arrays["topk_idx"])] for arrays in capture.ranks]
    if not any((grid >= 0).any() for grid in targets):
        reasons.append("no token has an expert")
    elif capture.config.ep_size > 1 and not any(
        ((grid >= 0) & (grid != rank)).any() for rank, grid in enumerate(targets)
    ):
        reasons.append("every token stays on its own rank")
    for name, fields in PAYLOADS.items():
        rows = capture.column(name)
        if rows is not None and any(field in compared for field in fields):
            reasons += _flat(name, rows, capture)
    return tuple(reasons)


def _flat(name: str, ranks: list[npt.NDArray[Any]], capture: Capture) -> list[str]:
    """Say so if rows are all zero, or all the same."""
    if name == "combine_x":
        # Padding may be zero or anything; rows that differ anywhere are enough to go on.
        ranks = [rows for rows in ranks if rows.ndim == 2]
    filled = [rows for rows in ranks if rows.size]
    if not filled:
        return [f"{name} is empty"]
    bits = [np.ascontiguousarray(rows).view(np.dtype(f"u{rows.dtype.itemsize}")) for rows in filled]
    # The sign bit alone is a zero too.
    sign = np.array(1, bits[0].dtype) << np.array(8 * bits[0].dtype.itemsize - 1, bits[0].dtype)
    if not any((rows & ~sign).any() for rows in bits):
        return [f"{name} is zero everywhere"]
    if sum(map(len, bits)) > 1 and all((rows == bits[0][0]).all() for rows in bits):
        return [f"all rows of {name} are the same"]
    return []
