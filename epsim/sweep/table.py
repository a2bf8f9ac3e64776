"""The rows of a sweep, and the files they are written to: equal rows give equal bytes."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError, MissingExtraError
from epsim.sweep.plan import Plan
from epsim.sweep.targets import Kind
from topology.errors import TopologyError
from topology.units import parse_rate, parse_size, parse_time

if TYPE_CHECKING:
    from epsim.sweep.journal import Record

SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """All points of a sweep with their answers.

    Args:
      plan: what was asked.
      columns: name -> kind: point, the axes, status, the answer's columns, message.
      rows: one per point, in the order of the points; None = no value.
    """

    plan: Plan
    columns: Mapping[str, Kind]
    rows: Sequence[Sequence[Any]]

    def column(self, name: str) -> list[Any]:
        """Return one column; raises InputError for an unknown name."""
        if name not in self.columns:
            raise InputError("column", name, f"must be one of {', '.join(self.columns)}")
        idx = list(self.columns).index(name)
        return [row[idx] for row in self.rows]

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return one column as numbers, quantities in SI units; NaN where there is none.

        Raises:
          InputError: an unknown column, or one of words.
        """
        cells = self.column(name)
        found = [np.nan if cell is None else as_number(cell) for cell in cells]
        if None in found:
            raise InputError("column", name, f"must hold numbers, and {cells[found.index(None)]!r} is none")
        return np.array(found, dtype=np.float64)

    def to_csv(self) -> str:
        """Return CSV; floats have all their digits, no value is an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return out.getvalue()

    def to_parquet(self) -> bytes:
        """Return Parquet (extra `parquet`); raises MissingExtraError without pyarrow."""
        arrow, parquet = import_arrow()
        kinds = {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string()}
        schema = arrow.schema([(name, kinds[kind]) for name, kind in self.columns.items()])
        arrays = [arrow.array(self.column(name), schema.field(name).type) for name in self.columns]
        out = io.BytesIO()
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), out)
        return out.getvalue()


def import_arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; raises MissingExtraError without them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"a .parquet file needs pyarrow: pip install 'epsim[parquet]' ({error})"
        ) from None
    return pyarrow, pyarrow.parquet


def make_table(plan: Plan, records: Sequence["Record"]) -> Table:
    """Put records in the order of the points, beside what was asked.

    Args:
      plan: the points.
      records: one per point, in any order.
    """
    answers = plan.target.columns
    kinds = {name: _axis_kind(values) for name, values in plan.axes.items()}
    columns: dict[str, Kind] = {"point": "int", **kinds, "status": "text", **answers, "message": "text"}
    assert len(columns) == len(kinds) + len(answers) + 3, (
        "a parameter and a column of the answer share a name"
    )
    of_point = {record.point: record for record in records}
    rows = []
    for point in plan.point_ids:
        record = of_point[point]
        asked = [_cell(value, kinds[name]) for name, value in plan.values(point).items()]
        cells = record.cells or [None] * len(answers)
        rows.append([point, *asked, record.status, *cells, record.message or None])
    return Table(plan=plan, columns=columns, rows=rows)


def as_number(value: Any) -> float | None:  # noqa: ANN401
    """Return a number, or a quantity with a unit in SI units (seconds, bytes, bytes/s); None for words."""
    return as_quantity(value)[0]


def as_quantity(value: Any) -> tuple[float | None, str]:  # noqa: ANN401
    """Return `as_number` and its unit: "B/s", "B", "s", or "" for a plain number and for words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    if not isinstance(value, str):
        return None, ""
    if value.endswith("%"):
        return as_quantity(value.removesuffix("%") + "e-2")
    try:
        return float(value), ""
    except ValueError:
        pass
    for parse, scale, unit in ((parse_rate, 1.0, "B/s"), (parse_size, 1.0, "B"), (parse_time, 1e-12, "s")):
        try:
            return parse(value) * scale, unit
        except (TopologyError, OverflowError):
            continue
    return None, ""


def _axis_kind(values: Sequence[Any]) -> Kind:
    kinds = {type(value) for value in values}
    return "int" if kinds == {int} else "float" if kinds <= {int, float} else "text"


def _cell(value: Any, kind: Kind) -> Any:  # noqa: ANN401
    if kind == "text":
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return float(value) if kind == "float" else value
