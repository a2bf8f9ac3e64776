"""Engram fetch: every core loads rows of a table that is spread over all ranks, through UBMEM.

Entry g lives on rank g // entries as its row g % entries. Core c of a rank takes the places c, c + C, ... of
its indices, and has several rows on their way at a time (deepep-ascend.md section 4.8). R ranks, T tokens, J
entries per token, C cores.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.schedule.collectives import NUM_BLOCKS
from epsim.schedule.transfers import Draft, Transfers, whole

MAX_STAGES: Final = 8
"""Row buffers of a core at most (deepep-ascend.md section 4.8)."""
UB_BYTES: Final = 248 * 1024
"""Usable on-chip memory of a core (ascend.md section 1.2)."""


def engram_fetch(
    indices: Sequence[npt.NDArray[np.integer]],
    *,
    entries_per_rank: int,
    entry_bytes: int,
    num_cores: int = NUM_BLOCKS,
) -> Transfers:
    """Fetch the rows of one layer on every rank.

    Args:
      indices: per rank [T, J] integers, global entry ids; negative = nothing is fetched.
      entries_per_rank: N.
      entry_bytes: of one row.
      num_cores: C.

    Returns:
      Transfers: a load per row, from its owner; a copy for own rows.

    Raises:
      InputError: an id beyond the table, or a number out of range.
    """
    ranks, size = whole("ranks", len(indices), 1), whole("entry bytes", entry_bytes, 1)
    entries, cores = whole("entries per rank", entries_per_rank, 1), whole("cores", num_cores, 1)
    # One buffer is being written out while the others wait for their loads.
    ahead = max(1, min(MAX_STAGES, UB_BYTES // size) - 1)
    draft = Draft(ranks)
    for rank, ids in enumerate(indices):
        flat = np.asarray(ids).reshape(-1)
        if flat.size and flat.max() >= ranks * entries:
            rule = f"must be below the {ranks * entries} entries of the table"
            raise InputError(f"indices[rank {rank}]", int(flat.max()), rule)
        on_core: dict[int, list[int]] = {core: [] for core in range(cores)}
        for place in np.flatnonzero(flat >= 0).tolist():
            core = place % cores
            earlier = on_core[core]
            waits = [earlier[-ahead]] if len(earlier) >= ahead else []
            owner = int(flat[place]) // entries
            number = draft.add(owner, rank, size, label="row", lane="ubmem-load", queue_idx=core, after=waits)
            earlier.append(number)
    return draft.build()


def uniform_indices(
    num_ranks: int, num_tokens: int, entries_per_token: int, entries_per_rank: int, seed: int
) -> list[npt.NDArray[np.int64]]:
    """Draw [T, J] ids for every rank, every entry of the table equally likely."""
    rng = np.random.default_rng(seed)
    shape = (whole("tokens", num_tokens, 0), whole("entries per token", entries_per_token, 1))
    table = whole("ranks", num_ranks, 1) * whole("entries per rank", entries_per_rank, 1)
    return [rng.integers(table, size=shape) for _ in range(num_ranks)]
