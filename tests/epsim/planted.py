"""Captures with one planted fault each, and what a diagnosis must say of them.

The victim is a token of `SOURCE` and its row at `TARGET`, another rank.
"""

from dataclasses import dataclass, field

import numpy as np

from epsim.capture import Capture, CaptureGroup, CaptureOptions
from epsim.debug.files import BF16
from epsim.debug.from_reference import dispatch_arrays, example_capture, reference_capture
from reference.combine import combine
from reference.dispatch import dispatch
from reference.handle import DispatchMode
from reference.order import ONE_ROUNDING
from reference.topk import TopK

SOURCE, TARGET = 1, 0


def good_capture(ep_size=2, dtype="bf16", **options):
    """Return a right capture with unequal token counts, masked choices, gaps and shuffled arrivals."""
    group = CaptureGroup(
        ep_size=ep_size,
        num_experts=4 * ep_size,
        num_topk=4,
        hidden=128,
        num_max_tokens_per_rank=12,
        expert_alignment=8,
    )
    tokens = [12 - r % 3 for r in range(ep_size)]
    chosen = CaptureOptions(dtype=dtype, **{"zero_padding": True} | options)
    return example_capture(
        group, tokens=tokens, seed=7, options=chosen, num_biases=2, masked_ratio=0.1, arrival_seed=3
    )


@dataclass
class Planted:
    """A faulty capture.

    Args:
      capture: it.
      place: attributes that the first place must have.
      token_place: attributes that the first place with a token must have.
      words: what the text of the first place must contain.
      fields: fields that must be wrong, no others; None = others may follow from the first.
    """

    capture: Capture
    place: dict
    token_place: dict = field(default_factory=dict)
    words: str = ""
    fields: tuple = None


def copied(capture):
    """Return writeable copies of all arrays."""
    return [{name: np.array(array) for name, array in arrays.items()} for arrays in capture.ranks]


def changed(capture, ranks):
    """Return the capture with other arrays."""
    return Capture(group=capture.group, options=capture.options, ranks=tuple(ranks))


def victim(capture, token=None):
    """Return (token, k, expert, stream row, expanded row) of a choice of SOURCE whose row is at TARGET."""
    config, table = capture.config, capture.ranks[TARGET]["recv_src_metadata"]
    for place, entry in enumerate(table.tolist()):
        source, found = divmod(entry[config.num_topk], config.num_max_tokens_per_rank)
        if source == SOURCE and token in (None, found):
            k = entry[config.num_topk + 1]
            return found, k, int(capture.ranks[SOURCE]["topk_idx"][found, k]), place, entry[k]
    raise AssertionError("no row of SOURCE at TARGET")


def where(token, k=None, expert=None):
    """Return what every place of the victim has."""
    known = {"source_rank": SOURCE, "token": token, "destination_rank": TARGET}
    return known | {name: value for name, value in (("k", k), ("expert", expert)) if value is not None}


def lost_row(capture):
    """TARGET never got the record, and counts without it."""
    token, *_ = victim(capture)
    ids = [np.array(a["topk_idx"]) for a in capture.ranks]
    here = capture.config.expert_ranks()[ids[SOURCE][token]] == TARGET
    ids[SOURCE][token, here] = -1
    weights = tuple(a["topk_weights"] for a in capture.ranks)
    topk = TopK(num_experts=capture.group.num_experts, topk_idx=tuple(ids), topk_weights=weights)
    sf = capture.column("sf")
    results, handles = dispatch(
        capture.config, topk, capture.column("x"), scales=sf, mode=capture.options.mode(), zero_padding=True
    )
    ranks = [{n: a for n, a in arrays.items() if not n.startswith("combine")} for arrays in copied(capture)]
    received = dispatch_arrays(results[TARGET], handles[TARGET])
    ranks[TARGET] |= {n: a for n, a in received.items() if not n.startswith("dst_")}
    place = {"field": "psum_num_recv_tokens_per_rank", "source_rank": SOURCE, "destination_rank": TARGET}
    lost = {"field": "recv_src_metadata", "kind": "lost_row"} | where(token)
    return Planted(changed(capture, ranks), place, lost)


def unwritten_row(capture):
    """Leave a row of recv_x unwritten, although its record came."""
    token, k, expert, _, row = victim(capture)
    ranks = copied(capture)
    ranks[TARGET]["recv_x"][row].view(np.uint8)[...] = 0xFF
    place = {"field": "recv_x", "kind": "nonfinite", "row": row} | where(token, k, expert)
    return Planted(changed(capture, ranks), place, place, fields=("recv_x",))


def doubled_row(capture):
    """TARGET got the record twice, and both copies name the same rows."""
    token, *_, stream_row, _ = victim(capture)
    ranks = copied(capture)
    table = ranks[TARGET]["recv_src_metadata"]
    ranks[TARGET]["recv_src_metadata"] = np.insert(table, stream_row, table[stream_row], axis=0)
    ranks[TARGET]["psum_num_recv_tokens_per_rank"][SOURCE:] += 1
    place = {"field": "psum_num_recv_tokens_per_rank", "source_rank": SOURCE, "destination_rank": TARGET}
    twice = {"field": "recv_src_metadata", "kind": "doubled_row"} | where(token)
    fields = ("psum_num_recv_tokens_per_rank", "recv_src_metadata")
    return Planted(changed(capture, ranks), place, twice, fields=fields)


def wrong_slot(capture):
    """Let the sender keep another slot than the one that the record is in."""
    token, k, expert, *_ = victim(capture)
    ranks = copied(capture)
    right = int(ranks[SOURCE]["dst_buffer_slot_idx"][token, k])
    ranks[SOURCE]["dst_buffer_slot_idx"][token, k] = 11
    place = {"field": "dst_buffer_slot_idx", "expected": right, "actual": 11, "slot": right, "column": k}
    place |= where(token, k, expert)
    return Planted(changed(capture, ranks), place, place, fields=("dst_buffer_slot_idx",))


def wrong_row(capture):
    """Let the metadata name another expanded row than the one that the choice is in."""
    token, k, expert, stream_row, row = victim(capture)
    ranks = copied(capture)
    ranks[TARGET]["recv_src_metadata"][stream_row, k] = row + 100
    place = {"field": "recv_src_metadata", "expected": row, "actual": row + 100, "column": k}
    place |= where(token, k, expert)
    return Planted(changed(capture, ranks), place, place, fields=("recv_src_metadata",))


def swapped_tokens(capture):
    """Two rows of recv_x stand in each other's place."""
    ranks = copied(capture)
    token, _, _, _, row = victim(capture)
    x = ranks[TARGET]["recv_x"]
    other = next(r for r in range(len(x)) if r != row and (x[r] != 0).any() and (x[r] != x[row]).any())
    x[[row, other]] = x[[other, row]]
    place = {"field": "recv_x", "kind": "swapped_rows", "destination_rank": TARGET}
    return Planted(
        changed(capture, ranks), place, words=f"token {token} of rank {SOURCE}", fields=("recv_x",)
    )


def shifted_weights(capture):
    """Every weight of a block stands one row too far."""
    ranks = copied(capture)
    counts = ranks[TARGET]["num_unaligned_recv_tokens_per_expert"]
    size = int(counts[0])
    weights = ranks[TARGET]["recv_topk_weights"]
    weights[:size] = np.roll(weights[:size], 1)
    place = {
        "field": "recv_topk_weights",
        "destination_rank": TARGET,
        "expert": 0,
        "actual": float(weights[0]),
    }
    return Planted(changed(capture, ranks), place, fields=("recv_topk_weights",))


def transposed_scales(capture):
    """Column-major scales were read as row-major."""
    ranks = copied(capture)
    scales = ranks[TARGET]["recv_sf"]
    ranks[TARGET]["recv_sf"] = np.ascontiguousarray(scales.T).reshape(scales.shape)
    place = {"field": "recv_sf", "destination_rank": TARGET}
    return Planted(changed(capture, ranks), place, words="column-major", fields=("recv_sf",))


def unset_padding(capture):
    """Leave old bytes in a row of an alignment gap."""
    ranks = copied(capture)
    row = int(ranks[TARGET]["psum_num_recv_tokens_per_expert"][1])
    ranks[TARGET]["recv_x"][row, 5] = 3
    place = {"field": "recv_x", "destination_rank": TARGET, "row": row, "column": 5, "expert": 1}
    place |= {"expected": 0.0, "actual": 3.0, "token": None, "source_rank": None}
    return Planted(changed(capture, ranks), place, fields=("recv_x",))


def wrong_psum(capture):
    """Let an expert's rows end one row too late."""
    ranks = copied(capture)
    psum = ranks[TARGET]["psum_num_recv_tokens_per_expert"]
    psum[1] += 1
    place = {"field": "psum_num_recv_tokens_per_expert", "destination_rank": TARGET, "expert": 1}
    place |= {"expected": int(psum[1]) - 1, "actual": int(psum[1])}
    return Planted(changed(capture, ranks), place, fields=("psum_num_recv_tokens_per_expert",))


def wrong_source_index(capture):
    """Let the metadata of a record name a token that does not exist."""
    token, *_, stream_row, _ = victim(capture)
    ranks = copied(capture)
    num_topk = capture.config.num_topk
    ranks[TARGET]["recv_src_metadata"][stream_row, num_topk] += 1000
    place = {"field": "recv_src_metadata", "kind": "lost_row"} | where(token)
    return Planted(changed(capture, ranks), place, place)


def recombined(capture, order=None, extra_bias=()):
    """Return combined_x of all ranks as another recipe, or more biases, would give it."""
    options = CaptureOptions(edition="nvidia-v2", zero_padding=True, dtype=capture.options.dtype)
    topk = capture.topk()
    x = capture.column("x")
    _, handles = dispatch(capture.config, topk, x, mode=DispatchMode(edition="nvidia-v2"))
    plain = reference_capture(capture.group, topk, x, options=options, with_combine=False)
    y = _moved(capture, plain)
    bias = tuple(capture.column(name) for name in ("bias_0", "bias_1")[len(extra_bias) :]) + extra_bias
    order = order or capture.options.reduction_order(capture.config)
    return [r.combined_x for r in combine(handles, y, order=order, bias=bias)]


def _moved(capture, plain):
    """Return combine_x in the row order of another capture of the same routing."""
    k, moved = capture.config.num_topk, []
    for mine, theirs in zip(capture.ranks, plain.ranks, strict=True):
        rows = np.zeros((len(theirs["recv_x"]), capture.group.hidden), dtype=BF16)
        places = {e[k]: e[:k] for e in mine["recv_src_metadata"].tolist()}
        for gid, _, *there in theirs["recv_src_metadata"].tolist():
            for a, b in zip(places[gid], there, strict=True):
                if b >= 0:
                    rows[b] = mine["combine_x"][a]
        moved.append(rows)
    return moved


def other_order(capture):
    """Combine rounded once, not once per rank."""
    return _other_sums(capture, recombined(capture, ONE_ROUNDING))


def doubled_bias(capture):
    """Combine added the first bias twice and forgot the second."""
    first = capture.column("bias_0")
    return _other_sums(capture, recombined(capture, extra_bias=(first, first)))


def _other_sums(capture, sums):
    ranks = copied(capture)
    ranks[SOURCE]["combined_x"] = sums[SOURCE]
    right = capture.ranks[SOURCE]["combined_x"]
    token, column = np.argwhere(right != sums[SOURCE])[0].tolist()
    place = {"field": "combined_x", "source_rank": SOURCE, "token": token, "column": column}
    place |= {"expected": float(right[token, column]), "actual": float(sums[SOURCE][token, column])}
    return Planted(changed(capture, ranks), place, place, fields=("combined_x",))


def nan_in_row(capture):
    """One element of a received row is NaN."""
    token, k, expert, _, row = victim(capture)
    ranks = copied(capture)
    ranks[TARGET]["recv_x"][row, 9] = np.nan
    place = {"field": "recv_x", "kind": "nonfinite", "row": row, "column": 9} | where(token, k, expert)
    return Planted(changed(capture, ranks), place, place, fields=("recv_x",))


def one_ulp(capture):
    """One element of a received row is the next value of its format."""
    token, k, expert, _, row = victim(capture)
    ranks = copied(capture)
    bits = ranks[TARGET]["recv_x"].view(f"u{ranks[TARGET]['recv_x'].dtype.itemsize}")
    bits[row, 17] ^= 1
    place = {"field": "recv_x", "row": row, "column": 17, "ulp": 1} | where(token, k, expert)
    return Planted(changed(capture, ranks), place, place, fields=("recv_x",))


def one_ulp_home(capture):
    """One element of a combined token is the next bf16."""
    ranks = copied(capture)
    ranks[SOURCE]["combined_x"].view(np.uint16)[2, 127] ^= 1
    place = {"field": "combined_x", "source_rank": SOURCE, "token": 2, "column": 127, "ulp": 1}
    return Planted(changed(capture, ranks), place, place, fields=("combined_x",))


FAULTS = [
    lost_row,
    unwritten_row,
    doubled_row,
    wrong_slot,
    wrong_row,
    swapped_tokens,
    shifted_weights,
    unset_padding,
    wrong_psum,
    wrong_source_index,
    other_order,
    doubled_bias,
    nan_in_row,
    one_ulp,
    one_ulp_home,
]
FP8_FAULTS = [*FAULTS, transposed_scales]
