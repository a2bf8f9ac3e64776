"""Routing and load files: what is written is read back, and a bad file is refused in one sentence."""

import contextlib
import os
import pickle
import signal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.routing.files import (
    ROUTING_SUFFIXES,
    read_loads,
    read_routing,
    write_atomically,
    write_routing,
)
from reference.routing.readable import kind_of
from reference.topk import TopK
from tests.strategies import routed_configs

IDS = np.array([[[0, 1], [2, -1], [3, 0]], [[1, 2], [-1, -1], [2, 3]]], dtype=np.int64)  # [R, T, K]
WEIGHTS = np.linspace(0, 1, IDS.size, dtype=np.float32).reshape(IDS.shape)


def group(ep_size=2, num_experts=4, num_topk=2, tokens=8, expert_map=None):
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=128,
        num_max_tokens_per_rank=tokens,
        expert_map=expert_map,
    )


def assert_routing(topk, ids=IDS, weights=None):
    assert [a.tolist() for a in topk.topk_idx] == [np.asarray(a).tolist() for a in ids]
    if weights is None:
        assert topk.topk_weights is None
    else:
        assert [a.tobytes() for a in topk.topk_weights] == [a.tobytes() for a in weights]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@given(routed=routed_configs())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_routing_is_read_back(tmp_path, suffix, routed):
    config, topk = routed
    weights = tuple(idx.astype(np.float32) / 3 for idx in topk.topk_idx)
    topk = TopK(num_experts=topk.num_experts, topk_idx=topk.topk_idx, topk_weights=weights)
    path = tmp_path / f"routing{suffix}"
    write_routing(path, topk)
    if not any(topk.tokens_per_rank):
        with pytest.raises(ConfigError, match="topk_idx is 'no tokens': a routing needs at least one"):
            read_routing(path, config)
        return
    assert_routing(read_routing(path, config), topk.topk_idx, weights)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_equal_routings_give_equal_bytes(tmp_path, suffix):
    topk = TopK(num_experts=4, topk_idx=tuple(IDS))
    for name in ("a", "b"):
        write_routing(tmp_path / f"{name}{suffix}", topk)
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert_routing(read_routing(tmp_path / f"a{suffix}", group()))


def save(path, **arrays):
    """Write arrays by suffix, without the code under test."""
    if path.suffix == ".npy":
        np.save(path, arrays["topk_idx"])
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_one_stacked_file_is_read(tmp_path, suffix):
    path = tmp_path / f"all{suffix}"
    save(path, topk_idx=IDS, topk_weights=WEIGHTS)
    assert_routing(read_routing(path, group()), weights=None if suffix == ".npy" else WEIGHTS)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("how", ["folder", "pattern", "list"])
def test_one_file_per_rank_is_read_in_rank_order(tmp_path, suffix, how):
    # Twelve ranks, so that the order of names (rank10 before rank2) is not the order of ranks.
    config = group(ep_size=12, num_experts=12)
    ids = [np.array([[r, (r + 1) % 12]] * (r + 1), dtype=np.int64) for r in range(12)]
    paths = [tmp_path / f"v2-rank{r}{suffix}" for r in range(12)]
    for path, idx in zip(paths, ids, strict=True):
        save(path, topk_idx=idx)
    (tmp_path / "notes.txt").write_text("not a routing")
    source = {"folder": tmp_path, "pattern": str(tmp_path / f"*rank*{suffix}"), "list": paths}[how]
    topk = read_routing(source, group(ep_size=12, num_experts=12, tokens=12))
    assert_routing(topk, ids)
    with pytest.raises(ConfigError, match=r"rank 11.*12 tokens.*num_max_tokens_per_rank is 8"):
        read_routing(source, config)


def test_arrays_of_other_names_are_not_read(tmp_path):
    path = tmp_path / "rank.npz"
    np.savez(path, topk_idx_0=IDS[0], topk_idx_1=IDS[1], x=np.array([{"an": "object"}], dtype=object))
    assert_routing(read_routing(path, group()))


@pytest.mark.parametrize("dtype", ["int8", "<i2", ">i4", ">i8"])
def test_signed_ids_are_widened_with_their_masks(tmp_path, dtype):
    # cases.md G22: -1 must survive widening.
    np.save(tmp_path / "ids.npy", IDS.astype(dtype))
    assert_routing(read_routing(tmp_path / "ids.npy", group()))


def test_fortran_order_is_read_by_index(tmp_path):
    np.save(tmp_path / "ids.npy", np.asfortranarray(IDS))
    assert_routing(read_routing(tmp_path / "ids.npy", group()))


def test_logical_ids_are_read_as_logical(tmp_path):
    expert_map = ExpertMap(expert_ranks=(0, 0, 0, 1, 1, 1), logical_ids=(0, 1, 2, 3, 0, 1))
    config = group(num_experts=6, expert_map=expert_map)
    np.save(tmp_path / "ids.npy", IDS)
    assert read_routing(tmp_path / "ids.npy", config, id_space="logical").num_experts == 4
    np.save(tmp_path / "bad.npy", np.where(IDS == 3, 4, IDS))
    with pytest.raises(ConfigError, match=r"is 4: must be an expert 0..3"):
        read_routing(tmp_path / "bad.npy", config, id_space="logical")
    with pytest.raises(ConfigError, match="the group's ep_size is 1 and its num_topk is 2"):
        read_routing(tmp_path / "ids.npy", group(ep_size=1), id_space="logical")


class Bomb:
    """An object whose unpickling leaves a trace."""

    def __reduce__(self):
        """Ask the reader to create a file."""
        return (open, ("bomb-went-off", "w"))


def pickled(path):
    path.write_bytes(pickle.dumps(Bomb()))


def object_array(path):
    array = np.empty((1, 1, 2), dtype=object)
    array[0, 0, 0] = Bomb()
    if path.suffix == ".npz":
        np.savez(path, topk_idx=array)
    else:
        np.save(path, array, allow_pickle=True)


@pytest.mark.parametrize(
    ("make", "name"),
    [(pickled, "a.npy"), (pickled, "a.npz"), (object_array, "a.npy"), (object_array, "a.npz")],
)
def test_nothing_is_ever_unpickled(tmp_path, monkeypatch, make, name):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(ConfigError, match="content is 'pickled objects': only plain number arrays are read"):
        read_routing(tmp_path / name, group())
    assert not (tmp_path / "bomb-went-off").exists()


def edited(index, value):
    ids = IDS.copy()
    ids[index] = value
    return ids


BAD_ARRAYS = [
    ({"topk_idx": IDS.astype(float)}, r"topk_idx\[rank 0\] is 'float64': ids must be signed integers"),
    ({"topk_idx": IDS.astype(np.uint8)}, "is 'uint8': ids must be signed integers, because -1 means none"),
    ({"topk_idx": IDS > 0}, "is 'bool': ids must be signed integers"),
    (
        {"topk_idx": IDS[0]},
        r"topk_idx is \(3, 2\): a file of all ranks needs the shape \[rank, token, top-k\]",
    ),
    (
        {"topk_idx": edited((1, 2, 0), 4)},
        r"topk_idx\[rank 1, token 2, column 0\] is 4: must be an expert 0..3",
    ),
    ({"topk_idx": edited((1, 0, 1), -2)}, r"topk_idx\[rank 1, token 0, column 1\] is -2"),
    (
        {"topk_idx": edited((0, 0, 1), 0)},
        r"topk_idx\[rank 0, token 0, column 1\] is 0: an expert may appear once",
    ),
    (
        {"topk_idx": IDS, "topk_weights": WEIGHTS.astype(float)},
        r"topk_weights\[rank 0\] is dtype\('float64'\)",
    ),
    ({"topk_idx": IDS, "topk_weights": WEIGHTS[:1]}, "topk_weights is '1 ranks': topk_idx has 2"),
    (
        {"topk_idx": IDS, "topk_weights": WEIGHTS * np.float32("nan")},
        r"token 0, column 0\] is nan: must be a number",
    ),
    (
        {"topk_idx": IDS[:1]},
        "number of ranks in topk_idx is 1: must be that of the group, whose ep_size is 2",
    ),
    (
        {"topk_idx": IDS[:, :, :1]},
        "number of columns in topk_idx is 1: must be that of the group, whose num_topk is 2",
    ),
    ({"topk_idx": IDS[:, :0]}, "topk_idx is 'no tokens': a routing needs at least one"),
    ({"topk_idx": IDS[:0]}, "names is 'topk_idx': needs topk_idx or topk_idx_<rank>|none"),
    ({"topk_idx_0": IDS[0], "topk_idx_1": IDS[1][:, :1]}, r"topk_idx\[rank 1\] is '1 columns': rank 0 has 2"),
    ({"topk_idx_0": IDS[0], "topk_idx_2": IDS[1]}, "topk_idx is '2 ranks': topk_idx_1 is missing"),
    ({"topk_idx_0": IDS[0], "topk_idx": IDS}, "use topk_idx or topk_idx_<rank>, not both"),
    ({"ids": IDS}, "names is 'none': needs topk_idx or topk_idx_<rank>"),
]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS)
def test_bad_arrays_are_refused_by_file_and_place(tmp_path, suffix, arrays, message):
    path = tmp_path / f"bad{suffix}"
    save(path, **{name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(ConfigError, match=message) as error:
        read_routing(path, group())
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".npy"])
@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_truncated_file_is_refused(tmp_path, suffix, keep):
    path = tmp_path / f"cut{suffix}"
    save(path, topk_idx=IDS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"is empty|is not a whole|is no \.np[yz] file"):
        read_routing(path, group())


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".npy", "-compressed.npz"])
@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_refused_or_harmless(tmp_path, suffix, data):
    """Damage may leave a valid routing of other numbers; it must never raise anything but ConfigError."""
    path = tmp_path / f"fuzz{suffix}"
    if suffix == "-compressed.npz":
        np.savez_compressed(path, topk_idx=IDS)
    else:
        save(path, topk_idx=IDS)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2]))])
    with warnings.catch_warnings(), contextlib.suppress(ConfigError):
        warnings.simplefilter("ignore")  # NumPy warns of some odd headers before it refuses them
        assert read_routing(path, group()).ep_size == 2


def test_header_that_claims_more_than_the_file_is_refused_without_memory(tmp_path):
    path = tmp_path / "huge.npy"
    np.save(path, IDS)
    path.write_bytes(path.read_bytes().replace(b"(2, 3, 2)", b"(2, 3, 9999999999999)")[:500])
    with pytest.raises(ConfigError, match=r"is not a whole .npy file"):
        read_routing(path, group())


def test_bad_sources_are_refused(tmp_path):
    cases = [
        (tmp_path / "none.npy", f"^file is '{tmp_path}/none.npy': does not exist"),
        (tmp_path / "model.pt", "file name is 'model.pt': must end in .safetensors, .npz, .npy"),
        (tmp_path / "model.pkl", "file name is 'model.pkl': must end in"),
        (tmp_path, "is 'no file': needs one .safetensors, .npz, .npy file per rank"),
        (str(tmp_path / "*.npy"), "is 'no file'"),
        ([], "routing files is 'empty list': must hold one file per rank"),
    ]
    for source, message in cases:
        with pytest.raises(ConfigError, match=message):
            read_routing(source, group())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rank0.npy", "rank2.npy"], "is '2 files': the file of rank 1 is missing"),
        (["rank1.npy"], "is '1 files': the file of rank 0 is missing"),
        (["rank0.npy", "routing.npy"], "is 'routing.npy': a file per rank needs the rank number"),
        (["a0.npy", "b0.npy"], "is 'b0.npy': a0.npy has the same rank 0"),
    ],
)
def test_bad_folders_are_refused(tmp_path, names, message):
    for name in names:
        np.save(tmp_path / name, IDS[0])
    with pytest.raises(ConfigError, match=message):
        read_routing(tmp_path, group())


def test_weights_on_some_ranks_only_are_refused(tmp_path):
    np.savez(tmp_path / "rank0.npz", topk_idx=IDS[0], topk_weights=WEIGHTS[0])
    np.savez(tmp_path / "rank1.npz", topk_idx=IDS[1])
    with pytest.raises(ConfigError, match="topk_weights is '1 files': all 2 ranks or none must have them"):
        read_routing(tmp_path, group())
    np.savez(tmp_path / "rank1.npz", other=IDS[1])
    with pytest.raises(ConfigError, match=r"rank1.npz is 'none': needs an array topk_idx"):
        read_routing(tmp_path, group())


@pytest.mark.parametrize(
    ("name", "topk", "message"),
    [
        ("r.csv", TopK(num_experts=4, topk_idx=tuple(IDS)), "must end in .safetensors, .npz, .npy"),
        (
            "r.npy",
            TopK(num_experts=4, topk_idx=(IDS[0], IDS[1][:1])),
            "needs equal token counts and no weights",
        ),
        ("r.npy", TopK(num_experts=4, topk_idx=tuple(IDS), topk_weights=tuple(WEIGHTS)), "no weights"),
    ],
)
def test_routing_that_a_format_cannot_hold_is_not_written(tmp_path, name, topk, message):
    with pytest.raises(ConfigError, match=message):
        write_routing(tmp_path / name, topk)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(
        "reference.routing.files.os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("kept.json", b"old")]


def test_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    write_atomically(path, b"old")
    seen = []
    replace = os.replace
    monkeypatch.setattr(
        "reference.routing.files.os.replace", lambda a, b: (seen.append(path.read_bytes()), replace(a, b))
    )
    write_atomically(path, b"new")
    assert seen == [b"old"]
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("kept.json", b"new")]


LOADS = {
    "a.csv": "1\n2.5\n0\n4\n",
    "b.csv": "expert,load\n1,2.5\n0,1\n3,4\n2,0\n",
    "c.csv": "load\n1\n2.5\n0\n4\n",
    "a.json": "[1, 2.5, 0, 4]",
    "b.json": '{"loads": [1, 2.5, 0, 4], "note": "step 100"}',
    "a.toml": "loads = [1, 2.5, 0, 4]\n",
}


@pytest.mark.parametrize("name", LOADS)
def test_load_histogram_is_read(tmp_path, name):
    (tmp_path / name).write_text(LOADS[name])
    assert read_loads(tmp_path / name, group()).tolist() == [1.0, 2.5, 0.0, 4.0]


def test_load_histogram_of_integers_is_read_from_npy(tmp_path):
    np.save(tmp_path / "loads.npy", np.array([5, 6, 7, 8], dtype=np.uint32))
    assert read_loads(tmp_path / "loads.npy", group()).tolist() == [5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1", "a histogram must end in .npy, .csv, .json, .toml"),
        ("a.csv", b"", "loads is '0 experts': the group has 4 logical experts"),
        ("a.csv", b"1\n2\nmany\n4\n", "line 3 is 'many': must be `load` or `expert,load`"),
        ("a.csv", b"0,1\n0,2\n1,3\n2,4\n", "experts is '3 of 4 lines': must be 0, 1, 2 .. once each"),
        ("a.csv", b"1,2,3\n", "line 1 is '1,2,3'"),
        ("a.csv", b"\xff\xfe1", "content is 'unreadable'"),
        ("a.csv", b"1\n2\n3\nnan\n", r"loads\[3\] is nan: must be finite and not negative"),
        ("a.json", b"[1, 2", "content is 'unreadable'"),
        ("a.json", b"[1, 2, 3, true]", "loads is 'list': must be one list of numbers"),
        ("a.json", b'{"load": [1]}', "loads is 'NoneType': must be one list of numbers"),
        ("a.json", b"[1, 2, 3]", "loads is '3 experts': the group has 4"),
        ("a.toml", b"loads = [1, 2", "content is 'unreadable'"),
        ("a.toml", b"loads = [1, -2, 3, 4]", r"loads\[1\] is -2.0: must be finite and not negative"),
        ("a.npy", b"\x80\x04N.", "content is 'pickled objects'"),
        ("a.json", b"[" * 100_000, "content is 'unreadable'"),
        ("a.toml", b"loads = [1, 2, 3, 1" + b"0" * 400 + b"]", "must be one list of numbers"),
    ],
)
def test_bad_histogram_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_loads(tmp_path / name, group())
    assert str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_missing_histogram_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=rf"^file is '{tmp_path}/no.json': does not exist"):
        read_loads(tmp_path / "no.json", group())


# Paths that cannot be opened: one sentence, no traceback, no waiting.


@pytest.mark.parametrize(
    ("name", "content"), [("a.npy", b"0 1\n2 3\n"), ("a.npz", b"\x93NUMPY"), ("b.npy", b"PK\x03\x04")]
)
def test_a_file_of_another_kind_is_not_called_a_pickle(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"^file is '.*{name}': is no {name[1:]} file, whatever its name"):
        read_routing(tmp_path / name, group())


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".npy", "d/" * 3000 + "x.npy", "a\0b.npy", "a\0b"])
def test_an_impossible_name_is_refused(tmp_path, name):
    """No stat can be made of it: too long, too deep, or with a NUL."""
    assert kind_of(name) == kind_of(tmp_path / name) == "absent"
    reason = r"must end in|File name too long|null byte"
    for read in (read_routing, read_loads):
        with pytest.raises(ConfigError, match=reason):
            read(f"{tmp_path}/{name}", group())
    with pytest.raises(ConfigError, match="no file"):
        read_routing(f"{tmp_path}/{'a' * 300}*.npy", group())


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".csv", ".json", ".toml"])
def test_a_fifo_is_refused_before_it_is_opened(tmp_path, suffix):
    """Opening one waits for a writer, who never comes; the alarm of this test would."""
    os.mkfifo(tmp_path / f"rank0{suffix}")
    assert kind_of(tmp_path / f"rank0{suffix}") == "other"
    read = read_routing if suffix in ROUTING_SUFFIXES else read_loads
    sources = [tmp_path / f"rank0{suffix}"] + [tmp_path] * (suffix in ROUTING_SUFFIXES)
    signal.alarm(20)
    try:
        for source in sources:
            with pytest.raises(
                ConfigError, match=r"cannot be read \(Is a FIFO or device, no ordinary file\)"
            ):
                read(source, group())
    finally:
        signal.alarm(0)


def test_a_device_is_refused(tmp_path):
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="Is a FIFO or device"):
        read_routing(tmp_path / "zero.npy", group())


@pytest.fixture
def nobody():
    """Run a test without root's rights, in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        if os.geteuid() != os.getuid():
            os.seteuid(os.getuid())


def test_what_may_not_be_read_says_so(nobody):
    """A locked file, a file in a locked folder, and a locked folder."""
    for name in ("file.npy", "loads.csv", "folder/rank0.npy", "one/rank0.npy"):
        (nobody / name).parent.mkdir(exist_ok=True)
        np.save(nobody / name, IDS) if name.endswith(".npy") else (nobody / name).write_text("1\n")
    for name in ("file.npy", "loads.csv", "folder", "one/rank0.npy"):
        (nobody / name).chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    for name in ("file.npy", "folder", "folder/rank0.npy", "one"):
        with pytest.raises(
            ConfigError, match=r"^(file|folder) is '\S+': cannot be read \(Permission denied\)$"
        ):
            read_routing(nobody / name, group())
    with pytest.raises(ConfigError, match=r"^file is '\S+': cannot be read \(Permission denied\)$"):
        read_loads(nobody / "loads.csv", group())
    assert [kind_of(nobody / name) for name in ("folder", "folder/rank0.npy")] == ["folder", "absent"]
