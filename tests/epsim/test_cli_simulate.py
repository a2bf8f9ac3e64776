"""What `epsim simulate` and `epsim workload` print and write."""

import json
import re

import numpy as np
import pytest

from epsim.cli import run
from epsim.schedule.workloads import WORKLOADS
from epsim.simulate import simulate

SMALL = ["simulate", "--ep", "4", "--tokens", "16"]
PIPE = ["workload", "pp", "--ranks", "2", "--with", "microbatches=2"]


def printed(words, capfd):
    """Run a command that must succeed and return what it prints."""
    assert run(words) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def parsed(text):
    """Read JSON, and refuse NaN and Infinity, which Python would write and nobody else reads."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("level", ["flow", "events"])
def test_the_table_names_levels_sizes_and_ports(level, capfd):
    """One line per group size and operation, with what the library gives."""
    out = printed(["simulate", "--ep", "2,4", "--tokens", "16", "--level", level], capfd)
    for item in simulate(level=level, ep=(2, 4), tokens=16):
        assert re.search(rf"{level} +{item.operation} \w+ +{item.ep_size} .* {item.time_us:,.1f} ", out)
        assert item.ports[0].name in out
    assert "no schedule is faster" in out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--level", "flow"],
        ["--masked-ratio", "1"],
        ["--masked-ratio", "1", "--level", "flow"],
        ["--no-slope", "--policy", "flow-hash"],
    ],
)
def test_json_holds_every_number_and_no_nan(words, capfd):
    """The same keys for every case, also when no row is sent at all."""
    found = parsed(printed([*SMALL, "--json", *words], capfd))
    assert [item["operation"] for item in found] == ["dispatch", "combine"]
    for item in found:
        assert set(item) == set(simulate(level="flow", ep=2, tokens=4)[0].to_dict())
        assert item["time_us"] >= item["bound_us"]
        assert {len(values) for values in item["ranks"].values()} == {4}


def test_a_barrier_in_the_epilogue_ends_the_time_at_the_last_doorbell(capfd):
    """Bytes still move then, so the busiest link may need longer, and the table says why."""
    words = [*SMALL, "--exit-barrier", "epilogue"]
    for item, whole in zip(
        parsed(printed([*words, "--json"], capfd)), simulate(ep=4, tokens=16), strict=True
    ):
        assert item["time_us"] == item["kernel_us"] == whole.kernel_us < whole.time_us
    assert "timed to the last doorbell" in printed(words, capfd)


def test_json_of_one_rank(capfd):
    """A rank alone crosses no link, and the ratio to the bound is said to be 1."""
    for level in ("flow", "events"):
        words = ["simulate", "--ep", "1", "--tokens", "16", "--level", level, "--json"]
        for item in parsed(printed(words, capfd)):
            assert (item["bound_us"], item["ratio_to_bound"]) == (0, 1)
            assert item["binding"] == "nothing crosses a link"


@pytest.mark.parametrize("words", [[*SMALL, "--op", "dispatch"], PIPE])
def test_a_timeline_is_written_for_perfetto_and_for_a_browser(words, tmp_path, capfd):
    """Both forms, and the name is printed."""
    for name in ("a.json", "a.html"):
        path = tmp_path / name
        assert f"wrote {path}" in printed([*words, "--trace", str(path)], capfd)
    assert parsed((tmp_path / "a.json").read_text())["traceEvents"]
    assert (tmp_path / "a.html").read_text().lower().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]


@pytest.mark.parametrize(("suffix", "first"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_written(suffix, first, tmp_path, capfd):
    """The timeline as an image."""
    path = tmp_path / f"a.{suffix}"
    assert f"wrote {path}" in printed([*SMALL, "--op", "dispatch", "--plot", str(path)], capfd)
    assert path.read_bytes().startswith(first)


def test_json_with_a_timeline_prints_json_alone(tmp_path, capfd):
    """A program can read what is printed, and the file is there all the same."""
    path = tmp_path / "a.json"
    assert len(parsed(printed([*SMALL, "--op", "dispatch", "--json", "--trace", str(path)], capfd))) == 1
    assert path.exists()


def test_check_grain_says_what_half_the_chunk_changes(capfd):
    """One sentence per operation, with the finer run's time."""
    out = printed([*SMALL, "--grain", "chunk:2", "--check-grain"], capfd)
    assert len(re.findall(r"grain, \S+ EP4: half the chunk \(chunk:1, .*\) gives [\d.,]+ us", out)) == 2


def test_workloads_are_listed_with_their_parameters(capfd):
    """Without a name."""
    out = printed(["workload"], capfd)
    for workload in WORKLOADS.values():
        assert workload.help in out
        assert all(parameter.help in out for parameter in workload.parameters)


TINY = {
    "engram-fetch": ["tokens=4"],
    "pp": ["microbatches=2"],
    "hybrid-dispatch": ["tokens=8", "pod_size=4"],
    "hybrid-combine": ["tokens=8", "pod_size=4"],
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_answers_in_text_and_in_json(name, capfd):
    """Finite numbers; never faster than its busiest port."""
    given = [part for word in TINY.get(name, ["size=1MiB"]) for part in ("--with", word)]
    words = ["workload", name, "--ranks", "8", *given]
    assert f"{name} of 8 ranks" in printed(words, capfd)
    found = parsed(printed([*words, "--json"], capfd))
    assert found["time_us"] >= found["busiest_port_us"] > 0
    assert all(0 <= port["busy"] <= 1 for port in found["ports"])


def test_a_workload_without_bytes_has_no_ratio(capfd):
    """Null, not NaN."""
    found = parsed(printed(["workload", "all-gather", "--ranks", "1", "--json"], capfd))
    assert (found["ratio_to_bound"], found["busiest_port_us"]) == (None, 0)


def test_planted_nan_is_seen():
    """The reader of this file refuses what a careless writer would let through."""
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        parsed(json.dumps({"time_us": float("nan")}))


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_a_row_of_ports_says_the_same_bytes_at_both_levels(operation):
    """Issue 4: one of eight links stood above a whole card, 0.1065 GB beside 0.3062."""
    carried = {}
    for level in ("flow", "events"):
        [item] = simulate(level=level, ep=8, tokens=256, routing="unbalanced:4", operations=(operation,))
        for port in item.ports:
            [card] = re.findall(r"npu(\d)", port.name) or re.findall(r"rank (\d)", port.name)
            direction = "in" if f"> npu{card}" in port.name else "out"
            carried.setdefault((card, direction), set()).add(round(port.gbytes * 1e9))
    assert len(carried) >= 12
    assert all(len(found) == 1 for found in carried.values())


def test_the_first_byte_of_a_combine_is_explained_at_flow_level(capfd):
    for level, operation in (("flow", "combine"), ("flow", "dispatch"), ("events", "combine")):
        out = printed([*SMALL, "--level", level, "--op", operation], capfd)
        assert ("combine's sums all come before it" in out) == ((level, operation) == ("flow", "combine"))


def given_routing(folder):
    """Write a routing token by token for four ranks."""
    path = folder / "topk.npy"
    np.save(path, np.tile(np.arange(6), (4, 16, 1)))
    return [str(path), "--op", "dispatch"]


def test_a_seed_from_which_nothing_is_drawn_is_refused(tmp_path, capfd):
    words = ["--ep", "4", "--routing", *given_routing(tmp_path), "--seed", "9"]
    assert run(["simulate", *words]) == 2
    assert "seed is 9: goes with a law or a histogram, or with --policy flow-hash" in capfd.readouterr().err
    for others in (["simulate", "--policy", "flow-hash"], ["whatif", "--fault", "jitter@0.1"]):
        assert run([*others, *words]) == 0
