"""`epsim cluster` ignores nothing that was said, and refuses in the user's words before any work."""

import pytest

import epsim.inputs.groups
import epsim.platform.platform
from epsim.cli import run
from epsim.cluster import MAX_PAIR_BYTES, exchange_on_cluster
from epsim.errors import InputError
from epsim.platform.platform import make_platform


def refused(words, capfd):
    """Return the one sentence of a command that must fail."""
    assert run(["cluster", *words.split()]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


OF_GROUPS = ["ep 64", "ep 128", "groups 2", "placement packed", "op combine", "op dispatch", "model v3",
             "tokens 64", "routing uniform", "seed 0"]  # fmt: skip


@pytest.mark.parametrize("words", OF_GROUPS)
def test_one_exchange_goes_without_options_of_groups(words, monkeypatch, capfd):
    """Defaults that are said are refused as well: nothing would be done with them."""
    monkeypatch.setattr(epsim.platform.platform, "make_platform", None)
    said = refused(f"--all-to-all 1KiB --{words}", capfd)
    name, value = words.split()
    assert said.replace("'", "").startswith(f"epsim: {name} is {value}: goes with groups")


def test_one_exchange_is_sprayed(capfd):
    assert "policy is 'flow-hash'" in refused("--all-to-all 1KiB --policy flow-hash", capfd)
    assert run(["cluster", "--system", "clos:256", "--all-to-all", "1KiB", "--policy", "spray"]) == 0


@pytest.mark.parametrize("text", ["1e40B", "1e17B", "0B", "64.1GiB"])
def test_bytes_out_of_range_are_refused_before_any_work(text, monkeypatch, capfd):
    monkeypatch.setattr(epsim.platform.platform, "make_platform", None)
    said = refused(f"--system clos:262144 --all-to-all {text}", capfd)
    assert said == f"epsim: all-to-all is '{text}': must be from 1B to 64GiB\n"


def test_the_most_bytes_have_an_answer():
    answer = exchange_on_cluster(make_platform("clos:256"), MAX_PAIR_BYTES)
    assert answer.exact_us >= answer.time_us > 0


def test_a_time_beyond_64_bits_is_refused(monkeypatch):
    monkeypatch.setattr("epsim.cluster.MAX_SECONDS", 10)
    with pytest.raises(InputError, match=r"bytes per pair is .*: takes .* s; must take at most 10 s"):
        exchange_on_cluster(make_platform("clos:256"), MAX_PAIR_BYTES)


@pytest.mark.parametrize("words", ["--ep 4", "--all-to-all 1KiB"])
def test_a_mesh_is_refused_by_its_name(words, monkeypatch, capfd):
    monkeypatch.setattr(epsim.inputs.groups, "group_bytes", None)
    said = refused(f"--system mesh8 {words}", capfd)
    assert said.startswith("epsim: system is 'mesh8': joins cards directly")
    assert "link_bound" not in said


def test_a_mesh_beside_switches_is_no_obstacle(capfd):
    """Routes leave it out, as they do elsewhere."""
    assert run(["cluster", "--system", "ubl128-mesh", "--ep", "64", "--tokens", "64"]) == 0
    assert "2 groups of 64" in capfd.readouterr().out


@pytest.mark.parametrize("words", ["", "--routing uniform", "--placement spread"])
def test_a_seed_from_which_nothing_is_drawn_is_refused(words, capfd):
    said = refused(f"--system clos:256 --ep 64 --seed 9 {words}", capfd)
    assert said.startswith("epsim: seed is 9: goes with a routing that is drawn")


@pytest.mark.parametrize("words", ["--routing zipf:1.1", "--placement random", "--policy flow-hash"])
def test_a_seed_draws_rows_places_and_paths(words, capfd):
    assert run(["cluster", *f"--system clos:256 --ep 64 --tokens 64 --seed 9 {words}".split()]) == 0
