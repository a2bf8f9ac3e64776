"""Engram: fetched entries are the indexed ones, skipped places stay, sizes match worked numbers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.collectives.engram import EngramConfig, EngramTable, engram_size_hint, engram_size_hint_v2
from reference.errors import ConfigError
from tests.strategies import SMALL_SIZES

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def config_of(entries=(3, 2), tokens=4, per_token=2, packs=0):
    return EngramConfig(
        num_entries_per_layer=entries,
        hidden=6,
        num_max_tokens=tokens,
        num_entries_per_token=per_token,
        dtype="fp8" if packs else "bf16",
        num_sf_packs=packs,
    )


def contents(config, num_ranks, seed=0):
    """Return (storages, sfs, whole tables per layer, whole scales per layer) of random bits without NaN."""
    rng = np.random.default_rng(seed)
    tables, scales = [], []
    for entries in config.num_entries_per_layer:
        rows = num_ranks * entries
        width = 1 if config.num_sf_packs else 2
        bits = rng.integers(0, 0x70, (rows, config.hidden * width), dtype=np.uint8)
        tables.append(bits.view(FP8 if config.num_sf_packs else BF16))
        scales.append(rng.integers(0, 2**15, (rows, config.num_sf_packs)).astype(np.int16))
    storages = [
        [t[r * n : (r + 1) * n] for t, n in zip(tables, config.num_entries_per_layer, strict=True)]
        for r in range(num_ranks)
    ]
    return storages, [scales] * num_ranks if config.num_sf_packs else None, tables, scales


@st.composite
def fetches(draw):
    """Draw a table and one fetch of it, with skips and repeats, possibly of no tokens."""
    num_ranks = draw(st.sampled_from(SMALL_SIZES))
    entries = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    config = config_of(entries, tokens=4, per_token=draw(st.integers(1, 3)), packs=draw(st.integers(0, 2)))
    tokens = draw(st.integers(0, 4))
    indices = np.zeros((len(entries), tokens, config.num_entries_per_token), dtype=np.int32)
    for layer, count in enumerate(entries):
        ids = st.lists(
            st.integers(-2, num_ranks * count - 1), min_size=indices[0].size, max_size=indices[0].size
        )
        indices[layer] = np.array(draw(ids)).reshape(indices[layer].shape)
    return num_ranks, config, indices


@given(fetches(), st.booleans(), st.sampled_from(["device", "cpu"]), st.data())
def test_fetch_equals_indexing_the_whole_table(case, column_major, storage, data):
    num_ranks, config, indices = case
    storages, sfs, tables, scales = contents(config, num_ranks)
    table = EngramTable(num_ranks=num_ranks, config=config, storage=storage)
    table.write(storages, sfs)
    rank = data.draw(st.integers(0, num_ranks - 1))
    hooks = table.fetch(rank, indices, column_major_scales=column_major)
    assert len(hooks) == len(indices)
    for layer, (hook, ids) in enumerate(zip(hooks, indices, strict=True)):
        result = hook()
        found = result[0] if sfs else result
        assert found.shape == (len(ids), config.num_entries_per_token * config.hidden)
        for token, place in np.ndindex(ids.shape):
            got = found[token, place * config.hidden : (place + 1) * config.hidden]
            if ids[token, place] < 0:
                assert got.tobytes() == b"\xff" * got.nbytes  # untouched since the allocation
                assert not sfs or (result[1].reshape(*ids.shape, -1)[token, place] == -1).all()
                continue
            assert got.tobytes() == tables[layer][ids[token, place]].tobytes()
            if sfs:
                packs = result[1][token, place * config.num_sf_packs : (place + 1) * config.num_sf_packs]
                np.testing.assert_array_equal(packs, scales[layer][ids[token, place]])


def single(ids, config=None, num_ranks=2):
    config = config or config_of((3,), tokens=2, per_token=1)
    table = EngramTable(num_ranks=num_ranks, config=config)
    storages, sfs, tables, _ = contents(config, num_ranks)
    table.write(storages, sfs)
    return table, tables[0], table.fetch(0, np.array(ids, dtype=np.int32).reshape(1, -1, 1))[0]


def test_owner_is_id_over_entries_and_row_the_rest():
    table, _, hook = single([4, 2])
    # 3 entries per rank: id 4 is row 1 of rank 1, id 2 is row 2 of rank 0.
    np.testing.assert_array_equal(hook(), np.stack([table._entries[1][0][1], table._entries[0][0][2]]))


def test_result_is_a_view_that_the_next_fetch_overwrites():
    table, rows, hook = single([4, 2])
    first = hook()
    table.fetch(0, np.array([[[0], [-1]]], dtype=np.int32))
    np.testing.assert_array_equal(first, np.stack([rows[0], rows[2]]))  # skipped place kept row 2
    table.fetch(1, np.array([[[5], [5]]], dtype=np.int32))
    np.testing.assert_array_equal(first, np.stack([rows[0], rows[2]]))  # another rank has its own buffer


def test_written_entries_are_copies_and_set_config_forgets_them():
    table, rows, _ = single([0])
    before = rows[0].copy()
    rows[0] = 0
    np.testing.assert_array_equal(table.fetch(0, np.zeros((1, 1, 1), np.int32))[0](), before[None])
    table.set_config(config_of((3,), tokens=2, per_token=1))
    with pytest.raises(ConfigError, match="fetch is 'before write': entries must be written first"):
        table.fetch(0, np.zeros((1, 1, 1), np.int32))


def test_rank_keeps_its_own_shard_of_the_replicated_scales():
    config = config_of((1,), tokens=2, per_token=1, packs=1)
    table = EngramTable(num_ranks=2, config=config)
    storages, _, _, _ = contents(config, 2)
    # The two tables contradict each other: row r counts only in rank r's.
    sfs = [[np.array([[10], [99]], np.int16)], [np.array([[99], [20]], np.int16)]]
    table.write(storages, sfs)
    _, scales = table.fetch(0, np.array([[[1], [0]]], dtype=np.int32))[0]()
    assert scales.ravel().tolist() == [20, 10]


@pytest.mark.parametrize(("column_major", "strides"), [(True, (2, 6)), (False, (8, 2))])
def test_scale_strides(column_major, strides):
    config = config_of((3,), tokens=4, per_token=2, packs=2)
    table = EngramTable(num_ranks=2, config=config)
    storages, sfs, _, _ = contents(config, 2)
    table.write(storages, sfs)
    ids = np.arange(6, dtype=np.int32).reshape(1, 3, 2)
    _, scales = table.fetch(0, ids, column_major_scales=column_major)[0]()
    assert scales.shape == (3, 4)
    assert scales.strides == strides  # bytes; columns of 3 tokens without padding
    assert scales.dtype == np.int16


@pytest.mark.parametrize(
    ("packs", "buffer_bytes", "storage_bytes"),
    [
        # bf16: 2 layers * 128 * 4 * 14,336 = 14,680,064 = 7 pages; 4,000 * 14,336 = 57,344,000.
        (0, 14_680_064, 58_720_256),
        # fp8: 7,340,032 + 4,000 * 56 * 2 = 7,788,032; 28,672,000.
        (56, 8_388_608, 29_360_128),
    ],
)
def test_size_hint(packs, buffer_bytes, storage_bytes):
    config = EngramConfig(
        num_entries_per_layer=(1000, 3000),
        hidden=7168,
        num_max_tokens=128,
        num_entries_per_token=4,
        dtype="fp8" if packs else "bf16",
        num_sf_packs=packs,
    )
    size = engram_size_hint(config)
    assert (size.buffer_bytes, size.storage_bytes) == (buffer_bytes, storage_bytes)


def test_v2_size_hint_pads_each_entry():
    # 100 bf16 = 200 B, padded to 224: 10,000 * 224 = 2,240,000 and 50,000 * 224 = 11,200,000.
    size = engram_size_hint_v2(num_entries=50_000, hidden=100, num_max_tokens=10_000, dtype="bf16")
    assert (size.buffer_bytes, size.storage_bytes) == (4_194_304, 12_582_912)


def test_storage_says_whose_memory_holds_the_shard():
    config = config_of()
    page = 2 * 2**20
    device = EngramTable(num_ranks=1, config=config)
    assert (device.device_bytes, device.host_bytes) == (2 * page, 0)
    host = EngramTable(num_ranks=1, config=config, storage="cpu")
    assert (host.device_bytes, host.host_bytes) == (page, page)


def written(config=None):
    config = config or config_of()
    table = EngramTable(num_ranks=2, config=config)
    storages, sfs, _, _ = contents(config, 2)
    table.write(storages, sfs)
    return table


def ids_of(shape, value=0, dtype=np.int32):
    return np.full(shape, value, dtype=dtype)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: config_of(()), r"num_entries_per_layer is \(\): must name at least one layer"),
        (lambda: config_of((0,)), r"num_entries_per_layer\[0\] is 0"),
        (
            lambda: EngramConfig(
                num_entries_per_layer=(1,),
                hidden=1,
                num_max_tokens=1,
                num_entries_per_token=1,
                num_sf_packs=1,
            ),
            "num_sf_packs is 1: fp8 needs scale packs and bf16 has none",
        ),
        (
            lambda: EngramTable(num_ranks=1, config=config_of(), storage="disk"),
            "storage is 'disk': must be one of device, cpu",
        ),
        (lambda: written().fetch(2, ids_of((2, 1, 2))), "rank is 2: must be below num_ranks 2"),
        (
            lambda: written().fetch(0, ids_of((2, 1, 3))),
            r"must be contiguous int32 of shape \(2, tokens, 2\)",
        ),
        (lambda: written().fetch(0, ids_of((2, 1, 2), dtype=np.int64)), "indices is 'int64"),
        (lambda: written().fetch(0, ids_of((2, 2, 3)).swapaxes(1, 2)), "must be contiguous int32"),
        (lambda: written().fetch(0, ids_of((2, 5, 2))), "indices is '5 tokens': num_max_tokens is 4"),
        (
            lambda: written().fetch(0, ids_of((2, 1, 2), 4)),
            r"indices\[layer 1, token 0, entry 0\] is 4: must be below 4, or negative to skip",
        ),
        (lambda: written().write([], None), "storages is '0 ranks': must be one list per rank, 2"),
        (lambda: written().write([[], []], None), r"storages\[rank 0\] is '0 layers': must be 2"),
        (
            lambda: written().write([[np.zeros((3, 6)), np.zeros((2, 6))]] * 2),
            r"storages\[rank 0, layer 0\] is 'float64 \(3, 6\)': must be bfloat16 of shape \(3, 6\)",
        ),
        (lambda: written().write([], []), "sfs is 'given': fp8 needs scales and bf16 has none"),
        (
            lambda: written(config_of(packs=1)).write(
                contents(config_of(packs=1), 2)[0], [[np.zeros((3, 1), np.int16)] * 2] * 2
            ),
            r"sfs\[rank 0, layer 0\] is 'int16 \(3, 1\)': must be 2-byte packs of shape \(6, 1\)",
        ),
    ],
)
def test_bad_use_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
