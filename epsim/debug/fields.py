"""Every array that a capture may hold: who makes it, its shape and dtypes.

R ranks, K top-k, H hidden, L local experts, P scale packs, T tokens of a rank, N received rows, X expanded
rows. "rows" is X in the expanded layout, N in the other one.
"""

from dataclasses import dataclass
from typing import Literal

Stage = Literal["input", "dispatch", "combine_input", "combine"]


@dataclass(frozen=True, kw_only=True)
class CaptureField:
    """One array that a rank may give.

    Args:
      stage: who makes it.
      shape: for people.
      dtypes: what a file may hold; "payload" = the dtype of the options, "scales" = any of 1 to 4 bytes.
      meaning: for people.
    """

    stage: Stage
    shape: str
    dtypes: tuple[str, ...]
    meaning: str


def _field(stage: Stage, shape: str, dtypes: str, meaning: str) -> CaptureField:
    return CaptureField(stage=stage, shape=shape, dtypes=tuple(dtypes.split()), meaning=meaning)


FIELDS: dict[str, CaptureField] = {
    "topk_idx": _field("input", "[T, K]", "int64 int32", "expert of each choice, -1 = none"),
    "topk_weights": _field("input", "[T, K]", "float32", "weight of each choice"),
    "x": _field("input", "[T, H]", "payload", "tokens given to dispatch"),
    "sf": _field("input", "[T, P]", "scales", "their scales"),
    "dst_buffer_slot_idx": _field("dispatch", "[T, K]", "int32", "slot at the target, -1 = no master"),
    "dst_gsge_idx": _field("dispatch", "[T, K]", "int32", "gather pair, -1 = local or no master"),
    "psum_num_recv_tokens_per_rank": _field("dispatch", "[R]", "int32", "rows by source rank, summed up"),
    "num_unaligned_recv_tokens_per_expert": _field("dispatch", "[L]", "int32", "real rows per expert"),
    "psum_num_recv_tokens_per_expert": _field("dispatch", "[L]", "int32", "where an expert's rows end"),
    "num_recv_tokens_per_expert_list": _field("dispatch", "[L]", "int64 int32", "aligned rows per expert"),
    "recv_src_metadata": _field("dispatch", "[N, K+2]", "int32", "source and rows of each received record"),
    "recv_x": _field("dispatch", "[rows, H]", "payload", "tokens received"),
    "recv_sf": _field("dispatch", "[rows, P]", "scales", "their scales"),
    "recv_topk_idx": _field("dispatch", "[N, K]", "int64 int32", "local experts (deduplicated layout)"),
    "recv_topk_weights": _field("dispatch", "[X] or [N, K]", "float32", "weights received"),
    "combine_x": _field("combine_input", "[rows, H]", "bfloat16", "expert outputs given to combine"),
    "combine_topk_weights": _field("combine_input", "[X] or [N, K]", "float32", "weights given to combine"),
    "bias_0": _field("combine_input", "[T, H]", "bfloat16", "first bias"),
    "bias_1": _field("combine_input", "[T, H]", "bfloat16", "second bias"),
    "combined_x": _field("combine", "[T, H]", "bfloat16", "tokens that came back"),
    "combined_topk_weights": _field("combine", "[T, K]", "float32", "weights that came back"),
}
"""Every field, in the order of the data flow: names of deep_ep, but `sf` and `combine_*` for arguments."""
