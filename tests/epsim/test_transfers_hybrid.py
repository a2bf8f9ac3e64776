"""Two tiers: rows against the reference's counts, times against bounds and the closed form."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import epsim
from epsim.errors import InputError
from epsim.model.loads import rank_loads
from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.schedule.hybrid import count_hybrid, hybrid_combine, hybrid_dispatch
from epsim.sim.clock import StuckError
from epsim.sim.transfers import run_transfers
from reference.config import EPConfig
from reference.memory.sizes import ascend_combine_record_bytes, ascend_dispatch_record_bytes
from reference.plan import count_rows
from reference.routing.generate import generate_topk
from tests.epsim.transfer_checks import busiest_link_ps, cut_off
from topology.clos import clos

RANKS, POD, TOKENS = 16, 4, 1024
CONFIG = EPConfig(ep_size=RANKS, num_experts=64, num_topk=6, hidden=7168, num_max_tokens_per_rank=TOKENS)
ROW = ascend_dispatch_record_bytes(7168, 6, "fp8")
BACK = ascend_combine_record_bytes(7168, 6)


@lru_cache
def topk(routing="uniform"):
    return generate_topk(CONFIG, routing, tokens_per_rank=TOKENS, seed=4)


@lru_cache
def two_tiers():
    """Four supernodes of four cards."""
    return make_machine(make_platform(clos(RANKS, supernode_size=POD)), RANKS, "none")


def rows(chunks=4, routing="uniform", pod=POD):
    return count_hybrid(CONFIG, topk(routing), pod, chunks)


def by_tier(transfers):
    """Return [R] bytes sent inside the pod and [R] bytes sent to other pods."""
    matrix, pods = transfers.bytes_matrix(), np.arange(RANKS) // POD
    inside = pods[:, None] == pods[None, :]
    return (matrix * inside).sum(axis=1), (matrix * ~inside).sum(axis=1)


@pytest.mark.parametrize("pod", [4, 5, 16])
@pytest.mark.parametrize("chunks", [1, 3, 2000])
def test_chunks_add_up_to_the_counted_rows(chunks, pod):
    counts, found = count_rows(CONFIG, topk(), pod_size=pod), rows(chunks, pod=pod)
    assert np.array_equal(found.to_rank.sum(axis=1), counts.rows)
    assert np.array_equal(found.to_pod.sum(axis=1), counts.pod_rows)
    several = counts.rows - counts.single_rows
    assert np.array_equal(found.sum_rows.sum(axis=1), several + counts.entries - counts.single_rows)


@pytest.mark.parametrize("routing", ["uniform", "zipf:1.0"])
def test_bytes_of_both_tiers_are_the_closed_forms(routing):
    loads = rank_loads(count_rows(CONFIG, topk(routing), pod_size=POD))
    inside, outside = by_tier(hybrid_dispatch(rows(3, routing), ROW))
    assert np.array_equal(inside, loads.scaleup_sent * ROW)
    assert np.array_equal(outside, loads.scaleout_sent * ROW)
    back = hybrid_combine(rows(3, routing), BACK, 14_336)
    there = hybrid_dispatch(rows(3, routing), BACK)
    assert np.array_equal(back.bytes_matrix(), there.bytes_matrix().T)


def test_planted_a_flat_dispatch_has_more_scaleout_bytes():
    """Once per rank instead of once per supernode: the check above would see it."""
    loads = rank_loads(count_rows(CONFIG, topk(), pod_size=POD), pod_dedup=False)
    _, outside = by_tier(hybrid_dispatch(rows(), ROW))
    assert (loads.scaleout_sent * ROW > outside).all()


@pytest.mark.parametrize("routing", ["uniform", "zipf:1.0"])
def test_nothing_is_faster_than_the_busiest_port(routing):
    """The run's own bound and the one from routes and rates agree."""
    transfers = hybrid_dispatch(rows(4, routing), ROW)
    run = run_transfers(two_tiers(), transfers)
    assert run.busiest_port_ps == pytest.approx(busiest_link_ps(two_tiers(), transfers))
    assert run.time_ps >= run.busiest_port_ps


def test_chunks_let_both_tiers_work_at_once():
    times = [run_transfers(two_tiers(), hybrid_dispatch(rows(n), ROW)).time_ps for n in (1, 2, 8)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_the_simulation_meets_the_prediction(operation):
    """Between the busiest port and the prediction without fixed costs plus one chunk's fill and drain.

    The closed form adds source reads to the slower tier; here they run beside the scale-out port. It leaves
    out that the first chunk has to come and the last one to go on: a chunk's way over the scale-up tier, read
    at the source and at the forwarder, once at each end.
    """
    system = clos(RANKS, supernode_size=POD)
    (said,) = epsim.predict(
        system, ep=RANKS, num_experts=64, num_topk=6, hidden=7168, routing=topk(), operations=[operation]
    )
    terms, chunks = said.terms_us, 8
    if operation == "dispatch":
        transfers = hybrid_dispatch(rows(chunks), ROW)
    else:
        transfers = hybrid_combine(rows(chunks), BACK, 14_336)
    time_us = run_transfers(two_tiers(), transfers).time_ps / 1e6
    least = busiest_link_ps(two_tiers(), transfers) / 1e6
    reads = terms["fetch"] + terms["reduction"]
    numbers = f"| {operation} | {least:.1f} | {time_us:.1f} | {said.time_us - terms['fixed']:.1f} |"
    assert numbers in (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
    assert least <= time_us <= said.time_us - terms["fixed"] + 2 * (terms["wire"] + 2 * reads) / chunks


def test_slots_hold_a_sender_back():
    """One slot: a chunk crosses when the forwarder has spread the last one; enough slots: no difference."""
    free = run_transfers(two_tiers(), hybrid_dispatch(rows(), ROW)).time_ps
    one = run_transfers(two_tiers(), hybrid_dispatch(rows(), ROW, num_slots=1)).time_ps
    assert one > free
    words = hybrid_dispatch(rows(), ROW, num_slots=4)
    assert words.size_bytes.min() == 8
    assert all(not words.waits_of(n) for n in range(words.num_transfers) if "to pod" in words.describe(n))


def test_a_dead_forwarder_stops_its_senders_only():
    """A slot that is never freed blocks one sender's later chunks to one pod, and the error says which."""
    transfers = hybrid_dispatch(rows(), ROW, num_slots=2)
    names = [transfers.describe(n) for n in range(transfers.num_transfers)]
    dead = names.index("slot of chunk 0 is free from rank 4 to rank 0")
    with pytest.raises(StuckError) as caught:
        run_transfers(two_tiers(), cut_off(transfers, dead))
    blocked = caught.value.blocked
    assert blocked[0] == f"{names[dead]} waits for what never comes"
    assert all("rank 0" in line or "pod 1" in line for line in blocked)
    assert f"chunk 2 to pod 1 from rank 0 to rank 4 waits for {names[dead]}" in blocked


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="chunks"):
        rows(0)
    with pytest.raises(InputError, match="slots"):
        hybrid_dispatch(rows(), ROW, num_slots=-1)
