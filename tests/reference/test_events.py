"""Deferred epilogues: the whole log of what ran is compared, never a count alone."""

import gc
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference.events import CompletedEvent, EventError, EventOverlap


class Recorded:
    """A native event that logs its waits and fails as often as it is told to."""

    def __init__(self, log, failures=0):
        """Log to `log`; the first `failures` waits fail."""
        self.log, self.failures = log, failures

    def current_stream_wait(self):
        if self.failures:
            self.failures -= 1
            self.log.append("wait failed")
            raise TimeoutError("peer 3 is silent")
        self.log.append("wait")


@pytest.fixture
def log():
    return []


def hooked(log, value="result", failures=0):
    overlap = EventOverlap(Recorded(log, failures))

    def hook():
        log.append("hook")
        return value

    overlap.register_hook_after_wait(hook)
    return overlap


def test_hook_runs_after_the_native_wait_and_gives_its_value(log):
    overlap = hooked(log, value=("recv_x", None, "weights", "handle"))
    assert overlap.is_pending
    assert overlap.wait() == ("recv_x", None, "weights", "handle")
    assert log == ["wait", "hook"]
    assert not overlap.is_pending


def test_second_wait_waits_again_but_returns_none(log):
    overlap = hooked(log)
    overlap.wait()
    assert overlap.wait() is None
    assert log == ["wait", "hook", "wait"]


def test_wait_without_a_hook_returns_none(log):
    assert EventOverlap(Recorded(log)).current_stream_wait() is None
    assert log == ["wait"]


def test_second_hook_is_refused_and_the_first_still_runs(log):
    overlap = hooked(log)
    with pytest.raises(EventError, match="registered already"):
        overlap.register_hook_after_wait(lambda: "other")
    assert overlap.wait() == "result"


def test_misuse_is_what_deep_ep_raises():
    assert issubclass(EventError, AssertionError)
    with pytest.raises(AssertionError, match="event is None"):
        EventOverlap().wait()


def test_failing_native_wait_keeps_the_hook(log):
    overlap = hooked(log, failures=1)
    with pytest.raises(TimeoutError, match="peer 3"):
        overlap.wait()
    assert overlap.is_pending
    assert overlap.wait() == "result"
    assert log == ["wait failed", "wait", "hook"]


def test_failing_hook_is_not_run_again(log):
    overlap = EventOverlap(Recorded(log))

    def hook():
        log.append("hook")
        raise MemoryError("no room for recv_x")

    overlap.register_hook_after_wait(hook)
    with pytest.raises(MemoryError):
        overlap.current_stream_wait(release_handle=True)
    assert overlap.event is not None  # nothing was released, so the caller can still order itself after it
    assert overlap.wait() is None
    assert log == ["wait", "hook", "wait"]


def test_hook_that_waits_on_its_own_event_is_not_run_twice(log):
    overlap = EventOverlap(Recorded(log))

    def hook():
        log.append("hook")
        assert overlap.wait() is None
        return "outer"

    overlap.register_hook_after_wait(hook)
    assert overlap.wait() == "outer"
    assert log == ["wait", "hook", "wait"]


def test_hook_may_register_its_successor(log):
    overlap = EventOverlap(Recorded(log))
    overlap.register_hook_after_wait(lambda: overlap.register_hook_after_wait(lambda: "sorted"))
    assert overlap.current_stream_wait(release_handle=True) is None
    assert overlap.is_pending
    assert overlap.current_stream_wait(release_handle=True) == "sorted"
    assert overlap.event is None


def test_with_block_waits_at_its_end(log):
    with hooked(log):
        log.append("body")
    assert log == ["body", "wait", "hook"]


def test_with_block_waits_after_an_error_too(log):
    overlap = hooked(log)
    with pytest.raises(KeyError), overlap:
        raise KeyError
    assert log == ["wait", "hook"]


def test_with_block_without_an_event_does_not_wait(log):
    with EventOverlap():
        log.append("body")
    assert log == ["body"]


def test_release_asked_for_a_block_holds_for_that_block_only(log):
    overlap = hooked(log)
    with overlap(release_handle=True) as same:
        assert same is overlap
    assert overlap.event is None
    overlap.event = CompletedEvent()
    with overlap:
        pass
    assert overlap.event is not None


class Tensor:
    """Something that a weak reference can follow."""


def alive(reference):
    gc.collect()
    return reference() is not None


def test_hook_keeps_its_tensors_until_the_wait_and_no_longer(log):
    x = Tensor()
    seen = weakref.ref(x)
    overlap = EventOverlap(Recorded(log))
    overlap.register_hook_after_wait(lambda x=x: id(x))
    del x
    assert alive(seen)
    overlap.wait()
    assert not alive(seen)


def test_failed_native_wait_keeps_tensors(log):
    x = Tensor()
    seen = weakref.ref(x)
    overlap = EventOverlap(Recorded(log, failures=1), extra_tensors=(x,))
    del x
    with pytest.raises(TimeoutError):
        overlap.current_stream_wait(release_handle=True)
    assert alive(seen)
    overlap.current_stream_wait(release_handle=True)
    assert not alive(seen)


def test_extra_tensors_outlive_a_wait_that_keeps_the_handle(log):
    x = Tensor()
    seen = weakref.ref(x)
    overlap = EventOverlap(Recorded(log), extra_tensors=(x,))
    del x
    overlap.wait()
    assert alive(seen)  # a second stream may still wait
    overlap.current_stream_wait(release_handle=True)
    assert not alive(seen)


def test_dropping_the_object_drops_its_protection(log):
    x = Tensor()
    seen = weakref.ref(x)
    overlap = EventOverlap(Recorded(log), extra_tensors=(x,))
    del x, overlap
    assert not alive(seen)


class EventMachine(RuleBasedStateMachine):
    """Any order of calls: each registered hook runs at most once, and only after a good native wait."""

    @initialize()
    def start(self):
        self.log = []
        self.native = Recorded(self.log)
        self.overlap = EventOverlap(self.native)
        self.registered, self.ran = 0, []

    def _hook(self, number, fails):
        def hook():
            assert self.log[-1] == "wait"
            self.ran.append(number)
            if fails:
                raise RuntimeError
            return number

        return hook

    @rule(fails=st.booleans())
    def register(self, fails):
        if self.overlap.is_pending:
            with pytest.raises(EventError):
                self.overlap.register_hook_after_wait(lambda: None)
        else:
            self.fails = fails
            self.overlap.register_hook_after_wait(self._hook(self.registered, fails))
            self.registered += 1

    @precondition(lambda self: self.overlap.event is not None)
    @rule(native_fails=st.booleans(), release=st.booleans())
    def wait(self, native_fails, release):
        self.native.failures = int(native_fails)
        was_pending = self.overlap.is_pending
        if native_fails:
            with pytest.raises(TimeoutError):
                self.overlap.current_stream_wait(release)
            assert self.overlap.is_pending == was_pending
        elif was_pending and self.fails:
            with pytest.raises(RuntimeError):
                self.overlap.current_stream_wait(release)
            assert self.overlap.event is not None
        else:
            expected = self.registered - 1 if was_pending else None
            assert self.overlap.current_stream_wait(release) == expected
            assert (self.overlap.event is None) == release

    @precondition(lambda self: self.overlap.event is None)
    @rule()
    def wait_on_released(self):
        with pytest.raises(EventError):
            self.overlap.wait()
        self.overlap.event = self.native

    @invariant()
    def hooks_ran_once_in_order(self):
        assert self.ran == list(range(self.registered - self.overlap.is_pending))


TestEventMachine = EventMachine.TestCase
TestEventMachine.settings = settings(stateful_step_count=20)
