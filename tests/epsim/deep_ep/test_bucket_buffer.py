"""`BucketBuffer` over real processes: whole storages as in reference/bucket, several groups, sessions."""

import gc
import os
import weakref
from functools import partial

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from epsim.deep_ep.allocator import BufferAllocator
from epsim.deep_ep.arrays import TORCH_DTYPES, array_of, tensor_of
from epsim.deep_ep.bucket import BucketBuffer
from epsim.deep_ep.errors import (
    HostCheckError,
    PeerLostError,
    PeerRefusedError,
    RankMismatchError,
    RefusedError,
    UndefinedError,
    UnsupportedError,
)
from epsim.deep_ep.events import EventError
from reference.collectives import bucket as reference_bucket
from reference.collectives import reductions
from tests.epsim.deep_ep.spawning import DIED, run_ranks

MIB = 2**20
SIZE = 2 * MIB
GATHER_DTYPES = (np.uint8, np.int64, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
REDUCE_DTYPES = (np.float32, ml_dtypes.bfloat16)


def pair_of(rank, num_ranks):
    """Make groups (0, 1), (2, 3), ..; return the own one."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, num_ranks, 2)]
    return pairs[rank // 2]


class Mirror:
    """The buffer under test of one rank, and the reference's of all ranks, kept alike."""

    def __init__(self, rank, num_ranks, seed):
        """Fill both with the same random bytes."""
        self.rank, self.num_ranks = rank, num_ranks
        self.draw = np.random.default_rng(seed)
        pairs = [(first, first + 1) for first in range(0, num_ranks, 2)]
        groups = [tuple(range(num_ranks)), *pairs]
        self.expected = reference_bucket.BucketBuffer(
            num_ranks=num_ranks, allocation_plan_or_num_bytes=SIZE, groups=groups
        )
        self.groups = [dist.group.WORLD, pair_of(rank, num_ranks)]
        self.buffer = BucketBuffer(self.groups, SIZE, edition="nvidia", explicitly_destroy=True)
        for storage in self.expected.storage:  # poisoned: random bytes, many of them NaN
            storage[:] = self.draw.integers(0, 256, SIZE, np.uint8)
        array_of(self.buffer.storage)[:] = self.expected.storage[rank]

    def group_indices(self, which):
        """Return the reference's groups of one step: the world, or all pairs."""
        return [0] if which == 0 else range(1, 1 + self.num_ranks // 2)

    def places(self, sizes):
        """Random disjoint offsets, multiples of 8."""
        gaps = self.draw.integers(0, 9, len(sizes)) * 8
        offsets, at = [], 0
        for gap, size in zip(gaps, sizes, strict=True):
            offsets.append(at + int(gap))
            at = -(-(offsets[-1] + size) // 8) * 8
        order = self.draw.permutation(len(sizes))
        return offsets, order

    def check(self, results, expected):
        for got, want in zip(results, expected, strict=True):
            assert got.dim() == 1
            found = array_of(got)
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found.view(np.uint8), want.view(np.uint8))
            at = got.data_ptr() - self.buffer.storage.data_ptr()
            assert at == self.expected.offset_of(self.rank, want)
        np.testing.assert_array_equal(array_of(self.buffer.storage), self.expected.storage[self.rank])

    def gather(self, which, num_tensors, is_external):
        """One batch: in place, or from memory of any address."""
        size = 2 if which else self.num_ranks
        dtypes = [np.dtype(self.draw.choice(GATHER_DTYPES)) for _ in range(num_tensors)]
        shards = [dtype.itemsize * int(self.draw.integers(1, 30)) for dtype in dtypes]
        offsets, order = self.places([size * shard for shard in shards])
        outside = [
            [self.draw.integers(0, 256, shard + 1, np.uint8) for shard in shards]
            for _ in range(self.num_ranks)
        ]
        for group in self.group_indices(which):
            members = self.expected.groups[group]
            srcs, dsts = [], []
            for index, rank in enumerate(members):
                whole = [
                    self.expected.storage[rank][o : o + size * n].view(d)
                    for o, n, d in zip(offsets, shards, dtypes, strict=True)
                ]
                parts = [w.reshape(size, -1)[index] for w in whole]
                if is_external:
                    # One byte past the allocation's start: no alignment may be needed.
                    parts = [np.array(o[1:]).view(d) for o, d in zip(outside[rank], dtypes, strict=True)]
                srcs.append([parts[i] for i in order])
                dsts.append([whole[i] for i in order])
            if self.rank in members:
                index = members.index(self.rank)
                mine = [self.twin(s) for s in srcs[index]]
                targets = [self.twin(d) for d in dsts[index]] if is_external else None
                event = self.buffer.all_gather(mine, targets, group=self.groups[which], num_sms=0)
                before = array_of(self.buffer.storage).copy()
                mine.clear()  # the event keeps what it reads
                np.testing.assert_array_equal(before, self.expected.storage[self.rank])
            results = self.expected.all_gather(srcs, dsts if is_external else None, group)
            if self.rank in members:
                self.check(event.wait(), results[members.index(self.rank)])
                assert event.wait() is None

    def reduce(self, which, num_tensors, precision):
        """One batch of reduce-scatters or, without a precision, of all-reduces."""
        size = 2 if which else self.num_ranks
        dtypes = [np.dtype(self.draw.choice(REDUCE_DTYPES)) for _ in range(num_tensors)]
        numels = [int(self.draw.integers(1, 30)) * (size if precision else 1) for _ in dtypes]
        nbytes = [n * d.itemsize for n, d in zip(numels, dtypes, strict=True)]
        offsets, order = self.places(nbytes)
        scale = float(self.draw.choice([1.0, 0.0, 0.3, -2.0]))
        for rank in range(self.num_ranks):
            for offset, numel, dtype in zip(offsets, numels, dtypes, strict=True):
                values = (self.draw.standard_normal(numel) * 10).astype(dtype).view(np.uint8)
                self.expected.storage[rank][offset : offset + values.size] = values
        array_of(self.buffer.storage)[:] = self.expected.storage[self.rank]
        for group in self.group_indices(which):
            members = self.expected.groups[group]
            srcs = [
                [
                    self.expected.storage[rank][offsets[i] : offsets[i] + nbytes[i]].view(dtypes[i])
                    for i in order
                ]
                for rank in members
            ]
            if self.rank in members:
                mine = [self.twin(s) for s in srcs[members.index(self.rank)]]
                if precision:
                    event = self.buffer.reduce_scatter(mine, precision, scale, group=self.groups[which])
                else:
                    event = self.buffer.all_reduce(mine, scale, group=self.groups[which], num_sms=6)
                    assert event.num_sms == 6
            if precision:
                results = self.expected.reduce_scatter(srcs, precision, scale, group)
            else:
                results = self.expected.all_reduce(srcs, scale, group)
            if self.rank in members:
                self.check(event.wait(), results[members.index(self.rank)])

    def twin(self, array):
        """Return this rank's tensor at the place of an array of the reference's; a copy if it is outside."""
        offset = self.expected.offset_of(self.rank, array)
        if offset is None:
            memory = torch.zeros(array.nbytes + 9, dtype=torch.uint8)
            at = array.dtype.itemsize if array.dtype.itemsize > 1 else 1
            inside = memory[at : at + array.nbytes].view(TORCH_DTYPES[array.dtype])
            return inside.copy_(tensor_of(array.copy()))
        part = self.buffer.storage[offset : offset + array.nbytes]
        return part.view(TORCH_DTYPES[array.dtype])


def random_collectives(rank, num_ranks, seed):
    mirror = Mirror(rank, num_ranks, seed)
    for step in range(4):
        for which in (0, 1):
            mirror.gather(which, 1 + 2 * step, is_external=False)
            mirror.gather(which, 1 + 2 * step, is_external=True)
            mirror.reduce(which, 1 + step, None)
            for precision in reductions.COMM_PRECISIONS:
                mirror.reduce(which, 1 + step, precision)
    mirror.gather(0, 64, is_external=True)
    mirror.gather(1, 64, is_external=False)
    mirror.reduce(0, 64, "fp32")
    mirror.buffer.destroy()
    return True


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_storages_are_those_of_the_reference_after_every_collective(num_ranks):
    """Two groups, in place and external, odd sizes, unaligned sources, 64 tensors, poison all around."""
    assert run_ranks(random_collectives, num_ranks, 7) == [True] * num_ranks


def plans_and_life(rank, num_ranks):
    pair = pair_of(rank, num_ranks)
    plan = BufferAllocator()
    first, second = plan.allocate((3, 5), torch.float32), plan.allocate((7,), torch.bfloat16)
    assert first.is_meta
    assert second.is_meta
    buffer = BucketBuffer([dist.group.WORLD, pair], plan, explicitly_destroy=True)
    assert buffer.storage.numel() == plan.num_bytes == 2 * SIZE
    assert len(buffer.contexts) == 2
    assert first.data_ptr() == buffer.storage.data_ptr()
    assert second.data_ptr() == buffer.storage.data_ptr() + SIZE
    first.fill_(rank)
    assert buffer.storage.view(torch.float32)[:15].tolist() == [rank] * 15
    with pytest.raises(RefusedError, match="memory once"):
        BucketBuffer(pair, plan)
    for group in (dist.group.WORLD, pair):
        for sync in (False, True):
            buffer.barrier(wait_comm_stream=sync, with_cpu_sync=sync, sequential=not sync, group=group)
    # A plan's tensor is gathered, by its own object.
    whole = second[:6].fill_(-1)
    part = whole.view(2, 3)[rank % 2].fill_(rank)
    event = buffer.all_gather(part, group=pair)
    assert event.is_pending
    assert whole.view(2, 3)[1 - rank % 2].tolist() == [-1] * 3
    with event(release_handle=True) as waiting:
        assert waiting is event
    assert whole.tolist() == [rank // 2 * 2] * 3 + [rank // 2 * 2 + 1] * 3
    with pytest.raises(EventError):
        event.wait()
    assert buffer.get_theoretical_num_sms("all_gather", pair) == 0
    buffer.destroy()
    with pytest.raises(RefusedError, match="destroyed"):
        buffer.all_gather(part, group=pair)
    del event, waiting
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None
    BucketBuffer(None, SIZE).destroy()
    return True


def test_a_plan_gets_its_memory_and_the_buffer_its_end():
    """Placeholders become views; two groups; barriers with every option; nothing keeps a buffer alive."""
    assert run_ranks(plans_and_life, 4) == [True] * 4


def sessions(rank, num_ranks):
    buffer = BucketBuffer(None, SIZE, edition="nvidia", explicitly_destroy=True)
    draw = np.random.default_rng(3)
    values = [draw.standard_normal((num_ranks, 5, 3)).astype(np.float32) for _ in range(num_ranks)]
    mine = tensor_of(values[rank].copy())
    gathered = reductions.gather([v[0] for v in values])
    scattered = reductions.reduce_scatter(values, scale=0.5)[rank]
    summed = reductions.all_reduce(values)
    with buffer.session() as session:
        with pytest.raises(RefusedError, match="do not nest"), buffer.session():
            pass
        out = torch.empty(num_ranks, 5, 3)
        assert buffer.all_gather(mine[0], dsts=out).wait() is out
        np.testing.assert_array_equal(array_of(out).reshape(-1), gathered)
        views = buffer.all_gather([mine[0], mine[0, 0]]).wait()
        np.testing.assert_array_equal(array_of(views[0]), gathered)
        assert session.num_allocated_bytes == sum(-(-4 * n * num_ranks // 32) * 32 for n in (15, 15, 3))
        part = buffer.reduce_scatter(mine, scale=0.5).wait()
        np.testing.assert_array_equal(array_of(part), scattered)
        np.testing.assert_array_equal(array_of(buffer.all_reduce(mine).wait()), summed)
        assert torch.equal(mine, tensor_of(values[rank].copy()))  # sources keep their values
    with buffer.session() as session:
        inside, other = session.allocate([(num_ranks, 5, 3), (num_ranks, 5, 3)])
        assert inside.data_ptr() == buffer.storage.data_ptr()
        inside.copy_(mine)
        used = session.num_allocated_bytes
        assert buffer.all_gather(inside[rank]).wait().data_ptr() == inside.data_ptr()
        # A registered target takes the result of a source from outside.
        assert buffer.all_gather(mine[0], dsts=other).wait() is other
        np.testing.assert_array_equal(array_of(other).reshape(-1), gathered)
        inside.copy_(mine)
        assert buffer.all_reduce(inside).wait().data_ptr() == inside.data_ptr()
        np.testing.assert_array_equal(array_of(inside).reshape(-1), summed)
        assert session.num_allocated_bytes == used
        with pytest.raises(HostCheckError, match="bytes left"):
            session.allocate((SIZE,), torch.uint8)
        with pytest.raises(HostCheckError, match="bytes left"):
            buffer.all_reduce(torch.zeros(SIZE // 4))
    with pytest.raises(RefusedError, match="with block"):
        session.allocate((1,))
    buffer.destroy()
    return True


def test_sessions_take_tensors_of_any_memory():
    """Staged, in place, and with targets inside and outside the storage."""
    assert run_ranks(sessions, 3) == [True] * 3


def outstanding(rank, num_ranks):
    buffer = BucketBuffer(None, SIZE, edition="nvidia", explicitly_destroy=True)
    grid = buffer.storage[:16].view(torch.float32)
    for is_reversed in (False, True):
        grid.copy_(torch.arange(4.0) + 10 * rank)
        events = [buffer.reduce_scatter(grid), buffer.all_gather(grid.view(2, 2)[rank])]
        for event in reversed(events) if is_reversed else events:
            event.wait()
        assert grid.tolist() == [10.0, 12.0, 14.0, 16.0]
        buffer.all_reduce(grid)  # its event is dropped; the device writes all the same
        events = [buffer.all_reduce(grid), buffer.all_reduce(grid)]
        assert events[1].wait().tolist() == [80.0, 96.0, 112.0, 128.0]
        events[0].wait()
        assert grid.tolist() == [80.0, 96.0, 112.0, 128.0]
    with buffer.session():
        event = buffer.all_reduce(torch.full((4,), 1.0 + rank))
    with buffer.session() as session:
        with pytest.raises(UndefinedError, match="result of an all_reduce whose event is not waited for"):
            buffer.all_reduce(torch.ones(4))
        assert event.wait().tolist() == [3.0] * 4
        session.allocate((4,)).fill_(5)
        assert buffer.all_reduce(grid).wait().tolist() == [10.0] * 4
    buffer.destroy()
    return True


def test_calls_not_waited_for_are_seen_by_the_next():
    """As if each had been waited for at once, in whatever order they are; no result is staged over."""
    assert run_ranks(outstanding, 2) == [True] * 2


def refused_constructors(world):
    with pytest.raises(UnsupportedError, match="sl_idx"):
        BucketBuffer(world, SIZE, sl_idx=0)
    for size in (0, SIZE + 1, -SIZE, 1.5, BufferAllocator()):
        with pytest.raises(RefusedError, match="num_bytes"):
            BucketBuffer(world, size)
    for groups in ([], [world] * 9):
        with pytest.raises(HostCheckError, match="groups"):
            BucketBuffer(groups, SIZE)
    with pytest.raises(RefusedError, match="edition"):
        BucketBuffer(world, SIZE, edition="amd")


def refused_gathers(rank, buffer, pair):
    storage = buffer.storage
    whole = storage[:80].view(2, 40)
    bad_dtype, strided = storage[:80].view(torch.int8), torch.zeros(4, 4)[:, 0]
    cases = [
        ([], None, "0 tensors"),
        ([whole[0]] * 65, None, "65 tensors"),
        ([storage[:0]], None, "not empty"),
        ([strided], None, "contiguous"),
        ([torch.zeros(3)], None, "must be part"),
        ([storage[len(storage) - 8 :] if rank % 2 == 0 else storage[:8]], None, "must be part"),
        ([torch.zeros(40, dtype=torch.uint8)], [whole[0]], "2 x 40 bytes"),
        ([torch.zeros(40, dtype=torch.uint8)], [bad_dtype], "torch.uint8 of 2 x 40"),
        ([torch.zeros(40, dtype=torch.uint8)], [torch.zeros(80, dtype=torch.uint8)], "lie in the storage"),
        ([whole[1 - rank % 2]], [storage[:80]], "exactly part"),
        ([whole[0], whole[0]], [storage[:80]], "srcs has 2"),
    ]
    for srcs, dsts, text in cases:
        with pytest.raises(HostCheckError, match=text):
            buffer.all_gather(srcs, dsts, group=pair)
    with pytest.raises(HostCheckError, match="must be 0"):
        buffer.all_gather(whole[rank % 2], group=pair, num_sms=4)
    overlapping = [whole[rank % 2], storage[40:120].view(2, 40)[rank % 2]]
    with pytest.raises(UndefinedError, match="must not overlap"):
        buffer.all_gather(overlapping, group=pair)
    for call in (buffer.all_gather, buffer.reduce_scatter, buffer.all_reduce):
        with pytest.raises(RefusedError, match="is required"):
            call(whole[0])
    with pytest.raises(RefusedError, match="one of the buffer's groups"):
        buffer.barrier(group=dist.new_group([0, 1, 2, 3]))
    for call, name in ((buffer.reduce_scatter, "reduce_scatter"), (buffer.all_reduce, "all_reduce")):
        with pytest.raises(UnsupportedError, match=f"no {name}"):
            call(whole[0], group=pair)


def mismatches(rank, buffer):
    world, storage = dist.group.WORLD, buffer.storage
    source = torch.zeros(16, dtype=torch.uint8)
    at = 8 * (rank == 2)
    with pytest.raises(RankMismatchError, match=r"tensor 0 is 'uint8 64 B at 0' on rank 0 .*at 8' on rank 2"):
        buffer.all_gather(source, storage[at : at + 64], group=world)
    dtype = torch.int8 if rank == 3 else torch.uint8
    with pytest.raises(RankMismatchError, match=r"'int8 64 B at 0' on rank 3"):
        buffer.all_gather(source.view(dtype), storage[:64].view(dtype), group=world)
    targets = [storage[:64], storage[64:128]][: 1 if rank == 1 else 2]
    with pytest.raises(RankMismatchError, match=r"tensor 1 is .* on rank 0 and 'absent' on rank 1"):
        buffer.all_gather([source] * len(targets), targets, group=world)
    call = buffer.barrier if rank == 1 else partial(buffer.all_gather, source, storage[:64])
    with pytest.raises(RankMismatchError, match=r"operation is 'all_gather' on rank 0 and 'barrier' on rank"):
        call(group=world)
    kind, text = (HostCheckError, "4 x 15") if rank == 2 else (PeerRefusedError, "rank 2 refused it: dsts")
    with pytest.raises(kind, match=text):
        buffer.all_gather(source[: 15 if rank == 2 else 16], storage[:64], group=world)


def refused_reductions(rank, num_ranks):
    buffer = BucketBuffer(None, SIZE, edition="nvidia")
    whole = buffer.storage[:64].view(torch.float32)
    for tensor, options, text in (
        (torch.zeros(4), {}, "lie in the storage"),
        (whole.view(torch.int32), {}, "float32 or bfloat16"),
        (whole[:3], {}, "divide"),
        (whole, {"scale": float("nan")}, "finite"),
        (whole, {"comm_precision": "fp8"}, "fp32, bf16"),
        (whole, {"num_sms": -1}, "num_sms is -1: must be a whole number of at least 0"),
    ):
        with pytest.raises(HostCheckError, match=text):
            buffer.reduce_scatter(tensor, **options)
    with pytest.raises(RankMismatchError, match="scale"):
        buffer.all_reduce(whole, scale=1.0 + rank)
    with pytest.raises(UnsupportedError, match="must be one of"):
        buffer.get_theoretical_num_sms("broadcast")
    buffer.destroy()


def refusals(rank, num_ranks):
    world, pair = dist.group.WORLD, pair_of(rank, num_ranks)
    refused_constructors(world)
    with pytest.raises(RankMismatchError, match="num_bytes"):
        BucketBuffer(world, SIZE * (2 if rank == 3 else 1))
    buffer = BucketBuffer([world, pair], SIZE)
    refused_gathers(rank, buffer, pair)
    mismatches(rank, buffer)
    with buffer.session():
        buffer.all_gather(torch.zeros(3), group=world).wait()
        with pytest.raises(RefusedError, match="this session's is number 0"):
            buffer.all_gather(torch.zeros(3), group=pair)
    buffer.destroy()
    refused_reductions(rank, num_ranks)
    return True


def test_every_refusal_names_its_rule():
    """Constructor, places of tensors, groups, and ranks that do not agree."""
    assert run_ranks(refusals, 4) == [True] * 4


def one_dies(rank, num_ranks):
    buffer = BucketBuffer(None, SIZE, num_gpu_timeout_secs=30)
    if rank == 1:
        os._exit(7)
    with pytest.raises(PeerLostError, match=r"all_gather .*died"):
        buffer.all_gather(torch.zeros(1), buffer.storage[:12].view(torch.float32))
    with pytest.warns(RuntimeWarning, match="destroyed all the same"):
        buffer.destroy()
    return buffer.is_destroyed


def one_is_late(rank, num_ranks):
    buffer = BucketBuffer(None, SIZE, num_gpu_timeout_secs=1)
    if rank:
        return None  # never calls it
    with pytest.raises(PeerLostError, match=r"all_gather \(call 2\): .*rank 1 \(global rank 1\)"):
        buffer.all_gather(torch.zeros(1), buffer.storage[:8].view(torch.float32))
    return True


def test_a_dead_or_absent_peer_is_an_error_in_time():
    """At once when its connection closes, else at the time limit."""
    assert run_ranks(one_dies, 3, may_die=(1,), timeout_secs=25) == [True, DIED, True]
    assert run_ranks(one_is_late, 2) == [True, None]
