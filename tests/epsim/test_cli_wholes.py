"""Whole numbers on the command line, cards of ranks, and files that cannot be written, before any work."""

import ast
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import epsim.cli
from epsim.cli import run
from epsim.cli.wholes import parse_cards
from epsim.errors import InputError
from epsim.predict import predict
from epsim.simulate import simulate
from topology import clos

SMALL = ["--ep", "4", "--tokens", "16", "--op", "dispatch"]


def refused(words, capfd):
    """Run a command that must be refused in one sentence, and return the sentence."""
    assert run(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("word", ["8.5", "8.0", "1e3", "0x10", "1_000", "", "eight"])
@pytest.mark.parametrize("words", [["predict", "--tokens"], ["simulate", "--seed"], ["cluster", "--ep"]])
def test_what_is_no_whole_number_is_refused(words, word, capfd):
    assert "must be a whole number" in refused([*words, word], capfd)


def int_options(source):
    """Yield (line, has the converter) of every option that is an int."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Annotated":
            kind, *others = node.slice.elts
            if ast.unparse(kind) in ("int", "int | None"):
                yield node.lineno, any(ast.unparse(other) == "Whole" for other in others)


def test_every_int_option_has_the_one_converter():
    found = [
        (path.name, *item)
        for path in Path(epsim.cli.__file__).parent.glob("*.py")
        for item in int_options(path.read_text())
    ]
    assert len(found) > 20
    assert [item[:2] for item in found if not item[2]] == []
    # Planted: an option without it is seen.
    assert list(int_options("x: Annotated[int | None, Parameter(help='')] = None")) == [(1, False)]


WRITERS = [
    "predict --csv no/a.csv", "predict --plot no/a.svg", "predict --ep 8 --save-workload no/a.json",
    "simulate --ep 8 --op dispatch --trace no/a.json", "simulate --ep 8 --op dispatch --plot no/a.svg",
    "simulate --ep 8 --op dispatch --plot-links no/a.svg", "validate --csv no/a.csv",
    "whatif --fault plane-lost:2 --ep 8 --op dispatch --trace no/a.json",
    "whatif --fault plane-lost:2 --ep 8 --op dispatch --plot no/a.svg", "workload pp --trace no/a.json",
    "calibrate --out no/a.toml", "calibrate --csv no/a.csv", "topo convert ubl128 no/a.toml",
    "topo draw ubl128 --out no/a.svg", "sweep --grid ep=8 --out no/a.csv",
    "sweep --grid ep=8 --out a.csv --plot-sensitivity no/a.svg", "exchange export no/case --to simgrid",
]  # fmt: skip


WORKERS = [
    ("epsim.predict", "predict"), ("epsim.simulate", "simulate"), ("epsim.whatif", "whatif"),
    ("epsim.validate", "validate"), ("epsim.calibrate", "calibrate"), ("epsim.sweep", "run_sweep"),
    ("epsim.platform.platform", "make_platform"), ("epsim.platform.systems", "load_system"),
]  # fmt: skip


@pytest.mark.parametrize("words", WRITERS)
def test_a_missing_folder_is_noticed_before_any_work(words, tmp_path, monkeypatch, capfd):
    """The work itself would fail: nothing is left to do it with."""
    monkeypatch.chdir(tmp_path)
    for module, function in WORKERS:
        monkeypatch.setattr(import_module(module), function, None)
    assert "no/" in refused(words.split(), capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "cards"),
    [("0,8,16", (0, 8, 16)), ("0:32:8", (0, 8, 16, 24)), ("3:5", (3, 4)), ("7, 0:2", (7, 0, 1))],
)
def test_cards_are_numbers_and_ranges(text, cards):
    assert parse_cards("npus", text) == cards


@pytest.mark.parametrize("text", ["", "a", "1,", "5:3", "0:8:0", "-1", "1.5", "0:9999999", "0:8:1:1"])
def test_what_are_no_cards_is_refused(text):
    with pytest.raises(InputError, match="npus is"):
        parse_cards("npus", text)


NO_CARDS = {
    "0,1,2": "must be whole numbers, one for each of 4 ranks", "0,1,2,128": "npus is 128",
    "0,1,2,1": "must not repeat", }  # fmt: skip


@pytest.mark.parametrize("command", ["predict", "simulate"])
@pytest.mark.parametrize("words", NO_CARDS)
def test_cards_that_cannot_be_are_refused(command, words, capfd):
    assert NO_CARDS[words] in refused([command, *SMALL, *f"--npus {words}".split()], capfd)


def test_cards_go_with_one_group_on_a_graph(capfd):
    words = ["predict", "--ep", "4,8", "--npus", "0:4"]
    assert "goes with one group size" in refused(words, capfd)
    assert "without cards" in refused(["predict", *SMALL, "--system", "sm90", "--npus", "0:4"], capfd)
    assert "goes without npus" in refused(
        ["predict", *SMALL, "--npus", "0:4", "--ranks-per-supernode", "2"], capfd
    )


def test_ranks_on_the_first_cards_are_as_usual():
    common = {"ep": 4, "tokens": 64, "operations": ("dispatch",)}
    usual, same = predict(**common), predict(npus=range(4), **common)
    assert usual.to_json() == same.to_json()
    for level in ("flow", "events"):
        [usual], [same] = simulate(level=level, **common), simulate(level=level, npus=range(4), **common)
        assert dict(usual.to_dict()) == dict(same.to_dict())


def test_cards_of_two_supernodes_cross_the_network_between_them():
    topology = clos(32, supernode_size=16)
    common = {"ep": 8, "tokens": 64, "num_experts": 64, "operations": ("dispatch",)}
    halves = [*range(4), *range(16, 20)]
    [spread], [two] = (
        predict(topology, **common, npus=halves), predict(topology, **common, ranks_per_supernode=4),
    )  # fmt: skip
    assert spread.time_us == two.time_us > predict(topology, **common)[0].time_us
    [near] = simulate(topology, level="flow", **common)
    [far] = simulate(topology, level="flow", npus=halves, **common)
    assert far.time_us > near.time_us
    with pytest.raises(InputError, match="must put consecutive ranks into a supernode"):
        simulate(topology, npus=[0, 16, 1, 17, 2, 18, 3, 19], **common)


def test_a_slow_cable_is_met_where_its_card_is():
    common = {"ep": 4, "tokens": 64, "operations": ("dispatch",), "faults": ("link-slow:npu9/plane2@0.5",)}
    [away], [there] = (simulate(level="flow", npus=npus, **common) for npus in (range(4), (0, 1, 2, 9)))
    assert there.time_us > away.time_us
    assert np.array_equal(there.ranks.received_rows, away.ranks.received_rows)
