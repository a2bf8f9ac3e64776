"""Captures survive files bit for bit; a bad folder is refused in one sentence that names file and rule."""

import json
import os
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest

from epsim.capture import (
    FIELDS,
    INDEX,
    SUFFIXES,
    Capture,
    CaptureGroup,
    CaptureOptions,
    read_capture,
    write_capture,
)
from epsim.debug.files import BF16
from epsim.debug.from_reference import example_capture, reference_capture
from epsim.debug.notes import capture_notes
from epsim.diagnose import diagnose
from reference.errors import ConfigError
from reference.topk import TopK
from tests.epsim.planted import changed, copied, good_capture


@pytest.fixture(scope="module")
def capture():
    """Return a right capture of two ranks."""
    return good_capture(2)


@pytest.fixture
def folder(capture, tmp_path):
    """Return a folder that holds it."""
    write_capture(tmp_path / "dump", capture)
    return tmp_path / "dump"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_every_field_survives_the_files(tmp_path, suffix, dtype):
    first = good_capture(2, dtype)
    write_capture(tmp_path, first, suffix=suffix)
    second = read_capture(tmp_path)
    assert (second.group, second.options) == (first.group, first.options)
    for mine, theirs in zip(first.ranks, second.ranks, strict=True):
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            assert (theirs[name].dtype, theirs[name].shape) == (array.dtype, array.shape)
            assert theirs[name].tobytes() == array.tobytes()
    assert diagnose(second).verdict == "equal"


def test_equal_captures_are_equal_files(capture, tmp_path):
    for name in ("a", "b"):
        write_capture(tmp_path / name, capture)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_index_lists_ranks_only_where_they_differ(capture, tmp_path):
    ranks = copied(capture)
    names = json.loads(write_capture(tmp_path, capture).read_text())["fields"]
    assert names == [name for name in FIELDS if name in ranks[0]]
    del ranks[1]["recv_x"]
    partial = replace(capture, ranks=tuple(ranks), partial={"recv_x": (0,)})
    found = json.loads(write_capture(tmp_path, partial).read_text())["fields"]
    assert (found["recv_x"], found["x"]) == ([0], [0, 1])
    read = read_capture(tmp_path)
    assert (read.partial["recv_x"], read.holes()) == ((0,), {})


def test_a_hole_that_nobody_declared_survives_the_files(capture, tmp_path):
    """Writing it must not declare it."""
    ranks = copied(capture)
    del ranks[1]["recv_x"]
    names = json.loads(write_capture(tmp_path, changed(capture, ranks)).read_text())["fields"]
    assert names == [name for name in FIELDS if name in ranks[1]]
    assert read_capture(tmp_path).holes() == {"recv_x": (1,)}


def test_a_hand_written_index_needs_the_group_only(folder):
    group = json.loads((folder / INDEX).read_text())["group"]
    text = {"format": "epsim-capture", "version": 1, "group": group, "options": {"zero_padding": True}}
    (folder / INDEX).write_text(json.dumps(text))
    assert diagnose(read_capture(folder)).verdict == "equal"


def test_bits_of_narrow_floats_may_come_as_integers(capture):
    ranks = copied(capture)
    for arrays in ranks:
        arrays["recv_x"] = arrays["recv_x"].view(np.int16)
        arrays["combined_x"] = arrays["combined_x"].view(np.uint16)
    assert diagnose(changed(capture, ranks)).verdict == "equal"


def test_narrow_ids_are_widened_with_their_sign(capture):
    ranks = copied(capture)
    for arrays in ranks:
        arrays["topk_idx"] = arrays["topk_idx"].astype(np.int32)
    found = changed(capture, ranks)
    assert found.ranks[0]["topk_idx"].dtype == np.int64
    assert diagnose(found).verdict == "equal"


def test_an_unfinished_write_leaves_no_capture(capture, folder, monkeypatch):
    """The index goes first and comes last, so old and new ranks never mix."""
    monkeypatch.setattr(os, "replace", fail_at("rank1.safetensors", os.replace))
    with pytest.raises(ValueError, match="cannot be written"):
        write_capture(folder, capture)
    assert not (folder / INDEX).exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    with pytest.raises(ValueError, match="the capture may be unfinished"):
        read_capture(folder)


def fail_at(name, replace):
    """Return os.replace that fails for one target."""

    def replaced(source, target):
        if str(target).endswith(name):
            raise OSError(28, "No space left on device")
        replace(source, target)

    return replaced


def rewritten(folder, **changes):
    """Change the index."""
    index = json.loads((folder / INDEX).read_text())
    for name, value in changes.items():
        old = index.get(name)
        index[name] = old | value if isinstance(value, dict) and isinstance(old, dict) else value
    (folder / INDEX).write_text(json.dumps(index))


def with_array(folder, rank, name, array):
    """Replace one array of a rank; without its promise, so that only the array is at fault."""
    from epsim.debug.files import read_arrays, write_arrays

    path = folder / f"rank{rank}.safetensors"
    arrays = {n: np.array(a) for n, a in read_arrays(path).items()}
    write_arrays(
        path, arrays | {name: array} if array is not None else {n: arrays[n] for n in arrays if n != name}
    )
    rewritten(folder, fields=None)


def cut(path, size):
    """Shorten a file."""
    path.write_bytes(path.read_bytes()[:size])


def with_words(folder, name):
    """Write rank 1 with texts in one array, which is no kind of result."""
    from epsim.debug.files import read_arrays

    idx = read_arrays(folder / "rank1.safetensors")["topk_idx"]
    (folder / "rank1.safetensors").unlink()
    rewritten(folder, files=["rank0.safetensors", "rank1.npz"], fields=None)
    np.savez(folder / "rank1.npz", topk_idx=idx, **{name: np.array(["a"])})


def objects(folder):
    """Write one rank as pickled objects."""
    (folder / "rank1.safetensors").unlink()
    rewritten(folder, files=["rank0.safetensors", "rank1.npz"])
    np.savez(folder / "rank1.npz", topk_idx=np.array([{"run": "code"}], dtype=object))


def suffixless(folder):
    """Name a file that is none of arrays."""
    (folder / "rank1.safetensors").rename(folder / "ranks.txt")
    rewritten(folder, files=["rank0.safetensors", "ranks.txt"])


def beside(folder, *names, listed=False):
    """Put copies of a rank file under other names beside the two; capture.json lists files or not."""
    if not listed:
        rewritten(folder, files=None)
    for name in names:
        (folder / name).write_bytes((folder / "rank0.safetensors").read_bytes())


T, H = 11, 128  # tokens of rank 1

BAD = {
    "missing rank file": (lambda f: (f / "rank1.safetensors").unlink(), "the file of rank 1 is missing"),
    "truncated file": (lambda f: cut(f / "rank1.safetensors", -16), "rank1.safetensors is 'damaged'"),
    "cut header": (lambda f: cut(f / "rank0.safetensors", 5), "rank0.safetensors is 'damaged'"),
    "empty file": (lambda f: cut(f / "rank0.safetensors", 0), "rank0.safetensors is 'empty'"),
    "no index": (lambda f: (f / INDEX).unlink(), "the capture may be unfinished"),
    "cut index": (lambda f: cut(f / INDEX, 40), "is 'unreadable'"),
    "pickled index": (lambda f: (f / INDEX).write_bytes(pickle.dumps({})), "is 'unreadable'"),
    "pickled arrays": (objects, "only plain number arrays are read"),
    "other format": (lambda f: rewritten(f, format="safetensors"), "must be epsim-capture 1"),
    "other version": (lambda f: rewritten(f, version=2), "must be epsim-capture 1"),
    "unknown key": (lambda f: rewritten(f, grop={}), "grop"),
    "unknown option": (lambda f: rewritten(f, options={"expnd": True}), "expnd"),
    "unknown edition": (lambda f: rewritten(f, options={"edition": "nvidia"}), "nvidia"),
    "unknown dtype": (lambda f: rewritten(f, options={"dtype": "fp4"}), "fp4"),
    "number as text": (lambda f: rewritten(f, group={"hidden": "128"}), "hidden"),
    "group out of range": (lambda f: rewritten(f, group={"hidden": 0}), "hidden is 0"),
    "experts do not divide": (lambda f: rewritten(f, group={"num_experts": 9}), "ep_size 2 must divide it"),
    "other hidden": (lambda f: rewritten(f, group={"hidden": 256}), "must be [12, 256]"),
    "other top-k": (lambda f: rewritten(f, group={"num_topk": 3}), "rank 0: topk_idx.shape"),
    "small capacity": (lambda f: rewritten(f, group={"num_max_tokens_per_rank": 10}), "num_max_tokens_per"),
    "more ranks": (lambda f: rewritten(f, group={"ep_size": 4}), "must be one per rank, ep_size is 4"),
    "huge group": (lambda f: rewritten(f, group={"ep_size": 8192, "num_experts": 8192}), "at most 4096"),
    "alignment no power of two": (
        lambda f: rewritten(f, group={"expert_alignment": 3}),
        "expert_alignment is 3: must be a power of two; dispatch refuses it",
    ),
    "impossible experts": (
        lambda f: rewritten(f, group={"num_experts": 10**12}),
        "group.num_experts is 1000000000000: must be at most 2048",
    ),
    "experts beyond ascend": (lambda f: rewritten(f, group={"num_experts": 514}), "must be at most 512"),
    "impossible alignment": (lambda f: rewritten(f, group={"expert_alignment": 2**40}), "expanded rows"),
    "impossible capacity": (
        lambda f: rewritten(f, group={"num_max_tokens_per_rank": 2**23}),
        "must be at most 16777215 (24-bit row counters); dispatch refuses it",
    ),
    "impossible cores": (lambda f: rewritten(f, options={"num_aivs": 65}), "must be at most 64 (queues)"),
    "path in file name": (lambda f: rewritten(f, files=["../a.npz", "b.npz"]), "must be a plain name"),
    "other suffix": (suffixless, ".safetensors or .npz"),
    "one file for two": (
        lambda f: rewritten(f, files=["rank0.safetensors"] * 2),
        "files[1] is 'rank0.safetensors': must be a file of its own, rank 0 has this",
    ),
    "more files than ranks": (
        lambda f: beside(f, *(f"rank{r}.safetensors" for r in range(2, 8))),
        "group.ep_size is 2: must be the number of ranks, but",
    ),
    "thousands of files": (
        lambda f: beside(f, *(f"rank{r}.safetensors" for r in range(2, 3000))),
        "holds 3,000 rank files up to rank2999.safetensors",
    ),
    "another rank file": (
        lambda f: beside(f, "rank2.npz", "rank7.safetensors", listed=True),
        "none of the capture's 2 files, nor 1 more; remove what is not its",
    ),
    "two files of a rank": (
        lambda f: beside(f, "rank1.npz"),
        "files is 'rank1.safetensors': must be the only file of rank 1, rank1.npz is there too",
    ),
    "strange name": (
        lambda f: beside(f, "rank01.safetensors"),
        "files is 'rank01.safetensors': must be rankN.safetensors or rankN.npz with N from 0 to 1",
    ),
    "negative rank": (lambda f: beside(f, "rank-1.npz"), "with N from 0 to 1"),
    "ranks from 1 on": (
        lambda f: (f / "rank0.safetensors").rename(f / "rank2.safetensors") and rewritten(f, files=None),
        "group.ep_size is 2",
    ),
    "promised field": (lambda f: rewritten(f, fields=["recv_topk_idx"]), "rank0.safetensors lacks it"),
    "unknown promise": (lambda f: rewritten(f, fields=["recv_y"]), "did you mean recv_x?"),
    "promise of a rank": (lambda f: rewritten(f, fields={"x": [2]}), "must be a rank 0..1"),
    "unknown field": (lambda f: with_array(f, 1, "recvx", np.zeros(3)), "did you mean recv_x?"),
    "wrong dtype": (lambda f: with_array(f, 1, "x", np.zeros((T, H), np.float32)), "must be bfloat16"),
    "words for numbers": (
        lambda f: with_words(f, "recv_x"),
        "rank 1: recv_x.dtype is '<U1': must be numbers",
    ),
    "float ids": (lambda f: with_array(f, 1, "topk_idx", np.zeros((T, 4))), "must be int64 or int32"),
    "no ids": (lambda f: with_array(f, 1, "topk_idx", None), "every rank must give its routing"),
    "ids out of range": (lambda f: with_array(f, 1, "topk_idx", np.full((T, 4), 8)), "topk_idx[rank 1"),
    "repeated ids": (lambda f: with_array(f, 1, "topk_idx", np.full((T, 4), 2)), "may appear once"),
    "other tokens": (lambda f: with_array(f, 1, "topk_weights", np.ones((3, 4), np.float32)), "topk_weights"),
    "wide scales": (lambda f: with_array(f, 1, "sf", np.zeros((T, 2))), "scales must have 1, 2 or 4 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_sentence(folder, name):
    break_it, text = BAD[name]
    break_it(folder)
    with pytest.raises((ValueError, ConfigError), match=re.escape(text)) as refused:
        diagnose(read_capture(folder))
    assert "\n" not in str(refused.value)


WRONG_RESULTS = {
    "float for bf16": ("recv_x", lambda a: a.astype(np.float32), "dtype"),
    "half for bf16": ("combined_x", lambda a: a.astype(np.float16), "dtype"),
    "wide counts": ("psum_num_recv_tokens_per_rank", lambda a: a.astype(np.int64), "dtype"),
    "float counts": (
        "psum_num_recv_tokens_per_rank",
        lambda a: np.full(a.shape, np.nan, np.float32),
        "dtype",
    ),
    "float slots": ("dst_buffer_slot_idx", lambda a: a.astype(np.float64), "dtype"),
    "bool pairs": ("dst_gsge_idx", lambda a: a >= 0, "dtype"),
    "float metadata": ("recv_src_metadata", lambda a: a.astype(np.float32), "dtype"),
    "wide metadata": ("recv_src_metadata", lambda a: a.astype(np.uint64), "dtype"),
    "double weights": ("recv_topk_weights", lambda a: a.astype(np.float64), "dtype"),
    "one number for rows": ("recv_x", lambda a: a[0, 0], "shape"),
    "transposed rows": ("recv_x", lambda a: np.ascontiguousarray(a[:, :8].T), "shape"),
    "one number for metadata": ("recv_src_metadata", lambda a: a[0, 0], "shape"),
    "one number for counts": ("psum_num_recv_tokens_per_rank", lambda a: a[0], "shape"),
    "flat tokens": ("combined_x", lambda a: a.reshape(-1), "shape"),
    "fewer columns": ("recv_x", lambda a: a[:, 1:], "shape"),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_a_result_of_another_shape_or_dtype_is_a_finding(capture, name):
    """Not bad input: the file is sound, and what the run got is what is judged."""
    field, change, kind = WRONG_RESULTS[name]
    ranks = copied(capture)
    ranks[1][field] = np.asarray(change(ranks[1][field]))
    found = diagnose(changed(capture, ranks))
    assert (found.verdict, found.place.field, found.place.kind) == ("not equal", field, kind)


@pytest.mark.parametrize("name", ["topk_idx", "x", "combine_topk_weights"])
def test_what_was_given_must_have_rows(capture, name):
    ranks = copied(capture)
    ranks[1][name] = ranks[1][name].reshape(-1)[0].reshape(())
    with pytest.raises(ValueError, match=rf"rank 1: {name}.shape is \(\): must be \["):
        changed(capture, ranks)


def with_masks(capture, mask):
    """Return arrays with another id for none."""
    ranks = copied(capture)
    for arrays in ranks:
        arrays["topk_idx"][arrays["topk_idx"] == -1] = mask
    return ranks


@pytest.mark.parametrize("mask", [-2, -5, -(2**63)])
def test_any_negative_id_of_a_dump_is_masked(capture, folder, mask):
    """As the drop-in and upstream read it; said, and the capture is as good as with -1."""
    for rank, arrays in enumerate(with_masks(capture, mask)):
        with_array(folder, rank, "topk_idx", arrays["topk_idx"])
    found = read_capture(folder)
    count = sum(int((a["topk_idx"] == -1).sum()) for a in capture.ranks)
    assert found.num_other_masks == count > 1
    assert [i.tolist() for i in found.topk().topk_idx] == [i.tolist() for i in capture.topk().topk_idx]
    judged = diagnose(found)
    assert judged.verdict == "equal"
    assert judged.notes == (f"{count} ids below -1 read as masked, as deep_ep does",)


def test_one_file_saved_for_every_rank_is_hinted_at(folder):
    """A hint beside the findings: equal files are suspicious, not wrong."""
    (folder / "rank1.safetensors").write_bytes((folder / "rank0.safetensors").read_bytes())
    found = diagnose(read_capture(folder))
    assert found.verdict == "not equal"
    assert found.notes[0] == "ranks 0, 1 gave the same arrays: was one rank's file saved for each?"


def test_one_seed_for_every_rank_is_hinted_at():
    """Right, but a row from the wrong source could not be told."""
    group = CaptureGroup(ep_size=3, num_experts=6, num_topk=2, hidden=128, num_max_tokens_per_rank=4)
    plain = example_capture(group, seed=2)
    twice = [0, 1, 0]
    topk = TopK(num_experts=6, topk_idx=tuple(plain.topk().topk_idx[r] for r in twice))
    found = diagnose(reference_capture(group, topk, [plain.ranks[r]["x"] for r in twice]))
    assert found.verdict == "equal"
    assert [note.split(":")[0] for note in found.notes] == ["ranks 0, 2 gave the same topk_idx and x"]


@pytest.mark.parametrize("tokens", [3, 0])
def test_equal_routings_and_idle_ranks_are_no_hint(tokens):
    group = CaptureGroup(ep_size=2, num_experts=4, num_topk=2, hidden=128, num_max_tokens_per_rank=4)
    ids = np.tile([0, 2], (tokens, 1))
    given = {"topk_idx": ids, **({} if tokens else {"x": np.zeros((0, 128), BF16)})}
    assert capture_notes(Capture(group=group, options=CaptureOptions(), ranks=(given, dict(given)))) == ()


def test_no_folder_at_all(tmp_path):
    with pytest.raises(ValueError, match="must be a folder with capture"):
        read_capture(tmp_path / "nothing")


@pytest.mark.parametrize("order", ["zigzag", "one_rounding", "rank_then_domain"])
def test_an_order_that_the_edition_lacks_is_refused(capture, order):
    options = CaptureOptions(order=order)
    with pytest.raises(ValueError, match="order"):
        diagnose(type(capture)(group=capture.group, options=options, ranks=capture.ranks))


def test_a_group_with_an_expert_map_is_judged_by_it(tmp_path):
    """Experts of rank 0 are the even ones here."""
    group = CaptureGroup(
        ep_size=2, num_experts=4, num_topk=2, hidden=128, num_max_tokens_per_rank=6, expert_ranks=(0, 1, 0, 1)
    )
    write_capture(tmp_path, example_capture(group, seed=4, arrival_seed=1))
    assert diagnose(read_capture(tmp_path)).verdict == "equal"


def test_an_unknown_suffix_writes_nothing(capture, tmp_path):
    with pytest.raises(ValueError, match=r"must be \.safetensors or \.npz"):
        write_capture(tmp_path / "x", capture, suffix=".pt")
    assert not (tmp_path / "x").exists()
