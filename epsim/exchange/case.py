"""The case: a topology, the card of each rank, and the bytes between ranks.

Dimension legend: R ranks, N NPUs, T transfers (pairs of different ranks with bytes, by source, then
destination).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from topology.edit import without_links
from topology.graph import IntArray, Topology
from topology.routes import Router

Int64 = npt.NDArray[np.int64]
Unit = Literal["us", "s"]
UNITS: Mapping[Unit, tuple[int, str]] = {"us": (10**6, "microseconds"), "s": (10**12, "seconds")}
"""Unit of a printed time -> its picoseconds, its name."""
MAX_PS = 2**63 - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ExchangeCase:
    """What is simulated, whoever simulates it.

    A transfer of phase p starts when all transfers that the same rank sends in its phase before have
    arrived; those of a rank's first phase start at `start_ps` of that rank.

    Args:
      name: for people, and part of file names.
      topology: the graph.
      npus: [R] int64, the card of each rank; distinct.
      bytes_matrix: [R, R] int64, bytes from rank to rank; the diagonal stays on the card and is no transfer.
      start_ps: [R] int64, when each rank starts; None = all at 0.
      phase: [R, R] int64, phase of each transfer, not negative; None = all in phase 0.

    Raises:
      InputError: a shape, type or value breaks a rule, or nothing is sent.
    """

    name: str
    topology: Topology
    npus: Int64
    bytes_matrix: Int64
    start_ps: Int64 | None = None
    phase: Int64 | None = None

    def __post_init__(self) -> None:
        """Validate every array and make it read-only."""
        if not self.name or not all(letter.isalnum() or letter in "-_." for letter in self.name):
            raise InputError("case name", self.name, "must be letters, digits, dots, - and _ only")
        matrix = _integers("bytes matrix", self.bytes_matrix, 2)
        size = len(matrix)
        if matrix.shape != (size, size) or size < 2:
            raise InputError(
                "shape of the bytes matrix", matrix.shape, "must be [R, R] with at least 2 ranks"
            )
        npus = _integers("npus", self.npus, 1)
        if len(npus) != size:
            raise InputError("number of npus", len(npus), f"must be one per rank, {size}")
        if len(np.unique(npus)) != size:
            raise InputError("npus", _first_double(npus), "must not repeat: one rank per NPU")
        if int(npus.max()) >= self.topology.num_npus:
            rule = f"{self.topology.name} has NPUs 0..{self.topology.num_npus - 1}"
            raise InputError("npus", int(npus.max()), rule)
        if not (matrix - np.diag(matrix.diagonal())).any():
            raise InputError("bytes matrix", "no bytes between two ranks", "must have something to send")
        object.__setattr__(self, "bytes_matrix", matrix)
        object.__setattr__(self, "npus", npus)
        for field, shape in (("start_ps", (size,)), ("phase", (size, size))):
            value = getattr(self, field)
            if value is None:
                continue
            array = _integers(field, value, len(shape))
            if array.shape != shape:
                raise InputError(f"shape of {field}", array.shape, f"must be {list(shape)}")
            object.__setattr__(self, field, array if array.any() else None)

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.npus)

    def transfers(self) -> "Transfers":
        """List the pairs of different ranks with bytes, by source, then destination."""
        src, dst = np.nonzero(self.bytes_matrix)
        src, dst = src[src != dst], dst[src != dst]
        phase = np.zeros(len(src), np.int64) if self.phase is None else self.phase[src, dst]
        return Transfers(src=src, dst=dst, num_bytes=self.bytes_matrix[src, dst], phase=phase)

    def on_one_layer(self, simulator: str) -> "ExchangeCase":
        """Return the case with only the links of the netlayer that its routes use.

        Other simulators would take short cuts through a layer that our routes leave alone.

        Raises:
          InputError: routes use several netlayers.
          TopologyError: a pair has no path.
        """
        transfers = self.transfers()
        ends = self.npus[transfers.src], self.npus[transfers.dst]
        used = np.unique(Router(self.topology, self.npus).find(*ends).netlayer)
        if len(used) > 1:
            rule = f"{simulator} has one network: choose ranks that one netlayer joins"
            raise InputError("netlayers", used.tolist(), rule)
        others = np.flatnonzero(self.topology.link_netlayer != used[0])
        return replace(self, topology=without_links(self.topology, others)) if len(others) else self

    def require_one_shot(self, simulator: str) -> None:
        """Refuse starts and phases for a simulator whose export has none.

        Raises:
          InputError: the case has several phases or a late rank.
        """
        for field in ("phase", "start_ps"):
            if getattr(self, field) is not None:
                raise InputError(
                    field, "not all 0", f"cannot be said to {simulator}: all transfers start at 0"
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfers:
    """The transfers of a case; a transfer's position is its task number everywhere.

    Args:
      src, dst: [T] int64, ranks.
      num_bytes: [T] int64, positive.
      phase: [T] int64.
    """

    src: Int64
    dst: Int64
    num_bytes: Int64
    phase: Int64

    def __len__(self) -> int:
        """T."""
        return len(self.src)

    def previous_phase(self) -> Int64:
        """Return [T] the phase of the same source that comes before each transfer's own, -1 = none."""
        width = int(self.phase.max(initial=0)) + 1
        used, slot = np.unique(self.src * width + self.phase, return_inverse=True)
        before = np.where(np.diff(used // width, prepend=-1) == 0, np.roll(used % width, 1), -1)
        return np.asarray(before[slot.reshape(-1)], np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Imported:
    """What another simulator found.

    Args:
      simulator: its name, as "ns-3-UB".
      transport: what carried the bytes, as "URMA write, packet spray"; times depend on it.
      finish_ps: [T] int64, when each transfer of the case ended.
      rounding_ps: largest distance of a printed time from the computed one.
    """

    simulator: str
    transport: str
    finish_ps: Int64
    rounding_ps: int

    @property
    def makespan_ps(self) -> int:
        """When the last transfer ended."""
        return int(self.finish_ps.max())


def finish_times(
    case: ExchangeCase, file: str, found: Mapping[tuple[int, int], int], *, complete: bool = True
) -> Int64:
    """Order times by transfer, and check that they are those of this case.

    Args:
      case: the case.
      file: for the message.
      found: (source rank, destination rank) -> picoseconds.
      complete: refuse a transfer without a time.

    Returns:
      [T] int64.

    Raises:
      InputError: a pair is not a transfer of the case, or a transfer has no time.
    """
    transfers = case.transfers()
    pairs = list(zip(transfers.src.tolist(), transfers.dst.tolist(), strict=True))
    strange = sorted(found.keys() - set(pairs))
    if strange:
        src, dst = strange[0]
        raise InputError(file, f"rank {src} -> {dst}", f"is no transfer of {case.name}")
    lost = [pair for pair in pairs if pair not in found]
    if complete and lost:
        src, dst = lost[0]
        rule = f"never ended, as {len(lost)} of {len(pairs)} transfers"
        raise InputError(file, f"rank {src} -> {dst}", rule)
    return np.array([found[pair] for pair in pairs], np.int64)


def read_time(field: str, text: str, unit: Unit) -> tuple[int, int]:
    """Read a printed time.

    Args:
      field: file, line and column, for the message.
      text: a number.
      unit: of the number.

    Returns:
      picoseconds, and their largest rounding error in picoseconds.

    Raises:
      InputError: no number, a negative one, or one beyond 64-bit picoseconds.
    """
    unit_ps, name = UNITS[unit]
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("nan")
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or value < 0:
        raise InputError(field, text, f"must be {name}, a number that is not negative")
    # Exponents first: a number of millions of digits would be made otherwise.
    is_huge = max(value.adjusted(), exponent) > 20
    if is_huge or round(value * unit_ps) > MAX_PS:
        rule = f"must be at most {MAX_PS / unit_ps:.3g} {name}: times are kept as 64-bit picoseconds"
        raise InputError(field, text, rule)
    # A printed digit is right to half of its place; one picosecond more for our own rounding.
    return round(value * unit_ps), math.ceil(Decimal(unit_ps).scaleb(max(exponent, -99)) / 2) + 1


def _integers(field: str, value: IntArray, num_dims: int) -> Int64:
    """Check an integer array without negative entries, copy it and make it read-only."""
    array: npt.NDArray[Any] = np.asarray(value)
    if array.ndim != num_dims or not np.issubdtype(array.dtype, np.integer):
        what = f"{array.dtype} array of shape {array.shape}"
        raise InputError(field, what, f"must be integers with {num_dims} dimension{'s' * (num_dims > 1)}")
    if array.size and int(array.min()) < 0:
        raise InputError(field, int(array.min()), "must not be negative")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(field, int(array.max()), "must be below 2^63")
    done = array.astype(np.int64)
    done.flags.writeable = False
    return done


def _first_double(values: Int64) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts > 1][0])
