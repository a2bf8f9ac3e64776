"""Pipeline traffic: sends and receives between neighbours with a bounded number in flight.

What a program means is `reference/collectives/pipeline.py`; the mechanism is deepep-ascend.md section 4.7.
Send number n of a pair waits for the release of number n - inflight, writes the tensor and the 8 bytes of
its arrival word together, and drains. A receive waits for that, copies the slot out, and writes 8 bytes of
release back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from epsim.errors import InputError
from epsim.schedule.transfers import NEVER, Draft, Transfers, whole

WORD_BYTES: Final = 8
"""An arrival or release word (deepep-ascend.md section 4.7)."""
PipelineOrder = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send a tensor to a neighbour of the ring.

    Args:
      peer: previous or next rank.
      size_bytes: at least 1.
    """

    peer: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Receive:
    """Receive the next tensor of a neighbour.

    Args:
      peer: previous or next rank.
    """

    peer: int


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Compute for a time.

    Args:
      label: what.
      time_ps: how long.
    """

    label: str
    time_ps: int


Step = Send | Receive | Compute
Program = Sequence[Step]


class _Pair:
    """All sends and receives of one (sender, receiver), numbered in program order."""

    def __init__(self) -> None:
        self.sends: list[tuple[int, int]] = []  # (transfer, bytes)
        self.copies: list[int] = []
        self.releases: list[int] = []


def pipeline_exchange(programs: Sequence[Program], inflight: int, *, sends_block: bool = True) -> Transfers:
    """Turn a program per rank into transfers.

    Args:
      programs: per rank, its operations; a rank runs them in order.
      inflight: tensors that may be sent and not yet received, per pair and direction.
      sends_block: a rank goes on only when its send has arrived, as a kernel on one stream does; else sends
        run beside what follows, each after the operation before it and the previous send to that peer.

    Returns:
      Transfers. A send or receive whose partner is in no program waits for `NEVER`.

    Raises:
      InputError: a number is out of range, a peer is no neighbour, or operations wait for each other in a
        circle, which is named: more sends than may be in flight before either side receives.
    """
    draft = Draft(whole("programs", len(programs), 2))
    slots = whole("inflight", inflight, 1)
    pairs: dict[tuple[int, int], _Pair] = {}
    for rank, program in enumerate(programs):
        before: list[int] = []
        for step in program:
            before = _add(draft, pairs, rank, step, before, sends_block)
    for (src, dst), pair in pairs.items():
        _connect(draft, src, dst, pair, slots)
    return draft.build()


def _add(
    draft: Draft,
    pairs: dict[tuple[int, int], _Pair],
    rank: int,
    step: Step,
    before: list[int],
    sends_block: bool,
) -> list[int]:
    """Add one operation and return what the next one of the rank waits for."""
    if isinstance(step, Compute):
        return [draft.local(rank, label=step.label, after=before, delay_ps=whole("time", step.time_ps, 0))]
    size = draft.num_ranks
    if step.peer == rank or step.peer not in ((rank + 1) % size, (rank - 1) % size):
        raise InputError("peer", step.peer, f"must be the previous or next rank of {rank} among {size}")
    if isinstance(step, Send):
        num_bytes = whole("size bytes", step.size_bytes, 1)
        pair = pairs.setdefault((rank, step.peer), _Pair())
        waits = [*before, *([pair.sends[-1][0]] if pair.sends else [])]
        label = f"send {len(pair.sends)}"
        number = draft.add(rank, step.peer, num_bytes + WORD_BYTES, label=label, after=waits)
        pair.sends.append((number, num_bytes))
        return [number] if sends_block else before
    pair = pairs.setdefault((step.peer, rank), _Pair())
    number = draft.add(rank, rank, label=f"receive {len(pair.copies)} from rank {step.peer}", after=before)
    pair.copies.append(number)
    label = f"release {len(pair.releases)}"
    pair.releases.append(draft.add(rank, step.peer, WORD_BYTES, label=label, after=[number]))
    return [number]


def _connect(draft: Draft, src: int, dst: int, pair: _Pair, inflight: int) -> None:
    """Let receives wait for their sends, and sends for the slot that they reuse."""
    for number, copy in enumerate(pair.copies):
        if number < len(pair.sends):
            sent, num_bytes = pair.sends[number]
            draft.wait_also(copy, [sent])
            # The slot is read and the tensor written.
            draft.set_memory(copy, 2 * num_bytes)
        else:
            draft.wait_also(copy, [NEVER])
    for number, (sent, _) in enumerate(pair.sends[inflight:]):
        has_release = number < len(pair.releases)
        draft.wait_also(sent, [pair.releases[number] if has_release else NEVER])


def pipeline_training(
    num_ranks: int,
    num_microbatches: int,
    activation_bytes: int,
    *,
    forward_ps: int,
    backward_ps: int = 0,
    inflight: int = 2,
    order: PipelineOrder = "1f1b",
    sends_block: bool = False,
) -> Transfers:
    """Run one batch through a pipeline of stages, one per rank.

    Args:
      num_ranks: R stages, at least 2.
      num_microbatches: of the batch.
      activation_bytes: between two stages; gradients have the same size.
      forward_ps: one microbatch on one stage.
      backward_ps: the same backwards; 0 = forward only.
      inflight: see `pipeline_exchange`.
      order: "gpipe" = all forward, then all backward; "1f1b" = a stage starts a backward as soon as it has
        as many microbatches open as there are stages from it to the end.
      sends_block: see `pipeline_exchange`.

    Raises:
      InputError: a number is out of range, an unknown order, or sends that block each other.
    """
    ranks, count = whole("ranks", num_ranks, 2), whole("microbatches", num_microbatches, 1, 2**16)
    if order not in get_args(PipelineOrder):
        raise InputError("order", order, f"must be one of {', '.join(get_args(PipelineOrder))}")
    programs: list[list[Step]] = []
    for rank in range(ranks):
        program: list[Step] = []
        for batch, is_backward in _turns(ranks, rank, count, order, has_backward=backward_ps > 0):
            source, target = (rank + 1, rank - 1) if is_backward else (rank - 1, rank + 1)
            if 0 <= source < ranks:
                program.append(Receive(peer=source))
            name = f"{'backward' if is_backward else 'forward'} of microbatch {batch}"
            program.append(Compute(label=name, time_ps=backward_ps if is_backward else forward_ps))
            if 0 <= target < ranks:
                program.append(Send(peer=target, size_bytes=activation_bytes))
        programs.append(program)
    return pipeline_exchange(programs, inflight, sends_block=sends_block)


def _turns(
    num_ranks: int, rank: int, count: int, order: PipelineOrder, *, has_backward: bool
) -> list[tuple[int, bool]]:
    """Return (microbatch, is backward) in the order in which a stage computes them."""
    forwards = [(batch, False) for batch in range(count)]
    if not has_backward:
        return forwards
    open_batches = count if order == "gpipe" else min(count, num_ranks - rank)
    turns = forwards[:open_batches]
    for batch in range(count):
        turns.append((batch, True))
        turns += forwards[open_batches + batch : open_batches + batch + 1]
    return turns
