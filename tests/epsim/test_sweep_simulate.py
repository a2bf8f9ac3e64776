"""A sweep over simulations: levels, policies and faults are axes like any other."""

import pytest

from epsim.cli import run
from epsim.errors import InputError
from epsim.simulate import simulate
from epsim.sweep.targets import check_name, evaluate, find_target

POINT = {"ep": 8, "tokens": 256, "operations": "dispatch", "level": "events", "grain": "chunk:4"}


def cells(**changes):
    target = find_target("simulate")
    return dict(zip(target.columns, evaluate(target, {**POINT, **changes}), strict=True))


def test_a_point_is_what_simulate_says():
    [item] = simulate(level="flow", ep=8, tokens=256, operations=("dispatch",))
    found = cells(level="flow", grain="chunk")
    assert found["time_us"] == item.time_us
    assert found["fingerprint"] == item.fingerprint


def test_a_fault_is_an_axis():
    assert cells(fault="plane-lost:2")["time_us"] > cells()["time_us"]


def test_a_profile_number_is_an_axis():
    assert cells(**{"set.hbm_rate": "1.6TB/s"})["time_us"] > cells()["time_us"]


@pytest.mark.parametrize("name", ["fualt", "two_layer", "draws"])
def test_an_axis_that_simulate_lacks_is_refused(name):
    with pytest.raises(InputError, match="axis"):
        check_name(find_target("simulate"), name)


def test_a_wrong_grain_is_refused():
    with pytest.raises(InputError, match="grain"):
        cells(grain="bytes")


@pytest.mark.parametrize(("level", "other"), [("flow", {"grain": "sqe"}), ("events", {"mode": "exact"})])
def test_what_a_level_would_ignore_is_refused_as_simulate_refuses_it(level, other, capsys):
    """Issue 4: rows repeated where a grain met the flow level or a mode met events."""
    [(name, value)] = other.items()
    with pytest.raises(InputError) as caught:
        cells(**{"level": level, "grain": "chunk", **other})
    assert caught.value.field == name
    assert run(["simulate", "--level", level, f"--{name}", value]) == 2
    assert str(caught.value) in capsys.readouterr().err
