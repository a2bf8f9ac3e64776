"""The C++ headers of layout and work requests say what reference/memory says, number by number."""

import ctypes
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.sources import FOLDERS
from reference.memory import descriptor, layout, sizes, workspace
from reference.memory.sizes import ascend_scale_packs, element_bytes
from tests.native.jitkit import jit

WORD, LONG = ctypes.c_uint32, ctypes.c_uint64


class Constant(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", LONG))


class Member(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", WORD), ("num_bytes", WORD))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = jit(tmp_path_factory.mktemp("layout"), dict(FOLDERS), cxx_flags=("-Wall", "-Wextra", "-Werror"))
    loaded = ctypes.CDLL(str(made.library(["kernels/layout_capi.cpp"], tag="layout")))
    loaded.epsim_layout_constants.restype = ctypes.POINTER(Constant)
    loaded.epsim_layout_members.restype = ctypes.POINTER(Member)
    for name in ("receive_offset", "combine_offset", "word", "flags"):
        getattr(loaded, f"epsim_layout_{name}").restype = LONG
    for name in ("combine_record_bytes", "pack_word"):
        getattr(loaded, f"epsim_layout_{name}").restype = WORD
    return loaded


def rows(pointer):
    found = {}
    for row in pointer:
        if row.name is None:
            return found
        found[row.name.decode()] = row
    return found


def constants(library):
    return {name: row.value for name, row in rows(library.epsim_layout_constants()).items()}


def test_workspace_fields_lie_where_the_reference_has_them(library):
    prefix = "workspace."
    found = {n.removeprefix(prefix): v for n, v in constants(library).items() if n.startswith(prefix)}
    assert found == {field.name: field.offset for field in workspace.EP_WORKSPACE}


def test_numbers_are_those_of_the_reference(library):
    modules: tuple[ModuleType, ...] = (workspace, descriptor, sizes)
    found = {name: value for name, value in constants(library).items() if name.isupper()}
    assert len(found) == 24
    assert found == {n: next(getattr(m, n) for m in modules if hasattr(m, n)) for n in found}
    assert constants(library)["ep_offset"] == layout.SymmetricWindow(num_bytes=0).ep_offset


@pytest.mark.parametrize(("prefix", "table"), [("flag.", "FLAG_BITS"), ("peer.", "PEER_BITS")])
def test_bit_fields_are_those_of_the_reference(library, prefix, table):
    found = {n.removeprefix(prefix): v for n, v in constants(library).items() if n.startswith(prefix)}
    bits = {name: (value & 2**32 - 1, value >> 32) for name, value in found.items()}
    assert bits == dict(getattr(descriptor, table))


def test_jetty_and_peer_structs(library):
    members = rows(library.epsim_layout_members())
    info = descriptor.JETTY_INFO
    assert info.fields is not None
    want = {f"JettyInfo.{name}": (offset, dtype.itemsize) for name, (dtype, offset) in info.fields.items()}
    want["JettyInfo."] = (0, info.itemsize)
    found = {n: (m.offset, m.num_bytes) for n, m in members.items() if n.startswith("JettyInfo.")}
    assert found == want
    peer = [m.offset for n, m in members.items() if n.startswith("PeerInfo.") and n != "PeerInfo."]
    assert peer == [0, 8, 24, 32, 40]
    assert members["PeerInfo."].num_bytes == 8 * descriptor.HEADER_WORDS


def test_members_of_arguments_do_not_overlap(library):
    members = rows(library.epsim_layout_members())
    names = ("Dispatch", "DispatchEpilogue", "Combine", "CombineEpilogue", "Barrier")
    for struct in [f"{name}Args." for name in names]:
        places = sorted(
            (m.offset, m.num_bytes) for n, m in members.items() if n.startswith(struct) and n != struct
        )
        assert places[0][0] == members["RuntimeConfig."].num_bytes
        ends = [offset + num_bytes for offset, num_bytes in places]
        assert [offset for offset, _ in places[1:]] == ends[:-1]
        assert ends[-1] == members[struct].num_bytes


@given(
    hidden=st.integers(1, 64).map(lambda n: 32 * n),
    num_topk=st.integers(1, 32),
    dtype=st.sampled_from(["fp8", "bf16"]),
    fresh=st.booleans(),
)
def test_dispatch_record(library, hidden, num_topk, dtype, fresh):
    packs = ascend_scale_packs(hidden, dtype)
    record = layout.dispatch_record(hidden, num_topk, dtype, num_scale_packs=packs, fresh=fresh)
    out = (WORD * 6)()
    library.epsim_layout_dispatch_record(hidden * element_bytes(dtype), packs, num_topk, int(fresh), out)
    offsets = {f.name: f.offset for f in record.fields}
    found = dict(zip(("scales", "topk_idx", "topk_weights", "gid"), out[1:5], strict=True))
    assert {name: found[name] for name in offsets if name != "hidden"} | {"hidden": 0} == offsets
    assert (out[0], out[5]) == (hidden * element_bytes(dtype), record.num_bytes)


@given(
    num_ranks=st.integers(1, 255), num_topk=st.integers(1, 32), tokens=st.integers(1, 2**16), data=st.data()
)
def test_regions(library, num_ranks, num_topk, tokens, data):
    token, rank = data.draw(st.integers(0, tokens - 1)), data.draw(st.integers(0, num_ranks - 1))
    master = data.draw(st.integers(0, num_topk - 1))
    record = layout.combine_record(7168, num_topk)
    assert library.epsim_layout_combine_record_bytes(7168, num_topk) == record.num_bytes
    group = layout.combine_group(
        contributor_rank=rank, master_topk=master, ep_size=num_ranks, num_topk=num_topk
    )
    by_rank = library.epsim_layout_groups_by_rank(num_ranks, num_topk, 0)
    assert group == (rank if by_rank else master)
    index = layout.combine_record_idx(group=group, home_token=token, num_max_tokens_per_rank=tokens)
    place = library.epsim_layout_combine_offset(group, token, tokens, record.num_bytes)
    assert place == index * record.num_bytes
    received = layout.dispatch_record(7168, num_topk, "bf16", num_scale_packs=0)
    assert library.epsim_layout_receive_offset(
        rank, token, tokens, received.num_bytes
    ) == layout.receive_offset(
        received, src_rank=rank, slot=token, ep_size=num_ranks, num_max_tokens_per_rank=tokens
    )


@given(
    aiv=st.integers(0, 63), expert=st.integers(0, 2047), rank=st.integers(0, 255), local=st.integers(1, 512)
)
def test_workspace_words(library, aiv, expert, rank, local):
    field, word = workspace.workspace_field, library.epsim_layout_word
    histogram = field("local_expert_histogram")
    assert word(0, expert, 0, 0) == histogram.offset + 4 * workspace.SECTOR_INTS * expert
    assert word(1, expert, 0, 0) == field("remote_expert_histogram").offset + 4 * expert
    assert word(2, aiv, rank, 0) == field("local_rank_histogram").offset + 4 * (
        workspace.MAX_RANKS * aiv + rank
    )
    assert word(3, rank, 0, 0) == field("remote_rank_histogram").offset + 4 * rank
    host = field("host_rank_expert_count").offset
    assert word(4, rank, 0, 0) == host + 4 * rank
    assert word(5, expert, 0, 0) == host + 4 * (workspace.MAX_RANKS + expert)
    counter = workspace.epilogue_counter_idx(aiv, expert % local, local)
    assert word(6, aiv, expert % local, local) == field("epilogue_expert_counter").offset + 4 * counter


@given(arrivals=st.integers(0, 255), value=st.integers(0, 2**24 - 1))
def test_reduction_words(library, arrivals, value):
    assert library.epsim_layout_pack_word(arrivals, value) == workspace.pack_word(arrivals, value)


@given(head=st.integers(0, 2**32 - 8))
def test_header_flags(library, head):
    peer = descriptor.Peer(tp_id=0, token_id=0, eid=(0, 0), token_value=0, window_base=0, window_bytes=0)
    piece = [descriptor.Sge(address=0, num_bytes=32)]
    last = {"order": 5, "fence": 1, "completion": 1}
    want = [
        descriptor.write_sqe(head, peer, 0, piece),
        descriptor.write_sqe(head, peer, 0, piece, **last),
        descriptor.nop_sqe(head),
        descriptor.nop_sqe(head, order=2, completion=1),
    ]
    found = [library.epsim_layout_flags(kind, head) for kind in range(4)]
    assert found == [int(np.ascontiguousarray(sqe.pack()).view("<u8")[0]) for sqe in want]
