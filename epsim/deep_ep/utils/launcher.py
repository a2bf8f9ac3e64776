"""What a launcher says through the environment, and lines for the terminal: the one door of this package.

The library reads no environment and prints nothing (docs/decisions.md). Programs written against `deep_ep`
expect `init_dist` to find its peers by itself and `dist_print` to print, so exactly this file may do both.
"""

import os
import sys
from dataclasses import dataclass

DEFAULT_ADDRESS, DEFAULT_PORT = "127.0.0.1", 8361


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How this process was started.

    Args:
      address: host of rank 0.
      port: where rank 0 listens.
      num_servers: hosts of the job.
      server_idx: which of them this one is.
      local_rank: number of the process on its host, None when the launcher did not say.
      num_local_ranks: processes on the host, None when the launcher did not say.
    """

    address: str
    port: int
    num_servers: int
    server_idx: int
    local_rank: int | None
    num_local_ranks: int | None


def read_launch_environment() -> Launch:
    """Read MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, and under torchrun LOCAL_RANK and its kin.

    Upstream's tests count hosts: WORLD_SIZE is their number and RANK the number of this one. torchrun
    counts processes under the same names, and is known by LOCAL_WORLD_SIZE.

    Raises:
      ValueError: a variable is no whole number.
    """
    local = _number("LOCAL_WORLD_SIZE")
    world, rank = _number("WORLD_SIZE"), _number("RANK")
    return Launch(
        address=os.environ.get("MASTER_ADDR", DEFAULT_ADDRESS),
        port=_number("MASTER_PORT") or DEFAULT_PORT,
        num_servers=(world or 1) // (local or 1),
        server_idx=(rank or 0) // (local or 1),
        local_rank=_number("LOCAL_RANK") if local else None,
        num_local_ranks=local,
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name} is {text!r}: must be a whole number") from None


def print_line(text: str) -> None:
    """Print a line at once, so that lines of several processes keep their order."""
    # One write: print() writes text and line end apart when the stream is unbuffered.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
