"""Our flow solver against SimGrid on one matrix: a decode step of 128 ranks, zero latency, spray.

128 ranks x 128 tokens, top-6 of 256 experts, hidden 7168 in BF16, one copy per (token, rank), on 16 leaves of
8 cards with 8 spines of 50 GB/s. SimGrid gets the cheapest form of the problem: links that are always used
alike are one link. It takes one to three minutes and runs once.
"""

import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from epsim.exchange.case import ExchangeCase
from epsim.exchange.simgrid import FLAGS, FLOWS_FILE, PLATFORM_FILE, read_simgrid, simgrid_files
from epsim.flow import flow_problem, simulate
from reference.config import EPConfig
from reference.plan import count_rows
from reference.routing.generate import generate_topk
from topology import Router, leaf_spine, link_bound

ROW_BYTES = 2 * 7168
SOURCE = Path(__file__).parents[1] / "tests" / "epsim" / "simgrid" / "flows.cpp"


def decode_case():
    """Return the matrix of one decode step and its fabric."""
    config = EPConfig(
        ep_size=128,
        num_experts=256,
        num_topk=6,
        hidden=7168,
        num_max_tokens_per_rank=128,
        expert_alignment=1,
    )
    rows = count_rows(config, generate_topk(config, "uniform", tokens_per_rank=128)).rows
    matrix = rows * ROW_BYTES
    np.fill_diagonal(matrix, 0)
    return ExchangeCase(name="decode-128", topology=leaf_spine(), npus=np.arange(128), bytes_matrix=matrix)


def run_ours(case, **options):
    """Return CPU and wall seconds, routes included, the makespan in ps, and the engine that was used."""
    wall, cpu = time.perf_counter(), time.process_time()
    transfers = case.transfers()
    ends = case.npus[transfers.src], case.npus[transfers.dst]
    problem = flow_problem(Router(case.topology, case.npus), *ends, transfers.num_bytes)
    result = simulate(problem, **options)
    return time.process_time() - cpu, time.perf_counter() - wall, result.makespan_ps, result.engine


def run_simgrid(case):
    """Return CPU and wall seconds of one run, start of the program included, and the makespan in ps."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "flows"
        compiler = ["g++", "-O2", "-std=c++17", str(SOURCE), "-lsimgrid", "-o", str(program)]
        subprocess.run(compiler, check=True)
        for name, content in simgrid_files(case).items():
            (Path(folder) / name).write_text(content)
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [str(program), PLATFORM_FILE, FLOWS_FILE, *FLAGS]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        wall = time.perf_counter() - wall
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, read_simgrid(case, done.stdout).makespan_ps


def run():
    """Yield (name, value, target) rows; ratios are of CPU seconds, as the machine may be shared."""
    case = decode_case()
    bound_ps = link_bound(case.topology, case.bytes_matrix).time_ps
    yield "decode-128: flows", f"{len(case.transfers()):,}", ""
    yield "busiest link", f"{bound_ps / 1e6:.3f} us", ""
    ours = {}
    for mode, target in (("exact", "<= 10 s, goal 1 s"), ("bounded", "<= 1.5 s, goal 0.2 s")):
        run_ours(case, mode=mode)  # once for the compiler
        cpu, wall, makespan_ps, engine = min(run_ours(case, mode=mode) for _ in range(3))
        ours[mode] = cpu, makespan_ps
        yield f"epsim, {mode}, {engine} (s)", wall, target
        yield f"epsim, {mode}: CPU (s)", cpu, ""
        yield f"epsim, {mode}: makespan", f"{makespan_ps / 1e6:.3f} us", ""
    if shutil.which("g++") is None or not Path("/usr/include/simgrid/s4u.hpp").exists():
        yield "SimGrid", "not here", "apt-get install libsimgrid-dev g++"
        return
    cpu, wall, makespan_ps = run_simgrid(case)
    yield "SimGrid CM02 (s)", wall, ""
    yield "SimGrid CM02: CPU (s)", cpu, "65-76 s when measured before"
    yield "SimGrid CM02: makespan", f"{makespan_ps / 1e6:.3f} us", ""
    for mode, (our_cpu, our_ps) in ours.items():
        yield f"SimGrid over epsim, {mode}: CPU time", f"{cpu / our_cpu:.0f} x", ">= 50, goal 300"
        yield f"epsim over SimGrid, {mode}: makespan", f"{our_ps / makespan_ps - 1:+.4%}", "within 1 %"


if __name__ == "__main__":
    for row_name, value, target in run():
        shown = value if isinstance(value, str) else f"{value:.3f} s"
        print(f"{row_name:56s} {shown:>14s}   {target}", flush=True)
