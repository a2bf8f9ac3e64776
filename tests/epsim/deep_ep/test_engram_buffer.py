"""`EngramBuffer` over real processes: bits and strides of reference/engram, one-sided reads, refusals."""

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.engram import EngramBuffer
from epsim.deep_ep.errors import (
    HostCheckError,
    PeerRefusedError,
    RankMismatchError,
    RefusedError,
    UndefinedError,
    UnsupportedError,
)
from reference.collectives.engram import EngramConfig, EngramTable, engram_size_hint
from tests.epsim.deep_ep.spawning import run_ranks

MIB = 2**20
CONFIGS = {
    "bf16": EngramConfig(
        num_entries_per_layer=(5, 3), hidden=11, num_max_tokens=7, num_entries_per_token=3, dtype="bf16"
    ),
    "fp8": EngramConfig(
        num_entries_per_layer=(4, 1, 6),
        hidden=33,
        num_max_tokens=6,
        num_entries_per_token=2,
        dtype="fp8",
        num_sf_packs=5,
    ),
}
TORCH = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def numbers_of(config):
    """Arguments of set_config and of the size hint."""
    return (
        list(config.num_entries_per_layer),
        config.hidden,
        config.num_max_tokens,
        config.num_entries_per_token,
        TORCH[config.dtype],
        config.num_sf_packs,
    )


def made(config, **options):
    """Return a buffer of exactly the hinted size."""
    sizes = EngramBuffer.get_storage_size_hint(dist.group.WORLD, *numbers_of(config))
    hint = engram_size_hint(config)
    assert sizes == (hint.buffer_bytes, hint.storage_bytes)
    setup = EngramBuffer.get_theoretical_config(dist.group.WORLD, 1, 1, 1)
    assert setup == (0, 0, False)
    buffer = EngramBuffer(dist.group.WORLD, *sizes, False, *setup, **options)
    buffer.set_config(*numbers_of(config))
    return buffer


def tables_of(config, num_ranks, seed):
    """Random entries per rank and layer, any bits, and one table of packs per layer, or None."""
    draw = np.random.default_rng(seed)
    dtype = array_of(torch.zeros(1, dtype=TORCH[config.dtype])).dtype
    counts = config.num_entries_per_layer
    entries = [
        [draw.integers(0, 256, (n, config.entry_bytes), np.uint8).view(dtype) for n in counts]
        for _ in range(num_ranks)
    ]
    if not config.num_sf_packs:
        return entries, None
    shapes = [(num_ranks * n, config.num_sf_packs) for n in counts]
    return entries, [draw.integers(-(2**15), 2**15, shape, np.int16) for shape in shapes]


def random_indices(config, num_ranks, draw):
    tokens = int(draw.integers(0, config.num_max_tokens + 1))
    shape = tokens, config.num_entries_per_token
    layers = [draw.integers(-2, num_ranks * n, shape, np.int32) for n in config.num_entries_per_layer]
    return np.stack(layers)


def same_bits(got, want):
    """Compare a tensor with an array, strides too."""
    found = array_of(got)
    assert found.dtype == want.dtype
    assert found.strides == want.strides or found.size < 2
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(np.uint8), np.ascontiguousarray(want).view(np.uint8)
    )


def fetches(rank, num_ranks, kind, column_major):
    config = CONFIGS[kind]
    table = EngramTable(num_ranks=num_ranks, config=config)
    buffer = made(config)
    buffer.storage.fill_(0xFF)  # as the reference starts: skipped places show what was there
    for seed in range(2):
        entries, packs = tables_of(config, num_ranks, seed)
        table.write(entries, None if packs is None else [packs] * num_ranks)
        mine = [tensor_of(layer.copy()) for layer in entries[rank]]
        buffer.write(mine, None if packs is None else [tensor_of(pack) for pack in packs])
        for tensor in mine:
            tensor.view(torch.uint8).zero_()  # entries were copied
        draw = np.random.default_rng([seed, rank])
        for _ in range(3 + 2 * rank):  # fetches are one-sided: ranks need not make equally many
            ids = random_indices(config, num_ranks, draw)
            hooks = buffer.fetch(tensor_of(ids), use_tma_aligned_col_major_sf=column_major)
            expected = table.fetch(rank, ids, column_major_scales=column_major)
            for hook, want in reversed(list(zip(hooks, expected, strict=True))):
                got, right = hook(), want()
                pairs = [(got, right)] if packs is None else zip(got, right, strict=True)
                for one, other in pairs:
                    same_bits(one, other)
    start = buffer.storage.data_ptr()
    data = hooks[-1]() if packs is None else hooks[-1]()[0]
    assert start <= data.data_ptr() < start + buffer.num_gpu_bytes
    buffer.destroy()
    return True


@pytest.mark.parametrize(("kind", "num_ranks"), [("bf16", 2), ("fp8", 4), ("bf16", 8)])
def test_fetches_give_the_bits_of_the_reference(kind, num_ranks):
    """Any bits, NaN included; skipped ids; ranks that fetch more often than others; layers in any order."""
    for column_major in (True, False):
        assert run_ranks(fetches, num_ranks, kind, column_major) == [True] * num_ranks


def nvidia(rank, num_ranks):
    numbers = [3, 2], 8, 5, 2, torch.float8_e4m3fn, 1
    sizes = EngramBuffer.get_storage_size_hint(None, *numbers, edition="nvidia")
    buffer = EngramBuffer(None, *sizes, True, 4, 128, edition="nvidia")
    buffer.set_config(*numbers)
    tables = [torch.arange(float(num_ranks * n))[:, None] for n in numbers[0]]
    buffer.write([torch.zeros(n, 8).to(torch.float8_e4m3fn) for n in numbers[0]], tables)
    ids = torch.tensor([[[0, 3], [5, 1], [2, 2]], [[0, 3], [1, 1], [2, 0]]], dtype=torch.int32)
    for layer, hook in enumerate(buffer.fetch(ids, num_qps=2)):
        _, scales = hook()
        assert scales.dtype == torch.float32
        assert torch.equal(scales, ids[layer].float())
        assert scales.stride() == (1, 4)  # a column is padded to whole 16 bytes
    return True


def test_the_nvidia_edition_has_wider_packs_and_padded_columns():
    """Storage in host memory and queue pairs are accepted there."""
    assert run_ranks(nvidia, 2) == [True] * 2


def refused_constructors(world):
    sizes = 2 * MIB, 2 * MIB
    for at, value in enumerate((True, 1, 64, True)):
        setup = [False, 0, 0, False]
        setup[at] = value
        with pytest.raises(UnsupportedError, match="edition ascend has only"):
            EngramBuffer(world, *sizes, *setup)
    with pytest.raises(UnsupportedError, match="sl_idx"):
        EngramBuffer(world, *sizes, False, 0, 0, sl_idx=0)
    for bad in ((0, 2 * MIB), (2 * MIB, 0), (MIB, 2 * MIB), (2 * MIB, 2 * MIB + 1)):
        with pytest.raises(RefusedError, match=r"num_gpu_bytes|num_rdma_storage_bytes"):
            EngramBuffer(world, *bad, False, 0, 0)
    setup = {"use_cpu_rdma_storage": False, "num_allocated_qps": 0, "qp_depth": 0}
    with pytest.raises(TypeError, match="one argument"):
        EngramBuffer(world, sizes[0], num_rdma_storage_bytes=1, num_rdma_storage_size=1, **setup)
    with pytest.raises(TypeError, match="num_rdma_storage_bytes"):
        EngramBuffer(world, sizes[0], **setup)
    EngramBuffer(world, sizes[0], num_rdma_storage_size=sizes[1], **setup).destroy()


def refused_tables(rank, buffer):
    good = [torch.zeros(2, 4, dtype=torch.bfloat16)]
    for storages, sfs, text in (
        ([], None, "0 layers"),
        ([good[0][:1]], None, r"must be contiguous torch.bfloat16 of shape \(2, 4\)"),
        ([good[0].float()], None, "float32"),
        ([torch.zeros(4, 2, dtype=torch.bfloat16).T], None, "contiguous"),
        (good, [torch.zeros(4, 1)], "bf16 has none"),
    ):
        with pytest.raises(HostCheckError, match=text):
            buffer.write(storages, sfs)
    # One rank's mistake ends the call on all.
    kind, text = (HostCheckError, "0 layers") if rank == 1 else (PeerRefusedError, "rank 1 refused it")
    with pytest.raises(kind, match=text):
        buffer.write([] if rank == 1 else good)
    return good


def refused_indices(buffer):
    for ids, text in (
        (torch.zeros(1, 4, 2, dtype=torch.int32), "4 tokens"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), "int32"),
        (torch.zeros(2, 2, 2, dtype=torch.int32), "shape"),
        (torch.zeros(1, 2, 3, dtype=torch.int32), "shape"),
        (torch.zeros(2, 2, dtype=torch.int32), "shape"),
        (torch.zeros(1, 2, 2, dtype=torch.int32).transpose(1, 2), "contiguous"),
    ):
        with pytest.raises(HostCheckError, match=text):
            buffer.fetch(ids)
    ids = torch.zeros(1, 2, 2, dtype=torch.int32)
    ids[0, 1, 0] = 4
    with pytest.raises(UndefinedError, match=r"layer 0, token 1, entry 0\] is 4: must be below 4"):
        buffer.fetch(ids)


def refusals(rank, num_ranks):
    refused_constructors(dist.group.WORLD)
    buffer = EngramBuffer(dist.group.WORLD, 2 * MIB, 2 * MIB, False, 0, 0, explicitly_destroy=True)
    with pytest.raises(HostCheckError, match="before set_config"):
        buffer.write([])
    with pytest.raises(HostCheckError, match=r"before set_config.*first set_config, then write, then fetch"):
        buffer.fetch(torch.zeros(1, 1, 2, dtype=torch.int32))
    for numbers, text in (
        (([], 4, 3, 2), "at least one layer"),
        (([2], 0, 3, 2), "hidden"),
        (([2], 4, 3, 2, torch.float32), "dtype"),
        (([2], 4, 3, 2, torch.bfloat16, 1), "num_sf_packs"),
        (([2], 4, 2**20, 2), "num_gpu_bytes"),
        (([2**20], 4, 3, 2), "num_rdma_storage_bytes"),
    ):
        with pytest.raises(HostCheckError, match=text):
            buffer.set_config(*numbers)
    with pytest.raises(RankMismatchError, match="hidden is 4 on rank 0 and 5 on rank 1"):
        buffer.set_config([2], 4 + rank, 3, 2)
    buffer.set_config([2], 4, 3, 2)
    good = refused_tables(rank, buffer)
    with pytest.raises(HostCheckError, match="before write"):
        buffer.fetch(torch.zeros(1, 1, 2, dtype=torch.int32))
    buffer.write(good)
    refused_indices(buffer)
    ids = torch.zeros(1, 1, 2, dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="num_qps is 2: edition ascend has only 0"):
        buffer.fetch(ids, num_qps=2)
    [hook] = buffer.fetch(ids, 0)
    with pytest.raises(HostCheckError, match="hidden"):
        buffer.set_config([2], 0, 3, 2)
    assert hook().shape == (1, 8)  # a refused set_config changes nothing
    buffer.set_config([2], 4, 3, 2)
    with pytest.raises(UndefinedError, match="hook is 'stale': set_config came after its fetch"):
        hook()
    with pytest.raises(HostCheckError, match=r"before write.*set_config emptied the table"):
        buffer.fetch(torch.zeros(1, 1, 2, dtype=torch.int32))
    buffer.destroy()
    with pytest.raises(RefusedError, match="destroyed"):
        buffer.fetch(torch.zeros(1, 1, 2, dtype=torch.int32))
    return True


def test_every_refusal_names_its_rule():
    """Constructor, set_config, write and fetch; a rank that refuses takes the others with it."""
    assert run_ranks(refusals, 2) == [True] * 2
