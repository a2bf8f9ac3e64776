"""Is a capture right, and if not, where is the first thing that is wrong?

A capture is judged against the reference, computed from its own routing and inputs, field by field: first
what some ranks lack although others gave it, then in the order of the data flow: slots, counts, metadata,
payload, combine. Rows are matched by (source rank, token, k) through the metadata, never by their values;
orders that the contract leaves open are taken as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from epsim.capture import Capture
from epsim.debug.fields import FIELDS
from epsim.debug.judge import Compared, Judge
from epsim.debug.places import Place, Places
from epsim.debug.vacuous import vacuous_reasons
from reference.comparison.mismatch import MismatchReport

Verdict = Literal["equal", "not equal", "proved nothing"]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is known about a capture.

    Args:
      verdict: "equal" only if something was compared, nothing differs and the inputs could show a fault.
      report: all disagreements, fields in the order of the data flow.
      place: the first one; None = there is none.
      token_place: the first one that names a token: where counts differ, which row is behind it.
      compared: fields that were judged, same order.
      not_compared: results that were not judged, and why; by field, or by "field at ranks" if others gave it.
      vacuous: why "equal" would prove nothing.
      notes: what a reader should know about how it was judged.
    """

    verdict: Verdict
    report: MismatchReport
    place: Place | None
    token_place: Place | None
    compared: tuple[Compared, ...]
    not_compared: Mapping[str, str]
    vacuous: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the capture is proved right as far as it goes."""
        return self.verdict == "equal"


def diagnose(capture: Capture, *, max_located: int = 10) -> Diagnosis:
    """Compare a capture with the reference.

    Args:
      capture: what a run had and got.
      max_located: disagreements to locate per field and rank; all are counted.

    Returns:
      Diagnosis.

    Raises:
      ConfigError: the options do not fit the group, or an edition lacks them.
      InputError: unknown reduction order.
    """
    judge = Judge(capture, max_located)
    judge.judge_gaps()
    judge.judge_slots()
    judge.judge_counts()
    judge.judge_metadata()
    judge.judge_received()
    judge.judge_combined()
    skipped = dict(sorted(judge.skipped.items(), key=lambda item: list(FIELDS).index(item[0].split()[0])))
    report = MismatchReport(
        mismatches=tuple(m for part in judge.reports for m in part.mismatches),
        counts=tuple(count for part in judge.reports for count in part.counts),
        num_fields=sum(part.num_fields for part in judge.reports),
        num_elements=sum(part.num_elements for part in judge.reports),
        skipped_fields=tuple(skipped),
    )
    vacuous = vacuous_reasons(capture, [c.field for c in judge.compared if c.num_elements])
    places = Places(capture, judge)
    located = [places.locate(mismatch) for mismatch in report.mismatches]
    return Diagnosis(
        verdict="not equal" if not report.is_empty else "proved nothing" if vacuous else "equal",
        report=report,
        place=next(iter(located), None),
        token_place=next((place for place in located if place.token is not None), None),
        compared=tuple(judge.compared),
        not_compared=skipped,
        vacuous=vacuous,
        notes=tuple(judge.notes),
    )
