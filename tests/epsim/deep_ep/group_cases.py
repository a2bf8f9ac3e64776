"""Whole groups from a seed: every process makes the same routing and payloads, and knows what is right.

What is right is `reference.definition`, the slow loops; a process computes it for all ranks and looks at its
own. Bits are compared, never values.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from epsim.deep_ep.arrays import array_of, tensor_of
from reference.config import EPConfig
from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.handle import DispatchMode
from reference.topk import TopK
from tests.reference.exchange import BF16, FP8, random_bits, random_rows, random_topk

HANDLE_FIELDS = (
    "num_recv_tokens",
    "num_expanded_tokens",
    "psum_num_recv_tokens_per_rank",
    "psum_num_recv_tokens_per_expert",
    "num_unaligned_recv_tokens_per_expert",
    "dst_buffer_slot_idx",
    "dst_gsge_idx",
)


def assert_bits(actual, expected, name):
    """Compare shape, dtype and every bit of a tensor or array with an array."""
    actual = array_of(actual) if isinstance(actual, torch.Tensor) else np.asarray(actual)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), name
    left, right = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (actual, expected))
    np.testing.assert_array_equal(left, right, err_msg=name)


@dataclass(frozen=True)
class GroupCase:
    """A group with its routing, payloads, and what its experts make of them."""

    config: EPConfig
    topk: TopK
    mode: DispatchMode
    x: list
    scales: list | None
    rng: np.random.Generator

    @property
    def sf_columns(self):
        """Scale packs of a token."""
        return 0 if self.scales is None else self.scales[0].shape[1]

    def payload(self, rank, *, column_major_input=False):
        """Return x as the caller gives it."""
        data = tensor_of(self.x[rank].copy())
        if self.scales is None:
            return data
        scales = tensor_of(self.scales[rank].copy())
        return data, (scales.T.contiguous().T if column_major_input else scales)

    def ids(self, rank):
        """Return topk_idx, masked ones as different negative numbers."""
        idx = self.topk.topk_idx[rank]
        return tensor_of(np.where(idx < 0, -1 - np.arange(idx.shape[1]), idx))

    def weights(self, rank):
        """Return topk_weights."""
        return tensor_of(self.topk.topk_weights[rank].copy())

    def dispatched(self, *, zero_padding, cpu_sync=True):
        """Return (results, handles) of all ranks."""
        mode = replace(self.mode, cpu_sync=cpu_sync)
        return define_dispatch(
            self.config, self.topk, self.x, scales=self.scales, mode=mode, zero_padding=zero_padding
        )

    def with_new_rows(self, *, weights=True, fp8=False):
        """Return the same routing with other payloads, for a cached dispatch."""
        given = [self.rng.random(w.shape, dtype=np.float32) for w in self.topk.topk_weights]
        topk = replace(self.topk, topk_weights=tuple(given) if weights else None)
        x = [random_bits(self.rng, (len(a), a.shape[1]), FP8 if fp8 else BF16) for a in self.x]
        pack = np.int16 if self.mode.rules.scale_pack_bytes == 2 else np.float32
        scales = [random_bits(self.rng, (len(a), 5), pack) for a in self.x] if fp8 else None
        return replace(self, topk=topk, x=x, scales=scales)

    def expert_rows(self, handles):
        """Return (y, weights) of all ranks: what experts give to combine."""
        y = [random_rows(self.rng, (h.num_rows, self.config.hidden)) for h in handles]
        shapes = [(h.num_rows,) if h.do_expand else (h.num_rows, self.config.num_topk) for h in handles]
        return y, [self.rng.random(shape, dtype=np.float32) for shape in shapes]

    def biases(self, count):
        """Return `count` biases of all ranks."""
        tokens = self.topk.tokens_per_rank
        return tuple([random_rows(self.rng, (n, self.config.hidden)) for n in tokens] for _ in range(count))


def make_case(
    seed,
    num_ranks,
    *,
    edition="ascend",
    expand=True,
    num_scaleup_ranks=None,
    alignment=1,
    fp8=False,
    tokens=None,
    num_topk=3,
    experts_per_rank=3,
    hidden=256,
    masked=0.2,
    num_max_tokens=6,
):
    """Return a group; the last rank has no token unless told otherwise."""
    rng = np.random.default_rng(seed)
    config = EPConfig(
        ep_size=num_ranks,
        num_experts=num_ranks * experts_per_rank,
        num_topk=num_topk,
        hidden=hidden,
        num_max_tokens_per_rank=num_max_tokens,
        expert_alignment=alignment,
    )
    if tokens is None:
        tokens = [max(0, num_max_tokens - rank) for rank in range(num_ranks - 1)] + [0]
    topk = random_topk(config, rng, tokens=tokens, masked=masked)
    mode = DispatchMode(edition=edition, expand=expand, num_scaleup_ranks=num_scaleup_ranks)
    pack = np.int16 if mode.rules.scale_pack_bytes == 2 else np.float32
    x = [random_bits(rng, (count, hidden), FP8 if fp8 else BF16) for count in tokens]
    scales = [random_bits(rng, (count, 5), pack) for count in tokens] if fp8 else None
    return GroupCase(config=config, topk=topk, mode=mode, x=x, scales=scales, rng=rng)


def check_dispatch(outputs, expected, *, column_major=False, skip_undefined=False):
    """Compare (recv_x, ids, weights, handle) of one rank with its (result, handle), bit for bit.

    Poison is compared too: it is as deterministic as everything else.
    """
    result, plan = expected
    recv_x, ids, weights, handle = outputs
    if result.recv_scales is not None:
        recv_x, scales = recv_x
        assert_bits(scales, result.recv_scales, "recv_sf")
        rows, packs = scales.shape
        step = plan.mode.rules.scale_column_rows
        if rows or not column_major:
            assert scales.stride() == ((1, -(-rows // step) * step) if column_major else (packs, 1))
    assert_bits(recv_x, result.recv_x, "recv_x")
    for name, actual, wanted in (
        ("recv_topk_idx", ids, result.recv_topk_idx),
        ("recv_topk_weights", weights, result.recv_topk_weights),
    ):
        assert (actual is None) == (wanted is None), name
        if wanted is not None:
            assert_bits(actual, wanted, name)
    check_handle(handle, plan)


def check_handle(handle, plan):
    """Compare every field of an EPHandle with the definition's; what the contract leaves open excepted."""
    for name in HANDLE_FIELDS:
        actual, wanted = getattr(handle, name), getattr(plan, name)
        if isinstance(wanted, np.ndarray):
            assert_bits(actual, wanted, name)
        else:
            assert actual == wanted, name
    assert handle.num_recv_tokens_per_expert_list == list(plan.num_recv_tokens_per_expert_list)
    columns = plan.config.num_topk + 2 if plan.mode.expand else 2
    real = plan.num_real_recv_tokens
    assert_bits(
        handle.recv_src_metadata[:real, :columns], plan.recv_src_metadata[:real, :columns], "metadata"
    )
    assert handle.recv_src_metadata.shape == plan.recv_src_metadata.shape
    for name in ("num_experts", "expert_alignment", "num_max_tokens_per_rank", "do_expand"):
        assert getattr(handle, name) == getattr(plan, name), name


def define_combined(handles, y, order, weights, bias, rank):
    """Return what one rank gets from combine."""
    return define_combine(handles, y, order=order, topk_weights=weights, bias=bias)[rank]


def check_combine(outputs, expected):
    """Compare (combined_x, combined_weights) with a result, bit for bit."""
    assert_bits(outputs[0], expected.combined_x, "combined_x")
    assert (outputs[1] is None) == (expected.combined_topk_weights is None)
    if outputs[1] is not None:
        assert_bits(outputs[1], expected.combined_topk_weights, "combined_topk_weights")


def dispatch_and_combine(buffer, case, rank, **options):
    """Run one round trip; return (outputs of dispatch, combined)."""
    outputs = buffer.dispatch(
        case.payload(rank),
        case.ids(rank),
        case.weights(rank),
        num_experts=case.config.num_experts,
        expert_alignment=case.config.expert_alignment,
        do_expand=True,
        **({"do_zero_padding": True} | options),
    )[:4]
    data = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    rows = data.float().nan_to_num().to(torch.bfloat16)
    return outputs, buffer.combine(rows, outputs[3], outputs[2])[:2]
