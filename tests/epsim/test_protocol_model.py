"""The small model of the protocol: right as it is, and wrong without any one of its rules."""

import pytest

from epsim.conform.interleavings import explore
from epsim.conform.protocol import RULES, check_protocol

THREE_RANKS = {"strong-last": "a completion that covers all needs two payloads, so two peers"}
"""Rules that two ranks cannot break, and why."""


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_two_ranks_with_counts_end_well_in_every_interleaving(num_rounds):
    outcome = check_protocol(num_rounds=num_rounds)
    assert (outcome.fault, outcome.path) == ("", ())


def test_three_ranks_end_well_in_every_interleaving():
    outcome = check_protocol(num_ranks=3, has_counts=False)
    assert outcome.fault == ""
    assert outcome.num_states > 30_000


@pytest.mark.parametrize("rule", RULES)
def test_without_any_rule_some_interleaving_goes_wrong(rule):
    num_ranks = 3 if rule in THREE_RANKS else 2
    outcome = check_protocol(num_ranks=num_ranks, has_counts=rule not in THREE_RANKS, without=rule)
    assert outcome.fault
    assert outcome.path


def test_what_two_ranks_cannot_break_is_known():
    unbroken = {rule for rule in RULES if not check_protocol(without=rule).fault}
    assert unbroken == set(THREE_RANKS)


def test_a_lost_entry_barrier_overwrites_a_slot_before_it_was_read():
    outcome = check_protocol(without="entry-wait")
    assert outcome.fault == "rank 1 reads payload 2 of rank 0 for round 1"
    landing = outcome.path.index("payload 2 of rank 0 lands at rank 1")
    assert "rank 0 round 2: doorbell" in outcome.path[:landing]
    assert "rank 1 round 1: read" not in outcome.path


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="'drains' is none of entry-wait"):
        check_protocol(without="drains")


def test_the_search_reports_deadlocks_and_the_shortest_fault_and_refuses_to_stop_early():
    def counter(state):
        if state < 3:
            yield "up", state + 1
            yield "jump", 10
        elif state == 11:
            yield "fault", None
        elif state == 10:
            yield "on", 11

    found = explore(0, counter, lambda state: state == 3, max_states=100)
    assert (found.fault, found.path) == ("fault", ("jump", "on", "fault"))
    stuck = explore(0, lambda state: iter([("up", 1)] if state == 0 else []), bool, max_states=100)
    assert stuck.fault == ""
    stuck = explore(0, lambda state: iter([("up", 1)] if state == 0 else []), lambda _: False, max_states=100)
    assert (stuck.fault, stuck.path) == ("deadlock: nobody can go on", ("up",))
    with pytest.raises(ValueError, match="more than 5 states"):
        explore(0, lambda state: iter([("up", state + 1)]), bool, max_states=5)
