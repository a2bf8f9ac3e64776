"""Workloads by name: what a command line lists, checks and calls.

Every parameter is a text or number; sizes and times may carry units ("64MiB", "200us"). Transfers follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from epsim.errors import InputError
from epsim.schedule.collectives import NUM_BLOCKS, all_gather, all_reduce, reduce_scatter
from epsim.schedule.engram import engram_fetch, uniform_indices
from epsim.schedule.hybrid import HybridRows, count_hybrid, hybrid_combine, hybrid_dispatch
from epsim.schedule.parallelism import context_ring, sharded_training
from epsim.schedule.pipeline import pipeline_training
from epsim.schedule.transfers import MAX_BYTES, Draft, Transfers, split_evenly, whole
from reference.config import EPConfig
from reference.memory.sizes import ascend_combine_record_bytes, ascend_dispatch_record_bytes
from reference.routing.generate import generate_topk
from topology.graph import IntArray
from topology.units import parse_size, parse_time

Kind = Literal["count", "size", "time", "text", "flag"]
Value = int | str | bool
MAX_COUNT: Final = 2**20
"""Of a parameter: memory grows with many of them, and no real case comes near."""


@dataclass(frozen=True, kw_only=True)
class WorkloadParameter:
    """One parameter of a workload.

    Args:
      name: as in `make_workload`.
      kind: "count" = whole number, "size" = bytes, "time" = picoseconds, "text" = one of `choices` or free,
        "flag" = yes or no.
      default: in the kind's own unit.
      help: one line.
      choices: of a text; empty = free.
      least: of a count.
      most: of a count.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_COUNT

    def read(self, value: Value) -> Value:
        """Return a value in the kind's own unit.

        Raises:
          InputError: it is not of the kind.
          TopologyError: its unit is unknown.
        """
        if self.kind in ("size", "time") and isinstance(value, str):
            return parse_size(value, self.name) if self.kind == "size" else parse_time(value, self.name)
        if self.kind == "text":
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                rule = f"must be one of {', '.join(self.choices)}" if self.choices else "must be a text"
                raise InputError(self.name, value, rule)
            return value
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise InputError(self.name, value, "must be yes or no")
            return value
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        least, most = (self.least, self.most) if self.kind == "count" else (0, MAX_BYTES)
        return whole(self.name, number, least, most)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A kind of traffic.

    Args:
      name: for the command line.
      help: one line.
      parameters: besides the number of ranks.
      build: from the number of ranks and every parameter by name to transfers.
    """

    name: str
    help: str
    parameters: tuple[WorkloadParameter, ...]
    build: Callable[..., Transfers]


def make_workload(name: str, num_ranks: int, values: Mapping[str, Value] | None = None) -> Transfers:
    """Make the transfers of a workload.

    Args:
      name: see `WORKLOADS`.
      num_ranks: R.
      values: parameters that differ from their defaults.

    Raises:
      InputError: an unknown workload or parameter, or a value that breaks a rule.
      TopologyError: a unit is unknown.
      ConfigError: a routing that cannot be.
    """
    read = read_values(name, values)
    return WORKLOADS[name].build(whole("ranks", num_ranks, 1), **read)


def read_values(name: str, values: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """Return every parameter of a workload in its kind's own unit, given or default.

    Raises:
      InputError, TopologyError: as `make_workload`.
    """
    workload = WORKLOADS.get(name)
    if workload is None:
        raise InputError("workload", name, f"must be one of {', '.join(WORKLOADS)}")
    given, known = dict(values or {}), {parameter.name: parameter for parameter in workload.parameters}
    for unknown in given.keys() - known.keys():
        raise InputError(unknown, given[unknown], f"is no parameter of {name}: it has {', '.join(known)}")
    return {key: parameter.read(given.get(key, parameter.default)) for key, parameter in known.items()}


def check_fit(values: Mapping[str, Value], domain: IntArray, num_aivs: int) -> None:
    """Refuse parameters that say of the machine what it is not.

    Args:
      values: as of `read_values`.
      domain: [R] integers, the supernode (or server of a mesh) of each rank's card.
      num_aivs: vector cores of a card.

    Raises:
      InputError: more cores than a card has, or a pod whose cards are in two supernodes.
    """
    for name in ("cores", "blocks"):
        cores = values.get(name, 0)
        if isinstance(cores, int) and cores > num_aivs:
            raise InputError(name, cores, f"must be at most {num_aivs}, the vector cores of a card")
    pod = values.get("pod_size", 0)
    if not isinstance(pod, int) or pod < 1:
        return
    first = np.arange(len(domain)) // pod * pod
    if (domain != domain[first]).any():
        most = int(np.bincount(domain).max())
        rule = f"must divide {most}, the ranks in a supernode, so that no pod lies in two of them"
        raise InputError("pod_size", pod, rule)


def _collective(function: Callable[..., list[int]]) -> Callable[..., Transfers]:
    def build(num_ranks: int, *, size: int, num_buckets: int, algorithm: str, blocks: int) -> Transfers:
        draft = Draft(num_ranks)
        buckets = split_evenly(size, whole("num_buckets", num_buckets, 1))
        function(draft, range(num_ranks), buckets, algorithm, num_blocks=blocks)
        return draft.build()

    return build


def _context_ring(num_ranks: int, *, size: int, attention: int, buffers: int) -> Transfers:
    return context_ring(num_ranks, size, attention_ps=attention, num_buffers=buffers)


def _sharded_training(
    num_ranks: int, *, size: int, num_buckets: int, algorithm: str, forward: int, backward: int, prefetch: int
) -> Transfers:
    return sharded_training(
        num_ranks,
        split_evenly(size, whole("num_buckets", num_buckets, 1)),
        algorithm=algorithm,  # type: ignore[arg-type]
        forward_ps=forward,
        backward_ps=backward,
        num_prefetch=prefetch,
    )


def _pipeline(
    num_ranks: int, *, size: int, microbatches: int, forward: int, backward: int, inflight: int, order: str,
    sends_block: bool,
) -> Transfers:  # fmt: skip
    return pipeline_training(
        num_ranks, microbatches, size, forward_ps=forward, backward_ps=backward, inflight=inflight,
        order=order, sends_block=sends_block,  # type: ignore[arg-type]
    )  # fmt: skip


def _engram(
    num_ranks: int, *, tokens: int, entries_per_token: int, entries_per_rank: int, size: int, cores: int,
    seed: int,
) -> Transfers:  # fmt: skip
    indices = uniform_indices(num_ranks, tokens, entries_per_token, entries_per_rank, seed)
    return engram_fetch(indices, entries_per_rank=entries_per_rank, entry_bytes=size, num_cores=cores)


def _rows(
    num_ranks: int, pod_size: int, tokens: int, experts: int, topk: int, hidden: int, routing: str, seed: int,
    chunks: int,
) -> HybridRows:  # fmt: skip
    config = EPConfig(
        ep_size=num_ranks, num_experts=experts, num_topk=topk, hidden=hidden,
        num_max_tokens_per_rank=max(1, tokens),
    )  # fmt: skip
    table = generate_topk(config, routing, tokens_per_rank=tokens, seed=seed)
    return count_hybrid(config, table, pod_size, chunks)


def _hybrid_dispatch(
    num_ranks: int, *, pod_size: int, tokens: int, experts: int, topk: int, hidden: int, routing: str,
    seed: int, chunks: int, slots: int,
) -> Transfers:  # fmt: skip
    rows = _rows(num_ranks, pod_size, tokens, experts, topk, hidden, routing, seed, chunks)
    record = ascend_dispatch_record_bytes(hidden, topk, "fp8")
    return hybrid_dispatch(rows, record, num_slots=slots)


def _hybrid_combine(
    num_ranks: int, *, pod_size: int, tokens: int, experts: int, topk: int, hidden: int, routing: str,
    seed: int, chunks: int,
) -> Transfers:  # fmt: skip
    rows = _rows(num_ranks, pod_size, tokens, experts, topk, hidden, routing, seed, chunks)
    return hybrid_combine(rows, ascend_combine_record_bytes(hidden, topk), 2 * hidden)


def _size(default: int, text: str) -> WorkloadParameter:
    return WorkloadParameter(name="size", kind="size", default=default, help=text)


def _count(name: str, default: int, text: str, *, least: int = 1, most: int = MAX_COUNT) -> WorkloadParameter:
    return WorkloadParameter(name=name, kind="count", default=default, help=text, least=least, most=most)


def _time(name: str, default: int, text: str) -> WorkloadParameter:
    return WorkloadParameter(name=name, kind="time", default=default, help=text)


_MIB, _US = 2**20, 10**6
_ALGORITHM = WorkloadParameter(
    name="algorithm", kind="text", default="direct", choices=("direct", "ring"),
    help="direct = every pair at once, ring = to the next rank only",
)  # fmt: skip
_BUCKETS = _count("num_buckets", 1, "tensors that the bytes are split into")
_COLLECTIVE = (
    _size(256 * _MIB, "bytes of the whole tensor on a rank"), _BUCKETS, _ALGORITHM,
    _count("blocks", NUM_BLOCKS, "cores that serve peers (direct)"),
)  # fmt: skip
_HYBRID = (
    _count("pod_size", 128, "ranks of a supernode"),
    _count("tokens", 4096, "of each rank", least=0),
    _count("experts", 256, "of the group"),
    _count("topk", 6, "choices of a token"),
    _count("hidden", 7168, "elements of a token"),
    WorkloadParameter(name="routing", kind="text", default="uniform", help="law, as of epsim predict"),
    _count("seed", 0, "of the routing", least=0),
    _count("chunks", 4, "parts of a rank's tokens, so that both tiers work at once"),
)
_ALL = (
    Workload(
        name="all-gather", help="every rank gets all shards, as BucketBuffer does", parameters=_COLLECTIVE,
        build=_collective(all_gather),
    ),
    Workload(
        name="reduce-scatter", help="every rank gets the sum of its shard", parameters=_COLLECTIVE,
        build=_collective(reduce_scatter),
    ),
    Workload(
        name="all-reduce", help="every rank gets the sum: reduce-scatter, then all-gather",
        parameters=_COLLECTIVE, build=_collective(all_reduce),
    ),
    Workload(
        name="cp-ring", help="key and value blocks round a ring beside attention",
        parameters=(
            _size(16 * _MIB, "keys and values of a rank"),
            _time("attention", 50 * _US, "computation on one block"),
            _count("buffers", 2, "blocks that a rank can hold besides its own", least=2),
        ),
        build=_context_ring,
    ),
    Workload(
        name="fsdp", help="parameters gathered before use, gradients scattered after it",
        parameters=(
            _size(256 * _MIB, "bytes of all parameters"), _count("num_buckets", 4, "layers gathered at once"),
            _ALGORITHM, _time("forward", 100 * _US, "computation on one bucket"),
            _time("backward", 200 * _US, "the same backwards"),
            _count("prefetch", 1, "buckets gathered ahead of the one in use", least=0),
        ),
        build=_sharded_training,
    ),
    Workload(
        name="pp", help="a batch through a pipeline of ranks, as PPBuffer sends",
        parameters=(
            _size(32 * _MIB, "activations between two stages"),
            _count("microbatches", 16, "of the batch", most=2**16),
            _time("forward", 200 * _US, "one microbatch on one stage"),
            _time("backward", 400 * _US, "the same backwards; 0 = forward only"),
            _count("inflight", 2, "tensors sent and not yet received, per direction"),
            WorkloadParameter(
                name="order", kind="text", default="1f1b", choices=("gpipe", "1f1b"), help="of a stage"
            ),
            WorkloadParameter(
                name="sends_block", kind="flag", default=False, help="a stage waits for its sends to arrive"
            ),
        ),
        build=_pipeline,
    ),
    Workload(
        name="engram-fetch", help="rows of a spread table, loaded over UBMEM, as EngramBuffer does",
        parameters=(
            _count("tokens", 128, "of each rank", least=0),
            _count("entries_per_token", 8, "rows that a token gets"),
            _count("entries_per_rank", 65_536, "rows of the table on a rank"),
            _size(4096, "bytes of a row"), _count("cores", NUM_BLOCKS, "vector cores of a rank"),
            _count("seed", 0, "of the ids", least=0),
        ),
        build=_engram,
    ),
    Workload(
        name="hybrid-dispatch", help="dispatch that crosses the scale-out network once per supernode",
        parameters=(
            *_HYBRID, _count("slots", 0, "chunks of a sender that a forwarder holds; 0 = all", least=0),
        ),
        build=_hybrid_dispatch,
    ),
    Workload(
        name="hybrid-combine", help="the way back, summed at the forwarder", parameters=_HYBRID,
        build=_hybrid_combine,
    ),
)  # fmt: skip
WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType({workload.name: workload for workload in _ALL})
"""Workloads by name."""
