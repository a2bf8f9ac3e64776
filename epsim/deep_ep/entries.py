"""Engram's memory on one rank: the fetch area, and the entries and scales of all ranks.

R ranks, Y layers, N entries of a layer on each rank, H hidden, T tokens, J entries per token, P scale packs.
On a device a fetch reads its owner's memory without the owner's help. gloo cannot do that, so `write` gives
every rank a copy of all shards: R times the storage, and a fetch that is as one-sided as the real one.
Source: deepep-ascend.md sections 1.12 and 4.8.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from epsim.deep_ep.errors import HostCheckError, UndefinedError
from epsim.deep_ep.tensor_checks import check_tensor
from reference.collectives.engram import EngramConfig
from reference.memory.sizes import Dtype, align

Fetched: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
FetchHook: TypeAlias = Callable[[], Fetched]
"""Returns data [T, J H], or for fp8 (data, scales [T, J P])."""
TORCH_DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def entry_dtype(dtype: torch.dtype) -> Dtype:
    """Return the reference's name of an entry's dtype.

    Raises:
      HostCheckError: neither bf16 nor e4m3fn.
    """
    for name, known in TORCH_DTYPES.items():
        if dtype == known:
            return name
    raise HostCheckError("dtype", dtype, "must be torch.bfloat16 or torch.float8_e4m3fn")


def check_tables(
    name: str,
    tables: Sequence[torch.Tensor],
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype | None,
    num_bytes: int,
) -> None:
    """Refuse anything but one table per layer of the given shape and dtype.

    Args:
      name: of the argument.
      tables: per layer.
      shapes: per layer.
      dtype: None = any of num_bytes.
      num_bytes: of an element.

    Raises:
      HostCheckError: says which layer has what.
    """
    if not isinstance(tables, Sequence):
        raise HostCheckError(name, type(tables).__name__, "must be a sequence with a tensor per layer")
    if len(tables) != len(shapes):
        raise HostCheckError(name, f"{len(tables)} layers", f"must be {len(shapes)}")
    for layer, (table, shape) in enumerate(zip(tables, shapes, strict=True)):
        check_tensor(f"{name}[{layer}]", table, dim=None, dtype=None)
        fits = table.element_size() == num_bytes if dtype is None else table.dtype == dtype
        if tuple(table.shape) != shape or not fits:
            kind = dtype or f"{num_bytes}-byte packs"
            found = f"{table.dtype} {tuple(table.shape)}"
            raise HostCheckError(f"{name}[{layer}]", found, f"must be contiguous {kind} of shape {shape}")


class EngramMemory:
    """Fetch area and tables after one `set_config`.

    Args:
      config: shapes; the tables start empty.
      num_ranks: R.
      area: uint8, at least config.fetch_bytes; a layer's part starts at layer * num_max_tokens * J * bytes
        of an entry.
      column_rows: rows to which a column of column-major scales is padded.
    """

    def __init__(self, config: EngramConfig, num_ranks: int, area: torch.Tensor, column_rows: int) -> None:
        """Start without entries."""
        self.config, self.num_ranks = config, num_ranks
        self.area, self.column_rows = area, column_rows
        self.entries: list[torch.Tensor] | None = None
        self.scales: list[torch.Tensor] | None = None

    def check_indices(self, indices: torch.Tensor) -> None:
        """Refuse ids that a fetch cannot have.

        Raises:
          HostCheckError: not contiguous int32 [Y, T, J], or more tokens than configured.
          UndefinedError: an id beyond R N, which upstream does not notice.
        """
        check_tensor("indices", indices, dim=None, dtype=None)
        config = self.config
        layers, per_token = len(config.num_entries_per_layer), config.num_entries_per_token
        fits = indices.dim() == 3 and (indices.shape[0], indices.shape[2]) == (layers, per_token)
        if indices.dtype != torch.int32 or not fits:
            rule = f"must be contiguous int32 of shape ({layers}, tokens, {per_token})"
            raise HostCheckError("indices", f"{indices.dtype} {tuple(indices.shape)}", rule)
        if indices.shape[1] > config.num_max_tokens:
            rule = f"num_max_tokens is {config.num_max_tokens}"
            raise HostCheckError("indices", f"{indices.shape[1]} tokens", rule)
        limits = self.num_ranks * torch.tensor(config.num_entries_per_layer)
        bad = (indices >= limits[:, None, None]).nonzero()
        if len(bad):
            layer, token, place = bad[0].tolist()
            field = f"indices[layer {layer}, token {token}, entry {place}]"
            rule = f"must be below {int(limits[layer])}, or negative to skip"
            raise UndefinedError(field, int(indices[layer, token, place]), rule)

    def fetch(self, layer: int, ids: torch.Tensor, *, column_major: bool) -> FetchHook:
        """Copy the entries of one layer into its part of the area.

        Args:
          layer: which.
          ids: [T, J] int32; negative places keep what they hold.
          column_major: memory order of the scales.

        Returns:
          the hook; its data is a view of the area.
        """
        config = self.config
        assert self.entries is not None, "the caller checks this"
        tokens, per_token = ids.shape
        start = layer * config.num_max_tokens * per_token * config.entry_bytes
        places = self.area[start : start + ids.numel() * config.entry_bytes].view(-1, config.entry_bytes)
        taken = ids.reshape(-1) >= 0
        chosen = ids.reshape(-1)[taken].long()
        # As bytes: torch does not index float8.
        places[taken] = self.entries[layer].view(torch.uint8)[chosen]
        data = places.view(TORCH_DTYPES[config.dtype]).view(tokens, per_token * config.hidden)
        if self.scales is None:
            return lambda: data
        table = self.scales[layer]
        # Fresh memory each time; what is skipped is as undefined as that, and -1 shows it.
        found = torch.full((tokens * per_token, table.shape[1]), -1).to(table.dtype)
        found[taken] = table[chosen]
        scales = self._ordered(found.view(tokens, per_token * table.shape[1]), column_major)
        return lambda: (data, scales)

    def _ordered(self, scales: torch.Tensor, column_major: bool) -> torch.Tensor:
        """Return the same [T, J P] with strides (J P, 1) or (1, al(T, column_rows))."""
        if not column_major:
            return scales
        tokens, width = scales.shape
        memory = torch.full((width, align(tokens, self.column_rows)), -1).to(scales.dtype)
        memory[:, :tokens] = scales.T
        return memory.T[:tokens]
