"""Shared pieces of the transfer tests: machines, times of steps, a replay of what collectives carry."""

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np

from epsim.platform.machine import make_machine
from epsim.platform.platform import make_platform
from epsim.schedule.costs import StepCosts
from epsim.schedule.transfers import NEVER, Transfers
from epsim.sim.transfers import TransferOptions
from topology import Router
from topology.framing import DEFAULT_MTU

WHOLE = TransferOptions(chunk_bytes=2**40)
"""Every transfer is one chunk."""
COSTS = StepCosts()


@lru_cache
def machine(num_ranks=8, system=None):
    """Return the rates of the standard profiles on one supernode, or on a preset."""
    return make_machine(make_platform(system or f"ubl128:{num_ranks}"), num_ranks, "none")


def memory_ps(size, on=None):
    """Return how long the memory needs for `size` bytes."""
    return int(size * 1e12 / (on or machine()).memory_bytes_per_s + 0.5)


def send_ps(size, on=None):
    """Return how long the ports of a card need for `size` bytes."""
    return int(size * (1e12 / float((on or machine()).egress_bytes_per_s()[0])) + 0.5)


def tail_ps(size, on=None):
    """Return from the last byte's leaving a card until it is at the next one, one switch between."""
    up, down = sorted(set((on or machine()).topology.link_latency_ps().tolist()), reverse=True)
    packet = int(min(size, DEFAULT_MTU) * (1e12 / float((on or machine()).egress_bytes_per_s()[0])))
    head = min(0, packet - send_ps(size, on))  # the first packet is at the switch so much before the end
    return up + max(head + send_ps(size, on), 0) + down


def step_ps(size, on=None):
    """Return doorbell, read, send and flight of one chunk between idle cards."""
    return COSTS.doorbell_ps + memory_ps(size, on) + send_ps(size, on) + tail_ps(size, on)


def busiest_link_ps(on, transfers):
    """Return what the busiest link needs for its bytes, from routes and rates alone."""
    matrix = transfers.bytes_matrix()
    src, dst = np.nonzero(matrix)
    routes = Router(on.topology, on.npus).find(on.npus[src], on.npus[dst])
    carried = matrix[src, dst][routes.flow_idx] / routes.parts
    return 1e12 * float(
        (np.bincount(routes.link_idx, carried) / on.link_bytes_per_s[: routes.link_idx.max() + 1]).max()
    )


def without_wait(transfers, number):
    """Let one transfer start at once: a lost dependency."""
    begin, end = transfers.after_start[number : number + 2]
    start = transfers.after_start.copy()
    start[number + 1 :] -= end - begin
    return replace(transfers, after=np.delete(transfers.after, np.s_[begin:end]), after_start=start)


def doubled(transfers, number):
    """Send one transfer twice; what waited for it waits for both."""
    names = ("src", "dst", "size_bytes", "lane", "queue_idx", "memory_bytes", "delay_ps", "label_idx")
    waits = [transfers.waits_of(n) for n in (*range(transfers.num_transfers), number)]
    waits = [[*w, transfers.num_transfers] if number in w else w for w in waits]
    columns = {name: np.append(getattr(transfers, name), getattr(transfers, name)[number]) for name in names}
    starts = np.append(0, np.cumsum([len(w) for w in waits]))
    return Transfers(
        num_ranks=transfers.num_ranks, labels=transfers.labels, after_start=starts,
        after=np.array([n for w in waits for n in w], np.int64), **columns,
    )  # fmt: skip


def turned(transfers, rank):
    """Let one rank of a ring send the wrong way."""
    some = (transfers.src == rank) & (transfers.dst != rank)
    return replace(transfers, dst=np.where(some, (rank - 1) % transfers.num_ranks, transfers.dst))


def contributions(transfers, run):
    """Replay what a collective carries: [rank, segment, source] how often each source's part is in it.

    A sum adds what came to what is there, a gather replaces it. A transfer takes what its sender holds when
    it starts. Labels say the step; own parts are there at the start.
    """
    size = transfers.num_ranks
    held = np.zeros((size, size, size), np.int64)
    held[np.arange(size), :, np.arange(size)] = 1
    remote = [n for n in range(transfers.num_transfers) if transfers.is_remote[n]]
    events = [(run.finish_ps[n], 0, n) for n in remote] + [(run.ready_ps[n], 1, n) for n in remote]
    taken = {}
    for _, is_start, number in sorted(events):
        src, dst = int(transfers.src[number]), int(transfers.dst[number])
        segment = _segment(transfers.labels[transfers.label_idx[number]], src, dst, size)
        if is_start:
            taken[number] = held[src, segment].copy()
        elif "reduce-scatter" in transfers.labels[transfers.label_idx[number]]:
            held[dst, segment] += taken[number]
        else:
            held[dst, segment] = taken[number]
    return held


def _segment(label, src, dst, size):
    step = re.search(r"step (\d+)", label)
    shift = 1 if "reduce-scatter" in label else 0
    if step:
        return (src - int(step[1]) - shift) % size
    return dst if shift else src


def cut_off(transfers, number):
    """Put what never comes in place of the first thing that a transfer waits for."""
    after = transfers.after.copy()
    after[transfers.after_start[number]] = NEVER
    return replace(transfers, after=after)
