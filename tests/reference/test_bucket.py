"""Bucket collectives: plans, places, groups, sessions, and the stated order of every sum."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.collectives.allocation import BufferAllocator
from reference.collectives.bucket import BucketBuffer
from reference.errors import ConfigError

BF16 = ml_dtypes.bfloat16
PAGE = 2 * 2**20


def buffer_of(num_ranks, groups=None, num_bytes=PAGE):
    return BucketBuffer(num_ranks=num_ranks, allocation_plan_or_num_bytes=num_bytes, groups=groups)


def at(buffer, rank, offset, shape, dtype=np.float32):
    """Return a tensor in a rank's storage."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return buffer.storage[rank][offset : offset + count].view(dtype).reshape(shape)


def f32(*values):
    return np.array(values, dtype=np.float32)


# --- plans -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900)), min_size=1, max_size=5))
def test_plan_rounds_offsets_and_total_to_2_mib_and_views_do_not_meet(shapes):
    plan = BufferAllocator()
    allocations = [plan.allocate(shape, np.int16) for shape in shapes]
    sizes = [2 * rows * columns for rows, columns in shapes]
    assert plan.num_bytes == sum(-(-size // PAGE) * PAGE for size in sizes)
    end = 0
    for allocation, size in zip(allocations, sizes, strict=True):
        assert (allocation.offset, allocation.num_bytes) == (end, size)
        end += -(-size // PAGE) * PAGE


def test_plan_is_materialised_once_with_identical_places_on_all_ranks():
    plan = BufferAllocator()
    first, second = plan.allocate((3, 5), np.float32), plan.allocate((7,), BF16)
    assert (first.offset, second.offset, plan.num_bytes) == (0, PAGE, 2 * PAGE)
    buffer = BucketBuffer(num_ranks=2, allocation_plan_or_num_bytes=plan)
    for rank in range(2):
        assert [t.shape for t in buffer.tensors[rank]] == [(3, 5), (7,)]
        assert [buffer.offset_of(rank, t) for t in buffer.tensors[rank]] == [0, PAGE]
    buffer.tensors[1][1][:] = 1
    assert buffer.storage[1].any()
    assert not buffer.storage[0].any()
    with pytest.raises(ConfigError, match="allocate is 'after materialize'"):
        plan.allocate((1,), np.int8)
    with pytest.raises(ConfigError, match="materialize is 'a second time'"):
        BucketBuffer(num_ranks=2, allocation_plan_or_num_bytes=plan)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (np.zeros(PAGE - 1, np.uint8), "storage is '2097151 bytes': must be exactly the plan's 2097152"),
        (np.zeros(PAGE, np.int8), r"storage\[rank 0\] is 'int8"),
        (np.zeros(2 * PAGE, np.uint8)[::2], "must be one row of contiguous uint8"),
    ],
)
def test_plan_refuses_another_storage(storage, message):
    plan = BufferAllocator()
    plan.allocate((1,), np.int8)
    with pytest.raises(ConfigError, match=message):
        plan.materialize([storage])
    assert not plan.materialized


# --- where it happens ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.uint8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("offset", [0, 32, 37])
def test_all_gather_in_place_at_any_address(dtype, offset):
    buffer = buffer_of(3)
    shards = []
    for rank in range(3):
        shard = at(buffer, rank, offset + rank * 5 * np.dtype(dtype).itemsize, (5,), dtype)
        shard[:] = 10 + rank
        shards.append([shard])
    for (view,) in buffer.all_gather(shards):
        assert view.dtype == dtype
        assert view.astype(float).tolist() == [10] * 5 + [11] * 5 + [12] * 5
    assert not buffer.storage[0][:offset].any()
    assert not buffer.storage[0][offset + 15 * np.dtype(dtype).itemsize :].any()


def test_all_gather_from_outside_leaves_sources_alone():
    buffer = buffer_of(2)
    srcs = [[f32(1, 2), f32(5)], [f32(3, 4), f32(6)]]
    dsts = [[at(buffer, r, 64, (2, 2)), at(buffer, r, 128, (2,))] for r in range(2)]
    for first, second in buffer.all_gather(srcs, dsts):
        assert first.tolist() == [1, 2, 3, 4]
        assert second.tolist() == [5, 6]
    assert dsts[1][0].tolist() == [[1, 2], [3, 4]]
    assert srcs[0][0].tolist() == [1, 2]


@pytest.mark.parametrize("own_part", [True, False])
def test_source_may_be_its_own_part_of_the_target_or_touch_it(own_part):
    buffer = buffer_of(2)
    srcs = [[at(buffer, r, 32 + 8 * r if own_part else 24 + 24 * r, (2,))] for r in range(2)]
    srcs[0][0][:], srcs[1][0][:] = f32(1, 2), f32(3, 4)
    for (view,) in buffer.all_gather(srcs, [[at(buffer, r, 32, (4,))] for r in range(2)]):
        assert view.tolist() == [1, 2, 3, 4]


def test_tensors_may_end_where_the_storage_ends():
    buffer = buffer_of(2)
    buffer.all_gather([[at(buffer, r, PAGE - 8 + 4 * r, (1,))] for r in range(2)])
    memory = np.zeros(2 * PAGE, dtype=np.uint8)
    buffer.storage[0] = memory[:PAGE]
    assert buffer.offset_of(0, memory[PAGE - 4 : PAGE]) == PAGE - 4
    assert buffer.offset_of(0, memory[PAGE - 3 : PAGE + 1]) is None
    assert buffer.all_reduce([[at(buffer, r, PAGE - 4, (1,))] for r in range(2)])[0][0].size == 1


def test_batch_of_64_tensors_and_no_more():
    buffer = buffer_of(2)
    srcs = [[at(buffer, r, 64 * i + 4 * r, (1,)) for i in range(64)] for r in range(2)]
    for rank, tensors in enumerate(srcs):
        for i, tensor in enumerate(tensors):
            tensor[:] = 100 * rank + i
    results = buffer.all_gather(srcs)
    assert [view.tolist() for view in results[1]] == [[i, 100 + i] for i in range(64)]
    too_many = [[*tensors, tensors[0]] for tensors in srcs]
    with pytest.raises(ConfigError, match="every member needs the same 1 to 64 tensors"):
        buffer.all_gather(too_many)


def test_groups_share_storage_but_not_results():
    # A 2 x 2 grid: rows {0,1}, {2,3} and columns {0,2}, {1,3} on the same storages.
    buffer = buffer_of(4, groups=[(0, 1), (2, 3), (0, 2), (1, 3)])
    for group, members in enumerate(buffer.groups):
        offset = 1024 * group
        srcs = []
        for index, rank in enumerate(members):
            shard = at(buffer, rank, offset + 4 * index, (1,))
            shard[:] = 10 * group + rank
            srcs.append([shard])
        for (view,) in buffer.all_gather(srcs, group=group):
            assert view.tolist() == [10 * group + rank for rank in members]
    assert at(buffer, 0, 0, (2,)).tolist() == [0, 1]  # the row's result, untouched by the column's
    assert at(buffer, 3, 1024, (2,)).tolist() == [12, 13]
    with pytest.raises(ConfigError, match="group is None: is required: the buffer has 4 groups"):
        buffer.all_gather([])
    with pytest.raises(ConfigError, match="group is 4: must be below 4"):
        buffer.all_gather([], group=4)


def test_two_groups_need_a_choice_and_eight_are_allowed():
    with pytest.raises(ConfigError, match="group is None: is required: the buffer has 2 groups"):
        buffer_of(2, groups=[(0,), (1,)]).members(None)
    assert buffer_of(2, groups=[(0, 1)] * 8).members(7) == (0, 1)


def test_neighbouring_tensors_do_not_overlap():
    buffer = buffer_of(1)
    at(buffer, 0, 0, (2,))[:] = f32(1, 2)
    first, second = buffer.all_reduce([[at(buffer, 0, 0, (1,)), at(buffer, 0, 4, (1,))]], scale=2.0)[0]
    assert (first.item(), second.item()) == (2, 4)


def test_place_in_the_group_decides_the_part_not_the_rank():
    buffer = buffer_of(3, groups=[(2, 0)])
    srcs = [[at(buffer, 2, 0, (1,))], [at(buffer, 0, 4, (1,))]]
    srcs[0][0][:], srcs[1][0][:] = 7, 8
    assert [view.tolist() for (view,) in buffer.all_gather(srcs)] == [[7, 8], [7, 8]]


def test_reduce_scatter_defines_the_own_part_and_poisons_the_others():
    buffer = buffer_of(2)
    srcs = [[at(buffer, r, 256, (4,))] for r in range(2)]
    srcs[0][0][:], srcs[1][0][:] = f32(1, 2, 3, 4), f32(10, 20, 30, 40)
    results = buffer.reduce_scatter(srcs, scale=2.0)
    assert [part.tolist() for (part,) in results] == [[22, 44], [66, 88]]
    assert srcs[0][0][:2].tolist() == [22, 44]
    assert np.isnan(srcs[0][0][2:]).all()
    assert np.isnan(srcs[1][0][:2]).all()
    assert not buffer.storage[0][272:].any()


def test_all_reduce_is_in_place_and_equal_on_all_ranks():
    buffer = buffer_of(3)
    srcs = [[at(buffer, r, 32, (2, 2), BF16)] for r in range(3)]
    for rank, (tensor,) in enumerate(srcs):
        tensor[...] = rank + 1
    results = buffer.all_reduce(srcs, scale=0.5)
    assert {view.tobytes() for (view,) in results} == {np.full(4, 3, BF16).tobytes()}
    assert srcs[2][0].astype(float).tolist() == [[3, 3], [3, 3]]


# --- sessions --------------------------------------------------------------------------------------


def test_session_takes_ordinary_tensors_and_keeps_them():
    buffer = buffer_of(2)
    srcs = [[f32(1, 2)], [f32(3, 4)]]
    with buffer.session() as session:
        assert session.all_gather(srcs)[0][0].tolist() == [1, 2, 3, 4]
        assert session.num_allocated_bytes == 32
        assert [p.tolist() for (p,) in session.reduce_scatter(srcs)] == [[4], [6]]
        assert session.all_reduce(srcs)[1][0].tolist() == [4, 6]
        assert session.num_allocated_bytes == 96
    assert [s.tolist() for (s,) in srcs] == [[1, 2], [3, 4]]
    with buffer.session() as again:
        assert again.num_allocated_bytes == 0


def test_session_uses_a_registered_tensor_in_place():
    buffer = buffer_of(2)
    with buffer.session() as session:
        tensors = session.allocate((2,))
        for rank, tensor in enumerate(tensors):
            tensor[:] = rank + 1
        session.all_reduce([[t] for t in tensors])
        assert session.num_allocated_bytes == 32
        assert tensors[0].tolist() == [3, 3]


def test_session_entered_again_starts_at_the_beginning():
    session = buffer_of(1).session()
    for _ in range(2):
        with session:
            session.allocate((1,))
            assert session.num_allocated_bytes == 32


def test_session_storage_does_not_grow():
    buffer = buffer_of(2)
    with buffer.session() as session:
        session.allocate((PAGE - 32,), np.uint8)
        session.allocate((32,), np.uint8)
        with pytest.raises(ConfigError, match="num_bytes is 1: the session has 0 of 2097152 bytes left"):
            session.allocate((1,), np.uint8)


def test_sessions_do_not_nest_and_end_after_an_error():
    buffer = buffer_of(2)
    with buffer.session(), pytest.raises(ConfigError, match="session is 'open'"), buffer.session():
        pass
    with pytest.raises(KeyError), buffer.session():
        raise KeyError
    with buffer.session() as session:
        pass
    with pytest.raises(ConfigError, match="session is 'closed'"):
        session.allocate((1,))


# --- refusals --------------------------------------------------------------------------------------


def gather_case(offsets, dst_offsets=None, shape=(4,)):
    def call():
        buffer = buffer_of(2)
        srcs = [[at(buffer, r, o, shape)] for r, o in enumerate(offsets)]
        dsts = None
        if dst_offsets is not None:
            dsts = [[at(buffer, r, o, (2, *shape))] for r, o in enumerate(dst_offsets)]
        before = [s.copy() for s in buffer.storage]
        try:
            buffer.all_gather(srcs, dsts)
        finally:
            assert all((a == b).all() for a, b in zip(before, buffer.storage, strict=True))

    return call


def overlapping():
    buffer = buffer_of(2)
    buffer.all_reduce([[at(buffer, r, 0, (4,)), at(buffer, r, 12, (4,))] for r in range(2)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: buffer_of(0), "num_ranks is 0"),
        (lambda: buffer_of(1, num_bytes=0), "num_bytes is 0: must be a whole number of at least 1"),
        (lambda: buffer_of(1, num_bytes=32), "num_bytes is 32: must be a multiple of 2097152"),
        (lambda: buffer_of(2, groups=[]), "groups is 'none'"),
        (lambda: buffer_of(2, groups=[(0, 0)]), r"groups\[0\] is \(0, 0\): must be distinct ranks below 2"),
        (lambda: buffer_of(2, groups=[(2,)]), r"groups\[0\] is \(2,\): must be distinct ranks"),
        (lambda: buffer_of(2, groups=[(0, 1)] * 9), "groups is '9 with rank 0': at most 8 per rank"),
        (gather_case((0, 0)), r"srcs is 'a tensor of rank 1': must lie in its rank's storage, as part 1"),
        (gather_case((0, 32)), "srcs is 'offset 16 on rank 1': must be at offset 0, as on rank 0"),
        (gather_case((PAGE - 16, PAGE - 16)), "srcs is 'a tensor of rank 0': must lie in its rank's storage"),
        (gather_case((64, 64), (0, 32)), "dsts is 'offset 32 on rank 1': must be at offset 0"),
        (
            gather_case((4, 16), (0, 0)),
            r"srcs\[0\]\[0\] is 'rank 0': a source inside its target must be part 0",
        ),
        (gather_case((16, 0), (0, 0)), "a source inside its target must be part 0"),
        (
            lambda: buffer_of(2).all_gather([[f32(1)], [f32(1)]]),
            "srcs is 'a tensor of rank 0': must lie in its rank's storage",
        ),
        (
            lambda: buffer_of(2).all_gather([[f32(1)], [f32(1)]], [[f32(1)], [f32(1)]]),
            r"dsts\[0\]\[0\] is 'float32 of 4 bytes': must be float32 of 2 x 4 bytes",
        ),
        (
            lambda: buffer_of(2).all_gather([[f32(1)], [f32(1)]], [[f32(1, 1)], [f32(1, 1)]]),
            "dsts is 'a tensor of rank 0': must lie in its rank's storage",
        ),
        (lambda: buffer_of(2).all_gather([[f32(1)]]), "srcs is '1 members': must be one list per member, 2"),
        (lambda: buffer_of(2).all_gather([[f32(1)], []]), r"srcs is \[1, 0\]: every member needs the same"),
        (
            lambda: buffer_of(1).all_gather([[f32()]]),
            r"srcs\[0\]\[0\] is '\(0,\)': must be contiguous and not",
        ),
        (lambda: buffer_of(1).all_gather([[np.ones((2, 2)).T]]), "must be contiguous and not empty"),
        (overlapping, "tensors is '0 and 1': tensors of one call must not overlap"),
        (
            lambda: buffer_of(1).all_gather([[f32(1)]], [[f32(1), f32(1)]]),
            "dsts is '2 tensors': srcs has 1",
        ),
    ],
)
def test_bad_use_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_session_refuses_sources_that_differ():
    with (
        buffer_of(2).session() as session,
        pytest.raises(ConfigError, match=r"srcs is 'float64 \(1,\)': the first member has float32"),
    ):
        session.all_reduce([[f32(1)], [np.ones(1)]])
