"""A source that instantiates one template with values that Python gives."""

import re
from collections.abc import Mapping

from native.errors import NativeInputError


def instantiate(header: str, template: str, values: Mapping[str, int | bool]) -> str:
    """Return a source that includes a header and instantiates `template<values...>`.

    On the host the binary exports `epsim_instance()`, which returns the address of the function.

    Args:
      header: tracked file, as "kernels/ep/dispatch.hpp".
      template: qualified name of a function template.
      values: its parameters in order; the names are for readers and errors, the compiler checks the types.

    Raises:
      NativeInputError: a name that is none, or a value that is neither bool nor an integer of 64 bits.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", template):
        raise NativeInputError("template", template, "must be a qualified C++ name")
    if not re.fullmatch(r"[\w.]+(/[\w.]+)+", header):
        raise NativeInputError("header", header, "must be folder/file")
    lines = ",\n".join(f"    /* {name} */ {_literal(name, value)}" for name, value in values.items())
    return (
        f"#include <{header}>\n\n"
        "// Taking the address is what makes the compiler emit the instance.\n"
        f"[[maybe_unused]] static const auto epsim_kernel = &{template}<\n{lines}>;\n\n"
        "#if !defined(__CCE__)\n"
        'extern "C" void* epsim_instance() { return reinterpret_cast<void*>(epsim_kernel); }\n'
        "#endif\n"
    )


def _literal(name: str, value: int | bool) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise NativeInputError("template parameter", name, "must be a C++ name")
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise NativeInputError(f"template parameter {name}", value, "must be a bool or an integer of 64 bits")
    if value == -(2**63):
        return "(-9223372036854775807ll - 1)"  # C++ has no negative literals: 2^63 alone would be unsigned
    return f"{value}ull" if value >= 2**63 else str(value)
