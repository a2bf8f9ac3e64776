"""Scripts for the URMA engine: tests write requests, ring doorbells and take completions from Python.

Each AIV plays a list of steps (tests/native/urma/script.cpp). Requests are packed by
reference.memory.descriptor, so the two sides of the bits meet here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from native.errors import TwinViolation
from native.settings import JitSettings
from native.sources import FOLDERS
from native.twin import Twin, TwinMachine, build_twin
from reference.memory.descriptor import JETTY_INFO, Peer, Sge, Sqe, nop_sqe, write_sqe
from tests.native.jitkit import STRICT

STRATEGIES = ("random", "pct", "delay_pipe", "late")
NUM_BYTES = 4096
"""Of a window and of the memory that requests gather from."""

STRONG = {"order": 5, "fence": 1, "completion": 1}
"""Flags of the request that closes a batch."""

END, STORE, FENCE, POLL, READ, SYNC, LANES, COPY = range(8)


def build_script_twin(cache: Path) -> Twin:
    """Compile the twin with the script kernel alone."""
    folders = {**FOLDERS, "kernels": Path(__file__).parent / "urma"}
    return Twin(build_twin(JitSettings(cache_dirs=(cache,)), folders, STRICT))


@dataclass
class Script:
    """Steps of one AIV; every method appends and returns the script."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, operation: int, a: int = 0, b: int = 0, c: int = 0) -> "Script":
        """Append a step."""
        self.rows.append((operation, a, b, c))
        return self

    def store(self, address: int, value: int, num_bytes: int = 8) -> "Script":
        """Append a store past the caches."""
        return self.add(STORE, address, value, num_bytes)

    def store_bytes(self, address: int, content: np.ndarray) -> "Script":
        """Append stores of whole words."""
        for i, word in enumerate(content.view("<u8")):
            self.store(address + 8 * i, int(word))
        return self

    def fence(self) -> "Script":
        """Append a wait for all earlier stores."""
        return self.add(FENCE)

    def poll(self, address: int, value: int, mask: int = 2**32 - 1) -> "Script":
        """Append a wait until `word & mask == value`."""
        return self.add(POLL, address, mask, value)

    def read(self, address: int, num_bytes: int = 64) -> "Script":
        """Append a copy to UB, which is a race if somebody may write there."""
        return self.add(READ, address, num_bytes)


@dataclass
class Queue:
    """What a producer keeps of its jetty; `script` takes its steps."""

    fabric: "Fabric"
    rank: int
    info: Mapping[str, int]
    script: Script = field(default_factory=Script)
    head: int = 0
    num_expected: int = 0
    num_taken: int = 0

    def post(self, sqe: Sqe, **flags: int) -> "Queue":
        """Write a request at the head, with the owner bit of a ring of this depth; `flags` replace others."""
        depth = self.fabric.sq_depth
        sqe = replace(sqe, flags={**sqe.flags, "owner": 1 - self.head // depth % 2} | flags)
        blocks = sqe.pack().reshape(-1, 64)
        for i, block in enumerate(blocks):
            self.script.store_bytes(self.info["sq_base"] + (self.head + i) % depth * 64, block)
        self.head += len(blocks)
        self.num_expected += sqe.flags.get("completion", 0)
        return self

    def request(self, offset: int, num_bytes: int = 64, *, peer: int | None = None, **flags: int) -> Sqe:
        """Return a write of source[offset:] to the same place in the window of a peer."""
        peer = (self.rank + 1) % self.fabric.num_ranks if peer is None else peer
        sge = Sge(address=self.fabric.sources[self.rank] + offset, num_bytes=num_bytes)
        target = self.fabric.windows[peer] + offset
        return write_sqe(self.head, self.fabric.peer(self.rank, peer), target, [sge], **flags)

    def write(self, offset: int, num_bytes: int = 64, **options: int) -> "Queue":
        """Post such a request."""
        return self.post(self.request(offset, num_bytes, **options))

    def notify(self, offset: int, num_bytes: int, word: int, value: int, **flags: int) -> Sqe:
        """Return such a request that then stores `value` at window[word:]: two elements more."""
        sqe = self.request(offset, num_bytes, **flags)
        peer = (self.rank + 1) % self.fabric.num_ranks
        info = self.fabric.peer(self.rank, peer)
        address = self.fabric.windows[peer] + word
        words = (
            Sge(num_bytes=info.token_id, token_id=info.token_value, address=address),
            Sge(num_bytes=value & 0xFFFFFFFF, token_id=value >> 32, address=0),
        )
        return replace(sqe, flags={**sqe.flags, "opcode": 5}, sges=words + sqe.sges)

    def nop(self, **flags: int) -> "Queue":
        """Post a request that does nothing."""
        return self.post(nop_sqe(self.head), **flags)

    def ring(self, head: int | None = None, *, published: int | None = None) -> "Queue":
        """Fence, publish the head, fence, ring, fence."""
        published = self.head if published is None else published
        self.script.fence().store(self.info["sq_head_address"], published | self.num_expected << 32).fence()
        self.bell(published if head is None else head)
        return self

    def bell(self, head: int) -> "Queue":
        """Ring and fence, nothing else."""
        self.script.store(self.info["sq_doorbell_address"], head).fence()
        return self

    def take(self) -> "Queue":
        """Wait for all completions without giving the entries back."""
        depth = self.info["cq_depth"]
        for tail in range(self.num_taken, self.num_expected):
            entry = self.info["cq_base"] + tail % depth * self.info["cqe_bytes"]
            self.script.poll(entry, (1 - tail // depth % 2) << 2, 0xFFFF0004)
        self.num_taken = self.num_expected
        return self

    def drain(self) -> "Queue":
        """Wait for all completions and give their entries back."""
        self.take()
        self.script.store(self.info["cq_tail_address"], self.num_taken, 4)
        self.script.store(self.info["cq_doorbell_address"], self.num_taken & 0xFFFFFF)
        self.script.store(self.info["completion_tail_address"], self.num_taken, 4).fence()
        return self


class Fabric:
    """A machine with windows, sources that identify themselves, and jetties."""

    def __init__(
        self,
        twin: Twin,
        seed: int = 0,
        strategy: str = "random",
        *,
        ranks: int = 2,
        aivs: int = 1,
        **params: int,
    ) -> None:
        """Make it; params go to the machine ("sq_depth", "cq_depth", "trace")."""
        self.num_ranks, self.num_aivs = ranks, aivs
        self.sq_depth = params.setdefault("sq_depth", 64)
        self.machine = TwinMachine(
            twin, {"ranks": ranks, "aivs": aivs, "seed": seed, "strategy": strategy, **params}
        )
        self.sources = [self.machine.alloc(r, NUM_BYTES, "source") for r in range(ranks)]
        self.windows = [self.machine.alloc(r, NUM_BYTES, "window", is_zeroed=True) for r in range(ranks)]
        self.content = [np.random.default_rng(r).integers(1, 256, NUM_BYTES, np.uint8) for r in range(ranks)]
        for address, content in zip(self.sources, self.content, strict=True):
            self.machine.write(address, content)
        self.machine.init_jetties()
        self.scripts: dict[tuple[int, int], Script] = {}

    def queue(self, rank: int = 0, aiv: int = 0, *, jetty: int | None = None) -> Queue:
        """Return the queue of an AIV, or another jetty of its rank; steps go to the script of that AIV."""
        table = self.machine.read(self.machine.find(rank, "jetty_table"), self.num_aivs, "<u8")
        row = self.machine.read(int(table[aiv if jetty is None else jetty]), 1, JETTY_INFO)[0]
        info = {name: int(row[name]) for name in JETTY_INFO.names or ()}
        return Queue(self, rank, info, self.script(rank, aiv))

    def script(self, rank: int, aiv: int = 0) -> Script:
        """Return the script of an AIV."""
        return self.scripts.setdefault((rank, aiv), Script())

    def peer(self, rank: int, peer: int) -> Peer:
        """Read what the table of a rank says about a peer."""
        table = self.machine.read(self.machine.find(rank, "peer_table"), self.num_ranks - 1, "<u8")
        w = [int(x) for x in self.machine.read(int(table[peer - (peer > rank)]), 6, "<u8")]
        ids = {"tp_id": w[0] & 0xFFFFFF, "token_id": w[0] >> 32}
        return Peer(**ids, eid=(w[1], w[2]), token_value=w[3], window_base=w[4], window_bytes=w[5])

    def run(self) -> None:
        """Play all scripts; raises TwinViolation."""
        for rank in range(self.num_ranks):
            places = []
            for aiv in range(self.num_aivs):
                rows = np.array([*self.script(rank, aiv).rows, (END, 0, 0, 0)], "<u8")
                places.append(self.machine.alloc(rank, rows.nbytes, f"script {aiv}"))
                self.machine.write(places[-1], rows)
            table = self.machine.alloc(rank, 8 * self.num_aivs, "scripts")
            self.machine.write(table, np.array(places, "<u8"))
            self.machine.enqueue(rank, "script", table, self.num_aivs)
        self.machine.run()
        self.scripts = {}

    def window(self, rank: int) -> np.ndarray:
        """Return the window of a rank."""
        return self.machine.read(self.windows[rank], NUM_BYTES, np.uint8)

    def rule(self) -> str:
        """Play all scripts and return the rule that they break, "" if none."""
        try:
            self.run()
        except TwinViolation as violation:
            return violation.rule
        finally:
            self.machine.close()
        return ""

    def events(self, tmp_path: Path, kind: str) -> list[dict[str, int]]:
        """Return the trace events of one kind."""
        path = tmp_path / "trace"
        self.machine.trace(path)
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [event for event in events if event["kind"] == kind]


def rules_over(twin: Twin, build, seeds: Sequence[int] = range(4), **params: int) -> set[str]:
    """Return the rules that `build(fabric)` breaks over seeds and strategies; "" stands for none."""
    found = set()
    for strategy in STRATEGIES:
        for seed in seeds:
            fabric = Fabric(twin, seed, strategy, **params)
            build(fabric)
            found.add(fabric.rule())
    return found
