"""JSON documents of HCCL, read so that every refusal names its field and nothing gets lost.

A document is kept as it was read; the typed views of `ranktable` and `topojson` lie on top of it. So
a file that is read and written again has the same values in the same order, unknown fields included.
"""

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

from topology.errors import TopologyError

VERSION = "2.0"
Document = dict[str, Any]
_PORT = re.compile(r"\d+/\d+", re.ASCII)
_SHOWN_CHARS = 60


def read_document(path: str | Path) -> Document:
    """Read a JSON object from a file.

    Raises:
      TopologyError: the file cannot be read, or as `parse_document`.
    """
    try:
        data = read_regular(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TopologyError("file", str(path), f"cannot be read: {reason}") from None
    return parse_document(data, str(path))


def read_regular(path: str | Path) -> bytes:
    """Read an ordinary file; opening a FIFO would wait for ever, and a device may never end.

    Raises:
      OSError: it cannot be read, or is something else; `strerror` is for people.
      ValueError: the name holds a NUL.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(0, "Is a folder" if stat.S_ISDIR(mode) else "Is a FIFO or device, no ordinary file")
    return Path(path).read_bytes()


def parse_document(data: bytes | str, name: str = "document") -> Document:
    """Parse a JSON object.

    Args:
      data: UTF-8 bytes (a byte order mark is allowed) or text.
      name: what to call it in an error, e.g. its path.

    Raises:
      TopologyError: a pickle or another binary file, truncated or otherwise broken JSON, a repeated
        key, a number JSON cannot hold, or a top level that is not an object.
    """
    if isinstance(data, bytes) and data[:1] == b"\x80":
        raise TopologyError("file", name, "must be JSON; this is a pickle, and nothing is ever unpickled")
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        raise TopologyError("file", name, "must be JSON, which is UTF-8 text") from None
    document = _decode(text, name)
    if not isinstance(document, dict):
        raise TopologyError("file", name, f"must hold a JSON object, not {_kind(document)}")
    return document


def _decode(text: str, name: str) -> Any:  # noqa: ANN401 - any JSON value
    def refuse(rule: str) -> Never:
        raise TopologyError("file", name, rule)

    def unique(pairs: list[tuple[str, Any]]) -> Document:
        document = dict(pairs)
        if len(document) != len(pairs):
            keys = [key for key, _ in pairs]
            refuse(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice in one object")
        return document

    def finite(number: str) -> float:
        value = float(number)
        return value if math.isfinite(value) else refuse(f"number {number} is beyond what JSON readers hold")

    def no_constant(number: str) -> Never:
        refuse(f"{number} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        at_end = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
        refuse(f"must be JSON; {'it ends early' if at_end else error.msg} at line {error.lineno}")
    except RecursionError:
        refuse("is nested too deeply")
    except TopologyError:
        raise
    except ValueError as error:  # an integer of more digits than Python reads
        refuse(f"holds a number that cannot be read: {error}")


def format_document(document: Mapping[str, Any]) -> str:
    """Write a document as JSON text: two spaces, keys in their order, ASCII only, newline at the end."""
    # ASCII, because a lone surrogate that JSON may hold has no UTF-8 form.
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def clone(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Copy a JSON value; several times faster than copy.deepcopy, which prepares for cycles."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


class Fields:
    """Typed access to one JSON object; `path` is put before each field name in an error."""

    def __init__(self, value: object, path: str) -> None:
        """Take an object found at `path`; raise TopologyError if it is none."""
        if not isinstance(value, dict):
            raise TopologyError(path, shown(value), "must be a JSON object")
        self.value: Document = value
        self.path = path

    def at(self, name: str) -> str:
        """Give the full path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Say whether the field is given."""
        return name in self.value

    def integer(self, name: str, default: int | None = None) -> int:
        """Read a non-negative integer; raise TopologyError if it is no such, or missing without default."""
        value = self._get(name, default)
        if type(value) is not int:
            rule = "must be an integer"
            raise TopologyError(
                self.at(name), shown(value), f"{rule}, not a string" if isinstance(value, str) else rule
            )
        if value < 0:
            raise TopologyError(self.at(name), value, "must not be negative")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Read a string; raise TopologyError if it is another thing, or missing without default."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise TopologyError(self.at(name), shown(value), "must be a string")
        return value

    def items(self, name: str, default: list[Any] | None = None) -> list[Any]:
        """Read a list; raise TopologyError if it is another thing, or missing without default."""
        value = self._get(name, default)
        if not isinstance(value, list):
            raise TopologyError(self.at(name), shown(value), "must be a list")
        return value

    def objects(self, name: str) -> list["Fields"]:
        """Read a list of objects, each with its own path; raise TopologyError otherwise."""
        return [Fields(item, f"{self.at(name)}[{i}]") for i, item in enumerate(self.items(name))]

    def texts(self, name: str, default: list[Any] | None = None) -> tuple[str, ...]:
        """Read a list of strings; raise TopologyError otherwise."""
        items = self.items(name, default)
        for i, item in enumerate(items):
            if not isinstance(item, str):
                raise TopologyError(f"{self.at(name)}[{i}]", shown(item), "must be a string")
        return tuple(items)

    def ports(self, name: str, default: list[Any] | None = None) -> tuple[str, ...]:
        """Read a list of distinct ports "die/port"; raise TopologyError otherwise."""
        ports = self.texts(name, default)
        for i, port in enumerate(ports):
            if not _PORT.fullmatch(port):
                raise TopologyError(
                    f"{self.at(name)}[{i}]", shown(port), 'must be "die/port", two whole numbers'
                )
            if port in ports[:i]:
                raise TopologyError(f"{self.at(name)}[{i}]", port, "is listed twice")
        return ports

    def require_version(self) -> None:
        """Raise TopologyError unless the field `version` is "2.0"."""
        version = self._get("version", None)
        if version != VERSION:
            raise TopologyError(self.at("version"), shown(version), f'must be "{VERSION}"')

    def require_count(self, name: str, of: str, length: int) -> None:
        """Raise TopologyError unless the integer field `name` is the length of the list `of`."""
        count = self.integer(name)
        if count != length:
            raise TopologyError(self.at(name), count, f"must be the length of {of}, which is {length}")

    def _get(self, name: str, default: object) -> object:
        if name in self.value:
            return self.value[name]
        if default is None:
            raise TopologyError(self.at(name), None, "is missing")
        return default


def shown(value: object) -> object:
    """Shorten a value for an error message: containers by kind and length, long strings by their start."""
    if isinstance(value, dict | list):
        return _Plain(f"{_kind(value)} of {len(value)}")
    if isinstance(value, str) and len(value) > _SHOWN_CHARS:
        return value[:_SHOWN_CHARS] + "..."
    return value


class _Plain(str):
    """Text that an error shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _kind(value: object) -> str:
    return {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a truth value",
        type(None): "null",
    }.get(type(value), "a number")
