"""A run on the twin as a timeline, and beside the event simulator's schedule."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from epsim.cli import run
from epsim.conform.program import Cached, Combine, Dispatch, Program, program_text
from epsim.conform.search import rerun
from epsim.conform.twinschedule import TwinRun, program_differences
from epsim.errors import InputError
from epsim.trace.perfetto import read_perfetto
from epsim.trace.twin import STEP_PS, TwinEvent, read_twin_events, twin_trace
from native.backends.protocol import Schedule
from native.backends.twin import TwinBackend, twin_backend
from native.settings import JitSettings
from tests.native.jitkit import STRICT

Events = list[TwinEvent]


@pytest.fixture(scope="module")
def backend(jit_cache: Path) -> TwinBackend:
    return twin_backend(JitSettings(cache_dirs=(jit_cache,), cxx_flags=STRICT))


def program_of(seed: int, *, ranks: int, aivs: int, tokens: int, local: int = 2) -> Program:
    """Return a dispatch, a cached one and a combine of a random routing, some choices masked."""
    rng = random.Random(seed)
    experts = ranks * local
    columns = min(experts, 3)
    topk = tuple(
        tuple(
            tuple(expert if rng.random() > 0.1 else -1 for expert in rng.sample(range(experts), columns))
            for _ in range(tokens if rank == 0 else rng.randint(0, tokens))
        )
        for rank in range(ranks)
    )
    first = Dispatch(
        topk=topk, experts=experts, columns=columns, capacity=tokens, hidden=64, payload="fp8", packs=2
    )
    return Program(steps=(first, Cached(hidden=32), Combine(hidden=96)), aivs=aivs)


def traced(backend: TwinBackend, program: Program, schedule: Schedule, folder: Path) -> Events:
    """Run a program, which must hold, and return its operations."""
    judged = replace(backend, trace=folder / "trace")
    assert rerun(judged, program, seed=0, schedule=schedule) is None
    return read_twin_events(folder / "trace")


@pytest.mark.parametrize(
    ("ranks", "aivs", "tokens", "strategy"),
    [
        (2, 2, 5, "random"),
        (2, 4, 40, "pct"),
        (3, 3, 16, "late"),
        (4, 2, 120, "delay_pipe"),
        (4, 4, 12, "pct"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_twin_sends_what_the_simulator_sends_in_its_order(
    backend, tmp_path, ranks, aivs, tokens, strategy, seed
):
    """Odd seeds let a call that nobody wants overlap; combine of 120 tokens rings more than once."""
    program = program_of(tokens + seed, ranks=ranks, aivs=aivs, tokens=tokens)
    events = traced(backend, program, Schedule(strategy=strategy, seed=seed), tmp_path)
    assert program_differences(program, events) == ()
    schedule = TwinRun(events=events, num_ranks=ranks, num_aivs=aivs).schedule(2 * (1 + seed))
    assert max(len(bells) for bells in schedule.doorbells.values()) == (2 if tokens == 120 else 1)


@pytest.mark.parametrize(
    ("switch", "option", "said"),
    [
        ("rotate_by_aiv", "rotates_by_aiv", "transfer 0 is"),
        ("early_doorbells", "rings_early", "doorbells for"),
    ],
)
def test_each_switch_of_the_kernels_is_one_of_the_simulator(backend, tmp_path, switch, option, said):
    """With the same switch on both sides nothing differs; on one side only, the text says what does."""
    program = program_of(3, ranks=4, aivs=2, tokens=190, local=1)
    program = replace_steps(program, 1)
    events = traced(replace(backend, switches={switch: 1}), program, Schedule(), tmp_path)
    assert program_differences(program, events, **{option: True}) == ()
    found = program_differences(program, events)
    assert found
    assert all(said in text or "not so" in text for text in found)


def replace_steps(program: Program, count: int) -> Program:
    """Return a program of the first steps only."""
    return Program(steps=program.steps[:count], aivs=program.aivs)


def positions(events: Events, kind: str) -> list[int]:
    """Return where events of a kind stand; of requests, those that move something."""
    return [i for i, e in enumerate(events) if e.kind == kind and not (kind == "urma_post" and e.is_nop)]


def lose_a_transfer(events: Events) -> Events:
    idx = positions(events, "urma_post")[0]
    return events[:idx] + events[idx + 1 :]


def turn_two_transfers(events: Events) -> Events:
    """Exchange neighbours of one queue that differ."""
    changed = list(events)
    for one, two in pairwise(positions(events, "urma_post")):
        a, b = events[one], events[two]
        if (a.rank, a.jetty) == (b.rank, b.jetty) and a.address >> 40 != b.address >> 40:
            changed[one], changed[two] = b, a
            return changed
    raise AssertionError("no such pair")


def ring_early(events: Events) -> Events:
    """Move the first doorbell, with what it posts, in front of the first signal of a barrier."""
    idx, begin = positions(events, "doorbell")[0], positions(events, "atomic")[0]
    bell = [events[idx], *(e for e in events[idx + 1 : idx + 9] if e.kind == "urma_post")]
    return [*events[:begin], *bell, *(e for e in events[begin:] if e not in bell)]


def ring_twice(events: Events) -> Events:
    """Let a second doorbell ring within the transfers of a first."""
    for one, two in pairwise(positions(events, "urma_post")):
        if two == one + 1:
            bell = next(e for e in reversed(events[:two]) if e.kind == "doorbell")
            return [*events[:two], bell, *events[two:]]
    raise AssertionError("no such pair")


def complete_late(events: Events) -> Events:
    """Move the first completion to the end of the run."""
    idx = positions(events, "cqe")[0]
    return [*events[:idx], *events[idx + 1 :], events[idx]]


def count_late(events: Events) -> Events:
    """Move the first doorbell of AIV 0 in front of the counts that came last."""
    bell = next(i for i in positions(events, "doorbell") if events[i].aiv == 0)
    last = [i for i in positions(events, "atomic") if i < bell and events[i].address >> 40 == 1 + 0][-1]
    moved = [events[bell], *(e for e in events[bell + 1 : bell + 9] if e.kind == "urma_post")]
    rest = [e for e in events[last:] if e not in moved]
    return [*events[:last], *moved, *rest]


def read_early(events: Events) -> Events:
    """Move the first copy of an epilogue to its launch, in front of the exit barrier."""
    launch = next(i for i in positions(events, "launch") if events[i].file == "dispatch_epilogue")
    rank = events[launch].rank
    copy = next(i for i in positions(events, "copy_in") if i > launch and events[i].rank == rank)
    return [*events[: launch + 1], events[copy], *events[launch + 1 : copy], *events[copy + 1 :]]


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lose_a_transfer, "are missing, 1 times"),
        (turn_two_transfers, "; in the simulator "),
        (ring_early, "has come to the entry barrier before the first doorbell"),
        (ring_early, "are complete before the doorbell"),
        (ring_twice, "doorbells for "),
        (complete_late, "are complete before it comes to the exit barrier"),
        (count_late, "counts of all ranks have come before the doorbell"),
        (read_early, "has come to the exit barrier before the epilogue reads"),
    ],
)
def test_a_planted_difference_is_named(
    backend, tmp_path, plant: Callable[[Events], Events], said: str
) -> None:
    """One change of the trace each; the unchanged one has no difference."""
    program = replace_steps(program_of(7, ranks=3, aivs=2, tokens=24), 1)
    events = traced(backend, program, Schedule(strategy="random"), tmp_path)
    assert program_differences(program, events) == ()
    found = program_differences(program, plant(events))
    assert any(said in text for text in found), found


def test_refusals(backend, tmp_path):
    """What the simulator does not have, and calls that are not in the trace."""
    program = program_of(1, ranks=2, aivs=2, tokens=3)
    with pytest.raises(InputError, match=r"^call is 0: must be below the 0 calls that have ended$"):
        program_differences(program, [])
    single = Program(steps=program.steps, aivs=2, multiple_reduction=False)
    events = traced(backend, single, Schedule(), tmp_path)
    with pytest.raises(InputError, match=r"^multiple_reduction is False: must be on"):
        program_differences(single, events)
    (tmp_path / "trace").write_text('{"step": 1}\n')
    with pytest.raises(InputError, match=r"must be a trace of the twin"):
        read_twin_events(tmp_path / "trace")


def test_the_timeline_holds_the_run(backend, tmp_path):
    """Kernels, lane functions and requests are spans, all else a step; what is unfinished reaches the end."""
    program = program_of(2, ranks=2, aivs=2, tokens=4)
    events = traced(backend, program, Schedule(), tmp_path)
    drawn = twin_trace(events, "a run")
    hidden = {"alloc", "kernel_end", "vf_end", "urma_done"}
    assert drawn.num_spans == sum(event.kind not in hidden for event in events)
    assert {"dispatch", "dispatch_epilogue", "combine", "combine_epilogue", "write"} <= set(drawn.names)
    assert drawn.last_end_ps <= (events[-1].step + 1) * STEP_PS
    assert "no duration" in drawn.meta["time"]
    cut = twin_trace(events[: len(events) // 2], "a run that broke off")
    assert cut.last_end_ps == (events[len(events) // 2 - 1].step + 1) * STEP_PS


@pytest.mark.parametrize("name", ["run.json", "run.html"])
def test_conform_writes_the_timeline_of_an_example(monkeypatch, capsys, jit_cache, tmp_path, name):
    monkeypatch.setenv("EPSIM_JIT_CACHE_DIR", str(jit_cache))
    monkeypatch.setenv("EPSIM_JIT_CXXFLAGS", " ".join(STRICT))
    text = program_text(program_of(2, ranks=2, aivs=2, tokens=4))
    words = ["conform", "--backend", "twin", "--example", text, "--trace", str(tmp_path / name)]
    assert run(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "holds: all 3 calls", "schedule: as the event simulator's", f"wrote {tmp_path / name}"
    ]  # fmt: skip
    if name == "run.json":
        assert "dispatch" in read_perfetto(tmp_path / name).names
    else:
        assert "dispatch_epilogue" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "twin", "--trace", "a.html"], "goes with --example"),
        (["--backend", "reference", "--example", "{}", "--trace", "a.html"], "goes with --backend twin"),
        (["--backend", "twin", "--example", "{}", "--trace", "a.csv"], "must end in .html or .json"),
        (
            ["--backend", "twin", "--example", "{}", "--trace", "no/a.html"],
            "output file is 'no/a.html': cannot be written",
        ),
    ],
)
def test_what_a_timeline_needs(capsys, words, said):
    assert run(["conform", *words]) == 2
    assert said in capsys.readouterr().err
