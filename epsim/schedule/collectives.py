"""Collectives over a group: gather, reduce-scatter and all-reduce, each direct or round a ring.

All functions add to a `Draft` and return, per member, the transfer whose end is the member's end. A tensor of
B bytes is split into one segment per member; member i owns segment i. Upstream has the direct all-gather only
(deepep-ascend.md sections 1.13 and 4.9); the others are this project's, in the forms that every library has.
"""

from collections.abc import Sequence
from typing import Final, Literal, get_args

from epsim.errors import InputError
from epsim.schedule.transfers import Draft, pieces_of, split_evenly, whole

Algorithm = Literal["direct", "ring"]
Waits = Sequence[Sequence[int]]
"""Per member, what its first step waits for."""

MAX_PIECE_BYTES: Final = 256 * 2**20
"""Of one write of the all-gather (deepep-ascend.md section 4.9)."""
NUM_BLOCKS: Final = 64
"""Cores that serve peers, each on its own jetty: all vector cores of a card (ascend.md section 1.1)."""


def all_gather(
    draft: Draft,
    ranks: Sequence[int],
    bucket_bytes: Sequence[int],
    algorithm: Algorithm = "direct",
    after: Waits | None = None,
    *,
    num_blocks: int = NUM_BLOCKS,
) -> list[int]:
    """Give every member all segments of every tensor; own segments are in place.

    Direct: block b of a rank serves the members at offset b + 1, b + 1 + blocks, ...; for each, all tensors
    in pieces of at most 256 MiB (deepep-ascend.md section 4.9). Ring: each step passes the segment that came
    last to the next member.

    Args:
      draft: gets the transfers.
      ranks: members in group order.
      algorithm: see above.
      after: see `Waits`; None = nothing.
      bucket_bytes: whole size of each tensor.
      num_blocks: cores that serve peers.

    Raises:
      InputError: no tensor, an unknown algorithm, or a number out of range.
    """
    segments = _segments(ranks, bucket_bytes, algorithm)
    starts = _starts(ranks, after)
    whole("num_blocks", num_blocks, 1)
    if algorithm == "ring":
        return _ring(draft, ranks, segments, starts, shift=0, label="all-gather", reduces=False)
    arrived = _direct(draft, ranks, segments, starts, num_blocks, "all-gather")
    return _join(draft, ranks, arrived, "all-gather")


def reduce_scatter(
    draft: Draft,
    ranks: Sequence[int],
    bucket_bytes: Sequence[int],
    algorithm: Algorithm = "direct",
    after: Waits | None = None,
    *,
    num_blocks: int = NUM_BLOCKS,
) -> list[int]:
    """Give every member the sum of its segment of every tensor; arguments as of `all_gather`.

    Direct: every member sends each other one its segment, which sums all of them at once (it reads one per
    member and writes one). Ring: a segment walks the ring and ends at its owner; each step sums two into one.

    Raises:
      InputError: as `all_gather`.
    """
    segments = _segments(ranks, bucket_bytes, algorithm)
    starts = _starts(ranks, after)
    whole("num_blocks", num_blocks, 1)
    if algorithm == "ring":
        return _ring(draft, ranks, segments, starts, shift=1, label="reduce-scatter", reduces=True)
    arrived = _direct(draft, ranks, segments, starts, num_blocks, "reduce-scatter")
    own = [sum(sizes[place] for sizes in segments) for place in range(len(ranks))]
    # A member alone has nothing to add.
    moved = [(len(ranks) + 1) * size if len(ranks) > 1 else 0 for size in own]
    return _join(draft, ranks, arrived, "sum", moved)


def all_reduce(
    draft: Draft,
    ranks: Sequence[int],
    bucket_bytes: Sequence[int],
    algorithm: Algorithm = "direct",
    after: Waits | None = None,
    *,
    num_blocks: int = NUM_BLOCKS,
) -> list[int]:
    """Give every member the sum of every tensor: a reduce-scatter, then an all-gather.

    Raises:
      InputError: as `all_gather`.
    """
    done = reduce_scatter(draft, ranks, bucket_bytes, algorithm, after, num_blocks=num_blocks)
    return all_gather(
        draft, ranks, bucket_bytes, algorithm, [[number] for number in done], num_blocks=num_blocks
    )


def _segments(ranks: Sequence[int], bucket_bytes: Sequence[int], algorithm: str) -> list[list[int]]:
    """Return [tensors][members] bytes."""
    if algorithm not in get_args(Algorithm):
        raise InputError("algorithm", algorithm, f"must be one of {', '.join(get_args(Algorithm))}")
    if not bucket_bytes:
        raise InputError("bucket bytes", bucket_bytes, "must name at least one tensor")
    return [split_evenly(whole("bucket bytes", size, 0), len(ranks)) for size in bucket_bytes]


def _starts(ranks: Sequence[int], after: Waits | None) -> Waits:
    if not ranks or len(set(ranks)) < len(ranks):
        raise InputError("ranks", list(ranks), "must be distinct, at least one")
    return [[] for _ in ranks] if after is None else after


def _direct(
    draft: Draft,
    ranks: Sequence[int],
    segments: list[list[int]],
    starts: Waits,
    num_blocks: int,
    label: Literal["all-gather", "reduce-scatter"],
) -> list[list[int]]:
    """Send each other member the own segment, or its one; return what every member waits for."""
    arrived: list[list[int]] = [list(start) for start in starts]
    for place, rank in enumerate(ranks):
        for offset in range(1, len(ranks)):
            peer = (place + offset) % len(ranks)
            for tensor, sizes in enumerate(segments):
                size = sizes[place if label == "all-gather" else peer]
                arrived[peer] += [
                    draft.add(
                        rank, ranks[peer], piece, label=f"{label} of tensor {tensor}",
                        after=starts[place], queue_idx=(offset - 1) % num_blocks,
                    )
                    for piece in pieces_of(size, MAX_PIECE_BYTES)
                ]  # fmt: skip
    return arrived


def _ring(
    draft: Draft,
    ranks: Sequence[int],
    segments: list[list[int]],
    starts: Waits,
    *,
    shift: int,
    label: str,
    reduces: bool,
) -> list[int]:
    """Pass segments to the next member, N - 1 times; every tensor goes round in a queue of its own.

    In step k member i sends segment i - k - shift: shift 0 starts with its own one, shift 1 ends with the
    next member's own one.
    """
    size = len(ranks)
    arrived: list[list[int]] = [list(start) for start in starts]
    for tensor, sizes in enumerate(segments):
        last = [list(start) for start in starts]
        for step in range(size - 1):
            came: list[list[int]] = [[] for _ in ranks]
            for place, rank in enumerate(ranks):
                peer = (place + 1) % size
                num_bytes = sizes[(place - step - shift) % size]
                number = draft.add(
                    rank, ranks[peer], num_bytes, label=f"{label} step {step} of tensor {tensor}",
                    after=last[place], queue_idx=tensor, memory_bytes=3 * num_bytes if reduces else 0,
                )  # fmt: skip
                came[peer] = [number]
                arrived[peer].append(number)
            last = came
    return _join(draft, ranks, arrived, label)


def _join(
    draft: Draft,
    ranks: Sequence[int],
    arrived: Waits,
    label: str,
    memory_bytes: Sequence[int] | None = None,
) -> list[int]:
    """End each member when all that it waits for has come, and its memory has worked it off."""
    moved = [0] * len(ranks) if memory_bytes is None else memory_bytes
    return [
        draft.local(rank, label=f"end of {label}", after=came, memory_bytes=work)
        for rank, came, work in zip(ranks, arrived, moved, strict=True)
    ]
