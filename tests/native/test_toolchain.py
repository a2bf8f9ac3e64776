"""Toolchains: what is found, what is missing in one sentence, and the flags that reach the tools."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from native.elf import kernel_name, section_names
from native.errors import NativeEnvironmentError, NativeInputError
from native.jit import Jit
from native.settings import JitSettings, settings_from
from native.toolchain import device_toolchain, host_toolchain
from tests.native.jitkit import REAL, put, script, settings, wrapper

HOME = {"HOME": "/home/me"}


def test_no_compiler_is_one_sentence(tmp_path):
    nowhere = settings(tmp_path, tool_env=(("PATH", str(tmp_path)),))
    with pytest.raises(
        NativeEnvironmentError, match=r"^no C\+\+ compiler found \(g\+\+ or clang\+\+\): install"
    ):
        host_toolchain(nowhere)
    with pytest.raises(NativeEnvironmentError, match=r"^no C\+\+ compiler found \(/none/cc\): "):
        host_toolchain(settings(tmp_path, cxx="/none/cc"))


def test_a_missing_linker_is_one_sentence(tmp_path):
    wrapper(tmp_path / "bin" / "g++")
    with pytest.raises(NativeEnvironmentError, match=r"does not tell its version: .*cannot find .?ld"):
        host_toolchain(settings(tmp_path, tool_env=(("PATH", f"{tmp_path}/bin"),)))


def test_gcc_is_taken_before_clang(tmp_path):
    wrapper(tmp_path / "bin" / "clang++")
    (tmp_path / "bin" / "ld").symlink_to(shutil.which("ld", path=os.defpath))
    path = (("PATH", f"{tmp_path}/bin"),)
    assert host_toolchain(settings(tmp_path, tool_env=path)).compiler == f"{tmp_path}/bin/clang++"
    wrapper(tmp_path / "bin" / "g++")
    assert host_toolchain(settings(tmp_path, tool_env=path)).compiler == f"{tmp_path}/bin/g++"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo licence expired; exit 1", "licence expired"),
        ("exit 0", "it prints nothing"),
    ],
)
def test_a_compiler_that_does_not_run_is_one_sentence(tmp_path, body, reason):
    with pytest.raises(NativeEnvironmentError, match=rf"does not tell its version: {reason}$"):
        host_toolchain(settings(tmp_path, cxx=str(script(tmp_path / "cc", body))))


def test_flags_that_the_compiler_refuses_are_named(tmp_path):
    """They are the user's mistake; a compiler that does not run without them either is not."""
    flags = ("-Wfoo", "-fnot")
    with pytest.raises(
        NativeInputError,
        match=r"^EPSIM_JIT_CXXFLAGS is '-Wfoo -fnot': \S+ does not run with these flags: .*foo",
    ):
        host_toolchain(settings(tmp_path, cxx_flags=flags))
    broken = script(tmp_path / "cc", "echo licence expired; exit 1")
    with pytest.raises(NativeEnvironmentError, match=r"does not tell its version: licence expired$"):
        host_toolchain(settings(tmp_path, cxx=str(broken), cxx_flags=flags))


def test_a_compiler_that_is_no_program_is_one_sentence(tmp_path):
    broken = tmp_path / "cc"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    with pytest.raises(NativeEnvironmentError, match=r"cannot be started: Exec format error$"):
        host_toolchain(settings(tmp_path, cxx=str(broken)))


def test_the_identity_holds_compiler_target_and_linker(tmp_path):
    identity = host_toolchain(settings(tmp_path)).identity
    assert "Target: " in identity
    assert " version " in identity
    assert subprocess.check_output(["ld", "--version"], text=True).splitlines()[0] in identity


def test_a_new_linker_alone_changes_the_identity(tmp_path):
    newer = f'case "$*" in *-Wl,--version*) echo "GNU ld 99.0"; exit 0;; esac; exec {REAL} "$@"'
    old = host_toolchain(settings(tmp_path)).identity
    assert host_toolchain(settings(tmp_path, cxx=str(script(tmp_path / "cc", newer)))).identity != old


def test_tools_see_nothing_else_of_the_environment(tmp_path, monkeypatch):
    """A compiler would read headers from CPATH, and no key would tell."""
    monkeypatch.setenv("CPATH", str(tmp_path))
    cxx = wrapper(tmp_path / "cc", f"env > {tmp_path}/env")
    chosen = settings(tmp_path, cxx=str(cxx))
    Jit(chosen, host_toolchain(chosen), put(tmp_path, {})).kernel("int x;", tag="k")
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD"}


def toolkit(root: Path) -> JitSettings:
    """Write a toolkit whose bisheng and ld.lld record their words and use the host compiler."""
    record = f'case "$1" in --version) echo $0 1.0; exit 0;; esac\necho "$*" >> {root}/log\n'
    last = "for word; do last=$word; done\n"
    script(root / "bin/bisheng", record + last + f'exec {REAL} -I. -c -x c++ kernel.asc -o "$last"')
    script(root / "bin/ld.lld", record + last + f'exec {REAL} -shared kernel.rel.o -o "$last"')
    (root / "riscv-linux/asc/include/adv_api").mkdir(parents=True)
    return JitSettings(cache_dirs=(root / "cache-root",), toolkit_dirs=(root / "none", root))


def kernels(*names: str) -> str:
    """Return a source with the section that bisheng writes for each kernel."""
    return "\n".join(
        f'__attribute__((section(".ascend.meta.{name}"), used)) int meta_{idx} = 1;'
        for idx, name in enumerate(names)
    )


def test_the_device_gets_the_flags_of_deepjit(tmp_path):
    chosen = toolkit(tmp_path)
    made = Jit(chosen, device_toolchain(chosen), put(tmp_path, {})).kernel(
        kernels("dispatch"), tag="dispatch"
    )
    assert made.name == "kernel.o"
    assert kernel_name(made.read_bytes()) == "dispatch"
    compiled, linked = (tmp_path / "log").read_text().splitlines()
    assert compiled.startswith(
        "-O2 --npu-arch=dav-3510 --cce-aicore-only -mllvm -enable-hiipu-vf-loop-unroll "
        "-mllvm -cce-aicore-dcpreload-args=false -I. "
        f"-I{tmp_path}/riscv-linux/asc/include/adv_api kernel.asc -o "
    )
    assert linked.startswith("-m aicorelinux -Ttext 0 --no-mmap-output-file /")


def test_where_the_toolkit_lies_is_not_in_the_key_but_its_version_is(tmp_path):
    chosen = toolkit(tmp_path)
    tools = device_toolchain(chosen)
    assert str(tmp_path) not in " ".join((*tools.compile_flags, *tools.link_flags))
    script(tmp_path / "bin/ld.lld", "echo 2.0")
    assert device_toolchain(chosen).identity != tools.identity


@pytest.mark.parametrize("names", [(), ("dispatch", "combine")])
def test_a_binary_without_exactly_one_kernel_is_not_cached(tmp_path, names):
    chosen = toolkit(tmp_path)
    with pytest.raises(NativeInputError, match=r"^device binary is \[.*\]: must hold exactly one kernel$"):
        Jit(chosen, device_toolchain(chosen), put(tmp_path, {})).kernel(kernels(*names), tag="k")
    assert list((chosen.cache_dirs[0] / "cache").iterdir()) == []


def test_a_mixed_kernel_counts_once(tmp_path):
    chosen = toolkit(tmp_path)
    source = kernels("fused_mix_aic", "fused_mix_aiv")
    made = Jit(chosen, device_toolchain(chosen), put(tmp_path, {})).kernel(source, tag="k")
    assert kernel_name(made.read_bytes()) == "fused"


@pytest.mark.parametrize("part", ["bin/bisheng", "bin/ld.lld", "riscv-linux/asc/include/adv_api"])
def test_an_incomplete_toolkit_names_what_is_missing(tmp_path, part):
    chosen = toolkit(tmp_path)
    os.rename(tmp_path / part, tmp_path / "away")
    missing = part.replace("riscv", "<machine>")
    with pytest.raises(
        NativeEnvironmentError, match=rf"none has no bin/bisheng; {tmp_path} has no {missing}\): set"
    ):
        device_toolchain(chosen)


@pytest.mark.parametrize("binary", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(10), b"MZ" + bytes(100)])
def test_what_is_no_elf_file_is_refused(binary):
    with pytest.raises(NativeInputError, match=r"must be a whole 64-bit ELF file"):
        section_names(binary)


def test_sections_are_those_that_binutils_sees(tmp_path):
    listed = subprocess.run(["readelf", "-SW", REAL], capture_output=True, text=True, check=True).stdout
    names = [name for name in section_names(Path(REAL).read_bytes()) if name]
    assert names
    assert all(f" {name} " in listed for name in names)


def test_settings_come_from_the_given_environment_alone(monkeypatch):
    monkeypatch.setenv("EPSIM_JIT_CXX", "unseen")
    found = settings_from(
        {
            "EPSIM_JIT_CACHE_DIR": "/a:/b",
            "EPSIM_JIT_CXX": "clang++",
            "EPSIM_JIT_CXXFLAGS": "-O1 '-DNAME=a b'",
            "EPSIM_JIT_DEBUG": "1",
            "EPSIM_JIT_JOBS": "3",
            "ASCEND_TOOLKIT_HOME": "/kit",
            "PATH": "/bin",
            "CPATH": "/headers",
        }
    )
    assert found == JitSettings(
        cache_dirs=(Path("/a"), Path("/b")),
        cxx="clang++",
        cxx_flags=("-O1", "-DNAME=a b"),
        is_debug=True,
        num_jobs=3,
        toolkit_dirs=(Path("/kit"), *JitSettings(cache_dirs=(Path("/a"),)).toolkit_dirs),
        tool_env=(("PATH", "/bin"),),
    )
    assert settings_from(HOME) == JitSettings(cache_dirs=(Path("/home/me/.cache/epsim"),))
    assert settings_from(HOME | {"XDG_CACHE_HOME": "/x"}).cache_dirs == (Path("/x/epsim"),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EPSIM_JIT_JOBS", "0"),
        ("EPSIM_JIT_JOBS", "two"),
        ("EPSIM_JIT_DEBUG", "yes"),
        ("EPSIM_JIT_CXXFLAGS", "'open"),
        ("EPSIM_JIT_CXXFLAGS", "-I/headers"),
        ("EPSIM_JIT_CXXFLAGS", "-include x.h"),
        ("EPSIM_JIT_CXXFLAGS", "@file"),
        ("EPSIM_JIT_CACHEDIR", "/typo"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(NativeInputError, match=r"^(EPSIM_JIT_\w+|cxx_flags) is "):
        settings_from(HOME | {name: value})


def test_without_any_folder_for_the_cache_the_setting_is_named():
    with pytest.raises(NativeInputError, match=r"^EPSIM_JIT_CACHE_DIR is '': must be set"):
        settings_from({})
