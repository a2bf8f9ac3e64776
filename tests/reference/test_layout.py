"""Records, regions and workspace: every printed number, and bytes written and read back."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import ConfigError
from reference.memory.layout import (
    SymmetricWindow,
    combine_group,
    combine_record,
    combine_record_idx,
    combine_region_bytes,
    dispatch_record,
    metadata_image,
    receive_offset,
    receive_region_bytes,
)
from reference.memory.sizes import (
    ascend_buffer_bytes,
    ascend_combine_record_bytes,
    ascend_dispatch_record_bytes,
    ascend_metadata_bytes,
)
from reference.memory.workspace import (
    COMMON_SIGNALS,
    EP_WORKSPACE,
    EP_WORKSPACE_USED_BYTES,
    SIGNALS_BYTES,
    WORKSPACE_BYTES,
    epilogue_counter_idx,
    is_word_ready,
    pack_word,
    unpack_word,
    workspace_field,
)

BF16 = ml_dtypes.bfloat16
FP8 = ml_dtypes.float8_e4m3fn


def offsets(record):
    return {field.name: field.offset for field in record.fields}


# --- records ---------------------------------------------------------------------------------------


def test_fresh_fp8_record_at_real_size():
    # H = 7168, K = 6, 112 packs = 224 B; ids al(48, 32) = 64 B; weights 24 B; gid; padded to 7,488.
    record = dispatch_record(7168, 6, "fp8", num_scale_packs=112)
    assert offsets(record) == {
        "hidden": 0,
        "scales": 7168,
        "topk_idx": 7392,
        "topk_weights": 7456,
        "gid": 7480,
    }
    assert record.num_bytes == 7488


def test_cached_record_has_neither_ids_nor_gid():
    record = dispatch_record(7168, 6, "bf16", num_scale_packs=0, fresh=False)
    assert offsets(record) == {"hidden": 0, "topk_weights": 14336}
    assert record.num_bytes == 14368


def test_scales_block_is_padded_before_the_ids():
    # 5 packs = 10 B of scales in a 32 B block, so the ids start at 64 + 32.
    record = dispatch_record(64, 1, "fp8", num_scale_packs=5)
    assert offsets(record) == {"hidden": 0, "scales": 64, "topk_idx": 96, "topk_weights": 128, "gid": 132}
    assert record.num_bytes == 160


def test_worked_example_of_section_4_12():
    # H = 128 BF16, K = 3, M = 4, R = 2: record 320 B, source block 1,280 B, combine record 288 B.
    record = dispatch_record(128, 3, "bf16", num_scale_packs=0)
    kwargs = {"ep_size": 2, "num_max_tokens_per_rank": 4}
    assert record.num_bytes == 320
    assert receive_offset(record, src_rank=1, slot=0, **kwargs) == 1280
    assert receive_offset(record, src_rank=0, slot=2, **kwargs) == 0 * 1280 + 2 * 320
    assert combine_record(128, 3).num_bytes == 288
    # K > R: groups are contributors. Rank 0 gets indices 0, 2, 3 from itself and 4, 5, 7 from rank 1.
    masters = {(0, 0): 2, (0, 1): 1, (2, 0): 1, (3, 0): 1, (1, 1): 2, (3, 1): 2}  # (token, rank) -> master
    found = {0: [], 1: []}
    for (token, rank), master in sorted(masters.items()):
        group = combine_group(contributor_rank=rank, master_topk=master, ep_size=2, num_topk=3)
        found[rank].append(combine_record_idx(group=group, home_token=token, num_max_tokens_per_rank=4))
    assert found == {0: [0, 2, 3], 1: [4, 5, 7]}


def test_metadata_image_is_the_record_behind_its_payload():
    record = dispatch_record(7168, 6, "fp8", num_scale_packs=112)
    image = metadata_image(record)
    assert offsets(image) == {"scales": 0, "topk_idx": 224, "topk_weights": 288, "gid": 312}
    assert image.num_bytes == 320  # section 3.7: 64 tokens x 320 B
    assert metadata_image(dispatch_record(7168, 6, "bf16", num_scale_packs=0)).num_bytes == 96


RECORDS = st.tuples(
    st.sampled_from(("fp8", "bf16")), st.integers(1, 9), st.integers(1, 32), st.integers(0, 40), st.booleans()
)


@given(RECORDS)
def test_table_and_closed_formulas_give_the_same_bytes(case):
    dtype, blocks, topk, packs, fresh = case
    hidden = 32 * blocks
    record = dispatch_record(hidden, topk, dtype, num_scale_packs=packs, fresh=fresh)
    assert record.num_bytes == ascend_dispatch_record_bytes(
        hidden, topk, dtype, fresh=fresh, num_scale_packs=packs
    )
    assert combine_record(hidden, topk).num_bytes == ascend_combine_record_bytes(hidden, topk)
    image = metadata_image(record)
    assert image.num_bytes == record.num_bytes - record.field("hidden").num_bytes
    if not packs:
        assert image.num_bytes == ascend_metadata_bytes(topk, fresh=fresh)


@given(RECORDS)
def test_fields_are_aligned_and_do_not_overlap(case):
    dtype, blocks, topk, packs, fresh = case
    record = dispatch_record(32 * blocks, topk, dtype, num_scale_packs=packs, fresh=fresh)
    end = 0
    for field in record.fields:
        assert field.offset >= end
        assert field.offset % field.dtype.itemsize == 0
        end = field.offset + field.num_bytes
    assert end <= record.num_bytes
    assert record.num_bytes % 32 == 0


@pytest.mark.parametrize(
    ("ranks", "tokens", "hidden", "topk"), [(8, 4096, 7168, 6), (64, 4096, 7168, 8), (2, 16, 1024, 1)]
)
def test_regions_fill_what_the_size_hint_counts(ranks, tokens, hidden, topk):
    size = ascend_buffer_bytes(ep_size=ranks, num_max_tokens_per_rank=tokens, hidden=hidden, num_topk=topk)
    dispatch = dispatch_record(hidden, topk, "bf16", num_scale_packs=0)
    kwargs = {"ep_size": ranks, "num_max_tokens_per_rank": tokens}
    assert receive_region_bytes(dispatch, **kwargs) == size.dispatch_bytes
    last = receive_offset(dispatch, src_rank=ranks - 1, slot=tokens - 1, **kwargs)
    assert last + dispatch.num_bytes == size.dispatch_bytes
    combine = combine_record(hidden, topk)
    assert combine_region_bytes(combine, num_topk=topk, **kwargs) == size.combine_bytes


def test_group_is_the_rank_only_when_there_are_fewer_ranks_than_positions():
    kwargs = {"contributor_rank": 1, "master_topk": 2}
    assert combine_group(**kwargs, ep_size=2, num_topk=3) == 1
    assert combine_group(**kwargs, ep_size=3, num_topk=3) == 2
    assert combine_group(**kwargs, ep_size=8, num_topk=6) == 2


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_every_group_lies_inside_the_combine_region(ep_size, topk, data):
    record = combine_record(16, topk)
    group = combine_group(
        contributor_rank=data.draw(st.integers(0, ep_size - 1)),
        master_topk=data.draw(st.integers(0, topk - 1)),
        ep_size=ep_size,
        num_topk=topk,
    )
    index = combine_record_idx(group=group, home_token=4, num_max_tokens_per_rank=5)
    region = combine_region_bytes(record, ep_size=ep_size, num_topk=topk, num_max_tokens_per_rank=5)
    assert (index + 1) * record.num_bytes <= region


# --- bytes -----------------------------------------------------------------------------------------


def token_values(rng, count, hidden, topk, packs):
    return {
        "hidden": rng.integers(0, 256, (count, hidden), dtype=np.uint8).view(FP8),
        "scales": rng.integers(0, 2**15, (count, packs)).astype(np.int16),
        "topk_idx": rng.integers(-1, 256, (count, topk)),
        "topk_weights": rng.random((count, topk), dtype=np.float32),
        "gid": rng.integers(0, 2**24, count).astype(np.int32),
    }


@given(st.integers(0, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_records_are_read_back_bit_for_bit(count, blocks, topk, packs, seed):
    record = dispatch_record(32 * blocks, topk, "fp8", num_scale_packs=packs)
    values = token_values(np.random.default_rng(seed), count, 32 * blocks, topk, packs)
    records = record.pack(values, padding=0xEE)
    assert records.shape == (count, record.num_bytes)
    for name, array in record.unpack(records).items():
        assert array.tobytes() == values[name].tobytes(), name


def test_bytes_of_one_record_written_by_hand():
    record = dispatch_record(16, 2, "bf16", num_scale_packs=0)
    packed = record.pack(
        {
            "hidden": np.full((1, 16), 1.0, dtype=BF16),  # 0x3f80
            "topk_idx": np.array([[3, -1]]),
            "topk_weights": np.array([[0.5, 0.0]], dtype=np.float32),  # 0x3f000000
            "gid": np.array([258], dtype=np.int32),  # 0x102
        },
        padding=0xEE,
    )
    expected = (
        "803f" * 16 + "03" + "00" * 7 + "ff" * 8 + "ee" * 16 + "0000003f" + "00" * 4 + "02010000" + "ee" * 20
    )
    assert packed.tobytes().hex() == expected


def test_field_left_out_holds_the_padding():
    record = dispatch_record(16, 1, "bf16", num_scale_packs=0, fresh=False)
    packed = record.pack({"hidden": np.zeros((1, 16), dtype=BF16)}, padding=0xEE)
    assert record.unpack(packed)["topk_weights"].tobytes() == b"\xee" * 4
    packed = record.pack({"hidden": np.ones((1, 16), dtype=BF16)})
    assert not packed[0, 32:].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.pack({"x": np.zeros((1, 1))}), "field is 'x': the record holds hidden, topk_weights"),
        (lambda r: r.pack({"hidden": np.zeros((1, 15), BF16)}), "must be 16 elements of 2 bytes per record"),
        (lambda r: r.pack({"hidden": np.zeros((1, 16), np.float32)}), "hidden is 'float32"),
        (lambda r: r.pack({}), r"values is \[\]: every field needs the same number"),
        (lambda r: r.unpack(np.zeros((1, 63), np.uint8)), r"records is 'uint8 \(1, 63\)'"),
        (
            lambda r: dispatch_record(24, 1, "fp8", num_scale_packs=0),
            "hidden is 24: a payload must be a mult",
        ),
        (lambda r: combine_record(8, 1), "hidden is 8: a payload must be a multiple of 32 bytes"),
        (
            lambda r: receive_offset(r, src_rank=2, slot=0, ep_size=2, num_max_tokens_per_rank=4),
            "src_rank is 2: must be below ep_size 2",
        ),
        (
            lambda r: receive_offset(r, src_rank=0, slot=4, ep_size=2, num_max_tokens_per_rank=4),
            "slot is 4: must be below num_max_tokens_per_rank 4",
        ),
        (lambda r: SymmetricWindow(num_bytes=3), "num_bytes is 3: must be a multiple of 2097152"),
    ],
)
def test_bad_layout_input_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call(dispatch_record(16, 1, "bf16", num_scale_packs=0, fresh=False))


# --- workspace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "offset", "num_bytes"),
    [
        ("peer_ptrs", 0, 2048),
        ("grid_sync_count", 2048, 4),
        ("barrier_counter", 2560, 8),
        ("barrier_signals", 2568, 8),
        ("local_expert_histogram", 3072, 2048 * 512),
        ("remote_expert_histogram", 1_051_648, 8192),
        ("local_rank_histogram", 1_059_840, 65_536),
        ("remote_rank_histogram", 1_125_376, 1024),
        ("host_rank_expert_count", 1_126_400, 9216),
        ("epilogue_expert_counter", 1_135_616, 524_288),
    ],
)
def test_workspace_offsets(name, offset, num_bytes):
    field = workspace_field(name)
    assert (field.offset, field.num_bytes) == (offset, num_bytes)


def test_workspace_totals():
    assert SIGNALS_BYTES == 3072
    assert EP_WORKSPACE_USED_BYTES == 1_659_904
    assert WORKSPACE_BYTES == 2_097_152
    assert len(EP_WORKSPACE) == 10
    assert COMMON_SIGNALS[-1].offset + COMMON_SIGNALS[-1].num_bytes <= SIGNALS_BYTES


def test_workspace_views_cover_disjoint_bytes():
    memory = np.zeros(WORKSPACE_BYTES, dtype=np.uint8)
    for number, field in enumerate(EP_WORKSPACE, start=1):
        view = field.of(memory)
        assert not view.any(), field.name  # no earlier field reaches into this one
        view[...] = number
        assert view.shape == field.shape
    assert not memory[EP_WORKSPACE_USED_BYTES:].any()
    assert (workspace_field("local_expert_histogram").of(memory) == 5).all()
    assert EP_WORKSPACE[-1].of(memory[:EP_WORKSPACE_USED_BYTES]).size == 64 * 2048
    with pytest.raises(ConfigError, match="must be at least 1659904 bytes of uint8"):
        EP_WORKSPACE[-1].of(memory[: EP_WORKSPACE_USED_BYTES - 1])
    with pytest.raises(ConfigError, match="field is 'head': the workspace holds peer_ptrs"):
        workspace_field("head")


def test_epilogue_rows_are_packed_with_the_number_of_local_experts():
    assert epilogue_counter_idx(3, 1, 32) == 97
    assert epilogue_counter_idx(0, 0, 1) == 0
    with pytest.raises(ConfigError, match="local_expert is 32: must be below num_local_experts 32"):
        epilogue_counter_idx(0, 32, 32)
    with pytest.raises(ConfigError, match="aiv is 64: must be below 64"):
        epilogue_counter_idx(64, 0, 32)


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=255))
def test_word_counts_arrivals_and_adds_values_at_once(values):
    word = sum(pack_word(1, value) for value in values) if sum(values) < 2**24 else pack_word(len(values), 5)
    assert unpack_word(word)[0] == len(values)
    assert is_word_ready(word, len(values))
    assert not is_word_ready(word, len(values) - 1)
    signed = int(np.array(word, dtype=np.uint32).view(np.int32))  # the device field is a signed int
    assert unpack_word(signed) == unpack_word(word)


def test_word_limits():
    assert pack_word(255, 2**24 - 1) == 0xFFFFFFFF
    assert unpack_word(-1) == unpack_word(2**32 - 1) == (255, 2**24 - 1)
    assert unpack_word(-(2**31)) == (128, 0)
    assert is_word_ready(pack_word(255, 1), 255)
    for call, message in (
        (lambda: pack_word(256, 0), "arrivals is 256: must fit into its bits, at most 255"),
        (lambda: pack_word(0, 2**24), "value is 16777216: must fit into its bits"),
        (lambda: is_word_ready(0, 256), "num_expected is 256: 8 bits count at most 255"),
        (lambda: unpack_word(-(2**31) - 1), "word is -2147483649: must be a 32-bit word"),
        (lambda: unpack_word(2**32), "word is 4294967296: must be a 32-bit word"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()


def test_window_is_workspace_then_ep_region_then_redundant_experts():
    window = SymmetricWindow(num_bytes=473_956_352, num_lb_bytes=4 * 2**20)
    assert window.ep_offset == 2 * 2**20
    assert window.lb_offset == 2 * 2**20 + 473_956_352
    assert window.window_bytes == 6 * 2**20 + 473_956_352
    assert SymmetricWindow(num_bytes=0).window_bytes == 2 * 2**20
