"""Arguments of the library of a wrong type are refused as they were given, not letter by letter."""

from pathlib import Path

import numpy as np
import pytest

import epsim
from epsim.simulate import simulate

TOPO = Path(__file__).parents[1] / "topology" / "data"
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
    ({"token_counts": np.arange(3)}, "token counts is array([0, 1, 2]): must be equal or stepped"),
    ({"system": 8}, "system is 8: must be a name, a file or a Topology"),
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


@pytest.mark.parametrize("function", [epsim.predict, simulate])
def test_numbers_of_numpy_and_paths_are_as_good_as_others(function, tmp_path):
    system = tmp_path / "cards.topo.json"
    system.write_bytes((TOPO / "eight_cards.topo.json").read_bytes())
    plain = {"ep": 4, "tokens": [4, 3, 2, 1], "masked_ratio": 0.125}
    of_numpy = {"ep": np.int64(4), "tokens": np.array([4, 3, 2, 1]), "masked_ratio": np.float32(0.125)}
    want, have = function(str(system), **plain), function(system, **of_numpy)
    assert [item.time_us for item in want] == [item.time_us for item in have]
