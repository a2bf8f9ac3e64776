"""The vectorised reference as a backend: the suite's self test, and what faults are planted in."""

from dataclasses import dataclass
from typing import Any

from native.backends.protocol import (
    BufferSpec,
    CachedCall,
    Capabilities,
    CombineCall,
    Combined,
    DispatchCall,
    Dispatched,
    Received,
    Schedule,
)
from reference.combine import combine
from reference.dispatch import dispatch, dispatch_cached
from reference.edition import EditionName, find_edition
from reference.handle import DispatchMode
from reference.order import library_order
from reference.results import DispatchResult

CANONICAL, SHUFFLED = "canonical", "shuffled"


@dataclass(frozen=True, kw_only=True)
class ReferenceBackend:
    """`reference.dispatch` and `reference.combine` of an edition.

    Strategies: canonical order, or whatever the contract leaves open shuffled by the schedule's seed.
    """

    edition: EditionName = "ascend"
    name: str = "reference"

    def capabilities(self) -> Capabilities:
        """Return everything that the edition has."""
        rules = find_edition(self.edition)
        unsupported: dict[Any, str] = {}
        if not rules.has_deduplicated:
            unsupported["deduplicated"] = f"edition {rules.name} has the expanded layout only"
        if not rules.has_single_reduction:
            unsupported["one_rounding"] = f"edition {rules.name} reduces on the rank that holds the experts"
        return Capabilities(
            edition=self.edition,
            num_ranks=tuple(range(1, 17)),
            unsupported=unsupported,
            num_aivs=(2, 3, 64),
            hidden=32,
            strategies=(SHUFFLED, CANONICAL),
            power_of_two_alignment=False,
        )

    def open(self, spec: BufferSpec, schedule: Schedule) -> "ReferenceSession":
        """Return a session; there is no buffer to speak of."""
        return ReferenceSession(self.edition, spec, schedule)

    def shutdown(self) -> None:
        """Do nothing."""


class ReferenceSession:
    """One buffer, which holds nothing: calls of the reference depend on their arguments alone."""

    def __init__(self, edition: EditionName, spec: BufferSpec, schedule: Schedule) -> None:
        """Remember edition, sizes and schedule."""
        self.edition, self.spec, self.schedule = edition, spec, schedule

    def dispatch(self, call: DispatchCall) -> Dispatched:
        """Run a dispatch."""
        mode = DispatchMode(
            edition=self.edition,
            expand=call.expand,
            cpu_sync=call.cpu_sync,
            num_aivs=self.spec.num_aivs,
            arrival_seed=self.schedule.seed if self.schedule.strategy == SHUFFLED else None,
        )
        results, handles = dispatch(
            call.config,
            call.topk,
            call.x,
            scales=call.scales,
            mode=mode,
            zero_padding=call.zero_padding,
            column_major_scales=call.column_major_scales,
            stats=call.stats,
        )
        return Dispatched(received=tuple(map(received_of, results)), handles=handles)

    def dispatch_cached(self, before: Dispatched, call: CachedCall) -> Dispatched:
        """Run a cached dispatch."""
        results = dispatch_cached(
            before.handles,
            call.x,
            scales=call.scales,
            topk_weights=call.topk_weights,
            zero_padding=call.zero_padding,
            column_major_scales=call.column_major_scales,
        )
        return Dispatched(received=tuple(map(received_of, results)), handles=before.handles)

    def combine(self, before: Dispatched, call: CombineCall) -> tuple[Combined, ...]:
        """Run a combine."""
        order = library_order(
            expand=before.handles[0].mode.expand,
            allow_multiple_reduction=self.spec.multiple_reduction,
            is_hybrid=False,
        )
        results = combine(before.handles, call.y, order=order, topk_weights=call.topk_weights, bias=call.bias)
        return tuple(
            Combined(combined_x=r.combined_x, combined_topk_weights=r.combined_topk_weights) for r in results
        )

    def close(self) -> None:
        """Do nothing."""


def received_of(result: DispatchResult) -> Received:
    """Return a result of the reference in the protocol's form."""
    return Received(
        recv_x=result.recv_x,
        recv_scales=result.recv_scales,
        recv_topk_idx=result.recv_topk_idx,
        recv_topk_weights=result.recv_topk_weights,
        cumulative_local_expert_recv_stats=result.cumulative_local_expert_recv_stats,
    )
