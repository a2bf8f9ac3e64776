"""`epsim.whatif`: the healthy and the faulty system side by side, and which single fault hurts most."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.faults.applied import faulty_topology, places
from epsim.faults.arithmetic import Arithmetic, arithmetic
from epsim.faults.kinds import Fault, parse_family, parse_faults
from epsim.platform.platform import Platform, make_platform
from epsim.simulate import simulate
from epsim.simulation import Level, Simulation
from topology import Topology, TopologyError, check

TERMS = ("waiting for the last rank", "before the first byte", "bytes", "last completion and exit barrier")
"""What the time of an operation is the sum of."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """One operation before and after.

    Args:
      faults: what is wrong.
      before: the healthy system.
      after: the faulty one, same rows, same seed.
      sums: what simple arithmetic says to each fault.
      findings: what `topology.check` finds in the faulty graph and not in the healthy one.
    """

    faults: tuple[Fault, ...]
    before: Simulation
    after: Simulation
    sums: tuple[Arithmetic, ...]
    findings: tuple[str, ...]

    @property
    def time_change(self) -> float:
        """Part by which the time grows; 0.1 = 10 % slower."""
        return self.after.time_us / self.before.time_us - 1

    @property
    def rate_change(self) -> float:
        """Part by which the mean bandwidth grows; negative = less."""
        return self.after.gb_per_s_mean / self.before.gb_per_s_mean - 1

    @property
    def finish_change_us(self) -> npt.NDArray[np.float64]:
        """Return [R] how much later each rank has sent and received everything."""
        return self.after.ranks.finish_us - self.before.ranks.finish_us

    @property
    def by_arithmetic_us(self) -> float | None:
        """The healthy time at the rate that is left, plus delays; None where no simple rule says it."""
        time_us = self.before.time_us
        for item in self.sums:
            if item.rate_left is None:
                return None
            time_us /= item.rate_left
        return time_us + _delay_us(self.faults)

    @property
    def terms(self) -> tuple[tuple[str, float, float], ...]:
        """Parts of both times: (one of `TERMS`, us before, us after); each column sums up to the time."""
        parts = _parts(self.before, 0.0), _parts(self.after, _delay_us(self.faults))
        return tuple(zip(TERMS, *parts, strict=True))

    @property
    def explained_by(self) -> str:
        """The term that changes most; empty when the time does not change."""
        if self.after.time_us == self.before.time_us:
            return ""
        return max(self.terms, key=lambda term: abs(term[2] - term[1]))[0]

    @property
    def held_change_us(self) -> npt.NDArray[np.float64]:
        """Return [R] how much longer each rank's engine had work and no room for it; 0 at flow level."""
        return self.after.ranks.held_us - self.before.ranks.held_us

    def to_dict(self) -> Mapping[str, Any]:
        """Return everything but traces as plain values, for JSON."""
        return {
            "faults": [str(fault) for fault in self.faults],
            "time_change": self.time_change, "rate_change": self.rate_change,
            "by_arithmetic_us": self.by_arithmetic_us, "explained_by": self.explained_by,
            "terms": {name: {"before_us": before, "after_us": after} for name, before, after in self.terms},
            "finish_change_us": np.round(self.finish_change_us, 6).tolist(),
            "held_change_us": np.round(self.held_change_us, 6).tolist(),
            "arithmetic": [item.text for item in self.sums], "findings": list(self.findings),
            "before": dict(self.before.to_dict()), "after": dict(self.after.to_dict()),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Damage:
    """What one fault of a family does.

    Args:
      fault: where.
      changes: one per operation; empty = there is no answer.
      refusal: why there is none.
    """

    fault: Fault
    changes: tuple[Change, ...]
    refusal: str = ""

    @property
    def time_change(self) -> float:
        """Largest growth of a time; inf = the operation cannot end."""
        return max((change.time_change for change in self.changes), default=float("inf"))


def whatif(
    faults: "Sequence[str | Fault]",
    *,
    system: str | Topology = "ubl128",
    level: Level = "events",
    **options: Any,  # noqa: ANN401
) -> list[Change]:
    """Simulate the healthy and the faulty system.

    Args:
      faults: what is wrong, as "link-down:npu3/plane2"; several add up.
      system: as of `epsim.simulate`.
      level: "flow" or "events".
      options: further arguments of `epsim.simulate`; a trace is kept of the faulty run only.

    Returns:
      One Change per group size and operation.

    Raises:
      InputError: a fault has no valid form, or names what the system does not have.
      TopologyError: two ranks are cut off from each other; it names them.
      StuckError: the faulty run cannot end.
    """
    wrong = parse_faults(faults, level)
    if not wrong:
        raise InputError("fault", [], "must be at least one; epsim simulate runs the healthy system")
    # First the faulty one: what it refuses should not cost a healthy run.
    after = simulate(system, level=level, faults=wrong, **options)
    before = simulate(system, level=level, **_without_trace(options))
    return _changes(wrong, before, after, _platform(system, options), options.get("npus"))


def whatif_each(
    family: str,
    *,
    system: str | Topology = "ubl128",
    level: Level = "events",
    on_progress: Callable[[int, int], Any] | None = None,
    **options: Any,  # noqa: ANN401
) -> list[Damage]:
    """Try one kind of fault at every place of the group, and order them by damage.

    Args:
      family: a spec without its place, as "plane-lost" or "rank-slow@0.8".
      system: as of `epsim.simulate`.
      level: "flow" or "events".
      on_progress: called with (done, all).
      options: further arguments of `epsim.simulate`, of one group size.

    Returns:
      Damages, the largest first; equal ones in the order of their places.

    Raises:
      InputError: the kind has no places, the level cannot show it, or there are several group sizes.
    """
    fault = parse_family(family)
    parse_faults([fault], level)
    options = _without_trace(options)
    before = simulate(system, level=level, **options)
    if len({item.ep_size for item in before}) != 1:
        raise InputError("ep", [item.ep_size for item in before], "must be one group size to try every place")
    platform = _platform(system, options)
    candidates = places(fault, _graph(platform), _cards(options.get("npus"), before[0].ep_size))
    found = []
    for number, candidate in enumerate(candidates):
        if on_progress is not None:
            on_progress(number, len(candidates))
        found.append(_damage(candidate, system, level, options, before, platform))
    return sorted(found, key=lambda damage: -damage.time_change)


def _damage(
    fault: Fault, system: str | Topology, level: Level, options: Mapping[str, Any],
    before: list[Simulation], platform: Platform,
) -> Damage:  # fmt: skip
    from epsim.sim.clock import StuckError

    try:
        after = simulate(system, level=level, faults=[fault], **options)
    except (TopologyError, StuckError) as error:
        # The last line of a stuck run is the outermost wait: the barrier, and who is missing.
        refusal = error.blocked[-1] if isinstance(error, StuckError) else str(error)
        return Damage(fault=fault, changes=(), refusal=refusal)
    return Damage(
        fault=fault, changes=tuple(_changes((fault,), before, after, platform, options.get("npus")))
    )


def _changes(
    faults: tuple[Fault, ...],
    before: list[Simulation],
    after: list[Simulation],
    platform: Platform,
    npus: Sequence[int] | None,
) -> list[Change]:
    topology = _graph(platform)
    packet = platform.hardware.packet_payload.value
    damaged = faulty_topology(topology, faults)
    findings: tuple[str, ...] = ()
    if damaged is not topology:
        known = {str(finding) for finding in check(topology, limit=2)}
        findings = tuple(str(finding) for finding in check(damaged, limit=2) if str(finding) not in known)
    return [
        Change(
            faults=faults, before=healthy, after=faulty, findings=findings,
            sums=tuple(
                arithmetic(fault, topology, _cards(npus, healthy.ep_size), healthy.policy, packet)
                for fault in faults
            ),
        )
        for healthy, faulty in zip(before, after, strict=True)
    ]  # fmt: skip


def _platform(system: str | Topology, options: Mapping[str, Any]) -> Platform:
    names = ("hardware", "software", "settings", "port_rate")
    return make_platform(system, **{name: options[name] for name in names if name in options})


def _cards(npus: Sequence[int] | None, num_ranks: int) -> npt.NDArray[np.int64]:
    """Return [R] int64, the card of each rank."""
    return np.arange(num_ranks, dtype=np.int64) if npus is None else np.asarray(npus, np.int64)


def _graph(platform: Platform) -> Topology:
    topology = platform.network.topology
    assert topology is not None, "simulate refuses a system without a graph"
    return topology


def _without_trace(options: Mapping[str, Any]) -> dict[str, Any]:
    events = options.get("events")
    return {**options, "events": None if events is None else replace(events, with_trace=False)}


def _delay_us(faults: Sequence[Fault]) -> float:
    """Return how late the last rank is."""
    late: dict[int, float] = {}
    for fault in faults:
        if fault.kind == "rank-late":
            late[fault.rank] = late.get(fault.rank, 0.0) + fault.amount / 1e6
    return max(late.values(), default=0.0)


def _parts(run: Simulation, delay_us: float) -> tuple[float, float, float, float]:
    first = float(run.ranks.first_byte_us.max())
    last = float(run.ranks.finish_us.max())
    return delay_us, first - delay_us, last - first, run.time_us - last
