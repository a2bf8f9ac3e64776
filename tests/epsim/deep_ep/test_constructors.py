"""Constructing buffers: a refusal is heard by the peers at once, and the next construction works."""

import time

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import HostCheckError, PeerLostError, PeerRefusedError, RefusedError
from reference.errors import ConfigError
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20


def engram(group, num_gpu_bytes=MIB2, **options):
    return deep_ep.EngramBuffer(group, num_gpu_bytes, MIB2, False, 0, 0, **options)


def pipeline(group, num_max_tensor_bytes=64, **options):
    return deep_ep.PPBuffer(group, num_max_tensor_bytes, 2, **options)


def bucket(group, num_bytes=MIB2, **options):
    return deep_ep.BucketBuffer(group, num_bytes, **options)


def elastic(group, num_bytes=MIB2, **options):
    return deep_ep.ElasticBuffer(group, num_bytes, explicitly_destroy=True, **options)


def expert(group, num_bytes=MIB2, **options):
    return deep_ep.EPBuffer(group, num_bytes, **options)


WRONG = (
    (expert, {"sl_idx": 3}, "sl_idx is 3"),
    (expert, {"hidden": "a"}, "hidden is 'a': must be a whole number"),
    (expert, {"num_topk": 2.5}, "num_topk is 2.5"),
    (expert, {"num_cpu_timeout_secs": "a"}, "num_cpu_timeout_secs is 'a'"),
    (expert, {"num_gpu_timeout_secs": float("nan")}, "num_gpu_timeout_secs is nan"),
    (expert, {"num_scaleup_ranks": "a", "edition": "nvidia"}, "num_scaleup_ranks is 'a'"),
    (elastic, {"num_cpu_bytes": 1}, "num_cpu_bytes is 1"),
    (elastic, {"num_bytes": 1}, "num_bytes is 1"),
    (pipeline, {"sl_idx": 3}, "sl_idx is 3"),
    (pipeline, {"num_max_tensor_bytes": "a"}, "num_max_tensor_bytes is 'a'"),
    (pipeline, {"num_gpu_timeout_secs": 0}, "timeout_secs is 0"),
    (bucket, {"num_bytes": 5}, "num_bytes is 5"),
    (bucket, {"edition": None}, "edition is None"),
    (engram, {"num_gpu_bytes": 5}, "num_gpu_bytes is 5"),
    (engram, {"sl_idx": 3}, "sl_idx is 3"),
)


def refused_on_one(rank, num_ranks):
    """Rank 1 is refused, again and again; in between all make a buffer."""
    start = time.monotonic()
    for make, wrong, text in WRONG:
        kind = ConfigError if rank else PeerRefusedError
        with pytest.raises(kind, match=text) as caught:
            make(dist.group.WORLD, **(wrong if rank else {}))
        assert rank or str(caught.value).startswith("creating a buffer: rank 1 refused it: ")
        make(dist.group.WORLD).destroy()
    return time.monotonic() - start


def test_a_refused_constructor_is_told_to_the_peers_and_the_group_stays_usable():
    """At once: the time limits are 100 s and more, a lost pairing would cost one."""
    assert max(run_ranks(refused_on_one, 2)) < 100


def chained(rank, num_ranks):
    """Make a bucket with groups {0, 1} and {1, 2}: what rank 0 refuses is heard by rank 2 through rank 1."""
    low, high = dist.new_group([0, 1]), dist.new_group([1, 2])
    groups = {0: [low], 1: [low, high], 2: [high]}[rank]
    with pytest.raises(PeerRefusedError if rank else RefusedError) as caught:
        bucket(groups, MIB2 if rank else 1)
    bucket(groups).destroy()
    return str(caught.value)


def test_a_group_that_does_not_come_together_is_told_to_the_next_group():
    told = run_ranks(chained, 3)
    assert told[1] == f"creating a buffer: rank 0 refused it: {told[0]}"
    assert told[2] == f"creating a buffer: rank 0 refused it: PeerRefusedError: {told[1]}"


def late(rank, num_ranks):
    """Ranks other than 1 give up after a second; then all construct, rank 1 for the first time."""
    if rank != 1:
        start = time.monotonic()
        with pytest.raises(
            PeerLostError, match=f"rank {rank}, creating a buffer: rank 1 .global rank 1. did not"
        ):
            bucket(dist.group.WORLD, num_gpu_timeout_secs=1)
        assert time.monotonic() - start < 3
    dist.barrier()
    buffer = bucket(dist.group.WORLD, num_gpu_timeout_secs=30)
    buffer.barrier()
    return True


def test_a_rank_that_was_late_meets_the_others_at_their_next_construction():
    """And the time limit of the wait is what was asked for."""
    assert run_ranks(late, 3) == [True] * 3


def born_again(rank, num_ranks, folder):
    """Make a buffer on ranks 0 and 1, start torch anew, and make one on 1 and 2: the name is the same."""
    names = []
    for number, members in enumerate(([0, 1], [1, 2], [0, 1, 2])):
        if number:
            dist.destroy_process_group()
            init = f"file://{folder}/store{number}"
            dist.init_process_group("gloo", init_method=init, rank=rank, world_size=num_ranks)
        group = dist.new_group(members)
        if rank in members:
            buffer = bucket(group, num_gpu_timeout_secs=10)
            buffer.barrier()
            buffer.destroy()
            names.append(group.group_name)
    return names


def test_names_of_groups_that_torch_repeats_are_no_meeting_places(tmp_path):
    """Else ranks with another past would wait for each other to the limit."""
    names = run_ranks(born_again, 3, tmp_path)
    assert {name for found in names for name in found} == {"1"}, "torch repeats them"


def no_group(rank, num_ranks):
    for wrong in ("x", 3, [1]):
        for make in (expert, elastic, pipeline, engram, deep_ep.EPBuffer.get_buffer_size_hint):
            options = (4, 256) if make is deep_ep.EPBuffer.get_buffer_size_hint else ()
            with pytest.raises(RefusedError, match=r"group is '.*': must be a process group"):
                make(wrong, *options)
    with pytest.raises(RefusedError, match="group is 'str'"):
        bucket([dist.group.WORLD, "x"])
    with pytest.raises(HostCheckError, match="hidden is 'a'"):
        deep_ep.EPBuffer.get_buffer_size_hint(dist.group.WORLD, 4, "a")
    expert(dist.group.WORLD).destroy()
    gone = dist.new_group([0, 1])
    dist.barrier()  # a peer that still connects would meet a closed door
    dist.destroy_process_group(gone)
    with pytest.raises(RefusedError, match=f"group is '{gone.group_name}': .* it was destroyed"):
        expert(gone)
    return True


def test_what_is_no_group_is_refused_by_its_kind():
    """Nobody can be told of it."""
    assert run_ranks(no_group, 2) == [True] * 2
