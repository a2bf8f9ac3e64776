"""The closed form: time of one dispatch or combine as a sum of separately visible terms.

Model "S" (serial wire and memory service), per rank r, and the exit barrier makes the slowest rank's
time everybody's:

    wire_r   = max(rows in, rows out) * record bytes / (nominal rate * payload share * wire efficiency),
               the largest at least what the busiest link of the graph needs
    fanout_r = wire_r * slope * max(0, log2(ranks / knee))
    fetch_r  = rows read at the source * record bytes / (memory rate * memory efficiency)
    reduce_r = (expert rows read + reduced rows written) * payload bytes / memory rate     (combine)
    issue_r  = descriptors of an AIV * post time / lanes, where it outlasts or does not overlap the data
    stage_r  = rows copied by the AIVs before posting / their copy rate
    fixed    = launch + worker start + entry and exit barrier
    time     = fixed + max over ranks of the other terms' sum

Source: network.md section 10.3 for the form, deepep-ascend.md 3.4, 4.2, 4.5 and 5.2 for bytes and steps.
"""

from dataclasses import dataclass
from math import log2
from typing import Literal

import numpy as np
import numpy.typing as npt

from epsim.model.loads import Floats, RankLoads
from epsim.platform.network import Network, payload_share
from epsim.platform.profile import Hardware, Software

Operation = Literal["dispatch", "cached-dispatch", "combine"]
OPERATIONS: tuple[Operation, ...] = ("dispatch", "cached-dispatch", "combine")
SCALEOUT_FORM = "ctp7"
"""Scale-out packets have 24-bit addresses and 128-bit EIDs (network.md section 11.7)."""

TERMS = ("wire", "fanout", "scaleout", "fetch", "reduction", "issue", "staging", "fixed", "imbalance")
NETWORK_TERMS = ("wire", "fanout", "scaleout")
MEMORY_TERMS = ("fetch", "reduction")


@dataclass(frozen=True, kw_only=True)
class OperationBytes:
    """Bytes per row of one operation.

    Args:
      logical: numerator of the metric.
      wire: the record that travels.
      payload: the part that combine's reduction reads and writes.
    """

    logical: int
    wire: int
    payload: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Seconds per rank of every term but the common ones, each [R].

    Args:
      wire: serialisation on the scale-up ports.
      fanout: what many peers add to it.
      scaleout: scale-out time beyond the scale-up time.
      fetch: source reads.
      reduction: combine's sums.
      issue: posting that the data does not hide.
      staging: copies before posting.
      fixed: seconds, the same on all ranks.
      posting_outlasts: [R] bool, whether posting takes longer than all that it may run beside.
    """

    wire: Floats
    fanout: Floats
    scaleout: Floats
    fetch: Floats
    reduction: Floats
    issue: Floats
    staging: Floats
    fixed: float
    posting_outlasts: npt.NDArray[np.bool_]

    def per_rank(self) -> Floats:
        """Return [R] seconds of each rank without the fixed part."""
        return np.asarray(
            self.wire + self.fanout + self.scaleout + self.fetch + self.reduction + self.issue + self.staging
        )

    @property
    def total(self) -> float:
        """Seconds from entry barrier to exit barrier: the slowest rank's."""
        return self.fixed + float(self.per_rank().max())

    @property
    def outlasting(self) -> frozenset[str]:
        """Terms of the slowest rank that hide others: those bind, although the others look larger.

        A term that runs beside others is written as what it adds to them, so 3 ms of posting beside 2 ms
        of data shows as 1 ms; a faster network would not shorten it at all.
        """
        slowest = int(self.per_rank().argmax())
        hides = {"issue": self.posting_outlasts[slowest], "scaleout": self.scaleout[slowest] > 0}
        return frozenset(name for name, is_hiding in hides.items() if is_hiding)

    def means(self) -> dict[str, float]:
        """Return seconds per term as means over ranks; `imbalance` is what the slowest rank adds."""
        means = {
            name: float(getattr(self, name).mean()) for name in TERMS if name not in ("fixed", "imbalance")
        }
        return {**means, "fixed": self.fixed, "imbalance": self.total - self.fixed - sum(means.values())}


def payload_rate(network: Network, hardware: Hardware) -> float:
    """Return the payload limit of a card's scale-up ports, bytes/s per direction."""
    return network.scaleup_bytes_per_s * payload_share(hardware)


def evaluate(
    operation: Operation,
    loads: RankLoads,
    row: OperationBytes,
    network: Network,
    hardware: Hardware,
    software: Software,
    busiest_link_s: float = 0.0,
) -> Terms:
    """Evaluate the closed form for one operation.

    Args:
      operation: which one.
      loads: rows per rank, as of dispatch.
      row: bytes per row.
      network: rates.
      hardware: memory rate, packet form, AIVs.
      software: efficiencies, slopes, fixed costs.
      busiest_link_s: what the busiest link needs at its nominal rate, see `network.busiest_link_s`.

    Returns:
      Terms in seconds.
    """
    is_combine = operation == "combine"
    rate = payload_rate(network, hardware) * software.wire_efficiency.value
    memory = hardware.hbm_rate.value * software.hbm_efficiency.value
    wire = np.maximum(loads.scaleup_received, loads.scaleup_sent) * row.wire / rate
    floor = busiest_link_s * network.scaleup_bytes_per_s / rate
    if wire.any() and floor > wire.max():
        wire = wire * (floor / wire.max())
    ranks = len(loads.received)
    slope = (software.fanout_slope_combine if is_combine else software.fanout_slope_dispatch).value
    doublings = max(0.0, log2(min(ranks, network.scaleup_domain) / software.fanout_knee.value))
    fetched = loads.received if is_combine else loads.sent
    data = wire * (1 + slope * doublings)
    scaleout = _scaleout(loads, row, network, hardware, software)
    reduction = (
        (loads.reduction_reads + loads.reduced) * row.payload / memory if is_combine else np.zeros(ranks)
    )
    fetch = fetched * row.wire / memory
    hidden_by = np.maximum(data, scaleout) + fetch + reduction
    issue, outlasts = _issue(is_combine, loads, hardware, software, hidden_by)
    return Terms(
        wire=wire,
        fanout=data - wire,
        scaleout=np.maximum(0.0, scaleout - data),
        fetch=fetch,
        reduction=reduction,
        issue=issue,
        staging=_staging(is_combine, loads, row, hardware, software),
        fixed=_fixed(operation, ranks, software),
        posting_outlasts=outlasts,
    )


def _scaleout(
    loads: RankLoads, row: OperationBytes, network: Network, hardware: Hardware, software: Software
) -> Floats:
    """Return [R] seconds on the scale-out port; the tiers run at the same time (forwarders pipeline)."""
    rows = np.maximum(loads.scaleout_received, loads.scaleout_sent)
    if not rows.any():
        return np.zeros(len(rows))
    rate = (
        network.scaleout_bytes_per_s * payload_share(hardware, SCALEOUT_FORM) * software.wire_efficiency.value
    )
    return np.asarray(rows * row.wire / rate)


def num_descriptors(
    is_combine: bool, loads: RankLoads, num_aivs: float, rows_per_descriptor: float
) -> Floats:
    """Return [R] mean descriptors that one AIV posts.

    An AIV's rows for one peer are Poisson with mean m; they fill ceil(rows / c) descriptors, in
    expectation m / c + (c - 1) / (2 c) for m well above c, and never more than m.

    Source: deepep-ascend.md section 4.2 (169 .. 304 descriptors for R = 8 .. 128 is the test).
    """
    rows = loads.remote_received if is_combine else loads.remote_sent
    if is_combine or rows_per_descriptor == 1:
        return np.asarray(rows / num_aivs)
    peers = max(loads.peers, 1e-9)
    mean = rows / num_aivs / peers
    size = rows_per_descriptor
    # The chance of no row at all: an empty pair needs no descriptor.
    filled = mean / size + (size - 1) / (2 * size) * (1 - np.exp(-mean))
    return np.asarray(peers * np.minimum(mean, filled))


def _issue(
    is_combine: bool, loads: RankLoads, hardware: Hardware, software: Software, data: Floats
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return [R] seconds of posting that the data does not hide, and whether posting hides the data."""
    aivs = min(hardware.num_aivs.value, software.used_aivs.value)
    lanes = (software.post_lanes_combine if is_combine else software.post_lanes_dispatch).value
    posts = num_descriptors(is_combine, loads, aivs, software.rows_per_descriptor_dispatch.value)
    issue = posts * software.post_time.value / lanes
    serial = (1 - software.issue_overlap.value) * issue
    return np.maximum(issue - data, serial), issue - data > serial


def _staging(
    is_combine: bool, loads: RankLoads, row: OperationBytes, hardware: Hardware, software: Software
) -> Floats:
    rate = (software.staging_rate_combine if is_combine else software.staging_rate_dispatch).value
    if rate == 0:
        return np.zeros(len(loads.received))
    aivs = min(hardware.num_aivs.value, software.used_aivs.value)
    rows = loads.received if is_combine else loads.sent
    return np.asarray(rows * row.logical / (aivs * rate))


def _fixed(operation: Operation, ranks: int, software: Software) -> float:
    """Return seconds of launch, worker start and the two barriers; no rank has peers alone."""
    barrier = max(
        0.0, software.barrier_time.value + software.barrier_time_per_doubling.value * log2(ranks / 8)
    )
    worker = software.worker_time.value if operation == "dispatch" else 0.0
    return software.launch_time.value + worker + (2 * barrier if ranks > 1 else 0.0)
