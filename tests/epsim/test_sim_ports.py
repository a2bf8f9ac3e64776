"""A port is busy for as long as its bytes need, and waits for nobody's tail."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.schedule.workloads import make_workload
from epsim.sim.clock import Clock
from epsim.sim.fabric import Fabric, Piece, Port
from epsim.sim.transfers import TransferOptions, run_transfers
from tests.epsim.transfer_checks import machine
from topology.clos import clos

HYBRID = {"pod_size": 4, "tokens": 64, "experts": 16, "hidden": 7168}
CASES = {"clos": (16, clos(16, supernode_size=4, scaleout_radix=16)), "ubl128": (16, "ubl128:16")}
RATE, LATENCY_PS = 1e9, 500


@lru_cache
def ran(case):
    ranks, system = CASES[case]
    transfers = make_workload("hybrid-dispatch", ranks, HYBRID)
    return run_transfers(machine(ranks, system), transfers, TransferOptions(with_trace=True))


def check_busy(run):
    """Half a picosecond of rounding per piece; each that leaves a port is an event at its far end."""
    needed_ps = run.port_bytes * 1e12 / run.port_bytes_per_s
    assert np.abs(run.port_busy_ps - needed_ps).max() <= run.num_events / 2
    assert (run.port_busy_ps <= run.time_ps).all()


@pytest.mark.parametrize("case", CASES)
def test_busy_is_the_bytes_at_the_ports_rate(case):
    check_busy(ran(case))


@pytest.mark.parametrize("case", CASES)
def test_planted_a_wait_counted_as_busy_is_seen(case):
    run = ran(case)
    with pytest.raises(AssertionError):
        check_busy(replace(run, port_busy_ps=run.port_busy_ps + run.num_events))


@pytest.mark.parametrize("case", CASES)
def test_the_heat_map_has_every_byte_and_no_bin_beyond_its_port(case):
    """Parts of bytes are sums and differences of floats: an ulp of the whole per piece."""
    run = ran(case)
    links = run.trace.links
    room = np.diff(links.edges_ps)[None, :] * links.capacity_bytes_per_s[:, None] / 1e12
    # A piece of the port may have been rounded half a picosecond short.
    spare = run.num_events * (links.capacity_bytes_per_s / 2e12)[:, None]
    assert (links.carried_bytes <= room + spare).all()
    carried = run.port_bytes[run.port_bytes > 0]
    assert links.carried_bytes.sum(axis=1) == pytest.approx(carried, rel=run.num_events * 2.0**-52)


def meet(sizes, num_links):
    """Send pieces at once, each over a link of its own, into one bundle; return it and the ends by piece."""
    clock, ends = Clock(), {}
    fabric = Fabric(clock, lambda piece: ends.update({piece.chunk: clock.now_ps}))
    bundle = fabric.add(Port("bundle", num_links * RATE, LATENCY_PS, None))
    for number, size in enumerate(sizes):
        fabric.enter(Piece(number, (fabric.add(Port("link", RATE, LATENCY_PS, None)), bundle), size))
    clock.env.run()
    return bundle, [ends[number] for number in range(len(sizes))]


@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=20), more=st.integers(0, 20))
def test_a_bundle_as_wide_as_its_links_delays_nobody(sizes, more):
    """As many parallel links as come in: each piece ends as if alone, within the service of those before."""
    bundle, ends = meet(sizes, len(sizes) + more)
    services = [bundle.service_ps(size) for size in sizes]
    assert bundle.busy_ps == sum(services)
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        alone = LATENCY_PS + int(size * 1e12 / RATE + 0.5) + LATENCY_PS
        assert alone <= end <= max(alone, sum(services[: number + 1]) + 2 * LATENCY_PS)


def test_equal_pieces_leave_a_bundle_together():
    """Held for the first one's tail, the bundle would let the last go nearly twice as late."""
    bundle, ends = meet([10**6] * 128, 128)
    alone = 10**6 * 1000 + 2 * LATENCY_PS
    assert ends == [alone] * 127 + [max(alone, 128 * bundle.service_ps(10**6) + 2 * LATENCY_PS)]
