"""Arguments of the library of a wrong type are refused as they were given, not letter by letter."""

import pytest

import epsim
from epsim.simulate import simulate

BOTH = [
    ({"operations": "dispatch"}, "operations is 'dispatch': must be a list of names, as [\"dispatch\"]"),
    ({"tokens": 2.5}, "tokens is 2.5: must be a whole number of at least 1, or one for each rank"),
    ({"tokens": "64"}, "tokens is '64': must be a whole number of at least 1, or one for each rank"),
    ({"tokens": float("nan")}, "tokens is nan: must be a whole number of at least 1, or one for each rank"),
    ({"ep": 2.5}, "ep is 2.5: must be a whole number of at least 1"),
    (
        {"settings": "hbm_rate=3TB/s"},
        "settings is 'hbm_rate=3TB/s': must be a mapping of parameter names to values",
    ),
    ({"ep": "8"}, "ep is '8': must be a whole number of at least 1"),
]


@pytest.mark.parametrize("function", [epsim.predict, simulate])
@pytest.mark.parametrize(("arguments", "sentence"), BOTH)
def test_a_wrong_type_is_named_as_it_was_given(function, arguments, sentence):
    with pytest.raises(epsim.InputError) as caught:
        function(**{"tokens": 8, **arguments})
    assert str(caught.value) == sentence


def test_one_fault_is_no_list_of_faults():
    with pytest.raises(epsim.InputError, match=r"faults is 'plane-lost:2': must be a list of specs"):
        simulate(tokens=8, faults="plane-lost:2")


def test_a_fault_is_a_text_or_a_fault():
    with pytest.raises(epsim.InputError, match=r"fault is 3: must be a spec as text, or a Fault"):
        simulate(tokens=8, faults=[3])
