"""Template parameters from Python reach the template as they are."""

import ctypes
import os
import shutil

import pytest

from native.errors import CompileError, NativeInputError
from native.instantiate import instantiate
from native.toolchain import HOST_COMPILERS
from tests.native.jitkit import jit, put

HEADER = """
#include <string>
namespace k {
template <auto... values> const char* all() {
    static std::string text;
    text.clear();
    ((text += std::is_same_v<decltype(values), bool> ? "bool " : "int ",
      text += std::to_string(values) + ";"), ...);
    return text.c_str();
}
template <int n, bool flag> int typed() { return flag ? n : -n; }
}
"""


COMPILERS = [name for name in HOST_COMPILERS if shutil.which(name, path=os.defpath)]


def instance(tmp_path, template: str, values: dict[str, int | bool], restype: type, cxx=None) -> object:
    """Compile an instance and call it."""
    build = jit(tmp_path, put(tmp_path, {"kernels/h.hpp": HEADER}), cxx=cxx)
    library = ctypes.CDLL(str(build.kernel(instantiate("kernels/h.hpp", template, values), tag="h")))
    library.epsim_instance.restype = ctypes.c_void_p
    return ctypes.CFUNCTYPE(restype)(library.epsim_instance())()


@pytest.mark.parametrize("cxx", COMPILERS)
def test_every_value_arrives_with_its_type(tmp_path, cxx):
    values = [True, False, 0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
    named = {f"v{idx}": value for idx, value in enumerate(values)}
    told = instance(tmp_path, "k::all", named, ctypes.c_char_p, cxx)
    kinds = ["bool" if isinstance(value, bool) else "int" for value in values]
    assert told.decode() == "".join(
        f"{kind} {int(value)};" for kind, value in zip(kinds, values, strict=True)
    )


def test_other_values_are_another_instance(tmp_path):
    found = [instance(tmp_path, "k::typed", {"n": 7, "flag": flag}, ctypes.c_int) for flag in (True, False)]
    assert found == [7, -7]


def test_a_value_that_does_not_fit_its_parameter_is_an_error_of_the_compiler(tmp_path):
    with pytest.raises(CompileError, match=r"/\* n \*/ 1099511627776"):
        instance(tmp_path, "k::typed", {"n": 2**40, "flag": True}, ctypes.c_int)


@pytest.mark.parametrize(
    ("header", "template", "values", "field"),
    [
        ("kernels/h.hpp", "k::f", {"n": 1.0}, "template parameter n"),
        ("kernels/h.hpp", "k::f", {"n": "1"}, "template parameter n"),
        ("kernels/h.hpp", "k::f", {"n": 2**64}, "template parameter n"),
        ("kernels/h.hpp", "k::f", {"n": -(2**63) - 1}, "template parameter n"),
        ("kernels/h.hpp", "k::f", {"*/ evil": 1}, "template parameter"),
        ("kernels/h.hpp", "f<1>; int x", {}, "template"),
        ("h.hpp> \n#include <x", "f", {}, "header"),
    ],
)
def test_what_is_no_parameter_is_refused(header, template, values, field):
    with pytest.raises(NativeInputError) as caught:
        instantiate(header, template, values)
    assert caught.value.field == field
