"""What a mutant is: one text of our kernels replaced by another, and the real bug that this stands for."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from native.sources import FOLDERS

DISPATCH_FREE = ("kernels/ep/combine", "kernels/common/rows")
"""Files that no dispatch runs, by how their names begin."""
DISPATCH_ONLY = ("dispatch", "no_sync", "cached")
"""Scenarios without a combine: there such a mutant is the unchanged kernel."""
LATER_CALLS = ("handles", "sequence")
"""Scenarios with more than one dispatch on a buffer."""


class PatchError(ValueError):
    """The old text of a mutant is not in its file, or is there more than once."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed kernel.

    Args:
      name: as the table writes it.
      file: which source, as "kernels/ep/dispatch.hpp".
      old: text that occurs exactly once in it.
      new: what stands there instead.
      bug: what real mistake this is.
      scenarios: of the suite, where the bug can show at all; () = in all that run the file.
      variant: name of one of `battery.VARIANTS`: how the suite must run to reach the changed lines.
    """

    name: str
    file: str
    old: str
    new: str
    bug: str
    scenarios: tuple[str, ...] = ()
    variant: str = ""

    def applied(self) -> str:
        """Return the changed source.

        Raises:
          PatchError: the old text is not there exactly once, so the table has to follow the kernels.
        """
        prefix, _, rest = self.file.partition("/")
        text = (FOLDERS[prefix] / rest).read_text()
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise PatchError(f"mutant {self.name}: its old text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)

    def write(self, folder: Path) -> Mapping[str, Path]:
        """Copy the kernels with the change below a folder; return what `build_twin` takes as folders."""
        text = self.applied()
        shutil.copytree(FOLDERS["kernels"], folder / "kernels")
        (folder / self.file).write_text(text)
        return {**FOLDERS, "kernels": folder / "kernels"}

    def concerns(self, scenario: str) -> bool:
        """Whether programs of a scenario can show the bug."""
        if self.scenarios:
            return scenario in self.scenarios
        return scenario not in DISPATCH_ONLY or not self.file.startswith(DISPATCH_FREE)
