"""What a prediction says: figures with their limit, range, time split, validity and limits of the run."""

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from epsim.model.closedform import MEMORY_TERMS, NETWORK_TERMS, Operation
from reference.memory.limits import Limit
from reference.routing.manifest import Workload

Bound = Literal["network-limited", "memory-limited", "kernel-limited"]
Confidence = Literal["calibrated", "extrapolated", "not calibrated"]

BINDING = {
    "wire": "scale-up ports",
    "fanout": "fan-out loss",
    "scaleout": "scale-out port",
    "fetch": "HBM, source reads",
    "reduction": "HBM, combine's sums",
    "issue": "AIVs, posting",
    "staging": "AIVs, row copies",
    "fixed": "launch, barriers",
}

HIDDEN_BY = {"scaleout": ("wire", "fanout"), "issue": (*NETWORK_TERMS, *MEMORY_TERMS)}
"""What a term runs beside; inner ones first."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One operation of one group.

    Bandwidths are decimal GB/s. The metric's bytes are logical: received de-duplicated rows times the
    metric's bytes per row, own rank included, over the time from entry to exit barrier. Wire figures
    count only what leaves the card, with its record bytes.

    Args:
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
      routing: text of the routing and how it was counted.
      fingerprint: of the workload (group, tokens, routing, seed, dtype): equal workloads, equal text.
      bound: what limits it, the first word of the answer.
      binding: the resource behind it.
      gb_per_s_min: of the rank with the fewest received bytes.
      gb_per_s_mean: mean over ranks.
      gb_per_s_max: of the rank with the most.
      time_us: from entry barrier to exit barrier.
      terms_us: time split, see `closedform.TERMS`; they add up to time_us.
      wire_gb_per_s: what an average card sends over its ports.
      payload_limit_gb_per_s: what packets allow on the scale-up ports.
      payload_share: wire over limit; None when nothing crosses a port.
      scaleout_gb_per_s: metric of two-layer runs, distinct (token, pod) rows; None in one domain.
      rows_per_rank: mean received rows.
      peak_over_mean: busiest receiver over the mean.
      epilogue_us: expansion or final sum after the exit barrier, not part of the metric, not calibrated.
      buffer_bytes: symmetric memory that the library asks for; None where unknown.
      confidence: evidence class.
      error_band: expected relative error of the mean; None = unknown.
      validity: why, in one sentence.
      assumptions: everything else that the figure rests on.
      limits: what the real library would refuse, or nearly.
    """

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
    bound: Bound
    binding: str
    gb_per_s_min: float
    gb_per_s_mean: float
    gb_per_s_max: float
    time_us: float
    terms_us: Mapping[str, float]
    wire_gb_per_s: float
    payload_limit_gb_per_s: float
    payload_share: float | None
    scaleout_gb_per_s: float | None
    rows_per_rank: float
    peak_over_mean: float
    epilogue_us: float
    buffer_bytes: int | None
    confidence: Confidence
    error_band: float | None
    validity: str
    assumptions: tuple[str, ...]
    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        """One line for people."""
        band = "" if self.error_band is None else f" +-{self.error_band:.0%}"
        return (
            f"{self.bound}: {self.operation} EP{self.ep_size} {self.gb_per_s_mean:.1f} GB/s "
            f"({self.gb_per_s_min:.1f}..{self.gb_per_s_max:.1f}), {self.time_us:.1f} us, "
            f"{self.binding}; {self.confidence}{band}"
        )


def classify(terms: Mapping[str, float], outlasting: Collection[str] = ()) -> tuple[Bound, str]:
    """Name the class that takes the most time, and the largest term in it.

    Fixed costs are launch and barriers of the kernel, so they count as the kernel's. Imbalance belongs
    to no class: it scales with whatever limits the busiest rank.

    Args:
      terms: time by name, any unit.
      outlasting: terms that hide others, see `Terms.outlasting`; the hidden time counts as theirs.
    """
    terms = dict(terms)
    for name, hidden in HIDDEN_BY.items():
        if name in outlasting:
            terms[name] += sum(terms[other] for other in hidden)
            terms.update(dict.fromkeys(hidden, 0.0))
    groups: dict[Bound, tuple[str, ...]] = {
        "network-limited": NETWORK_TERMS,
        "memory-limited": MEMORY_TERMS,
        "kernel-limited": ("issue", "staging", "fixed"),
    }
    bound = max(groups, key=lambda group: sum(terms[name] for name in groups[group]))
    return bound, BINDING[max(groups[bound], key=lambda name: terms[name])]


class Predictions(Sequence[Prediction]):
    """Predictions in the order asked for; prints as a table, also in a notebook."""

    def __init__(self, items: Sequence[Prediction], workloads: Sequence[Workload] = ()) -> None:
        """Hold the items, and what was predicted for: one workload per group size."""
        self._items = tuple(items)
        self.workloads = tuple(workloads)

    def __len__(self) -> int:
        """Return the number of predictions."""
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...

    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...

    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        """Return one prediction, or a slice as Predictions."""
        return Predictions(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __iter__(self) -> Iterator[Prediction]:
        """Iterate in order."""
        return iter(self._items)

    def one(self, operation: Operation, ep_size: int) -> Prediction:
        """Return the prediction of an operation and group size.

        Raises:
          KeyError: there is none.
        """
        for item in self._items:
            if item.operation == operation and item.ep_size == ep_size:
                return item
        raise KeyError((operation, ep_size))

    def __str__(self) -> str:
        """Return the table as plain text."""
        from epsim.report.prediction import predictions_text

        return predictions_text(self)

    def __repr__(self) -> str:
        """Return the table too: what a prompt shows."""
        return str(self)

    def _repr_html_(self) -> str:
        from epsim.report.prediction import predictions_html

        return predictions_html(self)

    def to_json(self) -> str:
        """Return all fields as JSON text, one object per prediction."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(self._items), indent=2).decode()

    def to_csv(self) -> str:
        """Return one line per prediction; the time split in columns of its own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        plain = [
            name
            for name in Prediction.__dataclass_fields__
            if name not in ("terms_us", "assumptions", "limits")
        ]
        terms = list(self._items[0].terms_us) if self._items else []
        writer.writerow([*plain, *(f"{name}_us" for name in terms), "limits"])
        for item in self._items:
            cells = [getattr(item, name) for name in plain]
            broken = "; ".join(f"{limit.severity}: {limit.id}" for limit in item.limits)
            writer.writerow(
                ["" if c is None else c for c in cells] + [item.terms_us[n] for n in terms] + [broken]
            )
        return out.getvalue()
