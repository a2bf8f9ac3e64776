"""Discrete events: what a run costs, how fine it is, how far the levels are apart, and the published means.

Times are CPU seconds of this process, best of the runs given, counting of the routing included.
"""

import resource
import time

from epsim.calibration.measured import packaged_measurements
from epsim.schedule.grain import Grain
from epsim.sim.run import EventOptions
from epsim.simulate import FlowOptions, simulate

SIZES = (8, 16, 32, 64, 128)


def timed(**arguments):
    """Return CPU seconds and the only result of a simulation."""
    start = time.process_time()
    (item,) = simulate(**arguments)
    return time.process_time() - start, item


def events(grain="chunk", **arguments):
    """Simulate at the event level."""
    return timed(level="events", events=EventOptions(grain=Grain.parse(grain)), **arguments)


def speeds():
    """Yield costs of full-size runs."""
    for ep, grain, target in ((8, "sqe", "<= 15 s"), (8, "chunk", ""), (128, "chunk", "<= 30 s, goal 5 s")):
        for operation in ("dispatch", "combine"):
            seconds, item = events(grain, ep=ep, operations=(operation,))
            yield f"events, EP{ep} {operation} full size, {grain} (s)", seconds, target
            yield f"   events per second, {item.num_events:,} in all", f"{item.num_events / seconds:,.0f}", ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield "   peak memory so far (bytes)", peak, "<= 3 GiB"


def grains():
    """Yield what half the chunk changes, and packets against descriptors."""
    for ep in (8, 32):
        for operation in ("dispatch", "combine"):
            _, coarse = events(ep=ep, operations=(operation,))
            _, fine = events(
                f"chunk:{max(1, coarse.num_descriptors_per_chunk // 2)}", ep=ep, operations=(operation,)
            )
            change = fine.time_us / coarse.time_us - 1
            yield (
                f"half the chunk ({coarse.num_descriptors_per_chunk}), EP{ep} {operation}",
                f"{change:+.2%}",
                "< 1 %",
            )
    for operation in ("dispatch", "combine"):
        _, packet = events("packet", ep=8, tokens=64, operations=(operation,))
        _, sqe = events("sqe", ep=8, tokens=64, operations=(operation,))
        change = f"{packet.time_us:.2f} / {sqe.time_us:.2f} us"
        yield f"packets / descriptors, EP8, 64 tokens, {operation}", change, "(compared)"


def levels():
    """Yield how far events are from flow level, without the software's slope."""
    for routing, target in (
        ("uniform", "within 2 %"),
        ("zipf:1.2", "within 5 %"),
        ("precise:4", "within 5 %"),
    ):
        for ep in SIZES:
            for operation in ("dispatch", "combine"):
                arguments = {"ep": ep, "operations": (operation,), "routing": routing, "with_slope": False}
                flow = FlowOptions(mode="bounded", epsilon=0.002)
                _, fluid = timed(level="flow", flow=flow, **arguments)
                _, item = events(**arguments)
                change = item.time_us / fluid.time_us - 1
                over = item.time_us / item.bound_us
                name = f"events over flow, {routing}, EP{ep} {operation} ({over:.3f} x busiest link)"
                yield name, f"{change:+.2%}", target


def published():
    """Yield simulated means beside the published ranges."""
    rows = {
        (row.op, row.ep_size): row for row in packaged_measurements("published") if row.use == "calibrate"
    }
    for ep in SIZES:
        for operation in ("dispatch", "combine"):
            _, item = events(ep=ep, operations=(operation,), token_counts="stepped")
            row = rows[operation, ep]
            target = f"{row.gb_per_s_min:g}-{row.gb_per_s_max:g}, or within 1 %"
            yield f"published, EP{ep} {operation}, GB/s", f"{item.gb_per_s_mean:.1f}", target


def run():
    """Yield (name, value, target) rows."""
    for part in (speeds, grains, levels, published):
        yield from part()
