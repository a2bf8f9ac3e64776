"""A handle on several ranks: what belongs together works, on any buffer; what does not is named."""

import copy
import re

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import PeerRefusedError, RankMismatchError, UndefinedError
from epsim.deep_ep.exchange import header_bytes, shown
from epsim.deep_ep.handle import MADE_BY_HAND
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20


def arguments():
    """Return a good dispatch of 4 tokens; each rank may change its own."""
    idx = torch.stack([(torch.arange(2) + t) % 8 for t in range(4)])
    return {"x": torch.ones(4, 256).bfloat16(), "topk_idx": idx, "num_experts": 8, "do_expand": True}


def message(kind, call, *args, **kwargs):
    """Return the text of the error that a call must raise."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def pickled(handle, num_ranks):
    """Return the handles of all ranks as they travel."""
    gathered = [None] * num_ranks
    dist.all_gather_object(gathered, handle)
    return gathered


def handles_of_two(rank, num_ranks, is_rebuilt):
    """Mix handles of two buffers with the same call number and the same numbers of rows everywhere."""
    first, second = (deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8) for _ in range(2))
    given, told = arguments(), []
    one = first.dispatch(**given)
    if is_rebuilt:
        first.destroy()
        first = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    # Each expert gets as many tokens as before, but others.
    two = second.dispatch(**(given | {"topk_idx": given["topk_idx"].flip(0)}))
    x, mine = (one[0], one[3]) if rank == 0 else (two[0], two[3])
    for again in (mine, copy.deepcopy(mine), pickled(mine, num_ranks)[rank]):
        told.append(message(RankMismatchError, first.combine, x, again))
        cached = {"handle": again, "do_expand": True}
        told.append(message(RankMismatchError, first.dispatch, given["x"], **cached))
    # What all ranks give alike is legal, whichever buffer made it.
    for y, handle in ((one[0], one[3]), (two[0], pickled(two[3], num_ranks)[rank])):
        combined = [buffer.combine(y, handle)[0] for buffer in (first, second)]
        assert torch.equal(*combined)
    return told


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_handles_of_two_buffers_are_not_mixed(is_rebuilt):
    """Nor those of a buffer and of the one that took its place."""
    told = run_ranks(handles_of_two, 2, is_rebuilt)
    assert told[0] == told[1]
    for text in told[0]:
        pattern = "'of call 2 of buffer (.*)' on rank 0 and 'of call 2 of buffer (.*)' on rank 1"
        first, second = re.search(pattern, text).groups()
        assert first != second


def handle_from_a_peer(rank, num_ranks):
    """Use the handle that rank 1 made, everywhere."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    recv_x, _, _, handle, _ = buffer.dispatch(**arguments())
    kind = UndefinedError if rank == 0 else PeerRefusedError
    return message(kind, buffer.combine, recv_x, pickled(handle, num_ranks)[1])


def test_the_handle_of_another_rank_is_refused():
    """It is of the same call, but places other rows."""
    told = run_ranks(handle_from_a_peer, 2)
    rule = "this is rank 0; every rank gives the handle that its own dispatch returned"
    assert told[0] == f"handle is 'of rank 1': {rule}"
    assert told[1].endswith(told[0])


def handles_by_hand(rank, num_ranks):
    """Mix handles without an origin: the rows that they bring still tell them apart."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    given = arguments()
    if rank == 0:
        given["topk_idx"][0] = torch.tensor([6, 7])
    first, second = buffer.dispatch(**arguments()), buffer.dispatch(**given)
    mine = first if rank == 0 else second
    mine[3].origin = MADE_BY_HAND
    cached = {"handle": mine[3], "do_expand": True}
    told = message(UndefinedError, buffer.dispatch, arguments()["x"], **cached)
    return told, message(UndefinedError, buffer.combine, mine[0], mine[3])


def test_handles_of_different_dispatches_are_noticed_by_their_rows():
    """Every rank names the same pair."""
    told = run_ranks(handles_by_hand, 2)
    assert told[0] == told[1]
    assert all("the handles come from different dispatches" in text for text in told[0])


@given(st.sampled_from([1, 2, 128, 254, 1024]), st.integers(0, 2**31 - 1))
def test_what_a_combine_shows_fits_any_group(num_ranks, num_rows):
    """Up to the largest group of any edition, with the most rows that their int32 counts allow."""
    handle = "of call 2147483647 of buffer 01234567"
    names = "num_max_tokens_per_rank num_experts expert_alignment num_topk do_expand hidden topk_weights"
    same = {"handle": handle} | dict.fromkeys(names.split(), num_rows)
    counts = [num_rows] * num_ranks
    own = {"sent": counts, "due": counts, "num_tokens": num_rows}
    assert len(shown("dispatch", same, own, None)) <= header_bytes(num_ranks)


def handles_of_editions(rank, num_ranks):
    """Give every edition's handle to every edition's buffer; return who refused, before any exchange."""
    names = ("ascend", "nvidia", "nvidia-v2")
    buffers = [deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8, edition=name) for name in names]
    made = [buffer.dispatch(**arguments()) for buffer in buffers]
    told = {}
    for name, buffer in zip(names, buffers, strict=True):
        for other, (recv_x, _, _, handle, _) in zip(names, made, strict=True):
            if name == other:
                buffer.dispatch(arguments()["x"], handle=handle, do_expand=True)
                buffer.combine(recv_x, handle)
                continue
            cached = {"handle": pickled(handle, num_ranks)[rank], "do_expand": True}
            text = message(UndefinedError, buffer.dispatch, arguments()["x"], **cached)
            assert message(UndefinedError, buffer.combine, recv_x, handle) == text
            told[name, other] = text
    handle = made[0][3]
    handle.edition = None  # as if made by hand: its gather pairs still tell
    assert message(UndefinedError, buffers[1].combine, made[0][0], handle) == told["nvidia", "ascend"]
    return told


def test_the_handle_of_another_edition_is_refused_both_ways():
    """Its metadata has other columns: combine would sum other rows."""
    told = run_ranks(handles_of_editions, 2)
    assert told[0] == told[1]
    assert len(told[0]) == 6
    rule = "which lays handles out in its own way"
    text = "handle is 'of edition {}': this buffer is of edition {}, "
    assert told[0]["nvidia", "ascend"] == text.format("ascend", "nvidia-v2.5") + rule
    assert told[0]["ascend", "nvidia"] == text.format("nvidia-v2.5", "ascend") + rule


def contradictions(rank, num_ranks):
    """Write to one field of a handle so that the others do not fit it."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    recv_x, _, _, handle, _ = buffer.dispatch(**arguments())
    metadata = handle.recv_src_metadata
    cached = {"handle": handle, "do_expand": True}
    for field, wrong, text in (
        (handle.psum_num_recv_tokens_per_rank, 99, "psum_num_recv_tokens_per_rank is 'row 99': must be 0 to"),
        (metadata[:, 2], 16, "recv_src_metadata is 'source 16': must be 0 to 15"),
        (metadata[:, 0], 99, "recv_src_metadata is 'row 99': must be -1 to"),
        (metadata[:, 0], -2, "recv_src_metadata is 'row -2': must be -1 to"),
    ):
        right, field[-1] = int(field[-1]), wrong
        assert text in message(UndefinedError, buffer.dispatch, arguments()["x"], **cached)
        assert text in message(UndefinedError, buffer.combine, recv_x, handle)
        field[-1] = right
    kept, handle.num_expanded_tokens = handle.num_expanded_tokens, 1
    text = f"handle.num_expanded_tokens is 1: the blocks of its experts end at row {kept}"
    assert message(UndefinedError, buffer.dispatch, arguments()["x"], **cached) == text
    assert message(UndefinedError, buffer.combine, recv_x[:1], handle) == text
    handle.num_expanded_tokens = kept
    buffer.combine(recv_x, handle)
    return True


def test_a_handle_whose_fields_contradict_each_other_is_refused():
    """By name, before it fails as an index somewhere else."""
    assert run_ranks(contradictions, 2) == [True, True]
