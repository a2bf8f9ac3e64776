"""`deep_ep.utils`: casts as the reference, gates with the asked ratio, references against plain loops."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import numpy as np
import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import array_of, tensor_of
from epsim.deep_ep.utils import envs, gate, launcher, math, refs, testing
from reference.errors import ConfigError
from reference.formats import quantize, scales
from tests.epsim.deep_ep.spawning import run_ranks

ROOT = Path(__file__).parents[3]


def random_rows(tokens, hidden, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((tokens, hidden), generator=generator) * 10 ** torch.randint(
        -6, 4, (tokens, 1), generator=generator
    )
    rows[::3, : hidden // 2] = 0
    return rows.to(torch.bfloat16)


def upstream_cast(x):
    """Evaluate the expression of upstream's helper with torch."""
    tokens, hidden = x.shape
    groups = torch.nn.functional.pad(x, (0, -hidden % 128)).view(tokens, -1, 128)
    amax = groups.abs().float().amax(dim=2).clamp(1e-4)
    codes = (groups * (448.0 / amax.unsqueeze(2))).to(torch.float8_e4m3fn)
    return codes.view(tokens, -1)[:, :hidden].contiguous(), amax / 448.0


@pytest.mark.parametrize("hidden", [128, 300, 7])
def test_casts_have_the_bits_of_the_reference(hidden):
    """Both arithmetics by name; strict IEEE is the default."""
    x = random_rows(70, hidden)
    for arithmetic in ("ieee", "reciprocal"):
        codes, factors = math.per_token_cast_to_fp8(x, arithmetic=arithmetic)
        right = quantize.per_token_cast_to_fp8(array_of(x), arithmetic=arithmetic)
        assert codes.is_contiguous()
        np.testing.assert_array_equal(array_of(codes).view(np.uint8), right[0].view(np.uint8))
        np.testing.assert_array_equal(array_of(factors), right[1])
    assert torch.equal(
        math.per_token_cast_to_fp8(x)[1], tensor_of(quantize.per_token_cast_to_fp8(array_of(x))[1])
    )


def test_reciprocal_is_what_upstream_computes():
    """The two arithmetics differ, and the one named after upstream is upstream's."""
    x = random_rows(3000, 256)
    codes, factors = math.per_token_cast_to_fp8(x, arithmetic="reciprocal")
    right = upstream_cast(x)
    assert torch.equal(codes.view(torch.uint8), right[0].view(torch.uint8))
    assert torch.equal(factors, right[1])
    strict, _ = math.per_token_cast_to_fp8(x)
    assert not torch.equal(codes.view(torch.uint8), strict.view(torch.uint8))


def test_cast_back_reads_every_form_of_scales():
    """float32, its int16 halves, packed powers of two, row- and column-major; empty rows stay empty."""
    x = random_rows(20, 300)
    codes, factors = math.per_token_cast_to_fp8(x)
    right = math.per_token_cast_back(codes, factors)
    assert right.dtype == torch.bfloat16
    assert math.calc_diff(x, right) < 1e-3
    assert torch.equal(math.per_token_cast_back(codes, factors.view(torch.int16)), right)
    column_major = factors.T.contiguous().T
    assert column_major.stride() == (1, 20)
    assert torch.equal(math.per_token_cast_back(codes, column_major), right)
    codes, powers = math.per_token_cast_to_fp8(x, scale="e8m0")
    packed = tensor_of(scales.pack_int32(array_of(powers)))
    assert torch.equal(math.per_token_cast_back(codes, packed), math.per_token_cast_back(codes, powers))
    empty = math.per_token_cast_back(torch.empty((0, 256), dtype=torch.float8_e4m3fn), torch.empty((0, 2)))
    assert empty.shape == (0, 256)
    with pytest.raises(ConfigError, match="scales"):
        math.per_token_cast_back(codes, factors[:5])


def test_small_arithmetic():
    """Rounding up, division by zero, bytes and hashes of nested tensors."""
    assert (math.ceil_div(7, 2), math.ceil_div(6, 2), math.align(33, 32), math.align(0, 32)) == (4, 3, 64, 0)
    assert math.safe_div(0, 0) == 0
    assert math.safe_div(3, 2) == 1.5
    with pytest.raises(ZeroDivisionError):
        math.safe_div(1, 0)
    pair = torch.zeros(3, 2, dtype=torch.bfloat16), (torch.zeros(5), None)
    assert math.count_bytes(*pair) == 3 * 2 * 2 + 5 * 4
    assert math.hash_tensor(torch.tensor([1, 2, -4], dtype=torch.int32)) == -1
    assert math.hash_tensor(torch.tensor([1, 256], dtype=torch.int16)) == 2  # other widths by bytes
    assert math.hash_tensor(torch.eye(2, dtype=torch.int32).T) == 2
    assert math.hash_tensors(torch.ones(3, dtype=torch.int32), (torch.ones(4, dtype=torch.int32), None)) == 7
    x = torch.arange(4.0)
    assert math.calc_diff(x, x) == 0
    # All sums are small whole numbers, so both sides round the same one division in float64.
    assert math.calc_diff(x, x + 1) == 1 - 2 * 40 / (30 + 54)


def test_unique_rows_are_what_sets_give():
    """Distinct values in descending order, padded with -1."""
    x = torch.randint(-3, 6, (200, 7), generator=torch.Generator().manual_seed(1))
    right = [sorted({v for v in row if v >= 0}, reverse=True) for row in x.tolist()]
    math.inplace_unique(x, 6)
    assert x.tolist() == [row + [-1] * (7 - len(row)) for row in right]
    with pytest.raises(ConfigError, match="below num_slots 5"):
        math.inplace_unique(torch.tensor([[5]]), 5)
    with pytest.raises(ConfigError, match="1-d"):
        math.inplace_unique(torch.tensor([5]), 6)


def test_grouped_scores_keep_the_chosen_groups():
    """Scores of the other groups become 0."""
    scores = torch.arange(1.0, 13).view(2, 6)
    kept = math.create_grouped_scores(scores, torch.tensor([[0, 2], [1, 1]]), 3)
    assert kept.tolist() == [[1, 2, 0, 0, 5, 6], [0, 0, 9, 10, 0, 0]]


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    ("ranks", "experts", "topk", "ratio"), [(8, 64, 6, 1.5), (4, 16, 3, 2.0), (2, 8, 2, 1.3)]
)
def test_scores_give_the_asked_ratio(ranks, experts, topk, ratio, precise):
    """Rank 0 receives ratio times the rows of the others; the bounds are upstream's own for its gate."""
    torch.manual_seed(5)
    scores = gate.get_unbalanced_scores(4000, experts, ranks, topk, ratio, precise)
    assert scores.dtype == torch.float32
    assert scores.shape == (4000, experts)
    homes = torch.topk(scores, topk, sorted=False).indices // (experts // ranks)
    rows = torch.stack([(homes == rank).any(dim=1).sum() for rank in range(ranks)]).tolist()
    if precise:
        assert max(rows[1:]) - min(rows[1:]) <= 1
        assert abs(rows[0] - ratio * rows[1]) <= ratio + 1
    else:
        mean = sum(rows[1:]) / (ranks - 1)
        # Four standard deviations of a count of at most 4000 tokens.
        assert abs(rows[0] - ratio * mean) < 4 * (1 + ratio) * 32
    again = gate.get_unbalanced_scores(4000, experts, ranks, topk, ratio, precise)
    assert not torch.equal(scores, again)
    torch.manual_seed(5)
    assert torch.equal(scores, gate.get_unbalanced_scores(4000, experts, ranks, topk, ratio, precise))


def test_impossible_gates_are_refused():
    """A ratio below 1, one rank alone, a ratio out of reach, experts that do not divide."""
    for numbers, text in (
        ((10, 8, 2, 2, 0.5), "at least 1"),
        ((10, 8, 1, 2, 1.5), "at least 2 ranks"),
        ((10, 8, 2, 8, 1.5), "routing"),
        ((10, 9, 2, 2, 1.0), "num_experts"),
        ((10, 8, 2, 9, 1.0), "num_topk"),
        ((0, 8, 2, 2, 1.0), "num_max_tokens_per_rank"),
    ):
        for precise in (False, True):
            with pytest.raises(ConfigError, match=text):
                gate.get_unbalanced_scores(*numbers, precise)
    balanced = gate.get_unbalanced_scores(100, 8, 1, 2, 1.0, False)
    assert 0 <= float(balanced.min()) < float(balanced.max()) <= 1


CASES = [
    # tokens per rank, experts, top-k, hidden, scale columns, weights, masked
    ((3, 0, 5, 1), 8, 3, 6, 0, True, True),
    ((4, 4, 4, 4), 4, 1, 9, 3, False, False),
    ((0, 0, 0, 0), 4, 2, 5, 2, True, False),
    ((7, 2, 6, 6), 12, 5, 4, 1, True, True),
]


def case_of(number, num_ranks):
    """Return per rank (x or (x, scales), ids, weights)."""
    tokens, experts, topk, hidden, packs, has_weights, masked = CASES[number]
    draw = np.random.default_rng(number)
    ranks = []
    for count in tokens[:num_ranks]:
        ids = np.array([draw.permutation(experts)[:topk] for _ in range(count)], dtype=np.int64)
        ids = ids.reshape(count, topk)
        ids[draw.random(ids.shape) < 0.3 * masked] = -1
        bits = draw.integers(-(2**15), 2**15, (count, hidden), np.int16)
        x = torch.from_numpy(bits).view(torch.bfloat16)
        pack = torch.from_numpy(draw.integers(0, 99, (packs, count), np.int16)).T
        weights = torch.from_numpy(draw.random((count, topk), np.float32)) if has_weights else None
        ranks.append(((x, pack) if packs else x, torch.from_numpy(ids), weights))
    return ranks


def expected_rows(ranks, rank, size, experts):
    """By plain loops, per received row: source rank, source token, ids local to this rank."""
    local = experts // size
    rows = []
    for source, (_, ids, _) in enumerate(ranks):
        for token, chosen in enumerate(ids.tolist()):
            mine = [e - rank * local if e // local == rank and e >= 0 else -1 for e in chosen]
            if any(e >= 0 for e in mine):
                rows.append((source, token, mine))
    return rows


def check_dispatch(ranks, rank, size, experts):
    x, ids, weights = ranks[rank]
    got, got_ids, got_weights, gids, counts = refs.dispatch(x, ids, weights, 10, experts)
    rows = expected_rows(ranks, rank, size, experts)
    assert gids.dtype == counts.dtype == torch.int32
    assert gids.tolist() == [source * 10 + token for source, token, _ in rows]
    assert got_ids.tolist() == [mine for _, _, mine in rows]
    assert counts.tolist() == [sum(row[0] == source for row in rows) for source in range(size)]
    for at in range(2 if isinstance(x, tuple) else 1):
        part = got[at] if isinstance(got, tuple) else got
        sent = [other[0][at] if isinstance(x, tuple) else other[0] for other in ranks]
        right = [sent[source][token].tolist() for source, token, _ in rows]
        np.testing.assert_array_equal(np.array(part.tolist()), np.array(right))  # NaN equals NaN here
    assert (got_weights is None) == (weights is None)
    if weights is not None:
        assert got_weights.tolist() == [ranks[source][2][token].tolist() for source, token, _ in rows]


def check_combine(ranks, rank, size, experts):
    ids = ranks[rank][1]
    tokens, topk = ids.shape
    y = refs.generate_pre_combine_data(rank * 10 + torch.arange(tokens), 10, topk, 16)
    assert y.shape == (tokens, topk, 16)
    bias = random_rows(tokens, 16, 1), random_rows(tokens, 16, 2)
    local = experts // size
    for biases in (None, bias[0], bias):
        for by_rank in (False, True):
            got = refs.combine(y, ids, experts, biases, by_rank)
            for token in range(tokens):
                total = torch.zeros(16)
                for b in () if biases is None else bias[: 1 if biases is bias[0] else 2]:
                    total += b[token]
                partial = {}
                for k, expert in enumerate(ids[token].tolist()):
                    if expert >= 0:
                        partial.setdefault(expert // local if by_rank else -1 - k, []).append(k)
                for ks in sorted(partial.values(), key=max):
                    inner = torch.zeros(16)
                    for k in ks:
                        inner += y[token, k]
                    total += inner.to(torch.bfloat16)
                assert torch.equal(got[token], total.to(torch.bfloat16))


def references(rank, num_ranks):
    envs.init_seed(11)
    assert (deep_ep.get_global_seed(), deep_ep.get_local_seed()) == (11, 11 + rank)
    for number in range(len(CASES)):
        ranks, experts = case_of(number, num_ranks), CASES[number][1]
        check_dispatch(ranks, rank, num_ranks, experts)
        check_combine(ranks, rank, num_ranks, experts)
    data = refs.generate_pre_combine_data(torch.tensor([3]), 10, 2, 5)
    seed = 3 * 2 + 1
    slope = (torch.tensor(float(seed * 131071 % (num_ranks * 20))) + 1) / (num_ranks * 20)
    right = torch.sin(slope * 3 + np.sin(11.0)).to(torch.bfloat16)
    assert data[0, 1, 2] == right
    for call, text in (
        (lambda: refs.dispatch(torch.zeros(2, 4), torch.zeros(2, 1).long(), None, 1, 4), "at most 1"),
        (lambda: refs.dispatch(torch.zeros(2, 4), torch.zeros(3, 1).long(), None, 9, 4), "one row per token"),
        (lambda: refs.dispatch(torch.zeros(2, 4), torch.zeros(2, 1).long(), None, 9, 7), "divide"),
        (lambda: refs.combine(data, torch.zeros(1, 2).long(), 4, (data[:, 0],) * 3, True), "at most two"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()
    with pytest.raises(AssertionError, match="init_dist comes first"):
        deep_ep.dist_print("nothing")
    return True


def test_references_equal_plain_loops():
    """Dispatch and combine of the helpers, over four processes; uneven, empty and masked ranks."""
    assert run_ranks(references, 4) == [True] * 4


def subgroup(rank, num_ranks):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    ranks = case_of(0, 2)
    x, ids, weights = ranks[rank % 2]
    _, _, _, gids, counts = refs.dispatch(x, ids, weights, 10, 8, group=pairs[rank // 2])
    rows = expected_rows(ranks, rank % 2, 2, 8)
    assert gids.tolist() == [source * 10 + token for source, token, _ in rows]
    assert counts.sum() == len(rows)
    return True


def test_references_take_a_group():
    """Ranks, and so experts, count within the group."""
    assert run_ranks(subgroup, 4) == [True] * 4


def gathered(tensor, num_ranks):
    parts = [torch.empty_like(tensor) for _ in range(num_ranks)]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


@torch.inference_mode()
def public_program(rank, num_ranks):
    torch.set_default_dtype(torch.bfloat16)  # as init_dist does
    deep_ep.init_seed(3)
    group, pair = dist.group.WORLD, [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    plan = deep_ep.BufferAllocator()
    whole = plan.allocate((2 * num_ranks, 5), torch.float32)
    bucket = deep_ep.BucketBuffer([group, pair], plan, explicitly_destroy=True)
    source = whole.view(num_ranks, -1)[rank].normal_()
    right = gathered(source, num_ranks)
    assert torch.equal(bucket.all_gather(source, group=group, num_sms=0).wait(), right)
    with bucket.session():
        result = bucket.all_gather(torch.full((3,), float(rank)), group=pair).wait()
    assert result.tolist() == [rank // 2 * 2] * 3 + [rank // 2 * 2 + 1] * 3
    bucket.destroy()
    pipe = deep_ep.PPBuffer(group, 1000, 2, explicitly_destroy=True)
    x = torch.randn(10)
    received = torch.empty(10)
    pipe.send(x, (rank + 1) % num_ranks)
    pipe.recv(received, (rank - 1) % num_ranks)
    assert torch.equal(received, gathered(x, num_ranks).view(num_ranks, -1)[rank - 1])
    pipe.destroy()
    setup = deep_ep.EngramBuffer.get_theoretical_config(group, 1, 3, 2)
    sizes = deep_ep.EngramBuffer.get_storage_size_hint(group, [4], 8, 3, 2)
    engram = deep_ep.EngramBuffer(group, *sizes, False, *setup, explicitly_destroy=True)
    engram.set_config([4], 8, 3, 2)
    entries = torch.randn(4, 8)
    engram.write([entries], sfs=None)
    ids = torch.randint(0, 4 * num_ranks, (1, 3, 2), dtype=torch.int32)
    (hook,) = engram.fetch(ids, num_qps=0)
    assert torch.equal(hook(), gathered(entries, num_ranks)[ids[0].view(-1)].view(3, -1))
    engram.barrier(with_cpu_sync=True)
    assert engram.get_physical_domain_size() == (1, num_ranks)
    engram.destroy()
    return True


def test_a_program_of_public_names_runs_in_inference_mode():
    """As upstream's own tests do, with bf16 as the default dtype."""
    assert run_ranks(public_program, 4) == [True] * 4


def test_the_launch_environment_is_read_both_ways(monkeypatch):
    """Upstream counts hosts where torchrun counts processes."""
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def read(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        got = launcher.read_launch_environment()
        return got.num_servers, got.server_idx, got.local_rank, got.num_local_ranks

    assert read() == (1, 0, None, None)
    assert launcher.read_launch_environment().address == "127.0.0.1"
    assert launcher.read_launch_environment().port == 8361
    with pytest.raises(ValueError, match="must be given unless torchrun"):
        envs.init_dist()
    assert read(WORLD_SIZE="2", RANK="1", MASTER_PORT="99") == (2, 1, None, None)
    assert launcher.read_launch_environment().port == 99
    assert read(WORLD_SIZE="16", RANK="11", LOCAL_RANK="3", LOCAL_WORLD_SIZE="8") == (2, 1, 3, 8)
    with pytest.raises(ValueError, match="RANK is 'one'"):
        read(RANK="one")


def test_timing_helpers_run_what_they_time():
    """Counts of calls, forms of results, refused numbers."""
    calls = []
    mean, least, most = testing.bench(
        lambda: calls.append("fn"),
        2,
        3,
        post_fn=lambda: calls.append("post"),
        barrier=lambda: calls.append("all"),
    )
    assert calls == ["fn", "fn", "all", *["fn", "post"] * 3]
    assert 0 <= least <= mean <= most
    one = testing.bench_msprof(lambda: None, "dispatch_impl", num_tests=2)
    assert one.ns == one.us * 1e3 > 0
    assert (one + one).dur_us == 2 * one.us
    assert one.gbps(one.ns) == 1
    assert one.tflops(one.ns * 1e3) == 1
    assert "wall time on a CPU" in str(one)
    assert len(testing.bench_msprof(lambda: None, ["a", "b"], num_tests=1)) == 2
    assert set(testing.bench_msprof(lambda: None, return_all_kernels=True, num_tests=1)) == {"fn"}
    assert isinstance(testing.bench_kineto(lambda: None, "a", 1), float)
    assert len(testing.bench_kineto(lambda: None, ("a", "b"), 1)) == 2
    for numbers in ((-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="at least 0 and 1"):
            testing.bench(lambda: None, *numbers)
    with pytest.raises(ValueError, match="must be 1"):
        testing.bench_kineto(lambda: None, "a", 1, num_kernels_per_period=2)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1G", 2**30),
        ("64M", 2**26),
        ("512KiB", 2**19),
        (" 1.5k ", 1536),
        ("7", 7),
        ("2tb", 2**41),
        (".5k", 512),
    ],
)
def test_byte_counts_are_read(text, count):
    """Binary suffixes of either case."""
    assert testing.parse_num_bytes(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1X", "G", "1.2.3", "0.1"])
def test_other_byte_counts_are_refused(text):
    """With the text that was given."""
    with pytest.raises(ValueError, match="byte count is"):
        testing.parse_num_bytes(text)


def test_torchrun_runs_the_pipeline_example():
    """init_dist under torchrun, PPBuffer forward and backward, gradients equal to one process."""
    program = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *program, "examples/pipeline_ring.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.split("\n"))
    assert [line for line in lines if line] == [f"stage {r} of 2: gradient equal" for r in range(2)]
