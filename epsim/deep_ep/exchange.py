"""All that a buffer needs of its group: agreement on each call, and moving bytes, all within a time limit.

Every collective call starts with `agree`: the ranks show each other what they are about to do, in JSON text
of a size that depends on the group only. So a wrong call ends in the same sentence on every rank, and never
in a wait.
R ranks, W bytes of a row.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from epsim.deep_ep.arrays import tensor_of
from epsim.deep_ep.errors import HostCheckError, PeerLostError, PeerRefusedError, RankMismatchError, reason_of
from epsim.deep_ep.meeting import DOING, group_of, meet, members_of
from epsim.deep_ep.roll_call import RollCall

Bytes = npt.NDArray[np.uint8]
Header = dict[str, Any]
HEADER_BYTES = 4096
"""Room for the arguments of a call, or for the reason of a refusal."""
HEADER_BYTES_PER_RANK = 24
"""Room for what a combine says of each peer: rows sent and due, each below 2^31 (10 digits), with ", "."""
_ABSENT = "absent"
_NEVER_SENT = 2**31 - 1
"""A tag of nobody's messages."""


class Exchange:
    """One buffer's private channel to its group; what users do with the group cannot get between.

    Args:
      group: any process group of torch.distributed, None = the default one. Its store finds the peers.
      timeout_secs: longest wait for a peer, at each step; > 0.

    Attributes:
      rank, num_ranks: place in the group, and its size.
      num_calls: collective calls begun on this rank.

    Raises:
      RefusedError: no process group of this rank.
      PeerRefusedError: a member refused the arguments of its constructor.
      PeerLostError: a member of the group did not come; all must create their buffers in the same order.
    """

    def __init__(self, group: Any, *, timeout_secs: float) -> None:  # noqa: ANN401 - torch's type
        """Connect to all members."""
        group = group_of(group)
        self.rank, self.num_ranks = group.rank(), group.size()
        self.timeout = timedelta(seconds=timeout_secs)
        self.num_calls = 0
        self._doing = DOING
        self._channel: Any = None
        self._roll_call = RollCall(self.rank, members_of(group), self.timeout)
        try:
            store = self._roll_call.store = meet(group, self.timeout, self._roll_call)
            # Not new_group: its names come back after a destroy, and then find the old addresses.
            self._channel = dist.ProcessGroupGloo(store, self.rank, self.num_ranks, self.timeout)
            self._channel.barrier().wait(self.timeout)
        except (PeerRefusedError, PeerLostError):
            raise
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    @contextmanager
    def telling(self, operation: str) -> Iterator[None]:
        """Run this rank's checks of a call; whatever they raise ends the call on all ranks.

        Args:
          operation: name of the call, whose `agree` comes after the checks.
        """
        try:
            yield
        except Exception as error:
            self.agree(operation, error=error)

    def agree(
        self,
        operation: str,
        *,
        same: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
        error: Exception | None = None,
    ) -> list[Header]:
        """Meet all ranks at a call, and go on only if all of them make it alike.

        Args:
          operation: name of the call.
          same: arguments that must be equal everywhere; what JSON has (numbers, text, None, lists).
          own: values of this rank that the others need to know, such as its number of tokens.
          error: why this rank refuses its part; it is raised here, whatever became of the others, and they
            name it.

        Returns:
          per rank its `own`.

        Raises:
          Exception: `error`, if one was given.
          HostCheckError: `same` and `own` are too long to be shown; names the longest.
          RankMismatchError: the calls or a `same` argument differ; names both values and both ranks.
          PeerRefusedError: another rank gave an error.
          PeerLostError: a rank is gone or late.
        """
        self.num_calls += 1
        self._doing = f"{operation} (call {self.num_calls})"
        header = shown(operation, same or {}, own or {}, error)
        room = header_bytes(self.num_ranks)
        if len(header) > room:
            error = _too_long(operation, {**(same or {}), **(own or {})}, len(header), room)
            header = shown(operation, {}, {}, error)
        padded = np.frombuffer(header.ljust(room), dtype=np.uint8)
        try:
            headers = [json.loads(row.tobytes()) for row in self._all_gather_equal(padded)]
        except PeerLostError:
            if error is None:
                raise
        if error is not None:
            raise error
        self._check(headers)
        return [header["own"] for header in headers]

    def _check(self, headers: list[Header]) -> None:
        """Compare everybody with rank 0, so that all ranks find the same first difference."""
        operations = [header["operation"] for header in headers]
        self._compare(f"call {self.num_calls}", "operation", operations)
        for rank, header in enumerate(headers):
            if header["error"] is not None:
                raise PeerRefusedError(self._doing, rank, header["error"])
        names = dict.fromkeys(name for header in headers for name in header["same"])
        for name in names:
            self._compare(self._doing, name, [header["same"].get(name, _ABSENT) for header in headers])

    @staticmethod
    def _compare(call: str, argument: str, values: list[Any]) -> None:
        for rank, value in enumerate(values):
            if value != values[0]:
                raise RankMismatchError(call, argument, (values[0], value), (0, rank))

    def all_gather(self, array: npt.NDArray[Any], num_rows: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Return every rank's rows.

        Args:
          array: [own rows, ...] contiguous, of one dtype and row shape on all ranks.
          num_rows: [R] rows of each rank; from `agree`.

        Returns:
          per rank its array, writable.

        Raises:
          PeerLostError: a rank is gone or late.
        """
        row = array.shape[1:]
        row_bytes = array.itemsize * int(np.prod(row, dtype=np.int64))
        padded = np.zeros(max(num_rows) * row_bytes, dtype=np.uint8)
        padded[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts = self._all_gather_equal(padded)
        return [
            part[: count * row_bytes].view(array.dtype).reshape(count, *row)
            for part, count in zip(parts, num_rows, strict=True)
        ]

    def _all_gather_equal(self, data: Bytes) -> list[Bytes]:
        if not data.size:
            return [data] * self.num_ranks
        out = [np.empty_like(data) for _ in range(self.num_ranks)]
        self.finish(self._channel.allgather([[torch.from_numpy(part) for part in out]], [tensor_of(data)]))
        return out

    def all_to_all(self, rows: Bytes, num_sent: Sequence[int], num_received: Sequence[int]) -> Bytes:
        """Send each rank its rows.

        Args:
          rows: [sum of num_sent, W] contiguous, by destination rank; W is the same everywhere.
          num_sent: [R] rows for each rank.
          num_received: [R] rows from each rank; both sides must know them.

        Returns:
          [sum of num_received, W], by source rank.

        Raises:
          PeerLostError: a rank is gone or late.
        """
        width = rows.shape[1]
        out = np.empty((sum(num_received), width), dtype=np.uint8)
        splits = [[count * width for count in counts] for counts in (num_received, num_sent)]
        flat = tensor_of(np.ascontiguousarray(rows).reshape(-1))
        self.finish(self._channel.alltoall_base(torch.from_numpy(out.reshape(-1)), flat, *splits))
        return out

    def send(self, data: Bytes, rank: int, *, tag: int = 0, doing: str | None = None) -> Any:  # noqa: ANN401
        """Start sending bytes to one rank.

        Args:
          data: must stay alive and unchanged until the work is done.
          rank: receiver.
          tag: pairs sends with receives.
          doing: as `finish`.

        Returns:
          the work, for `finish`.

        Raises:
          PeerLostError: the peer is gone.
        """
        self._doing = doing or self._doing
        try:
            return self._channel.send([tensor_of(data)], rank, tag)
        except RuntimeError as error:
            raise self._lost(error) from error

    def receive(self, out: Bytes, rank: int, *, tag: int = 0, doing: str | None = None) -> Any:  # noqa: ANN401
        """Start receiving bytes from one rank into a writable array; as `send`."""
        self._doing = doing or self._doing
        try:
            return self._channel.recv([torch.from_numpy(out)], rank, tag)
        except RuntimeError as error:
            raise self._lost(error) from error

    def finish(self, work: Any, doing: str | None = None, *, peer: int | None = None) -> None:  # noqa: ANN401
        """Wait for started work.

        Args:
          work: from this channel.
          doing: what an error says was going on; None = the last call that was agreed on.
          peer: the rank at the other end of a send or receive.

        Raises:
          PeerLostError: a peer is gone, or did not come within the time limit; names it where that is known.
        """
        self._doing = doing or self._doing
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            raise self._lost(error, peer) from error

    def barrier(self, operation: str = "barrier") -> None:
        """Wait until all ranks are here; raises as `agree`."""
        self.agree(operation)

    def _hang_up(self) -> None:
        """Close all connections, so that the others notice now: gloo does it when a receive is late."""
        for peer in range(self.num_ranks):
            if peer != self.rank:
                with suppress(RuntimeError):
                    self._channel.recv([torch.empty(1)], peer, _NEVER_SENT).wait(timedelta(milliseconds=1))

    def _lost(self, error: Exception, peer: int | None = None) -> PeerLostError:
        if not self._roll_call.is_done and self._channel is not None:
            self._hang_up()
        return self._roll_call.error(self._doing, error, peer)


def header_bytes(num_ranks: int) -> int:
    """Return bytes in which a rank of so many shows the others its part of a call."""
    return HEADER_BYTES + HEADER_BYTES_PER_RANK * num_ranks


def _too_long(operation: str, shown: Mapping[str, Any], num_bytes: int, room: int) -> HostCheckError:
    """Return the refusal of a call whose arguments the ranks cannot show each other."""
    field, value = max(shown.items(), key=lambda item: len(str(item[1])))
    found = f"a list of {len(value)}" if isinstance(value, list) else f"text of {len(str(value))}"
    rule = f"must be shorter: with it {operation} shows {num_bytes} bytes to its peers, of {room}"
    return HostCheckError(field, found, rule)


def shown(operation: str, same: Mapping[str, Any], own: Mapping[str, Any], error: Exception | None) -> bytes:
    """Return what a rank shows the others; with an error there is nothing else to say."""
    header: Header = {"operation": operation, "same": same, "own": own, "error": None}
    if error is not None:
        header |= {"same": {}, "own": {}, "error": reason_of(error)}
    # What JSON does not know is shown, and compared, as its text.
    return json.dumps(header, default=str, ensure_ascii=False).encode(errors="replace")
