"""Real gloo processes for tests: one function runs as every rank, and its results come back.

Processes fork from a server that has imported torch once, so a start costs a fraction of a second.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "torch.distributed", "tests.epsim.deep_ep.preload"])
DIED = "died"
"""Result of a rank that ended without a word."""


def _child(connection, folder, job, rank, num_ranks, args):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=60),
        )
        result = job(rank, num_ranks, *args)
        connection.send((True, result))
        dist.destroy_process_group()
    except BaseException:
        connection.send((False, traceback.format_exc()))
        # A failed rank must not wait for the others at its end.
        os._exit(1)


def _answer(connection, process, deadline):
    """Return (worked, result) of a rank, or why there is none."""
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        return False, "no answer in time"
    try:
        return connection.recv()
    except EOFError:
        process.join()
        return True, DIED


def run_ranks(job, num_ranks, *args, may_die=(), timeout_secs=120):
    """Run job(rank, num_ranks, *args) in as many processes, which form the default gloo group.

    Args:
      job: a function at the top of a module.
      num_ranks: processes.
      args: for every rank alike, picklable.
      may_die: ranks that may end without a result; theirs is DIED.
      timeout_secs: after which all are killed.

    Returns:
      results by rank.
    """
    deadline = time.monotonic() + timeout_secs
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(num_ranks):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=_child, args=(theirs, folder, job, rank, num_ranks, args))
            process.start()
            theirs.close()
            started.append((ours, process))
        answers = [_answer(connection, process, deadline) for connection, process in started]
        for connection, process in started:
            process.join(max(0.0, deadline - time.monotonic()) if all(ok for ok, _ in answers) else 1)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()
    failed = [f"rank {r}: {text}" for r, (worked, text) in enumerate(answers) if not worked]
    died = [f"rank {r} died" for r, (_, text) in enumerate(answers) if text == DIED and r not in may_die]
    assert not failed + died, "\n".join(failed + died)
    return [result for _, result in answers]
