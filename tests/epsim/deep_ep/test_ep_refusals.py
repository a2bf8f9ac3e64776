"""Every refusal that can be met from Python, with the kind of exception that `deep_ep` has for it.

PY = AssertionError of the Python front end, NOT = NotImplementedError, HOST = RuntimeError of native code,
UNDEFINED = what upstream lets pass: a named error here. All ranks make the same wrong call, so all raise.
Source: deepep-ascend.md section 1.10; deepep-v2.md section 7.
"""

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep import errors
from epsim.deep_ep.errors import (
    HostCheckError,
    RefusedError,
    StaleHandleError,
    UndefinedError,
    UnsupportedError,
)
from epsim.deep_ep.utils.math import per_token_cast_to_fp8
from reference.errors import ConfigError
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20
HIDDEN, TOKENS, TOPK, EXPERTS = 256, 5, 3, 8
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
FLAGS = ("async_with_compute_stream", "allocate_on_comm_stream", "defer_epilogue")
EP_FLAGS = (
    *("do_handle_copy", "do_cpu_sync", "do_expand", "do_zero_padding", "use_tma_aligned_col_major_sf"),
    "emit_expert_ids",
)


def refuses(kind, text, call, *args, **options):
    """Check that a call raises exactly this kind, with field, value and rule."""
    with pytest.raises(ConfigError, match=text) as caught:
        call(*args, **options)
    assert type(caught.value) is kind, (text, type(caught.value))


def ids(num_topk=TOPK, tokens=TOKENS, num_experts=EXPERTS):
    return torch.stack([(torch.arange(num_topk) + t) % num_experts for t in range(tokens)])


def rows(tokens=TOKENS, hidden=HIDDEN, dtype=BF16):
    return torch.zeros(tokens, hidden, dtype=BF16).to(dtype)


def constructor(rank, num_ranks):
    world = dist.group.WORLD

    def make(**options):
        return deep_ep.EPBuffer(world, **({"num_bytes": MIB2} | options))

    used = deep_ep.BufferAllocator()
    used.allocate((3,), torch.float32)
    used.materialize(torch.zeros(used.num_bytes, dtype=torch.uint8))
    for wrong in (used, 1, -MIB2, 2.0 * MIB2, "2"):
        refuses(RefusedError, "lb_allocation_plan", make, lb_allocation_plan_or_num_bytes=wrong)
    refuses(RefusedError, "allow_multiple_reduction", make, allow_multiple_reduction=False)
    for name in ("num_cpu_timeout_secs", "num_gpu_timeout_secs"):
        refuses(RefusedError, name, make, **{name: 0})
    for wrong in (MIB2 + 1, -MIB2, 3.5):
        refuses(RefusedError, "num_bytes", make, num_bytes=wrong)
    refuses(RefusedError, "num_max_tokens_per_rank", make, num_bytes=None)
    refuses(RefusedError, "hidden", make, num_bytes=None, num_max_tokens_per_rank=4)
    refuses(UnsupportedError, "sl_idx", make, sl_idx=3)
    refuses(UnsupportedError, "num_allocated_qps", make, num_allocated_qps=1)
    refuses(UnsupportedError, "num_scaleup_ranks", make, num_scaleup_ranks=1)
    refuses(RefusedError, "num_scaleup_ranks", make, num_scaleup_ranks=3, edition="nvidia")
    refuses(RefusedError, "edition", make, edition="amd")
    hint = deep_ep.EPBuffer.get_buffer_size_hint
    refuses(RefusedError, "allow_multiple", hint, world, 4, 256, allow_multiple_reduction=False)
    refuses(HostCheckError, "hidden is 0", hint, world, 4, 0)
    flags = ("use_fp8_dispatch", "allow_hybrid_mode", "allow_multiple_reduction", "deterministic")
    for name in flags:
        refuses(HostCheckError, f"{name} is 'no': must be True or False", make, **{name: "no"})
        refuses(HostCheckError, f"{name} is 1: must be True or False", make, **{name: 1})
    buffer = make(explicitly_destroy=True)
    buffer.destroy()
    refuses(RefusedError, "destroyed", buffer.destroy)
    refuses(RefusedError, "destroyed", buffer.dispatch, rows())
    refuses(RefusedError, "destroyed", buffer.barrier)
    return True


def front_end(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    handle = buffer.dispatch(**good)[3]

    def wrong(kind, text, **options):
        refuses(kind, text, buffer.dispatch, **(good | options))

    wrong(UnsupportedError, "num_qps", num_qps=1)
    wrong(RefusedError, "do_handle_copy", do_handle_copy=True)
    wrong(RefusedError, "do_expand", do_expand=False)
    wrong(RefusedError, "emit_expert_ids", emit_expert_ids=True)
    wrong(RefusedError, "topk_idx", handle=handle)
    cached = {"x": rows(), "handle": handle, "do_expand": True}
    for options in ({"do_cpu_sync": True}, {"num_experts": 16}, {"expert_alignment": 2}):
        refuses(RefusedError, next(iter(options)), buffer.dispatch, **(cached | options))
    refuses(RefusedError, "num_max", buffer.dispatch, **cached, num_max_tokens_per_rank=9)
    handle.do_expand = False
    refuses(RefusedError, "do_expand", buffer.dispatch, **cached)
    for missing, kinds in (("topk_idx", AttributeError), ("num_experts", TypeError)):
        with pytest.raises(kinds, match=missing):
            buffer.dispatch(**(good | {missing: None}))
    refuses(UnsupportedError, "num_qps", buffer.combine, rows(), handle, num_qps=2)
    return True


def native_dispatch(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    weights, scales = torch.rand(TOKENS, TOPK), torch.zeros(TOKENS, 4, dtype=torch.int16)
    fp8 = rows(dtype=FP8)

    def host(text, **options):
        refuses(HostCheckError, text, buffer.dispatch, **(good | options))

    for x in (rows()[0], rows(hidden=2 * HIDDEN)[:, ::2], rows(dtype=torch.float16), fp8):
        host("x", x=x)
    host("x is 'a list'", x=[fp8, scales])
    host("tuple of 3", x=(fp8, scales, scales))
    host(r"x\[0\]", x=(rows(), scales))
    host("must have 5 rows", x=(fp8, scales[:4]))
    host("elements of 2 bytes", x=(fp8, scales.to(torch.int32)))
    host(r"give scales.view\(torch.int16\)", x=per_token_cast_to_fp8(rows()))
    host("one of them must be 1", x=(fp8, torch.zeros(TOKENS, 8, 2, dtype=torch.int16)[:, ::2, 0]))
    host("2 dimensions", x=(fp8, scales[:, 0]))
    host("num_max_tokens_per_rank is 4", num_max_tokens_per_rank=4)
    host("num_max_tokens_per_rank is 0", num_max_tokens_per_rank=0)
    host("must divide it", num_experts=9)
    host("topk_idx", topk_idx=ids(tokens=4))
    host("topk_idx", topk_idx=ids().to(torch.int32))
    host("topk_idx", topk_idx=ids(6)[:, ::2])
    for wrong in (weights[:4], weights[:, :2].contiguous(), weights.double(), torch.rand(TOKENS, 6)[:, ::2]):
        host("topk_weights", topk_weights=wrong)
    for wrong in (torch.zeros(3, dtype=torch.int32), torch.zeros(4), torch.zeros(1, 4, dtype=torch.int32)):
        host("cumulative_local_expert_recv_stats", cumulative_local_expert_recv_stats=wrong)
    host("num_sms is -1", num_sms=-1)
    host("num_sms is 7", num_sms=7)
    host("num_sms is 33", num_sms=33)
    host("num_bytes", num_max_tokens_per_rank=4096)
    for name in (*FLAGS, *EP_FLAGS):
        for wrong in ("no", "false", 1, torch.ones(1)):
            host(f"{name} is .*: must be True or False", **{name: wrong})
    host("do_expand is None: must be True or False", do_expand=None)
    host("needs async_with_compute_stream", defer_epilogue=True)
    host("expert_alignment is 3: must be a power of two", expert_alignment=3)
    host("num_experts is 514", num_experts=514)
    host("num_topk is 33", x=rows(1), topk_idx=ids(33, 1, 64), num_experts=64)
    host("24-bit", num_max_tokens_per_rank=2**23)
    host("multiple of 256 bytes", x=rows(hidden=64), do_zero_padding=True)
    host("aligned rows", num_max_tokens_per_rank=2**23 - 1, expert_alignment=2**23)
    undefined_dispatch(buffer, good)
    cached_dispatch(buffer, good)
    return True


def undefined_dispatch(buffer, good):
    """Make the calls that upstream does not check."""

    def undefined(text, **options):
        refuses(UndefinedError, text, buffer.dispatch, **(good | options))

    repeat, large = ids(), ids()
    repeat[3, 2] = repeat[3, 0]
    large[4, 1] = EXPERTS
    undefined(r"topk_idx\[rank ., token 3, column 2\] is 3: an expert may appear once", topk_idx=repeat)
    undefined(r"topk_idx\[rank ., token 4, column 1\] is 8: must be an expert 0..7", topk_idx=large)
    weights = torch.rand(TOKENS, TOPK)
    weights[2, 1] = float("nan")
    undefined(r"topk_weights\[rank ., token 2, column 1\] is nan", topk_weights=weights)
    undefined("multiple of 32 bytes", x=rows(hidden=24))
    for wrong in (0, 9):
        text = f"{wrong} packs per row.*hidden 256 has 1 to 8, at most one per 32 elements"
        undefined(text, x=(rows(dtype=FP8), torch.zeros(TOKENS, wrong, dtype=torch.int16)))


def sized(rank, num_ranks):
    """Go beyond what a buffer was sized for; given bytes serve whatever fits into them."""
    world = dist.group.WORLD
    buffer = deep_ep.EPBuffer(world, num_max_tokens_per_rank=8, hidden=HIDDEN, num_topk=TOPK)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    text = "hidden is 512: the buffer was sized for hidden 256"
    refuses(UndefinedError, text, buffer.dispatch, **(good | {"x": rows(hidden=512)}))
    text = "num_topk is 4: the buffer was sized for num_topk 3"
    refuses(UndefinedError, text, buffer.dispatch, **(good | {"topk_idx": ids(4)}))
    buffer.dispatch(**(good | {"x": rows(hidden=128), "topk_idx": ids(2)}))
    recv_x, _, _, handle, _ = buffer.dispatch(**good)
    wide = torch.cat((recv_x, recv_x), dim=1)
    refuses(UndefinedError, "hidden is 512: the buffer was sized", buffer.combine, wide, handle)
    for options in ({"num_bytes": MIB2}, {"num_bytes": None, "num_topk": 0, "hidden": 512}):
        given = {"num_max_tokens_per_rank": 8, "hidden": 128, "num_topk": 1} | options
        other = deep_ep.EPBuffer(world, **given)
        other.dispatch(**(good | {"x": rows(hidden=512), "topk_idx": ids(4)}))
    # Upstream sizes for any width; rows of a width that no kernel takes are refused when they come.
    odd = deep_ep.EPBuffer(world, num_max_tokens_per_rank=8, hidden=100, num_topk=TOPK)
    refuses(UndefinedError, "rows of 200 bytes", odd.dispatch, **(good | {"x": rows(hidden=100)}))
    return True


def cached_dispatch(buffer, good):
    """Use handles that do not fit, or whose routing has changed."""
    handle = buffer.dispatch(**good)[3]
    cached = {"handle": handle, "do_expand": True}
    refuses(HostCheckError, "the handle has 5", buffer.dispatch, rows(4), **cached)
    stats = torch.zeros(EXPERTS // 2, dtype=torch.int32)
    name = "cumulative_local_expert_recv_stats"
    refuses(HostCheckError, name, buffer.dispatch, rows(), **cached, **{name: stats})
    for name in ("psum_num_recv_tokens_per_rank", "recv_src_metadata", "dst_buffer_slot_idx", "dst_gsge_idx"):
        kept = getattr(handle, name)
        for wrong in (None, kept[:-1], kept.to(torch.int64)):
            setattr(handle, name, wrong)
            refuses(HostCheckError, f"handle.{name}", buffer.dispatch, rows(), **cached)
        setattr(handle, name, kept)
    refuses(HostCheckError, "num_sms is -1: must be a whole", buffer.dispatch, rows(), **cached, num_sms=-1)
    buffer.dispatch(rows(), **cached)
    good["topk_idx"][0, 0] = 7
    refuses(StaleHandleError, "written to after dispatch", buffer.dispatch, rows(), **cached)
    refuses(StaleHandleError, "written to after dispatch", buffer.combine, rows(64), handle)
    # A write that torch does not count is found as well.
    hidden_write = ids()
    handle = buffer.dispatch(**(good | {"topk_idx": hidden_write}))[3]
    hidden_write.numpy()[0, 0] = 7
    with pytest.raises(AssertionError, match="written to"):
        _ = handle.topk_idx


def native_combine(rank, num_ranks):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    recv_x, _, _, handle, _ = buffer.dispatch(**good)

    def host(text, x=recv_x, **options):
        refuses(HostCheckError, text, buffer.combine, x, handle, **options)

    for wrong in (recv_x[0], recv_x.float(), torch.zeros(len(recv_x), 512, dtype=BF16)[:, ::2]):
        host("x", x=wrong)
    for wrong in (torch.rand(len(recv_x) - 1), torch.rand(len(recv_x), 1), torch.rand(len(recv_x)).double()):
        host("topk_weights", topk_weights=wrong)
    good_bias = rows()
    for wrong in (rows(4), good_bias.float(), (good_bias,), (good_bias,) * 3, (good_bias, rows(4))):
        host("bias", bias=wrong)
    host("needs async_with_compute_stream", defer_epilogue=True)
    for name in FLAGS:
        host(f"{name} is 'no': must be True or False", **{name: "no"})
    for wrong in (-1, 1.5, None):
        host(f"num_sms is {wrong}: must be a whole number of at least 0", num_sms=wrong)
    buffer.combine(recv_x, handle, num_sms=1000)  # the handle's is used, whatever is passed
    host("combine needs a multiple of 128", x=torch.zeros(len(recv_x), 192, dtype=BF16))
    host("rows of 262144 bytes on chip", x=torch.zeros(len(recv_x), 2**17, dtype=BF16))
    refuses(HostCheckError, "handle is 'tuple'", buffer.combine, recv_x, (1, 2))
    refuses(UndefinedError, "bias is 'a list'", buffer.combine, recv_x, handle, bias=[good_bias])
    for wrong in (recv_x[:-1], recv_x[:0], torch.cat((recv_x, recv_x))):
        text = f"x is '{len(wrong)} rows': the handle has {len(recv_x)}, as dispatch returned them"
        refuses(UndefinedError, text, buffer.combine, wrong, handle)
    # Without CPU sync, more rows than any token made are what dispatch returned.
    worst, _, _, handle_of_worst, _ = buffer.dispatch(**good, do_cpu_sync=False)
    assert len(worst) > len(recv_x)
    for wrong in (recv_x, worst[:-1]):
        refuses(UndefinedError, f"the handle has {len(worst)}", buffer.combine, wrong, handle_of_worst)
    assert torch.equal(buffer.combine(worst, handle_of_worst)[0], buffer.combine(recv_x, handle)[0])
    # A handle may come from another buffer, which was larger.
    wide = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 4096).dispatch(**good)
    refuses(HostCheckError, "this combine needs", buffer.combine, wide[0], wide[3])
    large = deep_ep.EPBuffer(dist.group.WORLD, 2**32, 2_100_000)
    rows_large, _, _, handle, _ = large.dispatch(**good)
    refuses(HostCheckError, "descriptor bound of combine", large.combine, rows_large, handle)
    return True


def nvidia(rank, num_ranks):
    world = dist.group.WORLD
    buffer = deep_ep.EPBuffer(world, 2**24, 8, edition="nvidia", explicitly_destroy=True)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS}

    def host(text, **options):
        refuses(HostCheckError, text, buffer.dispatch, **(good | options))

    host("do_zero_padding", do_zero_padding=True)
    packs = torch.zeros(TOKENS, 2, dtype=torch.float32)
    for dtype in (torch.float8_e5m2, BF16, torch.int8):
        text = rf"x\[0\] is '{dtype}': must be torch.float8_e4m3fn"
        wrong = (rows(dtype=dtype), packs)
        refuses(UndefinedError, text, buffer.dispatch, **(good | {"x": wrong}))
    buffer.dispatch(**(good | {"x": (rows(dtype=FP8), packs)}))
    host("elements of 4 bytes", x=(rows(dtype=FP8), torch.zeros(TOKENS, 4, dtype=torch.int16)))
    host("multiple of 32 bytes", x=rows(hidden=24))
    host("num_topk", x=rows(1), topk_idx=ids(33, 1, 64), num_experts=64)
    host("num_experts", num_experts=2050)
    host("num_local_experts", num_experts=1024)
    host("num_bytes", num_max_tokens_per_rank=2**16)
    recv_x, _, weights, handle, _ = buffer.dispatch(**good)
    assert weights is None
    refuses(UndefinedError, "do_expand", buffer.dispatch, rows(), handle=handle, do_expand=True)
    refuses(HostCheckError, "the handle has", buffer.combine, recv_x[:-1], handle)
    refuses(HostCheckError, "topk_weights", buffer.combine, recv_x, handle, torch.rand(len(recv_x)))
    narrow = recv_x[:, :128].contiguous()
    refuses(HostCheckError, "combine needs a multiple of 256", buffer.combine, narrow, handle)
    hybrid = deep_ep.EPBuffer(world, 2**24, 8, edition="nvidia", num_scaleup_ranks=1)
    for num_sms in (1, 161):
        refuses(HostCheckError, "hybrid needs 2 to 160", hybrid.dispatch, **good, num_sms=num_sms)
    once = deep_ep.EPBuffer(world, 2**24, 8, edition="nvidia", allow_multiple_reduction=False)
    out, _, weights, handle, _ = once.dispatch(**good, topk_weights=torch.rand(TOKENS, TOPK), do_expand=True)
    refuses(HostCheckError, "single reduction", once.combine, out, handle, weights)
    refuses(UnsupportedError, "num_cpu_bytes", deep_ep.ElasticBuffer, world, MIB2, MIB2)
    elastic = deep_ep.ElasticBuffer(world, MIB2)
    refuses(RefusedError, "explicitly_destroy", elastic.destroy)
    buffer.destroy()
    return True


def waiting(rank, num_ranks):
    """One operation at a time; inputs stay as they are until the wait."""
    world = dist.group.WORLD
    buffer = deep_ep.EPBuffer(world, MIB2, 8, explicitly_destroy=True)
    x = rows()
    good = {"x": x, "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    later = {"async_with_compute_stream": True, "defer_epilogue": True}
    handle = buffer.dispatch(**good)[3]
    event = buffer.dispatch(**good, **later)
    for call in (lambda: buffer.dispatch(**good), lambda: buffer.combine(rows(64), handle), buffer.destroy):
        refuses(UndefinedError, "busy with a deferred dispatch, not waited for yet", call)
    recv_x = event.wait()[0]
    assert event.wait() is None
    event = buffer.combine(recv_x, handle, **later)
    recv_x.zero_()
    refuses(UndefinedError, "x is 'written to': a deferred combine", event.wait)
    event = buffer.dispatch(**good, **later)
    x += 1
    refuses(UndefinedError, "x is 'written to': a deferred dispatch", event.wait)
    # A bias may be made between issue and wait: only the epilogue reads it.
    bias = rows()
    event = buffer.combine(recv_x, handle, bias=bias, **later)
    bias += 2
    assert event.wait()[0].tolist() == bias.tolist()
    event = buffer.dispatch(**good, **later)
    del event
    refuses(UndefinedError, "dropped without a wait", buffer.dispatch, **good)
    buffer.destroy()
    return True


JOBS = (constructor, front_end, native_dispatch, native_combine, nvidia, sized, waiting)


@pytest.mark.parametrize("job", JOBS, ids=[job.__name__ for job in JOBS])
def test_every_refusal_has_its_kind_and_names_its_rule(job):
    """Field, value and rule; and the buffer goes on after it."""
    assert run_ranks(job, 2) == [True, True]


def refusals_of_the_page():
    """Return per table of docs/drop-in.md its rows: (arguments, name of the exception, sentence)."""
    page = (Path(__file__).parents[3] / "docs" / "drop-in.md").read_text()
    row = re.compile(r"^\| `(\w+=.*?)` \| `(\w+)` \| (.*) \|$", re.MULTILINE)
    parts = page.split("| arguments | exception | sentence |")[1:]
    tables = [row.findall(part.split("\n\n")[0]) for part in parts]
    return [[(keywords(text), kind, says) for text, kind, says in table] for table in tables]


def keywords(text):
    call = ast.parse(f"f({text})", mode="eval").body
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def as_written(rank, num_ranks):
    """Make the calls of the page."""
    constructors, dispatches = refusals_of_the_page()
    for given, kind, says in constructors:
        options = {"num_bytes": MIB2} | given
        refuses(getattr(errors, kind), f"^{re.escape(says)}$", deep_ep.EPBuffer, dist.group.WORLD, **options)
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    good = {"x": rows(), "topk_idx": ids(), "num_experts": EXPERTS, "do_expand": True}
    for given, kind, says in dispatches:
        refuses(getattr(errors, kind), f"^{re.escape(says)}$", buffer.dispatch, **(good | given))
    return len(constructors), len(dispatches)


def test_the_page_says_what_is_refused_and_how():
    """Every row of its tables, word by word."""
    assert run_ranks(as_written, 2) == [(16, 6)] * 2


def odd_group(rank, num_ranks):
    refuses(HostCheckError, "3 ranks.*must be 1 or even", deep_ep.EPBuffer, dist.group.WORLD, MIB2)
    return True


def test_the_ascend_edition_refuses_an_odd_group():
    """The rank pairs of its channels need an even number."""
    assert run_ranks(odd_group, 3) == [True] * 3
