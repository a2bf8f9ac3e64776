"""What all buffers share: a group, a channel to it, and an end."""

import sys
import warnings
from datetime import timedelta
from typing import Any

from epsim.deep_ep.comm.handle import HCCLCommHandle, get_hccl_comm_handle
from epsim.deep_ep.errors import PeerLostError, PeerRefusedError, RankMismatchError, RefusedError
from epsim.deep_ep.exchange import Exchange
from epsim.deep_ep.meeting import group_of, telling_peers
from epsim.deep_ep.turns import Turn, one_at_a_time
from reference.memory.workspace import WORKSPACE_BYTES


def leave(exchange: Exchange) -> None:
    """Meet all ranks at the end of a buffer; warn, at the call of `destroy`, if they do not come."""
    try:
        exchange.barrier("destroy")
    except (PeerLostError, PeerRefusedError, RankMismatchError) as error:
        warnings.warn(f"{error}; the buffer is destroyed all the same", RuntimeWarning, stacklevel=4)


def check_timeout(name: str, secs: object) -> None:
    """Refuse what is no time limit.

    Raises:
      RefusedError: not a number of seconds above 0 that torch can wait.
    """
    try:
        is_positive = timedelta(seconds=secs) > timedelta(0)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        is_positive = False
    if not is_positive:
        raise RefusedError(name, secs, "must be above 0, in seconds")


class BufferBase:
    """A buffer of one rank.

    Args:
      group: process group, None = the default one. Construction is collective, in the same order everywhere.
      timeout_secs: longest wait for a peer; > 0.
      explicitly_destroy: the caller promises to call `destroy`; else the buffer ends with the object.
      num_bytes: what `print_memory_usage` reports beside the workspace.

    Attributes:
      group, rank_idx, num_ranks, explicitly_destroy, num_bytes: as above.
      hccl_comm_handle: of the group.
      exchange: the channel to the other ranks.
      turn: which thread is in a call.
      is_destroyed: no call is legal any more.

    Raises:
      RefusedError: a time limit of 0 or less, or no process group.
      PeerRefusedError: a member of the group refused its arguments.
      PeerLostError: a member of the group did not come.
    """

    exchange: Exchange
    turn: Turn

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's type
        *,
        timeout_secs: float,
        explicitly_destroy: bool = False,
        num_bytes: int = 0,
    ) -> None:
        """Connect to the other ranks."""
        self.is_destroyed = True  # nothing to warn about when the construction fails
        self.group = group_of(group)
        with telling_peers(self.group):
            check_timeout("timeout_secs", timeout_secs)
        self.rank_idx, self.num_ranks = self.group.rank(), self.group.size()
        self.explicitly_destroy, self.num_bytes = explicitly_destroy, num_bytes
        self.hccl_comm_handle: HCCLCommHandle = get_hccl_comm_handle(self.group)
        self.exchange = Exchange(self.group, timeout_secs=timeout_secs)
        self.turn = Turn()
        self.is_destroyed = False

    @property
    def main_context(self) -> HCCLCommHandle:
        """The communicator's context; on the CPU its handle."""
        return self.hccl_comm_handle

    def check_alive(self, operation: str) -> None:
        """Refuse a call on a destroyed buffer.

        Raises:
          RefusedError: it is destroyed.
        """
        if self.is_destroyed:
            raise RefusedError("buffer", "destroyed", f"{operation} needs a buffer that still exists")

    @one_at_a_time
    def destroy(self) -> None:
        """End the buffer, together with all other ranks.

        It ends also when a rank is gone, late or makes another call: that is a RuntimeWarning, because in a
        `finally` an error would take the place of the one that matters.

        Raises:
          RefusedError: destroyed already.
        """
        exchange, self.is_destroyed = self.exchange, True
        del self.exchange
        leave(exchange)

    def print_memory_usage(self) -> None:
        """Write one line: the bytes that this buffer would take on the device."""
        sys.stdout.write(
            f"rank {self.rank_idx}: {type(self).__name__} takes {WORKSPACE_BYTES} B of workspace "
            f"and {self.num_bytes} B of buffer\n"
        )

    def __del__(self) -> None:
        """Warn if the caller promised to destroy the buffer and did not; no rank is waited for here."""
        # A constructor that refused its arguments leaves an object without them.
        if getattr(self, "explicitly_destroy", False) and not self.is_destroyed:
            text = f"{type(self).__name__} has explicitly_destroy, but destroy() was not called"
            warnings.warn(text, ResourceWarning, stacklevel=2)
