"""Arguments, sizes and generated sources of device kernels against the C++ headers; what an NPU run needs."""

import subprocess
import sys
import types

import pytest
import runtimekit as kit

from native.arguments import KERNELS, RuntimeConfig
from native.backends import torch_npu
from native.backends.npu import npu_backend
from native.backends.npu_kernels import device_source
from native.backends.protocol import BufferSpec
from native.buffers import HOST_COUNTS, combine_record_bytes, image_bytes, window_bytes
from native.errors import NativeEnvironmentError

NATIVE = kit.ROOT / "native"


def checked(text: str, *flags: str) -> subprocess.CompletedProcess:
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *flags]
    folders = ["-I", str(NATIVE), "-I", str(NATIVE / "include")]
    return subprocess.run(
        [*command, *folders, "-x", "c++", "-"], input=text, text=True, capture_output=True, check=False
    )


def layout_of(kind, cpp: str) -> str:
    lines = [f"static_assert(sizeof({cpp}) == {kind_size(kind)});"]
    for name, *_ in kind._fields_:
        member = name if name in ("cfg",) or "cfg" not in dict(kind._fields_) else f"tensors.{name}"
        lines.append(f"static_assert(offsetof({cpp}, {member}) == {getattr(kind, name).offset});")
    return "\n".join(lines)


def kind_size(kind) -> int:
    return kit.ctypes.sizeof(kind)


def test_arguments_have_the_layout_of_the_header():
    head = "#include <epsim_native/args.hpp>\n#include <epsim_native/layout.hpp>\n"
    parts = [layout_of(RuntimeConfig, "epsim::RuntimeConfig")]
    parts += [layout_of(kind, f"epsim::{kind.__name__}") for kind in KERNELS.values()]
    for packs, topk, cached in ((0, 1, False), (2, 8, False), (112, 6, False), (3, 5, True)):
        record = f"epsim::layout::dispatch_record(64, {packs}, {topk}, {'false' if cached else 'true'})"
        size = image_bytes(topk, packs, cached=cached)
        parts.append(f"static_assert({record}.image_bytes() == {size});")
    parts.append(
        f"static_assert(epsim::layout::combine_record_bytes(96, 5) == {combine_record_bytes(96, 5)});"
    )
    parts.append(f"static_assert(epsim::layout::kHostRankExpertCount == {HOST_COUNTS});")
    good = head + "\n".join(parts)
    assert checked(good).stderr == ""
    assert "static assertion failed" in checked(good.replace(" == 88)", " == 84)", 1)).stderr


def test_window_holds_the_larger_region_in_steps_of_two_mib():
    spec = BufferSpec(num_ranks=8, num_max_tokens_per_rank=1024, hidden=7168, num_topk=8)
    dispatch, combine = 8 * 1024 * (2 * 7168 + 128), 8 * 1024 * (2 * 7168 + 32)
    assert max(dispatch, combine) == dispatch
    assert window_bytes(spec) == (2 << 20) + -(-dispatch // (2 << 20)) * (2 << 20)


@pytest.mark.parametrize("name", KERNELS)
def test_generated_source_compiles_with_a_static_configuration(name):
    config = RuntimeConfig(num_ranks=8, num_experts=256, num_topk=6, num_aivs=64, timeout_cycles=10**11)
    text = device_source(name, config)
    assert f"epsim_{name}(" in text
    assert "/* num_experts */ 256, " in text
    assert checked(text, "-DEPSIM_TWIN").stderr == ""


def test_first_missing_thing_is_named(monkeypatch):
    monkeypatch.setattr(torch_npu, "find_spec", lambda name: None)
    assert torch_npu.what_is_missing(kit.settings()).startswith("torch is not installed: ")
    with pytest.raises(NativeEnvironmentError, match="kernels on an NPU cannot run here: torch is not inst"):
        npu_backend(kit.settings())


@pytest.mark.parametrize("error", [RuntimeError, ImportError])
def test_torch_npu_without_cann_is_told(monkeypatch, error):
    def load(name):
        raise error("Failed to load the backend extension:\nlibhccl.so")

    monkeypatch.setattr(torch_npu, "find_spec", lambda name: True)
    monkeypatch.setattr(torch_npu, "import_module", load)
    said = torch_npu.what_is_missing(kit.settings())
    assert said.endswith("cannot be loaded: Failed to load the backend extension: libhccl.so")


@pytest.mark.parametrize(
    ("devices", "toolkit_dirs", "sentence"),
    [(0, (), "torch_npu finds no NPU"), (8, (), "no CANN toolkit found"), (8, None, "has no bin/bisheng")],
)
def test_devices_then_compilers(monkeypatch, devices, toolkit_dirs, sentence):
    torch = types.SimpleNamespace(npu=types.SimpleNamespace(device_count=lambda: devices))
    monkeypatch.setattr(torch_npu, "find_spec", lambda name: True)
    monkeypatch.setattr(torch_npu, "import_module", lambda name: torch)
    changes = {} if toolkit_dirs is None else {"toolkit_dirs": toolkit_dirs}
    assert sentence in torch_npu.what_is_missing(kit.settings(**changes))


def test_importing_the_backend_needs_no_torch():
    code = "import native.backends.npu, sys; assert not {'torch', 'torch_npu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=kit.ROOT)
