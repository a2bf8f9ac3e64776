"""What dispatch and combine refuse, and in which words."""

import dataclasses
import re

import numpy as np
import pytest

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch, dispatch_cached
from reference.edition import EditionError
from reference.errors import ConfigError
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING, RANK_REDUCED, RANK_THEN_DOMAIN
from reference.placement import plan_dispatch
from reference.topk import TopK
from tests.reference.exchange import BF16, random_rows, random_topk, small_exchange

DISPATCH_REFUSALS = {
    "x of two ranks": ({"x": lambda x: x[:2]}, ConfigError, "x is '2 ranks'"),
    "x with a lost token": ({"x": lambda x: [x[0][1:], *x[1:]]}, ConfigError, "5 tokens here"),
    "x of several widths": (
        {"x": lambda x: [*x[:2], x[2][:, :3].copy()]},
        ConfigError,
        "rank 0 has 4 columns",
    ),
    "x of several dtypes": ({"x": lambda x: [*x[:2], x[2].view(np.uint16)]}, ConfigError, "bfloat16"),
    "x column-major": ({"x": lambda x: [np.asfortranarray(a) for a in x]}, ConfigError, "contiguous"),
    "x of complex": ({"x": lambda x: [a.astype(np.complex128) for a in x]}, ConfigError, "8 bytes wide"),
    "4-byte scales on Ascend": ({"scales": np.float32}, EditionError, "ascend takes scale packs of 2 bytes"),
    "2-byte scales on NVIDIA": ({"scales": np.int16, "edition": "nvidia-v2"}, EditionError, "4 bytes"),
    "columns without scales": ({"column_major_scales": True}, ConfigError, "there are no scales"),
    "padding without blocks": (
        {"edition": "nvidia-v2", "expand": False, "zero_padding": True},
        ConfigError,
        "only an expanded layout",
    ),
    "expert ids on Ascend": ({"emit_expert_ids": True}, EditionError, "ascend does not return"),
    "deduplicated on Ascend": ({"expand": False}, EditionError, "expanded layout only"),
    "hybrid on Ascend": ({"num_scaleup_ranks": 1}, EditionError, "one domain of 3 ranks"),
    "a copy of topk on V2.5": (
        {"edition": "nvidia-v2.5", "copy_topk": True},
        EditionError,
        "nvidia-v2.5 keeps",
    ),
    "uneven domains": (
        {"edition": "nvidia-v2", "num_scaleup_ranks": 2},
        ConfigError,
        "must divide ep_size 3",
    ),
    "an unknown edition": (
        {"edition": "nvidia-v1"},
        ConfigError,
        "must be one of ascend, nvidia-v2.5, nvidia-v2",
    ),
    "statistics of two ranks": ({"stats": [np.zeros(2, np.int32)] * 2}, ConfigError, "'2 ranks'"),
    "statistics of 64 bit": (
        {"stats": [np.zeros(2, np.int64)] * 3},
        ConfigError,
        "one count per local expert",
    ),
}


@pytest.mark.parametrize("name", DISPATCH_REFUSALS)
def test_dispatch_refusals(name):
    """Each is one sentence with field, value and rule, and the edition where it decides."""
    options, error, text = DISPATCH_REFUSALS[name]
    config, topk, x = small_exchange()
    options = dict(options)
    x = options.pop("x", lambda same: same)(x)
    if "scales" in options:
        pack = options["scales"]
        options["scales"] = [np.zeros((n, 1), pack) for n in topk.tokens_per_rank]
    fields = {f.name for f in dataclasses.fields(DispatchMode)}
    with pytest.raises(error, match=text):
        dispatch(
            config,
            topk,
            x,
            mode=DispatchMode(**{k: v for k, v in options.items() if k in fields}),
            **{k: v for k, v in options.items() if k not in fields},
        )


WRONG_TYPES = {
    "config": ({"config": {}}, "config is 'dict': must be an instance of EPConfig"),
    "topk": ({"topk": [[0]]}, "topk is 'list': must be an instance of TopK"),
    "mode": ({"mode": "ascend"}, "mode is 'str': must be an instance of DispatchMode"),
    "x": ({"x": None}, "x is 'NoneType': must be a sequence with one NumPy array per rank"),
    "x of a rank": ({"x": [[[1.0]]] * 3}, "x[rank 0] is 'list': must be a NumPy array"),
    "scales": ({"scales": 1.0}, "scales is 'float': must be a sequence with one NumPy array per rank"),
    "scales of a rank": ({"scales": [[1], [], []]}, "scales[rank 0] is 'list': must be a NumPy array"),
    "stats": ({"stats": {}}, "stats is 'dict': must be a sequence with one NumPy array per rank"),
    "stats of a rank": ({"stats": [[0, 0]] * 3}, "stats[rank 0] is 'list': must be a NumPy array"),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_dispatch_refuses_other_types_by_name(name):
    """Not an AttributeError from inside."""
    change, text = WRONG_TYPES[name]
    config, topk, x = small_exchange()
    with pytest.raises(ConfigError, match=re.escape(text)):
        dispatch(**{"config": config, "topk": topk, "x": x} | change)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float16", "float32", "float64"])
def test_ascend_takes_no_other_floats_than_its_own(dtype):
    """deepep-ascend.md section 1.5: bf16, or e4m3fn with scales. Integers pass for bits, NVIDIA takes any."""
    config, topk, x = small_exchange()
    wrong = [rows.astype(np.dtype(dtype)) for rows in x]
    text = (
        f"x.dtype is '{dtype}': edition ascend takes bfloat16 and float8_e4m3fn, or integers for their bits"
    )
    _, handles = dispatch(config, topk, x)
    for call in (lambda: dispatch(config, topk, wrong), lambda: dispatch_cached(handles, wrong)):
        with pytest.raises(EditionError, match=re.escape(text)):
            call()
    bits = [rows.view(f"u{rows.itemsize}") for rows in wrong]
    loose, _ = dispatch(config, topk, wrong, mode=DispatchMode(edition="nvidia-v2.5"))
    for found in (dispatch(config, topk, bits)[0], loose):
        assert found[0].recv_x.dtype.itemsize == np.dtype(dtype).itemsize


def test_cached_dispatch_refuses_other_types_by_name():
    """The same words as for the first dispatch."""
    config, topk, x = small_exchange()
    _, handles = dispatch(config, topk, x)
    with pytest.raises(ConfigError, match="handles is 'Handle': must be a sequence with one Handle per rank"):
        dispatch_cached(handles[0], x)
    with pytest.raises(ConfigError, match=re.escape("handles[rank 1] is 'int': must be a Handle")):
        dispatch_cached([handles[0], 1, 2], x)
    with pytest.raises(ConfigError, match=re.escape("topk_weights[rank 0] is 'list': must be a NumPy array")):
        dispatch_cached(handles, x, topk_weights=[[1.0]] * 3)


def test_too_many_source_indices_for_an_int32():
    """Gid = rank * M + token must fit."""
    config = EPConfig(ep_size=2, num_experts=2, num_topk=1, hidden=1, num_max_tokens_per_rank=2**30)
    topk = TopK(num_experts=2, topk_idx=(np.zeros((1, 1), np.int64),) * 2)
    with pytest.raises(ConfigError, match=r"2\^31"):
        plan_dispatch(config, topk)


def test_cached_refusals():
    """The layout is the handle's, tokens and weights must fit it."""
    config, topk, x = small_exchange()
    _, handles = dispatch(config, topk, x)
    with pytest.raises(ConfigError, match="the handle's layout has expand = True"):
        dispatch_cached(handles, x, expand=False)
    with pytest.raises(ConfigError, match="5 tokens here"):
        dispatch_cached(handles, [x[0][:4], *x[1:]])
    with pytest.raises(ConfigError, match="float32 with 2 columns"):
        dispatch_cached(handles, x, topk_weights=[np.zeros((n, 3), np.float32) for n in (5, 0, 3)])
    with pytest.raises(ConfigError, match=r"ranks 0\.\.2, in that order"):
        dispatch_cached(handles[:2], x)


def combine_case(**mode):
    """Return (handles, y, weights, bias) that combine takes."""
    rng = np.random.default_rng(0)
    config = EPConfig(ep_size=2, num_experts=4, num_topk=2, hidden=4, num_max_tokens_per_rank=4)
    topk = random_topk(config, rng, tokens=(4, 3), masked=0.2)
    x = [random_rows(rng, (n, 4)) for n in (4, 3)]
    results, handles = dispatch(config, topk, x, mode=DispatchMode(**mode))
    y = [r.recv_x.copy() for r in results]
    return handles, y, [r.recv_topk_weights.copy() for r in results], x


COMBINE_REFUSALS = {
    "y of one rank": (lambda h, y, w, b: (y[:1], {}), "y is '1 ranks'"),
    "y of lists": (lambda h, y, w, b: ([[1.0], [2.0]], {}), r"y\[rank 0\] is 'list': must be a NumPy array"),
    "y of one axis": (
        lambda h, y, w, b: ([a[:, 0].copy() for a in y], {}),
        r"y\[rank 0\].shape is .*must be \[rows, hidden\]",
    ),
    "weights of lists": (
        lambda h, y, w, b: (y, {"topk_weights": [a.tolist() for a in w]}),
        r"topk_weights\[rank 0\] is 'list': must be a NumPy array",
    ),
    "bias of lists": (
        lambda h, y, w, b: (y, {"bias": ([a.tolist() for a in b],)}),
        r"bias\[0\]\[rank 0\] is 'list': must be a NumPy array",
    ),
    "no y": (lambda h, y, w, b: (None, {}), "y is 'NoneType': must be a sequence with one NumPy array"),
    "y of float32": (lambda h, y, w, b: ([a.astype(np.float32) for a in y], {}), "must be bfloat16"),
    "y with a row too few": (lambda h, y, w, b: ([y[0][:-1], y[1]], {}), "a row per row that dispatch gave"),
    "y of two widths": (
        lambda h, y, w, b: ([y[0], y[1][:, :2].copy()], {}),
        "a row per row that dispatch gave",
    ),
    "y with columns first": (lambda h, y, w, b: ([np.asfortranarray(a) for a in y], {}), "contiguous"),
    "weights of one rank": (lambda h, y, w, b: (y, {"topk_weights": w[:1]}), "topk_weights is '1 ranks'"),
    "weights per column": (
        lambda h, y, w, b: (y, {"topk_weights": [np.zeros((len(a), 2), np.float32) for a in w]}),
        "must be float32",
    ),
    "weights of float64": (
        lambda h, y, w, b: (y, {"topk_weights": [a.astype(np.float64) for a in w]}),
        "must be float32",
    ),
    "bias as a list": (lambda h, y, w, b: (y, {"bias": [b]}), "must be a tuple of at most two"),
    "three biases": (lambda h, y, w, b: (y, {"bias": (b, b, b)}), "must be a tuple of at most two"),
    "bias of one rank": (lambda h, y, w, b: (y, {"bias": (b[:1],)}), r"bias\[0\] is '1 ranks'"),
    "bias of another shape": (
        lambda h, y, w, b: (y, {"bias": ([b[0], b[0]],)}),
        r"contiguous bfloat16 \[3, 4\]",
    ),
}


@pytest.mark.parametrize("name", COMBINE_REFUSALS)
def test_combine_refusals(name):
    """Each is a sentence with field, value and rule."""
    make, text = COMBINE_REFUSALS[name]
    handles, y, weights, bias = combine_case()
    y, options = make(handles, y, weights, bias)
    with pytest.raises(ConfigError, match=text):
        combine(handles, y, order=RANK_REDUCED, **options)


@pytest.mark.parametrize("order", [ONE_ROUNDING, RANK_THEN_DOMAIN])
def test_ascend_reduces_per_rank_only(order):
    """allow_multiple_reduction=False and hybrid reduction are refused with the edition's name."""
    handles, y, _, _ = combine_case()
    with pytest.raises(EditionError, match="edition ascend"):
        combine(handles, y, order=order)


def test_nvidia_refuses_weights_without_reduction_and_domains_without_hybrid():
    """Expanded rows that are not reduced per rank come home without weights (a device trap upstream)."""
    handles, y, weights, _ = combine_case(edition="nvidia-v2")
    with pytest.raises(EditionError, match="returns no weights"):
        combine(handles, y, order=ONE_ROUNDING, topk_weights=weights)
    with pytest.raises(ConfigError, match="needs a hybrid dispatch"):
        combine(handles, y, order=RANK_THEN_DOMAIN)


@pytest.mark.parametrize("expand", [True, False])
def test_handles_of_two_dispatches_are_refused(expand):
    """Handles that contradict each other never give a plausible number."""
    rng = np.random.default_rng(1)
    mode = DispatchMode(edition="nvidia-v2", expand=expand)
    config = EPConfig(ep_size=2, num_experts=4, num_topk=2, hidden=4, num_max_tokens_per_rank=4)
    sets = []
    for tokens in ((4, 3), (4, 3), (2, 1)):
        topk = random_topk(config, rng, tokens=tokens)
        _, handles = dispatch(config, topk, [np.zeros((n, 4), BF16) for n in tokens], mode=mode)
        sets.append(handles)
    for other in sets[1:]:
        for mixed in ((sets[0][0], other[1]), (other[0], sets[0][1])):
            y = [np.zeros((h.num_rows, 4), BF16) for h in mixed]
            with pytest.raises(ConfigError, match="must come from one dispatch"):
                combine(mixed, y, order=RANK_REDUCED)
