"""What a capture lacks: fields that only some ranks gave, which is a finding, and results not dumped."""

from collections.abc import Sequence

from epsim.capture import Capture
from epsim.debug.fields import FIELDS
from epsim.debug.notes import named_ranks
from reference.comparison.mismatch import FieldCount, Mismatch, MismatchReport
from reference.handle import Handle


def missing_fields(capture: Capture) -> list[MismatchReport]:
    """Return a report per field that some ranks lack although others have it and nothing allows that."""
    reports = []
    for name, ranks in capture.holes().items():
        givers = named_ranks(capture.givers(name))
        note = f"{givers} gave it, and capture.json lists no ranks that give it"
        if name in capture.partial:
            note = "capture.json lists this rank as one that gives it"
        found = tuple(Mismatch(kind="missing_field", field=name, rank=r, note=note) for r in ranks)
        count = FieldCount(
            field=name,
            num_compared=0,
            num_wrong=0,
            num_wrong_rows=0,
            by_kind={"missing_field": len(ranks)},
            by_rank=dict.fromkeys(ranks, 1),
        )
        reports.append(MismatchReport(mismatches=found, counts=(count,), num_fields=0, num_elements=0))
    return reports


def not_given(capture: Capture, handles: Sequence[Handle], *, has_combined_weights: bool) -> dict[str, str]:
    """Return the results that such a run has and nobody, or not every rank, gave; with why.

    Args:
      capture: what was given.
      handles: of the reference.
      has_combined_weights: whether combine returns weights at all.
    """
    mode, config = handles[0].mode, capture.config
    absent = {
        "dst_buffer_slot_idx": mode.scaleup_ranks(config) != config.ep_size,
        "dst_gsge_idx": handles[0].dst_gsge_idx is None,
        "num_recv_tokens_per_expert_list": not mode.cpu_sync,
        "recv_sf": not capture.givers("sf"),
        "recv_topk_idx": mode.expand,
        "recv_topk_weights": not capture.givers("topk_weights"),
        "combined_topk_weights": not (has_combined_weights and capture.givers("combine_topk_weights")),
    }
    found = {}
    for name, field in FIELDS.items():
        if field.stage not in ("dispatch", "combine") or absent.get(name, False):
            continue
        givers = set(capture.givers(name))
        if not givers:
            found[name] = "no rank gave it"
        elif name in capture.partial and len(givers) < config.ep_size:
            others = [rank for rank in range(config.ep_size) if rank not in givers]
            found[f"{name} at {named_ranks(others)}"] = "capture.json lists it for other ranks only"
    return found
