"""`epsim.simulate`: one operation on the real links, as fluid or as discrete events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.faults.applied import faulty_events, faulty_machine, faulty_platform
from epsim.faults.kinds import Fault, parse_faults
from epsim.inputs.counting import Counted
from epsim.inputs.groups import (
    Group,
    Routed,
    check_operations,
    check_token_counts,
    group_sizes,
    place,
    pod_size_of,
    route,
)
from epsim.model.answer import Case, epilogue_bytes
from epsim.model.closedform import Operation
from epsim.model.loads import RankLoads, rank_loads
from epsim.model.options import TokenCounts
from epsim.platform.machine import Machine, make_machine, slope_of
from epsim.platform.platform import Platform, make_platform
from epsim.platform.presets import model_shape
from epsim.platform.profile import Hardware, Software
from epsim.prediction import Prediction
from epsim.schedule.costs import StepCosts, barrier_ps
from epsim.simulation import LEVELS, Level, PortUse, RankTimes, Simulation
from reference.counts import RowCounts
from reference.memory.sizes import Dtype
from reference.plan import count_rows
from reference.routing.manifest import Workload
from reference.topk import TopK
from topology import POLICIES, Policy, Topology

if TYPE_CHECKING:
    from epsim.flow.fluid import Engine, Mode
    from epsim.sim.run import EventOptions
    from epsim.trace.trace import Trace

Progress = Callable[[int, int], Any]
"""Called with (bytes delivered, all bytes); at flow level with (flows that have ended, all flows)."""
NO_SLOPE: Mapping[str, float] = {"fanout_slope_dispatch": 0.0, "fanout_slope_combine": 0.0}
"""Settings of a software without fan-out loss."""
NUM_PORTS = 12
"""Ports that a result names."""
MAX_SECONDS = 1e6
"""Longest operation: 64-bit picoseconds end at nine times as much."""


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """How the flow level runs; see `epsim.flow.operation.run_flows`."""

    mode: 'Mode | Literal["auto"]' = "auto"
    epsilon: float = 0.01
    engine: "Engine" = "auto"


def simulate(
    system: str | Topology = "ubl128",
    *,
    level: Level = "events",
    model: str = "benchmark",
    ep: int | Sequence[int] = 8,
    tokens: int | Sequence[int] | None = None,
    token_counts: TokenCounts = "equal",
    operations: Sequence[Operation] = ("dispatch", "combine"),
    dtype: Dtype = "fp8",
    hidden: int | None = None,
    num_experts: int | None = None,
    num_topk: int | None = None,
    routing: str | Path | TopK = "uniform",
    seed: int = 0,
    masked_ratio: float = 0.0,
    policy: Policy = "spray",
    with_slope: bool = True,
    hardware: str | Hardware | None = None,
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
    workload: Workload | None = None,
    port_rate: str | None = None,
    flow: FlowOptions | None = None,
    events: "EventOptions | None" = None,
    faults: "Sequence[str | Fault]" = (),
    npus: Sequence[int] | None = None,
    on_progress: Progress | None = None,
) -> list[Simulation]:
    """Simulate dispatch and combine.

    Args:
      system: preset, cluster file, HCCL file or Topology; it must have a graph.
      level: "flow" shares links max-min fairly; "events" plays the kernels' steps.
      model: shape of the layer; `hidden`, `num_experts` and `num_topk` replace single numbers.
      ep: group sizes.
      tokens: tokens per rank, one for all or one per rank; None = 16,384, or as many as a file has.
      token_counts: "equal" or "stepped".
      operations: of "dispatch", "cached-dispatch", "combine".
      dtype: of dispatch; combine is always bf16.
      hidden: elements of a token.
      num_experts: physical experts of the whole group.
      num_topk: experts that a token chooses.
      routing: a law, a file or a TopK; a law is sampled once.
      seed: of the sample, and of the flow hash.
      masked_ratio: chance that a choice is masked.
      policy: "spray" (per packet), "flow-hash" or "pinned".
      with_slope: count the software's fitted fan-out loss, in the closed form as well; False = only what
        the mechanism gives.
      hardware: profile name, file or object; None = the system's.
      software: profile name, file or object; None = the system's.
      settings: single parameters that replace the profiles'.
      workload: group, tokens, routing, seed and dtype together.
      port_rate: rate of one port, for HCCL files.
      flow: options of the flow level.
      events: options of the event level; its policy and seed are taken from here.
      faults: what is wrong on purpose, as "link-down:npu3/plane2"; see `epsim.faults.kinds`.
      npus: the card of each rank of the only group; None = rank r sits on card r.
      on_progress: called now and then; see `Progress`.

    Returns:
      One Simulation per group size and operation.

    Raises:
      InputError: an argument breaks a rule (field, value, rule).
      ConfigError: group or routing breaks a rule.
      TopologyError: a topology breaks a rule, or two ranks are not joined.
      StuckError: an event run cannot end.
    """
    if level not in LEVELS:
        raise InputError("level", level, f"must be one of {', '.join(LEVELS)}")
    if policy not in POLICIES:
        raise InputError("policy", policy, f"must be one of {', '.join(POLICIES)}")
    check_token_counts(token_counts)
    check_operations(operations)
    wrong = parse_faults(faults, level)
    platform = make_platform(
        system, hardware=hardware, software=software, settings=_numbers(settings, with_slope),
        port_rate=port_rate,
    )  # fmt: skip
    shape = model_shape(model)
    group = Group(
        num_experts=shape.num_experts if num_experts is None else num_experts,
        num_topk=shape.num_topk if num_topk is None else num_topk,
        hidden=shape.hidden if hidden is None else hidden,
        expert_alignment=128, expert_map=None, tokens=tokens, token_counts=token_counts, routing=routing,
        seed=seed, masked_ratio=masked_ratio, draws=None, dtype=dtype,
    )  # fmt: skip
    sizes = group_sizes(ep) if workload is None else (workload.config.ep_size,)
    for size in sizes:
        pod_size_of(platform.network, size, None)
    cards, _ = place(platform.network, sizes, npus)
    damaged = faulty_platform(platform, wrong)
    sources = [group.source(size) for size in sizes] if workload is None else [workload]

    def settings_of() -> Iterator[Setting]:
        for source in sources:
            routed = route(source)
            for operation in operations:
                machine = make_machine(damaged, routed.config.ep_size, slope_of(operation), cards)
                yield Setting(
                    platform=platform, machine=faulty_machine(machine, wrong, platform.hardware),
                    routed=routed, operation=operation, policy=policy, seed=seed, flow=flow or FlowOptions(),
                    events=faulty_events(events, wrong, routed.config.ep_size),
                    faults=wrong, on_progress=on_progress,
                )  # fmt: skip

    if level == "flow":
        return [setting.run(level) for setting in settings_of()]
    ready = list(settings_of())
    for setting in ready:
        setting.check_grain()
    return [setting.run(level) for setting in ready]


def _numbers(settings: Mapping[str, str | float] | None, with_slope: bool) -> Mapping[str, str | float]:
    """Return the settings, without the software's fan-out loss if that is not to count."""
    given = settings or {}
    for name in given if not with_slope else ():
        if name in NO_SLOPE:
            raise InputError(name, given[name], "goes with the fan-out loss, which is switched off")
    return given if with_slope else {**given, **NO_SLOPE}


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """One operation on one machine, ready to be simulated at either level.

    Args:
      platform: profiles.
      machine: rates, faults included.
      routed: the routing.
      operation: which one.
      policy: path choice.
      seed: of the flow hash.
      flow: options of the flow level.
      events: options of the event level; None = `EventOptions()`.
      costs: times of steps.
      faults: what is wrong on purpose.
      on_progress: see `simulate`.
    """

    platform: Platform
    machine: Machine
    routed: Routed
    operation: Operation
    policy: Policy
    seed: int
    flow: FlowOptions
    events: "EventOptions | None" = None
    costs: StepCosts = field(default_factory=StepCosts)
    faults: tuple[Fault, ...] = ()
    on_progress: Progress | None = None

    @property
    def case(self) -> Case:
        """The same for the closed form."""
        size, network = self.routed.config.ep_size, self.platform.network
        is_usual = np.array_equal(self.machine.npus, np.arange(size))
        npus, pod_size = place(network, (size,), None if is_usual else self.machine.npus)
        return Case(
            platform=self.platform, config=self.routed.config, operation=self.operation,
            dtype=self.routed.workload.dispatch_dtype, two_layer="flat", npus=npus,
            pod_size=pod_size_of(network, size, None) if is_usual else pod_size,
        )  # fmt: skip

    @cached_property
    def counts(self) -> RowCounts:
        """Rows of the routing, counted once."""
        return count_rows(self.routed.config, self.routed.topk, pod_size=self.case.pod_size)

    @property
    def num_aivs(self) -> int:
        """Vector cores that the kernels use."""
        return int(min(self.platform.hardware.num_aivs.value, self.platform.software.used_aivs.value))

    def run(self, level: Level) -> Simulation:
        """Simulate at one level."""
        counts = self.counts
        loads = rank_loads(counts, per_expert=False, pod_dedup=False)
        closed = self.case.predict(
            Counted(draws=(counts,), text=self.routed.text, is_uniform=False, workload=self.routed.workload)
        )
        self._check_time(closed.time_us / 1e6)
        if level == "flow":
            return self._flow(counts, loads, closed)
        return self._events(counts, loads, closed)

    def check_grain(self) -> None:
        """Refuse an event run of too many pieces; see `epsim.schedule.grain.check_pieces`."""
        from epsim.schedule.grain import Grain, check_pieces

        per_descriptor = self.platform.software.rows_per_descriptor_dispatch.value
        check_pieces(
            Grain() if self.events is None else self.events.grain, np.asarray(self.counts.rows, np.int64),
            1 if self.operation == "combine" else int(per_descriptor),
            self.case.row.wire / self.platform.hardware.packet_payload.value,
        )  # fmt: skip

    def _check_time(self, seconds: float) -> None:
        """Refuse times that 64 bits may not hold, from the closed form and the slowest card or link."""
        rates, speeds = self.machine.link_bytes_per_s, self.machine.card_speed
        slowdown = max(1 / float(speeds.min()), float(rates.max(initial=1.0) / rates.min(initial=np.inf)))
        most = seconds * slowdown + self.machine.entry_ps * 1e-12
        if most <= MAX_SECONDS:
            return
        rule = f"must be at most {MAX_SECONDS:,.0f} s, as picoseconds are counted in 64 bits"
        if self.faults:
            said = ", ".join(map(str, self.faults))
            raise InputError("fault", said, f"makes this last up to {most:.3g} s, which {rule}")
        raise InputError("longest time", f"{most:.3g} s", f"{rule}; use fewer tokens or faster rates")

    def bytes_matrix(self, counts: RowCounts) -> npt.NDArray[np.int64]:
        """Return [R, R] int64 bytes on the wire, [src rank, dst rank]; combine sends the rows back."""
        rows = np.asarray(counts.rows, np.int64)
        return (rows.T if self.operation == "combine" else rows) * self.case.row.wire

    def _before_ps(self, counts: RowCounts, loads: RankLoads) -> npt.NDArray[np.int64]:
        from epsim.schedule.before import before_ps

        memory = self.machine.memory_bytes_per_s * self.machine.card_speed
        return before_ps(
            self.operation, counts, loads, self.case.row, self.platform.software, memory,
            self.num_aivs, self.costs,
        )  # fmt: skip

    def _flow(self, counts: RowCounts, loads: RankLoads, closed: Prediction) -> Simulation:
        from epsim.flow.operation import run_flows

        options = self.flow
        before = self._before_ps(counts, loads)
        after = self.costs.ack_ps + barrier_ps(self.platform.software, counts.ep_size)
        run = run_flows(
            self.machine, self.bytes_matrix(counts), before, after, policy=self.policy, seed=self.seed,
            mode=options.mode, epsilon=options.epsilon, engine=options.engine, on_progress=self.on_progress,
        )  # fmt: skip
        result, topology = run.result, self.machine.topology
        busy = result.resource_busy()
        ports = tuple(
            PortUse(
                name=result.problem.describe(int(i), topology),
                busy=float(busy[i]),
                gbytes=result.problem.bundle_bytes(int(i), topology) / 1e9,
            )
            for i in np.argsort(-busy, kind="stable")[:NUM_PORTS]
        )
        binding = ", ".join(
            f"{result.problem.describe(i, topology)} ({part:.0%})" for i, part in result.binding()[:2]
        )
        method = f"{run.mode}, {result.engine}"
        if run.mode == "bounded":
            method += f", at most {result.error_bound_ps / 1e6:.3g} us off"
            if options.mode == "auto":
                method += f" (chosen for {result.problem.num_flows:,} flows; exact takes far longer)"
        return self._simulation(
            counts, loads, closed, level="flow", time_ps=run.time_ps, bound_ps=run.bound_ps,
            first_ps=self.machine.entry_ps + run.before_ps, finish_ps=run.finish_ps, ports=ports,
            binding=binding or "nothing crosses a link", method=method,
            num_events=result.num_solves,
        )  # fmt: skip

    def _events(self, counts: RowCounts, loads: RankLoads, closed: Prediction) -> Simulation:
        from dataclasses import replace

        from epsim.flow.operation import link_bound_ps, machine_problem
        from epsim.schedule.work import count_work
        from epsim.sim.run import EventOptions, run_operation

        options = replace(self.events or EventOptions(), policy=self.policy, seed=self.seed, costs=self.costs)
        work = count_work(self.routed.config, self.routed.topk, self.num_aivs)
        packet = int(self.platform.hardware.packet_payload.value)
        run = run_operation(
            self.machine, self.platform.software, self.operation, work, self.case.row, packet, options,
            self.on_progress,
        )  # fmt: skip
        zeros = np.zeros(counts.ep_size, np.int64)
        problem, _ = machine_problem(self.machine, self.bytes_matrix(counts), zeros, self.policy, self.seed)
        names = [*run.port_names, *(f"engine of rank {rank}" for rank in range(counts.ep_size))]
        span = max(1, run.time_ps)
        busy = np.concatenate([run.port_busy_ps, run.engine_busy_ps]) / span
        sent = self.bytes_matrix(counts)
        carried = np.concatenate([run.port_bytes, sent.sum(axis=1) - sent.diagonal()])
        order = np.argsort(-busy, kind="stable")
        ports = tuple(
            PortUse(name=names[i], busy=float(busy[i]), gbytes=float(carried[i]) / 1e9)
            for i in order[:NUM_PORTS].tolist()
        )
        method = f"{options.grain.text}, {_cut_text(run.cut.num_sqes, run.cut.aivs_per_worker)}"
        if options.exit_barrier == "epilogue":
            method += ", timed to the last doorbell, when bytes still move"
        return self._simulation(
            counts, loads, closed, level="events", time_ps=run.time_ps,
            bound_ps=link_bound_ps(problem, self.machine),
            first_ps=run.first_ring_ps, finish_ps=np.maximum(run.arrival_ps, run.drained_ps), ports=ports,
            binding=f"{ports[0].name} ({ports[0].busy:.0%})" if ports[0].busy else "nothing crosses a link",
            method=method,
            num_events=run.num_events, kernel_ps=int(run.last_ring_ps.max()),
            num_descriptors_per_chunk=run.cut.num_sqes, held_ps=run.held_ps, trace=run.trace,
        )  # fmt: skip

    def _simulation(
        self,
        counts: RowCounts,
        loads: RankLoads,
        closed: Prediction,
        *,
        level: Level,
        time_ps: int,
        bound_ps: int,
        first_ps: npt.NDArray[np.int64],
        finish_ps: npt.NDArray[np.int64],
        ports: tuple[PortUse, ...],
        binding: str,
        method: str,
        num_events: int,
        kernel_ps: int | None = None,
        num_descriptors_per_chunk: int | None = None,
        held_ps: npt.NDArray[np.int64] | None = None,
        trace: "Trace | None" = None,
    ) -> Simulation:
        case, config, platform = self.case, self.routed.config, self.platform
        row = case.row
        received = loads.received * row.logical / (time_ps / 1e12) / 1e9
        sent = loads.remote_received if self.operation == "combine" else loads.remote_sent
        return Simulation(
            level=level, system=platform.name, hardware=platform.hardware.name,
            software=platform.software.name, operation=self.operation,
            dtype="bf16" if self.operation == "combine" else case.dtype, ep_size=config.ep_size,
            tokens_per_rank=int(counts.num_tokens.max()), hidden=config.hidden,
            num_experts=config.num_experts, num_topk=config.num_topk, routing=self.routed.text,
            fingerprint=self.routed.workload.fingerprint, policy=self.policy, method=method,
            faults=tuple(fault.meaning for fault in self.faults), time_us=time_ps / 1e6,
            bound_us=bound_ps / 1e6, predicted_us=closed.time_us,
            kernel_us=None if kernel_ps is None else kernel_ps / 1e6,
            epilogue_us=1e6 * epilogue_bytes(self.operation, loads, row) / platform.hardware.hbm_rate.value,
            gb_per_s_min=float(received.min()), gb_per_s_mean=float(received.mean()),
            gb_per_s_max=float(received.max()),
            wire_gb_per_s=float(sent.mean()) * row.wire / (time_ps / 1e12) / 1e9,
            ranks=RankTimes(
                first_byte_us=first_ps / 1e6, finish_us=finish_ps / 1e6,
                received_rows=np.asarray(loads.received, np.int64),
                held_us=np.zeros(counts.ep_size) if held_ps is None else held_ps / 1e6,
            ),
            ports=ports, binding=binding, assumptions=closed.assumptions, num_events=num_events,
            num_descriptors_per_chunk=num_descriptors_per_chunk, trace=trace,
        )  # fmt: skip


def _cut_text(num_descriptors: int, aivs: int) -> str:
    """Say what a chunk is."""
    plural = "s" if num_descriptors > 1 else ""
    together = f", {aivs} AIVs act as one" if aivs > 1 else ""
    return f"up to {num_descriptors} descriptor{plural} at once{together}"
