"""What a rank does before its first byte leaves, as a sum: the flow level starts its flows then.

R ranks. The event simulator plays the same steps one by one; here they are added up, with means over the
AIVs of a rank.
"""

import numpy as np
import numpy.typing as npt

from epsim.model.closedform import Operation, OperationBytes, num_descriptors
from epsim.model.loads import RankLoads
from epsim.platform.profile import Software
from epsim.schedule.costs import TASK_TOKENS, TASKS_PER_DOORBELL, StepCosts, barrier_ps
from reference.counts import Counts

Int64 = npt.NDArray[np.int64]


def before_ps(
    operation: Operation,
    counts: Counts,
    loads: RankLoads,
    row: OperationBytes,
    software: Software,
    memory_bytes_per_s: npt.NDArray[np.float64],
    num_aivs: int,
    costs: StepCosts,
) -> Int64:
    """Return [R] int64 ps from launch to the moment from which a rank sends without a break.

    Sums and local rows are memory work that does not overlap with sending, so they count as if they came
    first, wherever they fall (network.md section 10.3: additive service).

    Args:
      operation: which one.
      counts: rows, as of dispatch.
      loads: the same per rank.
      row: bytes per row.
      software: launch, worker, barriers, posts.
      memory_bytes_per_s: [R] memory rate of each card.
      num_aivs: C.
      costs: times of steps.
    """
    ranks = counts.ep_size
    post_ps = software.post_time.value * 1e12
    memory = 1e12 / memory_bytes_per_s
    common = software.launch_time.value * 1e12 + barrier_ps(software, ranks) + costs.doorbell_ps
    local = np.asarray(counts.local_rows, np.float64) * row.wire * memory
    if operation == "combine":
        sums = (loads.reduction_reads + loads.reduced) * row.payload * memory
        lanes = software.post_lanes_combine.value
        # An AIV of a small batch has fewer tasks than a doorbell waits for.
        per_aiv = np.asarray(counts.rows, np.float64) / num_aivs / TASK_TOKENS
        tasks = np.minimum(
            TASKS_PER_DOORBELL, np.where(per_aiv < 1, per_aiv * TASK_TOKENS, np.ceil(per_aiv)).sum(axis=0)
        )
        first = np.ceil(tasks) * -(-TASK_TOKENS // lanes) * post_ps if ranks > 1 else np.zeros(1)
        return np.asarray(np.rint(common + first + local + sums), np.int64)
    posts = num_descriptors(False, loads, num_aivs, software.rows_per_descriptor_dispatch.value)
    posting = np.ceil(posts / software.post_lanes_dispatch.value) * post_ps
    prepared = np.full(ranks, float(costs.clean_ps))
    if operation == "cached-dispatch":
        prepared += costs.rebuild_ps
    else:
        tokens = np.ceil(np.asarray(counts.num_tokens, np.float64) / num_aivs)
        routing = [costs.routing(int(n)) for n in tokens]
        prepared += costs.slots_ps + software.worker_time.value * 1e12 + np.array(routing, np.float64)
    return np.asarray(np.rint(common + prepared + np.maximum(posting, local)), np.int64)
