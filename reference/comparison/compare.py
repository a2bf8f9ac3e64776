"""Compare results: the only meaning of "equal" is an empty report.

Per field and rank, in this order: is it there, shape, dtype, pattern of NaN and Inf, then bytes; +0 and -0
are equal by contract. No tolerance exists. Rows of received streams are matched by (source rank, token),
never by their values: sorting would hide two tokens that were swapped in one column.
"""

from collections.abc import Collection, Sequence

from reference.comparison.fieldset import Fields, fields_by_rank
from reference.comparison.mismatch import FieldCount, Mismatch, MismatchError, MismatchReport
from reference.comparison.rowkeys import PADDING_ROW, UNDEFINED_ROW, RowKeys, RowOrder, RowStream
from reference.comparison.run import Comparison
from reference.config import whole_number
from reference.errors import ConfigError

__all__ = [
    "PADDING_ROW",
    "UNDEFINED_ROW",
    "FieldCount",
    "Mismatch",
    "MismatchError",
    "MismatchReport",
    "RowKeys",
    "RowOrder",
    "RowStream",
    "assert_equal",
    "compare",
]


def compare(
    expected: object,
    actual: object,
    *,
    streams: Sequence[RowStream] = (),
    skip_fields: Collection[str] = (),
    strict_zero: bool = False,
    any_nan: bool = False,
    max_located: int = 10,
) -> MismatchReport:
    """Compare the results of all ranks.

    Args:
      expected: what is right; see `fieldset.fields_by_rank` for what may be given.
      actual: what to judge.
      streams: fields whose rows are matched by identity; every other field is compared place by place.
      skip_fields: names to leave out; the report lists them.
      strict_zero: count +0 against -0 as a difference.
      any_nan: take two NaN for equal whatever their bits.
      max_located: mismatches to locate per field and rank; all are counted.

    Returns:
      the report; empty = equal.

    Raises:
      ConfigError: nothing to compare, a field that is no array, or keys that do not fit the expected side.
    """
    whole_number("max_located", max_located, 1)
    ours, theirs = fields_by_rank("expected", expected), fields_by_rank("actual", actual)
    _check_names([*ours.values(), *theirs.values()], streams, skip_fields)
    for fields in (*ours.values(), *theirs.values()):
        for name in skip_fields:
            fields.pop(name, None)
    run = Comparison(streams, strict_zero=strict_zero, any_nan=any_nan, max_located=max_located)
    run.check_presence(ours, theirs)
    for name in dict.fromkeys(name for fields in ours.values() for name in fields):
        for rank in sorted(ours.keys() & theirs.keys()):
            if name in ours[rank] and name in theirs[rank]:
                run.check_field(name, rank, ours[rank][name], theirs[rank][name])
    return run.report(tuple(sorted(skip_fields)))


def _check_names(ranks: Sequence[Fields], streams: Sequence[RowStream], skip_fields: Collection[str]) -> None:
    """Refuse options that name no field: a misspelt one would silently change what is compared."""
    names = {name for fields in ranks for name in fields}
    for option, given in (("skip_fields", skip_fields), ("streams", [f for s in streams for f in s.fields])):
        unknown = sorted(set(given) - names)
        if unknown:
            raise ConfigError(option, unknown[0], "no rank has such a field")


def assert_equal(
    expected: object,
    actual: object,
    *,
    streams: Sequence[RowStream] = (),
    skip_fields: Collection[str] = (),
    strict_zero: bool = False,
    any_nan: bool = False,
) -> None:
    """Raise unless two results are equal; the arguments are those of `compare`.

    Raises:
      MismatchError: they differ; it carries the report and shows its first ten mismatches.
      ConfigError: as `compare`.
    """
    __tracebackhide__ = True
    report = compare(
        expected,
        actual,
        streams=streams,
        skip_fields=skip_fields,
        strict_zero=strict_zero,
        any_nan=any_nan,
    )
    if not report.is_empty:
        raise MismatchError(report)
