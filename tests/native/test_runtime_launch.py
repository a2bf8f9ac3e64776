"""Launches: how arguments are packed, which attributes are set; building against a toolkit."""

import ctypes
from pathlib import Path

import pytest
import runtimekit as kit

from native.errors import CompileError, NativeEnvironmentError
from native.runtime import HEADERS, DeviceFailure, Kernel, Runtime, build_runtime, find_cann


@pytest.fixture
def bench(tmp_path):
    return kit.Bench(tmp_path)


def launched(bench, arguments, **changes):
    kernel = Kernel(bench.runtime, Path("/a/kernel.o"), "epsim_dispatch")
    options = {"num_blocks": 64, "stream": 5, "ub_bytes": 221184, "timeout_secs": 300}
    kernel.launch(**options | changes, arguments=arguments)
    return bench.log()[-1]


def test_load_and_launch(bench):
    line = launched(bench, [ctypes.c_uint64(0x1122334455667788)])
    assert bench.log()[:2] == [
        "aclrtBinaryLoadFromFile /a/kernel.o",
        "aclrtBinaryGetFunction epsim_dispatch",
    ]
    assert line == (
        "aclrtLaunchKernelWithHostArgs epsim_dispatch blocks 64 stream 5 ub 221184 timeout 300 "
        "arguments 8877665544332211"
    )


def test_arguments_are_aligned_to_four_at_least_and_padded_to_eight(bench):
    arguments = [ctypes.c_uint8(1), ctypes.c_uint16(2), ctypes.c_uint64(3), ctypes.c_uint32(4)]
    assert launched(bench, arguments).endswith(
        "arguments 01000000" + "02000000" + "0300000000000000" + "0400000000000000"
    )


def test_attributes_that_are_zero_are_not_set(bench):
    line = launched(bench, [], ub_bytes=0, timeout_secs=0)
    assert line == "aclrtLaunchKernelWithHostArgs epsim_dispatch blocks 64 stream 5 arguments "


@pytest.mark.parametrize("changes", [{"num_blocks": 0}, {"timeout_secs": 65536}])
def test_launch_refuses_what_the_device_cannot_take(bench, changes):
    with pytest.raises(DeviceFailure, match="blocks must be positive, seconds fit 16 bits"):
        launched(bench, [], **changes)
    assert not [call for call in bench.calls() if call.startswith("aclrtLaunch")]


@pytest.mark.parametrize(
    "call", ["aclrtBinaryLoadFromFile", "aclrtBinaryGetFunction", "aclrtLaunchKernelWithHostArgs"]
)
def test_failed_call_is_named(bench, call):
    bench.fail(call, 1, 507015)
    with pytest.raises(DeviceFailure, match=f"^{call} returned 507015$"):
        launched(bench, [])


def test_limits(bench):
    bench.option("vector_cores", 48)
    assert bench.runtime.limits() == (48, 253952)
    bench.fail("aclrtGetDeviceInfo", 3, 4)
    with pytest.raises(DeviceFailure, match=r"^aclrtGetDeviceInfo returned 4$"):
        bench.runtime.limits()


def test_toolkit_without_a_header_is_told_in_one_sentence(tmp_path):
    with pytest.raises(NativeEnvironmentError, match=r"has no include/acl/acl\.h"):
        find_cann(kit.settings(toolkit_dirs=(tmp_path,)))
    for name in HEADERS[:-1]:
        (tmp_path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / name).write_text("")
    with pytest.raises(NativeEnvironmentError, match=r"has no include/hcomm/hcomm_res\.h.*ASCEND_HOME_PATH"):
        find_cann(kit.settings(toolkit_dirs=(tmp_path,)))


def test_toolkit_with_other_headers_is_another_key_and_may_not_compile(tmp_path):
    for name in HEADERS:
        (tmp_path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / name).write_text("")
    with pytest.raises(CompileError, match="CommProtocol"):
        build_runtime(kit.settings(toolkit_dirs=(tmp_path,)))


def test_library_that_lacks_a_function_is_told(tmp_path):
    (tmp_path / "include").symlink_to(kit.FAKE)
    built = build_runtime(kit.settings(toolkit_dirs=(tmp_path,)))
    with pytest.raises(NativeEnvironmentError, match=r"cannot be loaded: .*undefined symbol"):
        Runtime(built)


def test_only_one_file_includes_headers_of_cann():
    folder = kit.ROOT / "native" / "runtime"
    users = {path.name for path in folder.iterdir() for name in HEADERS if f"<{name}>" in path.read_text()}
    assert users == {"cann.hpp"}
