"""The EP kernels on the twin: dispatch, combine, cached dispatch equal the definition in every schedule."""

import dataclasses

import numpy as np
import pytest

from native.settings import JitSettings
from native.twin import Twin, build_twin
from reference.config import EPConfig
from reference.handle import DispatchMode
from reference.placement import plan_dispatch
from reference.topk import TopK
from tests.native import epchecks as checks
from tests.native.epcases import Sequence, draw_case
from tests.native.epkit import Case, start_barrier
from tests.native.jitkit import STRICT

STRATEGIES = ("random", "pct", "delay_pipe", "late", "inorder")


@pytest.fixture(scope="module")
def twin(jit_cache):
    return Twin(build_twin(JitSettings(cache_dirs=(jit_cache,)), flags=STRICT))


def routing(num_experts: int, *ranks: list[list[int]]) -> TopK:
    ids = tuple(np.array(rows, dtype=np.int64) for rows in ranks)
    weights = tuple(np.arange(1, idx.size + 1, dtype=np.float32).reshape(idx.shape) for idx in ids)
    return TopK(num_experts=num_experts, topk_idx=ids, topk_weights=weights)


@pytest.fixture
def example() -> Case:
    """Return deepep-ascend.md section 4.12: one token per AIV, so that nothing is left open."""
    config = EPConfig(
        ep_size=2, num_experts=4, num_topk=3, hidden=128, num_max_tokens_per_rank=4, expert_alignment=4
    )
    topk = routing(
        4,
        [[0, 2, 1], [3, -1, 2], [1, 0, -1], [2, 0, 3]],
        [[1, 3, -1], [-1, -1, -1], [2, 3, 0]],
    )
    return Case(config=config, topk=topk, num_aivs=16)


@pytest.mark.parametrize("seed", range(20))
def test_calls_equal_the_definition(twin, seed):
    rng = np.random.default_rng(seed)
    params = {"seed": seed, "strategy": STRATEGIES[seed % len(STRATEGIES)]}
    sequence = Sequence(twin, draw_case(rng), rng, params)
    sequence.dispatch()
    sequence.combine()
    sequence.combine_and_cached()


@pytest.mark.parametrize("seed", range(3))
def test_stages_and_slots_are_used_again(twin, seed):
    """Many tokens and little UB: every ring of buffers turns, doorbells ring between tasks."""
    rng = np.random.default_rng(100 + seed)
    case = dataclasses.replace(draw_case(rng, most_tokens=200), ub_bytes=24576, sq_depth=4096)
    sequence = Sequence(twin, case, rng, {"seed": seed, "strategy": STRATEGIES[seed]})
    sequence.dispatch()
    sequence.combine_and_cached()


@pytest.mark.parametrize("switches", [{}, {"single_reduction": 1, "early_doorbells": 1}])
def test_requests_of_later_laps_of_the_ring(twin, switches):
    topk = routing(4, [[0, 3], [2, 1], [3, 2]], [[0, 1], [1, 2], [2, 3]])
    config = EPConfig(ep_size=2, num_experts=4, num_topk=2, hidden=32, num_max_tokens_per_rank=3)
    case = Case(config=config, topk=topk, num_aivs=2, sq_depth=16, switches=switches)
    sequence = Sequence(twin, case, np.random.default_rng(1), {"seed": 1, "cq_depth": 2})
    for _ in range(4):
        sequence.dispatch()
        sequence.combine()
    heads = [int(info["wqebb_head"]) for rank in sequence.heads() for info in rank]
    assert max(heads) > 2 * case.sq_depth


def test_worked_example(twin, example):
    sequence = Sequence(twin, example, np.random.default_rng(0), {})
    sequence.dispatch()
    handles = plan_dispatch(example.config, example.topk, mode=DispatchMode(num_aivs=16))
    for handle, found in zip(handles, sequence.found, strict=True):
        np.testing.assert_array_equal(found["slots"], handle.dst_buffer_slot_idx)
        np.testing.assert_array_equal(found["pairs"], handle.dst_gsge_idx)
        np.testing.assert_array_equal(found["metadata"], handle.recv_src_metadata)
    sequence.combine()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_barriers_stay_in_step(twin, example, strategy):
    """The four states of the signals follow each other, between calls too."""
    sequence = Sequence(twin, example, np.random.default_rng(0), {"strategy": strategy})
    for round_idx in range(7):
        start_barrier(sequence.group)
        if round_idx == 3:
            sequence.dispatch()
    sequence.group.machine.run()
    checks.check_workspace(sequence.group)
    sequence.combine()


def test_one_seed_is_one_schedule(twin, example):
    def run(seed: int) -> str:
        sequence = Sequence(twin, example, np.random.default_rng(0), {"seed": seed})
        sequence.dispatch()
        return sequence.group.machine.stats()["hash"]

    assert run(3) == run(3) != run(4)


# --- the checks see faults ----------------------------------------------------------------------------


@pytest.fixture
def dispatched(twin, example):
    """Return a sequence after dispatch, and the arguments of the checks for rank 0."""
    sequence = Sequence(twin, example, np.random.default_rng(0), {})
    sequence.dispatch()
    return sequence


@pytest.mark.parametrize("name", ["slots", "pairs", "psum_rank", "psum_expert", "num_unaligned", "metadata"])
def test_a_wrong_handle_is_seen(dispatched, name):
    found = {key: values.copy() for key, values in dispatched.found[0].items()}
    at = np.argwhere(found[name] >= 0)[0]
    found[name][tuple(at)] += 1
    with pytest.raises(AssertionError):
        checks.check_handle(dispatched.group, 0, found, dispatched.handles[0])


def flip(sequence: Sequence, address: int) -> None:
    """Change one bit of global memory."""
    machine = sequence.group.machine
    machine.write(address, machine.read(address, 1, np.uint8) ^ 1)


def test_a_wrong_row_or_record_or_counter_is_seen(dispatched):
    group, done, found = dispatched.group, dispatched.done[0], dispatched.found
    row = int(found[0]["metadata"][0, :3].max())
    payload, weights = dispatched.payload, dispatched.case.topk.topk_weights
    flip(dispatched, done.outputs["recv_x"] + row * 2 * group.config.hidden + 5)
    with pytest.raises(AssertionError):
        checks.check_rows(group, 0, done, found[0], payload, "bf16", weights)
    flip(dispatched, group.windows[1] + checks.WORKSPACE_BYTES + group.record.field("gid").offset)
    with pytest.raises(AssertionError):
        checks.check_region(group, found, payload, weights)
    counters = checks.workspace_field("epilogue_expert_counter").offset
    flip(dispatched, group.windows[0] + counters + 4 * group.num_local)
    with pytest.raises(AssertionError):
        checks.check_counters(group, found)
    flip(dispatched, group.windows[0] + checks.workspace_field("remote_rank_histogram").offset)
    with pytest.raises(AssertionError):
        checks.check_workspace(group)


def test_a_wrong_request_is_seen(dispatched):
    before = [info.copy() for info in dispatched.heads()]
    for infos in before:
        infos["wqebb_head"] = infos["num_expected_completions"] = 0
    arguments = dispatched.group, 0, dispatched.done[0], dispatched.found[0], before[0]
    checks.check_dispatch_requests(*arguments)
    flip(dispatched, int(before[0]["sq_base"][0]) + 48)
    with pytest.raises(AssertionError):
        checks.check_dispatch_requests(*arguments)
