"""How far a prediction can be trusted, and what it rests on."""

from epsim.counting import Counted
from epsim.options import TwoLayer
from epsim.platform import Platform
from epsim.prediction import Confidence
from reference.config import EPConfig

CALIBRATED_BAND = 0.02
"""Expected relative error inside the fitted domain. Source: network.md 10.7, caveats: plan for 1-2 %."""

NEAR_BAND = 0.08
"""Just outside it. Source: the same, 3-8 %."""


def validity(
    platform: Platform, config: EPConfig, counted: Counted, tokens: float, pod_size: int | None
) -> tuple[Confidence, float | None, str]:
    """Say how far the fit speaks for this case; the bands are network.md section 10.7's caveats."""
    soft = platform.software
    least, most = int(soft.calibrated_ranks_least.value), int(soft.calibrated_ranks_most.value)
    if not least:
        return "not calibrated", None, f"profile {soft.name} was fitted on no measurement of this path"
    domain = f"fitted on EP{least}-EP{most}, high throughput, uniform routing"
    if platform.hardware.name != soft.calibrated_hardware.value:
        return (
            "not calibrated",
            None,
            f"{domain} on {soft.calibrated_hardware.value}, and this is {platform.hardware.name}",
        )
    changed = [
        key
        for key in platform.settings
        if key in soft.__dataclass_fields__ or key in platform.hardware.__dataclass_fields__
    ]
    if changed:
        return "not calibrated", None, f"{domain}, and {', '.join(changed)} was changed"
    if pod_size is not None:
        return "not calibrated", None, f"{domain}, within one supernode"
    if platform.network.is_mesh:
        return "not calibrated", None, f"{domain}, on netlayer 1, not on a server mesh"
    if tokens < soft.calibrated_tokens_least.value / 4:
        return "not calibrated", None, f"{domain}; small batches rest on fixed costs that nobody measured"
    inside = least <= config.ep_size <= most and tokens >= soft.calibrated_tokens_least.value
    if (
        inside
        and counted.is_uniform
        and platform.network.scaleup_bytes_per_s == platform.hardware.scaleup_rate.value
    ):
        return "calibrated", CALIBRATED_BAND, domain
    if platform.network.scaleup_bytes_per_s != platform.hardware.scaleup_rate.value:
        return "not calibrated", None, f"{domain}, at {platform.hardware.scaleup_rate.text} per card"
    if least / 4 <= config.ep_size <= 2 * most and counted.is_uniform:
        return "extrapolated", NEAR_BAND, f"{domain}; this case lies just outside"
    return "not calibrated", None, domain


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
    if network.is_mesh:
        said.append("server mesh: a pair of cards uses only its own link")
    return tuple(said)


def _acknowledged(packets: int) -> str:
    """Say how often a TAACK is sent."""
    if packets == 0:
        return "no TAACKs"
    return "a TAACK for each" if packets == 1 else f"a TAACK for every {packets}"
