"""Measurements: public figures as typed rows, read strictly from CSV.

Nothing here feeds a prediction; `epsim.validate` compares with them and `epsim.calibrate` fits to them.

The header names the columns, in any order. A cell that says "same" repeats the cell above. `latency_us` is
one number or a range as "1977..2060".
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from epsim.errors import InputError
from epsim.model.closedform import OPERATIONS, Operation
from reference.memory.sizes import Dtype
from reference.routing.readable import read_regular

Use = Literal["calibrate", "validate"]

LOGICAL = "logical GB/s incl. local rank"
SCALEOUT = "logical scale-out GB/s incl. local domain"
SLOTS = "payload GB/s per rank"
REMOTE_SLOTS = "payload GB/s of remote slots"
BOTTLENECK = "bottleneck GB/s"
TIME = "time only"
METRICS = (LOGICAL, SCALEOUT, SLOTS, REMOTE_SLOTS, BOTTLENECK, TIME)
"""What a row's GB/s counts; see `epsim.calibration.cases.metric_bytes`."""

TEXTS = ("id", "system", "generation", "topology", "kernel", "conditions", "source")
WHOLE = ("ep_size", "tokens_per_rank", "hidden", "num_topk", "num_experts")
COLUMNS = (*TEXTS, *WHOLE, "op", "dtype", "gb_per_s_min", "gb_per_s_max", "latency_us", "metric", "use")
NOT_INDEPENDENT = "not independent"
"""What the conditions of a row say that a packaged profile was derived from."""
PACKAGED = ("published", "community")
_ONE_BYTE = ("fp8", "int8")


@dataclass(frozen=True, kw_only=True)
class Range:
    """A measured quantity.

    Args:
      low: smallest value, in GB/s or us.
      high: largest value.
      rounding: half a unit of the last digit that was printed.
    """

    low: float
    high: float
    rounding: float

    @property
    def middle(self) -> float:
        """Mid-point, the target of a fit."""
        return (self.low + self.high) / 2

    @property
    def text(self) -> str:
        """The range as a person writes it."""
        low, high = f"{self.low:,.10g}", f"{self.high:,.10g}"
        return low if low == high else f"{low}-{high}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A measured quantity and what was predicted for it.

    Args:
      unit: "GB/s" or "us".
      measured: its range; a fit aims at the mid-point.
      predicted: mean over ranks, or the time.
    """

    unit: str
    measured: Range
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over the mid-point, minus one."""
        return self.predicted / self.measured.middle - 1

    @property
    def is_inside(self) -> bool:
        """Whether the prediction lies in the measured range as printed."""
        return self.measured.low <= self.predicted <= self.measured.high


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured case. At least one of `bandwidth` and `latency` is there.

    Args:
      where: file and line, for error messages.
      id: unique name.
      system: library or product.
      generation: card.
      topology: network, in words.
      op: operation.
      ep_size: ranks.
      tokens_per_rank: tokens of a rank, or its capacity where ranks send fewer.
      hidden: elements of a token.
      num_topk: choices of a token.
      num_experts: of the whole group.
      dtype: of the payload, in words.
      kernel: kind of kernel.
      bandwidth: GB/s over ranks; None = not published.
      latency: us; None = not published.
      metric: what the GB/s count, one of METRICS.
      conditions: everything else that was said.
      source: document.
      use: whether a fit may use it.
    """

    where: str
    id: str
    system: str
    generation: str
    topology: str
    op: Operation
    ep_size: int
    tokens_per_rank: int
    hidden: int
    num_topk: int
    num_experts: int
    dtype: str
    kernel: str
    bandwidth: Range | None
    latency: Range | None
    metric: str
    conditions: str
    source: str
    use: Use

    @property
    def element_dtype(self) -> Dtype:
        """The dtype of this width that epsim has byte formulas for; int8 rows use fp8's."""
        return "fp8" if self.dtype.startswith(_ONE_BYTE) else "bf16"

    @property
    def is_derived_from(self) -> bool:
        """Whether a packaged profile took a number from this row, so that agreement proves little."""
        return NOT_INDEPENDENT in self.conditions

    @property
    def gb_per_s_min(self) -> float | None:
        """Lower end in GB/s."""
        return None if self.bandwidth is None else self.bandwidth.low

    @property
    def gb_per_s_max(self) -> float | None:
        """Upper end in GB/s."""
        return None if self.bandwidth is None else self.bandwidth.high


def packaged_measurements(name: str) -> tuple[Measurement, ...]:
    """Return a set of measurements that comes with epsim.

    Args:
      name: "published" (tables of the libraries) or "community" (reports of ports and other kernels).

    Raises:
      InputError: unknown name.
    """
    if name not in PACKAGED:
        raise InputError("measurements", name, f"must be one of {', '.join(PACKAGED)}")
    entry = resources.files("epsim.measurements").joinpath(f"{name}.csv")
    return parse_measurements(entry.read_bytes(), f"{name}.csv")


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """Read a measurement file.

    Raises:
      InputError: the file cannot be read or breaks a rule; names file, line, column, value and rule.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise InputError("measurements", str(path), f"cannot be read: {error.strerror}") from None
    return parse_measurements(data, Path(path).name)


def parse_measurements(data: bytes, name: str) -> tuple[Measurement, ...]:
    """Read the bytes of a measurement file.

    Args:
      data: CSV in UTF-8.
      name: of the file, for error messages.

    Raises:
      InputError: as `read_measurements`.
    """
    rows: list[Measurement] = []
    lines: dict[str, str] = {}
    for where, cells in _records(data, name):
        row = _measurement(where, cells)
        if row.id in lines:
            raise InputError(f"{where}, id", row.id, f"must be unique, and {lines[row.id]} has it too")
        lines[row.id] = where
        rows.append(row)
    if not rows:
        raise InputError(name, "no row", "must hold at least one measurement below the header")
    return tuple(rows)


def _records(data: bytes, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, column -> cell) with "same" replaced."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "must be CSV in UTF-8") from None
    if "\0" in text:  # the csv module lets it through
        raise InputError(name, f"character {text.index(chr(0))}", "must be text, and this is a NUL")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = _header(next(reader, []), name)
        above: dict[str, str] = {}
        for line in reader:
            where = f"{name} line {reader.line_num}"
            if not line:
                continue
            if len(line) != len(header):
                raise InputError(where, f"{len(line)} cells", f"must have {len(header)}, as the header has")
            cells = dict(zip(header, (cell.strip() for cell in line), strict=True))
            for column, cell in cells.items():
                if cell == "same":
                    if not above:
                        raise InputError(f"{where}, {column}", cell, "needs a row above that it repeats")
                    cells[column] = above[column]
            above = cells
            yield where, cells
    except csv.Error as error:
        raise InputError(f"{name} line {reader.line_num}", "text", f"must be CSV: {error}") from None


def _header(cells: list[str], name: str) -> list[str]:
    where, names = f"{name} line 1", [cell.strip() for cell in cells]
    for column in COLUMNS:
        if column not in names:
            raise InputError(f"{where}, header", ",".join(names)[:60], f"must name the column {column}")
    for column in names:
        if column not in COLUMNS:
            raise InputError(f"{where}, header", column, f"must be one of {', '.join(COLUMNS)}")
        if names.count(column) > 1:
            raise InputError(f"{where}, header", column, "must occur once")
    return names


def _measurement(where: str, cells: Mapping[str, str]) -> Measurement:
    for column in (*TEXTS, "dtype"):
        if not cells[column]:
            raise InputError(f"{where}, {column}", "", "must not be empty")
    fields: dict[str, Any] = {column: cells[column] for column in (*TEXTS, "op", "dtype", "metric", "use")}
    for column in WHOLE:
        fields[column] = _whole(f"{where}, {column}", cells[column])
    _choice(where, "op", cells, OPERATIONS)
    _choice(where, "metric", cells, METRICS)
    _choice(where, "use", cells, ("calibrate", "validate"))
    if not cells["dtype"].startswith((*_ONE_BYTE, "bf16")):
        raise InputError(f"{where}, dtype", cells["dtype"], "must start with fp8, int8 or bf16")
    latency = _latency(f"{where}, latency_us", cells["latency_us"])
    bandwidth = _bandwidth(where, cells)
    if (bandwidth is None) != (cells["metric"] == TIME):
        rule = f"goes with GB/s, and {TIME!r} with latency_us alone"
        raise InputError(f"{where}, metric", cells["metric"], rule)
    if bandwidth is None and latency is None:
        raise InputError(f"{where}, latency_us", "", "must be given where no GB/s are")
    return Measurement(where=where, bandwidth=bandwidth, latency=latency, **fields)


def _choice(where: str, column: str, cells: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    if cells[column] not in allowed:
        raise InputError(f"{where}, {column}", cells[column], f"must be one of {'; '.join(allowed)}")


def _bandwidth(where: str, cells: Mapping[str, str]) -> Range | None:
    low, high = cells["gb_per_s_min"], cells["gb_per_s_max"]
    if not low and not high:
        return None
    if not low or not high:
        raise InputError(f"{where}, gb_per_s_{'max' if low else 'min'}", "", "goes with the other end")
    return _range(f"{where}, gb_per_s_min", f"{where}, gb_per_s_max", low, high)


def _latency(where: str, text: str) -> Range | None:
    if not text:
        return None
    low, dots, high = text.partition("..")
    return _range(where, where, low, high if dots else low)


def _range(low_field: str, high_field: str, low: str, high: str) -> Range:
    least, most = _positive(low_field, low), _positive(high_field, high)
    if least > most:
        raise InputError(low_field, low, f"must not exceed the upper end {high}")
    decimals = max(len(text.strip().partition(".")[2]) for text in (low, high))
    return Range(low=least, high=most, rounding=0.5 * 10.0**-decimals)


def _positive(field: str, text: str) -> float:
    # Stricter than float(), which takes "1_000", "nan" and foreign digits; the decimals must be countable.
    value = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) else 0.0
    if value <= 0:
        raise InputError(field, text, "must be a plain decimal number above 0")
    return value


def _whole(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10) or int(text) < 1:
        raise InputError(field, text, "must be a whole number of at least 1")
    return int(text)
