"""What a backend is: it opens a buffer between R ranks, and runs dispatch, cached dispatch and combine on it.

All ranks at once: one process talks to a machine of R ranks, however that machine runs them. Arrays are
NumPy; bf16 and fp8 are the dtypes of ml_dtypes.

R ranks, T tokens of a rank, K top-k, H hidden, P scale packs, E experts, L local experts, M token capacity,
N received rows, X expanded rows. "rows" is X in the expanded layout, N in the deduplicated one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig
from reference.handle import Handle
from reference.topk import TopK

Array = npt.NDArray[Any]
PerRank = Sequence[Array]
EditionName = Literal["ascend", "nvidia-v2.5", "nvidia-v2"]
"""Names of `reference.edition`."""
Feature = Literal[
    "expanded",
    "deduplicated",
    "bf16",
    "fp8",
    "column_major_scales",
    "no_cpu_sync",
    "cached",
    "rank_reduced",
    "one_rounding",
    "bias",
    "weights",
    "stats",
    "hybrid",
]
"""What a backend may lack. rank_reduced and one_rounding are the two reductions: sums per rank first, rounded
to bf16, or one rounding at home (`reference.order`)."""


class BackendFailure(RuntimeError):
    """The machine stopped: a violation, a crash, a deadlock. The message is its report."""


class UnsupportedCellError(RuntimeError):
    """The machine has no such operation; the message says why. It is reported, and is no failure."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which of the many legal orders the machine takes; equal values give equal runs.

    Args:
      strategy: one of `Capabilities.strategies`, "" if there is nothing to choose.
      seed: of the strategy.
    """

    strategy: str = ""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend can do; everything that is not named in `unsupported` it must do right.

    Args:
      edition: whose tensor forms its handles have (`reference.edition`).
      num_ranks: sizes of a group that it can make, ascending.
      unsupported: why it lacks a feature.
      num_aivs: vector cores per rank with which it is tried (Ascend editions).
      aivs: all numbers of them that it can be told to use.
      hidden: smallest hidden, of which every hidden must be a multiple, in elements.
      max_hidden: largest, in elements.
      max_topk: largest K.
      max_experts: largest E; the workspace of both libraries has words for 2,048 (layout.hpp).
      strategies: of schedules; () = it runs as it runs.
      power_of_two_alignment: whether expert_alignment must be a power of two.
    """

    edition: EditionName
    num_ranks: tuple[int, ...]
    unsupported: Mapping[Feature, str] = field(default_factory=dict)
    num_aivs: tuple[int, ...] = (64,)
    aivs: range = range(1, 65)
    hidden: int = 128
    max_hidden: int = 7168
    max_topk: int = 8
    max_experts: int = 2048
    strategies: tuple[str, ...] = ()
    power_of_two_alignment: bool = True


@dataclass(frozen=True, kw_only=True)
class BufferSpec:
    """A buffer that serves calls of these sizes or smaller ones.

    Args:
      num_ranks: R.
      num_max_tokens_per_rank: M.
      hidden: H, elements.
      num_topk: K.
      num_aivs: vector cores of a rank, one of `Capabilities.aivs`.
      multiple_reduction: combine sums per rank first (rank_reduced); else one_rounding.
    """

    num_ranks: int
    num_max_tokens_per_rank: int
    hidden: int
    num_topk: int
    num_aivs: int = 64
    multiple_reduction: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchCall:
    """A dispatch.

    Args:
      config: the group; its ep_size is the buffer's.
      topk: routing, whose weights travel if it has any.
      x: per rank [T, H] bf16 or float8_e4m3fn, C order.
      scales: per rank [T, P], elements of the edition's pack size, any strides; None = none.
      expand: the expanded layout.
      cpu_sync: exact sizes; else the worst case.
      zero_padding: rows of alignment gaps are zero.
      column_major_scales: recv_scales has strides (1, rows).
      stats: per rank [L] int32 counts so far; the results hold them plus this dispatch's. Not written to.
    """

    config: EPConfig
    topk: TopK
    x: PerRank
    scales: PerRank | None = None
    expand: bool = True
    cpu_sync: bool = True
    zero_padding: bool = False
    column_major_scales: bool = False
    stats: PerRank | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedCall:
    """A dispatch of other rows to the places of an earlier one.

    Args:
      x: as in DispatchCall; dtype and H may be others than the earlier ones.
      scales: as in DispatchCall.
      topk_weights: per rank [T, K] float32; None = none.
      zero_padding: as in DispatchCall.
      column_major_scales: as in DispatchCall.
    """

    x: PerRank
    scales: PerRank | None = None
    topk_weights: PerRank | None = None
    zero_padding: bool = False
    column_major_scales: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class CombineCall:
    """A combine.

    Args:
      y: per rank [rows, H] bf16; rows that no token made hold anything and must not be read.
      topk_weights: per rank [rows] float32 expanded, [rows, K] deduplicated; None = none.
      bias: up to two, each per rank [T, H] bf16.
    """

    y: PerRank
    topk_weights: PerRank | None = None
    bias: tuple[PerRank, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """What one rank receives; the fields are those of `reference.results.DispatchResult`.

    Args:
      recv_x: [rows, H].
      recv_scales: [rows, P]; None = none were sent.
      recv_topk_idx: [N, K] int64 local ids, deduplicated layout only.
      recv_topk_weights: float32, [X] expanded, [N, K] deduplicated; None = none were sent.
      cumulative_local_expert_recv_stats: [L] int32; None = not asked for.
    """

    recv_x: Array
    recv_scales: Array | None = None
    recv_topk_idx: npt.NDArray[np.int64] | None = None
    recv_topk_weights: npt.NDArray[np.float32] | None = None
    cumulative_local_expert_recv_stats: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Dispatched:
    """A dispatch that is done.

    Args:
      received: by rank.
      handles: by rank; arrays hold what the machine has now, not a memory of what it had.
      key: whatever the backend needs to find its own handles again; nobody else looks at it.
    """

    received: tuple[Received, ...]
    handles: tuple[Handle, ...]
    key: object = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """What one home rank gets: [T, H] bf16 sums, and [T, K] float32 weights if combine was given any."""

    combined_x: Array
    combined_topk_weights: npt.NDArray[np.float32] | None = None


class Session(Protocol):
    """An open buffer. Calls come one after the other; each is complete, results included, when it returns.

    Each call may raise BackendFailure (the machine stopped) or UnsupportedCellError.
    """

    def dispatch(self, call: DispatchCall) -> Dispatched:
        """Run a dispatch; the result's arrays and handles are the caller's, later calls leave them alone."""
        ...

    def dispatch_cached(self, before: Dispatched, call: CachedCall) -> Dispatched:
        """Run a cached dispatch over a result of `dispatch` of this session, which need not be the last."""
        ...

    def combine(self, before: Dispatched, call: CombineCall) -> tuple[Combined, ...]:
        """Run a combine over a result of `dispatch` or `dispatch_cached` of this session; by rank."""
        ...

    def close(self) -> None:
        """End the buffer."""
        ...


class Backend(Protocol):
    """A machine. It may keep processes or compiled code between sessions until `shutdown`."""

    @property
    def name(self) -> str:
        """As the command line writes it."""
        ...

    def capabilities(self) -> Capabilities:
        """Say what it can do."""
        ...

    def open(self, spec: BufferSpec, schedule: Schedule) -> Session:
        """Open a buffer; equal calls on a session with an equal schedule give equal runs, if it has any."""
        ...

    def shutdown(self) -> None:
        """Give back everything; no session is open."""
        ...
