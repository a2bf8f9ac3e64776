"""`epsim exchange`: export and import end to end, folders whole or not at all, the comparison, bad input."""

import json
import os

import numpy as np
import pytest

from epsim.cli.exchange import app
from epsim.errors import InputError
from epsim.exchange import folder as folders
from epsim.exchange.case import Imported
from epsim.exchange.compare import BOUND, EVENTS, FLOW, compare, events_makespan, our_makespans
from epsim.exchange.folder import RECORD_FILE, read_record, record_of, write_folder
from epsim.sim.transfers import LEAST_CHUNK_BYTES
from tests.epsim.exchanged import htsim_log, small_case, task_statistics, two_cards
from topology import Router, ubl128

SMALL = ("--ep", "4", "--tokens", "8", "--experts", "16", "--topk", "2")


def run(*args):
    """Run a command in this process."""
    app([str(arg) for arg in args], exit_on_error=False, result_action="return_value")


def imported_like(case, factor):
    """Make results that are a factor above the exact fluid."""
    makespan_ps = round(our_makespans(case)[FLOW] * factor)
    finish_ps = np.full(len(case.transfers()), makespan_ps)
    return Imported(simulator="other", transport="RoCE", finish_ps=finish_ps, rounding_ps=2)


def test_an_ns3ub_case_goes_out_and_its_results_come_back(tmp_path, capsys):
    case = tmp_path / "case"
    run("export", case, "--to", "ns-3-ub", *SMALL)
    assert "transfers" in capsys.readouterr().out
    (case / "output").mkdir()
    text = task_statistics((case / "traffic.csv").read_text())
    (case / "output" / "task_statistics.csv").write_text(text)
    run("import", case, "--json")
    rows = json.loads(capsys.readouterr().out)
    assert [(row["simulator"], row["model"]) for row in rows] == [
        ("epsim", BOUND), ("epsim", FLOW), ("epsim", EVENTS), ("ns-3-UB", "URMA write, spray"),
    ]  # fmt: skip
    assert rows[1]["gap"] == 0.0
    for row in rows:
        assert row["gap"] == row["makespan_ps"] / rows[1]["makespan_ps"] - 1
    assert rows[2]["makespan_ps"] > rows[0]["makespan_ps"]


def test_an_htsim_case_goes_out_and_its_log_comes_back(tmp_path, capsys):
    case, log = tmp_path / "case", tmp_path / "htsim.log"
    run("export", case, "--to", "htsim", "--system", "leaf-spine", *SMALL, "--op", "combine")
    record = read_record(case)
    rebuilt = record.case(folders_topology("leaf-spine"))
    log.write_text(htsim_log(rebuilt))
    capsys.readouterr()
    run("import", case, log, "--transport", "RoCE, ECMP")
    out = capsys.readouterr().out
    assert "RoCE, ECMP" in out
    assert out.splitlines()[1].split() == ["simulator", "model", "makespan", "gap"]
    with pytest.raises(InputError, match="must name what htsim printed"):
        run("import", case)


@pytest.mark.parametrize(
    ("words", "rule"),
    [("--path-seed 4", "goes with --policy flow-hash"), ("--path-seed 0", "goes with --policy flow-hash"),
     ("--policy pinned --path-seed 1", "goes with --policy flow-hash"),
     ("--policy flow-hash --path-seed -1", "from 0 to 2.64 - 1"),
     ("--policy flow-hash --path-seed 18446744073709551616", "from 0 to 2.64 - 1")],
)  # fmt: skip
def test_a_path_seed_that_would_be_ignored_or_taken_for_another_is_refused(tmp_path, words, rule):
    with pytest.raises(InputError, match=rule):
        run("export", tmp_path / "case", "--to", "simgrid", *SMALL, *words.split())
    assert list(tmp_path.iterdir()) == []


def test_the_last_path_seed_is_kept(tmp_path):
    words = ["--policy", "flow-hash", "--path-seed", str(2**64 - 1)]
    run("export", tmp_path / "case", "--to", "simgrid", *SMALL, *words)
    assert read_record(tmp_path / "case").seed == 2**64 - 1


def folders_topology(system):
    """Build a preset."""
    from epsim.platform.systems import load_system

    return load_system(system).topology


def test_chakra_traces_are_checked_against_their_case(tmp_path, capsys):
    pytest.importorskip("google.protobuf", reason="the extra exchange (protobuf) is not installed")
    case = tmp_path / "case"
    run("export", case, "--to", "chakra", *SMALL)
    run("import", case)
    assert "the traces send and receive the bytes of the case" in capsys.readouterr().out
    os.replace(case / "case.0.et", case / "case.1.et")
    with pytest.raises(InputError, match="cannot be read"):
        run("import", case)


def test_a_combine_is_a_dispatch_the_other_way(tmp_path):
    for op in ("dispatch", "combine"):
        run("export", tmp_path / op, "--to", "simgrid", *SMALL, "--op", op)
    there, back = (np.array(read_record(tmp_path / op).bytes_matrix) for op in ("dispatch", "combine"))
    assert ((there > 0) == (back.T > 0)).all()
    assert (there.diagonal() == 0).all()


def test_a_result_below_the_busiest_link_is_another_case():
    """Bits taken for bytes, or faster lines, make a run that no schedule can reach."""
    case = small_case()
    ours = our_makespans(case)
    assert list(ours) == [BOUND, FLOW]
    rows = compare(ours, [imported_like(case, 1.5)])
    assert [round(row.gap, 3) for row in rows] == [round(ours[BOUND] / ours[FLOW] - 1, 3), 0.0, 0.5]
    with pytest.raises(InputError, match="busiest link"):
        compare(ours, [imported_like(case, 1 / 8)])
    with pytest.raises(InputError, match="must be positive"):
        compare({}, [])


def test_a_case_with_phases_has_the_bound_alone():
    case = small_case(phase=np.arange(16).reshape(4, 4))
    assert list(our_makespans(case)) == [BOUND]
    assert events_makespan(case) is None


@pytest.mark.parametrize("policy", ["spray", "flow-hash"])
def test_events_of_a_case_are_the_line_and_its_latency(policy):
    """One transfer alone: what its bytes need, the latency, and the engine's time for the first chunk."""
    case = two_cards(bytes_matrix=np.array([[0, 0], [8 << 20, 0]]))
    late = events_makespan(case, policy) - our_makespans(case, policy)[BOUND]
    router = Router(case.topology, case.npus)
    latency = int(router.find(case.npus[[1]], case.npus[[0]], policy).latency_ps(case.topology)[0])
    egress = case.topology.link_bytes_per_s()[case.topology.links_of(1)].sum()
    served_ps = -(-LEAST_CHUNK_BYTES * 10**12 // int(egress))
    rounded_ps = 2 * (8 << 20) // LEAST_CHUNK_BYTES
    assert latency <= late <= latency + served_ps + rounded_ps


def test_a_late_start_is_seen_by_the_events():
    late = np.array([0, 10**9])
    assert events_makespan(two_cards(start_ps=late)) == events_makespan(two_cards()) + 10**9


def test_the_record_gives_the_case_back_and_sees_that_the_system_changed():
    case = small_case(start_ps=np.array([0, 5, 0, 0]), phase=np.arange(16).reshape(4, 4))
    record = record_of(case, simulator="chakra", system="x")
    again = record.case(case.topology)
    for field in ("npus", "bytes_matrix", "start_ps", "phase"):
        assert (getattr(again, field) == getattr(case, field)).all()
    with pytest.raises(InputError, match="when it was exported"):
        record.case(ubl128(4))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 1}', "\x80"])
def test_a_damaged_record_is_refused(tmp_path, content):
    (tmp_path / RECORD_FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"damaged|UTF-8"):
        read_record(tmp_path)


def test_rows_of_unlike_length_are_refused(tmp_path):
    run("export", tmp_path / "case", "--to", "simgrid", *SMALL)
    path = tmp_path / "case" / RECORD_FILE
    record = json.loads(path.read_text())
    record["bytes_matrix"][1].append(3)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="square"):
        run("import", tmp_path / "case")


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "case").mkdir()
    with pytest.raises(InputError, match="exists already"):
        run("export", tmp_path / "case", "--to", "simgrid", *SMALL)
    with pytest.raises(InputError, match="cannot be written"):
        run("export", tmp_path / "no" / "case", "--to", "simgrid", *SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["case"]
    assert list((tmp_path / "case").iterdir()) == []


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match="No space left"):
        write_folder(tmp_path / "case", {"a": "1", "b": b"2"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--to", "htsim", "--ep", "4", "--tokens", "8"), "one plane of leaves"),
        (("--to", "ns-3-ub", "--ep", "256", "--tokens", "1"), "must not exceed the 128 cards"),
        (("--to", "ns-3-ub", "--policy", "pinned", *SMALL), "pins nothing"),
    ],
)
def test_what_cannot_be_exported_writes_nothing(tmp_path, args, text):
    with pytest.raises(InputError, match=text):
        run("export", tmp_path / "case", *args)
    assert list(tmp_path.iterdir()) == []
