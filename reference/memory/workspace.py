"""The workspace in front of every Ascend EP buffer: signals, counters and the words they hold.

The tables are the layout; `epsim`'s native twin is compared with them word by word.
Source: deepep-ascend.md sections 3.2 and 3.3.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import whole_number
from reference.errors import ConfigError

MAX_RANKS = 256
MAX_EXPERTS = 2048
MAX_AIVS = 64
SECTOR_INTS = 128
"""Words of a 512 B sector; each expert of the local histogram has one to itself."""
WORKSPACE_BYTES = 2 * 2**20
SIGNALS_BYTES = 3072
ARRIVAL_SHIFT = 24
MAX_ARRIVALS = 2**8 - 1
MAX_VALUE = 2**24 - 1


@dataclass(frozen=True, kw_only=True)
class WorkspaceField:
    """One array of the workspace.

    Args:
      name: of the field.
      offset: bytes from the start of the structure.
      dtype: of one element.
      shape: of the array.
    """

    name: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def of(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the array as a view of the structure's bytes.

        Args:
          memory: [at least offset + num_bytes] uint8, contiguous.

        Raises:
          ConfigError: not bytes, or too few.
        """
        end = self.offset + self.num_bytes
        if memory.dtype != np.uint8 or memory.ndim != 1 or memory.size < end:
            found = f"{memory.dtype} {memory.shape}"
            raise ConfigError("memory", found, f"must be at least {end} bytes of uint8 for {self.name}")
        return memory[self.offset : end].view(self.dtype).reshape(self.shape)


def _field(name: str, offset: int, dtype: str, *shape: int) -> WorkspaceField:
    return WorkspaceField(name=name, offset=offset, dtype=np.dtype(dtype), shape=shape)


COMMON_SIGNALS: tuple[WorkspaceField, ...] = (
    _field("peer_ptrs", 0, "<i8", MAX_RANKS),
    _field("grid_sync_count", 2048, "<u4"),
    # Sectors of 512 B keep the polled words apart from the pointers.
    _field("barrier_counter", 2560, "<i8"),
    _field("barrier_signals", 2568, "<i4", 2),
)
"""At offset 0 of every workspace, 3,072 bytes; the Bucket buffer has one per group, 8 in all."""


def _ep_fields() -> tuple[WorkspaceField, ...]:
    """Place the arrays one after the other behind the signals."""
    offset = SIGNALS_BYTES
    fields = []
    for name, shape in (
        ("local_expert_histogram", (MAX_EXPERTS, SECTOR_INTS)),  # only the first word of a sector is used
        ("remote_expert_histogram", (MAX_EXPERTS,)),  # index = LOCAL expert
        ("local_rank_histogram", (MAX_AIVS, MAX_RANKS)),
        ("remote_rank_histogram", (MAX_RANKS,)),  # index = SOURCE rank
        ("host_rank_expert_count", (MAX_RANKS + MAX_EXPERTS,)),  # used in the host's copy alone
        ("epilogue_expert_counter", (MAX_AIVS * MAX_EXPERTS,)),  # rows packed with stride L
    ):
        fields.append(_field(name, offset, "<i4", *shape))
        offset += fields[-1].num_bytes
    return tuple(fields)


EP_WORKSPACE: tuple[WorkspaceField, ...] = COMMON_SIGNALS + _ep_fields()
EP_WORKSPACE_USED_BYTES = EP_WORKSPACE[-1].offset + EP_WORKSPACE[-1].num_bytes


def workspace_field(name: str) -> WorkspaceField:
    """Return one field of the EP workspace.

    Raises:
      ConfigError: there is none of that name.
    """
    for field in EP_WORKSPACE:
        if field.name == name:
            return field
    names = ", ".join(field.name for field in EP_WORKSPACE)
    raise ConfigError("field", name, f"the workspace holds {names}")


def epilogue_counter_idx(aiv: int, local_expert: int, num_local_experts: int) -> int:
    """Return the index into epilogue_expert_counter: rows have stride L, not 2048.

    Raises:
      ConfigError: an index is out of range.
    """
    experts = whole_number("num_local_experts", num_local_experts, 1)
    if not 0 <= whole_number("aiv", aiv, 0) < MAX_AIVS:
        raise ConfigError("aiv", aiv, f"must be below {MAX_AIVS}")
    if whole_number("local_expert", local_expert, 0) >= experts:
        raise ConfigError("local_expert", local_expert, f"must be below num_local_experts {experts}")
    return aiv * experts + local_expert


def pack_word(arrivals: int, value: int) -> int:
    """Return a reduction word: arrivals in the high 8 bits, value in the low 24.

    Words are added by remote atomics, so one addition counts an arrival and sums its value at once.

    Args:
      arrivals: 0..255.
      value: 0..2**24 - 1; a larger one would count as further arrivals.

    Returns:
      int, unsigned 32-bit.

    Raises:
      ConfigError: a part does not fit.
      Source: deepep-ascend.md section 3.3.
    """
    for name, part, most in (("arrivals", arrivals, MAX_ARRIVALS), ("value", value, MAX_VALUE)):
        if whole_number(name, part, 0) > most:
            raise ConfigError(name, part, f"must fit into its bits, at most {most}")
    return arrivals << ARRIVAL_SHIFT | value


def unpack_word(word: int) -> tuple[int, int]:
    """Return (arrivals, value) of a word, read as signed or unsigned 32-bit.

    Raises:
      ConfigError: no 32-bit word.
    """
    if not -(2**31) <= word < 2**32:
        raise ConfigError("word", word, "must be a 32-bit word")
    return (word & 0xFFFFFFFF) >> ARRIVAL_SHIFT, word & MAX_VALUE


def is_word_ready(word: int, num_expected: int) -> bool:
    """Whether all expected arrivals are in; the value may be read then and not before.

    Raises:
      ConfigError: more arrivals expected than 8 bits count, or no 32-bit word.
    """
    if whole_number("num_expected", num_expected, 0) > MAX_ARRIVALS:
        raise ConfigError("num_expected", num_expected, f"8 bits count at most {MAX_ARRIVALS} arrivals")
    return unpack_word(word)[0] == num_expected
