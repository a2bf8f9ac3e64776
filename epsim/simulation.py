"""What a simulated operation says: times, bandwidths, the busiest ports, and how it was computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.model.closedform import Operation
from epsim.trace.trace import Trace

Level = Literal["flow", "events"]
LEVELS: tuple[Level, ...] = ("flow", "events")


def check_level(level: Level, grain: str, mode: str) -> None:
    """Refuse a grain or mode that the other level would ignore; "chunk" and "auto" are said by nobody.

    Raises:
      InputError: names it.
    """
    if level == "flow" and grain != "chunk":
        raise InputError("grain", grain, "belongs to --level events")
    if level == "events" and mode != "auto":
        raise InputError("mode", mode, "belongs to --level flow")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTimes:
    """Per rank, [R] each.

    Args:
      first_byte_us: when the rank may send; at flow level that is after all sums of a combine, which events
        overlap with sending.
      finish_us: when everything it sends and receives is done.
      received_rows: rows, own ones included: the numerator of the metric.
      held_us: how long its engine had work and no room for it behind the ports; 0 at flow level.
    """

    first_byte_us: npt.NDArray[np.float64]
    finish_us: npt.NDArray[np.float64]
    received_rows: npt.NDArray[np.int64]
    held_us: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PortUse:
    """One port, bundle of links or card limit.

    Args:
      name: for people.
      busy: share of the time between the first byte and the last that it was in use, 0..1.
      gbytes: what it carried, all links of a bundle together and every byte once, decimal gigabytes.
    """

    name: str
    busy: float
    gbytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """One operation of one group, simulated.

    Bandwidths are as in `Prediction`: logical bytes, own rank included, over the time from launch to the
    end of the exit barrier.

    Args:
      level: "flow" or "events".
      system: network or preset.
      hardware: profile name.
      software: profile name.
      operation: which one.
      dtype: of the payload.
      ep_size: ranks.
      tokens_per_rank: largest number of tokens of a rank.
      hidden: elements of a token.
      num_experts: physical experts.
      num_topk: choices of a token.
      routing: text of the routing.
      fingerprint: of the workload.
      policy: path choice.
      method: mode or grain, and what it means for the error.
      faults: what is wrong on purpose; empty = healthy.
      time_us: launch to the end of the exit barrier, or to the last doorbell if the epilogue has the barrier.
      bound_us: what the busiest link needs for its bytes alone; never above a time with its barrier.
      predicted_us: what the closed form says to the same rows on the healthy system.
      kernel_us: launch to the last doorbell; events only.
      epilogue_us: after the exit barrier; not part of the metric.
      gb_per_s_min: of the rank with the fewest received bytes.
      gb_per_s_mean: mean over ranks.
      gb_per_s_max: of the rank with the most.
      wire_gb_per_s: what an average card sends over its ports.
      ranks: per rank.
      ports: the busiest ones first.
      binding: what held the last byte up.
      assumptions: what the figure rests on.
      num_events: of the event level; number of fair-share solutions of the flow level.
      num_descriptors_per_chunk: at most; events only.
      trace: the timeline, if asked for.
    """

    level: Level
    system: str
    hardware: str
    software: str
    operation: Operation
    dtype: str
    ep_size: int
    tokens_per_rank: int
    hidden: int
    num_experts: int
    num_topk: int
    routing: str
    fingerprint: str
    policy: str
    method: str
    faults: tuple[str, ...]
    time_us: float
    bound_us: float
    predicted_us: float
    kernel_us: float | None
    epilogue_us: float
    gb_per_s_min: float
    gb_per_s_mean: float
    gb_per_s_max: float
    wire_gb_per_s: float
    ranks: RankTimes
    ports: tuple[PortUse, ...]
    binding: str
    assumptions: tuple[str, ...]
    num_events: int
    num_descriptors_per_chunk: int | None = None
    trace: Trace | None = None

    @property
    def ratio_to_bound(self) -> float:
        """Time over the busiest link's; 1.0 when nothing crosses a link."""
        return self.time_us / self.bound_us if self.bound_us else 1.0

    def to_dict(self) -> Mapping[str, Any]:
        """Return everything but the trace as plain values, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("ranks", "ports", "trace")}
        plain["ratio_to_bound"] = self.ratio_to_bound
        plain["ports"] = [vars(port) for port in self.ports]
        plain["ranks"] = {name: np.round(value, 6).tolist() for name, value in vars(self.ranks).items()}
        return plain

    def __str__(self) -> str:
        """Return the table that the command prints."""
        from epsim.report.simulation import simulations_text

        return simulations_text([self])
