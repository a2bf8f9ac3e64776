"""Run-time compilation: sources go in, the path of a binary comes out, from a cache whenever nothing changed.

The key covers an extra signature of the caller, the versions of compiler and linker, the effective flags, and
the bytes of the source and of all it includes of ours. Where files lie is no part of it: a checkout that
moves, or a second one with equal files, finds the same entries.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from native.cache import Cache, entry_name
from native.elf import kernel_name
from native.settings import JitSettings
from native.sources import FOLDERS, Snapshot, digest_of
from native.toolchain import Toolchain

FORMAT = b"epsim jit 1"
"""First field of every key: a change of what an entry holds changes it."""


@dataclass(frozen=True)
class Jit:
    """A toolchain, a cache and the folders that sources come from.

    Args:
      settings: cache roots and number of jobs.
      toolchain: what compiles.
      folders: prefix of an include -> directory; a test of changed kernels gives its own.
    """

    settings: JitSettings
    toolchain: Toolchain
    folders: Mapping[str, Path] = field(default_factory=lambda: FOLDERS)

    def kernel(self, source: str, *, tag: str, signature: str = "") -> Path:
        """Compile one generated source to one binary.

        Args:
          source: C++ text.
          tag: first part of the entry's name, for people.
          signature: whatever else the binary depends on.

        Returns:
          Path of a shared object (host), or of a device binary that holds exactly one kernel.

        Raises:
          NativeInputError: the source includes what cannot be tracked, or does not hold one device kernel.
          NativeEnvironmentError: no room or no right to write the cache.
          CompileError: the compiler refused.
        """
        tools, snapshot = self.toolchain, Snapshot(self.folders)
        suffix, object_suffix, binary_suffix = tools.suffixes
        name = f"kernel{suffix}"
        snapshot.add(name, source)
        needed = snapshot.closure(name)
        flags = _encoded(tools.compile_flags), _encoded(tools.link_flags)
        digest = digest_of(self._head("kernel", signature), *flags, snapshot.fields(needed))

        def build(entry: Path, work: Path) -> None:
            snapshot.write(needed, work)
            made, binary = work / f"kernel{object_suffix}", entry / f"kernel{binary_suffix}"
            commands = [tools.compile_command(name, made), tools.link_command([made], binary)]
            for command in commands:
                tools.run(f"kernel {tag}", command, work, work)
            if tools.has_device_kernel:
                kernel_name(binary.read_bytes())
            (entry / name).write_text(source)
            self._describe(entry, snapshot, needed, commands)

        return self._cache.find_or_build(entry_name(tag, digest), build) / f"kernel{binary_suffix}"

    def library(
        self,
        sources: Sequence[str],
        *,
        tag: str,
        signature: str = "",
        generated: Mapping[str, str] = MappingProxyType({}),
    ) -> Path:
        """Compile sources to one shared object; each has an entry of its own, so a changed one goes alone.

        Args:
          sources: names, as "twin/capi.cpp"; linked in this order.
          tag: first part of the entries' names.
          signature: whatever else the binary depends on.
          generated: texts of the sources that are no files, by name.

        Raises:
          As `kernel`.
        """
        tools, snapshot = self.toolchain, Snapshot(self.folders)
        for name, text in generated.items():
            snapshot.add(name, text)
        keys = [self._object_key(snapshot, name, signature) for name in sources]
        digest = digest_of(self._head("library", signature), _encoded(tools.link_flags), _encoded(keys))

        def build(entry: Path, work: Path) -> None:
            jobs = self.settings.num_jobs or len(os.sched_getaffinity(0))
            with ThreadPoolExecutor(jobs) as pool:
                made = [
                    pool.submit(self._object, snapshot, *pair) for pair in zip(sources, keys, strict=True)
                ]
                try:
                    objects = [item.result() for item in made]
                except BaseException:
                    pool.shutdown(
                        cancel_futures=True
                    )  # those that have not started would only delay the news
                    raise
            command = tools.link_command(objects, entry / "library.so")
            tools.run(f"library {tag}", command, work, work)
            self._describe(entry, snapshot, [], [command])

        return self._cache.find_or_build(entry_name(tag, digest), build) / "library.so"

    @property
    def _cache(self) -> Cache:
        return Cache(self.settings.cache_dirs)

    def _head(self, kind: str, signature: str) -> list[bytes]:
        return [FORMAT, *_encoded([kind, signature, self.toolchain.identity])]

    def _object_key(self, snapshot: Snapshot, name: str, signature: str) -> str:
        flags = _encoded([name, *self.toolchain.compile_flags])
        return digest_of(self._head("object", signature), flags, snapshot.fields(snapshot.closure(name)))

    def _object(self, snapshot: Snapshot, name: str, digest: str) -> Path:
        needed = snapshot.closure(name)
        tag = Path(name).stem

        def build(entry: Path, work: Path) -> None:
            snapshot.write(needed, work)
            command = self.toolchain.compile_command(name, entry / "object.o")
            self.toolchain.run(f"source {name}", command, work, work)
            self._describe(entry, snapshot, needed, [command])

        return self._cache.find_or_build(entry_name(tag, digest), build) / "object.o"

    def _describe(
        self, entry: Path, snapshot: Snapshot, needed: Sequence[str], commands: Sequence[Sequence[str]]
    ) -> None:
        """Write what the key was made of: two entries can be compared when a miss surprises."""
        record = {
            "toolchain": self.toolchain.identity.splitlines(),
            "commands": [list(command) for command in commands],
            "sources": {name: digest_of([snapshot.read(name)]) for name in needed},
        }
        (entry / "build.json").write_text(json.dumps(record, indent=1) + "\n")


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]
