"""Gather and sum tensors of all ranks with `BucketBuffer`: laid out by a plan, and in a session.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/bucket_sums.py

On a device: `import deep_ep`, DEVICE = "npu", and no `edition`; sums are in the NVIDIA edition only.
"""

import torch

import epsim.deep_ep as deep_ep

DEVICE = "cpu"


def gather_in_place(group: torch.distributed.ProcessGroup, rank: int, num_ranks: int) -> list[float]:
    """Fill this rank's row of a planned tensor; return the whole after the gather."""
    plan = deep_ep.BufferAllocator()
    table = plan.allocate((num_ranks, 2), torch.float32)  # memory comes with the buffer
    buffer = deep_ep.BucketBuffer(group, plan, explicitly_destroy=True)
    table[rank] = torch.tensor([rank, rank + 0.5], device=DEVICE)
    gathered = buffer.all_gather(table[rank]).wait()
    buffer.destroy()
    assert gathered.data_ptr() == table.data_ptr(), "the result is a view of the storage"
    return [float(value) for value in gathered]


def sum_in_session(group: torch.distributed.ProcessGroup, rank: int) -> list[float]:
    """Return the mean over two ranks of a tensor that lies anywhere."""
    num_bytes = deep_ep.get_num_allocation_alignment()
    buffer = deep_ep.BucketBuffer(group, num_bytes, explicitly_destroy=True, edition="nvidia")
    x = torch.tensor([1.0, 2.0], dtype=torch.float32, device=DEVICE) * 10**rank
    with buffer.session():
        mean = [float(value) for value in buffer.all_reduce(x, scale=0.5).wait()]
    buffer.destroy()
    return mean


def main() -> None:
    """Print what each rank gets."""
    rank, num_ranks, group = deep_ep.init_dist()
    deep_ep.dist_print(f"rank {rank}: gathered {gather_in_place(group, rank, num_ranks)}")
    deep_ep.dist_print(f"rank {rank}: mean {sum_in_session(group, rank)}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
