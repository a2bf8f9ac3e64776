"""A set of transfers and what each waits for: one type for every workload, on events and on flows.

A transfer may start when all those in its `after` are done. Between two ranks it carries bytes; from a rank
to itself it is local work. When the bytes are there, the receiver's memory works off `memory_bytes`, then
`delay_ps` pass (a computation), then the transfer is done.

Dimension legend: N transfers, M waits, R ranks, S labels.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError

Int64 = npt.NDArray[np.int64]
Lane = Literal["urma", "ubmem-load", "ubmem-store"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)
"""URMA writes, loads by the receiver, stores by the sender (ascend.md sections 7.1 and 7.7)."""
LOAD: Final = LANES.index("ubmem-load")
NEVER: Final = -1
"""In `after`: something that nobody will do, e.g. a receive that is missing from a program."""
MAX_BYTES: Final = 2**50
"""Of one transfer: far beyond any memory, and sums of a million of them fit 64 bits."""
MAX_TRANSFERS: Final = 2**20
"""Of one set: more of them would be hours of Python, and gigabytes."""
_COLUMNS = ("src", "dst", "size_bytes", "lane", "queue_idx", "memory_bytes", "delay_ps", "label_idx")


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfers:
    """N transfers as columns.

    Args:
      num_ranks: R.
      src: [N] int64, rank that holds the bytes.
      dst: [N] int64, rank that gets them; equal to src for local work.
      size_bytes: [N] int64; a local one occupies the memory once, as dispatch's local copies do.
      lane: [N] int64, index into `LANES`.
      queue_idx: [N] int64, core of the issuing rank: transfers of one queue go out in the order in which
        they become ready. The issuer is dst for loads, else src.
      memory_bytes: [N] int64, what sums or copies read and write on dst when the bytes are there.
      delay_ps: [N] int64, computation on dst after that.
      label_idx: [N] int64, index into `labels`.
      labels: S texts that say what a transfer is.
      after_start: [N+1] int64; transfer n waits for after[after_start[n] : after_start[n + 1]].
      after: [M] int64, transfers, or `NEVER`.

    Raises:
      InputError: columns of different lengths, a rank, lane, queue, label or wait out of range, a negative
        or excessive size, or transfers that wait for each other in a circle; the circle is named.
    """

    num_ranks: int
    src: Int64
    dst: Int64
    size_bytes: Int64
    lane: Int64
    queue_idx: Int64
    memory_bytes: Int64
    delay_ps: Int64
    label_idx: Int64
    labels: tuple[str, ...]
    after_start: Int64
    after: Int64

    def __post_init__(self) -> None:
        """Check all rules, then freeze the columns."""
        for spec in fields(self):
            if spec.name not in ("num_ranks", "labels"):
                column = np.array(getattr(self, spec.name), np.int64)
                column.flags.writeable = False
                object.__setattr__(self, spec.name, column)
        self._check_columns()
        self._check_waits()
        if circle := self._circle():
            rule = "must not wait for each other in a circle"
            raise InputError("after", " <- ".join(map(self.describe, circle)), rule)

    def _check_columns(self) -> None:
        count = len(self.src)
        for name in _COLUMNS:
            if getattr(self, name).shape != (count,):
                raise InputError(name, getattr(self, name).shape, f"must have the shape of src, ({count},)")
        limits = {
            "src": self.num_ranks, "dst": self.num_ranks, "size_bytes": MAX_BYTES, "lane": len(LANES),
            "queue_idx": 2**31, "memory_bytes": MAX_BYTES, "delay_ps": 2**62, "label_idx": len(self.labels),
        }  # fmt: skip
        for name, limit in limits.items():
            column = getattr(self, name)
            bad = np.flatnonzero((column < 0) | (column >= limit))
            if len(bad):
                rule = f"must be in 0..{limit - 1}"
                raise InputError(f"{name}[{bad[0]}]", int(column[bad[0]]), rule)

    def _check_waits(self) -> None:
        count, start = self.num_transfers, self.after_start
        if start.shape != (count + 1,) or start[0] != 0 or (np.diff(start) < 0).any():
            raise InputError("after_start", start.shape, f"must be {count + 1} ascending numbers from 0")
        if start[-1] != len(self.after):
            raise InputError("after_start[-1]", int(start[-1]), f"must be the waits, {len(self.after)}")
        bad = np.flatnonzero((self.after < NEVER) | (self.after >= count))
        if len(bad):
            rule = f"must be a transfer 0..{count - 1}, or {NEVER} for what never comes"
            raise InputError(f"after[{bad[0]}]", int(self.after[bad[0]]), rule)

    @property
    def num_transfers(self) -> int:
        """N."""
        return len(self.src)

    @cached_property
    def issuer(self) -> Int64:
        """[N] rank whose core starts the transfer."""
        return np.where(self.lane == LOAD, self.dst, self.src)

    @cached_property
    def is_remote(self) -> npt.NDArray[np.bool_]:
        """[N] whether bytes leave a card."""
        return np.asarray((self.src != self.dst) & (self.size_bytes > 0))

    def waits_of(self, number: int) -> list[int]:
        """Return what one transfer waits for."""
        return [int(n) for n in self.after[self.after_start[number] : self.after_start[number + 1]]]

    @cached_property
    def followers(self) -> list[list[int]]:
        """For each transfer, those that wait for it, ascending."""
        found: list[list[int]] = [[] for _ in range(self.num_transfers)]
        owner = np.repeat(np.arange(self.num_transfers), np.diff(self.after_start))
        for number, first in zip(owner.tolist(), self.after.tolist(), strict=True):
            if first != NEVER:
                found[first].append(number)
        return found

    def bytes_matrix(self) -> Int64:
        """Return [R, R] bytes [src, dst] that leave a card; the diagonal is 0."""
        matrix = np.zeros((self.num_ranks, self.num_ranks), np.int64)
        some = self.is_remote
        np.add.at(matrix, (self.src[some], self.dst[some]), self.size_bytes[some])
        return matrix

    def describe(self, number: int) -> str:
        """Name one transfer for people."""
        if number == NEVER:
            return "what never comes"
        src, dst = int(self.src[number]), int(self.dst[number])
        where = f"on rank {src}" if src == dst else f"from rank {src} to rank {dst}"
        return f"{self.labels[self.label_idx[number]]} {where}"

    def _circle(self) -> list[int]:
        """Return transfers that wait for each other, the first one repeated at the end; [] = none."""
        left = np.diff(self.after_start)
        np.subtract.at(left, np.repeat(np.arange(len(left)), left)[self.after == NEVER], 1)
        missing = left.tolist()
        ready = [number for number, count in enumerate(missing) if count == 0]
        for number in ready:
            for follower in self.followers[number]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready.append(follower)
        if len(ready) == len(missing):
            return []
        path = [next(number for number, count in enumerate(missing) if count)]
        seen: dict[int, int] = {}
        while path[-1] not in seen:
            seen[path[-1]] = len(path) - 1
            path.append(next(n for n in self.waits_of(path[-1]) if n != NEVER and missing[n]))
        return path[seen[path[-1]] :]


class Draft:
    """Transfers in the making.

    Args:
      num_ranks: R.
    """

    def __init__(self, num_ranks: int) -> None:
        """Start with none."""
        self.num_ranks = num_ranks
        self._rows: list[tuple[int, ...]] = []
        self._after: list[tuple[int, ...]] = []
        self._labels: dict[str, int] = {}

    def add(
        self,
        src: int,
        dst: int,
        size_bytes: int = 0,
        *,
        label: str,
        after: Iterable[int] = (),
        lane: Lane = "urma",
        queue_idx: int | None = None,
        memory_bytes: int = 0,
        delay_ps: int = 0,
    ) -> int:
        """Add one transfer and return its number; see `Transfers`. Without a queue it has its peer's own.

        Raises:
          InputError: an unknown lane, or more than `MAX_TRANSFERS`.
        """
        if lane not in LANES:
            raise InputError("lane", lane, f"must be one of {', '.join(LANES)}")
        if len(self._rows) == MAX_TRANSFERS:
            raise InputError("transfers", f"more than {MAX_TRANSFERS}", "are too many to simulate one by one")
        peer = src if lane == "ubmem-load" else dst
        queue = peer if queue_idx is None else queue_idx
        name = self._labels.setdefault(label, len(self._labels))
        self._rows.append((src, dst, size_bytes, LANES.index(lane), queue, memory_bytes, delay_ps, name))
        self._after.append(tuple(after))
        return len(self._rows) - 1

    def local(
        self,
        rank: int,
        *,
        label: str,
        after: Iterable[int] = (),
        memory_bytes: int = 0,
        delay_ps: int = 0,
    ) -> int:
        """Add work of one rank, or only a meeting point of what it waits for, and return its number."""
        return self.add(rank, rank, label=label, after=after, memory_bytes=memory_bytes, delay_ps=delay_ps)

    def wait_also(self, number: int, others: Iterable[int]) -> None:
        """Let a transfer wait for more than it was added with."""
        self._after[number] += tuple(others)

    def set_memory(self, number: int, memory_bytes: int) -> None:
        """Say what the memory works off once the size of what comes is known."""
        row = list(self._rows[number])
        row[_COLUMNS.index("memory_bytes")] = memory_bytes
        self._rows[number] = tuple(row)

    def build(self) -> Transfers:
        """Return the transfers.

        Raises:
          InputError: as `Transfers`.
        """
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T
        counts = [len(waits) for waits in self._after]
        return Transfers(
            num_ranks=self.num_ranks,
            **dict(zip(_COLUMNS, columns, strict=True)),
            labels=tuple(self._labels),
            after_start=np.append(0, np.cumsum(counts, dtype=np.int64)),
            after=np.array([number for waits in self._after for number in waits], np.int64),
        )


def split_evenly(total: int, num_parts: int) -> list[int]:
    """Cut a number into parts that differ by at most 1, larger ones first."""
    share, rest = divmod(total, num_parts)
    return [share + (part < rest) for part in range(num_parts)]


def pieces_of(size_bytes: int, most_bytes: int) -> list[int]:
    """Cut bytes into full pieces and a rest; none for 0 bytes."""
    full, rest = divmod(size_bytes, most_bytes)
    return [most_bytes] * full + ([rest] if rest else [])


def whole(name: str, value: int, least: int, most: int = MAX_BYTES) -> int:
    """Return a whole number within its limits.

    Raises:
      InputError: something else.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise InputError(name, value, f"must be a whole number in {least}..{most}")
    return int(value)
