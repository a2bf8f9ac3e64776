"""Eight processes of the drop-in dump as docs/debug.md says; `epsim debug` judges what they had and got."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.capture import FIELDS, read_capture
from epsim.cli import run
from epsim.debug.files import read_arrays, write_arrays
from tests.epsim.deep_ep.spawning import run_ranks

RANKS, EXPERTS, TOPK, HIDDEN, CAPACITY = 8, 32, 6, 256, 24
PACKS = HIDDEN // 64
RUNS = {"bf16": 16, "fp8": 128}
"""Dtype of dispatch, which also names the folder, and the alignment that goes with it."""
PAGE = (Path(__file__).parents[3] / "docs" / "debug.md").read_text()
NOT_DUMPED = {"recv_topk_idx", "bias_1"}
"""There are none when expanded, and one bias only."""


def documented_dump():
    """Return `dump` of the page."""
    names = {}
    exec(compile(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1), "docs/debug.md", "exec"), names)
    return names["dump"]


def one_run(rank, dtype, alignment):
    """Dispatch and combine; return the fields of this rank."""
    rng = torch.Generator().manual_seed(100 * rank + alignment)
    tokens = CAPACITY - 2 * rank if rank < RANKS - 1 else 0
    scores = torch.rand(tokens, EXPERTS, generator=rng)
    ids = scores.topk(TOPK, dim=1).indices
    given = {
        # Any negative id masks, for the drop-in and for the tool.
        "topk_idx": torch.where(torch.rand(ids.shape, generator=rng) < 0.1, -1 - 4 * (ids % 2), ids),
        "topk_weights": torch.rand(tokens, TOPK, generator=rng),
        "x": torch.randn(tokens, HIDDEN, generator=rng).to(torch.bfloat16),
    }
    if dtype == "fp8":
        given["x"] = given["x"].to(torch.float8_e4m3fn)
        given["sf"] = torch.randint(-(2**15), 2**15, (tokens, PACKS), generator=rng, dtype=torch.int16)
    buffer = deep_ep.EPBuffer(
        dist.group.WORLD, None, CAPACITY, HIDDEN, TOPK, use_fp8_dispatch=dtype == "fp8", arrival_seed=3
    )
    received, _, weights, handle, _ = buffer.dispatch(
        (given["x"], given["sf"]) if dtype == "fp8" else given["x"],
        given["topk_idx"],
        given["topk_weights"],
        num_experts=EXPERTS,
        expert_alignment=alignment,
        do_expand=True,
        do_zero_padding=True,
    )
    recv_x, recv_sf = received if dtype == "fp8" else (received, None)
    y = torch.randn(recv_x.shape, generator=rng).to(torch.bfloat16)
    bias = torch.randn(tokens, HIDDEN, generator=rng).to(torch.bfloat16)
    combined_x, combined_weights, _ = buffer.combine(y, handle, weights, bias)
    kept = {name: getattr(handle, name) for name in FIELDS if hasattr(handle, name) and name != "topk_idx"}
    kept["num_recv_tokens_per_expert_list"] = torch.tensor(handle.num_recv_tokens_per_expert_list)
    got = {"recv_x": recv_x, "recv_sf": recv_sf, "recv_topk_weights": weights}
    back = {"combined_x": combined_x, "combined_topk_weights": combined_weights}
    # The same tensor under two names: the dump must take it.
    return given | kept | got | {"combine_x": y, "combine_topk_weights": weights, "bias_0": bias} | back


def both_runs(rank, num_ranks, folder):
    dump = documented_dump()
    names = {}
    for dtype, alignment in RUNS.items():
        fields = one_run(rank, dtype, alignment)
        sizes = {"ep_size": num_ranks, "num_experts": EXPERTS, "num_topk": TOPK, "hidden": HIDDEN}
        group = sizes | {"num_max_tokens_per_rank": CAPACITY, "expert_alignment": alignment}
        options = {"edition": "ascend", "dtype": dtype, "zero_padding": True}
        dump(f"{folder}/{dtype}", rank, group, options, **fields)
        names[dtype] = {name for name, tensor in fields.items() if tensor is not None}
    return names


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Return the folder of both dumps, made by one spawn."""
    folder = tmp_path_factory.mktemp("dumps")
    for dtype in RUNS:
        (folder / dtype).mkdir()
    told = run_ranks(both_runs, RANKS, str(folder))
    for names in told:
        assert names["fp8"] == set(FIELDS) - NOT_DUMPED
        assert names["bf16"] == names["fp8"] - {"sf", "recv_sf"}
    return folder


def debugged(folder, capfd):
    """Return (exit code, what `epsim debug --json` says)."""
    code = run(["debug", str(folder), "--json"])
    return code, json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("dtype", RUNS)
def test_a_right_run_of_eight_processes_is_equal(dumps, dtype, capfd):
    """Exit code 0, and every dumped output was judged at every rank."""
    assert run(["debug", str(dumps / dtype)]) == 0
    assert capfd.readouterr().out.splitlines()[0].endswith(": equal")
    _, found = debugged(dumps / dtype, capfd)
    dumped = read_capture(dumps / dtype).ranks[0]
    outputs = {name for name in dumped if FIELDS[name].stage in ("dispatch", "combine")}
    assert {c["field"] for c in found["compared"]} == outputs
    assert found["not_compared"] == {}
    given = [read_arrays(dumps / dtype / f"rank{rank}.safetensors")["topk_idx"] for rank in range(RANKS)]
    other_masks = sum(int((idx < -1).sum()) for idx in given)
    assert other_masks > 1
    assert found["notes"] == [f"{other_masks} ids below -1 read as masked, as deep_ep does"]
    for compared in found["compared"]:
        assert tuple(compared["ranks"]) == tuple(range(RANKS))
        assert compared["num_elements"] > 0


@pytest.mark.parametrize("dtype", RUNS)
def test_rows_crossed_between_all_ranks(dumps, dtype):
    """Every rank with tokens reached every other one, with as many rows as its routing asks for."""
    ranks = read_capture(dumps / dtype).ranks
    moved, wanted = np.zeros((2, RANKS, RANKS), int)
    for rank, arrays in enumerate(ranks):
        sources = arrays["recv_src_metadata"][:, TOPK] // CAPACITY
        moved[:, rank] = np.bincount(sources, minlength=RANKS)
        owners = np.where(arrays["topk_idx"] < 0, -1, arrays["topk_idx"] // (EXPERTS // RANKS))
        wanted[rank] = [(owners == target).any(axis=1).sum() for target in range(RANKS)]
    np.testing.assert_array_equal(moved, wanted)
    assert (moved[:-1] > 0).all()
    assert (moved[-1] == 0).all()


@dataclass(frozen=True)
class Damage:
    """What is done to one file.

    Args:
      dtype: which dump.
      field: which array.
      rank: whose file.
      swap: exchange rows of two source ranks; else change the last bit of one element.
    """

    dtype: str
    field: str
    rank: int
    swap: bool = False

    def __str__(self):
        """Name the test."""
        return f"{self.dtype}-{self.field}-{'swap' if self.swap else 'bit'}"

    def do(self, arrays):
        """Change the array in place; return what the first wrong place must say."""
        array = arrays[self.field]
        (row, source, token, k), (other, *_) = two_rows(arrays)
        place = {"field": self.field, "source_rank": source, "token": token, "k": k, "row": row}
        place |= {"destination_rank": self.rank}
        if self.swap:
            assert (array[row] != array[other]).any()
            array[[row, other]] = array[[other, row]]
            return place
        if self.field == "combined_x":
            row = 2
            place = {"field": self.field, "source_rank": self.rank, "token": row}
        array.view(f"u{array.itemsize}")[(row, 1)[: array.ndim]] ^= 1
        return place | ({"column": 1} if array.ndim == 2 else {}) | ({"ulp": 1} if self.is_float else {})

    @property
    def is_float(self):
        """Whether neighbours are an ulp apart."""
        return self.field != "recv_sf"


def two_rows(arrays):
    """Return (row, source rank, token, k) of a choice of two records, from two ranks; rows ascend."""
    records = arrays["recv_src_metadata"].tolist()
    last = records[-1]
    found = []
    for record in (next(r for r in records if r[TOPK] // CAPACITY != last[TOPK] // CAPACITY), last):
        k = next(k for k in range(TOPK) if record[k] >= 0)
        found.append((record[k], *divmod(record[TOPK], CAPACITY), k))
    return sorted(found)


DAMAGES = [
    Damage("bf16", "recv_x", 5, swap=True),
    Damage("fp8", "recv_x", 2, swap=True),
    Damage("bf16", "recv_x", 7),
    Damage("fp8", "recv_x", 0),
    Damage("fp8", "recv_sf", 3),
    Damage("fp8", "recv_topk_weights", 6),
    Damage("bf16", "combined_x", 4),
    Damage("fp8", "combined_x", 1),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_file_is_named(dumps, tmp_path, damage, capfd):
    """Exit code 1; the first wrong place is the damaged one, and no other field is blamed."""
    folder = tmp_path / "dump"
    shutil.copytree(dumps / damage.dtype, folder)
    path = folder / f"rank{damage.rank}.safetensors"
    arrays = {name: np.array(array) for name, array in read_arrays(path).items()}
    wanted = damage.do(arrays)
    write_arrays(path, arrays)
    code, found = debugged(folder, capfd)
    assert code == 1
    assert {name: found["place"].get(name) for name in wanted} == wanted
    wrong = {c["field"]: c["num_mismatches"] for c in found["compared"] if c["num_mismatches"]}
    assert set(wrong) == {damage.field}
    assert damage.swap or wrong[damage.field] == 1
