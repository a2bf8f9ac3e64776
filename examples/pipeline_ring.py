"""A pipeline of linear stages, one per rank, forward and backward through `PPBuffer`.

    python -m torch.distributed.run --nproc-per-node 2 examples/pipeline_ring.py

On a device: `import deep_ep`, DEVICE = "npu", and nothing else changes.
"""

import argparse

import torch

import epsim.deep_ep as deep_ep

DEVICE = "cpu"


def stage_weight(stage: int, hidden: int) -> torch.Tensor:
    """Return [hidden, hidden] float32, the same on every rank that asks for a stage."""
    generator = torch.Generator(device=DEVICE).manual_seed(stage)
    weight = torch.randn((hidden, hidden), generator=generator, dtype=torch.float32, device=DEVICE)
    return (weight / hidden**0.5).requires_grad_()


def batch(number: int, tokens: int, hidden: int) -> torch.Tensor:
    """Return the [tokens, hidden] input of a micro-batch."""
    generator = torch.Generator(device=DEVICE).manual_seed(1000 + number)
    return torch.randn((tokens, hidden), generator=generator, dtype=torch.float32, device=DEVICE)


def run_stage(
    buffer: deep_ep.PPBuffer, weight: torch.Tensor, num_batches: int, tokens: int
) -> list[torch.Tensor]:
    """Run all micro-batches forward and then backward through this rank's stage.

    Returns:
      the outputs of this stage; weight.grad holds the sum over all micro-batches.
    """
    rank, last = buffer.rank_idx, buffer.num_ranks - 1
    hidden = len(weight)
    inputs, outputs = [], []
    for number in range(num_batches):
        if rank == 0:
            x = batch(number, tokens, hidden)
        else:
            x = torch.empty((tokens, hidden), dtype=torch.float32, device=DEVICE)
            buffer.recv(x, rank - 1)
        inputs.append(x.requires_grad_())
        outputs.append(x @ weight)
        if rank < last:
            buffer.send(outputs[-1].detach(), rank + 1)
    for x, y in zip(inputs, outputs, strict=True):
        grad = y.detach().clone()  # of the loss, half the sum of squares
        if rank < last:
            buffer.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            assert x.grad is not None, "backward fills it"
            buffer.send(x.grad, rank - 1)
    return [y.detach() for y in outputs]


def expected_gradient(
    stage: int, num_stages: int, num_batches: int, tokens: int, hidden: int
) -> torch.Tensor:
    """Return the gradient of one stage's weight, computed by one process alone."""
    weights = [stage_weight(s, hidden) for s in range(num_stages)]
    for number in range(num_batches):
        y = batch(number, tokens, hidden)
        for weight in weights:
            y = y @ weight
        y.backward(y.detach().clone())
    gradient = weights[stage].grad
    assert gradient is not None, "backward fills it"
    return gradient


def main() -> None:
    """Run the pipeline and compare each stage's gradient with a single process, bit for bit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-batches", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--num-max-inflight-tensors", type=int, default=2)
    args = parser.parse_args()
    rank, num_ranks, group = deep_ep.init_dist()
    torch.set_num_threads(1)
    buffer = deep_ep.PPBuffer(
        group,
        num_max_tensor_bytes=4 * args.num_tokens * args.hidden,
        num_max_inflight_tensors=args.num_max_inflight_tensors,
        explicitly_destroy=True,
    )
    weight = stage_weight(rank, args.hidden)
    run_stage(buffer, weight, args.num_batches, args.num_tokens)
    expected = expected_gradient(rank, num_ranks, args.num_batches, args.num_tokens, args.hidden)
    is_equal = weight.grad is not None and torch.equal(weight.grad, expected)
    deep_ep.dist_print(f"stage {rank} of {num_ranks}: gradient {'equal' if is_equal else 'DIFFERENT'}")
    buffer.destroy()
    torch.distributed.destroy_process_group()
    if not is_equal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
