"""Who is lost: after a failure, every rank that is still there says so in the store of its group.

gloo says that a connection closed and not whose, and whoever notices closes its own connections too. So a
rank that notices answers in the store and looks who else does. Who does not is dead, or busy elsewhere.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from epsim.deep_ep.errors import PeerLostError

GRACE = timedelta(seconds=1)
"""How long answers are waited for. ASSUMED: a closed connection is noticed in milliseconds, also by way of
others; the rest is for a machine with more processes than cores."""
_SHORTEST = timedelta(milliseconds=1)
"""Some stores take 0 for no limit."""
_CLOSED, _GAVE_UP = "closed", "gave up after waiting "


def missing_ranks(store: dist.Store, names: Sequence[str], timeout: timedelta) -> list[int] | None:
    """Wait for the entries of all ranks.

    Args:
      store: where they write.
      names: of the entries, by rank.
      timeout: longest wait; may be 0 or less.

    Returns:
      ranks that have not written, or None if the store does not answer.
    """
    with suppress(RuntimeError):
        store.wait(list(names), max(_SHORTEST, timeout))
        return []
    try:
        return [rank for rank, name in enumerate(names) if not store.check([name])]
    except RuntimeError:
        return None


class RollCall:
    """Finds out who is lost, once for a buffer.

    Args:
      rank: own place in the group.
      global_ranks: of all members, by place.
      timeout: the time limit of the buffer.

    Attributes:
      store: where ranks answer; None = not met yet.
    """

    def __init__(self, rank: int, global_ranks: Sequence[int], timeout: timedelta) -> None:
        """Start with nobody lost."""
        self.rank, self.global_ranks, self.timeout = rank, global_ranks, timeout
        self.store: dist.Store | None = None
        self._found: tuple[str, list[int]] | None = None

    @property
    def is_done(self) -> bool:
        """Whether a loss was found already."""
        return self._found is not None

    def error(self, doing: str, cause: Exception, waits_for: int | None) -> PeerLostError:
        """Return what to raise: the first loss, since the connections are of no use after it.

        Args:
          doing: what this rank was about.
          cause: from torch.
          waits_for: the only rank that was waited for, None = all.
        """
        if self._found is None:
            is_timeout = "imed out" in str(cause) or "imeout" in str(cause)
            self._found = self._timed_out(waits_for) if is_timeout else self._closed()
        text, ranks = self._found
        return self.named(doing, text, ranks)

    def named(self, doing: str, text: str, ranks: Sequence[int]) -> PeerLostError:
        """Return the error of this rank that says `text` of `ranks`."""
        lost = tuple(self.global_ranks[rank] for rank in ranks)
        return PeerLostError(f"rank {self.rank}, {doing}: {text}", tuple(ranks), lost)

    def absent(self, missing: list[int] | None) -> tuple[str, list[int]]:
        """Return the sentence for ranks that did not come within the limit, None = not known, and them."""
        limit = f"within {self.timeout.total_seconds():g} s"
        if missing:
            return f"{self._names(missing)} did not come {limit}", missing
        known = "all ranks answer" if missing is not None else "the group's store does not answer either"
        return f"a peer did not come {limit}; which one is not known, {known}", []

    def _timed_out(self, waits_for: int | None) -> tuple[str, list[int]]:
        missing = self._answer(f"{_GAVE_UP}{self.timeout.total_seconds():g} s")
        return self.absent(missing if waits_for is None else [waits_for])

    def _closed(self) -> tuple[str, list[int]]:
        missing = self._answer(_CLOSED)
        text = "a peer closed its connection"
        if missing:
            do, have, are = ("does", "it has", "is") if len(missing) == 1 else ("do", "they have", "are")
            return f"{text}; {self._names(missing)} {do} not answer, {have} died or {are} elsewhere", missing
        if missing is None or self.store is None:
            return f"{text}; which one is not known, the group's store does not answer either", []
        for rank in range(len(self.global_ranks)):
            said = self.store.get(_entry(rank)).decode()
            if said.startswith(_GAVE_UP):
                return f"{text}; {self._names([rank])} {said}", [rank]
        return f"{text}; which one is not known, all ranks answer", []

    def _answer(self, word: str) -> list[int] | None:
        """Say that this rank is there, and return who is not; None = not known."""
        entries = [_entry(rank) for rank in range(len(self.global_ranks))]
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(_entry(self.rank), word)
                missing = missing_ranks(self.store, entries, min(GRACE, self.timeout))
                if missing is not None:
                    return missing
        return [1 - self.rank] if len(entries) == 2 else None

    def _names(self, ranks: Sequence[int]) -> str:
        plural = "" if len(ranks) == 1 else "s"
        places = ", ".join(str(rank) for rank in ranks)
        numbers = ", ".join(str(self.global_ranks[rank]) for rank in ranks)
        return f"rank{plural} {places} (global rank{plural} {numbers})"


def _entry(rank: int) -> str:
    return f"answer of rank {rank}"
