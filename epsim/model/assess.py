"""How far a prediction can be trusted, and what it rests on."""

from collections.abc import Iterator
from dataclasses import dataclass

from epsim.inputs.counting import Counted
from epsim.model.closedform import Operation
from epsim.model.options import TwoLayer
from epsim.platform.platform import Platform
from epsim.platform.profile import numbers_digest
from epsim.prediction import Confidence
from reference.config import EPConfig
from reference.memory.limits import Limit

NEAR_FACTOR = 4
"""Just outside the fitted domain expect this many times its error: about 8 % for the 2 % inside.

The fit's authors' caveats say 1-2 % inside EP8-EP128 and 3-8 % just outside (docs/sources.md, network notes).
"""

FIXED_SHARE = 0.05
"""Above this share of launch, barriers and posting a case is not the high-throughput path of the fit."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How far the fit speaks for a case.

    Args:
      confidence: evidence class.
      error_band: expected relative error; None = unknown.
      validity: why, in one sentence.
    """

    confidence: Confidence
    error_band: float | None
    validity: str


def evidence(
    platform: Platform,
    config: EPConfig,
    counted: Counted,
    operation: Operation,
    pod_size: int | None,
    fixed_share: float,
    limits: tuple[Limit, ...],
) -> Evidence:
    """Compare a case with what the profile was fitted on.

    Args:
      platform: network and profiles.
      config: the group.
      counted: routing.
      operation: which one.
      pod_size: ranks of a scale-up domain, None = one holds the group.
      fixed_share: of the time that is neither wire nor memory.
      limits: what the library would refuse.
    """
    soft = platform.software
    least, most = int(soft.calibrated_ranks_least.value), int(soft.calibrated_ranks_most.value)
    if not least:
        return Evidence(
            confidence="not calibrated",
            error_band=None,
            validity=f"profile {soft.name} was fitted on no measurement of this path",
        )
    domain = f"fitted on EP{least}-EP{most}, {soft.calibrated_operations.value}, uniform routing"
    far = next(_outside(platform, config, counted, operation, pod_size, fixed_share, limits), None)
    if far:
        return Evidence(confidence="not calibrated", error_band=None, validity=f"{domain}; {far}")
    band = soft.calibrated_error.value
    near = next(_beside(platform, config, counted), None)
    if near:
        return Evidence(
            confidence="extrapolated", error_band=NEAR_FACTOR * band, validity=f"{domain}; {near}"
        )
    return Evidence(confidence="calibrated", error_band=band, validity=domain)


def _outside(
    platform: Platform,
    config: EPConfig,
    counted: Counted,
    operation: Operation,
    pod_size: int | None,
    fixed_share: float,
    limits: tuple[Limit, ...],
) -> Iterator[str]:
    """Yield what puts a case out of reach of the fit, the weightiest first."""
    soft, hard, network = platform.software, platform.hardware, platform.network
    if any(limit.severity == "error" for limit in limits):
        yield "the library refuses this run"
    if hard.name != soft.calibrated_hardware.value:
        yield f"on {soft.calibrated_hardware.value}, and this is {hard.name}"
    if numbers_digest(hard, soft) != soft.calibrated_digest.value:
        said = ", ".join(platform.settings) or f"a number of {hard.name} or {soft.name}"
        yield f"{said} was changed since"
    if pod_size is not None:
        yield "within one supernode"
    if network.is_mesh:
        yield "on netlayer 1, not on a server mesh"
    if network.scaleup_bytes_per_s != hard.scaleup_rate.value:
        yield f"at {hard.scaleup_rate.text} per card"
    if network.notes:
        yield network.notes[0]
    dtype = "bf16" if operation == "combine" else counted.workload.dispatch_dtype
    if f"{operation} {dtype}" not in soft.calibrated_operations.value.split(", "):
        yield f"{operation} {dtype} was not measured"
    if not counted.is_uniform or counted.workload.masked_ratio:
        yield "skewed or masked routing was not measured"
    if fixed_share > FIXED_SHARE:
        yield f"launch, barriers and posting are {fixed_share:.0%} of the time, and nobody measured them"
    if not soft.calibrated_hidden_least.value / 2 <= config.hidden <= 2 * soft.calibrated_hidden_most.value:
        yield f"hidden {config.hidden} is far from what was measured"
    if not soft.calibrated_topk_least.value / 2 <= config.num_topk <= 2 * soft.calibrated_topk_most.value:
        yield f"top-{config.num_topk} is far from what was measured"
    if not soft.calibrated_ranks_least.value / 4 <= config.ep_size <= 2 * soft.calibrated_ranks_most.value:
        yield f"EP{config.ep_size} is far from what was measured"


def _beside(platform: Platform, config: EPConfig, counted: Counted) -> Iterator[str]:
    """Yield what puts a case just outside the fitted domain."""
    soft = platform.software
    if not soft.calibrated_ranks_least.value <= config.ep_size <= soft.calibrated_ranks_most.value:
        yield f"EP{config.ep_size} lies just outside"
    if (
        counted.workload.tokens_per_rank
        and min(counted.workload.tokens_per_rank) < soft.calibrated_tokens_least.value
    ):
        yield "fewer tokens than measured"


def assumptions(
    platform: Platform, config: EPConfig, counted: Counted, pod_size: int | None, two_layer: TwoLayer
) -> tuple[str, ...]:
    """Everything that the figure rests on, one sentence each."""
    hard, soft, network = platform.hardware, platform.software, platform.network
    framing = (
        f"payload share of the line {hard.payload_efficiency.text}, no framing arithmetic"
        if hard.packet_form.value == "none"
        else f"{hard.packet_form.value} packets of {hard.packet_payload.value:.0f} bytes, "
        f"{_acknowledged(int(hard.packets_per_taack.value))}"
    )
    said = [
        f"{framing} ({hard.packet_payload.source.kind})",
        "wire and memory service add up, they do not overlap (fitted form)",
        "all ranks finish together at the exit barrier, so the busiest one sets the time",
    ]
    if soft.fanout_slope_dispatch.value or soft.fanout_slope_combine.value:
        said.append(
            f"fan-out loss beyond {soft.fanout_knee.text} ranks has no confirmed cause; "
            "set fanout_slope_dispatch=0 and fanout_slope_combine=0 for an ideal issue order"
        )
    if counted.is_exact:
        said.append("range over ranks from expected order statistics, not from a sample")
    if pod_size is not None:
        how = "once per supernode, spread inside it" if two_layer == "dedup" else "once per rank"
        said.append(f"{pod_size} ranks per supernode; a token crosses the scale-out network {how}")
        said.append("scale-out and scale-up transfers overlap")
        if two_layer == "dedup" and platform.edition == "ascend":
            said.append("upstream DeepEP-Ascend has no hybrid mode yet; two_layer=flat is what it does")
    if network.topology is not None and network.scaleup_bytes_per_s != hard.scaleup_rate.value:
        said.append(
            f"link rates are the graph's ({network.scaleup_bytes_per_s / 1e9:g} GB/s for the slowest card), "
            f"not those of profile {hard.name}"
        )
    said += network.notes
    if network.is_mesh:
        said.append("server mesh: a pair of cards uses only its own link")
    return tuple(said)


def _acknowledged(packets: int) -> str:
    """Say how often a TAACK is sent."""
    if packets == 0:
        return "no TAACKs"
    return "a TAACK for each" if packets == 1 else f"a TAACK for every {packets}"
