"""What a run has looked at: counts per property, and whether that could have shown anything."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

PropertyName = Literal[
    "runs",
    "counts",
    "psums",
    "metadata",
    "row_order",
    "row_slots",
    "send_slots",
    "gather_pairs",
    "identity",
    "rows",
    "scales",
    "weights",
    "local_ids",
    "padding",
    "stats",
    "cached_places",
    "combined_rows",
    "combined_weights",
    "inputs_kept",
    "results_kept",
]
PROPERTIES: Mapping[PropertyName, str] = MappingProxyType(
    {
        "runs": "no violation, crash or deadlock, and results of all ranks",
        "counts": "received, expanded, per expert, exact or worst case",
        "psums": "prefix sums by source rank and by expert",
        "metadata": "which token each received row is, its master column, its columns here",
        "row_order": "rows by source, and by sending core where the edition has them",
        "row_slots": "expanded rows: in the expert's block, in order where that is promised",
        "send_slots": "slots at the sender agree with where the receiver has the rows",
        "gather_pairs": "descriptor places at the sender",
        "identity": "rows name their source, token and call in their own signs",
        "rows": "payload, byte for byte",
        "scales": "scales, byte for byte, in the order asked for",
        "weights": "weights that belong to the rows, bit for bit",
        "local_ids": "ids as the receiver sees them (deduplicated)",
        "padding": "alignment gaps are zero when asked for",
        "stats": "counts of experts are added to what the caller had",
        "cached_places": "a cached dispatch leaves its handle as it was",
        "combined_rows": "sums in the stated order, rounded where stated",
        "combined_weights": "weights are back at their token and column, bit for bit",
        "inputs_kept": "what the caller gave is not written to",
        "results_kept": "earlier results and handles survive later calls on the buffer",
    }
)


class PropertyBroken(AssertionError):
    """A property does not hold; `property` names it, `text` says where in one or more lines."""

    def __init__(self, name: PropertyName, text: str) -> None:
        """Carry both."""
        self.property, self.text = name, text
        super().__init__(f"{name}: {text}")


@dataclass(kw_only=True)
class Evidence:
    """What one property rests on.

    Args:
      num_examples: programs in which it had something to compare.
      num_runs: the same times schedules.
      num_compared: elements or rows that were compared.
      num_crossed: rows that went to another rank in these programs.
      has_nonzero: some payload element was not zero.
      has_distinct: some two payload rows differed.
      seconds: spent on comparing; of `runs`, in the backend.
    """

    num_examples: int = 0
    num_runs: int = 0
    num_compared: int = 0
    num_crossed: int = 0
    has_nonzero: bool = False
    has_distinct: bool = False
    seconds: float = 0.0

    def vacuous(self, least_crossed: int) -> str | None:
        """Return why agreement proves nothing, None = it proves something."""
        if not self.num_compared:
            return "nothing was compared"
        if not self.has_nonzero:
            return "all payloads were zero"
        if not self.has_distinct:
            return "all payload rows were equal"
        if not self.num_crossed:
            return "every row stayed on its own rank"
        if self.num_crossed < least_crossed:
            return f"only {self.num_crossed} rows crossed a rank, {least_crossed} are asked for"
        return None


@dataclass(kw_only=True)
class RunEvidence:
    """What one run of one program has shown so far."""

    compared: dict[PropertyName, int] = field(default_factory=dict)
    seconds: dict[PropertyName, float] = field(default_factory=dict)
    num_crossed: int = 0
    has_nonzero: bool = False
    has_distinct: bool = False

    def add(self, name: PropertyName, count: int) -> None:
        """Count elements that a property compared."""
        self.compared[name] = self.compared.get(name, 0) + count

    @contextmanager
    def clock(self, name: PropertyName) -> Iterator[None]:
        """Add the time inside to a property."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def saw_payload(self, x: list[npt.NDArray[Any]], num_crossed: int) -> None:
        """Note whether payload rows can tell tokens apart, and how many crossed a rank."""
        rows = [np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1) for a in x if a.size]
        self.num_crossed += num_crossed
        if rows:
            together = np.concatenate(rows)
            self.has_nonzero |= bool(together.any())
            self.has_distinct |= bool((together != together[0]).any())


class Ledger:
    """Evidence of all properties over a run."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.by_property: dict[PropertyName, Evidence] = {}

    def add(self, run: RunEvidence, *, first: bool) -> None:
        """Add one run of a program; `first` = its first schedule."""
        for name, count in run.compared.items():
            evidence = self.by_property.setdefault(name, Evidence())
            evidence.seconds += run.seconds.get(name, 0.0)
            evidence.num_runs += 1
            if not count:
                continue
            evidence.num_examples += first
            evidence.num_compared += count
            evidence.num_crossed += run.num_crossed if first else 0
            evidence.has_nonzero |= run.has_nonzero
            evidence.has_distinct |= run.has_distinct
