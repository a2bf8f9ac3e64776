"""Backends that break the protocol itself: whatever they throw or answer is a failed row, never an escape."""

import dataclasses

import pytest

from epsim.conform import run_conformance
from epsim.conform.backends.reference import ReferenceBackend
from epsim.conform.outcome import PROFILES
from native.backends.protocol import BackendFailure, Combined, Dispatched

FEW = dataclasses.replace(PROFILES["quick"], examples_per_cell=8, schedules=1)


def throws(kind):
    def thrown(*_):
        raise kind("planted")

    return thrown


def one_rank_less(right):
    return lambda *given: right(*given)[:-1]


def handles_lost(right):
    return lambda *given: dataclasses.replace(right(*given), handles=())


def rows_lost(right):
    def lost(*given):
        have = right(*given)
        received = tuple(dataclasses.replace(one, recv_x=None) for one in have.received)
        return dataclasses.replace(have, received=received)

    return lost


def flat_rows(right):
    return lambda *given: tuple(
        dataclasses.replace(r, combined_x=r.combined_x.ravel()) for r in right(*given)
    )


ANSWERS = {
    "none": lambda right: lambda *_: None,
    "a number": lambda right: lambda *_: 7,
    "nothing in it": lambda right: lambda *_: Dispatched(received=(), handles=()),
    "Nones in it": lambda right: lambda *_: (None, None, None, None),
    "an exception": lambda right: throws(TypeError),
    "an exit": lambda right: throws(SystemExit),
    "a failure": lambda right: throws(BackendFailure),
}
CASES = [(method, ANSWERS[name]) for method in ("dispatch", "dispatch_cached", "combine") for name in ANSWERS]
CASES += [("combine", one_rank_less), ("combine", flat_rows), ("close", ANSWERS["a failure"])]
CASES += [(method, make) for method in ("dispatch", "dispatch_cached") for make in (handles_lost, rows_lost)]
CASES += [("open", ANSWERS["none"]), ("open", ANSWERS["an exception"])]
CASES += [("combine", lambda right: lambda *_: [Combined(combined_x=None)] * 4)]


class Wrong(ReferenceBackend):
    """The reference with one method of backend or session replaced."""

    def open(self, spec, schedule):
        method, make = self.planted
        if method == "open":
            return make(super().open)(spec, schedule)
        session = super().open(spec, schedule)
        setattr(session, method, make(getattr(session, method)))
        return session


@pytest.mark.parametrize(("method", "make"), CASES)
def test_a_backend_that_breaks_the_protocol_is_a_failed_row(method, make):
    backend = type("Planted", (Wrong,), {"planted": (method, make)})()
    scenario = {"dispatch_cached": "cached", "combine": "combine"}.get(method, "dispatch")
    outcome = run_conformance(backend, FEW, only=lambda cell: cell.scenario == scenario, stop_at_failure=True)
    (failure,) = outcome.failures
    assert failure.text
    assert str(outcome).startswith("conformance of reference, profile quick: FAILED: 1 cells, 0 properties")
    assert str(outcome).splitlines()[1].startswith(f"{failure.cell}: {failure.property}: ")


def test_an_outcome_reads_as_a_summary():
    outcome = run_conformance(ReferenceBackend(), dataclasses.replace(FEW, examples_per_cell=10))
    num_programs = sum(row.num_examples for row in outcome.cells)
    start = f"conformance of reference, profile quick: PASSED: {num_programs} examples, {num_programs} runs, "
    assert str(outcome).startswith(start)
    assert "\n" not in str(outcome)
