"""Before and after: parts add up, the term that grew is named, places are ordered by damage."""

import json

import numpy as np
import pytest

from epsim.cli import run
from epsim.errors import InputError
from epsim.whatif import whatif, whatif_each

COMMON = {"ep": 8, "tokens": 256, "operations": ("dispatch",)}


@pytest.mark.parametrize("level", ["flow", "events"])
@pytest.mark.parametrize("spec", ["plane-lost:2", "rank-late:3@40us"])
def test_the_terms_add_up_to_both_times(level, spec):
    [change] = whatif([spec], level=level, **COMMON)
    before, after = (sum(term[column] for term in change.terms) for column in (1, 2))
    np.testing.assert_allclose([before, after], [change.before.time_us, change.after.time_us], rtol=1e-12)


def test_a_late_rank_is_explained_by_waiting():
    [late] = whatif(["rank-late:3@40us"], **COMMON)
    [lost] = whatif(["plane-lost:2"], **COMMON)
    assert late.explained_by == "waiting for the last rank"
    assert lost.explained_by == "bytes"


def test_the_healthy_side_is_what_simulate_says():
    from epsim.simulate import simulate

    [change] = whatif(["plane-lost:2"], **COMMON)
    [healthy] = simulate(**COMMON)
    assert change.before.time_us == healthy.time_us


def test_places_are_ordered_by_damage():
    found = whatif_each("rank-slow@0.5", level="flow", **COMMON)
    changes = [damage.time_change for damage in found]
    assert len(found) == 8
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] > 0


def test_no_fault_is_refused():
    with pytest.raises(InputError, match="fault"):
        whatif([], **COMMON)


def test_the_command_prints_json(capsys):
    words = "whatif --fault plane-lost:2 --level flow --ep 8 --tokens 64 --op dispatch --json"
    assert run(words.split()) == 0
    [change] = json.loads(capsys.readouterr().out)
    assert change["time_change"] == change["after"]["time_us"] / change["before"]["time_us"] - 1


def test_a_dead_rank_ends_in_a_report(capsys):
    words = ["whatif", "--fault", "rank-dead:3", "--ep", "8", "--tokens", "64", "--op", "dispatch"]
    assert run(words) == 1
    assert "entry barrier waits for rank 3" in capsys.readouterr().err
