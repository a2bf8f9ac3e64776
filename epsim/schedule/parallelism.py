"""Training traffic: key and value blocks round a ring (CP), sharded parameters (FSDP)."""

from collections.abc import Sequence

from epsim.schedule.collectives import Algorithm, all_gather, reduce_scatter
from epsim.schedule.transfers import Draft, Transfers, whole


def context_ring(
    num_ranks: int, block_bytes: int, *, attention_ps: int = 0, num_buffers: int = 2
) -> Transfers:
    """Pass key and value blocks round the ring while each rank attends to the block that it holds.

    Rank r computes on the block of rank r - k in step k, and passes it on to r + 1 at the same time. A block
    may come only when one of the receiver's buffers is free: the block that was there has been both used and
    passed on, and 8 bytes said so.

    Args:
      num_ranks: R.
      block_bytes: keys and values of one rank.
      attention_ps: computation on one block.
      num_buffers: blocks that a rank can hold besides its own, at least 2: with one, every rank would wait
        for the next one's buffer, all round the ring.

    Raises:
      InputError: a number is out of range.
    """
    ranks = whole("ranks", num_ranks, 1)
    size, buffers = whole("block bytes", block_bytes, 0), whole("buffers", num_buffers, 2)
    time = whole("attention ps", attention_ps, 0)
    draft = Draft(ranks)
    used: list[list[int]] = []  # [step][rank]
    sent: list[list[int]] = []  # [step][src]: the block of step k leaves src
    for step in range(ranks):
        used.append([])
        for rank in range(ranks):
            waits = [used[step - 1][rank], sent[step - 1][rank - 1]] if step else []
            label = f"attention to block {step}"
            used[step].append(draft.local(rank, label=label, after=waits, delay_ps=time))
        if step == ranks - 1:
            break
        sent.append([])
        for rank in range(ranks):
            waits = [sent[step - 1][rank - 1]] if step else []
            if step >= buffers:
                waits.append(_free_buffer(draft, (rank + 1) % ranks, step - buffers + 1, used, sent))
            label = f"block {step + 1} of the ring"
            sent[step].append(draft.add(rank, (rank + 1) % ranks, size, label=label, after=waits))
    return draft.build()


def _free_buffer(draft: Draft, rank: int, step: int, used: list[list[int]], sent: list[list[int]]) -> int:
    """Let a rank tell its previous one that the block of a step has been used and passed on."""
    waits = [used[step][rank], sent[step][rank]]
    back = (rank - 1) % draft.num_ranks
    return draft.add(rank, back, 8, label=f"release of block {step}", after=waits)


def sharded_training(
    num_ranks: int,
    bucket_bytes: Sequence[int],
    *,
    algorithm: Algorithm = "direct",
    forward_ps: int = 0,
    backward_ps: int = 0,
    is_gathered_again: bool = True,
    num_prefetch: int = 1,
) -> Transfers:
    """Run one step of FSDP: gather each bucket before it is used, scatter its gradients afterwards.

    Gathers run one after the other, at most `num_prefetch` buckets ahead of the computation; gradients of a
    bucket are reduced while the next one computes.

    Args:
      num_ranks: R.
      bucket_bytes: whole parameters of each bucket, in the order of the forward pass.
      algorithm: of every collective.
      forward_ps: computation on one bucket.
      backward_ps: the same of the backward pass.
      is_gathered_again: parameters are dropped after the forward pass and gathered again; those of the last
        bucket stay, because its backward pass comes next.
      num_prefetch: buckets that may be gathered ahead of the one in use.

    Raises:
      InputError: a number is out of range.
    """
    draft = Draft(whole("ranks", num_ranks, 1))
    ranks, ahead = range(num_ranks), whole("prefetch", num_prefetch, 0)
    times = whole("forward ps", forward_ps, 0), whole("backward ps", backward_ps, 0)
    passes = [(b, False) for b in range(len(bucket_bytes))]
    passes += [(b, True) for b in reversed(range(len(bucket_bytes)))]
    computed: list[list[int]] = []
    gathered: list[int] = []
    scattered: list[int] = []
    for turn, (bucket, is_backward) in enumerate(passes):
        waits: list[list[int]] = [[number] for number in gathered] or [[] for _ in ranks]
        is_held = turn > 0 and bucket == passes[turn - 1][0]
        if not is_backward or (is_gathered_again and not is_held):
            if turn > ahead:
                for rank in ranks:
                    waits[rank].append(computed[turn - ahead - 1][rank])
            gathered = all_gather(draft, ranks, [bucket_bytes[bucket]], algorithm, waits)
        label = f"{'backward' if is_backward else 'forward'} of bucket {bucket}"
        computed.append([
            draft.local(
                rank, label=label, delay_ps=times[is_backward],
                after=[gathered[rank], *([computed[-1][rank]] if computed else [])],
            )
            for rank in ranks
        ])  # fmt: skip
        if is_backward:
            starts = [[number] for number in computed[-1]]
            for rank, number in enumerate(scattered):
                starts[rank].append(number)
            scattered = reduce_scatter(draft, ranks, [bucket_bytes[bucket]], algorithm, starts)
    return draft.build()
