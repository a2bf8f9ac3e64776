"""Flow level: build, bracket, bounded and exact runs from 128 ranks to one group of 1,024.

Traffic is generated: top-6 of two experts a rank, one copy of 14,336 bytes per (token, rank). Each row
runs once, compiled code after a warm-up; the compile itself is a row. Seconds are processor time.
"""

import time

import numpy as np

import epsim
from epsim.flow import bracket_makespan, flow_problem, simulate
from epsim.flow.fast import has_numba
from epsim.platform.systems import load_system
from reference.config import EPConfig
from reference.routing.generate import generate_topk
from topology import Router, leaf_spine, ubl128

COPY_BYTES = 14_336  # 7,168 elements of BF16


def traffic(num_ranks, tokens, routing, seed=0):
    """Return [R, R] bytes between ranks of one dispatch, without what stays."""
    config = EPConfig(
        ep_size=num_ranks,
        num_experts=2 * num_ranks if num_ranks < 1024 else num_ranks,
        num_topk=6,
        hidden=7168,
        num_max_tokens_per_rank=tokens,
    )
    topk = generate_topk(config, routing, tokens_per_rank=tokens, seed=seed)
    owner = config.expert_ranks()
    copies = np.zeros((num_ranks, num_ranks), np.int64)
    for rank, choices in enumerate(topk.topk_idx):
        reached = np.sort(owner[choices], axis=1)
        is_new = np.diff(reached, axis=1, prepend=-1) != 0
        copies[rank] = np.bincount(reached[is_new], minlength=num_ranks)
    np.fill_diagonal(copies, 0)
    return copies * COPY_BYTES


def timed(call):
    """Return processor seconds and the result of one call; others may be using the machine."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def problem_of(topology, matrix, policy="spray"):
    """Put a matrix on a topology, rank r on card r."""
    src, dst = np.nonzero(matrix)
    return flow_problem(Router(topology), src, dst, matrix[src, dst], policy=policy)


def outcome(name, result):
    """Return a row with the finish time and how well it is known."""
    bound = result.error_bound_ps / result.makespan_ps
    text = f"{result.makespan_ps / 1e6:,.2f} us"
    return name, text, f"{result.num_solves} solves, error at most {bound:.3%}"


def of_128(name, topology, matrix, policy="spray"):
    """Yield rows for one matrix on one topology."""
    seconds, problem = timed(lambda: problem_of(topology, matrix, policy))
    yield f"{name}: build {problem.num_flows:,} flows (s)", seconds, ""
    seconds, bracket = timed(lambda: bracket_makespan(problem, engine="numpy"))
    yield f"{name}: bracket, NumPy (s)", seconds, f"gap {bracket.upper_ps / bracket.lower_ps - 1:.4%}"
    engines = ("numpy", "numba") if has_numba() else ("numpy",)
    for engine in engines:
        seconds, result = timed(lambda e=engine: simulate(problem, mode="bounded", engine=e))
        target = "<= 1.5 s, goal 0.2 s" if engine == "numba" else "<= 6 s"
        yield f"{name}: bounded 1 %, {engine} (s)", seconds, target
    yield outcome(f"{name}: bounded finish", result)
    if "numba" in engines:
        seconds, result = timed(lambda: simulate(problem, engine="numba"))
        yield f"{name}: exact, numba (s)", seconds, "<= 10 s, goal 1 s"
        yield outcome(f"{name}: exact finish", result)


def of_1024(name, topology, matrix):
    """Yield rows for one group of 1,024 ranks."""
    seconds, problem = timed(lambda: problem_of(topology, matrix))
    yield f"{name}: build {problem.num_flows:,} flows (s)", seconds, ""
    seconds, bracket = timed(lambda: bracket_makespan(problem))
    yield f"{name}: bracket (s)", seconds, f"gap {bracket.upper_ps / bracket.lower_ps - 1:.3%}"
    seconds, result = timed(lambda: simulate(problem, mode="bounded"))
    yield f"{name}: bounded 1 % (s)", seconds, "<= 60 s, goal 10 s"
    yield outcome(f"{name}: bounded finish", result)


def of_decode(clos):
    """Yield rows for irregular sizes, 128 tokens a rank: the whole question, and what exact mode takes."""
    case = {"level": "flow", "tokens": 128, "operations": ("dispatch",), "num_experts": 1024}
    seconds, [item] = timed(lambda: epsim.simulate("clos:1024", ep=1024, **case))
    yield "clos, EP1024, decode: epsim.simulate, all of it (s)", seconds, "<= 60 s, goal 10 s"
    yield "clos, EP1024, decode: finish", f"{item.time_us:,.2f} us", item.method
    if has_numba():
        problem = problem_of(clos, traffic(256, 128, "uniform"))
        seconds, result = timed(lambda: simulate(problem, engine="numba"))
        yield f"clos, EP256, decode: exact, {problem.num_flows:,} flows (s)", seconds, ""
        yield outcome("clos, EP256, decode: exact finish", result)


def run():
    """Yield (name, seconds or text, target) rows."""
    if has_numba():
        small = problem_of(ubl128(8), traffic(8, 16, "uniform"))
        seconds, _ = timed(lambda: simulate(small, engine="numba"))
        yield "compile, once per process (s)", seconds, ""
    decode = traffic(128, 128, "uniform")
    prefill = traffic(128, 16_384, "zipf:0.5")
    yield from of_128("leaf-spine, decode", leaf_spine(), decode)
    yield from of_128("leaf-spine, decode, flow-hash", leaf_spine(), decode, "flow-hash")
    yield from of_128("leaf-spine, prefill zipf:0.5", leaf_spine(), prefill)
    yield from of_128("ubl128, prefill zipf:0.5", ubl128(), prefill)
    group = traffic(1024, 4096, "uniform")
    clos = load_system("clos:1024").topology
    yield from of_decode(clos)
    yield from of_1024("clos, EP1024", clos, group)
    yield from of_1024("clos, EP1024 zipf:0.5", clos, traffic(1024, 4096, "zipf:0.5"))
    yield from of_1024("leaf-spine, EP1024", leaf_spine(1024, leaves=32, spines=32), group)
