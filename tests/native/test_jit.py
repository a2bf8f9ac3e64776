"""Run-time compilation: what is in the key, one build among processes, nothing half written after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from native.errors import CompileError, NativeEnvironmentError, NativeInputError
from native.jit import Jit
from tests.native.jitkit import (
    ROOT,
    answer,
    compile_elsewhere,
    jit,
    left_in,
    put,
    starts,
    with_identity,
    wrapper,
)

FIXED = 'extern "C" int answer() { return 42; }'
HEADED = '#include <kernels/a.hpp>\nextern "C" int answer() { return value; }'


def headed(tmp_path: Path, value: int) -> dict[str, Path]:
    """Folders where kernels/a.hpp leads to twin/b.hpp, which holds a value."""
    return put(
        tmp_path,
        {
            "kernels/a.hpp": "#pragma once\n#include <vector>\n#include <twin/b.hpp>\n",
            "twin/b.hpp": f"#pragma once\nconstexpr int value = {value};\n",
        },
    )


def test_a_kernel_compiles_once(tmp_path):
    cxx = wrapper(tmp_path / "cc")
    first = jit(tmp_path, cxx=str(cxx)).kernel(FIXED, tag="answer")
    assert answer(first) == 42
    assert jit(tmp_path, cxx=str(cxx)).kernel(FIXED, tag="answer") == first
    assert len(starts(cxx)) == 2  # one compile, one link


def test_a_header_changed_two_levels_down_gives_a_new_key(tmp_path):
    old = jit(tmp_path, headed(tmp_path, 1)).kernel(HEADED, tag="k")
    new = jit(tmp_path, headed(tmp_path, 2)).kernel(HEADED, tag="k")
    assert (answer(old), answer(new)) == (1, 2)
    assert jit(tmp_path, headed(tmp_path, 1)).kernel(HEADED, tag="k") == old


def test_one_jit_sees_a_header_change_between_calls(tmp_path):
    same = jit(tmp_path, headed(tmp_path, 1))
    old = same.kernel(HEADED, tag="k")
    headed(tmp_path, 2)
    assert same.kernel(HEADED, tag="k") != old


def test_where_the_folders_lie_is_not_in_the_key(tmp_path):
    here = jit(tmp_path, headed(tmp_path / "here", 1)).kernel(HEADED, tag="k")
    assert jit(tmp_path, headed(tmp_path / "there", 1)).kernel(HEADED, tag="k") == here


def test_signature_flags_versions_and_tag_are_in_the_key(tmp_path):
    base = jit(tmp_path)
    flagged = jit(tmp_path, cxx_flags=("-DX=1",))
    newer = Jit(base.settings, with_identity(base.toolchain, "g++ 99"), base.folders)
    found = [one.kernel(FIXED, tag="k") for one in (base, flagged, newer)]
    found += [base.kernel(FIXED, tag="k", signature="s"), base.kernel(FIXED, tag="other")]
    assert len(set(found)) == len(found)


def test_a_file_that_changes_while_it_compiles_does_not_get_in(tmp_path):
    """The compiler reads what was hashed: the planted writer changes the header once it has begun."""
    folders = headed(tmp_path, 1)
    cxx = wrapper(tmp_path / "cc", f"echo 'constexpr int value = 9;' > {tmp_path}/twin/b.hpp")
    assert answer(jit(tmp_path, folders, cxx=str(cxx)).kernel(HEADED, tag="k")) == 1


def test_an_error_carries_the_compiler_output_and_leaves_nothing(tmp_path):
    folders = put(tmp_path, {"kernels/bad.hpp": "int bad = nowhere;\n"})
    with pytest.raises(CompileError, match=r"kernel k does not compile .*exit code 1") as caught:
        jit(tmp_path, folders).kernel("#include <kernels/bad.hpp>\n", tag="k")
    assert "kernels/bad.hpp:1:11: error: 'nowhere' was not declared" in str(caught.value)
    assert left_in(tmp_path / "root") == ([], [])


def test_a_long_error_is_cut_in_the_text_alone(tmp_path):
    with pytest.raises(CompileError) as caught:
        jit(tmp_path).kernel("\n".join(f"int a{i} = b{i};" for i in range(100)), tag="k")
    assert "b99" not in str(caught.value)
    assert "b99" in caught.value.output
    assert "more lines)" in str(caught.value)


@pytest.mark.parametrize("kind", ["compiler", "linker"])
def test_a_full_disk_of_the_compiler_is_no_fault_of_the_source(tmp_path, kind):
    when = '*" -c "*' if kind == "compiler" else "*-shared*"
    full = f'case " $* " in {when}) echo "cannot write: No space left on device"; exit 1;; esac'
    with pytest.raises(
        NativeEnvironmentError, match=r"^kernel k cannot be compiled: the disk of .* is full$"
    ):
        jit(tmp_path, cxx=str(wrapper(tmp_path / "cc", full))).kernel(FIXED, tag="k")
    assert left_in(tmp_path / "root") == ([], [])


def test_a_compiler_that_is_killed_is_named_so(tmp_path):
    with pytest.raises(CompileError, match=r"killed by SIGKILL\)\n\(it printed nothing\)"):
        jit(tmp_path, cxx=str(wrapper(tmp_path / "cc", "kill -9 $$"))).kernel(FIXED, tag="k")


def test_four_processes_publish_one_entry(tmp_path):
    cxx = wrapper(tmp_path / "cc", "sleep 0.3")
    running = [compile_elsewhere(tmp_path, cxx) for _ in range(4)]
    paths = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(starts(cxx)) == 2
    assert len(paths) == 1
    cached, staged = left_in(tmp_path / "root")
    assert (len(cached), staged) == (1, [])


def test_a_kill_amid_a_compile_leaves_no_entry_and_the_next_start_builds(tmp_path):
    """The planted compiler has written half of its output when its parent is killed, and goes on living."""
    pid = tmp_path / "pid"
    half = f'for word; do last=$word; done; echo half > "$last"; echo $$ > {pid}.new; mv {pid}.new {pid}'
    cxx = wrapper(tmp_path / "cc", f"{half}; exec sleep 60")
    process = compile_elsewhere(tmp_path, cxx)
    try:
        while not pid.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.communicate()
        cached, staged = left_in(tmp_path / "root")
        assert (cached, len(staged)) == ([], 1)
        wrapper(cxx)
        assert answer(jit(tmp_path, cxx=str(cxx)).kernel(FIXED, tag="answer")) == 42
        assert left_in(tmp_path / "root")[1] == []
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_hit_starts_no_compiler_and_needs_no_lock(tmp_path):
    """The second start imports nothing that only a miss needs."""
    made = jit(tmp_path).kernel(FIXED, tag="answer")
    code = (
        "import sys; from pathlib import Path; from tests.native.jitkit import jit\n"
        f"assert str(jit(Path({str(tmp_path)!r})).kernel({FIXED!r}, tag='answer')) == {str(made)!r}\n"
        "assert 'filelock' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


LIBRARY = {
    "kernels/one.cpp": "#include <epsim_native/one.hpp>\nint one() { return kOne; }\n",
    "kernels/ep/two.cpp": "int two() { return 2; }\n",
    "twin/answer.cpp": 'int one();\nint two();\nextern "C" int answer() { return one() + two(); }\n',
    "epsim_native/one.hpp": "constexpr int kOne = 1;\n",
}
SOURCES = [name for name in LIBRARY if name.endswith(".cpp")]


def test_a_changed_kernel_recompiles_one_file_of_a_library(tmp_path):
    cxx = wrapper(tmp_path / "cc")
    build = jit(tmp_path, put(tmp_path, LIBRARY), cxx=str(cxx))
    assert answer(build.library(SOURCES, tag="lib")) == 3
    assert len(starts(cxx)) == 4
    build.library(SOURCES, tag="lib")
    assert len(starts(cxx)) == 4
    put(tmp_path, {"epsim_native/one.hpp": "constexpr int kOne = 5;\n"})
    assert answer(build.library(SOURCES, tag="lib")) == 7
    assert [line.split()[-3] for line in starts(cxx)[4:5]] == ["kernels/one.cpp"]
    assert len(starts(cxx)) == 6


def test_objects_of_a_library_compile_at_once(tmp_path):
    """Every compiler waits for a second one: this ends only when two run together."""
    meet = (
        f"n=0; while [ $(wc -l < {tmp_path}/cc.log) -lt 2 ]; do "
        "sleep 0.05; n=$((n+1)); [ $n -lt 200 ] || exit 1; done"
    )
    cxx = wrapper(tmp_path / "cc", meet)
    build = jit(tmp_path, put(tmp_path, LIBRARY), cxx=str(cxx), num_jobs=2)
    assert answer(build.library(SOURCES, tag="lib")) == 3


def test_a_library_names_the_source_that_fails(tmp_path):
    folders = put(tmp_path, LIBRARY | {"kernels/ep/two.cpp": "int two() { return none; }\n"})
    with pytest.raises(CompileError, match=r"source kernels/ep/two.cpp does not compile"):
        jit(tmp_path, folders).library(SOURCES, tag="lib")
    assert not any(name.startswith("lib.") for name in left_in(tmp_path / "root")[0])


def test_a_tag_that_is_no_file_name_is_refused(tmp_path):
    with pytest.raises(NativeInputError, match=r"tag is '\.\./up'"):
        jit(tmp_path).kernel(FIXED, tag="../up")
