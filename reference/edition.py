"""What the public libraries do differently, as one explicit value: no other file compares edition names.

R ranks, K top-k, N received rows, X expanded rows, A expert alignment, c_e rows of local expert e.
"""

from dataclasses import dataclass, replace
from typing import Literal

from reference.errors import ConfigError

EditionName = Literal["ascend", "nvidia-v2.5", "nvidia-v2"]
MetadataOrder = Literal["rows_first", "gid_first"]
"""rows_first: K rows, gid, master. gid_first: gid, (source rank or group slot) * K + master, K rows."""
PsumMeaning = Literal["row_ends", "block_ends"]
"""row_ends: where the real rows of expert e end, start_e + c_e. block_ends: where its aligned block ends,
sum over j <= e of al(c_j, A). Upstream has one name for both; which it is depends on the layout."""
SumStart = Literal["first_row", "zero"]
"""Which value a sum starts from; it decides the sign of a zero, nothing else."""


class EditionError(ConfigError, NotImplementedError):
    """The edition does not have what was asked for; another edition of the same library does.

    Choose another edition, or the layout that this one has. `edition` holds its name.
    """

    def __init__(self, edition: str, field: str, value: object, rule: str) -> None:
        """Say which edition refuses `value` of `field`, and its rule."""
        self.edition = edition
        super().__init__(field, value, f"edition {edition} {rule}")


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One library edition: the forms of its tensors, and what it refuses.

    Args:
      name: as users write it.
      metadata_order: columns of recv_src_metadata.
      float_payloads: dtypes of floats that dispatch takes; None = any, only their bytes matter.
      scale_pack_bytes: bytes of one element of the scales.
      scale_column_rows: rows to which a column of column-major scales is padded.
      slot_has_rank: whether dst_buffer_slot_idx counts from the sender's region (own_rank * M + slot).
      has_gather_idx: whether the handle holds dst_gsge_idx.
      has_ordered_experts: whether rows inside an expert block keep the order of the received rows; else
        their order is open too.
      sum_start: see SumStart.
      has_equal_rank_groups: whether combine's receive groups are by rank already at R == K.
      hidden_multiple: elements that must divide H in the combine kernels (a kernel limit, not checked here).
      has_deduplicated, has_hybrid, has_single_reduction, has_handle_copy, has_expert_ids: what it offers.
      checks_topk_version: whether a handle notices that topk_idx was written to after dispatch.
      Source: deepep-ascend.md sections 1.5-1.7, 1.10, 2, 4.5-4.6; deepep-v2.md sections 2.3-2.7, 3.2, 3.4, 7.
    """

    name: EditionName
    metadata_order: MetadataOrder
    float_payloads: tuple[str, ...] | None
    scale_pack_bytes: int
    scale_column_rows: int
    slot_has_rank: bool
    has_gather_idx: bool
    has_ordered_experts: bool
    sum_start: SumStart
    has_equal_rank_groups: bool
    hidden_multiple: int
    has_deduplicated: bool
    has_hybrid: bool
    has_single_reduction: bool
    has_handle_copy: bool
    has_expert_ids: bool
    checks_topk_version: bool

    def refuse(self, field: str, value: object, rule: str) -> EditionError:
        """Return the error for something this edition lacks."""
        return EditionError(self.name, field, value, rule)

    def psum_meaning(self, *, expand: bool) -> PsumMeaning:
        """Return what psum_num_recv_tokens_per_expert holds in a layout.

        Source: deepep-ascend.md section 1.7; deepep-v2.md section 2.6.
        """
        return "row_ends" if expand else "block_ends"

    def groups_by_rank(self, ep_size: int, num_topk: int) -> bool:
        """Return whether combine's receive region has one group per rank; else one per top-k column.

        Source: deepep-ascend.md section 3.4 (R < K); deepep-v2.md section 3.4 (R <= K).
        """
        return ep_size < num_topk or (self.has_equal_rank_groups and ep_size == num_topk)


ASCEND = Edition(
    name="ascend",
    metadata_order="rows_first",
    float_payloads=("bfloat16", "float8_e4m3fn"),
    scale_pack_bytes=2,
    scale_column_rows=1,
    slot_has_rank=False,
    has_gather_idx=True,
    has_ordered_experts=True,
    sum_start="first_row",
    has_equal_rank_groups=False,
    hidden_multiple=128,
    has_deduplicated=False,
    has_hybrid=False,
    has_single_reduction=False,
    has_handle_copy=False,
    has_expert_ids=False,
    checks_topk_version=True,
)
NVIDIA_V25 = Edition(
    name="nvidia-v2.5",
    metadata_order="gid_first",
    float_payloads=None,
    scale_pack_bytes=4,
    scale_column_rows=4,
    slot_has_rank=True,
    has_gather_idx=False,
    has_ordered_experts=False,
    sum_start="zero",
    has_equal_rank_groups=True,
    hidden_multiple=256,
    has_deduplicated=True,
    has_hybrid=True,
    has_single_reduction=True,
    has_handle_copy=False,
    has_expert_ids=True,
    checks_topk_version=True,
)
NVIDIA_V2 = replace(
    NVIDIA_V25, name="nvidia-v2", has_handle_copy=True, has_expert_ids=False, checks_topk_version=False
)
EDITIONS: dict[EditionName, Edition] = {e.name: e for e in (ASCEND, NVIDIA_V25, NVIDIA_V2)}


def find_edition(name: str) -> Edition:
    """Return the edition of that name.

    Raises:
      ConfigError: unknown name.
    """
    for edition in EDITIONS.values():
        if edition.name == name:
            return edition
    raise ConfigError("edition", name, f"must be one of {', '.join(EDITIONS)}")
