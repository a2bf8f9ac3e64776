"""Opening a domain: which calls in which order, what the kernels are told, what is refused."""

import pytest
import runtimekit as kit

from native.runtime import DeviceFailure

CALLS = """
HcclCommGetHandleWithName group
aclrtMalloc 4194304
HcclCommMemReg epsim/group/0
aclrtMemset
HcclRankGraphGetLayers
HcclRankGraphGetLinks layer 41 0-1
HcclChannelAcquire engine 4 1:16-17
HcclChannelGetRemoteMems
aclrtMemcpy to device
aclrtMallocHost
aclrtHostRegister
HcommEndpointCreate 48
HcommMemReg epsim/group/0
HcommEndpointCreate 48
HcommMemReg epsim/group/0
HcommEndpointGetListenPort
HcommChannelConfigCreate
HcommChannelConfigSetInt 1
HcommChannelCreateWithConfig epsim/group/0/0-1/0 listens 40000 to 49
HcommChannelCreateWithConfig epsim/group/0/0-1/1 listens 40000 to 49
HcommChannelGetStatus 2
HcommChannelConfigDestroy
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMemcpy to host
aclrtMalloc 176
aclrtMemcpy to device
aclrtMalloc 16
aclrtMemcpy to device
aclrtMalloc 48
aclrtMemcpy to device
aclrtMalloc 8
aclrtMemcpy to device
"""


@pytest.fixture
def bench(tmp_path):
    return kit.Bench(tmp_path)


def test_calls_in_order(bench):
    domain = bench.open()
    assert bench.log() == CALLS.split("\n")[1:-1]
    domain.close()
    assert bench.broken_rules() == []


def test_windows_of_peers_are_found_by_tag_wherever_they_are_listed(bench):
    domain = bench.open(num_ranks=6, rank=2)
    bases = kit.words_at(domain.addresses.window, 256)
    remote = [(0x70 << 40) + (peer << 32) for peer in range(6)]
    assert bases[:6] == [*remote[:2], domain.addresses.window, *remote[3:]]
    assert bases[6:] == [0] * 250


def test_links_start_at_one_endpoint_on_the_second_layer(bench):
    bench.open(num_ranks=8, rank=3).close()
    asked = [line for line in bench.log() if line.startswith("HcclRankGraphGetLinks")]
    assert asked == [f"HcclRankGraphGetLinks layer 41 3-{peer}" for peer in range(8) if peer != 3]
    assert bench.broken_rules() == []


def test_lower_rank_listens_and_jetties_beyond_the_peers_pair(bench):
    bench.open(num_ranks=4, rank=2, num_jetties=5)
    made = [line.split()[1:4] for line in bench.log() if line.startswith("HcommChannelCreateW")]
    prefix = "epsim/group/0/"
    assert made == [
        [f"{prefix}0-2/0", "connects", "40000"],
        [f"{prefix}1-2/0", "connects", "40001"],
        [f"{prefix}2-3/0", "listens", "40002"],
        [f"{prefix}2-3/1", "listens", "40002"],
        [f"{prefix}2-3/2", "listens", "40002"],
    ]


def test_tables_hold_what_the_records_of_channels_say(bench):
    where = bench.open(num_ranks=4, rank=1).addresses
    jetties, peers = kit.words_at(where.jetty_table, 2), kit.words_at(where.peer_table, 3)
    for n, entry in enumerate(jetties):
        words = kit.words_at(entry, 11)
        assert words[:7] == [1000 + n, 2000 + n, 3000 + n, 4000 + n, 5000 + n, 6000 + n, 7000 + n]
        assert words[7:] == [0, 50 + n | 64 << 32, 80 + n | 64 << 32, 32768]
    for n, entry in enumerate(peers):
        window = (0x60 << 40) + n
        token_id, token = 0x900 + n, 0xA00 + n
        assert kit.words_at(entry, 6) == [
            0x700 + n | token_id << 32, n, n + 1, token, window, kit.WINDOW_BYTES,
        ]  # fmt: skip


def test_one_rank_needs_no_jetties(bench):
    domain = bench.open(num_ranks=1)
    where = domain.addresses
    assert (where.jetty_table, where.peer_table) == (0, 0)
    assert kit.words_at(where.window, 1) == [where.window]
    domain.close()
    assert not [call for call in bench.calls() if call.startswith(("Hcomm", "HcclRank", "HcclChannel"))]


def test_odd_group_is_fine_while_every_jetty_has_a_peer(bench):
    bench.open(num_ranks=3, num_jetties=2).close()
    assert bench.broken_rules() == []


REFUSALS = {
    "has 1 net layers: it must have at least 2": {"num_layers": 1},
    "no link of protocol 6 to rank 2 on layer 41": {"no_ub_mem_to": 2},
    "no link of protocol 4 to rank 1 on layer 41": {"no_ub_ctp_to": 1},
    "from the local endpoint of the other peers": {"one_plane": 1},
    "of rank 3 has 2097152 bytes: it must have 4194304": {"other_size_at": 3},
    "rank 1 has no memory of tag epsim/group/0": {"no_tag_at": 1},
    "the listen port is 0": {"port": 0},
    "the listen port is 65536": {"port": 65536},
    "reads engine 2, protocol 4": {"engine": 2},
    "has 4096 blocks of 64 bytes": {"num_wqebbs": 4096},
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_cannot_be_is_refused_and_leaves_nothing(bench, sentence):
    for name, value in REFUSALS[sentence].items():
        bench.option(name, value)
    with pytest.raises(DeviceFailure, match=sentence) as caught:
        bench.open(num_ranks=4)
    assert (caught.value.call, caught.value.status) == ("", 0)
    assert (bench.num_held(), bench.broken_rules()) == (0, [])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_ranks": 3, "num_jetties": 4}, "num_ranks is 3: it must be even"),
        ({"num_ranks": 256}, "rank 0 of 256 ranks"),
        ({"rank": 2}, "rank 2 of 2 ranks"),
        ({"num_jetties": 0}, "num_jetties is 0"),
        ({"num_jetties": 65}, "num_jetties is 65"),
        ({"window_bytes": (4 << 20) + 512}, "must be a multiple of 2 MiB"),
        ({"window_bytes": 0}, "must be a multiple of 2 MiB"),
        ({"comm_name": "g" * 180}, "too long: the group's name must be shorter"),
    ],
)
def test_arguments_are_checked_before_any_work(bench, changes, sentence):
    with pytest.raises(DeviceFailure, match=sentence):
        bench.open(**changes)
    assert bench.num_held() == 0
    assert bench.calls() == [] or "comm_name" in changes
