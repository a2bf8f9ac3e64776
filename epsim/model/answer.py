"""One case answered: operation, group and platform in, prediction out."""

from dataclasses import dataclass
from statistics import mode

import numpy as np
import numpy.typing as npt

from epsim.errors import InputError
from epsim.inputs.counting import Counted
from epsim.model.assess import assumptions, evidence
from epsim.model.closedform import Operation, OperationBytes, Terms, evaluate, payload_rate
from epsim.model.loads import RankLoads, rank_loads
from epsim.model.options import TwoLayer
from epsim.platform.network import busiest_link_s
from epsim.platform.platform import Platform
from epsim.prediction import Prediction, classify
from reference.config import EPConfig
from reference.counts import Counts
from reference.memory.limits import Limit, limits
from reference.memory.sizes import Dtype, ascend_buffer_bytes, element_bytes, row_bytes

Run = tuple[RankLoads, Terms]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One operation of one group on one platform.

    Args:
      platform: network, profiles, edition.
      config: the group.
      operation: which one.
      dtype: of dispatch.
      pod_size: ranks of a scale-up domain, None = one holds the group.
      two_layer: how tokens cross the scale-out network.
      num_buffer_bytes: size of an existing buffer to check; None = a new one.
      npus: [R] int64, the card of each rank; None = rank r sits on card r.
    """

    platform: Platform
    config: EPConfig
    operation: Operation
    dtype: Dtype
    pod_size: int | None
    two_layer: TwoLayer
    num_buffer_bytes: int | None = None
    npus: npt.NDArray[np.int64] | None = None

    @property
    def row(self) -> OperationBytes:
        """Bytes per row.

        Raises:
          InputError: the edition's cached record is not known.
        """
        row = row_bytes(self.config, dtype=self.dtype, edition=self.platform.edition)
        if self.operation == "combine":
            payload = 2 * self.config.hidden
            return OperationBytes(
                logical=row.combine_logical_bytes, wire=row.combine_wire_bytes, payload=payload
            )
        wire = row.dispatch_wire_bytes
        if self.operation == "cached-dispatch":
            if row.dispatch_cached_wire_bytes is None:
                raise InputError("operation", self.operation, "is not known for this edition")
            wire = row.dispatch_cached_wire_bytes
        payload = self.config.hidden * element_bytes(self.dtype)
        return OperationBytes(logical=row.dispatch_logical_bytes, wire=wire, payload=payload)

    @property
    def is_per_expert(self) -> bool:
        """Whether the software sends one row per (token, expert)."""
        software = self.platform.software
        unit = software.row_unit_combine if self.operation == "combine" else software.row_unit_dispatch
        return unit.value == "expert"

    def run(self, counts: Counts) -> Run:
        """Evaluate the closed form for one set of row counts."""
        platform, row = self.platform, self.row
        loads = rank_loads(counts, per_expert=self.is_per_expert, pod_dedup=self.two_layer == "dedup")
        link_s = 0.0
        # A group in several pods has no single bound: its tiers differ.
        if self.pod_size is None:
            matrix = np.asarray(counts.entries if self.is_per_expert else counts.rows, dtype=np.float64)
            # Combine sends the rows back.
            matrix = (matrix.T if self.operation == "combine" else matrix) * row.wire
            link_s = busiest_link_s(platform.network, matrix, self.npus)
        terms = evaluate(
            self.operation, loads, row, platform.network, platform.hardware, platform.software, link_s
        )
        return loads, terms

    def predict(self, counted: Counted) -> Prediction:
        """Evaluate all draws and average them."""
        platform, config = self.platform, self.config
        runs = [self.run(counts) for counts in counted.draws]
        mean = _averages(self.operation, self.row, runs)
        terms = {
            name: 1e6 * float(np.mean([t.means()[name] for _, t in runs])) for name in runs[0][1].means()
        }
        bound, binding = classify(terms, mode(terms_of.outlasting for _, terms_of in runs))
        limit_rate = payload_rate(platform.network, platform.hardware) / 1e9
        broken = self._limits(counted)
        fixed = (terms["fixed"] + terms["issue"] + terms["staging"]) / max(mean["time_us"], 1e-9)
        trust = evidence(platform, config, counted, self.operation, self.pod_size, fixed, broken)
        return Prediction(
            system=platform.name,
            hardware=platform.hardware.name,
            software=platform.software.name,
            operation=self.operation,
            dtype="bf16" if self.operation == "combine" else self.dtype,
            ep_size=config.ep_size,
            tokens_per_rank=config.num_max_tokens_per_rank,
            hidden=config.hidden,
            num_experts=config.num_experts,
            num_topk=config.num_topk,
            routing=counted.text,
            fingerprint=counted.workload.fingerprint,
            bound=bound,
            binding=binding,
            gb_per_s_min=mean["min"],
            gb_per_s_mean=mean["mean"],
            gb_per_s_max=mean["max"],
            time_us=mean["time_us"],
            terms_us=terms,
            wire_gb_per_s=mean["wire"],
            payload_limit_gb_per_s=limit_rate,
            payload_share=mean["wire"] / limit_rate if mean["wire"] else None,
            scaleout_gb_per_s=mean["scaleout"] if self.pod_size is not None else None,
            rows_per_rank=mean["rows"],
            peak_over_mean=mean["peak"],
            epilogue_us=mean["epilogue_us"] / platform.hardware.hbm_rate.value,
            buffer_bytes=self._buffer_bytes(),
            confidence=trust.confidence,
            error_band=trust.error_band,
            validity=trust.validity,
            assumptions=assumptions(platform, config, counted, self.pod_size, self.two_layer),
            limits=broken,
        )

    def _limits(self, counted: Counted) -> tuple[Limit, ...]:
        """Return what upstream's Ascend edition would refuse; other editions have no such list here."""
        if self.platform.edition != "ascend":
            return ()
        aivs = min(self.platform.hardware.num_aivs.value, self.platform.software.used_aivs.value)
        return tuple(
            limits(
                self.config,
                num_aivs=int(aivs),
                dtype=self.dtype,
                num_buffer_bytes=self.num_buffer_bytes,
                counts=counted.draws[0],
            )
        )

    def _buffer_bytes(self) -> int | None:
        if self.platform.edition != "ascend":
            return None
        return ascend_buffer_bytes(
            ep_size=self.config.ep_size,
            num_max_tokens_per_rank=self.config.num_max_tokens_per_rank,
            hidden=self.config.hidden,
            num_topk=self.config.num_topk,
            use_fp8=self.dtype == "fp8",
        ).hint_bytes


def _averages(
    operation: Operation, row: OperationBytes, runs: list[tuple[RankLoads, Terms]]
) -> dict[str, float]:
    """Return figures of all draws, averaged."""
    rows = []
    for loads, terms in runs:
        time = terms.total
        gb = loads.received * row.logical / time / 1e9 if time else np.zeros(len(loads.received))
        mean_rows = float(loads.received.mean())
        sent = loads.remote_received if operation == "combine" else loads.remote_sent
        rows.append(
            {
                "min": float(gb.min()),
                "mean": float(gb.mean()),
                "max": float(gb.max()),
                "time_us": time * 1e6,
                "wire": float(sent.mean()) * row.wire / time / 1e9 if time else 0.0,
                "scaleout": float(loads.scaleout_logical.mean()) * row.logical / time / 1e9 if time else 0.0,
                "rows": mean_rows,
                "peak": float(loads.received.max()) / mean_rows if mean_rows else 0.0,
                "tokens": float(loads.num_tokens.mean()),
                # Bytes that the epilogue reads and writes on the busiest rank, times 1e6 for microseconds.
                "epilogue_us": 1e6 * epilogue_bytes(operation, loads, row),
            }
        )
    return {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}


def epilogue_bytes(operation: Operation, loads: RankLoads, row: OperationBytes) -> float:
    """Return the bytes that the epilogue reads and writes on the busiest rank."""
    if operation == "combine":
        return float((loads.sent * row.wire + loads.num_tokens * row.payload).max())
    return float((loads.received * row.wire + loads.expanded * row.logical).max())
