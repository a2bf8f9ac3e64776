"""What a reader of a capture should know before its numbers: how ids were read, and ranks that look alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.capture import Capture
from epsim.debug.files import Arrays

ROUTING = ("topk_idx", "topk_weights")
MAX_NAMED = 8


def capture_notes(capture: Capture) -> tuple[str, ...]:
    """Return sentences on a capture; none of them says that it is wrong.

    Equal routings alone are legitimate. Ranks that agree in everything else too were most likely saved by one
    process, and ranks that agree in their tokens drew them from one seed.
    """
    notes = []
    masks = capture.num_other_masks
    if masks:
        notes.append(f"{masks:,} id{'s' if masks > 1 else ''} below -1 read as masked, as deep_ep does")
    copies, text = _alike(capture.ranks), "arrays: was one rank's file saved for each?"
    if not copies:
        copies = _alike([{n: a[n] for n in ("topk_idx", "x") if n in a} for a in capture.ranks])
        text = "topk_idx and x: was one seed used for each? A row from the wrong source would look right"
    return (*notes, *(f"{named_ranks(ranks)} gave the same {text}" for ranks in copies))


def named_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words, the first few of many."""
    more = " and more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MAX_NAMED]))}{more}"


def _alike(ranks: Sequence[Arrays]) -> list[list[int]]:
    """Return the groups of ranks whose arrays agree bit for bit and hold more than a routing."""
    groups: dict[bytes, list[list[int]]] = {}
    for rank, arrays in enumerate(ranks):
        idx = arrays["topk_idx"]
        if not idx.size or not any(a.size for name, a in arrays.items() if name not in ROUTING):
            continue
        # The routing is small and mostly differs, so the payload is seldom read.
        same_routing = groups.setdefault(idx.tobytes(), [])
        group = next((g for g in same_routing if _is_same(ranks[g[0]], arrays)), None)
        if group is None:
            same_routing.append([rank])
        else:
            group.append(rank)
    return [group for same_routing in groups.values() for group in same_routing if len(group) > 1]


def _is_same(mine: Arrays, theirs: Arrays) -> bool:
    return mine.keys() == theirs.keys() and all(_same_bits(mine[name], theirs[name]) for name in mine)


def _same_bits(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> bool:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    left, right = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (mine, theirs))
    return np.array_equal(left, right)
