"""A program for `deep_ep` as users write them: public names only, and `device` as its one variable.

With the real library, change the one import below and run it with `torchrun` on its devices. It checks every
property of upstream's own test (deepep-ascend.md section 7.1), in torch operations and without a tolerance.

R ranks, M token capacity, n tokens of this rank, K top-k, H hidden, E experts, L local experts, P scale
packs, N received rows, X expanded rows; gid = source rank * M + source token.
"""

import argparse
import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep

MATRIX = [
    (alignment, use_fp8, num_biases, is_column_major)
    for alignment in (128, 1)
    for use_fp8 in (True, False)
    for num_biases in (0, 1, 2)
    for is_column_major in ((False, True) if use_fp8 else (False,))
]


@dataclass
class Group:
    """The same numbers on every rank."""

    group: dist.ProcessGroup
    device: str
    num_max_tokens: int
    hidden: int
    num_topk: int
    num_experts: int

    @property
    def rank(self):
        return dist.get_rank(self.group)

    @property
    def size(self):
        return dist.get_world_size(self.group)

    @property
    def num_local(self):
        return self.num_experts // self.size

    def gather(self, tensor):
        """Return [R * M, ...]: the rows of all ranks under their gid; ranks with fewer rows are padded."""
        raw = tensor.contiguous().view(torch.uint8).reshape(len(tensor), -1)
        padded = torch.zeros(self.num_max_tokens, raw.shape[1], dtype=torch.uint8, device=self.device)
        padded[: len(raw)] = raw
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat(parts).view(tensor.dtype).reshape(-1, *tensor.shape[1:])


@dataclass
class Inputs:
    """What one rank dispatches, and the same of all ranks by gid."""

    x: object
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    all_data: torch.Tensor
    all_scales: torch.Tensor | None
    all_idx: torch.Tensor
    all_weights: torch.Tensor


def make_inputs(g, use_fp8, topk_idx=None):
    """Return random inputs: rank r has max(1, M - r) tokens, a tenth of the choices is masked."""
    n = max(1, g.num_max_tokens - g.rank)
    x = torch.randn(n, g.hidden, device=g.device).to(torch.bfloat16)
    if topk_idx is None:
        scores = torch.rand(n, g.num_experts, device=g.device)
        topk_idx = scores.topk(g.num_topk, dim=-1).indices.to(deep_ep.topk_idx_t)
        topk_idx[torch.rand(n, g.num_topk, device=g.device) < 0.1] = -1
    weights = torch.rand(n, g.num_topk, device=g.device)
    own = torch.full((g.num_max_tokens, g.num_topk), -1, dtype=torch.int64, device=g.device)
    own[:n] = topk_idx
    scales = None
    if use_fp8:
        x = x.to(torch.float8_e4m3fn)
        packs = g.hidden // 64
        scales = torch.randint(0, 2**15, (n, packs), device=g.device).to(torch.int16)
    all_scales = None if scales is None else g.gather(scales)
    gathered = g.gather(x), all_scales, g.gather(own), g.gather(weights)
    return Inputs(x if scales is None else (x, scales), topk_idx, weights, *gathered)


def bits(tensor):
    """Return the rows of a matrix as bytes."""
    return tensor.contiguous().view(torch.uint8)


def same(left, right):
    """Fail unless two tensors have the same shape and bits."""
    assert left.shape == right.shape, (left.shape, right.shape)
    assert left.dtype == right.dtype, (left.dtype, right.dtype)
    assert torch.equal(bits(left), bits(right))


def local_columns(g, idx, rank=None):
    """Return [rows, K]: whether a choice lives on a rank."""
    rank = g.rank if rank is None else rank
    return (idx >= rank * g.num_local) & (idx < (rank + 1) * g.num_local)


def check_layout(g, inputs, handle, alignment, cpu_sync):
    """Check counts, metadata and slots; return (gid [X rows in use], k, slot)."""
    hits = local_columns(g, inputs.all_idx)
    expected_gid = hits.any(dim=1).nonzero().flatten()
    n = len(expected_gid)
    assert handle.num_recv_tokens == (n if cpu_sync else g.size * g.num_max_tokens)
    assert handle.recv_src_metadata.shape == (handle.num_recv_tokens, g.num_topk + 2)
    psum = handle.psum_num_recv_tokens_per_rank
    assert int(psum[-1]) == n
    per_rank = hits.any(dim=1).reshape(g.size, -1).sum(dim=1)
    assert torch.equal(psum.long(), per_rank.cumsum(0))
    metadata = handle.recv_src_metadata[:n].long()
    order = metadata[:, g.num_topk].argsort()
    slots, gid, master = metadata[order, : g.num_topk], metadata[order, g.num_topk], metadata[order, -1]
    assert torch.equal(gid, expected_gid)
    valid = hits[gid]
    assert torch.equal(slots >= 0, valid)
    columns = torch.arange(g.num_topk, device=g.device).expand_as(valid)
    assert torch.equal(master, torch.where(valid, columns, -1).max(dim=1).values)
    check_experts(g, inputs, handle, alignment, cpu_sync, slots, gid)
    row, k = valid.nonzero(as_tuple=True)
    return gid[row], k, slots[row, k]


def check_experts(g, inputs, handle, alignment, cpu_sync, slots, gid):
    """Check that every expert has a contiguous block of rows, and all counts of it."""
    start, aligned_counts = 0, []
    local = inputs.all_idx[gid] - g.rank * g.num_local
    for expert in range(g.num_local):
        own = slots[(local == expert) & (slots >= 0)].sort().values
        end = start + len(own)
        assert torch.equal(own, torch.arange(start, end, device=g.device)), "one row each, without a hole"
        assert int(handle.psum_num_recv_tokens_per_expert[expert]) == end
        assert int(handle.num_unaligned_recv_tokens_per_expert[expert]) == len(own)
        aligned_counts.append(-(-len(own) // alignment) * alignment)
        start += aligned_counts[-1]
    assert handle.num_recv_tokens_per_expert_list == (aligned_counts if cpu_sync else [])
    if cpu_sync:
        assert handle.num_expanded_tokens == start


def check_rows(g, inputs, outputs, places, is_column_major):
    """Check data, scales, weights at their slots, and zeros between the blocks."""
    recv_x, second, recv_weights, handle = outputs
    assert second is None
    gid, k, slot = places
    data, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    same(data[slot], inputs.all_data[gid])
    if scales is not None:
        packs = scales.shape[1]
        assert scales.stride() == ((1, len(scales)) if is_column_major else (packs, 1))
        same(scales[slot], inputs.all_scales[gid])
    if recv_weights is not None:
        same(recv_weights[slot, None], inputs.all_weights[gid, k][:, None])
    counts, alignment = handle.num_unaligned_recv_tokens_per_expert.long(), handle.expert_alignment
    end = int(((counts + alignment - 1) // alignment * alignment).sum())
    is_gap = torch.ones(len(data), dtype=torch.bool, device=g.device)
    is_gap[slot], is_gap[end:] = False, False
    for tensor in (data, scales, None if recv_weights is None else recv_weights[:, None]):
        assert tensor is None or not bits(tensor[is_gap]).any()


def expert_outputs(g, gid, k):
    """Return [rows, H] bf16 that no two (token, k) share."""
    seeds = ((gid * g.num_topk + k) * 131071 % (g.size * g.num_max_tokens * g.num_topk) + 1).double()
    columns = torch.arange(1, g.hidden + 1, device=g.device).double()
    return torch.sin(seeds[:, None] / (g.size * g.num_max_tokens * g.num_topk) * columns).to(torch.bfloat16)


def expected_combine(g, topk_idx, biases):
    """Return [n, H]: sums per rank in ascending k, rounded to bf16; then biases and sums by highest k."""
    n = len(topk_idx)
    token = g.rank * g.num_max_tokens + torch.arange(n, device=g.device)
    partial = torch.zeros(n, g.num_topk, g.hidden, dtype=torch.float32, device=g.device)
    is_master = torch.zeros(n, g.num_topk, dtype=torch.bool, device=g.device)
    for rank in range(g.size):
        here = local_columns(g, topk_idx, rank)
        total = torch.zeros(n, g.hidden, dtype=torch.float32, device=g.device)
        for k in range(g.num_topk):
            y = expert_outputs(g, token, torch.full_like(token, k)).float()
            total = torch.where(here[:, k, None], total + y, total)
        last = torch.where(here, torch.arange(g.num_topk, device=g.device), -1).max(dim=1).values
        rows = (last >= 0).nonzero().flatten()
        partial[rows, last[rows]] = total[rows].to(torch.bfloat16).float()
        is_master[rows, last[rows]] = True
    out = torch.zeros(n, g.hidden, dtype=torch.float32, device=g.device)
    for bias in biases:
        out = out + bias.float()
    for k in range(g.num_topk):
        out = torch.where(is_master[:, k, None], out + partial[:, k], out)
    return out.to(torch.bfloat16)


def check_combine(g, buffer, inputs, handle, num_rows, places, num_biases, defer):
    """Check sums and weights that come home, with and without weights."""
    gid, k, slot = places
    y = torch.zeros(num_rows, g.hidden, dtype=torch.bfloat16, device=g.device)
    y[slot] = expert_outputs(g, gid, k)
    row_weights = torch.zeros(num_rows, device=g.device)
    row_weights[slot] = inputs.all_weights[gid, k]
    n = len(inputs.topk_idx)
    biases = [torch.randn(n, g.hidden, device=g.device).to(torch.bfloat16) for _ in range(num_biases)]
    bias = (None, biases[0] if biases else None, tuple(biases))[num_biases]
    expected = expected_combine(g, inputs.topk_idx, biases)
    for weights in (row_weights, None):
        found = buffer.combine(
            y, handle, weights, bias=bias, async_with_compute_stream=True, defer_epilogue=defer
        )
        if defer:
            combined, combined_weights = found.wait()
        else:
            combined, combined_weights, event = found
            event.current_stream_wait()
        # A sum of -0 and a sum of +0 are the same sum.
        same(combined + 0, expected + 0)
        if weights is None:
            assert combined_weights is None
        else:
            same(combined_weights, torch.where(inputs.topk_idx >= 0, inputs.topk_weights, 0))


def dispatch(buffer, defer, **arguments):
    """Dispatch in one of the two asynchronous ways; return (recv_x, None, weights, handle)."""
    found = buffer.dispatch(
        **arguments,
        async_with_compute_stream=True,
        defer_epilogue=defer,
        do_expand=True,
        do_zero_padding=True,
    )
    if defer:
        return found.wait()
    *outputs, event = found
    with event:
        pass
    return tuple(outputs)


def check_point(g, buffer, point, cpu_sync, defer):
    """Check one point of the matrix: fresh dispatch, combine, cached replay, combine."""
    alignment, use_fp8, num_biases, is_column_major = point
    inputs = make_inputs(g, use_fp8)
    stats = torch.zeros(g.num_local, dtype=torch.int32, device=g.device)
    arguments = {
        "topk_idx": inputs.topk_idx,
        "topk_weights": inputs.topk_weights,
        "num_experts": g.num_experts,
        "expert_alignment": alignment,
        "do_cpu_sync": cpu_sync,
        "use_tma_aligned_col_major_sf": is_column_major,
    }
    outputs = dispatch(buffer, defer, x=inputs.x, cumulative_local_expert_recv_stats=stats, **arguments)
    handle = outputs[3]
    places = check_layout(g, inputs, handle, alignment, cpu_sync)
    check_rows(g, inputs, outputs, places, is_column_major)
    assert torch.equal(stats, handle.num_unaligned_recv_tokens_per_expert)
    num_rows = len(outputs[2])
    if buffer.deterministic:
        again = dispatch(buffer, defer, x=inputs.x, **arguments)
        slot = places[2]
        data, other = (o[0][0] if isinstance(o[0], tuple) else o[0] for o in (outputs, again))
        same(data[slot], other[slot])
        same(outputs[2][slot, None], again[2][slot, None])
    check_combine(g, buffer, inputs, handle, num_rows, places, num_biases, defer)
    kept = handle.recv_src_metadata.clone()
    for with_weights in (True, False):
        fresh = make_inputs(g, not use_fp8, inputs.topk_idx)
        weights = fresh.topk_weights if with_weights else None
        replay = dispatch(buffer, defer, x=fresh.x, topk_weights=weights, handle=handle, num_sms=1)
        assert replay[3] is handle
        assert (replay[2] is not None) == with_weights
        check_rows(g, fresh, replay, places, False)
    assert torch.equal(kept, handle.recv_src_metadata)
    check_combine(g, buffer, fresh, handle, num_rows, places, 0, defer)


def run(group, device, *, num_tokens=16, hidden=256, num_topk=4, num_experts_per_rank=4, points=None, seed=0):
    """Check all points; return how many were checked."""
    g = Group(group, device, num_tokens, hidden, num_topk, num_experts_per_rank * dist.get_world_size(group))
    torch.manual_seed(seed + g.rank)
    points = MATRIX if points is None else points
    count = 0
    for deterministic in (False, True):
        buffer = deep_ep.EPBuffer(
            group,
            num_max_tokens_per_rank=num_tokens,
            hidden=hidden,
            num_topk=num_topk,
            deterministic=deterministic,
            explicitly_destroy=True,
        )
        for number, (point, cpu_sync) in enumerate(itertools.product(points, (True, False))):
            check_point(g, buffer, point, cpu_sync, defer=number % 3 != 0)
            count += 1
        buffer.destroy()
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="gloo")
    given = parser.parse_args()
    dist.init_process_group(given.backend)
    checked = run(dist.group.WORLD, given.device)
    if dist.get_rank() == 0:
        print(f"{checked} points on {dist.get_world_size()} ranks: all equal")  # noqa: T201
    dist.destroy_process_group()
