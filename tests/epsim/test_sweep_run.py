"""A sweep that is cut anywhere resumes: no row is lost, none doubled, and none evaluated twice."""

import errno
import os

import filelock
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import epsim.files
from epsim.errors import InputError
from epsim.sweep import run_sweep
from epsim.sweep.engines import SweepError, evaluate_chunk, make_engine, run_points
from epsim.sweep.journal import Journal, Record, check_complete
from epsim.sweep.table import make_table
from tests.epsim.sweeping import CALLS, fake_plan

GRID = {"ep": [8, 13, 16], "tokens": [1, 2, 3, 4], "routing": "uniform"}
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@pytest.fixture
def plan(monkeypatch):
    """Return twelve points, four of them impossible."""
    return fake_plan(monkeypatch, grid=GRID)


@pytest.fixture
def finished(plan, tmp_path, monkeypatch):
    """Return the bytes of the table and of the journal, each as an undisturbed run leaves them."""
    out = tmp_path / "whole.csv"
    monkeypatch.setattr(Journal, "remove", lambda self: None)
    run_sweep(plan, out)
    monkeypatch.undo()
    fake_plan(monkeypatch, grid=GRID)
    return out.read_bytes(), (tmp_path / "whole.csv.journal.jsonl").read_bytes()


def test_a_table_has_one_row_per_point_and_nothing_stays_behind(plan, tmp_path):
    table = run_sweep(plan, tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "point,ep,tokens,routing,status,time_us,peak,bound,message"
    assert lines[1] == "0,8,1,uniform,ok,81.0,1,EP8,"
    assert lines[5] == "4,13,1,uniform,refused,,,,ep is 13: brings bad luck"
    assert (len(lines), len(CALLS), table.column("point")) == (13, 12, list(range(12)))
    assert os.listdir(tmp_path) == ["t.csv"]


@SAME_FOLDER
@given(st.data())
def test_a_journal_cut_at_any_byte_resumes_to_the_same_file(plan, finished, tmp_path, data):
    """What a SIGKILL or a power cut leaves is a journal of any length; it may happen twice."""
    table, journal = finished
    out, path = tmp_path / "cut.csv", tmp_path / "cut.csv.journal.jsonl"
    cut = data.draw(st.integers(0, len(journal)))
    torn = data.draw(st.binary(max_size=3))
    path.write_bytes(journal[:cut] + torn)
    num_whole = len(set(path.read_bytes().split(b"\n")) & set(journal.splitlines()))
    CALLS.clear()
    run_sweep(plan, out)
    assert out.read_bytes() == table
    assert len(CALLS) == 12 - max(0, num_whole - 1)
    assert not path.exists()


@SAME_FOLDER
@given(st.integers(0, 2500), st.booleans())
def test_a_disk_that_fills_at_any_byte_says_so_and_resumes(
    plan, finished, tmp_path, monkeypatch, room, syncs
):
    """Writes come back short and then fail, as on a full disk; or all is taken and the sync fails."""
    out, path = tmp_path / "full.csv", tmp_path / "full.csv.journal.jsonl"
    for old in (out, path):
        old.unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        fill_disk(patch, room, syncs)
        message = refusal_of(lambda: run_sweep(plan, out))
    is_full = room < len(finished[1]) or (syncs and room == len(finished[1]))
    assert ("No space left on device" in message) is is_full
    assert out.exists() is not is_full
    run_sweep(plan, out)
    assert out.read_bytes() == finished[0]
    assert not path.exists()


def refusal_of(call):
    """Return the sentence that a call is refused with, "" when it is not."""
    try:
        call()
    except InputError as error:
        return str(error)
    return ""


def fill_disk(patch, room, syncs):
    """Let the journal's file take `room` bytes and no more."""
    left, write = [room], os.write

    def short_write(file, data):
        if not left[0] and not syncs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(file, data if syncs else data[: left[0]])
        left[0] = max(0, left[0] - taken)
        return taken

    def sync(file):
        if syncs and not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("epsim.sweep.journal.os.write", short_write)
    patch.setattr("epsim.sweep.journal.os.fsync", sync)


def test_a_full_disk_at_the_last_file_keeps_every_point(plan, finished, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "last.csv"
    out.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(epsim.files, "_write_new", full)
        with pytest.raises(InputError, match="No space left"):
            run_sweep(plan, out)
    assert out.read_text() == "old"
    CALLS.clear()
    run_sweep(plan, out)
    assert (out.read_bytes(), CALLS) == (finished[0], [])


def test_a_fault_of_ours_stops_the_sweep_and_names_the_point(monkeypatch, tmp_path):
    """What was finished is kept; the failed point is tried again."""
    plan = fake_plan(monkeypatch, grid={"ep": [8], "tokens": [1, 2, 13, 4]})
    with pytest.raises(SweepError, match=r"point 2 \(ep=8, tokens=13\)(.|\n)*ZeroDivisionError"):
        run_sweep(plan, tmp_path / "t.csv")
    assert sorted(os.listdir(tmp_path)) == ["t.csv.journal.jsonl", "t.csv.lock"]
    CALLS.clear()
    with pytest.raises(SweepError):
        run_sweep(plan, tmp_path / "t.csv")
    assert CALLS[0]["tokens"] == 13
    assert not {1, 2} & {call["tokens"] for call in CALLS}
    assert not (tmp_path / "t.csv").exists()


def test_another_plan_does_not_touch_the_journal(plan, monkeypatch, finished, tmp_path):
    path = tmp_path / "t.csv.journal.jsonl"
    path.write_bytes(finished[1][:-5])
    other = fake_plan(monkeypatch, grid=GRID | {"tokens": [1, 2, 3, 5]})
    with pytest.raises(InputError, match="belongs to another sweep"):
        run_sweep(other, tmp_path / "t.csv")
    assert (path.read_bytes(), CALLS) == (finished[1][:-5], [])


def test_two_sweeps_on_one_output_refuse_each_other(plan, tmp_path):
    out = tmp_path / "t.csv"
    with Journal(out, plan), pytest.raises(InputError, match="another sweep"):
        run_sweep(plan, out)
    lock = filelock.FileLock(f"{out}.lock")
    with lock, pytest.raises(InputError, match="another sweep"):
        run_sweep(plan, out)
    run_sweep(plan, out)
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize("name", ["t.txt", "t", "no/t.csv"])
def test_a_name_that_cannot_be_written_is_refused_before_any_work(plan, tmp_path, name):
    with pytest.raises(InputError, match=r"must end in|folder does not exist"):
        run_sweep(plan, tmp_path / name)
    assert (CALLS, os.listdir(tmp_path)) == ([], [])


def records_of(plan):
    """Return a right record for each point."""
    return [
        Record(point=point, digest=plan.point_digest(point), status="ok", cells=[1.0, 1, "x"], message="")
        for point in plan.point_ids
    ]


def test_a_lost_a_doubled_and_a_foreign_row_are_caught(plan, tmp_path):
    """Planted faults of the check that counts rows."""
    right = records_of(plan)
    check_complete(plan, right[::-1], tmp_path)
    foreign = Record(point=0, digest=right[1].digest, status="ok", cells=[], message="")
    unknown = Record(point=99, digest=right[0].digest, status="ok", cells=[], message="")
    for faulty, sentence in (
        (right[:-1], "lacks 1 of 12 points, first 11"),
        ([], "lacks 12"),
        ([*right, right[3]], "point 3 2 times"),
        ([*right[1:], right[1]], "point 1 2 times"),
        ([foreign, *right[1:]], "another grid"),
        ([*right, unknown], "point 99 of another grid"),
    ):
        with pytest.raises(InputError, match=sentence):
            check_complete(plan, faulty, tmp_path)


@pytest.mark.parametrize(("copies", "sentence"), [(0, "lacks"), (2, "2 times")])
def test_a_journal_that_loses_or_doubles_a_row_writes_no_table(plan, tmp_path, monkeypatch, copies, sentence):
    append = Journal.append
    monkeypatch.setattr(
        Journal, "append", lambda self, records: append(self, [*records[1:], *records[:1] * copies])
    )
    with pytest.raises(InputError, match=sentence):
        run_sweep(plan, tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


@given(st.lists(st.floats() | st.none(), min_size=12, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_float_survives_the_journal(plan, tmp_path_factory, figures):
    """Infinity, NaN and the last bit too: a resumed sweep must not differ from one that was not cut."""
    records = [
        Record(point=r.point, digest=r.digest, status="ok", cells=[figure, 1, 'a,"\n'], message="")
        for r, figure in zip(records_of(plan), figures, strict=True)
    ]
    with Journal(tmp_path_factory.mktemp("floats") / "t.csv", plan) as journal:
        journal.append(records)
        again = journal.records()
    assert make_table(plan, again).to_csv() == make_table(plan, records).to_csv()


class Backwards:
    """An engine that finishes the last chunk first."""

    num_slots = 3

    def submit(self, payload):
        return payload

    def first_done(self, handles):
        return len(handles) - 1, evaluate_chunk(handles[-1])

    def close(self):
        pass


def test_the_order_in_which_chunks_end_changes_nothing(plan, finished, tmp_path, monkeypatch):
    monkeypatch.setattr("epsim.sweep.runner.make_engine", lambda *_, **__: Backwards())
    run_sweep(plan, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == finished[0]


def test_chunks_grow_while_points_are_quick(monkeypatch):
    plan = fake_plan(monkeypatch, grid={"ep": [8], "tokens": "100..2099/+1"})
    points = ((point, plan.values(point)) for point in plan.point_ids)
    sizes = [len(outcomes) for outcomes in run_points(make_engine("local", 1), "fake", points)]
    assert (sizes[0], max(sizes), sum(sizes)) == (1, 512, 2000)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [({"name": "mpi"}, "local or ray"), ({"jobs": 0}, "at least 1"), ({"address": "auto"}, "engine ray")],
)
def test_an_engine_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        make_engine(**{"name": "local", "num_points": 5, **arguments})
