"""The grain changes the cost of a run, not its answer."""

import re

import pytest

import epsim.schedule.grain
import epsim.sim.run
from epsim.errors import InputError
from epsim.schedule.grain import MAX_PIECES, Grain
from epsim.sim.run import EventOptions
from epsim.simulate import simulate


def time_us(grain, operation, **arguments):
    [item] = simulate(
        level="events", operations=(operation,), events=EventOptions(grain=Grain.parse(grain)), **arguments
    )
    return item.time_us, item.num_descriptors_per_chunk


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
@pytest.mark.parametrize("ep", [8, 32])
def test_halving_the_chunk_changes_less_than_one_per_cent(ep, operation):
    coarse, size = time_us("chunk", operation, ep=ep)
    fine, _ = time_us(f"chunk:{max(1, size // 2)}", operation, ep=ep)
    assert abs(fine / coarse - 1) < 0.01


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_packets_agree_with_descriptors_on_a_small_case(operation):
    # A packet takes one of eight planes, a descriptor all at once: the tail of the last one differs by
    # at most the time of a descriptor on one plane (45 kB at 45 GB/s), about one microsecond.
    packet, _ = time_us("packet", operation, ep=8, tokens=64)
    sqe, _ = time_us("sqe", operation, ep=8, tokens=64)
    assert abs(packet - sqe) < 1.0


@pytest.mark.parametrize(("ep", "tokens"), [(128, 32), (64, 128), (32, 256)])
def test_small_batches_of_combine_keep_the_pace_of_their_cores(ep, tokens):
    # A newcomer found chunks 54 % too slow here: 16 cores acted as one and walked all homes in turn.
    chunk, _ = time_us("chunk", "combine", ep=ep, tokens=tokens)
    sqe, _ = time_us("sqe", "combine", ep=ep, tokens=tokens)
    assert abs(chunk / sqe - 1) < 0.01


def test_a_chunk_that_is_far_too_coarse_is_seen():
    # Planted: with one chunk per destination the pipeline is gone, and the checks above would fail.
    coarse, _ = time_us("chunk:1048576", "dispatch", ep=8, tokens=1024)
    sqe, _ = time_us("sqe", "dispatch", ep=8, tokens=1024)
    assert abs(sqe / coarse - 1) > 0.01


NO_GRAINS = ["", "chunk:", "chunk:0", "chunk:-1", "sqe:2", "packet:1", "bytes", "chunk:x"]


@pytest.mark.parametrize("text", NO_GRAINS)
def test_what_is_no_grain_is_refused(text):
    with pytest.raises(InputError, match="grain"):
        Grain.parse(text)


@pytest.mark.parametrize("text", ["packet", "sqe", "chunk", "chunk:7"])
def test_a_grain_reads_back(text):
    assert Grain.parse(text).text == text


@pytest.fixture
def num_pieces(monkeypatch):
    """Return a list that gets the pieces of every event run."""
    found, real = [], epsim.sim.run.run_operation

    def counted(*arguments):
        run = real(*arguments)
        found.append(run.num_chunks)
        return run

    monkeypatch.setattr(epsim.sim.run, "run_operation", counted)
    return found


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
@pytest.mark.parametrize("grain", ["packet", "sqe", "chunk:4", "chunk"])
def test_the_pieces_of_a_refusal_are_a_lower_bound(num_pieces, monkeypatch, operation, grain):
    case = {"ep": 8, "tokens": 64}
    for word in (grain, "sqe"):
        time_us(word, operation, **case)
    pieces, descriptors = num_pieces
    monkeypatch.setattr(epsim.schedule.grain, "MAX_PIECES", pieces)
    time_us(grain, operation, **case)
    monkeypatch.setattr(epsim.schedule.grain, "MAX_PIECES", 0)
    with pytest.raises(InputError, match="use level flow") as caught:
        time_us(grain, operation, **case)
    said = int(re.search("at least ([0-9,]+) pieces", caught.value.rule)[1].replace(",", ""))
    assert said <= pieces
    if grain == "packet":
        # Each descriptor has one packet at most that is not full.
        assert pieces <= said + descriptors


def test_too_many_pieces_are_refused_before_the_first_run_with_the_grain_that_fits(num_pieces):
    """Issue 4: a million tokens in packets took 4 GB and never ended."""
    events = EventOptions(grain=Grain.parse("packet"))
    with pytest.raises(InputError, match=f"at most {MAX_PIECES:,}; use grain sqe"):
        simulate(ep=(8, 32), tokens=32_768, events=events, operations=("dispatch",))
    assert num_pieces == []
