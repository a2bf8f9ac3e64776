"""Set-up of a test program: process group, seeds, printing in turn.

Upstream keeps seeds and local rank per process, so this module does too: it is state of a program that
called `init_dist` or `init_seed`, and no buffer reads it.
"""

import random
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from epsim.deep_ep.utils.launcher import print_line, read_launch_environment


@dataclass
class _Process:
    """What `init_dist` and `init_seed` set."""

    local_rank: int | None = None
    local_seed: int = 0
    global_seed: int = 0


_PROCESS = _Process()


def init_seed(global_seed: int) -> None:
    """Seed torch and `random` with global_seed + rank; the default process group must exist."""
    _PROCESS.global_seed = global_seed
    _PROCESS.local_seed = global_seed + dist.get_rank()
    torch.manual_seed(_PROCESS.local_seed)
    random.seed(_PROCESS.local_seed)


def get_local_seed() -> int:
    """Return the seed of this rank, 0 before `init_seed`."""
    return _PROCESS.local_seed


def get_global_seed() -> int:
    """Return the seed that all ranks share, 0 before `init_seed`."""
    return _PROCESS.global_seed


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Print on every rank, or on the first of each host only, then wait for all ranks.

    Args:
      s: one line or several.
      once_in_node: only local rank 0 prints.

    Raises:
      AssertionError: before `init_dist`.
    """
    assert _PROCESS.local_rank is not None, "init_dist comes first: the local rank is not known"
    if not once_in_node or _PROCESS.local_rank == 0:
        print_line(s)
    dist.barrier()


def init_dist(
    local_rank: int | None = None,
    num_local_ranks: int | None = None,
    seed: int = 0,
    *,
    timeout_secs: int = 300,
) -> tuple[int, int, dist.ProcessGroup]:
    """Join the other processes over gloo and seed this one.

    Reads MASTER_ADDR (127.0.0.1), MASTER_PORT (8361), WORLD_SIZE (1, number of hosts) and RANK (0, this
    host), or what torchrun sets; see `launcher`. Like upstream it makes bf16 torch's default dtype.

    Args:
      local_rank: number of this process on its host; None = as torchrun says.
      num_local_ranks: processes on this host; None = as torchrun says.
      seed: global seed.
      timeout_secs: after which a collective of the default group without an answer is an error.

    Returns:
      rank, number of ranks, a group of all ranks.

    Raises:
      ValueError: no local rank is given and none is in the environment.
    """
    launch = read_launch_environment()
    local_rank = launch.local_rank if local_rank is None else local_rank
    num_local_ranks = launch.num_local_ranks if num_local_ranks is None else num_local_ranks
    if local_rank is None or num_local_ranks is None:
        raise ValueError(f"local_rank is {local_rank!r}: must be given unless torchrun starts the program")
    _PROCESS.local_rank = local_rank
    dist.init_process_group(
        backend="gloo",
        init_method=f"tcp://{launch.address}:{launch.port}",
        world_size=launch.num_servers * num_local_ranks,
        rank=launch.server_idx * num_local_ranks + local_rank,
        timeout=timedelta(seconds=timeout_secs),
    )
    torch.set_default_dtype(torch.bfloat16)
    init_seed(seed)
    size = dist.get_world_size()
    return dist.get_rank(), size, dist.new_group(list(range(size)))
