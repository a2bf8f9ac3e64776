"""What one rank keeps from dispatch to run combine, or to dispatch again to the same rows.

R ranks, SU ranks of a scale-up domain, T tokens of a rank, K top-k, L local experts, M token capacity,
N received rows, X expanded rows. gid = src_rank * M + src_token. master = a token's highest column on a rank.
"""

from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig, whole_number
from reference.edition import Edition, EditionName, find_edition
from reference.errors import ConfigError

IntArray = npt.NDArray[np.int32]
DEFAULT_NUM_AIVS = 64
"""Vector cores of an Ascend 950, all of which the library uses (deepep-ascend.md sections 1.3 and 6)."""


class StaleHandleError(ConfigError):
    """The topk_idx that a handle keeps was written to after its dispatch.

    Do not reuse the routing array before the last combine, or give dispatch a copy of it.
    """


@dataclass(frozen=True, kw_only=True)
class DispatchMode:
    """How dispatch lays out what it delivers.

    Args:
      edition: whose forms and refusals; see `edition.py`.
      expand: one row per (token, local expert), grouped by expert; else one row per token.
      num_scaleup_ranks: SU; fewer than R = hybrid, two levels. None = all ranks are one domain.
      cpu_sync: outputs have their exact size; else the worst case, and rows past the real ones are undefined.
      num_aivs: vector cores that share a sender's tokens (Ascend). They bound what the arrival may shuffle.
      arrival_seed: shuffles whatever the contract leaves open; None = canonical, source rank then token.
      deterministic: sort rows after arrival, so that a shuffle does not show in them.
      copy_topk: the handle keeps a copy of topk_idx; else the caller's array.

    Raises:
      ConfigError: unknown edition, or a count below 1.
      EditionError: the edition lacks the layout.
    """

    edition: EditionName = "ascend"
    expand: bool = True
    num_scaleup_ranks: int | None = None
    cpu_sync: bool = True
    num_aivs: int = DEFAULT_NUM_AIVS
    arrival_seed: int | None = None
    deterministic: bool = False
    copy_topk: bool = False

    def __post_init__(self) -> None:
        """Check against the edition."""
        rules = find_edition(self.edition)
        whole_number("num_aivs", self.num_aivs, 1)
        if self.num_scaleup_ranks is not None:
            whole_number("num_scaleup_ranks", self.num_scaleup_ranks, 1)
        if not self.expand and not rules.has_deduplicated:
            raise rules.refuse("expand", False, "has the expanded layout only")
        if self.copy_topk and not rules.has_handle_copy:
            raise rules.refuse("copy_topk", True, "keeps the caller's topk_idx")

    @property
    def rules(self) -> Edition:
        """The edition's forms."""
        return find_edition(self.edition)

    def scaleup_ranks(self, config: EPConfig) -> int:
        """Return SU of a group.

        Raises:
          ConfigError: SU does not divide R.
          EditionError: hybrid, and the edition has one flat domain.
        """
        size = config.ep_size if self.num_scaleup_ranks is None else self.num_scaleup_ranks
        if config.ep_size % size:
            raise ConfigError("num_scaleup_ranks", size, f"must divide ep_size {config.ep_size}")
        if size != config.ep_size and not self.rules.has_hybrid:
            raise self.rules.refuse("num_scaleup_ranks", size, f"has one domain of {config.ep_size} ranks")
        return size


def topk_digest(topk_idx: npt.NDArray[np.int64]) -> bytes:
    """Return a fingerprint of a routing array, to notice that it was written to."""
    return blake2b(np.ascontiguousarray(topk_idx).tobytes(), digest_size=16).digest()


class RowOrigins(NamedTuple):
    """Where each row of the layout came from; -1 = padding or past the end."""

    gid: IntArray
    """[rows] int32 src_rank * M + src_token."""
    k: npt.NDArray[np.int16]
    """[rows] int16 top-k column; the master column in the deduplicated layout."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Handle:
    """One rank's handle; its arrays are read-only. It depends on no buffer and on no other dispatch.

    Args:
      rank: whose handle.
      config: the group.
      mode: the layout.
      source_topk_idx: [T, K] int64 global ids of this rank's own tokens; read it as `topk_idx`.
      source_digest: fingerprint at dispatch, None = the edition does not check.
      num_recv_tokens: N; exact with cpu_sync, else R * M.
      num_expanded_tokens: X; exact with cpu_sync, else the worst case.
      num_recv_tokens_per_expert_list: L aligned counts; () without cpu_sync.
      psum_num_recv_tokens_per_rank: [R] int32 inclusive sum of deduplicated rows per source rank.
      psum_num_recv_tokens_per_expert: [L] int32, its meaning is `edition.psum_meaning`.
      num_unaligned_recv_tokens_per_expert: [L] int32 real rows.
      recv_src_metadata: [N, K+2] int32 in the edition's column order; read it with `gids`, `masters`,
        `expanded_rows`. The K row columns are undefined in the deduplicated layout.
      dst_buffer_slot_idx: [T, K] int32 slot at the target, at each target's master; -1 elsewhere. Counted
        from this rank's region there (Ascend), from the region's start + rank * M (NVIDIA), or inside the
        scale-up group (hybrid; the channel tensors of the NVIDIA editions are not modelled).
      dst_gsge_idx: [T, K] int32 gather pair in the AIV's descriptor list, -1 = local or no master; None in
        NVIDIA editions.
      cached_recv_src_metadata_before_sort: the metadata as it arrived, when `deterministic`; else None.
      Source: deepep-ascend.md section 1.7; deepep-v2.md section 2.6.
    """

    rank: int
    config: EPConfig
    mode: DispatchMode
    source_topk_idx: npt.NDArray[np.int64]
    source_digest: bytes | None = field(repr=False)
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: tuple[int, ...]
    psum_num_recv_tokens_per_rank: IntArray
    psum_num_recv_tokens_per_expert: IntArray
    num_unaligned_recv_tokens_per_expert: IntArray
    recv_src_metadata: IntArray
    dst_buffer_slot_idx: IntArray
    dst_gsge_idx: IntArray | None
    cached_recv_src_metadata_before_sort: IntArray | None = None

    def __post_init__(self) -> None:
        """Freeze the arrays, but not the caller's topk_idx."""
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                view = value.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    @property
    def topk_idx(self) -> npt.NDArray[np.int64]:
        """[T, K] int64 ids of this rank's tokens.

        Raises:
          StaleHandleError: the array was written to since dispatch (editions that check).
        """
        if self.source_digest not in (None, topk_digest(self.source_topk_idx)):
            rule = "topk_idx was written to after dispatch; combine would use another routing"
            raise StaleHandleError(f"handle of rank {self.rank}", "stale", rule)
        return self.source_topk_idx

    @property
    def do_expand(self) -> bool:
        """Whether the layout is the expanded one."""
        return self.mode.expand

    @property
    def num_experts(self) -> int:
        """E of the group."""
        return self.config.num_experts

    @property
    def expert_alignment(self) -> int:
        """A of the group."""
        return self.config.expert_alignment

    @property
    def num_max_tokens_per_rank(self) -> int:
        """M of the group."""
        return self.config.num_max_tokens_per_rank

    @property
    def num_sms(self) -> int:
        """AI cores that dispatch used: two vector cores each (deepep-ascend.md section 1.1)."""
        return -(-self.mode.num_aivs // 2)

    @property
    def num_rows(self) -> int:
        """Rows of recv_x, and of what combine takes: X expanded, else N."""
        return self.num_expanded_tokens if self.mode.expand else self.num_recv_tokens

    @property
    def num_real_recv_tokens(self) -> int:
        """Received rows that exist, also when N is the worst case."""
        return int(self.psum_num_recv_tokens_per_rank[-1])

    @property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> IntArray:
        """[SU] int32 inclusive sum of rows per scale-up index of the source; [R] in direct mode."""
        per_rank = np.diff(self.psum_num_recv_tokens_per_rank, prepend=np.int32(0))
        by_index = per_rank.reshape(-1, self.mode.scaleup_ranks(self.config)).sum(axis=0)
        return np.cumsum(by_index, dtype=np.int32)

    def gids(self) -> IntArray:
        """Return [real N] int32: source of each received row, as src_rank * M + src_token."""
        column = self.config.num_topk if self.mode.rules.metadata_order == "rows_first" else 0
        return self.recv_src_metadata[: self.num_real_recv_tokens, column]

    def masters(self) -> IntArray:
        """Return [real N] int32: highest column of the row's token on this rank."""
        real, topk = self.recv_src_metadata[: self.num_real_recv_tokens], self.config.num_topk
        return real[:, topk + 1] if self.mode.rules.metadata_order == "rows_first" else real[:, 1] % topk

    def expanded_rows(self) -> IntArray:
        """Return [real N, K] int32: expanded row of each column, -1 = not on this rank.

        Raises:
          ConfigError: the layout is deduplicated, which has no expanded rows.
        """
        if not self.mode.expand:
            raise ConfigError("expand", False, "a deduplicated layout has no expanded rows")
        real = self.recv_src_metadata[: self.num_real_recv_tokens]
        rows_first = self.mode.rules.metadata_order == "rows_first"
        return real[:, : self.config.num_topk] if rows_first else real[:, 2:]

    def block_starts(self) -> IntArray:
        """Return [L+1] int32: first row of each expert's block, and the end of the last block."""
        alignment = self.config.expert_alignment
        blocks = -(-self.num_unaligned_recv_tokens_per_expert.astype(np.int64) // alignment) * alignment
        return np.append(0, np.cumsum(blocks)).astype(np.int32)

    def row_origins(self) -> RowOrigins:
        """Return which token and column made each row of recv_x."""
        gid = np.full(self.num_rows, -1, dtype=np.int32)
        k = np.full(self.num_rows, -1, dtype=np.int16)
        if not self.mode.expand:
            gid[: self.num_real_recv_tokens] = self.gids()
            k[: self.num_real_recv_tokens] = self.masters()
            return RowOrigins(gid, k)
        rows = self.expanded_rows()
        for column in range(rows.shape[1]):
            here = rows[:, column] >= 0
            gid[rows[here, column]] = self.gids()[here]
            k[rows[here, column]] = column
        return RowOrigins(gid, k)

    def differences(self, other: "Handle") -> list[str]:
        """Return the names of fields that differ; what the contract leaves undefined does not count."""
        return [f.name for f in fields(self) if not _same(self._defined(f.name), other._defined(f.name))]

    def _defined(self, name: str) -> Any:  # noqa: ANN401 - fields have every type
        value = getattr(self, name)
        if not name.endswith(("recv_src_metadata", "before_sort")) or value is None:
            return value
        real = value[: self.num_real_recv_tokens]
        return real if self.mode.expand else real[:, :2]

    def __eq__(self, other: object) -> bool:
        """Compare field by field; see `differences`."""
        return self.differences(other) == [] if isinstance(other, Handle) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _same(left: Any, right: Any) -> bool:  # noqa: ANN401 - fields have every type
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return type(left) is type(right) and bool(left == right)


def check_group(handles: tuple[Handle, ...]) -> None:
    """Refuse handles that are not, in rank order, the handles of one group in one layout.

    Raises:
      ConfigError: a rank is missing or out of place, or the groups or layouts differ.
    """
    if not handles:
        raise ConfigError("handles", "empty", "must hold one handle per rank")
    first = handles[0]
    if [h.rank for h in handles] != list(range(first.config.ep_size)):
        rule = f"must be the handles of ranks 0..{first.config.ep_size - 1}, in that order"
        raise ConfigError("handles", [h.rank for h in handles], rule)
    for handle in handles[1:]:
        if handle.config != first.config or handle.mode != first.mode:
            rule = "must come from the same group and layout as rank 0's"
            raise ConfigError(f"handles[{handle.rank}]", handle.config, rule)
