"""SimGrid is the golden test of the exact flow solver, at 8 to 32 ranks.

How far apart may two right answers be? Neither has latency, and SimGrid runs without factors
(`epsim.exchange.simgrid.FLAGS`), so both solve one problem. Then:
- SimGrid takes events within TIME_PRECISION_S for one, and there is one event per flow: F shifts in all;
- each of at most F events rounds a handful of numbers on both sides: OPERATIONS relative steps of 2^-53;
- times are printed with 15 decimals of a second and read to the ps; ours are rounded up to the ps.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from epsim.errors import InputError
from epsim.exchange.case import ExchangeCase
from epsim.exchange.compare import simulate_case
from epsim.exchange.simgrid import (
    FLAGS,
    FLOWS_FILE,
    PLATFORM_FILE,
    TIME_PRECISION_S,
    read_simgrid,
    simgrid_files,
)
from tests.epsim.exchanged import random_case, small_case, two_cards
from topology import leaf_spine, ubl128

SOURCE = Path(__file__).parent / "simgrid" / "flows.cpp"
HEADER = Path("/usr/include/simgrid/s4u.hpp")
OPERATIONS = 16
"""Per event and flow: a rate (at most one division and one sum per link of a route), a step, a remainder."""

needs_simgrid = pytest.mark.skipif(
    not HEADER.exists() or shutil.which("g++") is None,
    reason="SimGrid (libsimgrid-dev) or g++ is not installed",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile our driver once."""
    path = tmp_path_factory.mktemp("simgrid") / "flows"
    subprocess.run(
        ["g++", "-O1", "-std=c++17", str(SOURCE), "-lsimgrid", "-o", str(path)], check=True, timeout=120
    )
    return path


def run(program, files, *flags):
    """Run SimGrid on exported files; what it prints."""
    for name, content in files.items():
        (program.parent / name).write_text(content)
    command = [str(program), PLATFORM_FILE, FLOWS_FILE, *FLAGS, *flags]
    done = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def allowed_ps(case, imported):
    """Derive the largest difference of two right answers; see the top of this file."""
    num_flows = len(case.transfers())
    shifts = num_flows * TIME_PRECISION_S * 1e12
    rounding = num_flows * OPERATIONS * 2.0**-53 * imported.makespan_ps
    return imported.rounding_ps + 1 + shifts + rounding


def hot(rng, topology, num_ranks):
    """Everybody sends to everybody, and four times as much to rank 0."""
    matrix = rng.integers(1_000_000, 2_000_000, (num_ranks, num_ranks))
    matrix[:, 0] *= 4
    return ExchangeCase(name="hot", topology=topology, npus=np.arange(num_ranks), bytes_matrix=matrix)


CASES = {
    "star of 8": (random_case, leaf_spine(8, leaves=1, spines=1), 8),
    "ubl128 of 16, hot rank": (hot, ubl128(16), 16),
    "leaf-spine of 16": (random_case, leaf_spine(16, leaves=4, spines=4), 16),
    "leaf-spine of 32, hot rank": (hot, leaf_spine(32, leaves=4, spines=8), 32),
    "oversubscribed 8:1": (random_case, leaf_spine(32, leaves=2, spines=2), 24),
    "slow trunks, two per pair": (
        random_case, leaf_spine(16, leaves=4, spines=3, links_per_pair=2, uplink_rate="7GB/s"), 16,
    ),
}  # fmt: skip


@needs_simgrid
@pytest.mark.parametrize("policy", ["spray", "flow-hash"])
@pytest.mark.parametrize("name", CASES)
def test_every_flow_ends_when_simgrid_says(program, name, policy):
    make, topology, num_ranks = CASES[name]
    case = make(np.random.default_rng(len(name)), topology, num_ranks)
    imported = read_simgrid(case, run(program, simgrid_files(case, policy, seed=3)))
    ours = simulate_case(case, policy, seed=3)
    apart = np.abs(ours.finish_ps - imported.finish_ps).max()
    assert apart <= allowed_ps(case, imported)


@needs_simgrid
def test_the_comparison_sees_a_byte_more_on_one_flow(program):
    """Planted: SimGrid gets one flow with 1,000 bytes more than we have."""
    case = random_case(np.random.default_rng(5), leaf_spine(16, leaves=4, spines=4), 16)
    files = simgrid_files(case)
    first = files[FLOWS_FILE].split("\n", 1)[0]
    more = " ".join([*first.split()[:2], str(int(first.split()[2]) + 1000)])
    printed = run(program, files | {FLOWS_FILE: files[FLOWS_FILE].replace(first, more)})
    with pytest.raises(InputError, match="must be the"):
        read_simgrid(case, printed)
    imported = read_simgrid(case, printed.replace(more, first))
    apart = np.abs(simulate_case(case).finish_ps - imported.finish_ps).max()
    assert apart > allowed_ps(case, imported)


@needs_simgrid
def test_the_default_precision_would_have_hidden_a_tenth_of_a_decode_step(program):
    """Why FLAGS sets it: with SimGrid's default the times differ from ours by more than is allowed."""
    case = random_case(np.random.default_rng(1), ubl128(8), 8)
    imported = read_simgrid(case, run(program, simgrid_files(case), "--cfg=surf/precision:1e-5"))
    apart = np.abs(simulate_case(case).finish_ps - imported.finish_ps).max()
    assert apart > allowed_ps(case, imported)


PLATFORM = """\
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<zone id="pair" routing="Full">
<host id="rank0" speed="1f"/>
<host id="rank1" speed="1f"/>
<link id="l0" bandwidth="400000000000Bps" latency="0s"/>
<link id="l1" bandwidth="400000000000Bps" latency="0s"/>
<route src="rank0" dst="rank1" symmetrical="NO"><link_ctn id="l0"/></route>
<route src="rank1" dst="rank0" symmetrical="NO"><link_ctn id="l1"/></route>
</zone>
</platform>
"""


def test_the_files_of_two_cards_have_eight_planes_as_one_link():
    files = simgrid_files(two_cards())
    assert files == {PLATFORM_FILE: PLATFORM, FLOWS_FILE: "rank0 rank1 300\nrank1 rank0 7000\n"}


def results(case):
    """Lines as SimGrid would print them."""
    rows = simgrid_files(case)[FLOWS_FILE].splitlines()
    return [f"{row} 0.0 {0.001 * task:.15f}" for task, row in enumerate(rows, 1)]


FAULTS = {
    "a lost flow": (lambda lines: lines[1:], "never ended"),
    "a flow twice": (lambda lines: [*lines, lines[0]], "ended before"),
    "swapped ends": (
        lambda lines: [lines[0].replace("rank0 rank1", "rank1 rank0"), *lines[1:]],
        "must be the",
    ),
    "bits": (lambda lines: [lines[0].replace(" 1000 ", " 8000 "), *lines[1:]], "1000 bytes of rank 0 -> 1"),
    "another rank": (lambda lines: [*lines, "rank9 rank1 5 0 1"], "no transfer"),
    "words": (lambda lines: [*lines, "[simgrid] done"], "must be: host"),
    "beyond 64 bits": (lambda lines: ["rank0 rank1 1000 0.0 1e30", *lines[1:]], "at most 9.22e"),
    "no time": (lambda lines: ["rank0 rank1 1000 0.0 nan", *lines[1:]], "must be seconds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_results_of_another_case_are_refused(fault):
    case = small_case()
    assert read_simgrid(case, "\n".join(results(case))).makespan_ps == 12 * 10**9
    change, text = FAULTS[fault]
    with pytest.raises(InputError, match=text):
        read_simgrid(case, "\n".join(change(results(case))))


def test_phases_are_refused():
    with pytest.raises(InputError, match="SimGrid"):
        simgrid_files(small_case(phase=np.arange(16).reshape(4, 4)))
