"""`epsim explain`, `inspect`, `debug` through the real command line: what they print, and the exit code."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from epsim.capture import Capture, CaptureGroup, CaptureOptions, write_capture
from epsim.cli import run
from epsim.debug.files import write_arrays
from reference.routing.files import write_routing
from reference.topk import TopK
from tests.epsim.bad_files import write_all
from tests.epsim.planted import FAULTS, changed, copied, good_capture
from tests.epsim.test_story import IDS

LAW = "--routing uniform --ep 2 --experts 4 --topk 3 --tokens 4 --seed 1"
FILE = "--routing worked.safetensors --experts 4 --hidden 128 --alignment 4 --aivs 16"


def mapped_capture():
    """Return a routing alone, of a deduplicated layout whose even experts are on rank 0."""
    group = CaptureGroup(
        ep_size=2, num_experts=4, num_topk=2, hidden=128, num_max_tokens_per_rank=4, expert_ranks=(0, 1, 0, 1)
    )
    ids = {"topk_idx": np.array([[0, 1], [1, 2]])}
    options = CaptureOptions(edition="nvidia-v2", expand=False)
    return Capture(group=group, options=options, ranks=(ids, dict(ids)))


def write_holes(path, capture):
    """Write a dump that lacks a field at rank 1, once declared, and one that lacks two at both."""
    ranks = copied(capture)
    del ranks[1]["recv_topk_weights"]
    write_capture(path / "hole", changed(capture, ranks))
    write_capture(path / "partial", replace(capture, ranks=ranks, partial={"recv_topk_weights": (0,)}))
    left_out = ("recv_topk_weights", "combined_x")
    none = [{n: a for n, a in arrays.items() if n not in left_out} for arrays in capture.ranks]
    write_capture(path / "no_weights", changed(capture, none))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return a folder with bad files, the worked routing, and right and wrong captures."""
    path = tmp_path_factory.mktemp("debug")
    write_all(path)
    write_routing(path / "worked.safetensors", TopK(num_experts=4, topk_idx=IDS))
    (path / "ranks").mkdir()
    for rank, ids in enumerate(IDS):
        np.save(path / "ranks" / f"rank{rank}.npy", ids)
    capture = good_capture(2)
    write_capture(path / "right", capture)
    for fault in FAULTS:
        write_capture(path / fault.__name__, fault(capture).capture, suffix=".npz")
    for name in ("missing", "cut"):
        write_capture(path / name, capture)
    (path / "missing" / "rank1.safetensors").unlink()
    cut = path / "cut" / "rank0.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    ranks = copied(capture)
    ranks[1]["recv_x"] = ranks[1]["recv_x"].astype(np.float32)
    write_capture(path / "other_dtype", changed(capture, ranks))
    ranks[1]["recv_x"] = copied(capture)[1]["recv_x"][:, 1:]
    write_capture(path / "other_shape", changed(capture, ranks))
    other_input = {name: np.array(array) for name, array in capture.ranks[1].items()}
    other_input["x"] = other_input["x"].astype(np.float32)
    write_capture(path / "other_input", capture)
    write_arrays(path / "other_input" / "rank1.safetensors", other_input)
    write_holes(path, capture)
    np.save(path / "one_sided.npy", np.zeros((2, 1, 1), np.int64))
    write_capture(path / "other_masks", capture)
    for rank, arrays in enumerate(copied(capture)):
        arrays["topk_idx"][arrays["topk_idx"] < 0] = -7
        write_arrays(path / "other_masks" / f"rank{rank}.safetensors", arrays)
    none = [{n: a[:0] for n, a in arrays.items() if n == "topk_idx"} for arrays in capture.ranks]
    write_capture(path / "idle", changed(capture, none))
    for name, numbers in (
        ("three_rows", {"expert_alignment": 3}),
        ("many_experts", {"num_experts": 10**12}),
    ):
        index = json.loads(write_capture(path / name, capture).read_text())
        index["group"] |= numbers
        (path / name / "capture.json").write_text(json.dumps(index))
    write_capture(path / "twice", capture)
    (path / "twice" / "rank1.safetensors").write_bytes((path / "twice" / "rank0.safetensors").read_bytes())
    write_capture(path / "layout", mapped_capture())
    for rank, ids in enumerate(([[0, -7], [1, 2]], [[-1, -2], [3, 0]])):
        arrays = {"topk_idx": np.array(ids), "x": np.arange(256, dtype=np.uint16).reshape(2, 128)}
        write_arrays(path / "layout" / f"rank{rank}.safetensors", arrays)
    only_ids = [{"topk_idx": arrays["topk_idx"]} for arrays in capture.ranks]
    write_capture(path / "nothing_to_compare", changed(capture, only_ids))
    return path


@pytest.fixture
def output(folder, monkeypatch, capfd):
    """Run a command in the folder; return (exit code, stdout)."""
    monkeypatch.chdir(folder)

    def called(text):
        code = run(text.split())
        printed = capfd.readouterr()
        assert printed.err == ""
        return code, printed.out

    return called


def test_explain_tells_the_story_of_a_token(output):
    code, text = output(f"explain {FILE} --dtype bf16 --rank 0 --token 3")
    assert code == 0
    assert "slot 2 of rank 0's region; at byte 640; sent by AIV 3, gather pair 0; received row 2" in text


def test_a_folder_of_ranks_is_the_same_routing(output):
    options = "--experts 4 --hidden 128 --alignment 4 --aivs 16 --rank 1 --token 2"
    one = output(f"explain --routing worked.safetensors {options}")
    assert output(f"explain --routing ranks {options}") == one


def test_explain_goes_back_from_a_row(output):
    _, text = output(f"explain {FILE} --row 3 --at-rank 0")
    assert text.startswith(
        "expanded row 3 at rank 0: token 2 of rank 1, via k 2, expert 0\n\ntoken 2 of rank 1"
    )
    _, text = output(f"explain {FILE} --row 3 --at-rank 0 --received")
    assert text.startswith("received row 3 at rank 0: token 0 of rank 1, via k 0, the master\n")


def test_explain_as_json(output):
    _, text = output(f"explain {FILE} --rank 0 --token 0 --json --dtype bf16")
    story = json.loads(text)
    assert [record["combine_record"] for record in story["records"]] == [4, 0]
    assert story["parts"][1] == {
        "key": 2, "level": "rank", "rank": 0, "ks": [0, 2], "is_rounded": True, "members": []
    }  # fmt: skip
    _, text = output(f"explain {FILE} --row 7 --at-rank 0 --json")
    assert json.loads(text)["kind"] == "padding"


def test_the_other_layout_and_order(output):
    _, text = output(f"explain {LAW} --rank 0 --token 0 --edition nvidia-v2 --no-expand")
    assert "row" not in text.split("\n")[3]
    _, text = output(f"explain {LAW} --rank 0 --token 0 --edition nvidia-v2 --order one_rounding")
    assert "sum, recipe one_rounding" in text


def test_predict_takes_a_dump(output):
    """With other ids for none too, as every reader of a dump."""
    code, text = output("predict --ep 2 --topk 4 --experts 8 --routing right --op dispatch")
    assert (code, output("predict --ep 2 --topk 4 --experts 8 --routing other_masks --op dispatch")[1]) == (
        0, text.replace("right", "other_masks")
    )  # fmt: skip


SAID = "--ep 2 --experts 8 --topk 4 --hidden 128 --alignment 8 --capacity 12 --dtype bf16 --aivs 64"


@pytest.mark.parametrize("command", ["inspect --routing right", "explain --routing right --rank 1 --token 2"])
def test_a_dump_tells_its_own_group(output, command):
    """What capture.json says need not be said, and may be."""
    code, text = output(command)
    assert (code, text) == output(f"{command} {SAID}")
    assert ("top-4 of 8 experts" if "inspect" in command else "dispatch, bf16 (ascend)") in text


def test_a_dump_tells_its_own_layout_and_placement(output):
    """Edition, layout and map come from capture.json; ids below -1 are masked, and that is said."""
    _, text = output("explain --routing layout --rank 0 --token 1")
    assert "dispatch, bf16 (nvidia-v2)" in text
    assert re.search(r"0 +1 +- +1 +0 +yes\n +1 +2 +- +0 +1 +yes\n", text)
    notes = [
        "note: 2 ids below -1 read as masked, as deep_ep does",
    ]
    assert text.rstrip("\n").split("\n")[-1:] == notes
    _, text = output("explain --routing layout --rank 1 --token 0")
    assert text.rstrip("\n").split("\n")[-2:] == [
        "goes nowhere: combine returns the biases, or zeros without them", *notes
    ]  # fmt: skip
    _, text = output("inspect --routing layout")
    assert "masked choices         37.5%; tokens without expert: 1\n" in text
    assert text.rstrip("\n").split("\n")[-1:] == notes
    _, text = output("inspect --routing layout --json")
    assert json.loads(text)["notes"] == [note.removeprefix("note: ") for note in notes]


def test_inspect_hints_at_one_file_for_every_rank(output, folder):
    _, text = output("inspect --routing twice")
    assert text.endswith("note: ranks 0, 1 gave the same arrays: was one rank's file saved for each?\n")


def test_inspect_shows_load_and_limits(output):
    code, text = output("inspect --routing worked.safetensors --experts 4 --expert-limit 3 --rank-limit 9")
    assert code == 0
    for words in (
        "7 tokens of 2 ranks, top-3 of 4 experts, 15 choices, 10 rows",
        "masked choices         28.6%; tokens without expert: 1",
        "1 reach 0, 2 reach 1, 4 reach 2",
        "  1 3 ########################\n",
        "a limit of 3 rows per expert drops 3 (20.0%), most at expert 0",
        "a limit of 9 rows per rank drops nothing",
    ):
        assert words in text


def test_inspect_as_json(output):
    _, text = output("inspect --routing worked.safetensors --experts 4 --json")
    found = json.loads(text)
    assert (found["expert_choices"], found["distinct_ranks"]) == ([4, 3, 4, 4], [1, 2, 4, 0])


def test_inspect_and_explain_say_alike_what_upstream_refuses(output):
    """The reference defines such a group; only an edition without these limits has nothing to add."""
    group = "--routing uniform --ep 3 --experts 6 --topk 2 --tokens 3 --hidden 100"
    refused = [
        "note: DeepEP-Ascend refuses this: ep_size 3 must be even: spare channels pair ranks",
        "note: DeepEP-Ascend refuses this: hidden 100 must be a multiple of 128",
    ]
    question = "explain --rank 0 --token 0"
    for command in ("inspect", question, "explain --row 2 --at-rank 0", "explain --row 255 --at-rank 0"):
        code, text = output(f"{command} {group}")
        notes = [line for line in text.split("\n") if line.startswith("note: ")]
        assert (code, notes[:2], len(notes)) == (0, refused, 3)
    for other in (group.replace("ep 3", "ep 2").replace("100", "256"), f"{group} --edition nvidia-v2.5"):
        assert "note: " not in output(f"{question} {other}")[1]
    numbers = json.loads(output(f"{question} {group} --json")[1])["limits"]
    assert numbers == json.loads(output(f"inspect {group} --json")[1])["limits"]
    assert [hit["id"] for hit in numbers] == ["even-ranks", "combine-hidden", "padded-hidden"]


def test_a_dump_of_another_edition_has_no_limits_of_ascend(output, folder):
    group = CaptureGroup(ep_size=3, num_experts=6, num_topk=2, hidden=100, num_max_tokens_per_rank=4)
    options = CaptureOptions(edition="nvidia-v2.5")
    ids = {"topk_idx": np.array([[0, 1], [1, 2]])}
    write_capture(folder / "nvidia", Capture(group=group, options=options, ranks=(ids, dict(ids), dict(ids))))
    for command in ("inspect", "explain --rank 0 --token 0"):
        code, text = output(f"{command} --routing nvidia")
        assert (code, "DeepEP-Ascend" in text) == (0, False)


def test_debug_of_a_right_dump(output):
    code, text = output("debug right")
    assert code == 0
    assert text.startswith("right: equal\n\ncompared ")
    assert re.search(r"recv_x +2 +\d+,\d{3} +0\n", text)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_debug_names_the_first_wrong_place(output, fault):
    place = fault(good_capture(2)).place
    code, text = output(f"debug {fault.__name__}")
    assert code == 1
    assert text.startswith(f"{fault.__name__}: not equal; ")
    assert f" {place['field']} at rank " in text.split("\n")[0]
    section = text.split("first wrong place\n")[1].split("\n\n")[0]
    names = {"source_rank": "source rank", "destination_rank": "destination rank", "ulp": "ulp apart"}
    for name, value in place.items():
        if value is not None and name != "kind":
            assert f"  {names.get(name, name):<18}{value}\n" in section + "\n"
    assert "\ncounts\n" in text
    code, text = output(f"debug {fault.__name__} --json")
    found = json.loads(text)
    assert (code, found["verdict"], found["place"]["field"]) == (1, "not equal", place["field"])


def test_debug_that_proves_nothing_fails(output):
    code, text = output("debug nothing_to_compare")
    assert (code, text.split("\n")[:2]) == (
        1, ["nothing_to_compare: proved nothing: nothing could be compared", ""]
    )  # fmt: skip


def test_debug_of_a_dump_with_a_hole_fails(output):
    """One rank lacks what the other has; its first line says which."""
    code, text = output("debug hole")
    words = "missing field: recv_topk_weights at rank 1; rank 0 gave it, and capture.json lists no ranks"
    assert (code, text.split("\n")[0]) == (1, f"hole: not equal; {words} that give it")
    assert "  destination rank  1\n" in text


@pytest.mark.parametrize(
    ("name", "left_out"),
    [("partial", "recv_topk_weights at rank 1"), ("no_weights", "recv_topk_weights, combined_x")],
)
def test_debug_says_in_its_first_line_what_was_not_compared(output, name, left_out):
    code, text = output(f"debug {name}")
    assert (code, text.split("\n")[0]) == (0, f"{name}: equal, but not compared: {left_out}")


@pytest.mark.parametrize("name", ["other_dtype", "other_shape"])
def test_debug_takes_a_result_of_another_form_for_a_finding(output, name):
    """Shape and dtype by one rule: exit code 1, the field is named."""
    code, text = output(f"debug {name}")
    kind = name.removeprefix("other_")
    assert (code, text.startswith(f"{name}: not equal; {kind}: recv_x at rank 1: expected ")) == (1, True)
    assert f"  what              {kind}\n" in text
    _, text = output("debug --help")
    assert "2 if the folder is bad input" in " ".join(re.sub("[│\n]", " ", text).split())


BAD = {
    "debug other_input": "rank 1: x.dtype is 'float32': must be bfloat16",
    "debug missing": "the file of rank 1 is missing in missing",
    "debug cut": "cut/rank0.safetensors is 'damaged'",
    "debug no/such/folder": "must be a folder with capture.json",
    "debug nothing": "cannot be read",
    "debug right --located 0": "located is 0",
    "debug": "CAPTURE",
    f"explain {LAW}": "needs --rank and --token, or --row and --at-rank",
    f"explain {LAW} --rank 0": "rank is 0: needs --token, the token's number there",
    f"explain {LAW} --token 0": "token is 0: needs --rank, the token's home",
    f"explain {LAW} --row 1": "row is 1: needs --at-rank, the rank that has the row",
    f"explain {LAW} --row 1 --received": "row is 1: needs --at-rank",
    f"explain {LAW} --at-rank 1": "at rank is 1: needs --row, a row there",
    f"explain {LAW} --rank 0 --token 1 --row 2 --at-rank 0": "goes without --rank and --token",
    f"explain {LAW} --rank 0 --token 1 --row 2": "goes without --rank and --token",
    f"explain {LAW} --rank 0 --token 1 --at-rank 2": "at rank is 2: goes without --rank and --token",
    f"explain {LAW} --rank 0 --token 1 --received": "goes with --row",
    f"explain {LAW} --rank 2 --token 0": "rank is 2: must be 0..1",
    f"explain {LAW} --rank 0 --token 4": "token is 4: must be 0..3",
    f"explain {LAW} --rank -1 --token 0": "-1",
    f"explain {LAW} --row -1 --at-rank 0": "-1",
    f"explain {LAW} --row 0 --at-rank 9": "at rank is 9: must be 0..1",
    f"explain {FILE} --row 999 --at-rank 0": "row is 999: must be 0..7, there are 8 expanded rows",
    f"explain {FILE} --row 8 --at-rank 0": "row is 8: must be 0..7",
    f"explain {FILE} --row 5 --at-rank 1 --received": "row is 5: must be 0..4, there are 5 received rows",
    "explain --routing one_sided.npy --experts 2 --row 0 --at-rank 1": "there are no expanded rows at rank 1",
    f"explain {LAW} --rank 0 --token 0 --no-expand": "expanded layout only",
    f"explain {LAW} --rank 0 --token 0 --order one_rounding": "edition ascend",
    f"explain {LAW} --rank 0 --token 0 --scaleup 1": "edition ascend",
    f"explain {LAW} --rank 0 --token 0 --edition v3": "v3",
    f"explain {LAW} --rank 0 --token 0 --aivs 0": "num_aivs is 0",
    f"explain {LAW} --rank 0 --token 0 --hidden 0": "hidden is 0",
    f"explain {LAW} --rank 0 --token 0 --capacity 3": "num_max_tokens_per_rank",
    "predict --ep 2 --topk 4 --routing right": "experts is 256: must be that of right/capture.json, 8",
    "predict --ep 2 --topk 2 --experts 4 --routing layout": "the group's map must be that of layout/capture",
    "predict --ep 4 --topk 4 --experts 8 --routing right": "whose ep_size is 4",
    "inspect --routing right --experts 4": "experts is 4: must be that of right/capture.json, 8; leave",
    "inspect --routing right --ep 4": "ep is 4: must be that of right/capture.json, 2",
    "inspect --routing right --topk 3": "topk is 3: must be that of right/capture.json, 4",
    "inspect --routing right --hidden 7168": "hidden is 7168: must be that of right/capture.json, 128",
    "inspect --routing right --alignment 128": "alignment is 128: must be that of right/capture.json, 8",
    "inspect --routing right --capacity 11": "capacity is 11: must be that of right/capture.json, 12",
    "inspect --routing right --dtype fp8": "dtype is 'fp8': must be that of right/capture.json, 'bf16'",
    "inspect --routing right --aivs 32": "num_aivs is 32: must be that of right/capture.json, 64",
    f"inspect {LAW} --alignment 3": "expert_alignment is 3: must be a power of two, dispatch asserts it",
    "inspect --routing uniform --experts 1000000000000": "num_experts is 1000000000000: must be at most 1,",
    f"explain {LAW} --rank 0 --token 1 --alignment 3": "expert_alignment is 3: must be a power of two",
    "debug three_rows": "expert_alignment is 3: must be a power of two; dispatch refuses it",
    "debug many_experts": "group.num_experts is 1000000000000: must be at most 2048",
    "inspect --routing right --tokens 4": "goes with a law or a histogram",
    "inspect --routing ids.txt": "must be a folder, a file of ids (.safetensors, .npz, .npy) or loads (.npy",
    "predict --ep 2 --routing sub/ids": "routing is 'sub/ids': must be a folder, a file of ids",
    "inspect --routing zipff:1.1": "routing is 'zipff:1.1': must be one of uniform, zipf:S",
    "inspect --routing cut": "cut/rank0.safetensors is 'damaged'",
    "inspect --routing idle": "idle: topk_idx is 'no tokens'",
    "explain --routing right --experts 4 --rank 0 --token 0": "right/capture.json, 8",
    "explain --routing right --edition nvidia-v2 --rank 0 --token 0": "edition is 'nvidia-v2'",
    "explain --routing right --no-expand --rank 0 --token 0": "expand is False: must be that of right",
    "explain --routing right --scaleup 1 --rank 0 --token 0": "num_scaleup_ranks is 1",
    "explain --routing right --order one_rounding --rank 0 --token 0": "'rank_reduced'; leave it out",
    "explain --routing right --dtype fp8 --rank 0 --token 0": "dtype is 'fp8'",
    "inspect --routing worked.safetensors": "does not say how many experts there are (largest id 3)",
    "inspect --routing worked.safetensors --experts 3": "expert",
    "inspect --routing worked.safetensors --experts 4 --ep 4": "ep_size is 4",
    "inspect --routing worked.safetensors --experts 4 --topk 2": "num_topk is 2",
    "inspect --routing worked.safetensors --experts 4 --tokens 4": "goes with a law or a histogram",
    "inspect --routing worked.safetensors --experts 4 --masked-ratio 0.5": "goes with a law or a histogram",
    "inspect --routing worked.safetensors --experts 4 --seed 0": "seed is 0: goes with a law or a histogram",
    "explain --routing worked.safetensors --experts 4 --seed 5 --rank 0 --token 0": "seed is 5: goes with a",
    "inspect --routing right --seed 5": "seed is 5: goes with a law or a histogram",
    "explain --routing ranks --experts 4 --seed 5 --rank 0 --token 0": "seed is 5: goes with a law",
    "inspect --routing worked.safetensors --experts 4 --capacity 3": "num_max_tokens_per_rank is 3",
    "inspect --routing cut.safetensors --experts 8": "is not a whole .safetensors file",
    "inspect --routing objects.npy --experts 8": "only plain number arrays are read",
    "inspect --routing gap --experts 8": "the file of rank 2 is missing",
    "inspect --routing repeated.npy --experts 8": "rank 2",
    "inspect --routing nan.safetensors --experts 8": "rank 1",
    "inspect --routing two_axes.npy --experts 8": "[rank, token, top-k]",
    "inspect --routing short.csv --ep 4 --experts 8": "8 logical experts",
    "inspect --routing gauss": "routing",
    f"inspect {LAW} --expert-limit -1": "-1",
    f"inspect {LAW} --rank-limit=-1": "rank limit is -1",
    "inspect --routing uniform --tokens 4,5": "tokens_per_rank",
    "inspect --routing uniform --tokens x": "whole numbers separated by commas",
    "inspect --routing uniform --ep 0": "ep_size is 0",
    "inspect --routing uniform --topk 0": "num_topk is 0",
    "inspect --routing uniform --tokens 0": "at least one",
    "inspect --routing uniform --tokens 999999999": "must be at most",
    "inspect --routing uniform --masked-ratio 2": "from 0 to 1",
    "inspect": "routing",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_2(words, folder, monkeypatch, capfd):
    """Nothing on stdout, no traceback."""
    monkeypatch.chdir(folder)
    code = run(words.split())
    printed = capfd.readouterr()
    assert (code, printed.out) == (2, ""), printed
    assert re.fullmatch(r"epsim: \S[^\n]*\S\n", printed.err), printed.err
    assert BAD[words] in printed.err


@pytest.mark.parametrize("command", ["explain", "inspect", "debug"])
def test_help_teaches_with_examples(output, command):
    _, text = output(f"{command} --help")
    assert text.count(f" • epsim {command} ") >= 2


@pytest.mark.parametrize("command", ["explain", "inspect", "predict"])
def test_help_says_what_a_routing_file_holds(output, command):
    _, text = output(f"{command} --help")
    words = " ".join(re.sub("[│\n]", " ", text).split())
    assert "with topk_idx, signed integers [rank, token, top-k], -1 = masked" in words


def test_the_commands_are_found_without_numpy():
    modules = "epsim.cli.explain, epsim.cli.inspect, epsim.cli.debug"
    code = f"import sys, {modules}; sys.exit(bool({{'numpy', 'msgspec', 'ml_dtypes'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_a_nan_is_valid_json(output):
    """JSON has no NaN, so the value is text there."""
    code, text = output("debug nan_in_row --json")
    assert code == 1
    assert json.loads(text)["place"]["actual"] == "nan"


def test_a_wrong_dump_in_place_of_a_right_one(output, folder):
    """The report counts by rank and expert."""
    _, text = output("debug one_ulp")
    assert re.search(r"recv_x: 1 value; 1 of \d+ elements in 1 rows; by rank \{0: 1\}; by source rank", text)
    assert copied(good_capture(2))[0]["recv_x"].shape
