"""Workloads by name: every one runs, reads its parameters, repeats itself, and stands on its page."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.platform.platform import make_platform
from epsim.report.workload import run_json, run_text
from epsim.schedule.workloads import WORKLOADS, make_workload
from epsim.sim.transfers import TransferOptions, run_transfers
from reference.errors import ConfigError
from tests.epsim.transfer_checks import busiest_link_ps, machine
from topology import TopologyError

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
SMALL = {
    "all-gather": {"size": "1MiB", "num_buckets": 3},
    "reduce-scatter": {"size": "1MiB", "algorithm": "ring"},
    "all-reduce": {"size": 2**20, "blocks": 2},
    "cp-ring": {"size": "64KiB", "attention": "3us", "buffers": 3},
    "fsdp": {"size": "1MiB", "num_buckets": 2, "prefetch": 0},
    "pp": {"size": "64KiB", "microbatches": "3", "order": "gpipe", "sends_block": True},
    "engram-fetch": {"tokens": 5, "entries_per_rank": 50},
    "hybrid-dispatch": {"pod_size": 4, "tokens": 20, "experts": 16, "hidden": 256, "slots": 1},
    "hybrid-combine": {"pod_size": 4, "tokens": 20, "experts": 16, "hidden": 256, "routing": "zipf:1.0"},
}


def small(name):
    return make_workload(name, 8, SMALL[name])


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs_to_its_end(name):
    transfers = small(name)
    run = run_transfers(machine(), transfers)
    assert transfers.is_remote.any()
    assert run.time_ps >= busiest_link_ps(machine(), transfers)
    assert (run.finish_ps >= run.arrival_ps).all()
    assert (run.arrival_ps >= run.ready_ps).all()
    owner = np.repeat(np.arange(transfers.num_transfers), np.diff(transfers.after_start))
    assert (run.ready_ps[owner] >= run.finish_ps[transfers.after]).all()
    # On one switch tier every byte passes two ports.
    assert run.port_bytes.sum() == 2 * transfers.bytes_matrix().sum()


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("policy", ["flow-hash", "pinned"])
def test_other_paths_carry_the_same_bytes(name, policy):
    run = run_transfers(machine(), small(name), TransferOptions(policy=policy, seed=3))
    assert run.port_bytes.sum() == 2 * small(name).bytes_matrix().sum()


@pytest.mark.parametrize("name", ["all-reduce", "engram-fetch", "hybrid-dispatch"])
def test_a_run_repeats_and_a_trace_changes_nothing(name):
    runs = [run_transfers(machine(), small(name), TransferOptions(with_trace=t)) for t in (True, True, False)]
    assert runs[0].trace.digest() == runs[1].trace.digest()
    assert np.array_equal(runs[0].finish_ps, runs[2].finish_ps)
    assert runs[2].trace is None


def test_a_late_rank_starts_nothing_before_it_has_entered():
    late = replace(machine(), start_ps=np.array([0, 0, 10**9, 0, 0, 0, 0, 0]))
    transfers = small("all-gather")
    run = run_transfers(late, transfers)
    assert run.ready_ps[transfers.src == 2].min() == 10**9
    assert run.time_ps > 10**9 > run_transfers(machine(), transfers).time_ps


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [("gossip", {}, "workload"), ("pp", {"speed": 1}, "speed"), ("pp", {"order": "zigzag"}, "order"),
     ("pp", {"sends_block": 2}, "sends_block"), ("pp", {"microbatches": "1.5"}, "microbatches"),
     ("all-gather", {"num_buckets": 0}, "num_buckets"), ("hybrid-dispatch", {"routing": 3}, "routing"),
     ("cp-ring", {"buffers": True}, "buffers"), ("fsdp", {"size": -1}, "size")],
)  # fmt: skip
def test_a_bad_name_or_value_is_named(name, values, field):
    with pytest.raises(InputError) as caught:
        make_workload(name, 8, values)
    assert caught.value.field == field


COUNTS = [(name, p) for name, workload in WORKLOADS.items() for p in workload.parameters if p.kind == "count"]


@pytest.mark.parametrize(("name", "parameter"), COUNTS, ids=lambda word: getattr(word, "name", word))
def test_a_count_has_one_range_that_both_of_its_ends_name(name, parameter):
    """Issue 4: inflight=0 was said to be in 1..2^50, and 10^9 in 0..2^20."""
    for value in (parameter.least - 1, parameter.most + 1):
        with pytest.raises(InputError, match=f"in {parameter.least}\\.\\.{parameter.most}$") as caught:
            make_workload(name, 8, {parameter.name: value})
        assert caught.value.field == parameter.name
    known = [p.name for p in WORKLOADS[name].parameters]
    small_case = SMALL[name] | {"hidden": 128, "experts": 8, "topk": 1, parameter.name: parameter.least}
    with suppress(ConfigError):  # one expert is a whole number, but too few for eight ranks
        make_workload(name, 8, {key: small_case[key] for key in known if key in small_case})


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_sent_is_what_the_ports_carried(name):
    """Issue 4: rows that stay on their card made a rank send 375.6 GB/s through 364.3."""
    transfers, platform = small(name), make_platform("ubl128:8")
    run = run_transfers(machine(), transfers)
    facts = json.loads(run_json(name, 8, platform, transfers, run))
    sent = np.zeros(8, np.int64)
    for port, num_bytes in zip(run.port_names, run.port_bytes.tolist(), strict=True):
        card = port.partition(" -> ")[0]
        if card.startswith("npu"):
            sent[int(card.removeprefix("npu"))] += num_bytes
    assert facts["wire_bytes"] == sent.sum()
    assert facts["wire_bytes"] + facts["local_bytes"] == transfers.size_bytes.sum()
    seconds = run.time_ps / 1e12
    for key, value in (("gb_per_s_per_rank", sent.mean()), ("gb_per_s_busiest_rank", sent.max())):
        # Four roundings: to us, per us, and the two here.
        assert abs(facts[key] / (value / seconds / 1e9) - 1) <= 4 * np.finfo(float).eps


def test_a_run_of_fixed_costs_is_not_compared_with_the_ports():
    transfers, platform = make_workload("pp", 8, {"size": "1B"}), make_platform("ubl128:8")
    text = run_text("pp", 8, platform, transfers, run_transfers(machine(), transfers))
    assert "nearly all of it fixed costs and computation: the busiest port needs" in text
    assert "x the busiest port" not in text


def test_an_unknown_unit_is_refused():
    with pytest.raises(TopologyError, match="size"):
        make_workload("pp", 8, {"size": "3 parsecs"})


def test_the_page_names_every_workload_and_parameter():
    lines = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
    assert list(lines) == list(WORKLOADS)
    for name, workload in WORKLOADS.items():
        assert workload.help
        if "the same" not in lines[name]:
            assert [p.name for p in workload.parameters] == lines[name].split("|")[3].strip(" `").split(
                "`, `"
            )
