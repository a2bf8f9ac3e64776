"""The reference gives, bit for bit, what the public DeepEP reference gave; see deepep_refs/README.md."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from reference.combine import combine
from reference.comparison.compare import assert_equal
from reference.config import EPConfig
from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from reference.order import RECIPES
from reference.topk import TopK
from tests.reference.exchange import BF16

FOLDER = Path(__file__).parent / "deepep_refs"
CASES = sorted(path.parent.name for path in FOLDER.glob("*/case.json"))
MAX_FILE_BYTES = 200_000
EDITIONS = ("ascend", "nvidia-v2.5", "nvidia-v2")


@cache
def load(name):
    """Return (case, per rank its arrays)."""
    case = json.loads((FOLDER / name / "case.json").read_text())
    ranks = range(len(case["tokens"]))
    files = [np.load(FOLDER / name / f"rank{rank}.npz", allow_pickle=False) for rank in ranks]
    return case, [{key: file[key] for key in file.files} for file in files]


def group_of(case, ranks):
    """Return the config and routing of a case."""
    config = EPConfig(
        ep_size=len(ranks),
        num_experts=case["num_experts"],
        num_topk=case["num_topk"],
        hidden=case["hidden"],
        num_max_tokens_per_rank=case["max_tokens"],
    )
    idx = tuple(r["topk_idx"] for r in ranks)
    weights = tuple(r["topk_weights"] for r in ranks)
    return config, TopK(num_experts=config.num_experts, topk_idx=idx, topk_weights=weights)


def rows_for(handle, ranks):
    """Return y [X, H] of one rank: each expanded row's own output, NaN in padding."""
    origins = handle.row_origins()
    y = np.full((handle.num_rows, ranks[0]["y_bf16"].shape[2]), np.nan, dtype=BF16)
    for row, (gid, k) in enumerate(zip(*origins, strict=True)):
        src, token = divmod(int(gid), handle.num_max_tokens_per_rank)
        if gid >= 0:
            y[row] = ranks[src]["y_bf16"][token, k].view(BF16)
    return y


def test_all_six_cases_are_here_and_small():
    """A lost folder would pass silently."""
    assert len(CASES) == 6
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*.npz")}
    assert max(sizes.values()) < MAX_FILE_BYTES


@pytest.mark.parametrize("path", [define_dispatch, dispatch], ids=["definition", "vectorised"])
@pytest.mark.parametrize("edition", ["nvidia-v2.5", "nvidia-v2"])
@pytest.mark.parametrize("name", CASES)
def test_received_rows(name, edition, path):
    """Payload, scales, localised ids, verbatim weights, source indices and counts of every rank."""
    case, ranks = load(name)
    config, topk = group_of(case, ranks)
    key = "x_bf16" if case["dtype"] == "bf16" else "x_fp8"
    scales = [r["x_scales"] for r in ranks] if "x_scales" in ranks[0] else None
    mode = DispatchMode(edition=edition, expand=False, num_scaleup_ranks=case.get("scaleup"))
    results, handles = path(config, topk, [r[key] for r in ranks], scales=scales, mode=mode)
    for rank, result, handle in zip(ranks, results, handles, strict=True):
        want = {k: rank[k] for k in rank if k.startswith(("recv_", "num_recv"))}
        # The public reference zeroes nothing here either: weights travel as they are.
        have = {
            key.replace("x_", "recv_x_"): result.recv_x,
            "recv_topk_idx": result.recv_topk_idx,
            "recv_topk_weights": result.recv_topk_weights,
            "recv_src_token_global_idx": handle.gids(),
            "num_recv_tokens_per_rank": np.diff(handle.psum_num_recv_tokens_per_rank, prepend=np.int32(0)),
        }
        if scales is not None:
            have["recv_x_scales"] = result.recv_scales
        assert_equal(want, have, strict_zero=True)


def recipes():
    """Return (case, recipe, number of biases, edition) of all results; Ascend has one recipe."""
    found = []
    for name in CASES:
        for key in load(name)[1][0]:
            recipe, _, bias = key.removeprefix("combined_").partition("_bias")
            if key.startswith("combined_"):
                editions = EDITIONS if recipe == "rank_reduced" else EDITIONS[1:]
                found += [(name, recipe, int(bias[0]), edition) for edition in editions]
    return found


@pytest.mark.parametrize("path", [define_combine, combine], ids=["definition", "vectorised"])
@pytest.mark.parametrize(("name", "recipe", "num_bias", "edition"), recipes())
def test_combined_rows(name, recipe, num_bias, edition, path):
    """Every recipe and bias of a case, from expanded rows."""
    order = RECIPES[recipe]
    case, ranks = load(name)
    config, topk = group_of(case, ranks)
    scaleup = None if edition == "ascend" else case.get("scaleup")
    mode = DispatchMode(edition=edition, num_scaleup_ranks=scaleup)
    x = [np.zeros((n, 1), np.uint8) for n in topk.tokens_per_rank]
    _, handles = dispatch(config, topk, x, mode=mode)
    y = [rows_for(handle, ranks) for handle in handles]
    bias = tuple([r[f"bias{i}_bf16"].view(BF16) for r in ranks] for i in range(num_bias))
    results = path(handles, y, order=order, bias=bias)
    want = [{"combined_x": r[f"combined_{recipe}_bias{num_bias}_bf16"].view(BF16)} for r in ranks]
    assert_equal(want, [{"combined_x": r.combined_x} for r in results])
