"""Which prediction stands beside a measurement: the system that its columns name, and what its GB/s count."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from epsim.calibration.measured import BOTTLENECK, LOGICAL, REMOTE_SLOTS, SLOTS, Measurement
from epsim.errors import InputError
from epsim.model.options import TokenCounts
from epsim.platform.presets import PROFILE_SYSTEMS
from reference.memory.sizes import element_bytes

FP8_BLOCK = 128
"""Elements that share one 4-byte scale in the DeepEP V1 test formulas."""
LOW_LATENCY_HEADER_BYTES = 16
"""What the DeepEP low-latency test adds to a quantised row."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to predict for a measurement.

    Args:
      system: as `epsim.predict.predict` takes it.
      software: profile; None = the system's own.
      token_counts: "stepped" where rank r sends r tokens fewer.
      ranks_per_supernode: ranks of one scale-up domain; None = as many as fit.
      settings: single parameters, as many cores as a run used.
      says: what was chosen here and why, one sentence each.
      derived_from: why a packaged profile is not independent of such rows; empty = it is.
    """

    system: str
    software: str | None = None
    token_counts: TokenCounts = "equal"
    ranks_per_supernode: int | None = None
    settings: Mapping[str, str | float] = field(default_factory=lambda: MappingProxyType({}))
    says: tuple[str, ...] = ()
    derived_from: str = ""


_OFFICIAL = "deepep-ascend-2026-09-poc"
_PORT = "community-port-2026-09"
_ONE_BLOCK = "community-port-2026-08-one-block"
_ONE_BLOCK_SAYS = "copies before posting, at the rate that one block reached on two ranks"
_PORT_SAYS = "the port's post time on the official library's data path"
_SM90_REASON = (
    "not independent: these figures contradict an H800's NVLink, and so the profile's rate was chosen to be "
    "that of the library's own example"
)
TARGETS: Mapping[tuple[str, str, str], Target] = MappingProxyType(
    {
        ("DeepEP-Ascend", "Ascend 950DT", ""): Target(
            system="ubl128", software=_OFFICIAL, token_counts="stepped"
        ),
        ("DeepEP-Ascend port", "Ascend 950DT", "64 AIVs"): Target(
            system="ubl128", software=_PORT, says=(_PORT_SAYS,)
        ),
        ("DeepEP-Ascend port", "Ascend 950DT", "64 AIVs, whole operation"): Target(
            system="ubl128", software=_PORT, says=(_PORT_SAYS,)
        ),
        ("DeepEP-Ascend port", "Ascend 950DT", "transport alone"): Target(
            system="ubl128",
            software=_OFFICIAL,
            says=("the official data path, since the row times transport without preparation",),
        ),
        ("DeepEP-Ascend port", "Ascend 950DT", "one vector block"): Target(
            system="ubl128", software=_ONE_BLOCK, says=(_ONE_BLOCK_SAYS,)
        ),
        ("DeepEP-Ascend port", "Ascend 950DT", "72 vector blocks"): Target(
            system="ubl128",
            software=_ONE_BLOCK,
            settings=MappingProxyType({"used_aivs": 72, "num_aivs": 72}),
            says=(_ONE_BLOCK_SAYS, "72 blocks are taken to copy 72 times as fast as one"),
        ),
        ("asc-comm", "Ascend 950DT", ""): Target(
            system="ubl128", software=_OFFICIAL, says=("the report does not say the library version",)
        ),
        ("CloudMatrix384", "Ascend 910C", ""): Target(
            system="cm384", says=("one row per (token, expert), no server or plane structure",)
        ),
        ("sgl-kernel-npu", "Atlas A3", ""): Target(
            system="a3",
            software="per-expert",
            says=("its test receives one row per (token, expert) and counts those",),
        ),
        ("DeepEP V2", "NVIDIA SM100", ""): Target(system="sm100"),
        ("DeepEP V2", "NVIDIA SM90 + CX7", ""): Target(
            system="sm90", ranks_per_supernode=8, derived_from=_SM90_REASON
        ),
    }
)
"""(system, generation, kernel) -> what to predict; an empty kernel stands for every other one."""


def target_of(row: Measurement) -> Target:
    """Return what to predict for a measurement.

    A file of one's own may also put a system of epsim into the column, as "ubl128" or "lab.toml".

    Raises:
      InputError: nothing is known by that name.
    """
    for kernel in (row.kernel, ""):
        found = TARGETS.get((row.system, row.generation, kernel))
        if found is not None:
            return found
    if _is_system(row.system):
        return Target(system=row.system)
    known = "; ".join(dict.fromkeys(f"{system}, {generation}" for system, generation, _ in TARGETS))
    raise InputError(
        f"{row.where}, system",
        f"{row.system}, {row.generation}",
        f"must be a system of epsim (epsim topo list), a .toml or .json file, or one of: {known}",
    )


def _is_system(name: str) -> bool:
    from epsim.platform.systems import PRESETS

    return name in PROFILE_SYSTEMS or name.partition(":")[0] in PRESETS or name.endswith((".toml", ".json"))


def payload_bytes(row: Measurement) -> tuple[float, str]:
    """Return the bytes per slot that a row's GB/s count, and how they are made.

    A row that says "7.5 KB per token" gets that many binary kilobytes. Else bf16 counts 2 H; one-byte
    rows count the scales as the library's own test does.

    Source: DeepEP V1 tests (2 H (1 + 4/128) / 2 in normal mode, H + 4 H/128 + 16 in low-latency mode),
    which sgl-kernel-npu keeps; arXiv 2506.12708 for 7.5 KB = 7168 values + 512 B.
    """
    stated = re.search(r"(\d+(?:\.\d+)?) KB per token", row.dtype)
    if stated:
        return float(stated[1]) * 1024, f"{stated[1]} KiB per slot, as stated"
    width = element_bytes(row.element_dtype)
    if width == 2 or row.metric == REMOTE_SLOTS:
        return float(width * row.hidden), f"{width} B x hidden per slot"
    scales = 4 * row.hidden / FP8_BLOCK
    if row.metric == BOTTLENECK:
        return row.hidden + scales, "hidden and one fp32 scale per 128 elements, per slot"
    return row.hidden + scales + LOW_LATENCY_HEADER_BYTES, "hidden, scales and 16 B, per slot"


def metric_bytes(row: Measurement, logical_bytes: float) -> tuple[float, str]:
    """Return the numerator of a row's GB/s per rank, and how it is made.

    Args:
      row: one whose numerator is a number of received or sent bytes of a rank; not the scale-out metric.
      logical_bytes: received de-duplicated rows x metric bytes of an average rank.

    Raises:
      InputError: the scale-out metric, which only a prediction over several domains has.
    """
    if row.metric == LOGICAL:
        return logical_bytes, "received rows, own rank included"
    if row.metric not in (SLOTS, BOTTLENECK, REMOTE_SLOTS):
        raise InputError(f"{row.where}, metric", row.metric, "has no numerator in bytes per rank")
    slots = float(row.tokens_per_rank * row.num_topk)
    size, how = payload_bytes(row)
    if row.metric == REMOTE_SLOTS:
        return slots * (row.ep_size - 1) / row.ep_size * size, f"{how}, slots on other ranks"
    return slots * size, how
