"""Run a program on a backend, and check every step against the definition."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from epsim.conform.admission import buffer_spec
from epsim.conform.arrival import targets_of
from epsim.conform.dispatch_checks import DispatchCheck
from epsim.conform.evidence import PropertyBroken, PropertyName, RunEvidence
from epsim.conform.program import Cached, Combine, Dispatch, Program, Step
from epsim.conform.values import (
    as_expert_rows,
    biases,
    expert_outputs,
    payload_rows,
    payload_scales,
    placed_rows,
    placed_weights,
)
from epsim.testing.strategies import token_weights
from native.backends.protocol import (
    Backend,
    BackendFailure,
    CachedCall,
    CombineCall,
    Combined,
    DispatchCall,
    Dispatched,
    Schedule,
    Session,
    UnsupportedCellError,
)
from reference.comparison.compare import compare
from reference.config import EPConfig
from reference.definition import define_dispatch
from reference.definition_combine import define_combine
from reference.errors import ConfigError
from reference.handle import DispatchMode, Handle
from reference.order import library_order
from reference.results import DispatchResult
from reference.topk import TopK

Array = npt.NDArray[Any]
FIRST_STATS = 7
"""What the counts of experts hold before a dispatch: any number but 0, which an overwrite would hide."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Alive:
    """A dispatch whose handle may be used again: what the definition and the backend have of it."""

    step: Dispatch
    config: EPConfig
    topk: TopK
    mode: DispatchMode
    wanted: tuple[DispatchResult, ...]
    handles: tuple[Handle, ...]
    have: Dispatched


@dataclass(kw_only=True)
class ProgramRun:
    """One run of one program on one schedule.

    Args:
      backend: what to judge.
      program: what to do.
      seed: of the data.
      schedule: which order.
      seen: what was compared so far.
    """

    backend: Backend
    program: Program
    seed: int
    schedule: Schedule
    seen: RunEvidence = field(default_factory=RunEvidence)
    alive: list[Alive] = field(default_factory=list)
    kept: list[tuple[int, str, Array, bytes]] = field(default_factory=list)

    def run(self) -> RunEvidence:
        """Run and check all steps.

        Raises:
          PropertyBroken: the first property that does not hold.
          UnsupportedCellError: the backend has no such operation.
        """
        session = self._called(lambda: self.backend.open(buffer_spec(self.program), self.schedule))
        try:
            for call, step in enumerate(self.program.steps):
                self._step(session, call, step)
                self._check_kept()
        except BaseException:
            with suppress(Exception):  # the first finding is the one to tell
                session.close()
            raise
        with self._findings():
            session.close()
        return self.seen

    def _called(self, call: Any) -> Any:  # noqa: ANN401 - a function of the backend and its result
        """Call the backend; whatever it throws is a finding, unless it says that it lacks the cell."""
        with self.seen.clock("runs"), self._findings():
            result = call()
        self.seen.add("runs", 1)
        return result

    @contextmanager
    def _findings(self, what: str = "") -> Iterator[None]:
        """Turn what a backend throws, or what its answer makes our checks throw, into a broken property."""
        try:
            yield
        except (PropertyBroken, UnsupportedCellError):
            raise
        except BackendFailure as failure:
            raise PropertyBroken("runs", str(failure)) from failure
        except (Exception, SystemExit) as error:
            raise PropertyBroken("runs", f"{what}{type(error).__name__}: {error}") from error

    def _answered(self) -> AbstractContextManager[None]:
        """Judge an answer inside: one that is none has no property but that."""
        return self._findings("the answer has not the form of the protocol: ")

    def _step(self, session: Session, call: int, step: Step) -> None:
        if isinstance(step, Dispatch):
            self._dispatch(session, call, step)
        elif isinstance(step, Cached):
            self._cached(session, call, step)
        else:
            self._combine(session, call, step)

    # --- dispatch ------------------------------------------------------------------------------------

    def _dispatch(self, session: Session, call: int, step: Dispatch) -> None:
        edition = self.backend.capabilities().edition
        mode = DispatchMode(
            edition=edition, expand=step.expand, cpu_sync=step.cpu_sync, num_aivs=self.program.aivs
        )
        config, topk = step.config(), step.routing(call, weights=step.weights)
        x = payload_rows(step, topk.tokens_per_rank, call, self.seed)
        scales = payload_scales(step, topk.tokens_per_rank, call, mode.rules)
        wanted, handles = define_dispatch(
            config, topk, x, scales=scales, mode=mode, zero_padding=step.zero_padding
        )
        stats = None
        if step.stats:
            before = FIRST_STATS + call
            stats = [np.full(int(n), before, np.int32) for n in config.experts_per_rank()]
            wanted = tuple(_with_stats(w, h, s) for w, h, s in zip(wanted, handles, stats, strict=True))
        given = [*x, *(scales or []), *topk.topk_idx, *(topk.topk_weights or []), *(stats or [])]
        before_call = _bytes_of(given)
        request = DispatchCall(
            config=config,
            topk=topk,
            x=x,
            scales=scales,
            expand=step.expand,
            cpu_sync=step.cpu_sync,
            zero_padding=step.zero_padding,
            column_major_scales=step.payload == "fp8_columns",
            stats=stats,
        )
        have = self._called(lambda: session.dispatch(request))
        self._inputs_kept(given, before_call)
        self.seen.saw_payload(x, _num_crossed(config, topk))
        with self._answered():
            self._all_ranks(have)
            self._check_dispatch(topk, wanted, handles, have, x, step)
            self._keep_dispatched(call, have)
        self.alive.append(
            Alive(step=step, config=config, topk=topk, mode=mode, wanted=wanted, handles=handles, have=have)
        )

    def _check_dispatch(
        self,
        topk: TopK,
        wanted: Sequence[DispatchResult],
        handles: Sequence[Handle],
        have: Dispatched,
        x: Sequence[Array],
        step: Dispatch | Cached,
    ) -> None:
        check = DispatchCheck(
            topk=topk,
            wanted=wanted,
            handles=handles,
            have=have,
            x=x,
            zero_padding=step.zero_padding,
            column_major=step.payload == "fp8_columns",
            seen=self.seen,
        )
        try:
            check.run()
        except (ConfigError, IndexError, ValueError, KeyError) as error:
            # Tables so wrong that they cannot even be read.
            raise PropertyBroken("metadata", f"cannot be followed: {error}") from error

    def _all_ranks(self, have: Dispatched) -> None:
        ranks = self.program.num_ranks
        if len(have.received) != ranks or [h.rank for h in have.handles] != list(range(ranks)):
            raise PropertyBroken("runs", f"results of {len(have.received)} ranks, must be {ranks}")

    def _cached(self, session: Session, call: int, step: Cached) -> None:
        alive = self.alive[step.of % len(self.alive)]
        tokens = alive.topk.tokens_per_rank
        weights = None
        if step.weights:
            weights = tuple(token_weights(r, i, call) for r, i in enumerate(alive.topk.topk_idx))
        topk = replace(alive.topk, topk_weights=weights)
        x = payload_rows(step, tokens, call, self.seed)
        scales = payload_scales(step, tokens, call, alive.mode.rules)
        wanted, _ = define_dispatch(
            alive.config, topk, x, scales=scales, mode=alive.mode, zero_padding=step.zero_padding
        )
        given = [*x, *(scales or []), *(weights or [])]
        before = _bytes_of(given)
        request = CachedCall(
            x=x,
            scales=scales,
            topk_weights=weights,
            zero_padding=step.zero_padding,
            column_major_scales=step.payload == "fp8_columns",
        )
        have = self._called(lambda: session.dispatch_cached(alive.have, request))
        self._inputs_kept(given, before)
        self.seen.saw_payload(x, _num_crossed(alive.config, topk))
        with self._answered():
            self._all_ranks(have)
            self._check_places(alive.have, have)
            self._check_dispatch(topk, wanted, alive.handles, have, x, step)
            self._keep_dispatched(call, have)
        # From now on the handle that the cached dispatch returned is the one to go on with.
        latest = replace(have, received=alive.have.received)
        self.alive[self.alive.index(alive)] = replace(alive, have=latest)

    def _check_places(self, before: Dispatched, have: Dispatched) -> None:
        for old, new in zip(before.handles, have.handles, strict=True):
            self.seen.add("cached_places", max(1, new.num_real_recv_tokens))
            changed = old.differences(new)
            if changed:
                raise PropertyBroken(
                    "cached_places", f"handle of rank {new.rank} changed in {', '.join(changed)}"
                )

    # --- combine -------------------------------------------------------------------------------------

    def _combine(self, session: Session, call: int, step: Combine) -> None:
        alive = self.alive[step.of % len(self.alive)]
        tokens, columns = alive.topk.tokens_per_rank, alive.config.num_topk
        outputs = None
        if step.received:
            y = [[as_expert_rows(r.recv_x) for r in side] for side in (alive.have.received, alive.wanted)]
        else:
            outputs = expert_outputs(step, tokens, columns, call, self.seed)
            y = [placed_rows(handles, outputs) for handles in (alive.have.handles, alive.handles)]
        weights: list[Any] = [None, None]
        if step.weights:
            by_token = [token_weights(r, i, call) for r, i in enumerate(alive.topk.topk_idx)]
            weights = [placed_weights(handles, by_token) for handles in (alive.have.handles, alive.handles)]
        bias = biases(step, tokens, call, self.seed, outputs)
        given = [*y[0], *(weights[0] or []), *(rows for one in bias for rows in one)]
        before = _bytes_of(given)
        request = CombineCall(y=y[0], topk_weights=weights[0], bias=bias)
        have = self._called(lambda: session.combine(alive.have, request))
        self._inputs_kept(given, before)
        order = library_order(
            expand=alive.mode.expand,
            allow_multiple_reduction=self.program.multiple_reduction,
            is_hybrid=False,
        )
        wanted = define_combine(alive.handles, y[1], order=order, topk_weights=weights[1], bias=bias)
        self.seen.saw_payload(y[1], _num_crossed(alive.config, alive.topk))
        with self._answered():
            self._check_combined(wanted, have)
            for rank, result in enumerate(have):
                self._keep(call, f"combined_x of rank {rank}", result.combined_x)

    def _check_combined(self, wanted: Sequence[Any], have: Sequence[Combined]) -> None:
        if len(have) != len(wanted):
            raise PropertyBroken("runs", f"results of {len(have)} ranks, must be {len(wanted)}")
        names: tuple[tuple[PropertyName, str, bool], ...] = (
            ("combined_rows", "combined_x", True),
            ("combined_weights", "combined_topk_weights", False),
        )
        for name, array, is_sum in names:
            sides = [
                {rank: {array: getattr(result, array)} for rank, result in enumerate(results)}
                for results in (wanted, have)
            ]
            if all(fields[array] is None for side in sides for fields in side.values()):
                continue
            with self.seen.clock(name):
                # The bits of a NaN that a sum makes are the adder's, and +0 equals -0 by contract.
                report = compare(*sides, any_nan=is_sum, strict_zero=not is_sum)
            self.seen.add(name, report.num_elements)
            if not report.is_empty:
                raise PropertyBroken(name, str(report))

    # --- what must stay ------------------------------------------------------------------------------

    def _inputs_kept(self, given: Sequence[Array], before: list[bytes]) -> None:
        self.seen.add("inputs_kept", sum(array.size for array in given))
        if _bytes_of(given) != before:
            raise PropertyBroken("inputs_kept", "the backend wrote to an array that the caller gave it")

    def _keep_dispatched(self, call: int, have: Dispatched) -> None:
        """Remember results, of which later calls must not change a byte."""
        for rank, received in enumerate(have.received):
            for name, value in vars(received).items():
                if value is not None:
                    self._keep(call, f"{name} of rank {rank}", value)
        for handle in have.handles:
            for name, value in vars(handle).items():
                if isinstance(value, np.ndarray):
                    self._keep(call, f"{name} of rank {handle.rank}", value)

    def _keep(self, call: int, name: str, array: Array) -> None:
        self.kept.append((call, name, array, array.tobytes()))

    def _check_kept(self) -> None:
        for call, name, array, before in self.kept:
            self.seen.add("results_kept", array.size)
            if array.tobytes() != before:
                raise PropertyBroken("results_kept", f"a later call changed {name}, a result of call {call}")


def _bytes_of(arrays: Sequence[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def _num_crossed(config: EPConfig, topk: TopK) -> int:
    """Return rows that go to another rank."""
    return sum(
        len(targets_of(config, choices) - {src})
        for src, idx in enumerate(topk.topk_idx)
        for choices in idx.tolist()
    )


def _with_stats(result: DispatchResult, handle: Handle, stats: Array) -> DispatchResult:
    return replace(
        result, cumulative_local_expert_recv_stats=stats + handle.num_unaligned_recv_tokens_per_expert
    )
