"""Runs the EP kernels on a twin: memory, arguments and streams of all ranks."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from native.arguments import KERNELS, Comm, RuntimeConfig
from native.twin import Twin, TwinMachine
from reference.config import EPConfig
from reference.memory.layout import combine_record, dispatch_record, metadata_image
from reference.memory.sizes import ascend_scale_packs, element_bytes
from reference.memory.workspace import MAX_RANKS, WORKSPACE_BYTES, workspace_field
from reference.placement import worst_case_rows
from reference.topk import TopK


class BarrierArgs(ctypes.Structure):
    """Of the standalone barrier, which no backend launches."""

    _fields_ = (("cfg", RuntimeConfig), ("comm", Comm), ("num_jetties", ctypes.c_uint64))


@dataclass(kw_only=True)
class Case:
    """One call sequence: fresh dispatch, and what may follow."""

    config: EPConfig
    topk: TopK
    num_aivs: int
    dtype: str = "bf16"
    cpu_sync: bool = True
    with_weights: bool = True
    zero_padding: bool = True
    column_major_scales: bool = False
    num_biases: int = 0
    seed: int = 0
    switches: Mapping[str, int] = field(default_factory=dict)
    num_threads: int = 64
    sq_depth: int = 1024
    ub_bytes: int = 221184


class Group:
    """All ranks of one case on one machine: memory, arguments, streams."""

    def __init__(self, twin: Twin, case: Case, params: Mapping[str, int | str]) -> None:
        """Make the machine and what belongs to a buffer; params go to the machine ("seed", "strategy")."""
        self.case, self.config = case, case.config
        self.num_ranks = case.config.ep_size
        self.num_local = case.config.num_experts // self.num_ranks
        self.machine = TwinMachine(
            twin,
            {
                "ranks": self.num_ranks,
                "aivs": case.num_aivs,
                "ub_bytes": case.ub_bytes,
                "sq_depth": case.sq_depth,
            }
            | dict(params),
        )
        self.record = self.dispatch_record(case.dtype, fresh=True)
        self.back = combine_record(self.config.hidden, self.config.num_topk)
        largest = max(self.record.num_bytes, self.dispatch_record("bf16", fresh=True).num_bytes)
        most = max(self.num_ranks * largest, self.config.num_topk * self.back.num_bytes)
        region = self.config.num_max_tokens_per_rank * most
        self.windows = [self._alloc(r, WORKSPACE_BYTES + region, "window") for r in range(self.num_ranks)]
        # The window is zero at first; the region's content is not to be relied on.
        for window in self.windows:
            self.machine.write(window, np.zeros(WORKSPACE_BYTES, np.uint8))
            self.machine.write(window, np.array(self.windows, dtype="<i8"))
        self.hosts = [self._alloc(r, WORKSPACE_BYTES, "host", zero=True) for r in range(self.num_ranks)]
        if self.num_ranks > 1:
            self.machine.init_jetties()

    def _alloc(self, rank: int, num_bytes: int, name: str, *, zero: bool = False) -> int:
        return self.machine.alloc(rank, max(num_bytes, 32), name, is_zeroed=zero)

    def dispatch_record(self, dtype, *, fresh):
        """Return the layout of a record."""
        packs = ascend_scale_packs(self.config.hidden, dtype)
        return dispatch_record(
            self.config.hidden, self.config.num_topk, dtype, num_scale_packs=packs, fresh=fresh
        )

    def put(self, rank: int, values: np.ndarray, name: str) -> int:
        address = self._alloc(rank, values.nbytes, name)
        self.machine.write(address, values)
        return address

    def launch(self, rank: int, kernel: str, **values: int) -> None:
        """Queue a kernel; values go to the fields of its arguments and configuration of their names."""
        case, config = self.case, self.config
        cfg = RuntimeConfig(
            timeout_cycles=10**15, num_ranks=self.num_ranks, num_experts=config.num_experts,
            num_topk=config.num_topk, num_max_tokens=config.num_max_tokens_per_rank,
            expert_alignment=config.expert_alignment, num_aivs=case.num_aivs, num_threads=case.num_threads,
            hidden=config.hidden, ub_bytes=case.ub_bytes, sq_depth=case.sq_depth, cpu_sync=case.cpu_sync,
            zero_padding=case.zero_padding, **case.switches,
        )  # fmt: skip
        num_tokens = len(case.topk.topk_idx[rank])
        comm = Comm(
            window=self.windows[rank], host_workspace=self.hosts[rank], rank=rank, num_tokens=num_tokens
        )
        if self.num_ranks > 1:
            comm.jetty_table = self.machine.find(rank, "jetty_table")
            comm.peer_table = self.machine.find(rank, "peer_table")
        args = KERNELS.get(kernel, BarrierArgs)(cfg=cfg, comm=comm)
        for name, value in values.items():
            for part in (args.cfg, args):
                if hasattr(part, name):
                    setattr(part, name, value)
        block = self.put(rank, np.frombuffer(bytes(args), np.uint8), f"args of {kernel}")
        self.machine.enqueue(rank, kernel, block, case.num_aivs)


@dataclass
class Dispatched:
    """What one rank has after dispatch; addresses of what later calls need."""

    handle: dict[str, int]
    fields: dict[str, int]
    outputs: dict[str, int]
    num_rows: int
    num_records: int
    dtype: str


def payload_fields(
    group: Group, rank: int, dtype: str, x: np.ndarray, scales: np.ndarray | None
) -> dict[str, int]:
    """Put a rank's payload into its memory; return the arguments that describe it."""
    case, config = group.case, group.config
    packs = ascend_scale_packs(config.hidden, dtype)
    found = {"x": group.put(rank, x, "x"), "payload_bytes": config.hidden * element_bytes(dtype),
             "num_scale_packs": packs}  # fmt: skip
    if scales is None:
        return found
    stored = scales.T.copy() if case.column_major_scales else scales
    strides = (1, max(len(scales), 1)) if case.column_major_scales else (packs, 1)
    if packs == 1 and not case.column_major_scales:
        strides = (1, 1)
    return found | {"scales": group.put(rank, stored, "scales"), "scale_token_stride": strides[0],
                    "scale_pack_stride": strides[1]}  # fmt: skip


def empty_handle(group, rank) -> dict[str, int]:
    """Allocate what a fresh dispatch fills for later calls of a rank."""
    idx, topk = group.case.topk.topk_idx[rank], group.config.num_topk
    records, _ = worst_case_rows(group.config, group.num_local)
    words = {"dst_buffer_slot_idx": idx.size, "dst_gsge_idx": idx.size, "psum_rank": group.num_ranks,
             "psum_expert": group.num_local, "num_unaligned": group.num_local,
             "recv_src_metadata": records * (topk + 2)}  # fmt: skip
    made = {name: group._alloc(rank, 4 * count, name) for name, count in words.items()}
    return {"topk_idx": group.put(rank, idx, "topk_idx")} | made


def queue_dispatch(group, rank, done: Dispatched) -> None:
    """Queue dispatch, the host's wait for the counts of a fresh one, and the epilogue."""
    machine, host = group.machine, group.hosts[rank]
    reads_counts = group.case.cpu_sync and not done.fields["cached"]
    words = workspace_field("host_rank_expert_count")
    if reads_counts:
        machine.write(host, np.zeros(words.offset + words.num_bytes, np.uint8))
    group.launch(rank, "dispatch", **done.fields, **done.handle)
    if reads_counts:
        for first, count in ((0, group.num_ranks), (MAX_RANKS, group.num_local)):
            address = host + words.offset + 4 * first
            machine.enqueue_wait_words(rank, address, count, 0xFF000000, group.num_ranks << 24)
    fields = done.fields | done.handle | done.outputs
    fields.pop("x")
    group.launch(rank, "dispatch_epilogue", **fields)


def start_dispatch(group, payloads, dtype, *, handles=None, weights=None, stats=None) -> list[Dispatched]:
    """Queue dispatch and its epilogue on all ranks; cached when there are handles."""
    image = metadata_image(group.dispatch_record(dtype, fresh=handles is None)).num_bytes
    num_records, num_rows = worst_case_rows(group.config, group.num_local)
    started = []
    for rank, payload in enumerate(payloads):
        fields = payload_fields(group, rank, dtype, *payload) | {"cached": int(handles is not None)}
        handle = empty_handle(group, rank) if handles is None else handles[rank].handle
        outputs = {"recv_x": num_rows * fields["payload_bytes"],
                   "recv_scales": num_rows * 2 * fields["num_scale_packs"]}  # fmt: skip
        if stats is not None:
            handle["stats"] = group.put(rank, stats[rank], "stats")
        if weights is not None:
            fields["topk_weights"] = group.put(rank, weights[rank], "weights")
            outputs["recv_weights"] = 4 * num_rows
        num_tokens = len(group.case.topk.topk_idx[rank])
        fields["metadata_image"] = group._alloc(rank, num_tokens * image, "image")
        places = {name: group._alloc(rank, num_bytes, name) for name, num_bytes in outputs.items()}
        started.append(Dispatched(handle, fields, places, num_rows, num_records, dtype))
        queue_dispatch(group, rank, started[-1])
    return started


def start_combine(group, dispatched, y, *, weights=None, biases=()):
    """Queue combine and its epilogue on all ranks; return the addresses of the outputs."""
    case, config = group.case, group.config
    outputs = []
    for rank, done in enumerate(dispatched):
        tokens = len(case.topk.topk_idx[rank])
        fields = {key: done.handle[key] for key in ("topk_idx", "psum_rank", "recv_src_metadata")}
        fields["x"] = group.put(rank, y[rank], "y")
        if weights is not None:
            fields["topk_weights"] = group.put(rank, weights[rank], "y weights")
        fields["send_buffer"] = group._alloc(rank, done.num_records * group.back.num_bytes, "send_buffer")
        group.launch(rank, "combine", **fields)
        found = fields | {"combined_x": group._alloc(rank, 2 * tokens * config.hidden, "combined_x")}
        if weights is not None:
            found["combined_weights"] = group._alloc(rank, 4 * tokens * config.num_topk, "combined_weights")
        bias = (ctypes.c_uint64 * 2)(*(group.put(rank, b[rank], "bias") for b in biases))
        group.launch(rank, "combine_epilogue", bias=bias, **found)
        outputs.append(found)
    return outputs


def start_barrier(group):
    """Queue the standalone barrier, which drains every jetty, on all ranks."""
    for rank in range(group.num_ranks):
        group.launch(rank, "barrier", num_jetties=group.case.num_aivs)
