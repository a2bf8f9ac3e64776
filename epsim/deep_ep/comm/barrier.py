"""Barriers of a buffer, and the stream they are named after."""

from typing import TYPE_CHECKING

import torch

from epsim.deep_ep.streams import comm_stream
from epsim.deep_ep.turns import one_at_a_time

if TYPE_CHECKING:
    from epsim.deep_ep.base import BufferBase


@one_at_a_time
def barrier(
    buffer: "BufferBase",
    wait_comm_stream: bool = True,
    with_cpu_sync: bool = False,
    sequential: bool = True,
) -> None:
    """Wait until all ranks of a buffer are here; also a method of the buffers.

    Args:
      buffer: any buffer.
      wait_comm_stream: join the streams; without meaning on the CPU, as the next two.
      with_cpu_sync: synchronise the device before and after.
      sequential: one domain level after the other.

    Raises:
      RefusedError: the buffer is destroyed.
      UndefinedError: another thread is in a call of it.
      RankMismatchError: another rank makes another call.
      PeerLostError: a rank is gone or late.
    """
    del wait_comm_stream, with_cpu_sync, sequential
    buffer.exchange.barrier()


def get_comm_stream(buffer: "BufferBase | None" = None) -> torch.cpu.Stream:
    """Return the communication stream: one for the process, whatever the buffer."""
    del buffer
    return comm_stream()
