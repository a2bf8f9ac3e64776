"""The reference as a backend with one planted fault: what goes wrong in kernels, in a few lines each."""

from dataclasses import dataclass

import numpy as np

from epsim.conform.backends.reference import ReferenceBackend, ReferenceSession
from tests.meta import faults_of_combine, faults_of_handles, faults_of_results  # noqa: F401 - fill FAULTS
from tests.meta.faults import FAULTS, fault


@fault("session")
def combine_uses_the_latest_handle(session):
    right = session.inner.combine
    session.inner.combine = lambda before, call: right(session.memory["latest"], call)


@fault("session")
def cached_dispatch_uses_the_latest_handle(session):
    right = session.inner.dispatch_cached
    session.inner.dispatch_cached = lambda before, call: right(session.memory["latest"], call)


@fault("session")
def results_live_in_the_buffer(session):
    """Let the next call overwrite what the last one returned."""
    right = session.inner.dispatch_cached

    def cached(before, call):
        have = right(before, call)
        for result, old in zip(have.received, session.memory["latest"].received, strict=True):
            raw = old.recv_x.reshape(-1).view(np.uint8)
            new = result.recv_x.reshape(-1).view(np.uint8)
            raw[: len(new)] = new[: len(raw)]
        return have

    session.inner.dispatch_cached = cached


@fault("session")
def input_is_scratch(session):
    right = session.inner.combine

    def spoil(before, call):
        results = right(before, call)
        for rows in call.y:
            if rows.size:
                rows[0] = 0
        return results

    session.inner.combine = spoil


@fault("session")
def rank_without_tokens_crashes(session):
    right = session.inner.dispatch

    def crash(call):
        if 0 in call.topk.tokens_per_rank:
            raise ZeroDivisionError("tokens per core")
        return right(call)

    session.inner.dispatch = crash


class _Inner(ReferenceSession):
    """A session whose methods a fault may replace."""


@dataclass(frozen=True, kw_only=True)
class FaultyBackend(ReferenceBackend):
    """The reference with one fault."""

    fault: str = ""

    def open(self, spec, schedule):
        return FaultySession(self, spec, schedule)


class FaultySession:
    """A session of the reference; what comes out goes through the fault."""

    def __init__(self, backend, spec, schedule):
        """Open the right one."""
        self.inner = _Inner(backend.edition, spec, schedule)
        self.stage, self.function = FAULTS.get(backend.fault, ("none", None))
        self.memory = {}
        if self.stage == "session":
            self.function(self)

    def dispatch(self, call):
        have = self.inner.dispatch(call)
        self.memory["latest"] = have
        self.memory.setdefault("first", have)
        return self.function(have, call, self.memory) if self.stage in ("received", "handle") else have

    def dispatch_cached(self, before, call):
        have = self.inner.dispatch_cached(before, call)
        return self.function(have, call, self.memory) if self.stage in ("received", "cached") else have

    def combine(self, before, call):
        results = self.inner.combine(before, call)
        return self.function(results, before, call) if self.stage == "combined" else results

    def close(self):
        pass
