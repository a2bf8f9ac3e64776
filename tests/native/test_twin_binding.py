"""The ctypes binding: every argument arrives, every refusal is a sentence, no machine outlives its owner.

A fake library (fake/fake_twin.cpp) stands for the twin, whose C header it includes.
"""

import gc
import json
from pathlib import Path

import numpy as np
import pytest

from native.errors import NativeEnvironmentError, NativeInputError, TwinViolation
from native.settings import JitSettings
from native.sources import FOLDERS
from native.twin import Twin, TwinMachine, build_twin
from tests.native.jitkit import STRICT, answer, jit

FAKE = {**FOLDERS, "kernels": Path(__file__).parent / "fake"}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """Load the fake; afterwards no machine may be left."""
    build = jit(tmp_path_factory.mktemp("fake"), FAKE, cxx_flags=STRICT)
    loaded = Twin(build.library(["kernels/fake_twin.cpp"], tag="fake"))
    yield loaded
    gc.collect()
    assert num_live(loaded) == 0


def num_live(twin: Twin) -> int:
    """Count the machines that were not destroyed."""
    return twin._library.fake_num_live()


def test_arguments_arrive_in_their_places(twin):
    with TwinMachine(twin, {"ranks": 3, "strategy": "pct"}) as machine:
        first = machine.alloc(2, 100, "window", is_zeroed=True)
        machine.alloc(0, 7, "args")
        machine.enqueue(1, "dispatch", 2**64 - 1, 8)
        machine.enqueue_wait_words(2, first, 3, 2**32 - 1, 2**31)
        assert machine.stats()["calls"] == [
            "window 2 100 1",
            "args 0 7 0",
            f"dispatch 1 {2**64 - 1} 8",
            f"wait 2 512 3 {2**32 - 1} {2**31}",
        ]
        machine.init_jetties()
        machine.run()
        assert machine.report() is None
        assert machine.find(1, "window") == 2 << 40 | 512
    assert twin.kernels() == ["combine", "dispatch"]


def test_arrays_go_and_come_back(twin):
    values = np.arange(24, dtype=np.int16).reshape(4, 6)[:, ::2]  # not contiguous
    with TwinMachine(twin, {}) as machine:
        address = machine.alloc(0, 64, "x", is_zeroed=True)
        assert not machine.read(address, 64, np.uint8).any()
        machine.write(address, values)
        np.testing.assert_array_equal(machine.read(address, (4, 3), np.int16), values)
        machine.write(address, np.empty(0))
        machine.forget(address, 2)
        assert machine.read(address, (), np.int16) == -1


def test_a_violation_is_raised_with_its_fields(twin):
    with TwinMachine(twin, {"violate": 1}) as machine, pytest.raises(TwinViolation) as caught:
        machine.run()
    found = caught.value
    assert (found.rule, found.file, found.line, found.rank, found.aiv) == (
        "data_race",
        "kernels/a.hpp",
        7,
        1,
        0,
    )
    assert (found.pipe, found.lane, found.others[0]["lane"]) == ("MTE2", -1, 31)
    assert str(found).splitlines() == [
        "data_race: two accesses (kernels/a.hpp:7, rank 1, aiv 0, pipe MTE2)",
        "  written here (kernels/b.hpp:9, rank 1, aiv 0, lane 31, pipe V)",
        "  Order both.",
    ]


REFUSED = {
    "alloc": (lambda m: m.alloc(0, 2000, "x"), "argument of alloc is 'x': too much"),
    "write": (lambda m: m.write(0, np.zeros(1)), "argument of write is '0x0': outside"),
    "read": (lambda m: m.read(4090, 7, np.uint8), "argument of read is '0xffa': outside"),
    "forget": (lambda m: m.forget(512, 4000), "argument of forget is '0x200': outside"),
    "find": (lambda m: m.find(0, "y"), "argument of find is 'y': rank 0 has no allocation of that name"),
    "kernel": (lambda m: m.enqueue(0, "none", 512, 1), "argument of enqueue is 'none': no kernel \"none\""),
    "jetties": (lambda m: m.init_jetties(), "argument of init_jetties is None: no window"),
    "trace": (lambda m: m.trace(Path("/none/t")), "argument of trace is '/none/t': cannot be written"),
    "rank": (lambda m: m.find(2**32 + 1, "window"), "argument of find is 4294967297: must fit c_int"),
    "address": (lambda m: m.forget(-1, 1), "argument of forget is -1: must fit c_ulong"),
    "mask": (
        lambda m: m.enqueue_wait_words(0, 0, 1, -1, 0),
        "argument of enqueue_wait_words is -1: must fit c_uint",
    ),
    "name": (lambda m: m.find(1, "w\0x"), r"argument of find is b'w\x00x': must not hold a zero byte"),
}  # fmt: skip


@pytest.mark.parametrize(("act", "sentence"), REFUSED.values(), ids=REFUSED)
def test_misuse_is_one_sentence(twin, act, sentence):
    with TwinMachine(twin, {}) as machine, pytest.raises(NativeInputError) as caught:
        act(machine)
    assert str(caught.value) == sentence


def test_misuse_found_by_a_run_is_one_sentence(twin):
    with (
        TwinMachine(twin, {"misuse": 1}) as machine,
        pytest.raises(NativeInputError, match=r"None: misused$"),
    ):
        machine.run()


def test_an_unknown_parameter_makes_no_machine(twin):
    with pytest.raises(NativeInputError, match=r"^twin parameters is .*: no parameter \"unknown\"$"):
        TwinMachine(twin, {"unknown": 1})


def test_every_machine_is_freed_once(twin):
    gc.collect()
    before = num_live(twin)
    dropped, closed = TwinMachine(twin, {}), TwinMachine(twin, {})
    with pytest.raises(KeyboardInterrupt), TwinMachine(twin, {}):
        raise KeyboardInterrupt
    assert num_live(twin) == before + 2
    closed.close()
    closed.close()
    del dropped
    gc.collect()
    assert num_live(twin) == before


def test_a_closed_machine_refuses(twin):
    machine = TwinMachine(twin, {})
    machine.close()
    with pytest.raises(NativeInputError, match=r"^twin machine is 'closed': must be open for run$"):
        machine.run()


def test_a_trace_is_written(twin, tmp_path):
    with TwinMachine(twin, {"trace": 1}) as machine:
        machine.enqueue(0, "dispatch", 512, 2)
        machine.trace(tmp_path / "trace")
    assert json.loads((tmp_path / "trace").read_text()) == ["dispatch 0 512 2"]


def test_the_real_twin_speaks_the_same_language(jit_cache):
    real = Twin(build_twin(JitSettings(cache_dirs=(jit_cache,)), flags=STRICT))
    assert {"barrier", "dispatch", "dispatch_epilogue", "combine", "combine_epilogue"} <= set(real.kernels())
    with TwinMachine(real, {"ranks": 2, "aivs": 2, "seed": 7}) as machine:
        windows = [machine.alloc(rank, 4096, "window", is_zeroed=True) for rank in range(2)]
        assert [machine.find(rank, "window") for rank in range(2)] == windows
        machine.write(windows[1], np.arange(8))
        np.testing.assert_array_equal(machine.read(windows[1], 8, np.int64), np.arange(8))
        machine.init_jetties()
        machine.run()
        assert machine.report() is None
        with pytest.raises(NativeInputError, match="argument of read is"):
            machine.read(windows[1] + 4096, 1, np.uint8)
        with pytest.raises(NativeInputError, match="argument of enqueue is 'none'"):
            machine.enqueue(0, "none", windows[0], 2)
    with pytest.raises(NativeInputError, match="twin parameters"):
        TwinMachine(real, {"no such parameter": 1})


def test_what_is_no_twin_is_not_loaded(tmp_path):
    other = jit(tmp_path).kernel('extern "C" int answer() { return 42; }', tag="answer")
    assert answer(other) == 42
    with pytest.raises(NativeEnvironmentError, match=r"^the twin cannot be loaded: .*epsim_machine_create"):
        Twin(other)
    with pytest.raises(
        NativeEnvironmentError, match=r"^the twin cannot be loaded: .*cannot open shared object"
    ):
        Twin(tmp_path / "none.so")
