"""How many rows a descriptor of dispatch holds is a number of the profile, for every level alike."""

from math import ceil

import numpy as np
import pytest

from epsim.model.closedform import OperationBytes
from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.schedule.grain import Grain
from epsim.schedule.work import Work
from epsim.sim.dispatch import num_sqes
from epsim.sim.run import EventOptions, run_operation
from epsim.simulate import simulate
from reference.memory.limits import RECORDS_PER_SQE

RECORDS = 150
POST_PS = 10**6


def two_ranks():
    """Return the work of two ranks whose four AIVs send each other `RECORDS` records each."""
    records = np.zeros((2, 4, 2), np.int64)
    records[0, :, 1] = records[1, :, 0] = RECORDS
    rows = records.sum(axis=1)
    return Work(
        num_tokens=np.full(2, 4 * RECORDS), records=records, single_rows=rows, entries=rows, num_experts=8
    )


def first_ring_ps(rows):
    settings = {"rows_per_descriptor_dispatch": rows, "post_time": "1us"}
    platform = make_platform("ubl128", settings=settings)
    run = run_operation(
        make_machine(platform, 2, "none"), platform.software, "cached-dispatch", two_ranks(),
        OperationBytes(logical=7464, wire=7488, payload=7168), 2048, EventOptions(grain=Grain(kind="sqe")),
    )  # fmt: skip
    lanes = int(platform.software.post_lanes_dispatch.value)
    return int(run.first_ring_ps[0]), ceil(ceil(RECORDS / rows) / lanes) * POST_PS, run.num_chunks


@pytest.mark.parametrize("rows", [1, 2, 12])
def test_an_aiv_posts_as_many_descriptors_as_the_profile_says(rows):
    (start, posting, chunks), (start_6, posting_6, chunks_6) = first_ring_ps(rows), first_ring_ps(6)
    assert start - start_6 == posting - posting_6 != 0
    assert (chunks, chunks_6) == (8 * ceil(RECORDS / rows), 8 * RECORDS // 6)
    assert num_sqes(two_ranks(), rows) == chunks


@pytest.mark.parametrize("level", ["flow", "events"])
def test_every_level_sees_the_setting(level):
    def answer(rows):
        settings = {"rows_per_descriptor_dispatch": rows, "post_time": "1us", "issue_overlap": 0}
        [item] = simulate(level=level, ep=8, tokens=512, operations=("dispatch",), settings=settings)
        return item

    one, six = answer(1), answer(6)
    assert one.time_us > six.time_us
    assert one.ranks.first_byte_us.max() > six.ranks.first_byte_us.max()
    assert one.predicted_us > six.predicted_us


def test_the_limits_of_the_library_are_those_of_its_profile():
    software = make_platform("ubl128").software
    assert software.rows_per_descriptor_dispatch.value == RECORDS_PER_SQE
