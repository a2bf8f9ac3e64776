"""A mixture-of-experts layer that trains on CPU processes, written for `deep_ep`.

Each rank has its own tokens and its own experts. Dispatch brings a token to its experts, combine brings the
sum home, and each is the backward of the other. Run it with `python examples/moe_layer.py`, or with any
launcher that makes a process group first and calls `train`.

n tokens of a rank, K top-k, H hidden, E experts of the group, L of a rank, X expanded rows.
"""

import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import epsim.deep_ep as deep_ep
from epsim.deep_ep.autograd import combine, dispatch

Activation = Callable[[torch.Tensor], torch.Tensor]


class MoELayer(torch.nn.Module):
    """A gate for all experts and, on this rank, L of them; an expert is one linear map and an activation.

    Args:
      buffer: its group shares the experts.
      hidden: H, a multiple of 128.
      num_experts: E, a multiple of the ranks.
      num_topk: K.
      alignment: rows to which an expert's block is padded, as a grouped GEMM wants them.
      activation: of the experts.
    """

    def __init__(
        self,
        buffer: deep_ep.EPBuffer,
        *,
        hidden: int,
        num_experts: int,
        num_topk: int,
        alignment: int = 8,
        activation: Activation = torch.nn.functional.silu,
    ) -> None:
        """Make the gate and this rank's experts."""
        super().__init__()
        self.buffer, self.num_experts, self.num_topk = buffer, num_experts, num_topk
        self.alignment, self.activation = alignment, activation
        self.gate = torch.nn.Linear(hidden, num_experts, bias=False)  # the same on every rank
        num_local = num_experts // buffer.num_ranks
        self.experts = torch.nn.Parameter(torch.randn(num_local, hidden, hidden) / hidden**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, H] bf16 of [n, H] bf16."""
        scores = torch.softmax(self.gate(x.float()), dim=-1)
        topk_weights, topk_idx = scores.topk(self.num_topk, dim=-1)
        rows, weights, handle = dispatch(
            self.buffer,
            x,
            topk_idx,
            topk_weights,
            num_experts=self.num_experts,
            expert_alignment=self.alignment,
        )
        y = grouped_experts(rows, self.experts, handle, self.activation)
        # The weights are applied here, once: combine only sums.
        return combine(self.buffer, (y * weights[:, None]).to(torch.bfloat16), handle)


def grouped_experts(
    rows: torch.Tensor, experts: torch.Tensor, handle: deep_ep.EPHandle, activation: Activation
) -> torch.Tensor:
    """Return [X, H] float32: each expert on its block of rows, as a grouped GEMM would.

    Block e begins at the end of block e - 1, rounded up to the alignment, and its rows end at psum[e].
    """
    blocks, start = [], 0
    for weight, count in zip(experts, handle.num_recv_tokens_per_expert_list, strict=True):
        blocks.append(activation(rows[start : start + count].float() @ weight))
        start += count
    return torch.cat(blocks)


def sync_replicated(module: MoELayer, group: dist.ProcessGroup) -> None:
    """Sum the gradients of what every rank holds; experts exist once and need no sum."""
    dist.all_reduce(module.gate.weight.grad, group=group)


def train(
    group: dist.ProcessGroup, *, num_steps: int = 30, hidden: int = 128, num_tokens: int = 32
) -> list[float]:
    """Fit a random rotation; return the loss of the whole group at each step."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(0)
    target = torch.linalg.qr(torch.randn(hidden, hidden))[0]
    buffer = deep_ep.EPBuffer(
        group, num_max_tokens_per_rank=num_tokens, hidden=hidden, num_topk=2, explicitly_destroy=True
    )
    layer = MoELayer(buffer, hidden=hidden, num_experts=2 * num_ranks, num_topk=2)
    torch.manual_seed(1 + rank)
    layer.experts.data.copy_(torch.randn(layer.experts.shape) / hidden**0.5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x = torch.randn(num_tokens, hidden).to(torch.bfloat16)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = (layer(x).float() - x.float() @ target).square().mean() / num_ranks
        loss.backward()
        sync_replicated(layer, group)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole, group=group)
        losses.append(float(whole))
    buffer.destroy()
    return losses


def _process(rank: int, num_ranks: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    losses = train(dist.group.WORLD)
    if rank == 0:
        print("loss:", " ".join(f"{loss:.3f}" for loss in losses[::5]))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (2, f"{folder}/store"), nprocs=2)
