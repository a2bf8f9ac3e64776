"""A mixture-of-experts layer over two or more ranks, forward and backward, equal to one process in every bit.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/moe_exact.py

Every rank has two experts; an expert multiplies its rows by a vector. All values are small whole numbers or
halves, so no sum is rounded, and outputs and gradients must equal those of one process that has all experts.
"""

import torch

import epsim.deep_ep as deep_ep

HIDDEN, NUM_TOPK, NUM_TOKENS, EXPERTS_PER_RANK = 128, 2, 8, 2


def inputs(rank: int, num_experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one rank's x [n, H] bf16, topk_idx [n, K] int64 and topk_weights [n, K] float32."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randint(-1, 2, (NUM_TOKENS, HIDDEN), generator=generator).to(torch.bfloat16)
    scores = torch.rand((NUM_TOKENS, num_experts), generator=generator, dtype=torch.float32)
    weights = torch.randint(1, 3, (NUM_TOKENS, NUM_TOPK), generator=generator).float() / 2
    return x.requires_grad_(), scores.topk(NUM_TOPK).indices, weights.requires_grad_()


def expert_scale(expert: int) -> torch.Tensor:
    """Return the parameter of an expert, [H] float32 of ones and twos."""
    generator = torch.Generator().manual_seed(1000 + expert)
    return torch.randint(1, 3, (HIDDEN,), generator=generator).float().requires_grad_()


def layer(
    buffer: deep_ep.EPBuffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    scales: list[torch.Tensor],
) -> torch.Tensor:
    """Return [n, H] bf16: dispatch, this rank's experts on their rows, combine."""
    num_experts = len(scales) * buffer.num_ranks
    rows, weights, handle = deep_ep.autograd.dispatch(
        buffer, x, topk_idx, topk_weights, num_experts=num_experts, expert_alignment=4
    )
    assert weights is not None, "weights were given"
    sizes = handle.num_recv_tokens_per_expert_list
    blocks = zip(rows.split(sizes), weights.split(sizes), scales, strict=True)
    outputs = [(block.float() * scale * weight[:, None]).bfloat16() for block, weight, scale in blocks]
    return deep_ep.autograd.combine(buffer, torch.cat(outputs), handle)


def alone(num_ranks: int) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Return [output, x gradient, weight gradient] per rank and a gradient per expert, without a buffer."""
    scales = [expert_scale(e) for e in range(num_ranks * EXPERTS_PER_RANK)]
    ranks = []
    for rank in range(num_ranks):
        x, topk_idx, topk_weights = inputs(rank, len(scales))
        chosen = torch.stack(scales)[topk_idx]  # [n, K, H]
        y = (x.float()[:, None] * chosen * topk_weights[:, :, None]).sum(dim=1)
        y.sum().backward()
        ranks.append([y.detach().bfloat16(), x.grad, topk_weights.grad])
    return ranks, [scale.grad for scale in scales]


def main() -> None:
    """Run the layer on every rank and compare it with one process."""
    rank, num_ranks, group = deep_ep.init_dist()
    torch.set_num_threads(1)
    buffer = deep_ep.EPBuffer(
        group, num_max_tokens_per_rank=NUM_TOKENS, hidden=HIDDEN, num_topk=NUM_TOPK, explicitly_destroy=True
    )
    first = rank * EXPERTS_PER_RANK
    scales = [expert_scale(first + e) for e in range(EXPERTS_PER_RANK)]
    x, topk_idx, topk_weights = inputs(rank, num_ranks * EXPERTS_PER_RANK)
    y = layer(buffer, x, topk_idx, topk_weights, scales)
    y.float().sum().backward()
    found = [y.detach(), x.grad, topk_weights.grad] + [scale.grad for scale in scales]
    ranks, gradients = alone(num_ranks)
    expected = ranks[rank] + gradients[first : first + EXPERTS_PER_RANK]
    is_equal = all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    deep_ep.dist_print(f"rank {rank}: output and gradients {'equal' if is_equal else 'DIFFERENT'}")
    buffer.destroy()
    torch.distributed.destroy_process_group()
    if not is_equal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
