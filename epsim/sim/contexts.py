"""What an engine remembers of its (jetty, destination) pairs, for experiments with its capacity."""

from collections.abc import Sequence
from random import Random
from typing import Literal

Key = tuple[str, int]
Replacement = Literal["oldest", "random"]


class Contexts:
    """A table of fixed size.

    Args:
      slots: pairs that it holds.
      replacement: who makes room: the pair unused for longest, or any.
      seed: of the choice.

    Attributes:
      num_misses: look-ups that did not find their pair.
    """

    def __init__(self, slots: int, replacement: Replacement, seed: int) -> None:
        """Start empty."""
        self.slots, self.replacement = slots, replacement
        self.num_misses = 0
        self._random = Random(seed)
        self._at: dict[Key, int] = {}
        self._keys: list[Key] = []

    def warm(self, keys: Sequence[Key]) -> None:
        """Start with what calls before left: everything when it fits, else any of it."""
        keep = keys if len(keys) <= self.slots else self._random.sample(keys, self.slots)
        for key in keep:
            self._insert(key)

    def find(self, key: Key) -> bool:
        """Tell whether a pair is there; it is from now on."""
        if key in self._at:
            if self.replacement == "oldest":
                self._at[key] = self._at.pop(key)
            return True
        self.num_misses += 1
        self._insert(key)
        return False

    def _insert(self, key: Key) -> None:
        if len(self._at) < self.slots:
            self._at[key] = len(self._keys)
            self._keys.append(key)
            return
        if self.replacement == "oldest":
            place = self._at.pop(next(iter(self._at)))
        else:
            place = self._random.randrange(self.slots)
            del self._at[self._keys[place]]
        self._keys[place] = key
        self._at[key] = place
