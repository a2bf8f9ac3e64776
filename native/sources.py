"""Source files of one build: which tracked files a text includes, and their bytes, read once.

Tracked are `<prefix/...>` includes whose prefix names one of our folders; all others (the standard library,
the vendor's headers) belong to the compiler, whose version is in the key. A compile sees nothing but a copy
of the files that were hashed (`Snapshot.write`), so a file that changes meanwhile cannot slip under an old
key.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from native.errors import NativeInputError

NATIVE = Path(__file__).parent
FOLDERS: Mapping[str, Path] = {
    "epsim_native": NATIVE / "include" / "epsim_native",
    "kernels": NATIVE / "kernels",
    "twin": NATIVE / "twin",
}
"""Where the files behind `<epsim_native/...>`, `<kernels/...>` and `<twin/...>` are."""

# Comments and raw strings may hold text that looks like a directive. Plain literals are matched so that a
# "//" inside them starts no comment; the quote of a digit separator (1'000) starts no literal. Every
# alternative begins with one character, which lets `re` skip to the next of them.
_HIDING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1\""""
    r"""|"(?:\\.|[^"\\\n])*"|'(?<![0-9a-fA-F]')(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*(include_next|include|import|embed)\b[ \t]*(.*?)[ \t\r]*(?://.*)?$", re.M
)


def _unhide(match: re.Match[str]) -> str:
    text = match[0]
    return text if text[0] in "\"'" else " "


def includes_of(text: str, where: str) -> list[str]:
    """Return the names between angle brackets that a C++ text includes, in order.

    Raises:
      NativeInputError: a quoted, computed, absolute or climbing include, whose file could not be tracked.
    """
    visible = text.replace("\\\r\n", "").replace("\\\n", "")
    # Nothing else can hide a whole line, and most files have neither.
    if "/*" in visible or 'R"' in visible:
        visible = _HIDING.sub(_unhide, visible)
    names = []
    for directive, argument in _DIRECTIVE.findall(visible):
        name = argument[1:-1]
        if directive != "include" or not re.fullmatch(r"<[^<>]+>", argument):
            raise NativeInputError(
                f"include in {where}",
                argument,
                'must have the form #include <folder/file>, not "file" or a macro',
            )
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise NativeInputError(f"include in {where}", argument, "must not be absolute or climb with '..'")
        names.append(name)
    return names


class Snapshot:
    """Files as they were when this build first read them."""

    def __init__(self, folders: Mapping[str, Path] = FOLDERS) -> None:
        """Start with nothing read.

        Args:
          folders: prefix of an include -> directory that holds the rest of its path.
        """
        self._folders = folders
        self._bytes: dict[str, bytes] = {}
        self._tracked: dict[str, dict[str, None]] = {}

    def add(self, name: str, text: str) -> None:
        """Hold a generated source under a name, as "kernel.cpp"."""
        self._bytes[name] = text.encode()

    def read(self, name: str) -> bytes:
        """Return the bytes of a held or tracked file, as "kernels/ep/dispatch.hpp".

        Raises:
          NativeInputError: there is no such file.
        """
        if name not in self._bytes:
            prefix, _, rest = name.partition("/")
            try:
                self._bytes[name] = (self._folders[prefix] / rest).read_bytes()
            except (OSError, KeyError):
                raise NativeInputError("source", name, "must be a readable file of native") from None
        return self._bytes[name]

    def closure(self, name: str) -> list[str]:
        """Return a file and all that it includes of ours, directly or not, sorted by name.

        Raises:
          NativeInputError: an include that cannot be tracked, is missing, or includes itself in the end.
        """
        return sorted(self._walk(name, []))

    def _walk(self, name: str, above: list[str]) -> dict[str, None]:
        if name in above:
            circle = [*above[above.index(name) :], name]
            raise NativeInputError("include", " -> ".join(circle), "must not lead back to itself")
        if name not in self._tracked:
            found = {name: None}
            for child in includes_of(self.read(name).decode(errors="replace"), name):
                if child.partition("/")[0] in self._folders:
                    found |= self._walk(child, [*above, name])
            self._tracked[name] = found
        return self._tracked[name]

    def write(self, names: Iterable[str], folder: Path) -> None:
        """Copy held files below a folder under their names."""
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.read(name))

    def fields(self, names: Sequence[str]) -> list[bytes]:
        """Return names and contents as fields of a key."""
        return [part for name in names for part in (name.encode(), self.read(name))]


def digest_of(*groups: Sequence[bytes]) -> str:
    """Return 40 hex digits over groups of fields; no two different structures share the hashed bytes.

    Every group is preceded by its number of fields and every field by its length, 8 bytes each.
    """
    state = hashlib.blake2b(digest_size=20)
    for group in groups:
        state.update(len(group).to_bytes(8, "little"))
        for part in group:
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
    return state.hexdigest()
