"""The name of the kernel in a device binary, read off the names of its ELF sections."""

import struct

from native.errors import NativeInputError

META = ".ascend.meta."
"""Bisheng writes one section of this prefix per kernel (spec/ascend.md 5)."""

MIX_SUFFIXES = ("_mix_aic", "_mix_aiv")
"""One kernel for both kinds of core has a section per kind; the kernel's name is without the suffix."""


def kernel_name(binary: bytes) -> str:
    """Return the name of the only kernel of a device binary, a 64-bit little-endian ELF file.

    Raises:
      NativeInputError: no ELF file, or it holds none or several kernels.
    """
    names = set()
    for section in section_names(binary):
        if section.startswith(META):
            name = section.removeprefix(META)
            for suffix in MIX_SUFFIXES:
                name = name.removesuffix(suffix)
            names.add(name)
    if len(names) != 1:
        raise NativeInputError("device binary", sorted(names), "must hold exactly one kernel")
    return names.pop()


def section_names(binary: bytes) -> list[str]:
    """Return the names of all sections of a 64-bit little-endian ELF file; offsets are those of ELF-64.

    Raises:
      NativeInputError: it is none, or it is cut off.
    """
    try:
        if binary[:6] != b"\x7fELF\x02\x01":
            raise ValueError
        (table,) = struct.unpack_from("<Q", binary, 0x28)
        entry_bytes, num_sections, names_idx = struct.unpack_from("<HHH", binary, 0x3A)
        headers = [
            struct.unpack_from("<I20xQQ", binary, table + idx * entry_bytes) for idx in range(num_sections)
        ]
        _, start, num_bytes = headers[names_idx]
        texts = binary[start : start + num_bytes]
        return [texts[offset : texts.index(b"\0", offset)].decode() for offset, _, _ in headers]
    except (ValueError, IndexError, struct.error):
        raise NativeInputError(
            "device binary", f"{len(binary)} bytes", "must be a whole 64-bit ELF file"
        ) from None
