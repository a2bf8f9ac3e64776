"""Pipeline ring: tensors between neighbours, a bounded number of them in flight in each direction.

R ranks in a ring. Each rank has two receive regions of `num_max_inflight_tensors` slots: region 1 for what
its previous rank sends, region 0 for its next one. In a ring of two, previous and next are one rank and
only region 1 is used. No size and no dtype travels: both sides must agree, which this reference checks.
Source: deepep-ascend.md sections 1.11 and 4.7; deepep-v2.md section 6.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError
from reference.memory.sizes import HINT_ALIGN_BYTES, RECORD_ALIGN_BYTES, align

Array = npt.NDArray[Any]
TO_PREVIOUS, TO_NEXT = 0, 1
MAX_SLOT_BYTES = 2**32 - 1
UNWRITTEN = 0xFF
"""Byte of a slot that no tensor has reached: NaN in every float type."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send `x` to a neighbour.

    Args:
      dst_rank: previous or next rank.
      x: contiguous, 1 to num_max_tensor_bytes bytes.
    """

    dst_rank: int
    x: Array


@dataclass(frozen=True, kw_only=True)
class Recv:
    """Receive the next tensor of a neighbour into `x`.

    Args:
      src_rank: previous or next rank.
      x: contiguous, of as many bytes as were sent.
    """

    src_rank: int
    x: Array


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """One operation that cannot go on.

    Args:
      rank: that waits.
      step: index of the operation in the rank's program.
      waits_for: what would release it.
    """

    rank: int
    step: int
    waits_for: str

    def __str__(self) -> str:
        """Return one line: who waits for what."""
        return f"rank {self.rank}, operation {self.step}: {self.waits_for}"


class PipelineStuckError(RuntimeError):
    """No rank can go on although some have operations left; on hardware this ends in a timeout.

    The message has one line per blocked rank. Usual cause: both neighbours send more tensors than may be
    in flight before either of them receives, or a send and its receive name different ranks.
    """

    def __init__(self, blocked: Sequence[Blocked]) -> None:
        """Name every blocked rank and what it waits for."""
        self.blocked = tuple(blocked)
        lines = "; ".join(str(item) for item in self.blocked)
        super().__init__(f"pipeline exchange is stuck: {lines}")


def pipeline_buffer_bytes(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
    """Return the bytes to allocate: four regions of padded slots, though only two are used.

    Raises:
      ConfigError: a number is out of range.
      Source: deepep-ascend.md section 1.11, deepep-v2.md section 1.5.
    """
    slot = _slot_bytes(num_max_tensor_bytes)
    inflight = whole_number("num_max_inflight_tensors", num_max_inflight_tensors, 1)
    return align(4 * slot * inflight, HINT_ALIGN_BYTES)


def _slot_bytes(num_max_tensor_bytes: int) -> int:
    slot = align(whole_number("num_max_tensor_bytes", num_max_tensor_bytes, 1), RECORD_ALIGN_BYTES)
    if slot > MAX_SLOT_BYTES:
        raise ConfigError("num_max_tensor_bytes", num_max_tensor_bytes, f"must not exceed {MAX_SLOT_BYTES}")
    return slot


class PipelineRing:
    """The buffers and counters of all ranks of one ring.

    Per rank and direction four int64 counters: `send_count` and `release` of what it sends that way,
    `arrival` and `recv_count` of what it receives into that region. A slot is `count mod inflight`; a
    send waits until release >= send_count - inflight + 1, a receive until arrival >= recv_count + 1.

    Args:
      num_ranks: R, at least 2.
      num_max_tensor_bytes: largest tensor.
      num_max_inflight_tensors: slots of each direction.

    Raises:
      ConfigError: a number is out of range.
    """

    def __init__(self, *, num_ranks: int, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Allocate the regions, unwritten, and set all counters to 0."""
        self.num_ranks = whole_number("num_ranks", num_ranks, 2)
        self.num_max_tensor_bytes = num_max_tensor_bytes
        self.slot_bytes = _slot_bytes(num_max_tensor_bytes)
        self.inflight = whole_number("num_max_inflight_tensors", num_max_inflight_tensors, 1)
        shape = (self.num_ranks, 2, self.inflight)
        self.regions = np.full((*shape, self.slot_bytes), UNWRITTEN, dtype=np.uint8)
        self.send_count, self.recv_count, self.arrival, self.release = (
            np.zeros((self.num_ranks, 2), dtype=np.int64) for _ in range(4)
        )
        # Not on the hardware: lets a receive see that the sender meant another size.
        self._sent_bytes = np.zeros(shape, dtype=np.int64)

    def direction(self, src_rank: int, dst_rank: int) -> int:
        """Return the direction of a send, which is also the region at the receiver.

        Raises:
          ConfigError: the ranks are no neighbours.
        """
        for name, rank in (("src_rank", src_rank), ("dst_rank", dst_rank)):
            if whole_number(name, rank, 0) >= self.num_ranks:
                raise ConfigError(name, rank, f"must be below num_ranks {self.num_ranks}")
        if dst_rank == (src_rank + 1) % self.num_ranks:
            return TO_NEXT
        if dst_rank == (src_rank - 1) % self.num_ranks:
            return TO_PREVIOUS
        raise ConfigError("dst_rank", dst_rank, f"must be the previous or next rank of {src_rank}")

    def slot_offset(self, region: int, count: int) -> int:
        """Return where tensor number `count` of a region lies in the receiver's buffer, in bytes."""
        return (region * self.inflight + count % self.inflight) * self.slot_bytes

    def num_in_flight(self, src_rank: int, dst_rank: int) -> int:
        """Return how many tensors were sent and not yet received.

        Raises:
          ConfigError: the ranks are no neighbours.
        """
        way = self.direction(src_rank, dst_rank)
        return int(self.send_count[src_rank, way] - self.recv_count[dst_rank, way])

    def try_send(self, src_rank: int, dst_rank: int, x: Array) -> bool:
        """Send if a slot is free; the copy is taken at once.

        Returns:
          False when as many tensors are in flight as may be; nothing has changed then.

        Raises:
          ConfigError: no neighbour, or a tensor that is not contiguous, empty or too large.
        """
        way = self.direction(src_rank, dst_rank)
        self._check(x)
        count = int(self.send_count[src_rank, way])
        if self.release[src_rank, way] < count - self.inflight + 1:
            return False
        slot = count % self.inflight
        self.regions[dst_rank, way, slot, : x.nbytes] = x.reshape(-1).view(np.uint8)
        self._sent_bytes[dst_rank, way, slot] = x.nbytes
        self.send_count[src_rank, way] = self.arrival[dst_rank, way] = count + 1
        return True

    def try_recv(self, dst_rank: int, src_rank: int, x: Array) -> bool:
        """Receive the next tensor into `x` if it has arrived, and give its slot back to the sender.

        Returns:
          False when nothing has arrived; nothing has changed then.

        Raises:
          ConfigError: no neighbour, an unfit tensor, or one of another size than was sent.
        """
        way = self.direction(src_rank, dst_rank)
        self._check(x)
        count = int(self.recv_count[dst_rank, way])
        if self.arrival[dst_rank, way] < count + 1:
            return False
        slot = count % self.inflight
        sent = int(self._sent_bytes[dst_rank, way, slot])
        if sent != x.nbytes:
            field = f"tensor {count} from rank {src_rank} to rank {dst_rank}"
            raise ConfigError(field, f"{x.nbytes} bytes at the receiver", f"{sent} bytes were sent")
        x.reshape(-1).view(np.uint8)[:] = self.regions[dst_rank, way, slot, : x.nbytes]
        self.recv_count[dst_rank, way] = self.release[src_rank, way] = count + 1
        return True

    def _check(self, x: Array) -> None:
        if not x.flags.c_contiguous:
            raise ConfigError("x", f"strides {x.strides}", "must be contiguous")
        if not 0 < x.nbytes <= self.num_max_tensor_bytes:
            rule = f"must have 1 to num_max_tensor_bytes {self.num_max_tensor_bytes} bytes"
            raise ConfigError("x", f"{x.nbytes} bytes", rule)

    def what_blocks(self, rank: int, operation: Send | Recv) -> str:
        """Say what a blocked operation waits for."""
        if isinstance(operation, Send):
            peer, way = operation.dst_rank, self.direction(rank, operation.dst_rank)
            return (
                f"send {int(self.send_count[rank, way])} to rank {peer} waits for rank {peer} to receive: "
                f"{self.num_in_flight(rank, peer)} of {self.inflight} tensors are in flight"
            )
        peer, way = operation.src_rank, self.direction(operation.src_rank, rank)
        return (
            f"receive {int(self.recv_count[rank, way])} from rank {peer} waits for rank {peer} to send: "
            f"{int(self.arrival[rank, way])} tensors have arrived"
        )


def run_pipeline(
    ring: PipelineRing, programs: Sequence[Sequence[Send | Recv]], *, seed: int | None = None
) -> None:
    """Run every rank's program to its end; operations of a rank run in order, ranks run freely.

    Args:
      ring: buffers; what is in flight at the start is received first, what is in flight at the end stays.
      programs: per rank, its operations. Received tensors are written in place.
      seed: None = the lowest rank that can go on does; else one is drawn. No result depends on it.

    Raises:
      ConfigError: not one program per rank, or as `PipelineRing.try_send` and `try_recv`.
      PipelineStuckError: no rank can go on.
    """
    if len(programs) != ring.num_ranks:
        raise ConfigError("programs", len(programs), f"must be one per rank, {ring.num_ranks}")
    steps = [0] * ring.num_ranks
    draw = None if seed is None else np.random.default_rng(seed)
    while waiting := [rank for rank, program in enumerate(programs) if steps[rank] < len(program)]:
        order = waiting if draw is None else draw.permutation(waiting).tolist()
        # One operation at a time, so that a drawn rank may run far ahead of the others.
        ready = next((r for r in order if _try(ring, r, programs[r][steps[r]])), None)
        if ready is None:
            raise PipelineStuckError(
                [
                    Blocked(rank=r, step=steps[r], waits_for=ring.what_blocks(r, programs[r][steps[r]]))
                    for r in waiting
                ]
            )
        steps[ready] += 1


def _try(ring: PipelineRing, rank: int, operation: Send | Recv) -> bool:
    if isinstance(operation, Send):
        return ring.try_send(rank, operation.dst_rank, operation.x)
    return ring.try_recv(rank, operation.src_rank, operation.x)
