"""Failures in the middle, time limits, and the order of teardown; then faults planted in the sources."""

import shutil
import threading
import time

import pytest
import runtimekit as kit

from native.runtime import DeviceFailure, Kernel

TEARDOWN = [
    "aclrtSynchronizeDevice",
    *["aclrtFree"] * 4,
    *["HcommChannelDestroy"] * 2,
    *["HcommMemUnreg", "HcommEndpointDestroy"] * 2,
    "aclrtHostUnregister",
    "aclrtFreeHost",
]


@pytest.fixture
def bench(tmp_path):
    return kit.Bench(tmp_path)


def test_every_call_may_fail_and_is_named_and_nothing_stays(tmp_path):
    good = kit.Bench(tmp_path)
    good.open()
    calls = good.calls()
    for at, call in enumerate(calls):
        if call == "HcommChannelConfigDestroy":
            continue  # a release: its failure changes nothing
        bench = kit.Bench(tmp_path)
        bench.fail(call, nth=calls[: at + 1].count(call), status=100 + at)
        with pytest.raises(DeviceFailure, match=f"^{call} returned {100 + at}$") as caught:
            bench.open()
        assert (caught.value.call, caught.value.status) == (call, 100 + at)
        assert (bench.num_held(), bench.broken_rules()) == (0, [])


def test_teardown_order(bench):
    domain = bench.open()
    before = len(bench.log())
    domain.close()
    domain.close()
    assert bench.calls()[before:] == TEARDOWN
    assert (bench.num_held(), bench.broken_rules()) == (0, [])


@pytest.mark.parametrize("at", range(len(TEARDOWN)))
def test_a_release_that_fails_is_named_and_the_rest_is_done(bench, at):
    domain = bench.open()
    before = len(bench.log())
    bench.fail(TEARDOWN[at], TEARDOWN[: at + 1].count(TEARDOWN[at]), 9)
    with pytest.raises(DeviceFailure, match=f"^{TEARDOWN[at]} returned 9$"):
        domain.close()
    assert bench.calls()[before:] == TEARDOWN
    domain.close()


def test_window_stays_registered_and_serves_again_zeroed(bench):
    first = bench.open()
    window = first.addresses.window
    other = bench.open()
    assert other.addresses.window != window
    first.close()
    (kit.ctypes.c_uint8 * 64).from_address(window + kit.WINDOW_BYTES - 64)[:] = [7] * 64
    again = bench.open()
    assert again.addresses.window == window
    assert kit.words_at(window + kit.WINDOW_BYTES - 64, 8) == [0] * 8
    assert kit.words_at(window, 2) == [window, (0x70 << 40) + (1 << 32)]
    tags = [line for line in bench.log() if line.startswith("HcclCommMemReg")]
    assert tags == ["HcclCommMemReg epsim/group/0", "HcclCommMemReg epsim/group/1"]
    assert bench.broken_rules() == []


def test_a_communicator_made_again_gets_a_window_of_its_own(bench):
    bench.open().close()
    bench.option("comm", 1)
    bench.open()
    assert bench.calls().count("HcclCommMemReg") == 2


def test_channels_that_never_become_ready_end_at_the_cpu_time_limit(bench):
    bench.option("ready_after", 10**9)
    start = time.monotonic()
    with pytest.raises(DeviceFailure, match="not ready within the CPU time limit: 1 of 2 wait"):
        bench.open(cpu_timeout_ms=30)
    assert time.monotonic() - start >= 0.03
    assert (bench.num_held(), bench.broken_rules()) == (0, [])


def test_an_exchange_that_fails_keeps_its_cause(bench):
    def gather(own):
        raise ConnectionError("peer 1 is gone")

    with pytest.raises(DeviceFailure, match=r"^all_gather returned 1$") as caught:
        bench.open(gather=gather)
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(DeviceFailure, match="all_gather") as caught:
        bench.open(gather=lambda own: [own])
    assert "2 bytes of 2 ranks" in str(caught.value.__cause__)
    assert bench.num_held() == 0


def test_counts_are_waited_for_until_the_last_is_there(bench):
    domain = bench.open()
    words = domain.host_words(4096, 3)
    words[:2] = 2 << 24 | 5

    def arrive():
        words[2] = 2 << 24 | 9

    timer = threading.Timer(0.05, arrive)
    timer.start()
    domain.wait_words(4096, 3, mask=0xFF << 24, value=2 << 24, timeout_ms=20_000)
    timer.join()
    words[1] = 1 << 24 | 5
    with pytest.raises(DeviceFailure, match=rf"word 1 of 3 counts .* reads {1 << 24 | 5}"):
        domain.wait_words(4096, 3, mask=0xFF << 24, value=2 << 24, timeout_ms=20)


FAULTS = {
    "first memory, whatever its tag": ("window.cpp", [("window.tag != tags[i]", "false")]),
    "layer read after another query": (
        "links.cpp",
        [
            ("uint32_t find_layer(", "const uint32_t& find_layer("),
            ("const uint32_t layer = find_layer", "const uint32_t& layer = find_layer"),
        ],
    ),
    "first link to each peer": ("links.cpp", [("local ? &*local : nullptr", "nullptr")]),
    "released in the order of acquisition": (
        "releases.hpp",
        [
            ("entries_.back()", "entries_.front()"),
            ("entries_.pop_back()", "entries_.erase(entries_.begin())"),
        ],
    ),
    "registered window is freed": (
        "window.cpp",
        [("window.is_leased = false;", "aclrtFree(window.memory);")],
    ),
    "no wait for the device": ("domain.cpp", [("return aclrtSynchronizeDevice();", "return 0;")]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(tmp_path, fault):
    name, changes = FAULTS[fault]
    sources = tmp_path / "runtime"
    shutil.copytree(kit.ROOT / "native" / "runtime", sources)
    text = (sources / name).read_text()
    for right, wrong in changes:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    (sources / name).write_text(text)
    bench = kit.Bench(tmp_path, sources)
    domain = bench.open(num_ranks=4)
    seen = kit.words_at(domain.addresses.window, 4)[1:]
    kernel = Kernel(bench.runtime, tmp_path / "kernel.o", "epsim_kernel")
    kernel.launch(num_blocks=1, stream=0, ub_bytes=0, timeout_secs=0, arguments=[])
    domain.close()
    assert bench.broken_rules() or seen != [(0x70 << 40) + (peer << 32) for peer in (1, 2, 3)]
