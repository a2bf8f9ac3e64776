"""Our kernels for the device: generated sources, compiled on first use and loaded once per process."""

from dataclasses import replace
from pathlib import Path

from native.arguments import KERNELS, RuntimeConfig
from native.elf import kernel_name
from native.jit import Jit
from native.runtime import Kernel, Runtime
from native.settings import JitSettings
from native.toolchain import device_toolchain


class KernelCache:
    """Kernels by name and configuration, compiled on first use and loaded once per process."""

    def __init__(self, settings: JitSettings, runtime: Runtime) -> None:
        """Compile nothing yet."""
        self._settings, self._runtime = settings, runtime
        self._loaded: dict[tuple[str, bytes], Kernel] = {}

    def find(self, name: str, config: RuntimeConfig) -> Kernel:
        """Return a kernel that is ready to launch.

        Raises:
          NativeEnvironmentError, CompileError, DeviceFailure: it cannot be compiled or loaded.
        """
        key = (name, bytes(config))
        if key not in self._loaded:
            path = self.compile(name, config)
            self._loaded[key] = Kernel(self._runtime, path, kernel_name(path.read_bytes()))
        return self._loaded[key]

    def compile(self, name: str, config: RuntimeConfig) -> Path:
        """Return the path of a device binary."""
        tools = device_toolchain(self._settings)
        # What the kernels are written in and tested with; bisheng's default is C++17.
        tools = replace(tools, compile_flags=(*tools.compile_flags, "-std=c++20"))
        return Jit(self._settings, tools).kernel(device_source(name, config), tag=name)


def device_source(name: str, config: RuntimeConfig) -> str:
    """Return the source of one device kernel, `epsim_<name>`, with its configuration compiled in."""
    values = ", ".join(f"/* {entry[0]} */ {getattr(config, entry[0])}" for entry in config._fields_)
    return (
        f"#include <kernels/ep/{name}.hpp>\n\n"
        f'extern "C" __global__ __vector__ void epsim_{name}'
        f"(gm<const epsim::{KERNELS[name].__name__}> args) {{\n"
        f"  epsim::ep::{name}_impl(args, epsim::StaticConfig<{values}>{{}});\n"
        "}\n"
    )
