"""One direction between two ring neighbours: an ordered lane of tensors with a bounded number in flight.

The sender copies a tensor into a slot of its own and goes on; gloo moves the bytes when the receiver asks.
So the oldest send is done exactly when its tensor was received, which is what frees its slot: the release
counter of the hardware needs no message of its own. A header of two numbers goes before each tensor, so
that a receiver who expects another size is told so.
Source: deepep-ascend.md section 4.7.
"""

from collections import deque
from typing import Any

import numpy as np

from epsim.deep_ep.errors import UndefinedError
from epsim.deep_ep.exchange import Bytes, Exchange

HEADER_NUMBERS = 2
"""Tensor number and bytes, int64."""


class Outbox:
    """The sending end.

    Args:
      exchange: the buffer's channel; nothing else sends single tensors in it.
      peer: rank at the other end.
      lane: number that keeps the lanes of one pair of ranks apart.
      slots: [inflight, slot bytes] uint8, memory of this end.
    """

    def __init__(self, exchange: Exchange, peer: int, lane: int, slots: Bytes) -> None:
        """Start with all slots free."""
        self.exchange, self.peer, self.slots = exchange, peer, slots
        self.header_tag, self.body_tag = 2 * lane, 2 * lane + 1
        self.count = 0
        # Headers are kept with the works that read them.
        self._flying: deque[tuple[Any, Any, Bytes]] = deque()

    def send(self, data: Bytes) -> None:
        """Send a copy of bytes once a slot is free.

        Args:
          data: [n] uint8, n at most a slot.

        Raises:
          PeerLostError: no slot became free within the time limit, or the peer is gone.
        """
        inflight = len(self.slots)
        if len(self._flying) == inflight:
            waits_for = (
                f"send {self.count} to rank {self.peer} waits for rank {self.peer} to receive, "
                f"{inflight} of {inflight} tensors are in flight"
            )
            for work in self._flying[0][:2]:
                self.exchange.finish(work, waits_for, peer=self.peer)
            self._flying.popleft()
        body = self.slots[self.count % inflight, : data.size]
        body[:] = data
        header = np.array([self.count, data.size], dtype=np.int64).view(np.uint8)
        doing = f"send {self.count} to rank {self.peer}"
        works = (
            self.exchange.send(header, self.peer, tag=self.header_tag, doing=doing),
            self.exchange.send(body, self.peer, tag=self.body_tag, doing=doing),
        )
        self._flying.append((*works, header))
        self.count += 1


class Inbox:
    """The receiving end; see `Outbox` for its arguments."""

    def __init__(self, exchange: Exchange, peer: int, lane: int, slots: Bytes) -> None:
        """Start with nothing received."""
        self.exchange, self.peer, self.slots = exchange, peer, slots
        self.header_tag, self.body_tag = 2 * lane, 2 * lane + 1
        self.count = 0
        self._announced: int | None = None

    def receive(self, data: Bytes) -> None:
        """Receive the next tensor and free its slot at the sender.

        Args:
          data: [n] uint8, n as many bytes as were sent. Written.

        Raises:
          PeerLostError: nothing came within the time limit, or the peer is gone.
          UndefinedError: another number of bytes was sent; the tensor can still be received.
        """
        waits_for = f"receive {self.count} from rank {self.peer} waits for rank {self.peer} to send"
        if self._announced is None:
            header = np.empty(HEADER_NUMBERS, dtype=np.int64)
            self._fetch(header.view(np.uint8), self.header_tag, waits_for)
            number, self._announced = header.tolist()
            assert number == self.count, f"tensor {self.count} came as number {number}"
        if self._announced != data.size:
            field = f"tensor {self.count} from rank {self.peer} to rank {self.exchange.rank}"
            rule = f"{self._announced} bytes were sent"
            raise UndefinedError(field, f"{data.size} bytes at the receiver", rule)
        slot = self.slots[self.count % len(self.slots), : data.size]
        self._fetch(slot, self.body_tag, waits_for)
        data[:] = slot
        self._announced = None
        self.count += 1

    def _fetch(self, out: Bytes, tag: int, waits_for: str) -> None:
        work = self.exchange.receive(out, self.peer, tag=tag, doing=waits_for)
        self.exchange.finish(work, waits_for, peer=self.peer)
