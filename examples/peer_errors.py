"""What ranks see when they do not make the same call: three mistakes of rank 1, seen from both ranks.

python -m torch.distributed.run --standalone --nproc-per-node 2 examples/peer_errors.py
"""

import os
import sys
from typing import Any

import torch

import epsim.deep_ep as deep_ep


def attempt(buffer: deep_ep.EPBuffer, title: str, **options: Any) -> None:  # noqa: ANN401 - of dispatch
    """Dispatch one token and print what is raised."""
    arguments = {
        "x": torch.zeros((1, 128), dtype=torch.bfloat16),
        "topk_idx": torch.tensor([[0]]),
        "num_experts": 2,
        "do_expand": True,
    }
    try:
        buffer.dispatch(**(arguments | options))
    except RuntimeError as error:
        sys.stdout.write(f"{title}, rank {buffer.rank_idx}: {type(error).__name__}: {error}\n")
        sys.stdout.flush()


def main() -> None:
    """Make the mistakes one after the other."""
    rank, _, group = deep_ep.init_dist()
    buffer = deep_ep.EPBuffer(group, num_max_tokens_per_rank=4, hidden=128, num_topk=1)
    attempt(buffer, "1 other argument", num_experts=2 + 2 * rank)
    attempt(buffer, "2 refused on one", topk_idx=torch.tensor([[rank * 7]]))
    if rank == 1:
        os._exit(0)  # as a process that is killed: nothing is told to the others
    attempt(buffer, "3 one is gone")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
