"""Fixed times of the kernels' steps, each with its source. What the profile knows is read from there."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import log2
from types import MappingProxyType
from typing import Final

from epsim.platform.profile import Software
from topology.source import Source

US: Final = 1_000_000
"""Picoseconds of a microsecond."""

_KERNEL = "timing remarks in the DeepEP-Ascend dispatch kernel, read in a public fork"
SOURCES: Final[Mapping[str, Source]] = MappingProxyType({
    "clean_ps": Source("secondary", f"cleaning of counters takes less than 1 us: {_KERNEL}"),
    "routing_ps": Source("secondary", f"routing about 6 us at 4 K tokens, a wave per AIV: {_KERNEL}"),
    "routing_wave_ps": Source(
        "assumed",
        "each later wave of 64 tokens; 6 us for each would put the published EP8 dispatch 1 % too slow",
    ),
    "slots_ps": Source("secondary", f"slot assignment about 1 us: {_KERNEL}"),
    "rebuild_ps": Source("assumed", "cached calls rebuild slots and maps: taken as slot assignment"),
    "ubmem_one_way_ps": Source("secondary", "half of a remote read, 662.657 ns: catccos A5 model"),
    "ubmem_issue_ps": Source("secondary", "between remote requests of 512 B: catccos A5 model"),
    "doorbell_ps": Source("assumed", "two bypassing stores and a barrier; nothing published shows it"),
    "ack_ps": Source("derived", "a completion comes one way after delivery: 2 cables, 1 switch"),
    "epilogue_launch_ps": Source("secondary", f"launch and SoC state 1.9 us: {_KERNEL}"),
})  # fmt: skip
"""Where each time came from, by name."""

TOKENS_PER_WAVE: Final = 64
"""Tokens that 512 threads route at once at top-5 to top-8 (deepep-ascend.md section 4.2)."""
TASK_TOKENS: Final = 8
"""Tokens of a task of combine (deepep-ascend.md section 4.5)."""
TASKS_PER_DOORBELL: Final = 8
"""Remote tasks between two doorbells of combine (deepep-ascend.md section 4.5)."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Times of single steps, picoseconds; `SOURCES` says where each came from.

    Args:
      clean_ps: clearing counters on the chip.
      routing_ps: routing of the first wave of an AIV.
      routing_wave_ps: of each later wave.
      slots_ps: prefix over AIVs and slot assignment.
      rebuild_ps: what a cached call does instead of routing and slots.
      ubmem_one_way_ps: a store or atomic to another card becomes visible there.
      ubmem_issue_ps: between two remote requests of one AIV.
      doorbell_ps: making posted descriptors visible to the engine.
      ack_ps: from delivery to the sender's completion.
      epilogue_launch_ps: start of the kernel that follows.
    """

    clean_ps: int = 1 * US
    routing_ps: int = 6 * US
    routing_wave_ps: int = 1 * US
    slots_ps: int = 1 * US
    rebuild_ps: int = 1 * US
    ubmem_one_way_ps: int = 331_000
    ubmem_issue_ps: int = 13_685
    doorbell_ps: int = 100_000
    ack_ps: int = 300_000
    epilogue_launch_ps: int = 1_900_000

    def routing(self, num_tokens: int) -> int:
        """Return the routing time of an AIV with so many tokens."""
        waves = -(-num_tokens // TOKENS_PER_WAVE)
        return 0 if waves == 0 else self.routing_ps + (waves - 1) * self.routing_wave_ps


assert set(SOURCES) == {spec.name for spec in fields(StepCosts)}


def barrier_ps(software: Software, num_ranks: int) -> int:
    """Return what a barrier takes after its last rank has come; nothing for a rank alone."""
    if num_ranks == 1:
        return 0
    seconds = software.barrier_time.value + software.barrier_time_per_doubling.value * log2(num_ranks / 8)
    return max(0, round(seconds * 1e12))
