"""How coarsely a run is cut: packets, descriptors (SQEs), or chunks of several.

A chunk is n descriptors of one jetty to one destination. Where an AIV has fewer for a destination, several
AIVs act as one worker: they walk the destinations in the same order, and the engine serves them in turn.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError

Kind = Literal["packet", "sqe", "chunk"]
AUTO_CHUNKS = 60_000
"""Chunks that the automatic grain aims at: some seconds of Python, and the error stays below 1 %."""

MAX_PIECES: Final = 2**23
"""Pieces of one run at most: 30 to 75 us and 100 to 180 bytes each: four to ten minutes, about a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class Grain:
    """How coarsely the engine's work is cut.

    Args:
      kind: "packet" cuts descriptors into packets, "sqe" takes one at a time, "chunk" several.
      num_sqes: descriptors of a chunk; 0 = chosen so that there are about `AUTO_CHUNKS` of them.

    Raises:
      InputError: a number of descriptors without chunks, or below 0.
    """

    kind: Kind = "chunk"
    num_sqes: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no grain."""
        if self.kind not in ("packet", "sqe", "chunk"):
            raise InputError("grain", self.kind, "must be packet, sqe, chunk or chunk:N")
        if self.num_sqes < 0 or (self.num_sqes and self.kind != "chunk"):
            raise InputError("grain", f"{self.kind}:{self.num_sqes}", "only a chunk has a number, at least 1")

    @classmethod
    def parse(cls, text: str) -> "Grain":
        """Read "packet", "sqe", "chunk" or "chunk:16".

        Raises:
          InputError: anything else.
        """
        kind, colon, number = text.partition(":")
        if kind not in ("packet", "sqe", "chunk") or (colon and not (number.isascii() and number.isdigit())):
            raise InputError("grain", text, "must be packet, sqe, chunk or chunk:N")
        if colon and (kind != "chunk" or not 1 <= int(number) <= 1 << 20):
            raise InputError("grain", text, "only a chunk has a number, from 1 to 1,048,576")
        return cls(kind=kind, num_sqes=int(number) if colon else 0)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The grain as `parse` reads it."""
        return f"chunk:{self.num_sqes}" if self.num_sqes else self.kind

    def fit(self, num_sqes: float, per_visit: float, num_aivs: int, *, keeps_pace: bool) -> "Cut":
        """Choose descriptors per chunk and AIVs per worker.

        Args:
          num_sqes: descriptors of the whole operation, all ranks.
          per_visit: descriptors that an AIV posts for one destination before it turns to the next.
          num_aivs: C.
          keeps_pace: AIVs that act as one prepare as fast as each alone. In dispatch they do; in combine they
            would walk all homes in turn where each alone has few, so thin visits are not joined.
        """
        if self.kind != "chunk":
            return Cut(num_sqes=1, aivs_per_worker=1, is_packets=self.kind == "packet")
        size = self.num_sqes
        if size == 0:
            size = 1
            while num_sqes / size > AUTO_CHUNKS:
                size *= 2
        aivs = 1
        can_join = keeps_pace or per_visit > 1
        while can_join and num_aivs % (aivs * 2) == 0 and per_visit * aivs * 2 <= size:
            aivs *= 2
        return Cut(num_sqes=size, aivs_per_worker=aivs, is_packets=False)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A grain that fits a case.

    Args:
      num_sqes: descriptors of a chunk at most.
      aivs_per_worker: AIVs that act as one.
      is_packets: descriptors are cut into packets.
    """

    num_sqes: int
    aivs_per_worker: int
    is_packets: bool


def check_pieces(grain: Grain, rows: npt.NDArray[np.int64], rows_per_sqe: int, row_packets: float) -> None:
    """Refuse a run that would not end in a useful time.

    Args:
      grain: how coarsely the run is cut.
      rows: int64 [R, R], rows from rank to rank; those that stay do not count.
      rows_per_sqe: rows that one descriptor holds at most.
      row_packets: packets of a row.

    Raises:
      InputError: it has more than `MAX_PIECES` pieces; with the finest grain that fits.
    """
    remote = rows[~np.eye(len(rows), dtype=bool)]
    num_sqes = int((-(-remote // rows_per_sqe)).sum())

    def at_least(other: Grain) -> int:
        """Count a piece for every pair, and as many as there would be if none was left partly filled."""
        pieces = remote.sum() * row_packets if other.kind == "packet" else num_sqes / max(1, other.num_sqes)
        # The automatic grain goes as far as one piece per pair.
        return max(int((remote > 0).sum()), 0 if other == Grain() else int(pieces))

    pieces = at_least(grain)
    if pieces <= MAX_PIECES:
        return
    finer = [Grain(kind="sqe"), *(Grain(num_sqes=2**power) for power in range(1, 21)), Grain()]
    fits = next((f"grain {other.text}" for other in finer if at_least(other) <= MAX_PIECES), "level flow")
    rule = f"makes at least {pieces:,} pieces, and an event run takes at most {MAX_PIECES:,}; use {fits}"
    raise InputError("grain", grain.text, rule)
